"""Half messages in bulk, record by record; see :class:`kerolox.kernel.append.HalfKernel`."""

from __future__ import annotations

from kerolox._pykernel.copies import (
    HasQueue,
    Stored,
    plain_properties,
    real_queue,
    stored_again,
    stored_at,
)
from kerolox.kernel.append import HALF_QUEUE, HALF_RUNS_MAX, OP_PROPERTIES, REMOVE_TAG
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.store import RecordStore
from kerolox.kernel.values import HalfRun, HalvesEnded, Record
from kerolox.message import TIMERS, PropertyKey, property_value
from kerolox.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC
from kerolox.protocol.records import RecordView

_OP_PROPERTIES = OP_PROPERTIES.encode()
_REMOVE_TAG = REMOVE_TAG.encode()
_COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)
_PUT_OK = int(PutMessageStatus.PUT_OK)
_NUMBER_BYTES_MAX = 19
_ODD_NAMES = frozenset(
    name.encode()
    for name in (
        PropertyKey.DELAY,
        PropertyKey.TRANSACTION_CHECK_TIMES,
        PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET,
        *TIMERS,
    )
)
"""A half with one of them needs the handler in Python."""


def half_runs(
    store: RecordStore, group: str, start: int, end: int, max_bytes: int
) -> tuple[int, list[HalfRun]]:
    """See ``HalfKernel``."""
    runs: list[HalfRun] = []
    offset, bytes_read = start, 0
    while offset < end and bytes_read < max_bytes:
        half = _half(store, offset)
        bytes_read += len(half.data) if half else 0
        sink = _value(half, PropertyKey.SINK) if half else ""
        if half and sink and _value(half, PropertyKey.PRODUCER_GROUP) == group:
            is_plain = _target(half.record) is not None
            last = runs[-1] if runs else None
            if last and last[0::3] == (sink, is_plain) and last.first + last.count == offset:
                runs[-1] = last._replace(count=last.count + 1)
            elif len(runs) == HALF_RUNS_MAX:
                break
            else:
                runs.append(HalfRun(sink, offset, 1, is_plain))
        offset += 1
    return offset, runs


def half_ops(store: RecordStore, start: int, end: int) -> list[int]:
    """See ``HalfKernel``."""
    return [_half_of(store, offset) for offset in range(start, end)]


def end_halves(
    store: RecordStore,
    first: int,
    count: int,
    commit: bool,
    now_ms: int,
    host: bytes,
    has_queue: HasQueue,
) -> HalvesEnded:
    """See ``HalfKernel``; ``has_queue`` says whether a topic has a read queue."""
    first_op = 0
    for number in range(count):
        offset = first + number
        half = _half(store, offset)
        target = None if half is None else _target(half.record)
        if half is None or target is None:
            return HalvesEnded(number, first_op)
        if commit and not has_queue(*target):
            return HalvesEnded(number, first_op)
        if commit and store.append(_final(half, target)).status != _PUT_OK:
            return HalvesEnded(number, first_op)
        done = store.append(
            Record(
                OP_HALF_TOPIC.encode(), HALF_QUEUE, 0, 0, now_ms, host, host, 0, 0, b"%d" % offset,
                _OP_PROPERTIES,
            )
        )  # fmt: skip
        if done.status != _PUT_OK:
            return HalvesEnded(number, first_op, unnoted=commit)
        if number == 0:
            first_op = done.queue_offset
    return HalvesEnded(count, first_op)


def _half(store: RecordStore, offset: int) -> Stored | None:
    entry = store.queue_entry(HALF_TOPIC, HALF_QUEUE, offset)
    return None if entry is None else stored_at(store, entry[0])


def _value(half: Stored, name: str) -> str:
    """A property; empty when it is missing."""
    return (property_value(half.record.properties, name) or b"").decode(errors="replace")


def _half_of(store: RecordStore, op_offset: int) -> int:
    entry = store.queue_entry(OP_HALF_TOPIC, HALF_QUEUE, op_offset)
    op = None if entry is None else stored_at(store, entry[0])
    if op is None:
        return -1
    record, data = op
    text = data[record.body_start : record.body_end]
    is_number = len(text) <= _NUMBER_BYTES_MAX and text.isdigit()
    is_end = property_value(record.properties, PropertyKey.TAGS) == _REMOVE_TAG
    return int(text) if is_number and is_end else -1


def _target(record: RecordView) -> tuple[bytes, int] | None:
    """Topic and queue that a plain half is for; None: it is not plain."""
    properties = plain_properties(record.properties, _ODD_NAMES)
    return None if properties is None else real_queue(properties)


def _final(half: Stored, target: tuple[bytes, int]) -> Record:
    record = half.record
    return stored_again(
        half,
        target,
        sys_flag=record.sys_flag & ~TRANSACTION_MASK | _COMMIT,
        prepared_transaction_offset=record.physical_offset,
        properties=record.properties,
    )
