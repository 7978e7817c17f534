"""Property text on its way from a send request into the record.

The text is names and values, ``name 0x01 value``, joined by 0x02; clients of 4.6 add one 0x02 at
the end. RocketMQ 4.9.8 stores it without that end, without WAIT, and with CLUSTER. Most producers
send the same names in the same order for ever, so what the names decide is worked out once per
tuple of names (:class:`PropertyRules`).
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.message import (
    ITEM_END,
    NAME_END,
    TIMERS,
    PropertyKey,
    encode_properties,
    is_true,
    tags_code,
)

SHAPES_MAX = 1_024
"""Tuples of names that are remembered; beyond it the memory starts anew."""

TAGS_MAX = 4_096

REMEMBERED_BYTES_MAX = 512
"""Longer names or tags are worked out each time, so that nobody can fill the memory with them."""

SLOW_NAMES = frozenset(
    name.encode()
    for name in (
        PropertyKey.DELAY,
        PropertyKey.TRANSACTION_PREPARED,
        PropertyKey.CLUSTER,
        PropertyKey.INNER_MULTI_DISPATCH,
        PropertyKey.MESSAGE_TYPE,
        PropertyKey.START_DELIVER_TIME,
        *TIMERS,
    )
)
"""A text with one of these needs the handler in Python."""

_REAL_NAMES = frozenset((PropertyKey.REAL_TOPIC.encode(), PropertyKey.REAL_QUEUE_ID.encode()))
_PREPARED = PropertyKey.TRANSACTION_PREPARED.encode()
_SLOW_NAMES_OF_HALVES = (SLOW_NAMES | _REAL_NAMES) - {_PREPARED}

_NAME_END, _ITEM_END = NAME_END.encode(), ITEM_END.encode()
_WAIT, _TAGS = PropertyKey.WAIT.encode(), PropertyKey.TAGS.encode()
_TRUE = b"true"
"""As nearly all clients write it."""
_NOT_SEPARATORS = bytes(byte for byte in range(256) if byte not in _NAME_END + _ITEM_END)


TIMER_UNITS = {
    PropertyKey.TIMER_DELAY_SECONDS.encode(): (1_000, True),
    PropertyKey.TIMER_DELAY.encode(): (1, True),
    PropertyKey.TIMER_DELIVER.encode(): (1, False),
}
"""Milliseconds of the unit, and whether the time counts from now on."""
_ODD_WITH_TIMERS = (SLOW_NAMES | _REAL_NAMES | {
    PropertyKey.TIMER_OUT.encode(),
    PropertyKey.TIMER_DELETES.encode(),
}) - set(TIMER_UNITS)  # fmt: skip
_TIMER_DIGITS_MAX = 15


class TimerRule(NamedTuple):
    """Which sends for a moment are fast, see ``TimerKernel``."""

    precision_ms: int
    max_delay_ms: int
    broker_name: str

    def out_ms(self, name: bytes, value: bytes, now_ms: int) -> int | None:
        """``TIMER_OUT_MS`` of a message with this property; None: it is not fast."""
        deliver_ms = moment(name, value, now_ms)
        if deliver_ms is None or not 0 < deliver_ms - now_ms <= self.max_delay_ms:
            return None
        return (deliver_ms - 1) // self.precision_ms * self.precision_ms


def moment(name: bytes, value: bytes, now_ms: int) -> int | None:
    """When a message with this property, of :data:`TIMER_UNITS`, is due; None: it is no plain
    number."""
    if not value.isdigit() or len(value) > _TIMER_DIGITS_MAX:
        return None
    unit_ms, is_delay = TIMER_UNITS[name]
    return int(value) * unit_ms + is_delay * now_ms


def distinct_items(text: bytes) -> dict[bytes, bytes] | None:
    """Names and values of a property text without a separator at its end; None: it is malformed, or
    names an item twice."""
    items = [item.split(_NAME_END) for item in text.split(_ITEM_END)]
    if any(len(item) != 2 or not item[0] or not item[1] for item in items):
        return None
    properties = {name: value for name, value in items}
    return properties if len(properties) == len(items) else None


class _Shape(NamedTuple):
    """What the names of a text decide."""

    separators: bytes
    """The separators that a well-formed text with these names has."""
    wait_index: int
    tags_index: int
    prepared_index: int
    """Of TRAN_MSG; -1: it is no half message."""


class PropertyRules:
    """Turns property texts of requests into property bytes of records.

    ``take(text)`` gives (stored bytes, tags code, wait) or None when the text is not for the fast
    path: malformed, or with a name in ``SLOW_NAMES``. ``wait`` is False when the producer does not
    want to wait for the flush (WAIT is there and not true).
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = encode_properties({PropertyKey.CLUSTER: cluster}).encode()
        self._empty: tuple[bytes, int, bool] = (self._cluster, 0, True)
        self._shapes: dict[tuple[bytes, ...], _Shape] = {}
        self._tags: dict[bytes, int] = {}

    def take(
        self, text: str, *, keep_wait: bool = False, real: bytes = b""
    ) -> tuple[bytes, int, bool] | None:
        """See the class; ``keep_wait`` leaves WAIT in, as batches do, and ``real`` is for half
        messages, see :meth:`take_half`."""
        if real:
            return self.take_half(text, real)
        if not text:
            return self._empty
        stored = text.encode()
        if stored.endswith(_ITEM_END):
            stored = stored[:-1]
        flat = stored.replace(_ITEM_END, _NAME_END).split(_NAME_END)
        names = tuple(flat[::2])
        shape = self._shapes.get(names) or self._shape(names)
        if (
            shape is None
            or shape.prepared_index >= 0
            or b"" in flat
            or stored.translate(None, _NOT_SEPARATORS) != shape.separators
        ):
            return None
        wait_index = shape.wait_index
        wait = True
        if wait_index >= 0:
            value = flat[2 * wait_index + 1]
            wait = value == _TRUE or is_true(value.decode())
            if not keep_wait:
                items = stored.split(_ITEM_END)
                del items[wait_index]
                stored = _ITEM_END.join(items)
        stored = stored + _ITEM_END + self._cluster if stored else self._cluster
        tags_index = shape.tags_index
        if tags_index < 0:
            return stored, 0, wait
        tags = flat[2 * tags_index + 1]
        code = self._tags.get(tags)
        return stored, self._hash(tags) if code is None else code, wait

    def take_half(self, text: str, real: bytes) -> tuple[bytes, int, bool] | None:
        """As :meth:`take`, of a half message: it keeps WAIT, and gets ``real``, the text of
        REAL_TOPIC and REAL_QID with a separator before it. None also when it is no half."""
        stored = text.encode()
        if stored.endswith(_ITEM_END):
            stored = stored[:-1]
        flat = stored.replace(_ITEM_END, _NAME_END).split(_NAME_END)
        names = tuple(flat[::2])
        shape = self._shapes.get(names) or self._shape(names)
        if (
            shape is None
            or shape.prepared_index < 0
            or b"" in flat
            or stored.translate(None, _NOT_SEPARATORS) != shape.separators
            or flat[2 * shape.prepared_index + 1] != _TRUE
        ):
            return None
        wait = shape.wait_index < 0 or is_true(flat[2 * shape.wait_index + 1].decode())
        stored = stored + _ITEM_END + self._cluster + real
        tags = flat[2 * shape.tags_index + 1] if shape.tags_index >= 0 else None
        return stored, 0 if tags is None else self._tags.get(tags) or self._hash(tags), wait

    def take_timed(
        self, text: str, rule: TimerRule, now_ms: int, real: bytes
    ) -> tuple[bytes, int, bool] | None:
        """As :meth:`take`, of a message for a moment: it keeps WAIT, and gets the begin of its step
        and ``real``, the text of REAL_TOPIC and REAL_QID with a separator before it."""
        stored = text.encode()
        if stored.endswith(_ITEM_END):
            stored = stored[:-1]
        properties = distinct_items(stored)
        if properties is None or not _ODD_WITH_TIMERS.isdisjoint(properties):
            return None
        timers = TIMER_UNITS.keys() & properties.keys()
        if len(timers) != 1:
            return None
        name = timers.pop()
        out_ms = rule.out_ms(name, properties[name], now_ms)
        if out_ms is None:
            return None
        waits = is_true(properties.get(_WAIT, _TRUE).decode())
        end = encode_properties({PropertyKey.TIMER_OUT: str(out_ms)}).encode() + real
        stored = stored + _ITEM_END + self._cluster + _ITEM_END + end
        tags = properties.get(_TAGS)
        return stored, 0 if tags is None else self._tags.get(tags) or self._hash(tags), waits

    def _shape(self, names: tuple[bytes, ...]) -> _Shape | None:
        is_half = _PREPARED in names
        slow = _SLOW_NAMES_OF_HALVES if is_half else SLOW_NAMES
        if len(set(names)) != len(names) or not slow.isdisjoint(names):
            return None
        shape = _Shape(
            _ITEM_END.join([_NAME_END] * len(names)),
            names.index(_WAIT) if _WAIT in names else -1,
            names.index(_TAGS) if _TAGS in names else -1,
            names.index(_PREPARED) if is_half else -1,
        )
        if sum(map(len, names)) <= REMEMBERED_BYTES_MAX:
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            self._shapes[names] = shape
        return shape

    def _hash(self, tags: bytes) -> int:
        code = tags_code(tags.decode())
        if len(tags) <= REMEMBERED_BYTES_MAX:
            if len(self._tags) >= TAGS_MAX:
                self._tags.clear()
            self._tags[tags] = code
        return code
