"""Recovery: what ``open`` does to make log, queues and index agree.

The log is the truth. Recovery

1. finds a record from which on anything may be missing or torn (:meth:`Recovery.find_start`),
2. walks the log from there to the last whole record (:meth:`Recovery.walk`), and ends log, queues
   and index there. It clears the bytes behind, so that nothing takes them for records,
3. reads the records again and writes the missing queue entries (``QueueRepair``). A record that
   contradicts its queue is damaged, and ends the log, too,
4. fills queues that lack entries from before the start, from the begin of the log,
5. lets the index go on behind the last record that it holds.

The start of the walk depends on the last stop:

- clean: the last record that any queue knows;
- a kill, and the machine ran on: ``REDO_BYTES`` before that record, since nothing written is lost;
- a crash of the machine: the last record that is older than the checkpoint, as far as queues know
  (RocketMQ starts at the file that holds it).

A garbage length with a right magic, a record that names another offset, and a wrong CRC all end
the log there. (RocketMQ 4.9.8 does not survive the first of them.)
"""

from __future__ import annotations

import mmap
import os
import time
from typing import NamedTuple

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import RecoveryReport
from kerolox.protocol.records import MESSAGE_MAGIC, RecordView, parse_record
from kerolox.store.files.checkpoint import CLOCK_STEP_MS, Checkpoint
from kerolox.store.files.inventory import Inventory
from kerolox.store.files.mapped_file import MappedFile, end_hole, opened
from kerolox.store.index import Index
from kerolox.store.layout import BLANK, BLANK_BYTES, crc_matches, is_blank, is_pre_blank
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.quarantine import LogQuarantine
from kerolox.store.recovery.queue_repair import QueueRepair

REDO_BYTES = 32 << 20
"""More than one append can write: a chunk with the largest frame, or a batch."""
INDEX_AT_OPEN_SECONDS_MAX = 2.0
"""The index catches up so long before ``open`` returns, with the rest in the background."""
INDEX_AT_OPEN_RECORDS = 2_048
"""Records between two checks of the clock."""


class StateAtOpen(NamedTuple):
    """The state that the last run left."""

    clean: bool
    """It closed the store."""
    same_boot: bool
    """It did not, but the machine ran on: nothing that was written is lost."""
    now_ms: int
    inventory: Inventory | None


