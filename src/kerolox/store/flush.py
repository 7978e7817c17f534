"""The store's threads: they bring to disk, and to the index, what the owner of the store wrote.

- :class:`CommitLogFlusher` flushes the log: every ``flushIntervalCommitLog`` when enough pages are
  dirty (ASYNC_FLUSH), and at once when somebody asked for an offset (SYNC_FLUSH, group commit:
  one ``fdatasync`` covers all that was written before it began, whoever asked).
- :class:`ConsumeQueueFlusher` flushes queues and writes the checkpoint.
- :class:`IndexFollower` lets the index follow the log.

``fdatasync`` runs without the GIL. Flushers open the files by name for themselves, so the owner
may close its descriptors at any time. An error of the disk is final: the store is told, takes no
more writes, and the flushed offset never moves again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from kerolox.kernel.metrics import Latencies
from kerolox.kernel.settings import StoreSettings
from kerolox.store.files.checkpoint import Checkpoint
from kerolox.store.files.deletions import Deletions
from kerolox.store.files.mapped_file import opened, sync_path, sync_queue_files
from kerolox.store.files.thread import PAGE_BYTES, StoreThread
from kerolox.store.index import Index
from kerolox.store.layout import ENTRY_BYTES
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.queues.consume_queue import ConsumeQueue

QUEUES_SYNCED_AT_ONCE = 512
"""From so many queues on, the file system is written whole before each of them is."""
RELEASE_INTERVAL_SECONDS = 10.0
"""How often mapped pages are let go; touching one again costs a fraction of a microsecond."""
INDEX_INTERVAL_MS = 50
INDEX_RETRY_MS = 500
"""How often an index that can't be written is tried again."""
INDEX_SLICE_RECORDS = 64
INDEX_PAUSE_MS = 4
"""Between slices while messages come in, so that the event loop gets the interpreter."""
INDEX_BEHIND_BYTES_MAX = 64 << 20
"""Further behind than this, the index no longer makes way for messages that come in."""


