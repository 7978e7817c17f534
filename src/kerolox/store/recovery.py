"""Recovery: what ``open`` does to make log, queues and index agree.

The log is the truth. Recovery

1. finds a record from which on queues may lack entries (:meth:`Recovery.find_start`),
2. walks the log from there to the last whole record, checks each one and writes the queue
   entries that are missing (:meth:`Recovery.walk`); when a queue lacks entries from before the
   start, it walks once more from the beginning of the log,
3. cuts the log behind the last whole record and clears the bytes, so that they never are
   mistaken for records again; cuts queues and index behind the end of the log,
4. lets the index go on behind the last record that it holds.

Where the walk starts: after a clean stop at the last record that any queue knows. After a crash
at the last record that is older than the checkpoint, as far as queues know (RocketMQ starts at
the file that holds it); when the machine did not restart, nothing that was written is lost, and
the walk starts ``REDO_BYTES`` before the last record that any queue knows.

A garbage length with a right magic, a record that names another offset, and a wrong CRC all end
the log there. (RocketMQ 4.9.8 does not survive the first of them.)
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kerolox.kernel import RecoveryReport
from kerolox.store.consume_queue import ConsumeQueue, is_pre_blank
from kerolox.store.layout import (
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RecordView,
    crc_matches,
    is_blank,
    parse_record,
    record_tags_code,
)
from kerolox.store.mapped_file import zero_from
from kerolox.store.multi_dispatch import is_multi_dispatch, multi_dispatch_targets

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Collection

    from kerolox.store.checkpoint import Checkpoint
    from kerolox.store.commit_log import CommitLog
    from kerolox.store.deletions import Deletions
    from kerolox.store.index_file import Index

__all__ = ["Recovery"]

REDO_BYTES = 32 << 20
"""More than one append can write: a chunk with the largest frame, or a batch."""
PENDING_NUMBERS_MAX = 3 * 512
"""Entries are written in runs of so many numbers (three per entry)."""
INDEX_AT_OPEN_SECONDS_MAX = 2.0
"""The index catches up so long before ``open`` returns, with the rest in the background."""
INDEX_AT_OPEN_RECORDS = 2_048
"""Records between two looks at the clock."""


class Recovery:
    """One recovery. ``queue_of`` gives the queue of a (topic, queue id), made when it is new."""

    def __init__(
        self,
        log: CommitLog,
        queues: Callable[[], Collection[ConsumeQueue]],
        queue_of: Callable[[str, int], ConsumeQueue],
        checkpoint: Checkpoint,
        delays_ms: tuple[int, ...],
        deletions: Deletions,
        *,
        check_crc: bool,
        multi_dispatch: bool = False,
        lmq: bool = False,
    ) -> None:
        self._log = log
        self._queues = queues
        self._queue_of = queue_of
        self._checkpoint = checkpoint
        self._delays_ms = delays_ms
        self._deletions = deletions
        self._check_crc = check_crc
        self._multi_dispatch = multi_dispatch
        self._lmq = lmq
        self._touched: dict[ConsumeQueue, None] = {}
        self._clean = False
        self._records = 0
        self._removed_index_files = 0
        self.notes: list[str] = []
        self.dispatched = 0
        self.last_store_timestamp = 0

    def run(self, index: Index | None, *, clean: bool, same_boot: bool) -> RecoveryReport:
        """Recover; the files have been loaded before."""
        began = time.monotonic()
        self._clean = clean
        log = self._log
        start = end = truncated = indexed = cut_entries = 0
        self._drop_dead_queues()
        if log.files:
            start = self.find_start(clean=clean, same_boot=same_boot)
            reached = self.walk(start, is_whole=start <= log.min_offset)
            if reached is None:
                self.notes.append(
                    f"queue entries from before {start} are missing, reading the whole log"
                )
                start = log.min_offset
                reached = self.walk(start, is_whole=True)
            assert reached is not None, "a walk of the whole log never stops at a gap"
            end = reached
            truncated = self.cut_log(end)
            cut_entries = self._cut_queues(end)
        else:
            self._drop_queues()
        if index is not None:
            indexed = self._recover_index(index, clean=clean, same_boot=same_boot)
        for queue in self._queues():
            queue.correct_min_offset(log.min_offset)
            queue.close()
        if self.dispatched:
            self.notes.append(f"wrote {self.dispatched} missing queue entries")
        return RecoveryReport(
            clean,
            log.min_offset,
            log.max_offset,
            end - start,
            truncated,
            self.dispatched,
            indexed,
            len(self._queues()),
            self.notes,
            same_boot=same_boot,
            begin_offset=start,
            records=self._records,
            cut_entries=cut_entries,
            removed_index_files=self._removed_index_files,
            duration_ms=int((time.monotonic() - began) * 1_000),
        )

    # -- where to start ---------------------------------------------------------------------
    def find_start(self, *, clean: bool, same_boot: bool) -> int:
        """Physical offset of a record before which nothing needs to be looked at."""
        log = self._log
        starts = [log.min_offset]
        if clean:
            starts.extend(
                self._verified(queue.entry(queue.max_offset - 1)) for queue in self._queues()
            )
            return max(starts)
        written = max((queue.max_physical_offset for queue in self._queues()), default=-1)
        redo = written - REDO_BYTES if same_boot else -1
        flushed_timestamp = self._checkpoint.min_timestamp
        for queue in self._queues():
            if redo > log.min_offset:
                at = queue.first_where(lambda entry: entry[0] > redo)
                starts.append(self._verified(queue.entry(at - 1)))
            if flushed_timestamp > 0:
                at = queue.first_where(lambda entry: self._is_after(entry, flushed_timestamp))
                starts.append(self._verified(queue.entry(at - 1)))
        return max(starts)

    def _verified(self, entry: tuple[int, int, int] | None) -> int:
        """The entry's offset when a whole record stands there; else -1."""
        if entry is None or is_pre_blank(entry):
            return -1
        record = self._log.record_at(entry[0])
        return entry[0] if record is not None and record.size == entry[1] else -1

    def _is_after(self, entry: tuple[int, int, int], timestamp: int) -> bool:
        if is_pre_blank(entry) or entry[0] < self._log.min_offset:
            return False
        store_time = self._log.store_time(entry[0])
        return store_time < 0 or store_time > timestamp

    # -- the walk ---------------------------------------------------------------------------
    def walk(self, start: int, *, is_whole: bool) -> int | None:
        """Check records from ``start`` on; the end of the last good one.

        None: a queue lacks entries from before ``start`` (never when ``is_whole``).
        """
        log = self._log
        offset = start
        self._records = 0
        while True:
            file = log.files.get(offset // log.file_size)
            if file is None:
                break
            view, size = file.view, file.size
            position = offset - file.start
            while True:
                record = parse_record(view, position, size, offset)
                if record is None or (self._check_crc and not crc_matches(view, record)):
                    break
                if 0 in record.topic or self._is_torn_text(view, position, size, offset, record):
                    record = None
                    break
                if not self._dispatch(offset, record, is_whole):
                    self._write_pending()
                    return None
                self.last_store_timestamp = record.store_timestamp
                self._records += 1
                offset += record.size
                position += record.size
            if record is not None:
                self.notes.append(f"the record at {offset} does not match its CRC")
                break
            if not is_blank(view, position, size):
                if any(view[position : position + 8]):
                    self.notes.append(f"no whole record at {offset}, the log ends there")
                break
            offset = file.end
        self._write_pending()
        return offset

    def _is_torn_text(
        self, view: mmap.mmap, position: int, limit: int, offset: int, record: RecordView
    ) -> bool:
        """The property text ends in zeros that were never written.

        The CRC covers the body only. What was not written yet is zero, and no client ends its
        properties so; that nothing follows makes it sure.
        """
        if self._clean or not record.properties.endswith(b"\0"):
            return False
        behind = position + record.size
        follows = parse_record(view, behind, limit, offset + record.size)
        return follows is None and not is_blank(view, behind, limit)

    def _dispatch(self, offset: int, record: RecordView, is_whole: bool) -> bool:
        """See to the queue entries of a record; False: entries before them are missing."""
        if record.sys_flag & TRANSACTION_BITS in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            return True
        topic = record.topic.decode("utf-8", "surrogateescape")
        own = None
        if not self._deletions.is_over(topic, offset):
            own = self._queue_of(topic, record.queue_id)
            if not self._enter(own, record.queue_offset, offset, record, is_whole):
                return False
        if self._multi_dispatch and is_multi_dispatch(record.properties):
            return self._dispatch_further(own, offset, record, is_whole)
        return True

    def _dispatch_further(
        self, own: ConsumeQueue | None, offset: int, record: RecordView, is_whole: bool
    ) -> bool:
        is_seen = True
        seen = {own}
        for name, queue_id, queue_offset in multi_dispatch_targets(
            record.properties, record.queue_id, lmq=self._lmq
        ):
            # Each entry before this one was of a record before this one.
            if queue_offset > offset // RECORD_BYTES_MIN or self._deletions.is_over(name, offset):
                continue
            try:
                queue = self._queue_of(name, queue_id)
            except ValueError:
                continue
            if queue not in seen:
                seen.add(queue)
                is_seen = self._enter(queue, queue_offset, offset, record, is_whole) and is_seen
        return is_seen

    def _enter(
        self, queue: ConsumeQueue, wanted: int, offset: int, record: RecordView, is_whole: bool
    ) -> bool:
        """See to one queue entry of a record; False: entries before it are missing."""
        if not queue.pending and offset + record.size <= queue.max_physical_offset:
            if queue.min_offset <= wanted < queue.max_offset:
                entry = queue.entry(wanted)
                if entry is None or entry[1] <= 0 or is_pre_blank(entry):
                    queue.set_entry(wanted, offset, record.size, self._code(record))
                    self.dispatched += 1
            return True
        if wanted != queue.next_offset and not self._make_room(queue, wanted, is_whole):
            return False
        if not queue.pending:
            self._touched[queue] = None
        if queue.ext is not None and queue.topic_bytes == record.topic:
            # Further queues of a record have no units, as in RocketMQ.
            self._write(queue)
            queue.pending += (offset, record.size, self._code(record))
            queue.extend(record.store_timestamp, (queue.ext.full_map,))
        else:
            queue.pending += (offset, record.size, self._code(record))
        queue.next_offset = wanted + 1
        self.dispatched += 1
        if len(queue.pending) >= PENDING_NUMBERS_MAX:
            self._write(queue)
        return True

    def _code(self, record: RecordView) -> int:
        return record_tags_code(
            record.topic, record.properties, record.store_timestamp, self._delays_ms
        )

    def _make_room(self, queue: ConsumeQueue, wanted: int, is_whole: bool) -> bool:
        """Let the next entry of a queue be ``wanted``; False: look for earlier records first."""
        if wanted > queue.next_offset and not is_whole:
            return False
        self._write(queue)
        if not queue.starts:
            queue.begin_at(wanted)
        elif wanted > queue.max_offset:
            self.notes.append(f"{queue!r}: no records for entries before {wanted}, left blank")
            queue.fill_gap(wanted)
        else:
            # The topic was deleted and made again; the later record counts.
            self.notes.append(f"{queue!r}: begins again at {wanted}")
            if wanted < queue.starts[0] // 20:
                queue.delete()
                queue.begin_at(wanted)
            else:
                queue.truncate_entries(wanted)
        return True

    def _write(self, queue: ConsumeQueue) -> None:
        if queue.pending:
            queue.write_entries(queue.pending)
            queue.pending.clear()

    def _write_pending(self) -> None:
        for queue in self._touched:
            self._write(queue)
        self._touched.clear()

    # -- cutting ----------------------------------------------------------------------------
    def cut_log(self, end: int) -> int:
        """Make ``end`` the end of the log; how many bytes stood behind it."""
        log = self._log
        truncated = 0
        for file in log.files.values():
            if file.read_only and file.start > end:
                raise ValueError(
                    f"the commit log ends at {end}, before {file.path}, which is in a folder of "
                    "readOnlyCommitLogStorePaths; repair the file before it, or take the folder "
                    "out of that setting"
                )
        for file in log.truncate(end):
            used = zero_from(file.unseal(), 0, file.size)
            if used:
                self.notes.append(f"{file.path}: behind the end of the log, deleted")
            truncated += used
            file.delete()
        tail = log.tail
        if tail is not None and end < tail.end:
            log.open_tail()
            used = zero_from(tail.descriptor, end - tail.start, tail.size)
            if used:
                self.notes.append(f"{tail.path}: {used} bytes behind {end} cleared")
                os.fdatasync(tail.descriptor)
            truncated += used
        return truncated

    def _cut_queues(self, end: int) -> int:
        total = 0
        for queue in self._queues():
            cut = queue.truncate(end)
            total += cut
            if cut:
                self.notes.append(f"{queue!r}: {cut} entries behind the end of the log cut off")
        return total

    def _drop_dead_queues(self) -> None:
        """Delete what a kill in the middle of a deletion left: queues of an earlier life."""
        if not self._log.files:
            # Offsets begin anew.
            self._deletions.settle(0, 0)
        for queue in self._queues():
            end = self._deletions.offsets.get(queue.topic, 0)
            if queue.starts and queue.max_physical_offset <= end and end:
                self.notes.append(f"{queue!r}: deleted, as its topic was")
                queue.delete()

    def _drop_queues(self) -> None:
        for queue in self._queues():
            if queue.starts:
                self.notes.append(f"{queue!r}: deleted, the log has no files")
                queue.delete()

    # -- index ------------------------------------------------------------------------------
    def _recover_index(self, index: Index, *, clean: bool, same_boot: bool) -> int:
        log = self._log
        is_trusted = clean or same_boot
        if index.files and not clean:
            index.files[-1].repair_last()
        dropped = index.drop_files(
            newer_than=None if is_trusted else self._checkpoint.index_timestamp,
            from_offset=log.max_offset,
        )
        self._removed_index_files = dropped
        if dropped:
            self.notes.append(
                f"index: {dropped} files newer than the checkpoint or the log dropped"
            )
        if clean and not self.dispatched and not dropped:
            index.followed_offset = log.max_offset
            return 0
        index.resume(log)
        deadline = time.monotonic() + INDEX_AT_OPEN_SECONDS_MAX
        indexed = index.follow(log, INDEX_AT_OPEN_RECORDS)
        while index.followed_offset < log.max_offset and not index.failure:
            if time.monotonic() >= deadline:
                break
            indexed += index.follow(log, INDEX_AT_OPEN_RECORDS)
        behind = log.max_offset - index.followed_offset
        if behind:
            self.notes.append(f"index: {behind} bytes of the log are indexed in the background")
        return indexed
