"""What a controller has on its disk: one file of a snapshot and the log behind it.

A file is a header line, then batches: 4 bytes mark, 4 bytes length, 4 bytes CRC-32, and a
:class:`Batch` as MessagePack. The first batch has the snapshot, each other one what one ``Ready``
wrote. A later entry replaces all from its index on, a later hard state the earlier one. A batch is
durable when :meth:`RaftStorage.save` returns, and is there as a whole or not at all.

A new snapshot begins a new file, ``raft-N.log``: written beside the old one, then given its name.
So the last file is whole up to its last batch, which a crash may have torn: that is cut off. What
is wrong before the last batch no crash did, and the file is refused. So is a copy of a file: it
may be from a backup, and then votes and entries are forgotten that others count on.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kerolox.config import sync_folder
from kerolox.controller.birth import birth_of
from kerolox.controller.raft.messages import Configuration, Entry, HardState, Snapshot
from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from io import FileIO

    from kerolox.controller.raft.raft import Ready

VERSION = 1

FILE_BYTES_MAX = 64 * 1024 * 1024
"""Longest file that is read; one of ours is a snapshot and ``LOG_BYTES_MAX``, and some more."""

LOG_BYTES_MAX = 4 * 1024 * 1024
"""Batches behind a snapshot, after which a new one is wanted."""

_FILE = re.compile(r"raft-([0-9]{1,18})\.log")
_BATCH = struct.Struct(">4sII")
_MARK = b"KRB\n"
_HEADER_BYTES_MAX = 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is made durable at once."""

    snapshot: Snapshot | None = None
    hard_state: HardState | None = None
    entries: tuple[Entry, ...] = ()


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file, as JSON."""

    kerolox_raft: int
    """Version of the format."""
    group: str
    node: str
    birth: str = ""
    """Which file it is; empty: written before this was kept."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class RaftStorage:
    """The files of one controller. Every method may take as long as the disk does."""

    def __init__(self, folder: Path, *, group: str, node_id: str) -> None:
        """Nothing is opened before :meth:`open`."""
        self._folder, self._identity = folder, (group, node_id)
        self._lock = -1
        self._file: FileIO | None = None
        self._number = 0
        self._log_bytes = 0
        self.is_copy = False
        """It is that of another folder, and was taken nevertheless. It stays one until
        :meth:`make_own`."""
        self._wants_own = False
        self.hard_state = HardState()
        self.snapshot = Snapshot()
        self.entries: list[Entry] = []
        """The last two are what was there when it was opened."""

    def open(self, first_members: Configuration, *, may_be_copy: bool = False) -> None:
        """Lock the folder and read it; an empty one begins with these members, and learns from
        them. ConfigError: it is used already, of another node, newer than this Kerolox, damaged, or
        a copy. ``may_be_copy``: that is taken."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            files = self._files()
            if files:
                self._load(files[-1], may_be_copy=may_be_copy)
            else:
                self.hard_state = HardState(learns=True)
                self.snapshot = Snapshot(configuration=dict(first_members))
                self._begin(self.snapshot, self.hard_state, ())
            self._remove_others()
        except OSError as error:
            self.close()
            raise ConfigError(f"{self._folder} can't be used: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, give the folder free. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def save(self, ready: Ready) -> None:
        """Make what a ``Ready`` says durable. OSError: it is not, and may be in part: nothing may
        be sent any more before a new start has read what is there."""
        if ready.snapshot is not None:
            self._begin(ready.snapshot, ready.hard_state or self.hard_state, ready.entries)
        elif ready.entries or ready.hard_state is not None:
            self._append(Batch(None, ready.hard_state, ready.entries))

    def compact(
        self, snapshot: Snapshot, hard_state: HardState, entries: tuple[Entry, ...]
    ) -> None:
        """Begin a new file with a snapshot of our own and the entries behind it. OSError: the old
        file is there still."""
        self._begin(snapshot, hard_state, entries)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 0 if self._file is None else os.fstat(self._file.fileno()).st_size

    @property
    def wants_snapshot(self) -> bool:
        """The log is long, or in a file that was a copy."""
        return not self.is_copy and (self._log_bytes > LOG_BYTES_MAX or self._wants_own)

    def make_own(self) -> None:
        """What a copy may lack is seen to: the next file is this folder's own. Until it is written,
        a start takes this one for a copy again."""
        self._wants_own, self.is_copy = self.is_copy, False

    # -- reading ------------------------------------------------------------------------------
    def _load(self, number: int, *, may_be_copy: bool) -> None:
        path = self._path(number)
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise ConfigError(f"{path} has {size} bytes; at most {FILE_BYTES_MAX} are read")
        # Unbuffered, and not for appending: what follows is written behind what is whole.
        self._file = path.open("r+b", buffering=0)
        data = self._file.readall()
        header, position = self._check_header(path, data)
        begin = position
        while (end := _batch_end(data, position)) is not None:
            self._take(path, position, _decode_batch(path, data, position, end))
            position = end
        if position == begin:
            raise ConfigError(f"{path} is damaged at its first batch; {_ADVICE}")
        if position < len(data):
            self._cut_tail(path, data, position)
        self._number, self._log_bytes = number, position - begin
        self._file.truncate(position)
        self._file.seek(position)
        os.fsync(self._file.fileno())
        if header.birth and header.birth != birth_of(self._file.fileno()):
            if not may_be_copy:
                raise ConfigError(
                    f"{path} is a copy: votes and entries may be missing that others"
                    f" count on; {_ADVICE}, or, of a group that has no other"
                    " controller, set controllerAcceptsCopy=true for one start"
                )
            _log.warning(
                "%s is a copy, and controllerAcceptsCopy takes it: who is in sync is not known, so"
                " elect a master of each name (kerolox controller elect NAME ID)",
                path,
            )
            self.is_copy = True

    def _check_header(self, path: Path, data: bytes) -> tuple[_Header, int]:
        end = data.find(b"\n", 0, _HEADER_BYTES_MAX) + 1
        try:
            header = msgspec.json.decode(data[:end], type=_Header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ConfigError(f"{path} is no log of a controller; {_ADVICE}") from None
        if header.kerolox_raft > VERSION:
            raise ConfigError(
                f"{path} is of version {header.kerolox_raft}, this Kerolox knows {VERSION}: run the"
                " version that wrote it, or a newer one"
            )
        if (header.group, header.node) != self._identity:
            raise ConfigError(
                f"{path} is of controller {header.node} of group {header.group}, and this is"
                f" {self._identity[1]} of {self._identity[0]}; each needs a controllerStorePath of"
                " its own"
            )
        return header, end

    def _take(self, path: Path, position: int, batch: Batch) -> None:
        if batch.snapshot is not None:
            self.snapshot, self.entries = batch.snapshot, []
        for entry in batch.entries:
            kept = entry.index - self.snapshot.index - 1
            if not 0 <= kept <= len(self.entries):
                raise ConfigError(
                    f"{path}: entry {entry.index} at byte {position} follows no other; {_ADVICE}"
                )
            del self.entries[kept:]
            self.entries.append(entry)
        if batch.hard_state is not None:
            self.hard_state = batch.hard_state

    def _cut_tail(self, path: Path, data: bytes, position: int) -> None:
        following = data.find(_MARK, position + 1)
        while following >= 0:
            if _batch_end(data, following) is not None:
                raise ConfigError(
                    f"{path} is damaged at byte {position}, before a whole batch at {following}:"
                    f" no crash does that; {_ADVICE}"
                )
            following = data.find(_MARK, following + 1)
        _log.warning(
            "%s: %d bytes at the end were cut off, of a write that a crash ended",
            path,
            len(data) - position,
        )

    # -- writing ------------------------------------------------------------------------------
    def _begin(self, snapshot: Snapshot, hard_state: HardState, entries: tuple[Entry, ...]) -> None:
        group, node_id = self._identity
        batch = _packed(Batch(snapshot, hard_state, entries))
        path = self._path(self._number + 1)
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        file = temporary.open("xb", buffering=0)
        try:
            header = _Header(
                kerolox_raft=VERSION, group=group, node=node_id, birth=birth_of(file.fileno())
            )
            _write(file, msgspec.json.encode(header) + b"\n" + batch)
            temporary.rename(path)
            sync_folder(self._folder)
        except BaseException:
            file.close()
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._number, self._log_bytes = file, self._number + 1, 0
        self._wants_own = False
        self.hard_state = hard_state
        self._remove_others()

    def _append(self, batch: Batch) -> None:
        assert self._file is not None, "the storage is not open"
        data = _packed(batch)
        _write(self._file, data)
        self._log_bytes += len(data)
        self.hard_state = batch.hard_state or self.hard_state

    # -- the folder ---------------------------------------------------------------------------
    def _take_lock(self) -> None:
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self._folder} is used by another controller") from None

    def _files(self) -> list[int]:
        names = (_FILE.fullmatch(each.name) for each in self._folder.iterdir())
        return sorted(int(name[1]) for name in names if name is not None)

    def _remove_others(self) -> None:
        for number in self._files():
            if number != self._number:
                self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"raft-{number}.log"


_ADVICE = "empty this folder: the controller learns all from the others"


def _packed(batch: Batch) -> bytes:
    data = _encode(batch)
    return _BATCH.pack(_MARK, len(data), zlib.crc32(data)) + data


def _batch_end(data: bytes, position: int) -> int | None:
    """Where a whole batch ends that begins there; None: there is none."""
    if len(data) - position < _BATCH.size:
        return None
    mark, length, crc = _BATCH.unpack_from(data, position)
    begin = position + _BATCH.size
    if mark != _MARK or not 0 < length <= len(data) - begin:
        return None
    end = begin + length
    return end if zlib.crc32(memoryview(data)[begin:end]) == crc else None


def _decode_batch(path: Path, data: bytes, position: int, end: int) -> Batch:
    try:
        return _decode(memoryview(data)[position + _BATCH.size : end])
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path}: the batch at byte {position} is none: {error}") from None


def _write(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    os.fsync(file.fileno())
