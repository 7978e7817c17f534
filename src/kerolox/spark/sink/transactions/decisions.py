"""Decisions: which attempts of a batch count. One file each, written once, before any half ends.

The file of a batch is made by an exclusive create, so whoever comes second learns what the first
decided. ``BATCH.done`` beside it says that all halves of the batch were ended, and how far the half
queues reached then.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from kerolox.errors import ConfigError
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.transactions.messages import HalfRange, SinkMessage
from kerolox.text import printable

VERSION = 1

KEPT = 100
"""Decisions that are kept, the newest ones: as many batches as Spark keeps by default
(spark.sql.streaming.minBatchesToRetain)."""

_DONE = ".done"
_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}


class Winner(msgspec.Struct, frozen=True):
    """An attempt that counts."""

    attempt: str
    ranges: list[HalfRange]


class Decision(msgspec.Struct, frozen=True):
    """The decision about one batch: which attempts count."""

    version: int
    query: str
    batch: int
    group: str
    """The producer group of the halves."""
    winners: list[Winner]

    @classmethod
    def of(cls, query: str, batch: int, group: str, messages: Iterable[SinkMessage]) -> Decision:
        """The attempts of these messages count."""
        winners = [Winner(each.attempt, list(each.ranges)) for each in messages if each.ranges]
        return cls(VERSION, query, batch, group, winners)

    def counts(self, attempt: str, broker_name: str, offset: int | None) -> bool | None:
        """Whether a half counts, given its place in the half queue; None where that is not certain:
        the attempt counts, and the place is unknown (None).
        """
        winner = next((each for each in self.winners if each.attempt == attempt), None)
        if winner is None:
            return False
        if offset is None:
            return None
        return any(
            part.broker_name == broker_name
            and part.low <= offset < part.high
            and offset not in part.excluded
            for part in winner.ranges
        )


class EndedBatch(msgspec.Struct, frozen=True):
    """All halves of a batch were ended."""

    ends: dict[str, int]
    """How far the half queue of each broker reached then."""


class Folder(Protocol):
    """Where the files are."""

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None: there is none."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is whole and durable or not there; False: there is one already."""

    def names(self) -> list[str]:
        """The files."""

    def remove(self, name: str) -> None:
        """Delete a file; none is no error."""


class DecisionStore:
    """The decisions of one query."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def decision(self, batch: int) -> Decision | None:
        """What was decided of a batch; None: nothing. SinkError: the file can't be read, or is of a
        newer version.
        """
        data = self._folder.read(str(batch))
        return None if data is None else _decoded(data, batch)

    def decide(self, decision: Decision) -> Decision:
        """Keep a decision, or learn the one that was made before. Durable when it returns.
        SinkError: it can't be kept; nothing may be ended.
        """
        # An old driver may live on beside its successor: the file that is there decides for both.
        if self._folder.create(str(decision.batch), msgspec.json.encode(decision)):
            return decision
        found = self.decision(decision.batch)
        if found is None:
            raise SinkError(f"the decision of batch {decision.batch} was made and is gone")
        return found

    def done(self, batch: int) -> EndedBatch | None:
        """What was said of a batch when it was done; None: it is not."""
        data = self._folder.read(f"{batch}{_DONE}")
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=EndedBatch)
        except msgspec.DecodeError as error:
            raise SinkError(f"file {batch}{_DONE} of the decisions is not readable: {error}") from (
                None
            )

    def mark_done(self, batch: int, done: EndedBatch) -> None:
        """All halves of a batch are ended."""
        self._folder.create(f"{batch}{_DONE}", msgspec.json.encode(done))

    def undone(self, before: int) -> list[int]:
        """Batches before this one that are decided and not done: none in Spark's own order."""
        names = set(self._folder.names())
        batches = (
            int(name) for name in names if name.isdecimal() and f"{name}{_DONE}" not in names
        )
        return sorted(batch for batch in batches if batch < before)

    def forget(self, batch: int) -> None:
        """Delete what is older than the newest :data:`KEPT` batches, this one included."""
        for name in self._folder.names():
            number = name.removesuffix(_DONE)
            if number.isdecimal() and int(number) <= batch - KEPT:
                self._folder.remove(name)


