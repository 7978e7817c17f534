"""Reads what a Java 5 broker left out in a store, once, before pops begin here.

Its records lie in two places: in the queues of its revive log, and in the timer's topic until they
are due. The group of its revive service says how far the first are done, the timer's check point
how far the second. Once read, that group's offsets are behind all: so a restart reads nothing
again, and a Java broker that gets the store back does not revive them a second time from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kerolox.broker.base import Base
from kerolox.broker.pop.java_log import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    JavaReviveLog,
)
from kerolox.broker.tables.tables import Tables
from kerolox.kernel.status import GetMessageStatus
from kerolox.message import PropertyKey, java_hash, property_value
from kerolox.protocol.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from kerolox.protocol.records import parse_record, record_fault
from kerolox.remoting.time_slices import TimeSlices

READ_COUNT = 256
"""Records that one read may give."""

LOGGED_MAX = 8
"""Records that can't be read and are named in the log; the others are counted."""

LOG_FROM = 1_000_000
"""From so many records on the log says that they are read: a start waits for it."""

CLOCK_MS = 60_000
"""How far a clock may have been set back between a pop and its acknowledgement."""

_log = logging.getLogger(__name__)


class JavaPopReader:
    """One reading of all."""

    def __init__(self, base: Base, tables: Tables, queues: Sequence[tuple[str, int]]) -> None:
        self._base = base
        self._tables = tables
        self._queues = [*queues, (TIMER_TOPIC, 0)]
        self._slices = TimeSlices()
        self._passes = ((CHECKPOINT_TAG,), (ACK_TAG, BATCH_ACK_TAG))
        self._log = JavaReviveLog()
        self._damaged = 0
        self._delivered_ms = _timer_read_ms(base)

    async def run(self) -> None:
        """Read all, and take it over."""
        tables = self._tables
        ends = {place: self._base.store.queue_bounds(*place)[1] for place in self._queues}
        done = {place: tables.offsets.query(REVIVE_GROUP, *place) for place in self._queues}
        last = {place: end - 1 for place, end in ends.items()}
        if done == last:
            tables.pops.take_over(self._log, last)
            return
        if (number := sum(last[place] - done[place] for place in last)) >= LOG_FROM:
            _log.warning("%d records of a RocketMQ broker are read before pops begin", number)
        for tags in self._passes:
            for place, end in ends.items():
                begin = max(done[place] + 1, self._first(place, tags))
                await self._read(place, begin, end, tags)
        taken = tables.pops.take_over(self._log, last)
        unread = self._log.unread + self._damaged
        _log.warning(
            "taken over from a RocketMQ broker: %d messages that it has out are out here, %d "
            "more come again since too many are out, %d are gone with their topic, group or "
            "retention; %d records of its revive log can't be read",
            *(taken.out, taken.again, taken.gone, unread),
        )

    def _first(self, place: tuple[str, int], tags: Sequence[str]) -> int:
        """Where a pass may begin to read: acknowledgements came after the pops that they are of."""
        if place[0] != TIMER_TOPIC or tags == self._passes[0]:
            return 0
        since = self._log.first_pop_time
        if since is None:
            return self._base.store.queue_bounds(*place)[1]
        return max(0, self._base.store.offset_by_time(*place, max(0, since - CLOCK_MS)) - 1)

    async def _read(
        self, place: tuple[str, int], begin: int, end: int, tags: Sequence[str]
    ) -> None:
        store, codes = self._base.store, tuple(map(java_hash, tags))
        topic, queue_id = place
        is_wanted = self._is_waiting if topic == TIMER_TOPIC else None
        offset = max(begin, store.queue_bounds(topic, queue_id)[0])
        while offset < end:
            read = store.read(topic, queue_id, offset, READ_COUNT, codes)
            if read.status == GetMessageStatus.FOUND:
                self._take(place, read.records, end, is_wanted)
            if read.next_offset <= offset:
                # A place of the log that can't be read.
                self._note(place, offset, "its record is not in the log")
                offset += 1
            else:
                offset = read.next_offset
            await self._slices.checkpoint()

    def _take(
        self,
        place: tuple[str, int],
        records: bytes,
        end: int,
        is_wanted: Callable[[bytes], bool] | None,
    ) -> None:
        at = 0
        while at < len(records):
            record = parse_record(records, at, len(records))
            if record is None:
                self._note(place, -1, record_fault(records, at))
                return
            at += record.size
            if record.queue_offset >= end or (is_wanted and not is_wanted(record.properties)):
                continue
            tag = property_value(record.properties, PropertyKey.TAGS) or b""
            body = records[record.body_start : record.body_end]
            if not self._log.read(tag.decode(errors="replace"), body):
                self._note(place, record.queue_offset, "its body is no checkpoint, and no ack")
                self._damaged -= 1

    def _is_waiting(self, properties: bytes) -> bool:
        """Whether a record of the timer's topic is of the log: an acknowledgement, or a checkpoint
        that was not delivered to it."""
        topic = property_value(properties, PropertyKey.REAL_TOPIC) or b""
        if not topic.startswith(REVIVE_TOPIC_PREFIX.encode()):
            return False
        if property_value(properties, PropertyKey.TAGS) != self._passes[0][0].encode():
            return True
        moment = property_value(properties, PropertyKey.TIMER_OUT) or b""
        is_number = moment.isdigit() and len(moment) < 20
        return not is_number or int(moment) >= self._delivered_ms

    def _note(self, place: tuple[str, int], offset: int, why: str) -> None:
        self._damaged += 1
        if self._damaged + self._log.unread <= LOGGED_MAX:
            _log.error(
                "record %d of queue %d of %s: %s; what it says of pops is not taken over",
                *(offset, place[1], place[0], why),
            )


def _timer_read_ms(base: Base) -> int:
    """Before which moment all of the timer's topic is delivered; 0: not known, and nothing is: it
    comes twice rather than never."""
    from kerolox.store.timer.checkpoint import decode_checkpoint

    try:
        path = base.config.store_path_root_dir / "config" / "timercheck"
        return decode_checkpoint(path.read_bytes()).last_read_ms
    except (OSError, ValueError):
        return 0
