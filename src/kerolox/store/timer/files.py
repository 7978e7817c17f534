"""The timer's files, opened: what its steps read and write, and in which order that comes to the
disk. Nothing is made before the first unit is written.

The wheel is in memory of our own, of which pages without messages take none, and its changed pages
go to the file at a flush. So a full disk is an ``OSError`` then, and a reader of the file never
sees half a slot. Units are written at once, with ``pwrite``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import NamedTuple

from kerolox.config import replace_file
from kerolox.protocol.bodies import BodyError
from kerolox.store.files.mapped_file import (
    check_file_size,
    data_segments,
    list_sizes,
    offset_name,
    opened,
    sync_path,
    write_all,
)
from kerolox.store.layout import TIMER_LOG, TIMER_WHEEL
from kerolox.store.timer.checkpoint import FILE_BYTES as CHECKPOINT_BYTES
from kerolox.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint
from kerolox.store.timer.log import UNIT, TimerUnit, last_unit_at, unit_at
from kerolox.store.timer.metrics import TimerMetrics, decode_metrics
from kerolox.store.timer.puts import TimerSettings
from kerolox.store.timer.recovery import TimerFiles
from kerolox.store.timer.wheel import PRECISIONS_MS, TimerWheel, wheel_bytes

READ_BYTES = 64 * UNIT.size
"""Read at a time: units of one moment often stand beside each other."""
ZEROED_BYTES = 1 << 20
"""Zeroed at a time where the log is cut off."""


class Unsynced(NamedTuple):
    """What one flush writes, taken at a check point."""

    starts: tuple[int, ...]
    """Files of the timer log with new units."""
    pages: dict[int, bytes]
    """Of the wheel."""


class TimerStore:
    """The files of one timer.

    Attributes:
        wheel: in memory.
        found: what a start needs to know of them.
    """

    def __init__(self, root: Path, settings: TimerSettings, commit_end: int) -> None:
        """Read check point and wheel; ``commit_end``: where the commit log ends. ValueError: a file
        of the timer log has another length than the settings say, or messages wait in longer steps.
        """
        self._wheel_path = root / TIMER_WHEEL
        self._folder = root / TIMER_LOG
        self._checkpoint_path = root / "config" / "timercheck"
        self._metrics_path = root / "config" / "timermetrics"
        self._file_bytes = settings.log_file_bytes
        self._descriptors: dict[int, int] = {}
        self._last_read = (0, b"")
        """Position and bytes of what was read last of the timer log, until that changes."""
        self._unsynced: set[int] = set()
        sizes, _ = list_sizes(str(self._folder))
        for start, size in sizes.items():
            path = self._folder / offset_name(start)
            if size:
                check_file_size(str(path), size, self._file_bytes, "mappedFileSizeTimerLog")
            else:
                # A kill came between making it and giving it its length.
                path.unlink()
        self._starts = sorted(start for start, size in sizes.items() if size)
        memory = mmap.mmap(-1, wheel_bytes(settings.slots), flags=mmap.MAP_PRIVATE)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._memory = memoryview(memory)
        has_wheel = self._read_wheel()
        self.wheel = TimerWheel(self._memory, settings.precision_ms, slots=settings.slots)
        checkpoint = self._read_checkpoint()
        former_ms = self._former_precision(settings, checkpoint)
        self.found = TimerFiles(
            checkpoint,
            min(self._starts, default=0),
            commit_end,
            has_wheel,
            is_clean=checkpoint is not None and not checkpoint.is_open,
            former_precision_ms=former_ms,
        )

    def close(self) -> None:
        """Close the files; nothing is flushed."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    # -- the timer log --------------------------------------------------------------------------
    def chain(self, position: int, begin: int, count: int) -> list[tuple[int, TimerUnit | None]]:
        """See :class:`kerolox.store.timer.steps.ReadChain`."""
        found: list[tuple[int, TimerUnit | None]] = []
        while position >= begin and len(found) < count:
            unit = self.unit(position)
            found.append((position, unit))
            if unit is None:
                break
            position = unit.previous
        return found

    def unit(self, position: int) -> TimerUnit | None:
        """The unit at a position; None: there is none."""
        begin, data = self._last_read
        if not begin <= position < begin + len(data):
            at = position % self._file_bytes
            descriptor = self._descriptor(position - at)
            if descriptor is None:
                return None
            begin = position - at % READ_BYTES
            data = os.pread(descriptor, READ_BYTES, at - at % READ_BYTES)
            self._last_read = begin, data
        return unit_at(data, position - begin, position)

    def file(self, position: int) -> memoryview | None:
        """The file that begins at a position, mapped up to the hole at its end; None: there is
        none."""
        descriptor = self._descriptor(position)
        if descriptor is None:
            return None
        used = max((end for _, end in data_segments(descriptor, 0, self._file_bytes)), default=0)
        return memoryview(mmap.mmap(descriptor, used, access=mmap.ACCESS_READ) if used else b"")

    def append(self, position: int, data: bytes) -> None:
        """Write to the end of the log; OSError: it can't be written."""
        self._last_read = (0, b"")
        at = position % self._file_bytes
        start = position - at
        descriptor = self._descriptor(start)
        if descriptor is None:
            descriptor = self._make(start)
        write_all(descriptor, data, at)
        self._unsynced.add(start)

    def truncate(self, end: int) -> None:
        """Cut the log off: zeros follow, on the disk."""
        self._last_read = (0, b"")
        for start in [each for each in self._starts if each >= end]:
            self._remove(start)
        start = end // self._file_bytes * self._file_bytes
        descriptor = self._descriptor(start)
        if descriptor is not None:
            # Not by its length: a kill in between would leave a file that no start takes.
            for begin, stop in data_segments(descriptor, end - start, self._file_bytes):
                for at in range(begin, stop, ZEROED_BYTES):
                    count = min(ZEROED_BYTES, stop - at)
                    if any(os.pread(descriptor, count, at)):
                        write_all(descriptor, bytes(count), at)
            os.fdatasync(descriptor)

    def clean(self, min_physical_offset: int) -> int:
        """Remove files at the begin that lead to nothing any more; how many."""
        count = 0
        while len(self._starts) > 1:
            start = self._starts[0]
            last = self.unit(start + last_unit_at(self._file_bytes))
            if last is None or last.offset >= min_physical_offset:
                break
            self._remove(start)
            count += 1
        return count

    def _descriptor(self, start: int) -> int | None:
        found = self._descriptors.get(start)
        if found is None and start in self._starts:
            path = self._folder / offset_name(start)
            found = self._descriptors[start] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return found

    def _make(self, start: int) -> int:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / offset_name(start)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, self._file_bytes)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._descriptors[start] = descriptor
        self._starts.append(start)
        return descriptor

    def _remove(self, start: int) -> None:
        self._last_read = (0, b"")
        self._starts.remove(start)
        self._unsynced.discard(start)
        descriptor = self._descriptors.pop(start, None)
        if descriptor is not None:
            os.close(descriptor)
        (self._folder / offset_name(start)).unlink(missing_ok=True)

    # -- flushes --------------------------------------------------------------------------------
    def take_unsynced(self) -> Unsynced:
        """What is not on the disk yet; :meth:`sync` brings it there."""
        starts, self._unsynced = tuple(sorted(self._unsynced)), set()
        return Unsynced(starts, self.wheel.take_changed())

    def give_back(self, what: Unsynced) -> None:
        """It could not be written."""
        self._unsynced.update(set(what.starts).intersection(self._starts))
        self.wheel.give_back(what.pages)

    def sync(self, what: Unsynced) -> None:
        """Bring the timer log to the disk, then the wheel. For a thread of its own: touches nothing
        that the loop changes. OSError: the disk is full, or fails; see :meth:`give_back`.
        """
        for start in what.starts:
            # A file may be removed meanwhile.
            with contextlib.suppress(FileNotFoundError):
                sync_path(str(self._folder / offset_name(start)))
        if what.starts:
            sync_path(str(self._folder))
        if what.pages:
            is_new = not self._wheel_path.exists()
            with opened(str(self._wheel_path), os.O_RDWR | os.O_CREAT) as descriptor:
                if os.fstat(descriptor).st_size != len(self._memory):
                    os.ftruncate(descriptor, 0)
                    os.ftruncate(descriptor, len(self._memory))
                for at, page in what.pages.items():
                    write_all(descriptor, page, at)
                os.fdatasync(descriptor)
            if is_new:
                sync_path(str(self._wheel_path.parent))

    def open_checkpoint(self) -> None:
        """Have the check point that was found say that a run goes on, before that delivers
        anything. OSError: it can't be written."""
        if self.found.checkpoint is not None and not self.found.checkpoint.is_open:
            self._write(self.found.checkpoint._replace(is_open=True))

    def write_checkpoint(self, checkpoint: TimerCheckpoint, metrics: TimerMetrics) -> None:
        """Write both, and wait for the disk. For a thread of its own. OSError: one can't be
        written.
        """
        replace_file(self._metrics_path, lambda file: file.write(metrics.encode()))
        self._write(checkpoint)

    def _write(self, checkpoint: TimerCheckpoint) -> None:
        with opened(str(self._checkpoint_path), os.O_RDWR | os.O_CREAT) as descriptor:
            write_all(descriptor, checkpoint.file(), 0)
            os.fdatasync(descriptor)

    def read_metrics(self) -> dict[str, int]:
        """How many messages wait, by topic, as far as the file says."""
        try:
            found = decode_metrics(self._metrics_path.read_bytes()).timing_count
        except (OSError, BodyError):
            return {}
        return {topic: each.count for topic, each in found.items() if each.count > 0}

    # -- a start --------------------------------------------------------------------------------
    def _read_wheel(self) -> bool:
        """Whether there is one of the right length; its data is in memory then."""
        size = len(self._memory)
        try:
            with opened(str(self._wheel_path), os.O_RDONLY) as descriptor:
                if os.fstat(descriptor).st_size != size:
                    return False
                for begin, end in data_segments(descriptor, 0, size):
                    self._memory[begin:end] = os.pread(descriptor, end - begin, begin)
        except FileNotFoundError:
            return False
        return True

    def _former_precision(self, settings: TimerSettings, checkpoint: TimerCheckpoint | None) -> int:
        """How long a step of the wheel was, where it was not as long as now; else 0. A slot counts
        steps, and its units milliseconds.

        RocketMQ takes the slots for those of other moments. A message waits for the end of the step
        that its record names, so that shorter steps would have it come early.
        """
        slot = self.wheel.newest()
        unit = None if slot is None or slot.last < 0 else self.unit(slot.last)
        if slot is None or unit is None:
            return 0
        precision_ms = settings.precision_ms
        number = slot.time_ms // precision_ms
        fitting = [each for each in PRECISIONS_MS if unit.time_ms // each == number]
        if not fitting or precision_ms in fitting:
            return 0
        former_ms = fitting[0]
        read_ms = checkpoint.last_read_ms if checkpoint else 0
        former = TimerWheel(self._memory, former_ms, slots=settings.slots)
        waiting = former.waiting(read_ms)
        if waiting > 0 and former_ms > precision_ms:
            raise ValueError(
                f"timerPrecisionMs is {precision_ms}, and {waiting} messages wait in steps of"
                f" {former_ms} ms: they would come up to {former_ms - precision_ms} ms early; set"
                f" timerPrecisionMs={former_ms} until they have come, or remove {self._wheel_path}"
                " to have them early"
            )
        return former_ms

    def _read_checkpoint(self) -> TimerCheckpoint | None:
        try:
            with self._checkpoint_path.open("rb") as file:
                return decode_checkpoint(file.read(CHECKPOINT_BYTES))
        except (FileNotFoundError, ValueError):
            return None
