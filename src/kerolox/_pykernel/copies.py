"""Records stored again, one by one; see :class:`kerolox.kernel.append.CopyKernel`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from kerolox._pykernel.properties import TIMER_UNITS, distinct_items, moment
from kerolox.kernel.append import COPY_MARK
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.store import RecordStore
from kerolox.kernel.values import Copied, Copies, Record
from kerolox.message import ITEM_END, NAME_END, PropertyKey, property_value
from kerolox.protocol.codes import HOST_V6_MASK, TRANSACTION_MASK, MessageSysFlag
from kerolox.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TOPIC_BYTES_MAX
from kerolox.protocol.records import RecordView, parse_record

_PUT_OK = int(PutMessageStatus.PUT_OK)
_ITEMS_MAX = 64
"""A record with more properties needs the handler in Python."""
_NUMBER_DIGITS_MAX = 18
_NAME_END, _ITEM_END = NAME_END.encode(), ITEM_END.encode()
_REAL_TOPIC, _REAL_QUEUE_ID = PropertyKey.REAL_TOPIC.encode(), PropertyKey.REAL_QUEUE_ID.encode()
_UNIQUE_KEY, _OUT = PropertyKey.UNIQUE_KEY.encode(), PropertyKey.TIMER_OUT.encode()
_DISPATCH = PropertyKey.INNER_MULTI_DISPATCH.encode()
_ROLL_TIMES, _DELIVER = PropertyKey.TIMER_ROLL_TIMES.encode(), PropertyKey.TIMER_DELIVER.encode()
_NOT_TARGETS = (HALF_TOPIC.encode(), SCHEDULE_TOPIC.encode())
_UNQUEUED = (MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_ROLLBACK)

HasQueue = Callable[[bytes, int], bool]
"""Whether a topic has a read queue."""


class Stored(NamedTuple):
    """A record with the bytes that it is in."""

    record: RecordView
    data: bytes


def stored_at(store: RecordStore, offset: int) -> Stored | None:
    """The record at an offset of the log."""
    data = store.lookup(offset)
    record = None if data is None else parse_record(data, 0, len(data))
    return None if record is None or data is None else Stored(record, data)


def plain_properties(text: bytes, odd_names: Collection[bytes]) -> dict[bytes, bytes] | None:
    """The properties of a record; None: it needs the handler in Python."""
    properties = distinct_items(text)
    if properties is None or len(properties) > _ITEMS_MAX or _DISPATCH in properties:
        return None
    return None if any(name in properties for name in odd_names) else properties


def real_queue(properties: dict[bytes, bytes]) -> tuple[bytes, int] | None:
    """Topic and queue that a record is for, as its properties say."""
    topic, queue_text = properties.get(_REAL_TOPIC, b""), properties.get(_REAL_QUEUE_ID, b"")
    is_queue = 0 < len(queue_text) < 6 and queue_text.isdigit()
    if not 0 < len(topic) <= TOPIC_BYTES_MAX or not is_queue:
        return None
    return topic, int(queue_text)


def queue_properties(
    store: RecordStore, topic: str, queue_id: int, offset: int, count: int, names: Sequence[bytes]
) -> list[tuple[int, int, int, tuple[bytes | None, ...] | None]]:
    """See ``CopyKernel``."""
    found: list[tuple[int, int, int, tuple[bytes | None, ...] | None]] = []
    keys = [name.decode() for name in names]
    low, high = store.queue_bounds(topic, queue_id)
    for each in range(max(low, offset), min(high, offset + count)):
        entry = store.queue_entry(topic, queue_id, each)
        if entry is None:
            continue
        stored = stored_at(store, entry[0])
        values = None
        if stored is not None:
            values = tuple(property_value(stored.record.properties, key) for key in keys)
        found.append((each, entry[0], entry[1], values))
    return found


def moments(store: RecordStore, offsets: Sequence[int]) -> list[int | None]:
    """See ``CopyKernel``."""
    return [_moment(stored_at(store, offset)) for offset in offsets]


def _moment(stored: Stored | None) -> int | None:
    if stored is None:
        return None
    items = [item.partition(_NAME_END) for item in stored.record.properties.split(_ITEM_END)]
    found = [(name, value) for name, _, value in items if name in TIMER_UNITS and value]
    if len(found) != 1:
        return None
    [(unit, value)] = found
    if unit != _DELIVER and any(name == _ROLL_TIMES for name, _, _ in items):
        return None  # One that was stored again does not tell when its delay began.
    return moment(unit, value, stored.record.store_timestamp)


def copy_records(store: RecordStore, copies: Copies, has_queue: HasQueue) -> Copied:
    """See ``CopyKernel``."""
    count = size = 0
    topics: Counter[str] = Counter()
    odd_keys = frozenset(copies.odd_keys)
    for number, offset in enumerate(copies.offsets):
        stored = stored_at(store, offset)
        target = None if stored is None else _target(stored.record, copies, odd_keys)
        if stored is None or target is None or not has_queue(*target):
            break
        added = copies.added[number] if copies.added else b""
        done = store.append(_copy(stored, target, added, offset if copies.names_source else None))
        if done.status != _PUT_OK:
            break
        count += 1
        size += done.size
        topics[target[0].decode()] += 1
    return Copied(count, size, list(topics.items()))


def _target(
    record: RecordView, copies: Copies, odd_keys: Collection[bytes]
) -> tuple[bytes, int] | None:
    """Topic and queue of a plain record; None: it is not plain."""
    properties = plain_properties(record.properties, copies.odd_names)
    if properties is None or record.sys_flag & TRANSACTION_MASK in _UNQUEUED:
        return None
    if properties.get(_UNIQUE_KEY) in odd_keys:
        return None
    if copies.moment_below is not None:
        moment = properties.get(_OUT, b"")
        if not moment.isdigit() or len(moment) > _NUMBER_DIGITS_MAX:
            return None
        if int(moment) >= copies.moment_below:
            return None
    target = real_queue(properties)
    return None if target is None or target[0] in _NOT_TARGETS else target


def _copy(stored: Stored, target: tuple[bytes, int], added: bytes, source: int | None) -> Record:
    record = stored.record
    return stored_again(
        stored,
        target,
        sys_flag=record.sys_flag,
        prepared_transaction_offset=0 if source is None else source + COPY_MARK,
        properties=record.properties + _ITEM_END + added if added else record.properties,
    )


def stored_again(
    stored: Stored,
    target: tuple[bytes, int],
    *,
    sys_flag: int,
    prepared_transaction_offset: int,
    properties: bytes,
) -> Record:
    """What is to be stored in another queue; all else stays."""
    record, data = stored
    return Record(
        *target,
        record.flag,
        sys_flag & ~HOST_V6_MASK,
        record.born_timestamp,
        data[record.born_host_start : record.store_time_start],
        data[record.store_time_start + 8 : record.store_host_end],
        record.reconsume_times,
        prepared_transaction_offset,
        data[record.body_start : record.body_end],
        properties,
    )
