"""Answers what the timer's steps ask for: from the log, its queues and index, and its own files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.services.keyed_records import records_of_key
from kerolox.broker.services.writer import NewRecord, Put, RecordWriter
from kerolox.broker.tables.tables import Tables
from kerolox.kernel.append import COPY_MARK
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Copies
from kerolox.message import PropertyKey, decode_properties, encode_properties, property_value
from kerolox.protocol.java_numbers import java_long
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.protocol.records import RecordView, parse_record
from kerolox.store.timer import puts, steps

if TYPE_CHECKING:
    from kerolox.store.timer.files import TimerStore

LOG_MS = 10_000
"""How often the log is told that nothing can be delivered."""
GAP_MAX = 1_000
"""Entries of the queue that can't be read, and are passed in one step."""
AGAIN_MS = 10_000
"""How much later a message comes whose queues are too many."""

_NEVER = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
"""What is refused so will be refused again."""

_NAMES = [name.encode() for name in steps.ENTRY_PROPERTIES]
_ODD_NAMES = [name.encode() for name in puts.ODD_NAMES]

_log = logging.getLogger(__name__)


def _properties_of(values: Sequence[bytes | None]) -> dict[str, str]:
    return {
        name: value.decode(errors="replace")
        for name, value in zip(steps.ENTRY_PROPERTIES, values, strict=True)
        if value is not None
    }


class _Found(NamedTuple):
    """A record of the log."""

    record: RecordView
    data: bytes


class TimerAnswers:
    """Answers to all requests but those that wait."""

    def __init__(self, base: Base, tables: Tables, writer: RecordWriter, files: TimerStore) -> None:
        self._store = base.store
        self._now_ms = base.now_ms
        self._former_queues, self._filters = tables.former_queues, tables.filters
        self._writer = writer
        self._files = files
        settings = base.config.timer_settings
        # Whose clock was ahead of its next master's by up to a step has rolled so soon.
        self._window_ms = (settings.window - 1) * settings.precision_ms
        self._last: tuple[int, _Found | None] = (-1, None)
        """The record that was read last: it is put next."""
        self._logged_ms = 0
        self._answers: dict[type, Callable[..., object]] = {
            steps.ReadEntries: self._entries,
            steps.ReadMessage: self._message,
            steps.ReadQueueOffset: self._queue_offset,
            steps.ReadUnits: lambda request: [*map(files.unit, request.positions)],
            steps.ReadChain: lambda request: files.chain(*request),
            steps.ReadMoments: lambda request: base.store.moments(request.offsets),
            steps.ReadFile: lambda request: files.file(request.position),
            steps.Append: lambda request: files.append(request.position, request.data),
            steps.Truncate: lambda request: files.truncate(request.end),
            steps.Deliver: self._deliver,
            steps.Put: self._put,
            steps.ReadCopies: self._copies,
            steps.ReadCopied: self._copied,
            steps.ReadDeletes: self._deletes,
        }

    def answer(self, request: steps.Request) -> object:
        """The answer; OSError: a file can't be read or written."""
        return self._answers[type(request)](request)

    def _entries(self, request: steps.ReadEntries) -> list[steps.Entry]:
        low, high = self._store.queue_bounds(TIMER_TOPIC, 0)
        first = max(request.queue_offset, low)
        for offset in range(first, min(high, first + GAP_MAX), request.count):
            found = self._store.queue_properties(TIMER_TOPIC, 0, offset, request.count, _NAMES)
            if found:
                return [
                    steps.Entry(at, offset, size, _properties_of(values) if values else None)
                    for at, offset, size, values in found
                ]
        return []

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

    def _copied(self, request: steps.ReadCopied) -> set[int]:
        return {offset for offset in request.offsets if self._is_copied(offset)}

    def _is_copied(self, offset: int) -> bool:
        found = self._record(offset)
        if found is None:
            return False
        topic, key, out_text = (
            (property_value(found.record.properties, name) or b"").decode(errors="replace")
            for name in (PropertyKey.REAL_TOPIC, PropertyKey.UNIQUE_KEY, PropertyKey.TIMER_OUT)
        )
        if not topic or not key:
            return False
        # One that waits for longer than the window may have been rolled.
        delay_ms = (java_long(out_text) or 0) - found.record.store_timestamp
        topics = (topic, TIMER_TOPIC) if delay_ms >= self._window_ms else (topic,)
        return any(offset in self._copies(steps.ReadCopies(each, key)) for each in topics)

    def _deletes(self, request: steps.ReadDeletes) -> set[str]:
        found = [
            property_value(each.properties, PropertyKey.TIMER_DELETES)
            for each in records_of_key(self._store, TIMER_TOPIC, request.unique_key)
        ]
        return {each.decode(errors="replace") for each in found if each}

    # -- what is stored again ---------------------------------------------------------------------
    def _deliver(self, request: steps.Deliver) -> steps.Delivered:
        if self._store.queue_bounds(TIMER_TOPIC, 0)[1] > request.queue_end:
            return steps.Delivered(0, {}, has_news=True)
        if self._filters.makes_bit_maps:
            return steps.Delivered(0, {})
        now_ms = request.now_ms
        notes = {
            enqueued_ms: encode_properties(puts.notes(enqueued_ms, now_ms)).encode()
            for enqueued_ms in set(request.enqueued_ms)
        }
        done = self._writer.copy(
            Copies(
                request.offsets,
                [notes[enqueued_ms] for enqueued_ms in request.enqueued_ms],
                _ODD_NAMES,
                [key.encode() for key in request.odd_keys],
                request.before_ms,
                names_source=True,
            )
        )
        return steps.Delivered(done.count, dict(done.topics))

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
