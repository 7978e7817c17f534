"""Queues against the log: each record has its entry, and each entry its record.

The log is walked once. For each queue the entries that its records should have are gathered and
compared with the queue's files in runs. A healthy store costs one comparison of bytes per run.
What differs is examined entry by entry.

A topic that was deleted and made again leaves records whose offsets were given again. A
record that goes back to a lower offset, and whose entry there names it, starts the queue anew.
What the older records lack is then no finding.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from kerolox.inspect.log_walk import read_record
from kerolox.inspect.places import is_deleted_topic
from kerolox.inspect.queue_files import ExtensionFiles, QueueFiles
from kerolox.message import NAME_END, PropertyKey, property_value
from kerolox.protocol.codes import TRANSACTION_MASK
from kerolox.protocol.names import SCHEDULE_TOPIC
from kerolox.protocol.records import parse_record
from kerolox.store.appends import UNQUEUED
from kerolox.store.layout import (
    ENTRY,
    ENTRY_BYTES,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    entries_packer,
    record_tags_code,
)
from kerolox.store.queues.ext_unit import is_ext_address
from kerolox.store.queues.multi_dispatch import is_multi_dispatch, multi_dispatch_targets

if TYPE_CHECKING:
    from kerolox.inspect.findings import Findings
    from kerolox.inspect.places import StorePlaces
    from kerolox.protocol.records import RecordView

RUN_ENTRIES = 512
"""Entries compared at once."""
PENDING_ENTRIES_MAX = 200_000
"""Entries gathered over all queues before all are compared."""
PROBLEMS_PER_QUEUE_MAX = 50
TAG_CODES_MAX = 10_000
CATCH_UP_SECONDS_MAX = 3.0
"""How long a check beside a broker waits for entries that are being written."""
CATCH_UP_STEP_SECONDS = 0.02
UNPLACED_MAX = 10_000
CATCH_UP_ENTRIES_MAX = 100_000

_SCHEDULE = SCHEDULE_TOPIC.encode()
_TAGS = f"{PropertyKey.TAGS}{NAME_END}".encode()


class TagCodes:
    """What the queue entry of a record holds as tags code; remembers the hashes of tags."""

    def __init__(self, delays_ms: tuple[int, ...]) -> None:
        self._delays_ms = delays_ms
        self._codes: dict[bytes, int] = {}

    def of(self, topic: bytes, properties: bytes, store_timestamp: int) -> int:
        """The tags code, or for delayed records when to deliver them."""
        if topic == _SCHEDULE:
            return record_tags_code(topic, properties, store_timestamp, self._delays_ms)
        if _TAGS not in properties:
            return 0
        tags = property_value(properties, PropertyKey.TAGS)
        if not tags:
            return 0
        code = self._codes.get(tags)
        if code is None:
            if len(self._codes) >= TAG_CODES_MAX:
                self._codes.clear()
            code = record_tags_code(topic, properties, store_timestamp, self._delays_ms)
            self._codes[tags] = code
        return code


def further_entries(
    topic: bytes, queue_id: int, properties: bytes, *, lmq: bool
) -> list[tuple[bytes, int, int]]:
    """(topic, queue id, offset) of the further queues that a record is in (multi dispatch)."""
    found: dict[tuple[bytes, int], int] = {}
    for name, number, offset in multi_dispatch_targets(properties, queue_id, lmq=lmq):
        found.setdefault((name.encode(), number), offset)
    found.pop((topic, queue_id), None)
    return [(name, number, offset) for (name, number), offset in found.items()]


class _Queue:
    """What is known of one queue during the walk."""

    __slots__ = (
        "count",
        "extension",
        "files",
        "first",
        "missing",
        "next",
        "pending",
        "pending_start",
        "problem_count",
        "problems",
        "queue_id",
        "records",
        "topic",
    )

    def __init__(self, topic: bytes, queue_id: int, folder: str, extension: str) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = QueueFiles(folder)
        self.extension = ExtensionFiles(extension)
        self.first = self.next = -1
        """Offsets of the first record and after the last one; -1 before any."""
        self.pending: list[int] = []
        self.pending_start = 0
        self.problems: list[tuple[str, int, str]] = []
        """(file, byte, sentence), up to ``PROBLEMS_PER_QUEUE_MAX``."""
        self.problem_count = 0
        self.missing: list[list[int]] = []
        """[start, end, physical offset of the first] of entries that are all zeros."""
        self.records = 0

    def __str__(self) -> str:
        return f"{self.topic.decode('utf-8', 'replace')}, queue {self.queue_id}"

    def problem(self, offset: int, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_PER_QUEUE_MAX:
            self.problems.append((*self.files.place_of(offset), text))

    def miss(self, offset: int, physical_offset: int) -> None:
        if self.missing and self.missing[-1][1] == offset:
            self.missing[-1][1] = offset + 1
        elif len(self.missing) < PROBLEMS_PER_QUEUE_MAX:
            self.missing.append([offset, offset + 1, physical_offset])
        else:
            self.problem_count += 1


class QueueCheck:
    """Feed it every record with :meth:`record`, then call :meth:`finish`."""

    def __init__(self, places: StorePlaces, findings: Findings) -> None:
        self._places = places
        self._findings = findings
        self._codes = TagCodes(places.options.delays_ms)
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._has_further = places.options.multi_dispatch is not False
        self._over = places.deleted_topics()
        self._left_over: dict[bytes, int] = {}
        """Records by topic of which the store noted that the topic was deleted after them."""
        self._pending = 0
        self._unplaced: set[int] = set()
        """Physical offsets of records that are not where they say, up to ``UNPLACED_MAX``."""
        self._log_end = 0
        self.entries = 0
        """Entries compared."""

    def record(self, record: RecordView) -> None:
        """Take the next record of the log."""
        if record.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return
        topic, offset = record.topic, record.physical_offset
        code = self._codes.of(topic, record.properties, record.store_timestamp)
        if topic in self._over and offset < self._over[topic]:
            self._left_over[topic] = self._left_over.get(topic, 0) + 1
        else:
            self._expect(topic, record.queue_id, record.queue_offset, offset, record.size, code)
        if self._has_further and is_multi_dispatch(record.properties):
            self._expect_further(record, code)

    def _expect_further(self, record: RecordView, code: int) -> None:
        offset, options = record.physical_offset, self._places.options
        further = further_entries(
            record.topic, record.queue_id, record.properties, lmq=options.lmq is not False
        )
        for name, number, at in further:
            if offset < self._over.get(name, 0):
                continue
            # A client may have written the properties where no broker examines them.
            is_sure = options.multi_dispatch or (name, number) in self._queues
            if is_sure or os.path.isdir(self._places.queue_path(name, number)):
                self._expect(name, number, at, offset, record.size, code)

    def _expect(
        self, topic: bytes, queue_id: int, queue_offset: int, offset: int, size: int, code: int
    ) -> None:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._add(topic, queue_id)
        if queue_offset != queue.next and queue.next >= 0:
            placed = self._place(queue, queue_offset, offset, size)
            if placed < 0:
                return
            queue_offset = placed
        if queue.next < 0:
            queue.first = queue_offset
        if not queue.pending:
            queue.pending_start = queue_offset
        queue.pending += (offset, size, code)
        queue.next = queue_offset + 1
        queue.records += 1
        self._pending += 1
        if len(queue.pending) >= 3 * RUN_ENTRIES:
            self._compare(queue)
        elif self._pending >= PENDING_ENTRIES_MAX:
            for each in self._queues.values():
                self._compare(each)

    def _add(self, topic: bytes, queue_id: int) -> _Queue:
        extension = os.path.join(self._places.extension_root, os.fsdecode(topic), str(queue_id))
        queue = _Queue(topic, queue_id, self._places.queue_path(topic, queue_id), extension)
        self._queues[topic, queue_id] = queue
        return queue

    def _place(self, queue: _Queue, queue_offset: int, offset: int, size: int) -> int:
        """Where a record belongs that does not follow the one before it; -1: nowhere."""
        self._compare(queue)
        expected = queue.files.entry(queue.next)
        if expected[:2] == (offset, size):
            text = f"the record at {offset} says queue offset {queue_offset}, its entry is "
            queue.problem(queue.next, f"{text}{queue.next} ({queue})")
            return queue.next
        if queue_offset < queue.next:
            is_there = queue.files.entry(queue_offset)[:2] == (offset, size)
            is_in_doubt = self._is_in_doubt(queue)
            if queue.files.files and not (is_there and is_in_doubt):
                if not is_there and not is_in_doubt:
                    self._misplace(offset)
                    queue.problem(
                        queue_offset,
                        f"the record at {offset} says that it is number {queue_offset} of {queue}, "
                        f"where the log is at {queue.next} already",
                    )
                return -1
            self._findings.note(
                f"{queue}: {queue.records} records before {offset} are of a topic that was deleted "
                "and made again"
            )
            queue.first = queue_offset
            queue.records = queue.problem_count = 0
            queue.problems.clear()
            queue.missing.clear()
            return queue_offset
        self._gap(queue, queue_offset, offset)
        return queue_offset

    def _is_in_doubt(self, queue: _Queue) -> bool:
        """Every record of the queue so far lacks its entry: it may be one of a deleted topic."""
        lacking = sum(end - start for start, end, _ in queue.missing) + queue.problem_count
        return lacking >= queue.records > 0

    def _gap(self, queue: _Queue, until: int, offset: int) -> None:
        """The log has no records for the entries from ``queue.next`` on."""
        start = queue.next
        data = queue.files.read(start, min(until - start, RUN_ENTRIES))
        is_said = False
        for number, (physical, size, code) in enumerate(ENTRY.iter_unpack(data)):
            if self._is_explained(physical):
                is_said = True
            elif size not in (0, PRE_BLANK_SIZE) or physical or code:
                is_said = True
                queue.problem(start + number, _no_record(queue, start + number, physical, size))
        if not is_said and not self._findings.damages:
            text = f"{queue} has no records from {start} to {until - 1}; the next is at {offset}"
            queue.problem(start, text)

    def _misplace(self, offset: int) -> None:
        if len(self._unplaced) < UNPLACED_MAX:
            self._unplaced.add(offset)

    def _is_explained(self, physical: int) -> bool:
        return self._findings.is_damaged(physical) or physical in self._unplaced

    # -- comparing --------------------------------------------------------------------------
    def _compare(self, queue: _Queue) -> None:
        pending = queue.pending
        if not pending:
            return
        count = len(pending) // 3
        start = queue.pending_start
        wanted = entries_packer(count)(*pending)
        self.entries += count
        self._pending -= count
        found = queue.files.read(start, count)
        if found != wanted and self._places.is_in_use:
            queue.files.reload()
            found = queue.files.read(start, count)
        if found != wanted:
            for number in range(count):
                at = number * ENTRY_BYTES
                if wanted[at : at + ENTRY_BYTES] != found[at : at + ENTRY_BYTES]:
                    entry = ENTRY.unpack_from(found, at)
                    self._differs(queue, start + number, pending[3 * number :][:3], entry)
        queue.pending = []

    def _differs(
        self, queue: _Queue, offset: int, wanted: list[int], found: tuple[int, int, int]
    ) -> None:
        physical, size, code = found
        if not physical and not size and not code:
            queue.miss(offset, wanted[0])
            return
        which = f"entry {offset} of {queue}"
        if (physical, size) == (wanted[0], wanted[1]):
            if is_ext_address(code):
                self._check_extension(queue, which, wanted, code)
                return
            what = "deliver time" if queue.topic == _SCHEDULE else "tags code"
            text = f"{which} has the {what} {code}, the record at {physical} makes it {wanted[2]}"
            if queue.topic == _SCHEDULE:
                text += " (if messageDelayLevel is not the default, give -c broker.conf)"
            queue.problem(offset, text)
        elif physical == wanted[0]:
            queue.problem(offset, f"{which} has the size {size}, the record is of {wanted[1]}")
        else:
            self._misplace(wanted[0])
            text = f"{which} names the record at {physical}, it is the one at {wanted[0]}"
            queue.problem(offset, text)

    def _check_extension(self, queue: _Queue, which: str, wanted: list[int], address: int) -> None:
        unit = queue.extension.unit(address)
        if unit is None:
            text = f"{which} names the extension at {address + (1 << 63)}, where none stands"
        elif unit.tags_code != wanted[2]:
            text = f"the extension of {which} has the tags code {unit.tags_code}, the record at "
            text += f"{wanted[0]} makes it {wanted[2]}"
        else:
            return
        self._findings.add("extension", queue.extension.folder, -1, text)

    # -- the end ----------------------------------------------------------------------------
    def finish(self, log_start: int, log_end: int) -> None:
        """Compare what is left, then look for entries without a record."""
        self._log_end = log_end
        for queue in self._queues.values():
            self._compare(queue)
        for folder in self._places.queue_folders():
            if (folder.topic, folder.queue_id) not in self._queues:
                self._add(folder.topic, folder.queue_id)
        known = self._places.known_topics()
        before = self._over
        if self._places.is_in_use:
            self._over = self._places.deleted_topics()
        for topic, count in self._left_over.items():
            name = topic.decode("utf-8", "replace")
            self._findings.note(f"{name}: the log holds {count} records of before it was deleted")
        for queue in self._queues.values():
            if self._is_of_deleted_topic(queue, known):
                continue
            if self._over.get(queue.topic) != before.get(queue.topic):
                self._findings.note(f"{queue} was deleted meanwhile")
                continue
            self._check_files(queue)
            self._check_before(queue, log_start)
            self._check_after(queue)
            self._report_missing(queue)
            for path, position, text in queue.problems:
                self._findings.add("queue", path, position, text)
            more = queue.problem_count - len(queue.problems)
            if more > 0:
                text = f"{more} more entries of {queue} are wrong"
                self._findings.add("queue", queue.files.folder, -1, text)

    def _is_of_deleted_topic(self, queue: _Queue, known: frozenset[bytes] | None) -> bool:
        if queue.files.files or not is_deleted_topic(queue.topic, known):
            return False
        self._findings.note(f"{queue}: the log holds {queue.records} records of a deleted topic")
        return True

    def _check_files(self, queue: _Queue) -> None:
        files = queue.files.files
        for before, file in itertools.pairwise(files):
            if before.end != file.start:
                text = f"{queue}: files are missing between entry {before.end // ENTRY_BYTES} and "
                text += str(file.start // ENTRY_BYTES)
                self._findings.add("queue", before.path, -1, text)
                lost = range(before.end // ENTRY_BYTES, file.start // ENTRY_BYTES)
                queue.missing = [m for m in queue.missing if m[0] not in lost]
        for file in files:
            if file.size % ENTRY_BYTES:
                text = f"{file.size} bytes are no whole number of entries"
                self._findings.add("queue", file.path, -1, text)

    def _check_before(self, queue: _Queue, log_start: int) -> None:
        """Entries before the first record: of records that the log does not have any more."""
        stop = queue.first if queue.first >= 0 else queue.files.end()
        at = queue.files.first
        while at < stop:
            count = min(stop - at, RUN_ENTRIES)
            data = queue.files.read(at, count)
            for number, (physical, size, _code) in enumerate(ENTRY.iter_unpack(data)):
                is_old = physical < log_start or (physical, size) == (0, PRE_BLANK_SIZE)
                if is_old or self._is_explained(physical):
                    continue
                if queue.first < 0 and self._is_newer(physical):
                    continue
                queue.problem(at + number, _no_record(queue, at + number, physical, size))
            at += count

    def _check_after(self, queue: _Queue) -> None:
        """Entries after the last record of the log."""
        if queue.next < 0:
            return
        at = queue.files.next_data(queue.next)
        end = queue.files.end() if at >= 0 else 0
        while 0 <= at < end:
            data = queue.files.read(at, min(end - at, RUN_ENTRIES))
            for number, (physical, size, code) in enumerate(ENTRY.iter_unpack(data)):
                if not physical and not size and not code:
                    continue
                if self._is_newer(physical) or self._is_explained(physical):
                    continue
                text = _no_record(queue, at + number, physical, size)
                if physical >= self._log_end:
                    text += f"; the log ends at {self._log_end}"
                queue.problem(at + number, text)
            at += len(data) // ENTRY_BYTES

    def _is_newer(self, physical: int) -> bool:
        """An entry of a record that came while we were reading."""
        return self._places.is_in_use and physical >= self._log_end

    def _report_missing(self, queue: _Queue) -> None:
        for start, end, physical in queue.missing:
            if self._places.is_in_use and self._come_soon(queue, start, end):
                continue
            count = end - start
            if not queue.files.files:
                text = f"{queue} has no files; the log holds {queue.records} records of it, the "
                text += f"first at {physical}"
            elif count == 1:
                text = f"entry {start} of {queue} is empty, the record at {physical} belongs there"
            else:
                text = (
                    f"{count} entries of {queue} are empty, from {start} on, where the record at "
                )
                text += f"{physical} belongs"
            path, position = queue.files.place_of(start)
            is_at_end = end == queue.next and queue.files.next_data(end) < 0
            if is_at_end and not self._places.is_closed_cleanly:
                self._findings.note(f"{path}: {text}; the next start writes them")
            else:
                self._findings.add("queue", path, position, text)

    def _come_soon(self, queue: _Queue, start: int, end: int) -> bool:
        """Beside a broker: the entries come within a moment, or were deleted with their files."""
        if end - start > CATCH_UP_ENTRIES_MAX:
            return False
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while True:
            queue.files.reload()
            if queue.files.files and end <= queue.files.first:
                return True
            data = queue.files.read(start, end - start)
            good = all(
                self._names_record(queue, start + number, entry[0], entry[1])
                for number, entry in enumerate(ENTRY.iter_unpack(data))
            )
            if good or time.monotonic() > deadline:
                return good
            time.sleep(CATCH_UP_STEP_SECONDS)

    def _names_record(self, queue: _Queue, offset: int, physical: int, size: int) -> bool:
        """The log has the record that an entry names, and it is of this queue and offset."""
        data = read_record(self._places.log_files, physical)
        record = None if data is None else parse_record(data, 0, len(data), physical)
        if record is None or record.size != size:
            return False
        own = (record.topic, record.queue_id, record.queue_offset)
        return own == (queue.topic, queue.queue_id, offset)


def _no_record(queue: _Queue, offset: int, physical: int, size: int) -> str:
    which = f"entry {offset} of {queue}"
    if ENTRY.pack(physical, size, 0) == PRE_BLANK:
        return f"{which} is blank, between entries that are not"
    return f"{which} names a record of {size} bytes at {physical}, which the log does not have"
