"""Pulls of groups that filter by expressions: reading, and waiting for what matches.

The kernel reads without a filter; here the properties of each record are examined. Such a pull
waits here too: the kernel tells when its queue has a record at its offset. Then the new records are
examined, and the wait goes on after them if none matches.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kerolox.broker.config import BrokerConfig
from kerolox.kernel.held_pulls import OFFSET_WAITS_MAX, OffsetWaits
from kerolox.kernel.read import RecordReader
from kerolox.kernel.status import GetMessageStatus
from kerolox.kernel.values import Read
from kerolox.protocol.records import decode_record
from kerolox.store.layout import memory_bytes

READ_COUNT = 32
"""Records of one read of the kernel."""

SCAN_COUNT_MIN = 800
"""Queue entries that one pull examines, at least (16,000 bytes of a queue)."""

SCAN_CPU_SECONDS_MAX = 0.02
"""How long one pull may work on records, after which the group asks again for what comes after."""

SCAN_SECONDS_MAX = 0.1
"""The same with all waits: for the disk, and for a processor, which on a busy machine is no sign of
a long scan."""

WATCHES_MAX = OFFSET_WAITS_MAX // 2
"""Queues that are watched for pops: the other waits are for pulls that filter."""

Matches = Callable[[Mapping[str, str]], bool]
"""Whether a message with these properties is wanted."""


class PullFilter(NamedTuple):
    """What a pull wants beside a tag."""

    matches: Matches
    bits: tuple[int, int, Sequence[int]] | None = None
    """What rules messages out by their bit maps, before they are read.
    See ``RecordReader.read``."""


class PullPlace(NamedTuple):
    """Where a pull reads."""

    topic: str
    queue_id: int
    offset: int
    count_max: int


def read(config: BrokerConfig, store: RecordReader, place: PullPlace, wanted: PullFilter) -> Read:
    """getMessage of RocketMQ, with a filter by properties."""
    topic, queue_id, offset, count = place
    batch_max = _BatchMax(config, store.max_physical_offset, count)
    found: list[bytes] = []
    size = 0
    scan_end = offset + max(SCAN_COUNT_MIN, count)
    matches, bits = wanted
    cpu_end = time.thread_time() + SCAN_CPU_SECONDS_MAX
    deadline = time.monotonic() + SCAN_SECONDS_MAX
    result = store.read(topic, queue_id, offset, READ_COUNT, None, bits=bits)
    if result.status != GetMessageStatus.FOUND:
        return result
    while result.status == GetMessageStatus.FOUND:
        at = 0
        for number in range(result.count):
            message, end = decode_record(result.records, at, inflate=False)
            record, length, at = result.records[at:end], end - at, end
            if matches(message.properties):
                if found and batch_max.is_full(len(found), size, message.commit_log_offset, length):
                    offset = _after(store, place, wanted, offset, number)
                    return _read_of(result, found, offset)
                found.append(record)
                size += length
            if time.thread_time() >= cpu_end or time.monotonic() >= deadline:
                offset = _after(store, place, wanted, offset, number + 1)
                return _read_of(result, found, offset)
        offset = result.next_offset
        if offset >= min(scan_end, result.max_offset):
            break
        result = store.read(topic, queue_id, offset, READ_COUNT, None, bits=bits)
        if result.status == GetMessageStatus.NO_MATCHED_MESSAGE:
            offset = result.next_offset
    return _read_of(result, found, offset)


def _after(
    store: RecordReader, place: PullPlace, wanted: PullFilter, offset: int, count: int
) -> int:
    """The offset after the first ``count`` records of a read at an offset.

    The records can't tell: those of a light message queue have their offsets in another queue.
    """
    if count == 0:
        return offset
    topic, queue_id, _, _ = place
    return store.read(topic, queue_id, offset, count, None, bits=wanted.bits).next_offset


class _BatchMax:
    """How much one answer may have (``isTheBatchFull``)."""

    def __init__(self, config: BrokerConfig, log_end: int, count: int) -> None:
        self._count = count
        in_memory, on_disk = config.transfer_bytes_max
        self._in_memory = (config.max_transfer_count_on_message_in_memory, in_memory)
        self._on_disk = (config.max_transfer_count_on_message_in_disk, on_disk)
        # What lies further back is taken to be on disk only.
        memory = memory_bytes() * config.access_message_in_memory_max_ratio // 100
        self._memory_from = log_end - memory

    def is_full(self, count: int, size: int, physical_offset: int, length: int) -> bool:
        """Whether a record is too much for an answer that has ``count`` of ``size`` bytes."""
        limits = self._in_memory if physical_offset >= self._memory_from else self._on_disk
        return count >= min(self._count, limits[0]) or size + length > limits[1]


def _read_of(last: Read, found: list[bytes], next_offset: int) -> Read:
    status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
    return last._replace(
        status=int(status), next_offset=next_offset, count=len(found), records=b"".join(found)
    )


class Arrivals:
    """Waits until a queue has a message at an offset."""

    def __init__(self, store: OffsetWaits) -> None:
        self._store = store
        self.may_hold = True
        """False once the broker stops: what is held, and what comes, is answered."""
        self._ids = itertools.count()
        self._waits: dict[int, asyncio.Future[None]] = {}
        self._watches: dict[int, Callable[[], None]] = {}
        self._of_connection: dict[int, set[int]] = {}

    @property
    def count(self) -> int:
        """Those that wait."""
        return len(self._waits) + len(self._watches)

    @property
    def is_full(self) -> bool:
        """No more can wait."""
        return self.count >= OFFSET_WAITS_MAX

    def wake_arrived(self) -> None:
        """Wake those whose waits are over. To be called when the store has ready answers."""
        self._end(self._store.drain_arrived())

    def connection_closed(self, connection_id: int) -> None:
        """End the waits of a connection: their time may be far, and others want their space."""
        self._end(self._of_connection.get(connection_id, ()))

    def _end(self, wait_ids: Iterable[int]) -> None:
        for wait_id in wait_ids:
            future = self._waits.get(wait_id)
            if future is not None and not future.done():
                future.set_result(None)
            elif (on_over := self._watches.pop(wait_id, None)) is not None:
                on_over()

    def watch(
        self, topic: str, queue_id: int, offset: int, deadline_ms: int, on_over: Callable[[], None]
    ) -> int | None:
        """Have a function be called once a queue has a record at an offset, at the deadline, or
        when held pulls of the topic would be answered. Its number; None: it can't wait."""
        if len(self._watches) >= WATCHES_MAX:
            return None
        wait_id = next(self._ids)
        if not self._store.wait_for_offset(wait_id, "", topic, queue_id, offset, deadline_ms):
            return None
        self._watches[wait_id] = on_over
        return wait_id

    def unwatch(self, wait_id: int) -> None:
        """Call that function no more."""
        if self._watches.pop(wait_id, None) is not None:
            self._store.cancel_wait(wait_id)

    async def wait(
        self, connection_id: int, group: str, place: PullPlace, deadline_ms: int
    ) -> bool:
        """Wait for a record at an offset, the deadline, or the end of the connection. False: it
        can't wait."""
        wait_id = next(self._ids)
        topic, queue_id, offset, _ = place
        is_waiting = self._store.wait_for_offset(
            wait_id, group, topic, queue_id, offset, deadline_ms
        )
        if not is_waiting:
            return False
        self._waits[wait_id] = asyncio.get_running_loop().create_future()
        own = self._of_connection.setdefault(connection_id, set())
        own.add(wait_id)
        try:
            await self._waits[wait_id]
        finally:
            del self._waits[wait_id]
            own.remove(wait_id)
            if not own and self._of_connection.get(connection_id) is own:
                del self._of_connection[connection_id]
            self._store.cancel_wait(wait_id)
        return True