class CommitLogFlusher(StoreThread):
    """Moves ``flushed_offset`` after the end of the log.

    ``on_flush`` and ``on_error`` are called in this thread.
    """

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        checkpoint: Checkpoint,
        written: Callable[[], tuple[int, int]],
        on_flush: Callable[[], None],
        on_error: Callable[[str], None],
    ) -> None:
        super().__init__("kerolox-flush-log")
        self.flushed_offset = log.max_offset
        self.flush_count = 0
        self.flush_times = Latencies()
        """Of flushes; empty without ``latency_recorded``."""
        self._is_timed = settings.latency_recorded
        self.failure = ""
        self._log = log
        self._checkpoint = checkpoint
        self._written = written
        self._on_flush = on_flush
        self._on_error = on_error
        self._interval = max(0.001, settings.flush_interval_commit_log / 1_000)
        self._least_pages = settings.flush_commit_log_least_pages
        self._thorough = settings.flush_commit_log_thorough_interval / 1_000
        self._last_thorough = time.monotonic()
        self._requested_offset = 0
        self.is_woken_by_puts = (
            settings.flush_disk_type == "ASYNC_FLUSH" and not settings.flush_commit_log_timed
        )
        """``flushCommitLogTimed=false``: the owner calls :meth:`note_put` after each append."""
        self._lock = threading.Lock()
        self._descriptor = -1
        self._descriptor_index = -1

    def request(self, offset: int) -> None:
        """Flush soon, at least to an offset."""
        if offset > self._requested_offset:
            self._requested_offset = offset
        if offset > self.flushed_offset:
            self._wake.set()

    def note_put(self) -> None:
        """Wake up for what was put, if it is enough to flush."""
        if self._is_enough() and not self._wake.is_set():
            self._wake.set()

    def _is_enough(self) -> bool:
        """Enough pages are dirty, or a full file is: nothing will be added to that one."""
        end, flushed = self._log.max_offset, self.flushed_offset
        if end // PAGE_BYTES - flushed // PAGE_BYTES >= max(1, self._least_pages):
            return True
        return end // self._log.file_size > flushed // self._log.file_size

    def pause_seconds(self) -> float:
        """The flush interval; none while somebody waits for an offset."""
        return 0.0 if self.is_requested else self._interval

    @property
    def is_requested(self) -> bool:
        """Somebody waits for an offset that is written and not flushed. What was asked for beyond
        what is written, such as the blank of a file whose next one takes nothing, is no work."""
        if self.failure:
            return False
        return self.flushed_offset < min(self._requested_offset, self._written()[0])

    def run_once(self) -> None:
        """Flush when asked, when enough pages are dirty or when it is long ago."""
        now = time.monotonic()
        is_thorough = now - self._last_thorough >= self._thorough
        if is_thorough:
            self._last_thorough = now
            if self._log.pool is not None:
                self._log.pool.commit()
        is_due = is_thorough or self._least_pages == 0
        if self.is_requested or is_due or self._is_enough():
            self.flush()

    def flush(self) -> int:
        """Flush all that is written now; the flushed offset. From any thread."""
        with self._lock:
            end, timestamp = self._written()
            offset = self.flushed_offset
            if self.failure or end <= offset:
                return offset
            begin = time.monotonic()
            try:
                for index in range(offset // self._log.file_size, -(-end // self._log.file_size)):
                    self._sync_file(index)
            except OSError as error:
                self.failure = (
                    f"flush of the commit log in {self._log.folders} failed: {error}; "
                    "the store takes no more writes, repair the disk and restart"
                )
                self._on_error(self.failure)
                return offset
            self._unlock_full_files(offset, end)
            if self._is_timed:
                self.flush_times.note(round((time.monotonic() - begin) * 1_000_000))
            # Counted first: whoever sees the new offset finds its flush counted.
            self.flush_count += 1
            self.flushed_offset = end
            self._checkpoint.physic_timestamp = max(self._checkpoint.physic_timestamp, timestamp)
        self._on_flush()
        return end

    def _unlock_full_files(self, flushed: int, end: int) -> None:
        size = self._log.file_size
        for index in range(flushed // size, end // size):
            file = self._log.files.get(index)
            if file is not None:
                file.unlock_pages()

    def _sync_file(self, index: int) -> None:
        if index != self._descriptor_index:
            self.close_file()
            file = self._log.files.get(index)
            if file is None:
                return
            sync_path(file.folder)
            mode = os.O_RDONLY if file.read_only else os.O_RDWR
            try:
                self._descriptor = os.open(file.path, mode | os.O_CLOEXEC)
            except FileNotFoundError:
                if index in self._log.files:
                    raise
                # Taken out of the log meanwhile and deleted: nothing to flush.
                return
            self._descriptor_index = index
        os.fdatasync(self._descriptor)

    def close_file(self) -> None:
        """Close this thread's own descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._descriptor_index = -1


def sync_file_system(folder: str) -> None:
    """Write the whole file system of a folder to the disk (``syncfs``), where the system can.

    For thousands of files this is one wait in place of thousands. Errors are not reported.
    """
    import ctypes  # costs the start of a broker too much

    with (
        contextlib.suppress(OSError, AttributeError),
        opened(folder, os.O_RDONLY) as descriptor,
    ):
        ctypes.CDLL(None).syncfs(descriptor)


class ConsumeQueueFlusher(StoreThread):
    """Flushes queues with enough new entries, all of them now and then, and the checkpoint.

    ``on_error`` and ``on_doubt`` (the page cache is no proof any more) are called in this thread.
    """

    def __init__(
        self,
        settings: StoreSettings,
        checkpoint: Checkpoint,
        written: Callable[[], tuple[int, int]],
        index: Index,
        on_error: Callable[[str], None],
        log: CommitLog,
        deletions: Deletions,
        on_doubt: Callable[[], None],
    ) -> None:
        super().__init__("kerolox-flush-queues")
        self._on_doubt = on_doubt
        self._deletions = deletions
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues with entries that are not flushed, in order. The owner adds, this thread takes
        out."""
        self.failure = ""
        self._checkpoint = checkpoint
        self._written = written
        self._index = index
        self._on_error = on_error
        self._interval = max(0.001, settings.flush_interval_consume_queue / 1_000)
        self._least_pages = settings.flush_consume_queue_least_pages
        self._thorough = settings.flush_consume_queue_thorough_interval / 1_000
        self._last_thorough = time.monotonic()
        self._lock = threading.Lock()
        self._log = log
        self._last_release = self._last_thorough

    def pause_seconds(self) -> float:
        """The flush interval."""
        return self._interval

    def run_once(self) -> None:
        """Flush what is due."""
        now = time.monotonic()
        is_thorough = now - self._last_thorough >= self._thorough
        if is_thorough:
            self._last_thorough = now
        self.flush(everything=is_thorough)
        if now - self._last_release >= RELEASE_INTERVAL_SECONDS:
            self._last_release = now
            self.release_pages()

    def release_pages(self) -> None:
        """Let go of the pages that reading brought into this process, so that it stays small."""
        for file in list(self._log.files.values()):
            file.release_pages()
            time.sleep(0)
        for index_file in list(self._index.files):
            index_file.release_pages()
            time.sleep(0)

    def flush(self, *, everything: bool) -> None:
        """Flush the queues with enough new entries, or all; then the checkpoint when all are."""
        with self._lock:
            if self.failure:
                return
            self._deletions.sync()
            _end, timestamp = self._written()
            try:
                due = [queue for queue in list(self.dirty) if everything or self._is_due(queue)]
                if len(due) >= QUEUES_SYNCED_AT_ONCE:
                    # Each wait below then finds nothing to write, but reports errors.
                    sync_file_system(due[0].folder)
                for queue in due:
                    # Taken out first: an entry that comes meanwhile puts it in again.
                    self.dirty.pop(queue, None)
                    self._sync_queue(queue)
            except OSError as error:
                self.failure = (
                    f"flush of the consume queues failed: {error}; "
                    "the store takes no more writes, repair the disk and restart"
                )
                self._on_error(self.failure)
                return
            if everything and timestamp > self._checkpoint.logics_timestamp:
                self._checkpoint.logics_timestamp = timestamp
            self._flush_index(everything=everything)
            if everything:
                # It is written whole each time: an older one only makes recovery longer.
                with contextlib.suppress(OSError):
                    self._checkpoint.flush()

    def _is_due(self, queue: ConsumeQueue) -> bool:
        pages = (queue.max_offset - queue.flushed_offset) * ENTRY_BYTES // PAGE_BYTES
        return pages >= self._least_pages

    def _flush_index(self, *, everything: bool) -> None:
        try:
            timestamp = self._index.flush(everything=everything)
        except OSError:
            # The index keeps the reason. The log has what it lacks, so writes go on.
            self._on_doubt()
        else:
            if timestamp > self._checkpoint.index_timestamp:
                self._checkpoint.index_timestamp = timestamp

    def _sync_queue(self, queue: ConsumeQueue) -> None:
        end = queue.max_offset
        size = queue.file_size
        first = queue.flushed_offset * ENTRY_BYTES // size * size
        starts = range(first, end * ENTRY_BYTES, size)
        queue.named = sync_queue_files(queue.folder, starts, queue.named)
        if queue.ext is not None:
            queue.ext.sync()
        if queue.flushed_offset < end <= queue.max_offset:
            queue.flushed_offset = end


class IndexFollower(StoreThread):
    """Lets the index follow the log: slowly while messages come in, fast when it is quiet."""

    def __init__(self, index: Index, log: CommitLog) -> None:
        super().__init__("kerolox-index")
        self._index = index
        self._log = log

    def pause_seconds(self) -> float:
        """How often to examine the log when there was nothing, or the disk took nothing."""
        return INDEX_RETRY_MS / 1_000 if self._index.failure else INDEX_INTERVAL_MS / 1_000

    def run_once(self) -> None:
        """Follow to the end of the log as it is now, in slices."""
        end = self._log.max_offset
        seen = end
        while self._index.followed_offset < end and not self._is_stopping:
            self._index.follow(self._log, INDEX_SLICE_RECORDS)
            if self._index.failure:
                return
            is_busy = self._log.max_offset != seen
            seen = self._log.max_offset
            behind = seen - self._index.followed_offset
            makes_way = is_busy and behind < INDEX_BEHIND_BYTES_MAX
            time.sleep(INDEX_PAUSE_MS / 1_000 if makes_way else 0.0001)
