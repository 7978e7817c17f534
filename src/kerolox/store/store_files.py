"""Opening and closing the files of a store: locks, loading, recovery, threads.

:class:`StoreFiles` holds the log, the queues, the index, and the threads that bring them to disk.
:mod:`kerolox.store.reads` and :mod:`kerolox.store.appends` work on it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kerolox.errors import ConfigError
from kerolox.kernel.delay_levels import delay_levels_ms
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import RecoveryReport
from kerolox.store.files.checkpoint import AbortFile, Checkpoint, StoreLock
from kerolox.store.files.deletions import Deletions
from kerolox.store.files.inventory import Inventory
from kerolox.store.files.mapped_file import make_folder, offset_name, sync_path
from kerolox.store.flush import CommitLogFlusher, ConsumeQueueFlusher, IndexFollower
from kerolox.store.index import Index
from kerolox.store.layout import ENTRY_BYTES
from kerolox.store.log.commit_log import FILE_SIZE_SETTING, log_of
from kerolox.store.log.folders import root_of
from kerolox.store.log.preallocate import FileAllocator
from kerolox.store.log.transient_pool import TransientPool, has_pool
from kerolox.store.queues.consume_queue import RECOVERED_FILES, ConsumeQueue
from kerolox.store.queues.queue_table import Queues
from kerolox.store.recovery.log_recovery import Recovery, StateAtOpen
from kerolox.store.recovery.queue_repair import Dispatching, QueueRepair

CATCH_UP_SECONDS_MAX = 2.0
"""How long ``close`` and ``flush`` let the index catch up."""


class StoreFiles:
    """The files of one folder and the threads that flush them, as ``StoreKernel`` says of them."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.root = root = root_of(settings)
        self.failure = "the store is not open"
        """Why the store takes no writes; empty while it does."""
        self.refusal = ""
        """Why the last refused append was refused."""
        self.write_error = ""
        """The same when the files were the reason, until an append succeeds."""
        self.last_store_timestamp = 0
        self.log = log_of(settings)
        self.queues = Queues(root, settings, self.log)
        try:
            self.delays_ms = delay_levels_ms(settings.message_delay_level)
        except ConfigError as error:
            raise ValueError(str(error)) from None  # as the native kernel says it
        self.dispatching = Dispatching(
            self.delays_ms, settings.enable_multi_dispatch, settings.enable_lmq
        )
        self._checkpoint = Checkpoint(os.path.join(root, "checkpoint"))
        self._abort = AbortFile(os.path.join(root, "abort"))
        self._lock = StoreLock(os.path.join(root, "lock"))
        self._deletions = Deletions(os.path.join(root, "deletions"))
        self.index = Index(
            os.path.join(root, "index"), settings.max_hash_slot_num, settings.max_index_num
        )
        self.is_open = False
        self.is_sound = True
        self._frozen_ms: int | None = None
        self.written = (0, 0)
        self._durable_offset = 0
        """Up to where recovery knows the log to be on the disk."""
        self._notify_read = self._notify_write = -1
        self.log_flusher: CommitLogFlusher | None = None
        self.queue_flusher: ConsumeQueueFlusher | None = None
        self.index_follower: IndexFollower | None = None
        self.allocator: FileAllocator | None = None
        self.pool: TransientPool | None = None
        """The transient store pool, where there is one and the store is open."""
        self.note_put: Callable[[], None] | None = None
        """Called after each append, for a thread that puts wake."""

    # -- life cycle -------------------------------------------------------------------------
    def open(self) -> RecoveryReport:
        """A store is opened once."""
        if self.is_open or not self.is_sound:
            raise ValueError(f"the store in {self.root} was opened before; make a new one")
        make_folder(self.root)
        for path in (self.root, *self.log.folders.writable, self.queues.root):
            make_folder(path)
            if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(
                    errno.EACCES, "the store must be able to read and write this folder", path
                )
        self._lock.acquire()
        try:
            report = self._load_and_recover()
            self._abort.create()
            sync_path(self.root)
        except BaseException:
            self._close_files()
            self._lock.release()
            raise
        self._start_threads()
        self.is_open = True
        self.failure = ""
        return report

    def _load_and_recover(self) -> RecoveryReport:
        state = StateAtOpen(
            not self._abort.exists(),
            self._abort.exists() and self._abort.is_same_boot(),
            self.now_ms(),
            Inventory.load(self.root),
        )
        notes = self.log.load(crashed=not state.clean)
        self._deletions.load(is_durable=state.clean)
        repair = QueueRepair(
            self.log,
            self.queues.by_key.values,
            self.queues.get,
            self._deletions,
            self.dispatching,
            notes,
        )
        repair.short.update(dict.fromkeys(self.queues.load(notes, clean=state.clean)))
        if state.clean:
            self._check_end(state.inventory)
        self._checkpoint.load()
        index = self.index if self.settings.message_index_enable else None
        if index is not None:
            known = state.inventory.index if state.inventory else ()
            notes += index.load(
                clean=state.clean, known=known, min_physical_offset=self.log.min_offset
            )
        self._abort.begin()
        recovery = Recovery(self.log, repair, self._checkpoint, self.settings, notes)
        report = recovery.run(index, state)
        self._deletions.forget_outside(self.log.min_offset, self.log.max_offset)
        self.last_store_timestamp = recovery.last_store_timestamp
        self.written = (self.log.max_offset, self.last_store_timestamp)
        self._durable_offset = recovery.flushed_offset
        if not state.clean and not state.same_boot:
            self.log.write_again(self._durable_offset)
        # What a killed run left in the page cache may not be on the disk.
        depth = 0 if report.dispatched or report.cut_entries else RECOVERED_FILES
        if not report.clean or not depth:
            for queue in self.queues.by_key.values():
                if queue.starts:
                    begin = queue.starts[-depth:][0] // ENTRY_BYTES
                    queue.flushed_offset = min(queue.flushed_offset, begin)
        return report

    def _check_end(self, inventory: Inventory | None) -> None:
        """Refuse a log that ended behind its last file when it was closed: entries of what is in
        the missing file would be dropped, and others put in their place."""
        known = (queue.max_physical_offset for queue in self.queues.by_key.values())
        closed_at = max(known, default=0) if inventory is None else inventory.log_end
        end = self.log.tail.end if self.log.tail else 0
        if closed_at <= end:
            return
        size = self.log.file_size
        raise ValueError(
            f"the commit log was closed at {closed_at}, and its files end at {end}: the file "
            f"{offset_name((closed_at - 1) // size * size)} is missing; bring it back (is one of "
            "its folders not mounted, or missing in storePathCommitLog or "
            "readOnlyCommitLogStorePaths?), or, to give up the messages behind "
            f"{end}, make an empty file {self._abort.path}"
        )

    def _start_threads(self) -> None:
        self._notify_read, self._notify_write = _make_notify()
        if has_pool(self.settings):
            self.pool = TransientPool(
                self.settings, lambda: self.written, self._move_end, self._committed
            )
            self.log.stage(self.pool)
        pool = self.pool
        self.log_flusher = CommitLogFlusher(
            self.log,
            self.settings,
            self._checkpoint,
            (lambda: self.written) if pool is None else (lambda: pool.committed),
            self.notify,
            self.fail,
        )
        self.log_flusher.flushed_offset = self._durable_offset
        self.queue_flusher = ConsumeQueueFlusher(
            self.settings,
            self._checkpoint,
            lambda: self.written,
            self.index,
            self.fail,
            self.log,
            self._deletions,
            self._abort.forget_boot,
        )
        self.queue_flusher.dirty.update(
            (queue, None)
            for queue in self.queues.by_key.values()
            if queue.flushed_offset < queue.max_offset
        )
        if pool is not None:
            self.note_put = pool.note_put
            pool.start()
        elif self.log_flusher.is_woken_by_puts:
            self.note_put = self.log_flusher.note_put
        self.log_flusher.start()
        self.queue_flusher.start()
        self.log.allocator = self.allocator = FileAllocator(self.settings, FILE_SIZE_SETTING)
        self.allocator.start()
        if self.settings.message_index_enable:
            self.index_follower = IndexFollower(self.index, self.log)
            self.index_follower.start()

    def fail(self, reason: str) -> None:
        """Take no more writes. From any thread."""
        self.is_sound = False
        if not self.failure:
            self.failure = reason
        self._abort.forget_boot()
        self.notify()

    def _move_end(self, offset: int) -> None:
        self.log.max_offset = offset

    def _committed(self) -> None:
        """In the thread that committed: tell the flusher, and the owner, who has pulls."""
        flusher = self.log_flusher
        if flusher is not None and flusher.is_requested:
            flusher.wake()
        elif flusher is not None and flusher.is_woken_by_puts:
            flusher.note_put()
        self.notify()

    @property
    def trouble(self) -> str:
        uncommitted = "" if self.pool is None else self.pool.problem
        return self.failure or self.write_error or uncommitted or self.index.failure

    def notify(self) -> None:
        """Make ``notify_fd`` readable. From any thread."""
        if self._notify_write >= 0:
            try:
                os.write(self._notify_write, b"\1\0\0\0\0\0\0\0")
            except BlockingIOError:
                # Full means readable already.
                return

    def close(self) -> None:
        """Every thread ends, at most 5 seconds each."""
        lost = 0
        if not self.is_open:
            return
        self.is_open = False
        self.failure = self.failure or "the store is closed"
        is_stopped = True
        assert self.log_flusher is not None
        assert self.queue_flusher is not None
        for thread in (
            self.allocator,
            self.index_follower,
            self.queue_flusher,
            self.pool,
            self.log_flusher,
        ):
            if thread is not None:
                is_stopped = thread.stop() and is_stopped
        try:
            if is_stopped and self.allocator is not None:
                self.allocator.remove_unused()
            if is_stopped and self.pool is not None:
                # After a failed flush, too: the page cache has then what was acknowledged.
                self.pool.commit()
                lost = self.log.end_offset - self.pool.committed[0] if self.pool.problem else 0
            if is_stopped and self.is_sound:
                self.log.drop_partial()
                is_behind = not self._catch_up()
                self._flush_all()
                is_lost = self.log.end_offset > self.log.max_offset
                if self.is_sound and not is_behind and not is_lost:
                    self._inventory().save(self.root)
                    self._abort.remove()
                    sync_path(self.root)
        finally:
            self.log_flusher.close_file()
            if is_stopped:
                self._close_files()
            self.is_sound = False
            for descriptor in {self._notify_read, self._notify_write} - {-1}:
                os.close(descriptor)
            self._notify_read = self._notify_write = -1
            self._lock.release()
        if lost:
            assert self.pool is not None
            raise OSError(
                f"{lost} bytes of messages that were acknowledged are lost with the transient "
                f"store pool: {self.pool.problem.partition(';')[0]}"
            )

    def _inventory(self) -> Inventory:
        """What the store consists of now."""
        queues = {
            (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset)
            for queue in self.queues.by_key.values()
            if queue.starts
        }
        return Inventory(self.log.max_offset, queues, self.index.file_ends())

    def _close_files(self) -> None:
        """Let go of all files: a closed store answers as an empty one, and deletes nothing."""
        self.queues.close()
        self.index.close()
        self.log.close()
        if self.pool is not None:
            self.pool.close()

    def _catch_up(self) -> bool:
        """Let the index take in the rest of the log; False when the time was too short."""
        if not self.settings.message_index_enable:
            return True
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while self.index.followed_offset < self.log.max_offset:
            if time.monotonic() > deadline:
                return False
            self.index.follow(self.log, 1_024)
            if self.index.failure:
                return False
        return True

    def _flush_all(self) -> None:
        if self.log_flusher is not None and self.queue_flusher is not None:
            self.log_flusher.flush()
            self.queue_flusher.flush(everything=True)

    def flush(self) -> int:
        if self.is_open:
            if self.pool is not None:
                self.pool.commit()
            self._catch_up()
            self._flush_all()
        return self.flushed_offset

    def set_full_log_paths(self, paths: Sequence[str]) -> None:
        self.log.folders.set_full(paths)

    def set_max_message_size(self, size: int) -> None:
        self.settings = replace(self.settings, max_message_size=size)

    @property
    def flushed_offset(self) -> int:
        return 0 if self.log_flusher is None else self.log_flusher.flushed_offset

    @property
    def has_failed(self) -> bool:
        return self.is_open and not self.is_sound

    @property
    def notify_fd(self) -> int:
        """-1 while the store is not open."""
        return self._notify_read

    def set_clock(self, now_ms: int | None) -> None:
        self._frozen_ms = now_ms

    def clock_ms(self) -> int:
        """The time for deadlines; unlike ``now_ms`` it goes back when the clock does."""
        return time.time_ns() // 1_000_000 if self._frozen_ms is None else self._frozen_ms

    def now_ms(self) -> int:
        """The time that the next record gets: the clock, never below the last record's."""
        return max(self.clock_ms(), self.last_store_timestamp)

    def request_flush(self, physical_offset: int) -> None:
        if self.log_flusher is not None:
            self.log_flusher.request(physical_offset)
        if self.pool is not None:
            self.pool.force()

    # -- queues -----------------------------------------------------------------------------
    @property
    def transient_buffers(self) -> int:
        return -1 if self.pool is None else self.pool.free_count

    # -- retention --------------------------------------------------------------------------
    def log_files(self) -> list[tuple[str, int, int]]:
        return [(file.path, file.start, file.size) for file in self.log.files.values()]

    def drop_log_file(self) -> str | None:
        file = self.log.drop_first()
        if file is None:
            return None
        file.release_pages()
        # Files before this one are unlinked; this one is not yet, and a crash may keep it.
        self._deletions.forget(file.start)
        return file.path

    def expire_index(self) -> list[str]:
        return self.index.expire(self.log.min_offset)

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None:
            return False
        had_files = bool(queue.starts)
        self._delete([queue])
        return had_files

    def delete_queues(self, topic: str) -> int:
        gone = [queue for (name, _id), queue in self.queues.by_key.items() if name == topic]
        count = sum(bool(queue.starts) for queue in gone)
        if count:
            # First: a kill among the files must not leave some that look alive.
            self._deletions.add(topic, self.log.end_offset)
        self._delete(gone)
        self._deletions.retry()
        return count

    def _delete(self, queues: list[ConsumeQueue]) -> None:
        # It names what is gone now: a recovery would look for that in the whole log.
        Inventory.remove(self.root)
        for queue in queues:
            if self.queue_flusher is not None:
                self.queue_flusher.dirty.pop(queue, None)
            self.queues.delete(queue)


def _make_notify() -> tuple[int, int]:
    """(descriptor to read, descriptor to write): an eventfd, or a pipe where there is none."""
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return descriptor, descriptor
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing
