"""A table kept in a JSON file, the way RocketMQ keeps its ``config/*.json``.

The file is written whole: ``name.tmp`` first and to the disk, then the old file becomes
``name.bak``, then ``name.tmp`` takes its place. A crash leaves the old file or the new one. Loading
falls back to ``.bak``, and keeps what could not be read as ``.damaged``; no file at all is an empty
table.

A table bounds what it holds by what it would take here (:func:`text_bytes`), so that no file is
written that is not read again: :data:`TABLE_BYTES_MAX`. Files of older versions, which did not, are
read up to :data:`FILE_BYTES_MAX`.

Changes are written by a worker thread. Any number of changes made while a write runs are covered by
the one write after it. :meth:`JsonFile.flush` waits until all changes made before it are on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from kerolox.config import replace_file
from kerolox.errors import StoreError
from kerolox.protocol import fastjson
from kerolox.protocol.attributes import bounded_attributes
from kerolox.protocol.bodies import BodyError, SubscriptionGroupConfig, TopicConfig, decode_body
from kerolox.protocol.names import SHOWN_CHARACTERS
from kerolox.text import printable

TABLE_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of a table that clients fill, in memory and in its file, estimated from above."""

FILE_BYTES_MAX = 4 * TABLE_BYTES_MAX
"""Larger files are not read, and none is written: they are no table of ours."""

_log = logging.getLogger(__name__)
_Table = TypeVar("_Table", bound=msgspec.Struct)
_Value = TypeVar("_Value")
_Config = TypeVar("_Config", TopicConfig, SubscriptionGroupConfig)

_encode = msgspec.json.Encoder().encode


def text_bytes(text: str) -> int:
    """How long a text is in a file: a control character takes six bytes."""
    return len(_encode(text))


def without_long_names(
    table: dict[str, _Value], file: JsonFile, is_long: Callable[[str], bool]
) -> dict[str, _Value]:
    """A table as it was read, without names that nobody can ask for. Requests with such names are
    refused, and what older versions took of them would fill the table for good."""
    long = [name for name in table if is_long(name)]
    if long:
        _log.warning(
            "%s: %d names longer than a request may have are left out, such as %s...",
            file.path,
            len(long),
            printable(long[0][:SHOWN_CHARACTERS]),
        )
        table = {name: value for name, value in table.items() if not is_long(name)}
    return table


def with_bounds(config: _Config) -> _Config:
    """What a file or a master has of a topic or a group, with attributes that are bounded."""
    kept = bounded_attributes(config.attributes)
    return config if kept == config.attributes else msgspec.structs.replace(config, attributes=kept)


def of_master(
    told: Mapping[str, _Config],
    ours: Mapping[str, _Config],
    is_long: Callable[[str], bool],
    *,
    keeps_attributes: bool,
) -> dict[str, _Config]:
    """The topics or groups of a master, as a table takes them: bounded, without names that are too
    long. ``keeps_attributes``: the master does not know attributes: what is in ``ours`` keeps its
    own.
    """
    wanted = {}
    for name, config in told.items():
        if is_long(name):
            continue
        if keeps_attributes and config.attributes is None and name in ours:
            wanted[name] = msgspec.structs.replace(config, attributes=ours[name].attributes)
        else:
            wanted[name] = with_bounds(config)
    return wanted


class KeptTable(Protocol):
    """A table with a file, as a broker's start and stop use it."""

    def load(self) -> None:
        """Read the file; StoreError: it is broken and so is its backup."""

    async def persist(self) -> None:
        """Write the file if it lacks a change."""


