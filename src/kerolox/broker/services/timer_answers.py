"""Answers what the timer's steps ask for: from the log, its queues and index, and its own files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.services.keyed_records import records_of_key
from kerolox.broker.services.writer import NewRecord, Put, RecordWriter
from kerolox.broker.tables.former_queues import FormerQueues
from kerolox.kernel.status import PutMessageStatus
from kerolox.message import PropertyKey, decode_properties, property_value
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.protocol.records import RecordView, parse_record
from kerolox.store.timer import steps

if TYPE_CHECKING:
    from kerolox.store.timer.files import TimerStore

COPY_MARK = 1
"""A copy names the place of its record, and this more: 0 is what all other records have."""
LOG_MS = 10_000
"""How often the log is told that nothing can be delivered."""
GAP_MAX = 1_000
"""Entries of the queue that can't be read, and are passed in one step."""
AGAIN_MS = 10_000
"""How much later a message comes whose queues are too many."""

_NEVER = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
"""What is refused so will be refused again."""

_log = logging.getLogger(__name__)


class _Found(NamedTuple):
    """A record of the log."""

    record: RecordView
    data: bytes


class TimerAnswers:
    """Answers to all requests but those that wait."""

    def __init__(
        self, base: Base, former_queues: FormerQueues, writer: RecordWriter, files: TimerStore
    ) -> None:
        self._store = base.store
        self._now_ms = base.now_ms
        self._former_queues = former_queues
        self._writer = writer
        self._files = files
        self._last: tuple[int, _Found | None] = (-1, None)
        """The record that was read last: it is put next."""
        self._logged_ms = 0
        self._answers: dict[type, Callable[..., object]] = {
            steps.ReadEntry: self._entry,
            steps.ReadMessage: self._message,
            steps.ReadQueueOffset: self._queue_offset,
            steps.ReadUnit: lambda request: files.unit(request.position),
            steps.ReadFile: lambda request: files.file(request.position),
            steps.Append: lambda request: files.append(request.position, request.data),
            steps.Truncate: lambda request: files.truncate(request.end),
            steps.Put: self._put,
            steps.ReadCopies: self._copies,
            steps.ReadDeletes: self._deletes,
        }

    def answer(self, request: steps.Request) -> object:
        """The answer; OSError: a file can't be read or written."""
        return self._answers[type(request)](request)

    def _entry(self, request: steps.ReadEntry) -> steps.Entry | None:
        low, high = self._store.queue_bounds(TIMER_TOPIC, 0)
        first = max(request.queue_offset, low)
        for offset in range(first, min(high, first + GAP_MAX)):
            entry = self._store.queue_entry(TIMER_TOPIC, 0, offset)
            if entry is not None:
                return steps.Entry(offset, entry[0], entry[1])
        return None

    def _message(self, request: steps.ReadMessage) -> dict[str, str] | None:
        found = self._record(request.offset)
        if found is None:
            return None
        return decode_properties(found.record.properties.decode(errors="replace"))

    def _queue_offset(self, request: steps.ReadQueueOffset) -> int | None:
        found = self._record(request.offset)
        if found is None or found.record.topic != TIMER_TOPIC.encode():
            return None
        return found.record.queue_offset

    def _record(self, offset: int) -> _Found | None:
        if self._last[0] == offset:
            return self._last[1]
        data = self._store.lookup(offset)
        record = None if data is None else parse_record(data, 0, len(data))
        found = None if record is None or data is None else _Found(record, data)
        self._last = offset, found
        return found

    # -- what was stored --------------------------------------------------------------------------
    def _copies(self, request: steps.ReadCopies) -> set[int]:
        return {
            each.prepared_transaction_offset - COPY_MARK
            for each in records_of_key(self._store, request.topic, request.unique_key)
        }

    def _deletes(self, request: steps.ReadDeletes) -> set[str]:
        found = [
            property_value(each.properties, PropertyKey.TIMER_DELETES)
            for each in records_of_key(self._store, TIMER_TOPIC, request.unique_key)
        ]
        return {each.decode(errors="replace") for each in found if each}

    # -- what is stored again ---------------------------------------------------------------------
    def _put(self, put: steps.Put) -> steps.PutResult:
        found = self._record(put.message.offset)
        if found is None:
            # It was there when it was decided about.
            return steps.PutResult.NEVER
        topic, queue_id, properties = put.topic, put.queue_id, dict(put.properties)
        if topic != TIMER_TOPIC:
            queue_id = self._former_queues.queue_now(topic, queue_id)
        done = self._store_again(found, put.message.offset, topic, queue_id, properties)
        if done.status == PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
            # Until others have deleted their queues; what comes behind it can't wait for that.
            later = self._now_ms() // 1_000 * 1_000 + AGAIN_MS
            again = {
                **properties,
                PropertyKey.TIMER_OUT: str(later),
                PropertyKey.REAL_TOPIC: topic,
                PropertyKey.REAL_QUEUE_ID: str(queue_id),
            }
            done = self._store_again(found, put.message.offset, TIMER_TOPIC, 0, again)
        if done.is_stored:
            return steps.PutResult.DONE
        is_final = done.status in _NEVER
        self._log_refusal(put, done.status, is_final=is_final)
        return steps.PutResult.NEVER if is_final else steps.PutResult.RETRY

    def _store_again(
        self, found: _Found, offset: int, topic: str, queue_id: int, properties: dict[str, str]
    ) -> Put:
        record, data = found
        return self._writer.put_now(
            NewRecord(
                topic=topic,
                queue_id=queue_id,
                body=data[record.body_start : record.body_end],
                properties=properties,
                born_timestamp=record.born_timestamp,
                born_host=data[record.born_host_start : record.store_time_start],
                store_host=data[record.store_time_start + 8 : record.store_host_end],
                flag=record.flag,
                sys_flag=record.sys_flag,
                reconsume_times=record.reconsume_times,
                prepared_transaction_offset=offset + COPY_MARK,
            )
        ).put

    def _log_refusal(self, put: steps.Put, status: PutMessageStatus, *, is_final: bool) -> None:
        """Of what is tried again now and then alone: on a full disk it would be all the time."""
        offset, now = put.message.offset, self._now_ms()
        if is_final:
            _log.error(
                "message for a moment at %d to %s: %s; dropped", offset, put.topic, status.name
            )
        elif abs(now - self._logged_ms) >= LOG_MS:
            self._logged_ms = now
            _log.error(
                "message for a moment at %d to %s: %s; tried again", offset, put.topic, status.name
            )
