"""Queue entries in recovery: written where they are missing, compared with the records elsewhere.

Entries and records vouch for each other. Of two that disagree the record is right, unless its own
queue contradicts it. The CRC covers the body alone, so only the queue shows a damaged queue id,
queue offset or topic.

A queue that lacks entries from before the range of this reading is *short*. A second reading, from
the begin of the log, fills it (:meth:`QueueRepair.fill_short`).

A record with offset 0 behind all records of its queue begins the queue anew. Its topic was deleted
and made again, and no note of that is left (a slave has none, a loss of power may cost it). It
counts when the queue's next record has offset 1, or when none follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from kerolox.protocol.codes import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from kerolox.protocol.records import RECORD_BYTES_MIN, RecordView
from kerolox.store.files.deletions import Deletions
from kerolox.store.files.inventory import Inventory
from kerolox.store.layout import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, is_pre_blank, record_tags_code
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.queues.consume_queue import ConsumeQueue
from kerolox.store.queues.ext_unit import is_ext_address
from kerolox.store.queues.multi_dispatch import is_multi_dispatch, multi_dispatch_targets

PENDING_NUMBERS_MAX = 3 * 512
"""Entries are written in runs of so many numbers (three per entry)."""

WINDOW_ENTRIES = 64
"""Entries of a queue that are read together."""
WINDOWS_MAX = 1_024
"""Queues whose entries are held at once (1,280 bytes each)."""

Entry = tuple[int, int, int]


class Dispatching(NamedTuple):
    """How records become entries."""

    delays_ms: tuple[int, ...]
    """Deliver times of the delay levels."""
    multi_dispatch: bool
    lmq: bool


class Place(NamedTuple):
    """Where a record says that it belongs."""

    topic: str
    queue_id: int
    queue_offset: int


def places_of(how: Dispatching, offset: int, record: RecordView) -> list[Place]:
    """The places of a record: its own, and those of its further queues."""
    if record.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
        return []
    topic = record.topic.decode("utf-8", "surrogateescape")
    places = [Place(topic, record.queue_id, record.queue_offset)]
    if how.multi_dispatch and is_multi_dispatch(record.properties):
        seen = {places[0][:2]}
        for target in multi_dispatch_targets(record.properties, record.queue_id, lmq=how.lmq):
            # Each entry before this one was of a record before this one.
            is_possible = target.queue_offset <= offset // RECORD_BYTES_MIN
            if is_possible and target[:2] not in seen:
                seen.add(target[:2])
                places.append(Place(*target))
    return places


class Waiting(NamedTuple):
    """An entry whose queue offset does not join: it counts once the next one goes on from it, or at
    the end of the log, where nothing contradicts it."""

    queue_offset: int
    entry: Entry
    unit_time: int | None


class Seen:
    """The entries of a queue from where reading began, and how many of them a record claimed."""

    __slots__ = ("begin", "claimed", "end")

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end, self.claimed = begin, end, 0


class QueueRepair:
    """Brings queues into line with a log whose end was found.

    ``queues`` gives all queues, ``queue_of`` the one of a (topic, queue id), made when it is new.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Callable[[], Collection[ConsumeQueue]],
        queue_of: Callable[[str, int], ConsumeQueue],
        deletions: Deletions,
        dispatching: Dispatching,
        notes: list[str],
    ) -> None:
        self._log = log
        self.queues = queues
        self._queue_of = queue_of
        self._deletions = deletions
        self._how = dispatching
        self._notes = notes
        self._touched: dict[ConsumeQueue, None] = {}
        self._seen: dict[ConsumeQueue, Seen] = {}
        self._windows: dict[ConsumeQueue, tuple[int, int, bytes]] = {}
        """(first, behind the last, bytes) of entries that were read ahead."""
        self._doubtful_from: float = math.inf
        """Entries of records from here on may hold the tags code of another record."""
        self.short: dict[ConsumeQueue, Waiting | None] = {}
        """Queues to be filled from the begin of the log, each with the entry that waits."""
        self.dispatched = 0
        self.cut_entries = 0
        self.rebuilt_queues = 0

    # -- before the records are read ----------------------------------------------------------
    def drop_dead_queues(self, start: int) -> None:
        """Delete what is of an earlier life of its topic, which a crash left or brought back.

        ``start``: where the reading of the records is going to begin.
        """
        for queue in self.queues():
            end = self._deletions.offsets.get(queue.topic, 0)
            if end and any(
                entry[1] > 0 and not is_pre_blank(entry) and entry[0] < end
                for entry in queue.first_entries()
            ):
                self._notes.append(f"{queue!r}: deleted, as its topic was")
                is_mixed = queue.max_physical_offset > end
                queue.delete()
                if is_mixed or end < start:
                    # It lacks records of the new life that are not read otherwise.
                    self.short[queue] = None

    def compare(self, inventory: Inventory | None, *, clean: bool) -> None:
        """Find the queues that are missing or shorter than they were."""
        # The log may have grown since, and queues with it; a shorter log is another case.
        if inventory is None or inventory.log_end > self._log.max_offset:
            return
        is_same = clean and inventory.log_end == self._log.max_offset
        for (topic, queue_id), (low, high) in inventory.queues.items():
            if self._deletions.offsets.get(topic, 0):
                continue
            queue = self._find(topic, queue_id)
            if queue is None:
                continue
            lacks_begin = is_same and queue.min_offset > low
            if lacks_begin:
                queue.delete()
            if lacks_begin or queue.max_offset < high:
                self.short[queue] = None

    def drop_all(self) -> None:
        """Without a log the queues mean nothing, and offsets begin anew."""
        self._deletions.forget_outside(0, 0)
        for queue in self.queues():
            if queue.starts:
                self._notes.append(f"{queue!r}: deleted, the log has no files")
                queue.delete()
        self.short.clear()

    def truncate(self, end: int) -> bool:
        """Cut the queues behind the end of the log; whether there was anything to cut."""
        before = self.cut_entries
        for queue in self.queues():
            cut = queue.truncate(end)
            self.cut_entries += cut
            if cut:
                self._notes.append(f"{queue!r}: {cut} entries behind the end of the log cut off")
        return self.cut_entries > before

    # -- the records --------------------------------------------------------------------------
    def dispatch(self, begin: int, *, clean: bool, same_boot: bool) -> None:
        """Write the missing entries of all records from ``begin``, which was checked, on."""
        self._seen.clear()
        self._doubtful_from = math.inf if clean or same_boot else begin
        if not clean:
            for queue in self.queues():
                if queue.max_physical_offset > begin:
                    first = queue.first_where(lambda entry: entry[0] >= begin)
                    self._seen[queue] = Seen(first, queue.max_offset)
        for offset, record in self._records(begin, begin):
            for place in places_of(self._how, offset, record):
                self._enter(place, offset, record)
        self._write_pending()
        self._windows.clear()

    def _records(self, begin: int, sound_from: int) -> Iterator[tuple[int, RecordView]]:
        """(physical offset, record). Before ``sound_from``, where nothing was checked, damage is
        stepped over to the next file."""
        log = self._log
        offset = max(begin, log.min_offset)
        while offset < log.max_offset:
            for at, record in log.records_from(offset, log.max_offset):
                yield at, record
                offset = at + record.size
            behind = log.roll_next(offset)
            offset = min(behind, sound_from) if offset < sound_from else behind

    def _find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._queue_of(topic, queue_id)
        except ValueError:
            # No folder can have that name.
            return None

    def _enter(self, place: Place, offset: int, record: RecordView) -> None:
        """Write a record's entry if it is missing or wrong."""
        if self._deletions.is_over(place.topic, offset):
            return
        queue = self._find(place.topic, place.queue_id)
        if queue is None or queue in self.short:
            return
        wanted = place.queue_offset
        if wanted < queue.next_offset:
            self._write(queue)
            self._compare_one(queue, place, offset, record)
            return
        if offset < queue.max_physical_offset:
            return
        if wanted > queue.next_offset:
            self.short[queue] = None
            return
        self._touched[queue] = None
        entry = (offset, record.size, self._code(record))
        self._append(queue, entry, unit_time_of(queue, record))

    def _compare_one(
        self, queue: ConsumeQueue, place: Place, offset: int, record: RecordView
    ) -> None:
        """See to a record whose place has an entry."""
        wanted = place.queue_offset
        known = self._entry(queue, wanted)
        if known is None:
            first = queue.entry(queue.min_offset)
            if first is not None and not is_pre_blank(first) and offset < first[0]:
                # Its file is missing.
                queue.delete()
                self.short[queue] = None
            elif wanted == 0 and offset >= queue.max_physical_offset:
                self.short[queue] = None
        elif known[:2] == (offset, record.size):
            if offset >= self._doubtful_from:
                self._correct_code(queue, wanted, known, record)
            self._claim(queue, wanted)
        elif known[1] > 0 and not is_pre_blank(known) and known[0] < self._log.min_offset:
            # Entries ascend: those are of an earlier life, which a loss of power brought back.
            queue.delete()
            self.short[queue] = None
        elif wanted == 0 and offset >= queue.max_physical_offset:
            # The queue may have begun anew.
            self.short[queue] = None
        elif is_pre_blank(known) or not self._is_owner(known, place):
            self._set_entry(queue, wanted, (offset, record.size, self._code(record)))
            self._claim(queue, wanted)

    def _entry(self, queue: ConsumeQueue, queue_offset: int) -> Entry | None:
        """An entry that was there before the records were read."""
        window = self._windows.get(queue)
        if window is None or not window[0] <= queue_offset < window[1]:
            known = queue.entry(queue_offset)
            data = None if known is None else queue.read_entries(queue_offset, WINDOW_ENTRIES)
            if data:
                if len(self._windows) >= WINDOWS_MAX:
                    self._windows.clear()
                end = queue_offset + len(data) // ENTRY_BYTES
                self._windows[queue] = queue_offset, end, data
            return known
        begin, _end, data = window
        offset, size, code = ENTRY.unpack_from(data, (queue_offset - begin) * ENTRY_BYTES)
        return offset, size, code

    def _set_entry(self, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> None:
        self._windows.pop(queue, None)
        queue.set_entry(queue_offset, *entry)
        self.dispatched += 1

    def _correct_code(
        self, queue: ConsumeQueue, queue_offset: int, known: Entry, record: RecordView
    ) -> None:
        """Give an entry the tags code of its record. Two losses of power may leave the entry of a
        record that was lost, when the one that came into its place is of its size."""
        code = self._code(record)
        if known[2] == code:
            return
        if is_ext_address(known[2]):
            unit = None if queue.ext is None else queue.ext.get(known[2])
            # Where it is missing clients filter for themselves.
            if unit is None or unit[:2] == (code, record.store_timestamp):
                return
        self._set_entry(queue, queue_offset, (*known[:2], code))

    def _is_owner(self, entry: Entry, place: Place) -> bool:
        """Whether the record that an entry names belongs to the place."""
        record = self._log.record_at(entry[0])
        return (
            record is not None
            and record.size == entry[1]
            and place in places_of(self._how, entry[0], record)
        )

    def _claim(self, queue: ConsumeQueue, queue_offset: int) -> None:
        seen = self._seen.get(queue)
        if seen is not None and seen.begin <= queue_offset < seen.end:
            seen.claimed += 1

    def _code(self, record: RecordView) -> int:
        return record_tags_code(
            record.topic, record.properties, record.store_timestamp, self._how.delays_ms
        )

    def _write(self, queue: ConsumeQueue) -> None:
        if queue.pending:
            queue.write_entries(queue.pending)
            queue.pending.clear()

    def _write_pending(self) -> None:
        for queue in self._touched:
            self._write(queue)
        self._touched.clear()

    # -- entries that no record claimed -------------------------------------------------------
    def find_disowned(self, begin: int) -> int | None:
        """Examine the entries that no record claimed: the offset of the first record whose queue
        knows it otherwise than it says itself. Entries that belong to no record are dropped."""
        first: int | None = None
        for queue, seen in self._seen.items():
            if seen.claimed >= seen.end - seen.begin or queue in self.short:
                continue
            for queue_offset, entry in self._unclaimed(queue, seen):
                if entry[0] >= begin and self._is_known_elsewhere(entry):
                    first = entry[0] if first is None else min(first, entry[0])
                else:
                    self._drop_entry(queue, queue_offset)
        return first

    def _unclaimed(self, queue: ConsumeQueue, seen: Seen) -> list[tuple[int, Entry]]:
        """(queue offset, entry) of those that their records do not own, last first."""
        found: list[tuple[int, Entry]] = []
        for queue_offset in range(min(seen.end, queue.max_offset) - 1, seen.begin - 1, -1):
            entry = queue.entry(queue_offset)
            if entry is None:
                break
            place = Place(queue.topic, queue.queue_id, queue_offset)
            if not is_pre_blank(entry) and not self._is_owner(entry, place):
                found.append((queue_offset, entry))
        return found

    def _is_known_elsewhere(self, entry: Entry) -> bool:
        """Whether a record of the entry's size stands where the entry says, but belongs, as it
        says itself, to a place that had no entry for it."""
        record = self._log.record_at(entry[0])
        if record is None or record.size != entry[1]:
            return False
        for place in places_of(self._how, entry[0], record):
            queue = self._find(place.topic, place.queue_id)
            seen = None if queue is None else self._seen.get(queue)
            if queue is None or seen is None or place.queue_offset >= seen.end:
                continue
            known = queue.entry(place.queue_offset)
            if known is not None and known[0] == entry[0]:
                return False
        return True

    def _drop_entry(self, queue: ConsumeQueue, queue_offset: int) -> None:
        self._notes.append(f"{queue!r}: the entry {queue_offset} is of no record, dropped")
        self.cut_entries += 1
        if queue_offset + 1 == queue.max_offset:
            queue.truncate_entries(queue.end_of_messages(queue_offset))
        else:
            queue.set_entry(queue_offset, 0, PRE_BLANK_SIZE, 0)

    # -- short queues ---------------------------------------------------------------------------
    def fill_short(self, sound_from: int) -> None:
        """Fill the queues that lack entries, from the begin of the log."""
        for offset, record in self._records(self._log.min_offset, sound_from):
            for place in places_of(self._how, offset, record):
                if self._deletions.is_over(place.topic, offset):
                    continue
                queue = self._find(place.topic, place.queue_id)
                if queue is not None and queue in self.short:
                    self.short[queue] = self._fill_one(queue, place, offset, record)
        for queue in self.short:
            self._write(queue)
            self.short[queue] = self._place_last(queue)
            self._write(queue)
        self._note_filled()

    def _fill_one(
        self, queue: ConsumeQueue, place: Place, offset: int, record: RecordView
    ) -> Waiting | None:
        """Write the entry of a record of a short queue; what waits afterwards."""
        waiting = self.short[queue]
        wanted = place.queue_offset
        entry = (offset, record.size, self._code(record))
        unit_time = unit_time_of(queue, record)
        if (
            waiting is not None
            and waiting.queue_offset + 1 == wanted
            and (waiting.queue_offset == 0 or waiting.queue_offset > queue.next_offset)
        ):
            self._write(queue)
            self._go_on_at(queue, waiting.queue_offset)
            self._append(queue, waiting.entry, waiting.unit_time)
            self._append(queue, entry, unit_time)
            return None
        if wanted < queue.next_offset:
            self._write(queue)
            known = queue.entry(wanted)
            if known is not None and known[:2] == entry[:2]:
                if offset >= self._doubtful_from:
                    self._correct_code(queue, wanted, known, record)
                return waiting
            if wanted == 0 and offset >= queue.max_physical_offset:
                return Waiting(wanted, entry, unit_time)
            if known is None:
                return waiting
            if is_pre_blank(known) or not self._is_owner(known, place):
                self._set_entry(queue, wanted, entry)
                return waiting
            is_later = wanted == 0 and offset > known[0]
            return Waiting(wanted, entry, unit_time) if is_later else waiting
        if offset < queue.max_physical_offset:
            return waiting
        if wanted > queue.next_offset:
            log_min = self._log.min_offset
            if log_min == 0 or queue.pending or queue.max_physical_offset > log_min:
                return Waiting(wanted, entry, unit_time)
            # Those before it are no longer in the log.
            queue.delete()
            queue.begin_at(wanted)
        self._append(queue, entry, unit_time)
        return None

    def _place_last(self, queue: ConsumeQueue) -> Waiting | None:
        """Enter the record that waits at the end of the log, where nothing contradicts it; the one
        that is left out."""
        waiting = self.short[queue]
        if waiting is None:
            return None
        offset, number = waiting.entry[0], waiting.queue_offset
        if number == 0:
            is_placed = offset >= queue.max_physical_offset
        else:
            # The first record of the queue that counts, as on a slave that begins in the middle.
            is_placed = not queue.starts and number <= offset // RECORD_BYTES_MIN
        if not is_placed:
            return waiting
        self._go_on_at(queue, number)
        self._append(queue, waiting.entry, waiting.unit_time)
        return None

    def _go_on_at(self, queue: ConsumeQueue, queue_offset: int) -> None:
        if queue_offset == 0:
            self._notes.append(f"{queue!r}: begins again at 0")
            queue.delete()
        elif queue.starts:
            self._notes.append(
                f"{queue!r}: no records for entries before {queue_offset}, left blank"
            )
            queue.fill_gap(queue_offset)
        else:
            queue.begin_at(queue_offset)

    def _append(self, queue: ConsumeQueue, entry: Entry, unit_time: int | None) -> None:
        if queue.ext is not None and unit_time is not None:
            self._write(queue)
            queue.pending += entry
            queue.extend(unit_time, (queue.ext.full_map,))
        else:
            queue.pending += entry
        queue.next_offset += 1
        self.dispatched += 1
        if len(queue.pending) >= PENDING_NUMBERS_MAX:
            self._write(queue)

    def _note_filled(self) -> None:
        for queue, waiting in self.short.items():
            self._notes.append(f"{queue!r}: filled from the begin of the log, entries were missing")
            self.rebuilt_queues += 1
            if waiting is not None:
                self._notes.append(
                    f"{queue!r}: the record at {waiting.entry[0]} is left out, nothing follows its "
                    f"queue offset {waiting.queue_offset}"
                )
        self.short.clear()


def unit_time_of(queue: ConsumeQueue, record: RecordView) -> int | None:
    """The time in the unit of an entry. Further queues of a record have no units, as in
    RocketMQ."""
    return record.store_timestamp if queue.topic_bytes == record.topic else None
