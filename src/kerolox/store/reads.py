"""Reading from a store: getMessage, look-ups by offset, key and time.

The statuses and next offsets are those of ``DefaultMessageStore.getMessage``. Records are copied
out of the maps; records that lie side by side are copied at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from kerolox.kernel.status import GetMessageStatus
from kerolox.kernel.values import Read
from kerolox.store.layout import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, entries_unpacker, memory_bytes
from kerolox.store.queues.consume_queue import ConsumeQueue
from kerolox.store.queues.consume_queue_ext import ConsumeQueueExt
from kerolox.store.queues.ext_unit import BitFilter, is_ext_address
from kerolox.store.store_files import StoreFiles

QUERY_ROUNDS = 3
QUERY_CATCH_UP_RECORDS_MAX = 4_096
"""A query waits for the index to take in so many records, not for more."""
QUERY_BYTES_MAX = 8 << 20
"""Of records in one answer by key: it has to fit a frame, and others wait while it is made."""
SCAN_BYTES_MIN = 16_000
"""``maxFilterMessageCount`` of RocketMQ: bytes of a queue that one read examines."""

_MAY_MATCH = frozenset((0,))
"""Tags code of entries that were judged, see :func:`_judged`."""

_FOUND = int(GetMessageStatus.FOUND)
_NO_MATCHED_MESSAGE = int(GetMessageStatus.NO_MATCHED_MESSAGE)
_MESSAGE_WAS_REMOVING = int(GetMessageStatus.MESSAGE_WAS_REMOVING)
_OFFSET_FOUND_NULL = int(GetMessageStatus.OFFSET_FOUND_NULL)
_OFFSET_OVERFLOW_BADLY = int(GetMessageStatus.OFFSET_OVERFLOW_BADLY)
_OFFSET_OVERFLOW_ONE = int(GetMessageStatus.OFFSET_OVERFLOW_ONE)
_OFFSET_TOO_SMALL = int(GetMessageStatus.OFFSET_TOO_SMALL)
_NO_MESSAGE_IN_QUEUE = int(GetMessageStatus.NO_MESSAGE_IN_QUEUE)


class StoreReader:
    """Reads messages, entries and bounds from the files of a store."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._log = files.log
        self._queues = files.queues.by_key
        self._settings = files.settings
        self.found = self.miss = self.count = self.bytes = 0
        """Reads that found messages and that did not; the messages and their bytes."""
        self.time_max_ms = 0
        self.last_behind = -1
        self.last_read_ms = 0
        self.memory_bytes = (
            memory_bytes() * self._settings.access_message_in_memory_max_ratio // 100
        )
        """Of the end of the log that is taken to be in memory."""

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        bits: tuple[int, int, Sequence[int]] | None = None,
    ) -> Read:
        """See ``RecordReader.read``; who counts for groups is above."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            self.miss += 1
            self.last_behind = -1
            return Read(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, False, 0, b"")
        codes = None if tag_codes is None else frozenset(tag_codes)
        filter_bits = None if bits is None else BitFilter(*bits)
        return Read(*self.read_queue(queue, offset, max_count, codes, filter_bits))

    def read_queue(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        tag_codes: AbstractSet[int] | None,
        bits: BitFilter | None = None,
    ) -> tuple[int, int, int, int, bool, int, bytes]:
        """``read`` for a queue at hand; a plain tuple shaped as ``kernel.Read``.

        ``last_behind`` says afterwards how far behind the end of the log the last entry was that
        it examined; -1 when it examined none. ``last_read_ms`` is how long the read took.
        """
        begin_ns = time.monotonic_ns()
        result = self._read_queue(queue, offset, max_count, tag_codes, bits)
        elapsed_ms = (time.monotonic_ns() - begin_ns) // 1_000_000
        self.last_read_ms = elapsed_ms
        if elapsed_ms > self.time_max_ms:
            self.time_max_ms = elapsed_ms
        return result

    def _read_queue(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        tag_codes: AbstractSet[int] | None,
        bits: BitFilter | None = None,
    ) -> tuple[int, int, int, int, bool, int, bytes]:
        low = queue.min_offset
        high = self._files.queues.visible_end(queue)
        if low <= offset < high:
            found = self._read_entries(queue, offset, high, max_count, tag_codes, bits)
            if found is not None:
                status, scanned, suggest_slave, count, records = found
                if count:
                    self.found += 1
                    self.count += count
                    self.bytes += len(records)
                else:
                    self.miss += 1
                return status, offset + scanned, low, high, suggest_slave, count, records
            status, next_offset = _OFFSET_FOUND_NULL, queue.roll_next(offset)
        elif high == 0:
            status, next_offset = _NO_MESSAGE_IN_QUEUE, 0
        elif offset < low:
            status, next_offset = _OFFSET_TOO_SMALL, low
        elif offset == high:
            status, next_offset = _OFFSET_OVERFLOW_ONE, offset
        else:
            status, next_offset = _OFFSET_OVERFLOW_BADLY, low if queue.began_anew else high
        self.miss += 1
        self.last_behind = -1
        return status, next_offset, low, high, False, 0, b""

    def _read_entries(
        self,
        queue: ConsumeQueue,
        offset: int,
        high: int,
        max_count: int,
        tag_codes: AbstractSet[int] | None,
        bits: BitFilter | None,
    ) -> tuple[int, int, bool, int, bytes] | None:
        """(status, entries examined, suggest slave, count, records); None: the file is gone."""
        scan_entries = max(SCAN_BYTES_MIN, max_count * ENTRY_BYTES) // ENTRY_BYTES
        # Without a filter the first entries nearly always do; when they do not (their records
        # are gone), the scan begins again with all that it may examine.
        ext = None if tag_codes is None and bits is None else queue.ext
        wanted = max(max_count, 1) + 1 if tag_codes is None and ext is None else scan_entries
        data = queue.read_entries(offset, min(wanted, high - offset))
        if data is None:
            return None
        if ext is not None:
            data, tag_codes = _judged(data, ext, tag_codes, bits), _MAY_MATCH
        elif tag_codes is None:
            fast = self._take_all(data, max_count)
            if fast is not None:
                return fast
        found = self._scan(data, max_count, tag_codes)
        if found[1] * ENTRY_BYTES == len(data) == wanted * ENTRY_BYTES and wanted < scan_entries:
            more = queue.read_entries(offset, min(scan_entries, high - offset))
            if more is not None:
                found = self._scan(more, max_count, tag_codes)
        return found

    def _take_all(self, data: bytes, max_count: int) -> tuple[int, int, bool, int, bytes] | None:
        """What :meth:`_scan` gives when the first entries just fit: no filter, one file of the
        log, nothing old or gone. None: it is not so simple.

        A third of the time of the loop, for the shape that nearly all pulls have.
        """
        log = self._log
        settings = self._settings
        count = min(
            len(data) // ENTRY_BYTES,
            max(max_count, 1),
            settings.max_transfer_count_on_message_in_memory,
        )
        entries = entries_unpacker(count)(data[: count * ENTRY_BYTES])
        positions = entries[0::3]
        sizes = entries[1::3]
        start = positions[0]
        end = positions[-1] + sizes[-1]
        total = sum(sizes)
        file = log.files.get(start // log.file_size)
        if (
            file is None
            or start < log.max_offset - self.memory_bytes
            or end > log.max_offset
            or end > file.end
            or min(sizes) <= 0
            or (total > settings.max_transfer_bytes_on_message_in_memory and count > 1)
        ):
            return None
        view = file.view
        base = file.start
        at = count * ENTRY_BYTES
        # As in RocketMQ's loop, the entry that ended the batch counts as examined.
        last = int.from_bytes(data[at : at + 8], "big") if at < len(data) else positions[-1]
        self.last_behind = log.max_offset - last
        if end - start == total:
            return _FOUND, count, False, count, view[start - base : end - base]
        records = b"".join(
            [
                view[position - base : position - base + size]
                for position, size in zip(positions, sizes, strict=True)
            ]
        )
        if len(records) != total or min(positions) < start or max(positions) > positions[-1]:
            # A damaged entry names a place that it can't have.
            return None
        return _FOUND, count, False, count, records

    def _scan(
        self, data: bytes, max_count: int, tag_codes: AbstractSet[int] | None
    ) -> tuple[int, int, bool, int, bytes]:
        """The loop of getMessage over queue entries; neighbours in the log are copied at once."""
        settings = self._settings
        log = self._log
        files, file_size, log_min, log_max = (
            log.files,
            log.file_size,
            log.min_offset,
            log.max_offset,
        )
        disk_before = log_max - self.memory_bytes
        bytes_max = settings.max_transfer_bytes_on_message_in_memory
        count_max = min(max_count, settings.max_transfer_count_on_message_in_memory)
        disk_bytes_max = settings.max_transfer_bytes_on_message_in_disk
        disk_count_max = min(max_count, settings.max_transfer_count_on_message_in_disk)
        status = _NO_MATCHED_MESSAGE
        parts: list[bytes] = []
        count = total = scanned = 0
        run_start = run_end = skip_before = position = -1
        for position, size, code in ENTRY.iter_unpack(data):
            if position < skip_before:
                scanned += 1
                continue
            if count:
                if position < disk_before:
                    if count >= disk_count_max or total + size > disk_bytes_max:
                        break
                elif count >= count_max or total + size > bytes_max:
                    break
            scanned += 1
            if tag_codes is not None and code not in tag_codes and not _is_match(code, tag_codes):
                if not count:
                    status = _NO_MATCHED_MESSAGE
                continue
            if position < log_min or position + size > log_max or size <= 0:
                if not count:
                    status = _MESSAGE_WAS_REMOVING
                # A filler says nothing about a file of the log, and neither does a damaged entry.
                if position < log_max and (position or size != PRE_BLANK_SIZE):
                    skip_before = log.roll_next(position)
                continue
            if position != run_end:
                if run_end >= 0:
                    at = run_start % file_size
                    parts.append(files[run_start // file_size].view[at : at + run_end - run_start])
                run_start = position
            run_end = position + size
            total += size
            count += 1
            skip_before = -1
        if count:
            at = run_start % file_size
            parts.append(files[run_start // file_size].view[at : at + run_end - run_start])
            status = _FOUND
        suggest_slave = position < disk_before
        self.last_behind = log_max - position
        return status, scanned, suggest_slave, count, b"".join(parts)

    def lookup(self, physical_offset: int) -> bytes | None:
        """See ``StoreKernel.lookup``."""
        return self._log.lookup(physical_offset)

    def query_key(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[int, int, bytes]:
        """See ``StoreKernel.query_key``; not more than ``max_msgs_num_batch`` records, and the
        newest of more than ``QUERY_BYTES_MAX``."""
        if not self._settings.message_index_enable or not self._files.is_open:
            return 0, 0, b""
        self._files.index.follow(self._log, QUERY_CATCH_UP_RECORDS_MAX)
        most = min(max_count, self._settings.max_msgs_num_batch)
        last_ms = end_ms
        timestamp = physical_offset = 0
        records: list[bytes] = []
        for _round in range(QUERY_ROUNDS):
            offsets, newest_ms, newest_offset = self._files.index.query(
                topic, key, most, begin_ms, last_ms
            )
            if not offsets:
                break
            offsets.sort()
            timestamp, physical_offset = newest_ms, newest_offset
            first_ms = self._log.store_time(offsets[0])
            last_ms = first_ms if first_ms >= 0 else last_ms
            records = self._newest_records(offsets)
            if records or last_ms < begin_ms:
                break
        return timestamp, physical_offset, b"".join(records)

    def _newest_records(self, offsets: list[int]) -> list[bytes]:
        """Those that fit an answer; the last one always does."""
        records: list[bytes] = []
        size = 0
        for offset in reversed(offsets):
            record = self._log.lookup(offset) or b""
            if size and size + len(record) > QUERY_BYTES_MAX:
                break
            size += len(record)
            records.append(record)
        return [record for record in reversed(records) if record]

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """See ``StoreKernel.queue_entry``."""
        queue = self._queues.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        if entry is None or queue is None or entry[0] >= self._log.max_offset:
            return None
        if queue.ext is None or not is_ext_address(entry[2]):
            return entry
        unit = queue.ext.get(entry[2])
        return entry if unit is None else (entry[0], entry[1], unit.tags_code)

    def queue_unit(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, bytes] | None:
        """See ``StoreKernel.queue_unit``."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset >= self._files.queues.readable_end(queue):
            return None
        unit = queue.unit_of(offset)
        return None if unit is None else (unit.tags_code, unit.store_time, unit.bit_map)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """See ``StoreKernel.store_time``."""
        entry = self.queue_entry(topic, queue_id, offset)
        return -1 if entry is None else self._log.store_time(entry[0])

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """See ``StoreKernel.offset_by_time``.

        As RocketMQ searches: in the first file whose last message is not older (else the last
        file), by halves, an exact match at once, else the nearer of the two neighbours, the
        earlier one when both are as near.
        """
        queue = self._queues.get((topic, queue_id))
        max_offset = 0 if queue is None else self._files.queues.visible_end(queue)
        if queue is None or queue.min_offset >= max_offset:
            return 0
        per_file = queue.file_size // ENTRY_BYTES
        start = queue.starts[-1] // ENTRY_BYTES
        for file_start in queue.starts:
            last = min((file_start + queue.file_size) // ENTRY_BYTES, max_offset) - 1
            if last >= queue.min_offset and self.store_time(topic, queue_id, last) >= timestamp_ms:
                start = file_start // ENTRY_BYTES
                break
        low = max(queue.min_offset, start)
        high = min(start + per_file, max_offset) - 1
        left = right = -1
        left_ms = right_ms = -1
        while low <= high:
            # Halves of positions within the file, as RocketMQ computes them: of several messages
            # with the same time, the one that it would find.
            middle = start + (low - start + high - start) // 2
            entry = queue.entry(middle)
            if entry is None or entry[0] < self._log.min_offset:
                low, left = middle + 1, middle
                continue
            store_ms = self._log.store_time(entry[0])
            if store_ms < 0:
                return 0
            if store_ms == timestamp_ms:
                return middle
            if store_ms > timestamp_ms:
                high, right, right_ms = middle - 1, middle, store_ms
            else:
                low, left, left_ms = middle + 1, middle, store_ms
        if left_ms < 0:
            return right if right >= 0 else max(left, 0)
        if right_ms < 0:
            return left
        return right if timestamp_ms - left_ms > right_ms - timestamp_ms else left


def _judged(
    data: bytes,
    ext: ConsumeQueueExt,
    tag_codes: AbstractSet[int] | None,
    bits: BitFilter | None,
) -> bytes:
    """Queue entries with 0 in place of the tags code where a message may be wanted, else 1.

    Where a unit is missing it may: clients filter for themselves.
    """
    judged = bytearray()
    for position, size, code in ENTRY.iter_unpack(data):
        unit = ext.get(code) if is_ext_address(code) else None
        if unit is not None:
            code = unit.tags_code
        has_tag = tag_codes is None or code in tag_codes or _is_match(code, tag_codes)
        is_ruled_out = unit is not None and bits is not None and bits.rules_out(unit)
        judged += ENTRY.pack(position, size, 0 if has_tag and not is_ruled_out else 1)
    return bytes(judged)


def _is_match(code: int, tag_codes: AbstractSet[int]) -> bool:
    """The rare shapes of a tags code: a deliver time counts by its low 32 bits, as RocketMQ
    compares; an address of a unit (below all ints) could not be looked up, the client filters.
    """
    if -0x80000000 <= code <= 0x7FFFFFFF:
        return False
    return code < 0 or ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000 in tag_codes