class JsonFile:
    """One table's file. ``snapshot`` gives what to write; it must not be changed afterwards.
    ``is_own``: RocketMQ has no such file: it is written in one line, and without a backup.
    """

    def __init__(self, path: Path, snapshot: Callable[[], object], *, is_own: bool = False) -> None:
        self.path = path
        self._snapshot = snapshot
        self._is_own = is_own
        self._is_backup_spared = False
        """The file is broken and its backup is not: it must not replace it."""
        self._writes_due = 0
        """Of :meth:`persist`; 2: one for the backup, too."""
        self._changed = 0
        self._written = 0
        self._writer: asyncio.Task[None] | None = None

    @property
    def backup_path(self) -> Path:
        """Where the version before the newest one lies."""
        return self.path.with_name(self.path.name + ".bak")

    @property
    def damaged_path(self) -> Path:
        """Where a file lies that could not be read, when the backup could."""
        return self.path.with_name(self.path.name + ".damaged")

    def read(self) -> bytes:
        """The file as it is; the backup is not examined. BodyError: it is no table of ours.
        OSError: it can't be read, or is not there.
        """
        return _data_of(self.path)

    def put_aside(self) -> None:
        """Keep a file that could not be read as ``damaged_path``."""
        # Where that is not possible, nothing can be written either.
        with contextlib.suppress(OSError):
            self.path.replace(self.damaged_path)

    def load(self, table_type: type[_Table]) -> _Table | None:
        """The table; None when there is no file.

        StoreError: file and backup can't be read or are broken; says what to do. Nothing is changed
        then: a table is not lost because it can't be read.
        """
        reasons = []
        for path in (self.path, self.backup_path):
            try:
                table = decode_table(_data_of(path), table_type)
            except FileNotFoundError:
                continue
            except (OSError, BodyError) as error:
                reasons.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            if reasons:
                self.put_aside()
                _log.warning(
                    "%s; the backup %s is used instead, the file is kept as %s",
                    reasons[0],
                    path,
                    self.damaged_path.name,
                )
                self._is_backup_spared = True
            return table
        if reasons:
            raise StoreError(
                f"{'; '.join(reasons)}; restore the file from a backup, or remove it and its .bak "
                "to start with an empty table"
            )
        return None

    def mark(self) -> None:
        """The table changed; the next ``flush`` writes it."""
        self._changed += 1

    def write_soon(self) -> None:
        """The table changed; write it in the background. Errors are logged."""
        self.mark()
        if self._writer is None or self._writer.done():
            self._start_writer().add_done_callback(self._log_failure)

    def touch(self) -> None:
        """The table changed; the next ``persist`` writes it, and nothing before it."""
        self._writes_due = max(self._writes_due, 1)

    async def persist(self) -> None:
        """Write what was touched, if anything was: for tables that change all the time. OSError:
        the file can't be written; tried again at the next call.
        """
        due, self._writes_due = self._writes_due, 0
        while due:
            self.mark()
            try:
                await self.flush()
            except (OSError, asyncio.CancelledError):
                self._writes_due = max(self._writes_due, due)
                raise
            due -= 1

    async def write_over(self) -> None:
        """Write the file and its backup: neither has what the table lacks when this returns. After
        an OSError :meth:`persist` tries both again."""
        self._writes_due = 2
        await self.persist()

    async def retry(self) -> None:
        """Write what could not be written, if it can be now. The first failure was reported."""
        if self._written < self._changed and (self._writer is None or self._writer.done()):
            with contextlib.suppress(OSError):
                await self.flush()

    async def flush(self) -> None:
        """Wait until every change made so far is on disk."""
        wanted = self._changed
        while self._written < wanted:
            writer = self._writer
            if writer is None or writer.done():
                writer = self._start_writer()
            await asyncio.shield(writer)

    def _start_writer(self) -> asyncio.Task[None]:
        self._writer = asyncio.get_running_loop().create_task(self._write())
        return self._writer

    async def _write(self) -> None:
        while self._written < self._changed:
            version = self._changed
            value = self._snapshot()
            keeps_backup = not (self._is_own or self._is_backup_spared)
            try:
                await asyncio.to_thread(_store, self.path, keeps_backup, value, self._is_own)
            except OSError as error:
                error.filename = error.filename or str(self.path)
                raise
            self._is_backup_spared = False
            self._written = version
            _log.debug("%s written", self.path)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("%s can't be written: %s; the change is in memory only", self.path, error)


def _data_of(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise BodyError(f"larger than {FILE_BYTES_MAX} bytes")
    return data


def decode_table(data: bytes, table_type: type[_Table]) -> _Table:
    """The table that a file has; BodyError: it has none."""
    if not data.strip():
        raise BodyError("the file is empty")
    try:
        # Reading what fastjson writes as it stands takes half a second a MiB.
        quoted = fastjson.quoted_numbers(data)
        return msgspec.json.decode(quoted, type=table_type, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_body(data, table_type)


class _Writer:
    """The pieces of a file, on their way to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0

    def append(self, text: str, /) -> None:
        data = text.encode()
        self._size += len(data)
        if self._size > FILE_BYTES_MAX:
            raise OSError(
                errno.EFBIG,
                f"the table takes over {FILE_BYTES_MAX} bytes, which no start would read; delete "
                "what nobody uses",
            )
        self._file.write(data)


def _store(path: Path, keeps_backup: bool, value: object, is_own: bool) -> None:
    def write(file: BinaryIO) -> None:
        if is_own:
            file.write(_encode(value))
        else:
            fastjson.write_pretty(value, _Writer(file))

    replace_file(path, write, keeps_backup=keeps_backup)
