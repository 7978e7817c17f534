"""Which master wrote which part of the log: ``epochFileCheckpoint`` (``EpochFileCache``).

A controller gives each master that it elects an epoch, a number above all earlier ones. The log's
part from there on has that epoch. Two logs are the same as far as their epochs are: at one offset
of one epoch, only one master can have written.

The file is that of RocketMQ 5.3.3: a line with the count of epochs, one with the CRC-32 of what
follows, then ``epoch-startOffset`` for each. RocketMQ writes it in place, with the former one
beside it as ``.bak``.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from kerolox.config import replace_file, sync_folder
from kerolox.errors import KeroloxError, StoreError
from kerolox.protocol.controller import EPOCHS_MAX
from kerolox.protocol.java_numbers import INT_MAX, LONG_MAX, java_long
from kerolox.text import printable

_CRC_MASK = 0x7FFF_FFFF
"""``UtilAll.crc32`` keeps the result positive."""
_CRC_UNCHECKED = 0
_LINE_BYTES_MAX = len(f"{INT_MAX}-{LONG_MAX}\r\n")
_FILE_BYTES_MAX = (EPOCHS_MAX + 2) * _LINE_BYTES_MAX

_log = logging.getLogger(__name__)


class EpochError(KeroloxError):
    """Epochs that can't be: they do not grow, or begin before earlier ones; the text says which."""


class EpochStart(NamedTuple):
    """A master's epoch, and the physical offset at which its part of the log begins."""

    epoch: int
    start: int


class EpochTable:
    """The epochs of one log, in order. Each ends where the next one begins, the last one never.

    Attributes:
        starts: epochs and where they begin; at most ``EPOCHS_MAX``, the latest ones.
    """

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        """EpochError: their epochs or their offsets do not grow."""
        self.starts: list[EpochStart] = []
        for each in starts:
            if self.starts and each.start == self.starts[-1].start:
                raise EpochError(f"epochs {self.starts[-1].epoch} and {each.epoch} begin alike")
            self.begin(*each)

    @property
    def last_epoch(self) -> int:
        """The latest one; -1: there is none (``lastEpoch``)."""
        return self.starts[-1].epoch if self.starts else -1

    def begin(self, epoch: int, start: int) -> None:
        """Add a later epoch (``appendEntry``). EpochError: it is no later one.

        One without a record gives way to the next. RocketMQ refuses the next one then, so that two
        masters may write in one epoch.
        """
        if not 0 <= epoch <= INT_MAX or not 0 <= start <= LONG_MAX:
            raise EpochError(f"there is no epoch {epoch} from offset {start} on")
        if self.starts:
            last = self.starts[-1]
            if epoch <= last.epoch or start < last.start:
                raise EpochError(
                    f"epoch {epoch} from offset {start} on can't follow epoch {last.epoch} from "
                    f"offset {last.start} on"
                )
            if start == last.start:
                self.starts.pop()
        self.starts.append(EpochStart(epoch, start))
        del self.starts[:-EPOCHS_MAX]

    def at(self, offset: int) -> EpochStart | None:
        """The epoch of what is at an offset; None: not known (``findEpochEntryByOffset``)."""
        index = self._count_until(offset)
        return self.starts[index - 1] if index else None

    def end_at(self, offset: int) -> int | None:
        """Where the epoch of an offset ends; None: it is the last one."""
        index = self._count_until(offset)
        return self.starts[index].start if index < len(self.starts) else None

    def cut(self, end: int) -> None:
        """The log is cut to end there (``truncateSuffixByOffset``)."""
        del self.starts[self._count_until(end - 1) :]

    def forget_before(self, begin: int) -> None:
        """The log begins there by now (``truncatePrefixByOffset``)."""
        del self.starts[: max(self._count_until(begin) - 1, 0)]

    def common_end(self, end: int, other: EpochTable, other_end: int) -> int | None:
        """How far this log and another one are the same (``findConsistentPoint``): the end of the
        last epoch that both have, in the log where that ends first. ``end`` and ``other_end``:
        where the logs end. None: no epoch is in both.
        """
        others = set(other.starts)
        for index in reversed(range(len(self.starts))):
            found = self.starts[index]
            if found in others:
                ends = (self.end_at(found.start), other.end_at(found.start), end, other_end)
                return min(each for each in ends if each is not None)
        return None

    def _count_until(self, offset: int) -> int:
        """How many begin there or before."""
        return bisect_right(self.starts, offset, key=lambda each: each.start)