class Recovery:
    """One recovery. The files have been loaded before; ``notes`` gets a sentence per repair."""

    def __init__(
        self,
        log: CommitLog,
        repair: QueueRepair,
        checkpoint: Checkpoint,
        settings: StoreSettings,
        notes: list[str],
    ) -> None:
        self._log = log
        self._repair = repair
        self._checkpoint = checkpoint
        self._check_crc = settings.check_crc_on_recover
        self._cut = LogQuarantine(log, notes)
        self._notes = notes
        self._clean = False
        self._records = 0
        self.last_store_timestamp = 0
        """Of the last record; no later one is to fall behind it."""
        self.flushed_offset = 0
        """Before it the log is known to be on the disk."""

    def run(self, index: Index | None, state: StateAtOpen) -> RecoveryReport:
        """Recover."""
        began = time.monotonic()
        self._clean = state.clean
        log, repair = self._log, self._repair
        start = end = indexed = 0
        if log.files:
            start = self.find_start(state)
            durable = start
            if state.same_boot and not state.clean:
                # A kill loses nothing, but the disk has only what the checkpoint covers. Found
                # before the queues change, which show it.
                durable = self.find_start(state._replace(same_boot=False))
            end = self.walk(start)
            self._end_at(end)
            self._repair_queues(start, state)
            self.flushed_offset = log.max_offset if state.clean else min(durable, log.max_offset)
        else:
            repair.drop_all()
        if index is not None:
            indexed = self._recover_index(index, state)
        queues = repair.queues()
        for queue in queues:
            queue.correct_min_offset(log.min_offset)
            queue.close()
        if repair.dispatched:
            self._notes.append(
                f"wrote {repair.dispatched} queue entries that were missing or wrong"
            )
        self._choose_timestamp(state)
        return RecoveryReport(
            clean=state.clean,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            scanned_bytes=end - start,
            truncated_bytes=self._cut.truncated_bytes,
            dispatched=repair.dispatched,
            indexed=indexed,
            queues=len(queues),
            notes=self._notes,
            same_boot=state.same_boot,
            begin_offset=start,
            records=self._records,
            cut_entries=repair.cut_entries,
            rebuilt_queues=repair.rebuilt_queues,
            removed_index_files=0 if index is None else index.removed_count,
            set_aside_files=self._cut.files_set_aside,
            duration_ms=int((time.monotonic() - began) * 1_000),
        )

    def _choose_timestamp(self, state: StateAtOpen) -> None:
        """A damaged time far ahead of the clock would hold all later ones up. Only a crash damages
        those of records. (RocketMQ lets times fall back over a restart.)"""
        believable = state.now_ms + CLOCK_STEP_MS
        if not state.clean and self.last_store_timestamp > believable:
            self.last_store_timestamp = 0
        if self._checkpoint.physic_timestamp <= believable:
            self.last_store_timestamp = max(
                self.last_store_timestamp, self._checkpoint.physic_timestamp
            )

    def _end_at(self, end: int) -> None:
        self._cut.end_at(end)
        self._repair.truncate(end)

    def _repair_queues(self, start: int, state: StateAtOpen) -> None:
        repair = self._repair
        repair.drop_dead_queues(start)
        repair.compare(state.inventory, clean=state.clean)
        repair.dispatch(start, clean=state.clean, same_boot=state.same_boot)
        damaged = None if state.clean else repair.find_disowned(start)
        if damaged is not None:
            self._notes.append(
                f"the record at {damaged} says that it is of another place than its queue knows, "
                "the log ends there"
            )
            self._end_at(damaged)
        if repair.short:
            repair.fill_short(start)

    # -- where to start ---------------------------------------------------------------------
    def find_start(self, state: StateAtOpen) -> int:
        """Physical offset of a record before which nothing needs to be examined."""
        log = self._log
        queues = self._repair.queues()
        starts = [log.min_offset]
        if state.clean:
            starts.extend(self._verified(queue.entry(queue.max_offset - 1)) for queue in queues)
            return max(starts)
        written = max((queue.max_physical_offset for queue in queues), default=-1)
        redo = written - REDO_BYTES if state.same_boot else -1
        flushed_timestamp = self._checkpoint.safe_timestamp(state.now_ms)
        for queue in queues:
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
    def walk(self, start: int) -> int:
        """Check records from ``start`` on; the end of the last good one."""
        log = self._log
        offset = start
        while True:
            file = log.files.get(offset // log.file_size)
            if file is None:
                return offset
            view, size = file.view, end_hole(file.path, file.size)
            position = offset - file.start
            while True:
                record = parse_record(view, position, size, offset)
                if record is None and position < size < file.size:
                    record = self._record_into_hole(file, position)
                elif record is not None and self._check_crc and not crc_matches(view, record):
                    break
                if record is None:
                    break
                if 0 in record.topic or self._is_torn_text(view, position, size, offset, record):
                    record = None
                    break
                self.last_store_timestamp = record.store_timestamp
                self._records += 1
                offset += record.size
                position += record.size
            if record is not None:
                self._notes.append(f"the record at {offset} does not match its CRC")
                return offset
            if not is_blank(view, position, size):
                if any(view[position : min(position + 8, size)]):
                    self._notes.append(f"no whole record at {offset}, the log ends there")
                return offset
            offset = file.end

    @staticmethod
    def _record_into_hole(file: MappedFile, position: int) -> RecordView | None:
        """A record whose end is a hole: of one that was torn, or of zeros that a copy left out."""
        with opened(file.path, os.O_RDONLY) as descriptor:
            size, magic = BLANK.unpack(os.pread(descriptor, BLANK_BYTES, position))
            if magic != MESSAGE_MAGIC or not 0 < size <= REDO_BYTES:
                return None
            data = os.pread(descriptor, min(size, file.size - position), position)
        record = parse_record(data, 0, len(data), file.start + position)
        return record if record is not None and crc_matches(data, record) else None

    def _is_torn_text(
        self, view: mmap.mmap, position: int, limit: int, offset: int, record: RecordView
    ) -> bool:
        """The property text ends in zeros that were never written.

        The CRC covers the body only. What was not written yet is zero, and no client ends its
        properties so; that nothing follows proves it.
        """
        if self._clean or not record.properties.endswith(b"\0"):
            return False
        behind = position + record.size
        follows = parse_record(view, behind, limit, offset + record.size)
        return follows is None and not is_blank(view, behind, limit)

    # -- index ------------------------------------------------------------------------------
    def _recover_index(self, index: Index, state: StateAtOpen) -> int:
        log = self._log
        is_trusted = state.clean or state.same_boot
        if index.files and not state.clean:
            index.files[-1].repair_last()
        dropped = index.drop_files(
            newer_than=None if is_trusted else self._checkpoint.index_timestamp,
            from_offset=log.max_offset,
        )
        if dropped:
            self._notes.append(
                f"index: {dropped} files that were damaged, or newer than the checkpoint or the "
                "log, are gone; they are built again"
            )
        if dropped and index.end_timestamp < self._checkpoint.index_timestamp:
            # What is built again is of old records, and not on the disk for that.
            self._checkpoint.index_timestamp = index.end_timestamp
            self._checkpoint.flush()
        if state.clean and not self._repair.dispatched and not dropped:
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
            self._notes.append(f"index: {behind} bytes of the log are indexed in the background")
        return indexed
