"""The transient store pool (``transientStorePoolEnable``): memory between the append and the files.

An append writes records to a buffer of our own. A thread writes them to the page cache a little
later (*commit*). Only what is committed can be read, flushed, indexed. An append then never waits
for a file; what is not committed yet is lost when the process is killed.

A buffer is as large as a file of the log and belongs to one file until that is committed whole. Its
memory comes with its first use and is kept. It is not locked (RocketMQ locks all of it at the
start): a machine that swaps may slow an append down.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from kerolox.kernel.settings import StoreSettings
from kerolox.store.files.mapped_file import MappedFile, opened, write_all
from kerolox.store.files.thread import PAGE_BYTES, StoreThread

WRITE_BYTES = 1 << 20
"""Bytes given to the system at a time."""
_MAP_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class NoBufferError(OSError):
    """No buffer is free, and ``fastFailIfNoBufferInStorePool`` wants one for the next file."""


def has_pool(settings: StoreSettings) -> bool:
    """``isTransientStorePoolEnable``: only the asynchronous flush has one."""
    return settings.transient_store_pool_enable and settings.flush_disk_type == "ASYNC_FLUSH"


class _Staged:
    """A file of the log that is not committed whole."""

    def __init__(self, file: MappedFile, buffer: mmap.mmap | None) -> None:
        self.file = file
        self.buffer = buffer
        """None: the records are written to the file itself, for want of a buffer."""
        self.used_end = -1
        """Where the last thing in it ends, once it is full."""


class TransientPool(StoreThread):
    """The buffers, and the thread that commits (``CommitRealTimeService``).

    ``borrow``, ``stage`` and ``write`` belong to the thread that owns the store. ``written`` gives
    the (end, timestamp) of the log; ``move_end`` and then ``on_commit`` are called in the thread
    that commits, after the end of what is committed moved.
    """

    def __init__(
        self,
        settings: StoreSettings,
        written: Callable[[], tuple[int, int]],
        move_end: Callable[[int], None],
        on_commit: Callable[[], None],
    ) -> None:
        super().__init__("kerolox-commit")
        self.committed = written()
        """(physical offset up to which the log is in its files, time of a record before it)."""
        self.problem = ""
        """Why the last commit failed: nothing more is taken in before one succeeds."""
        self._written = written
        self._move_end = move_end
        self._on_commit = on_commit
        size = settings.mapped_file_size_commit_log
        count = settings.transient_store_pool_size
        self._free = [mmap.mmap(-1, size, flags=_MAP_FLAGS) for _ in range(count)]
        self._is_fast_failing = settings.fast_fail_if_no_buffer_in_store_pool
        self._interval = max(0.001, settings.commit_interval_commit_log / 1_000)
        self._least_pages = settings.commit_commit_log_least_pages
        self._thorough = settings.commit_commit_log_thorough_interval / 1_000
        self._last_thorough = time.monotonic()
        self._is_forced = False
        self._staged: deque[_Staged] = deque()
        self._lock = threading.Lock()

    # -- the owner's side -------------------------------------------------------------------
    @property
    def free_count(self) -> int:
        """Buffers that belong to no file (``availableBufferNums``)."""
        return len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """A buffer for the next file; None: it goes without. NoBufferError: there is none, and the
        file is to be refused then.
        """
        try:
            return self._free.pop()
        except IndexError:
            if not self._is_fast_failing:
                return None
        raise NoBufferError(
            "no buffer of the transient store pool is free: the disk is too slow, or raise "
            "transientStorePoolSize"
        )

    def give_back(self, buffer: mmap.mmap | None) -> None:
        """Return a buffer that was borrowed and not staged."""
        if buffer is not None:
            self._free.append(buffer)

    def stage(self, file: MappedFile, buffer: mmap.mmap | None, used_end: int) -> None:
        """Go on in a file; the one before it ended at ``used_end``."""
        if self._staged:
            self._staged[-1].used_end = used_end
        self._staged.append(_Staged(file, buffer))

    def write(self, data: bytes, position: int) -> None:
        """Write records or a blank at a position of the last file that was staged."""
        last = self._staged[-1]
        if last.buffer is None:
            last.file.write(data, position)
        else:
            last.buffer[position : position + len(data)] = data

    def note_put(self) -> None:
        """Wake up for what was put, if it is enough to commit."""
        pages = self._written()[0] // PAGE_BYTES - self.committed[0] // PAGE_BYTES
        if pages >= max(1, self._least_pages) and not self._wake.is_set():
            self._wake.set()

    def force(self) -> None:
        """Commit whatever there is, soon."""
        self._is_forced = True
        self._wake.set()

    def close(self) -> None:
        """Let go of the buffers; what is in them is lost. Once the thread has ended."""
        for staged in self._staged:
            self.give_back(staged.buffer)
        self._staged.clear()
        for buffer in self._free:
            buffer.close()
        self._free.clear()

    # -- the thread's side ------------------------------------------------------------------
    def pause_seconds(self) -> float:
        """The commit interval."""
        return self._interval

    def run_once(self) -> None:
        """Commit what is enough, or whatever there is when it is long ago."""
        now = time.monotonic()
        is_thorough = self._is_forced or now - self._last_thorough >= self._thorough
        self._is_forced = False
        if self.commit(0 if is_thorough else self._least_pages) or is_thorough:
            self._last_thorough = time.monotonic()

    def commit(self, least_pages: int = 0) -> bool:
        """Write to the files what is in the buffers, if that is at least ``least_pages`` pages (0:
        anything) or ends a file; whether there was any. From any thread. After an error
        (``problem``) nothing is lost, and the next commit tries again."""
        with self._lock:
            begin = at = self.committed[0]
            end, timestamp = self._written()
            problem = ""
            try:
                while self._staged:
                    front = self._staged[0]
                    used_end = front.used_end
                    target = end if used_end < 0 else used_end
                    pages = target // PAGE_BYTES - at // PAGE_BYTES
                    if used_end < 0 and (target <= at or pages < least_pages):
                        break
                    _copy(front, at, target)
                    at = target if used_end < 0 else front.file.end
                    if used_end < 0:
                        break
                    self._staged.popleft()
                    self.give_back(front.buffer)
            except OSError as error:
                problem = f"writing the commit log failed: {error}; it is tried again"
            self.problem = problem
            if at > begin:
                self.committed = (at, timestamp if at >= end else self.committed[1])
                self._move_end(at)
        if at > begin:
            self._on_commit()
        return at > begin


def _copy(staged: _Staged, begin: int, end: int) -> None:
    file, buffer = staged.file, staged.buffer
    if buffer is None or begin >= end:
        return
    # A descriptor of its own: the owner may close the file's at any time.
    with opened(file.path, os.O_WRONLY) as descriptor:
        for at in range(begin - file.start, end - file.start, WRITE_BYTES):
            write_all(descriptor, buffer[at : min(at + WRITE_BYTES, end - file.start)], at)
