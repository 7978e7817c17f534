"""Multi-dispatch: one record with entries in several queues (``MultiDispatch`` of RocketMQ).

A producer names the queues in the property ``INNER_MULTI_DISPATCH``, as ``a,b``; the store adds
``INNER_MULTI_QUEUE_OFFSET``, as ``7,0``: the queue offsets that the record gets there. The queue id
is the record's own, and 0 for light message queues (LMQ: ``%LMQ%`` names, with ``enableLmq``),
which are topics of one queue without a topic configuration.

A name that comes twice, or names the record's own queue, stands for one entry.
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.message import ITEM_END, NAME_END, PropertyKey, property_value
from kerolox.protocol.names import LMQ_PREFIX

_SPLITTER = b","
_ITEM_END = ITEM_END.encode()
_QUEUES_ITEM = f"{PropertyKey.INNER_MULTI_DISPATCH}{NAME_END}".encode()
_OFFSETS_ITEM = f"{PropertyKey.INNER_MULTI_QUEUE_OFFSET}{NAME_END}".encode()
_JAVA_BLANKS = b" \t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"
OFFSET_DIGITS_MAX = 18
"""More digits than a queue offset can have."""


class DispatchTarget(NamedTuple):
    """A further queue of a record, and its queue offset there."""

    topic: str
    queue_id: int
    queue_offset: int


def is_multi_dispatch(properties: bytes) -> bool:
    """The property text may name further queues. Cheap; :func:`multi_dispatch_queues` decides."""
    return _QUEUES_ITEM in properties


def claims_offsets(properties: bytes) -> bool:
    """The property text names offsets in further queues, which only the store may say."""
    return _OFFSETS_ITEM in properties


def multi_dispatch_queues(properties: bytes, queue_id: int, *, lmq: bool) -> list[tuple[str, int]]:
    """The (topic, queue id) of the further queues that a record names, in order; mostly none.
    UnicodeDecodeError: a name is no UTF-8 (a ``ValueError``).
    """
    text = property_value(properties, PropertyKey.INNER_MULTI_DISPATCH)
    if text is None or not text.strip(_JAVA_BLANKS):
        return []
    # As Java splits: names at the end that are empty do not count.
    names = text.rstrip(_SPLITTER).decode()
    return [(name, _queue_id(name, queue_id, lmq)) for name in names.split(",")] if names else []


def with_offsets(properties: bytes, offsets: list[int]) -> bytes:
    """Property text that says what offsets the record has in its further queues."""
    items = [
        item for item in properties.split(_ITEM_END) if item and not item.startswith(_OFFSETS_ITEM)
    ]
    return _ITEM_END.join([*items, _OFFSETS_ITEM + ",".join(map(str, offsets)).encode()])


def multi_dispatch_targets(properties: bytes, queue_id: int, *, lmq: bool) -> list[DispatchTarget]:
    """The further entries of a stored record; none when the two properties do not fit together."""
    text = property_value(properties, PropertyKey.INNER_MULTI_QUEUE_OFFSET)
    if text is None:
        return []
    try:
        queues = multi_dispatch_queues(properties, queue_id, lmq=lmq)
    except UnicodeDecodeError:
        return []
    offsets = text.split(_SPLITTER)
    if len(offsets) != len(queues) or not all(
        offset.isdigit() and len(offset) <= OFFSET_DIGITS_MAX for offset in offsets
    ):
        return []
    return [
        DispatchTarget(topic, target_id, int(offset))
        for (topic, target_id), offset in zip(queues, offsets, strict=True)
    ]


def _queue_id(name: str, queue_id: int, lmq: bool) -> int:
    return 0 if lmq and name.startswith(LMQ_PREFIX) else queue_id