class EpochFile:
    """``epochFileCheckpoint`` of one store.

    Attributes:
        path: where it lies.
        is_former: what was loaded is ``.bak``, since the file is torn.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.path = path
        self.is_former = False
        self._backup = path.with_name(path.name + ".bak")

    def load(self) -> EpochTable:
        """The table, from ``.bak`` where the file is torn; an empty one when there is no file.

        The former file may lack the last epoch. Then its records count as the epoch's before, and
        :meth:`EpochTable.common_end` may be too high: (1 from 0) says 120 where (1 from 0, 2 from
        100) says 100, beside (1 from 0, 3 from 120). StoreError: neither file can be read. A log
        whose epochs are unknown must not be compared with others.
        """
        fault = ""
        for path in (self.path, self._backup):
            try:
                table = read_epochs(path)
            except FileNotFoundError:
                continue
            except (OSError, EpochError) as error:
                fault = fault or f"{path}: {getattr(error, 'strerror', None) or error}"
                continue
            if fault:
                _log.warning("%s; the epochs are those of %s", fault, path)
                self.is_former = True
            if table.starts:
                return table
        if fault:
            raise StoreError(
                f"{fault}; it says which master wrote which part of the log: put a copy in its "
                "place, or move the store's folder away and let this broker begin as an empty slave"
            )
        return EpochTable()

    def save(self, table: EpochTable) -> None:
        """Write it, and to the disk; OSError: it can't be written. No epochs are no file: RocketMQ
        reads an empty one's ``.bak``.
        """
        if table.starts:
            text = encode_epochs(table)
            replace_file(self.path, lambda file: file.write(text))
            return
        # In this order: a crash between leaves what was, not what was before that.
        for path in (self._backup, self.path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        sync_folder(self.path.parent)


def read_epochs(path: Path) -> EpochTable:
    """The table of one file. EpochError: it is torn, or none. OSError: it can't be read."""
    with path.open("rb") as file:
        return decode_epochs(file.read(_FILE_BYTES_MAX + 1))


def encode_epochs(table: EpochTable) -> bytes:
    """The bytes of the file."""
    lines = "".join(f"{each.epoch}-{each.start}\n" for each in table.starts).encode()
    return f"{len(table.starts)}\n{crc32(lines) & _CRC_MASK}\n".encode() + lines


def decode_epochs(data: bytes) -> EpochTable:
    """The table that a file holds; empty for an empty one. EpochError: it is torn, or none."""
    if len(data) > _FILE_BYTES_MAX:
        raise EpochError(f"it has more than {_FILE_BYTES_MAX} bytes")
    lines = data.decode("ascii", errors="replace").replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise EpochError("it is empty")
    count, crc = (java_long(each) for each in [*lines, ""][:2])
    if count is None or crc is None:
        raise EpochError("it does not begin with a count and a CRC")
    entries = lines[2:]
    if len(entries) != count:
        raise EpochError(f"it has {len(entries)} epochs of {count}")
    found = crc32("".join(f"{each}\n" for each in entries).encode()) & _CRC_MASK
    if crc not in (_CRC_UNCHECKED, found):
        raise EpochError(f"its CRC is {found}, not {crc}")
    return EpochTable(map(_start_of, entries))


def _start_of(line: str) -> EpochStart:
    before, _dash, after = line.partition("-")
    epoch, start = java_long(before), java_long(after)
    if epoch is None or start is None:
        raise EpochError(f"{printable(line[:64])!r} is no epoch with an offset")
    return EpochStart(epoch, start)