def _decoded(data: bytes, batch: int) -> Decision:
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("version")
        if version != VERSION:
            raise SinkError(
                f"the decision of batch {batch} is of version {version}, known here is {VERSION}; "
                "use the Kerolox that wrote it or a newer one"
            )
        return msgspec.json.decode(data, type=Decision)
    except msgspec.DecodeError as error:
        raise SinkError(f"the decision of batch {batch} is not readable: {error}") from None


def store_at(location: str) -> DecisionStore:
    """The decisions at a path or URI: a local folder, else any file system of ``pyarrow.fs``."""
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise SinkError(f"decisions can't be kept at {location}: {error}") from error
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else location
        return DecisionStore(LocalFolder(Path(path).absolute()))
    return DecisionStore(RemoteFolder(location))


def check_location(location: str) -> None:
    """Refuse a place of decisions before anything is written."""
    try:
        store_at(location)
    except SinkError as error:
        raise ConfigError(
            f"option transactionLocation: {printable(str(error))}; name a folder, or a file system "
            "that pyarrow.fs has (by default it is in checkpointLocation)"
        ) from None


class LocalFolder:
    """A :class:`Folder` of this machine, or one that is mounted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SinkError(f"{self._path / name} can't be read: {error}") from error

    def create(self, name: str, data: bytes) -> bool:
        """A hard link is what makes it exclusive and whole."""
        draft = self._path / f".{name}.{secrets.token_hex(8)}"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, self._path / name)
            except FileExistsError:
                return False
            finally:
                draft.unlink()
            self._sync()
        except OSError as error:
            raise SinkError(f"{self._path / name} can't be written: {error}") from error
        return True

    def names(self) -> list[str]:
        try:
            return [path.name for path in self._path.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SinkError(f"{self._path} can't be read: {error}") from error

    def remove(self, name: str) -> None:
        with suppress(OSError):
            (self._path / name).unlink()

    def _sync(self) -> None:
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class RemoteFolder:
    """A :class:`Folder` that ``pyarrow.fs`` knows: ``hdfs://``, ``s3://``, ``gs://`` ...

    A file is written under another name and moved. Of two drivers at once the second could win
    there; Spark itself runs one driver of a query.
    """

    def __init__(self, location: str) -> None:
        import pyarrow.fs

        scheme, _, rest = location.partition("://")
        location = f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{rest}"
        try:
            self._system, self._path = pyarrow.fs.FileSystem.from_uri(location)
        except (OSError, ValueError) as error:
            raise SinkError(f"decisions can't be kept at {location}: {error}") from error

    def read(self, name: str) -> bytes | None:
        try:
            with self._system.open_input_stream(self._at(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SinkError(f"{self._at(name)} can't be read: {error}") from error

    def create(self, name: str, data: bytes) -> bool:
        draft = self._at(f".{name}.{secrets.token_hex(8)}")
        try:
            self._system.create_dir(self._path, recursive=True)
            if self.read(name) is not None:
                return False
            with self._system.open_output_stream(draft) as file:
                file.write(data)
            self._system.move(draft, self._at(name))
        except OSError as error:
            if self.read(name) is not None:
                return False
            raise SinkError(f"{self._at(name)} can't be written: {error}") from error
        return True

    def names(self) -> list[str]:
        import pyarrow.fs

        selector = pyarrow.fs.FileSelector(self._path, allow_not_found=True)
        try:
            found = self._system.get_file_info(selector)
        except OSError as error:
            raise SinkError(f"{self._path} can't be read: {error}") from error
        return [info.base_name for info in found if not info.base_name.startswith(".")]

    def remove(self, name: str) -> None:
        with suppress(OSError):
            self._system.delete_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"
