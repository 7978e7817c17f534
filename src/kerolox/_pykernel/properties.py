"""Property text on its way from a send request into the record.

The text is names and values, ``name 0x01 value``, joined by 0x02; clients of 4.6 add one 0x02 at
the end. RocketMQ 4.9.8 stores it without that end, without WAIT, and with CLUSTER. Most producers
send the same names in the same order for ever, so what the names decide is worked out once per
tuple of names (:class:`PropertyRules`).
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.message import tags_code

__all__ = ["PropertyRules"]

SHAPES_MAX = 1_024
"""Tuples of names that are remembered; beyond it the memory starts anew."""

TAGS_MAX = 4_096
"""Tags whose hash is remembered."""

REMEMBERED_BYTES_MAX = 512
"""Longer names or tags are worked out each time, so that nobody can fill the memory with them."""

SLOW_NAMES = frozenset(
    (
        b"DELAY",
        b"TRAN_MSG",
        b"CLUSTER",
        b"INNER_MULTI_DISPATCH",
        b"MSG_TYPE",
        b"__STARTDELIVERTIME",
    )
)
"""A text with one of these needs the handler in Python."""

_NOT_SEPARATORS = bytes(byte for byte in range(256) if byte not in (1, 2))


class _Shape(NamedTuple):
    """What the names of a text decide."""

    separators: bytes
    """The separators that a well-formed text with these names has."""
    wait_index: int
    tags_index: int


class PropertyRules:
    """Turns property texts of requests into property bytes of records.

    ``take(text)`` gives (stored bytes, tags code, wait) or None when the text is not for the fast
    path: malformed, or with a name in ``SLOW_NAMES``. ``wait`` is False when the producer does not
    want to wait for the flush (WAIT is there and not true).
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = b"CLUSTER\x01" + cluster.encode()
        self._empty: tuple[bytes, int, bool] = (self._cluster, 0, True)
        self._shapes: dict[tuple[bytes, ...], _Shape] = {}
        self._tags: dict[bytes, int] = {}

    def take(self, text: str, *, keep_wait: bool = False) -> tuple[bytes, int, bool] | None:
        """See the class; ``keep_wait`` leaves WAIT in, as batches do."""
        if not text:
            return self._empty
        stored = text.encode()
        if stored.endswith(b"\x02"):
            stored = stored[:-1]
        flat = stored.replace(b"\x02", b"\x01").split(b"\x01")
        names = tuple(flat[::2])
        shape = self._shapes.get(names) or self._shape(names)
        if (
            shape is None
            or b"" in flat
            or stored.translate(None, _NOT_SEPARATORS) != shape.separators
        ):
            return None
        wait_index = shape.wait_index
        wait = True
        if wait_index >= 0:
            wait = flat[2 * wait_index + 1].lower() == b"true"
            if not keep_wait:
                items = stored.split(b"\x02")
                del items[wait_index]
                stored = b"\x02".join(items)
        stored = stored + b"\x02" + self._cluster if stored else self._cluster
        tags_index = shape.tags_index
        if tags_index < 0:
            return stored, 0, wait
        tags = flat[2 * tags_index + 1]
        code = self._tags.get(tags)
        return stored, self._hash(tags) if code is None else code, wait

    def _shape(self, names: tuple[bytes, ...]) -> _Shape | None:
        if len(set(names)) != len(names) or not SLOW_NAMES.isdisjoint(names):
            return None
        shape = _Shape(
            b"\x02".join([b"\x01"] * len(names)),
            names.index(b"WAIT") if b"WAIT" in names else -1,
            names.index(b"TAGS") if b"TAGS" in names else -1,
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
