"""The wheel: where the messages of each moment are (``TimerWheel``, file ``timerwheel``).

The file has a slot for each step of time, twice :data:`SLOTS` of them, and begins anew with the
first when the last is passed. A slot is big-endian::

    time in steps 8 | first position 8 | last position 8 | count 4 | magic 4

The positions are those of units in the timer log (:mod:`kerolox.store.timer.log`). The units of a
slot are a chain, from the last one to the one before. A slot with another time than the one that is
asked for is from an earlier turn, and empty.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SLOT = struct.Struct(">qqqii")
NO_POSITION = -1
"""There is no unit."""

SLOTS = 7 * 86_400
"""``slotsTotal``: the wheel has twice as many, whatever a step is. With steps of a second it turns
once in 14 days, and holds messages of 7 days before now and 7 days after."""

PRECISIONS_MS = (100, 200, 500, 1_000)
"""``timerPrecisionMs``: how long a step may be."""

PAGE_BYTES = 4_096
"""What changed is told in pieces of the file that are so long, with whole slots in each."""
_ZERO_PAGE = bytes(PAGE_BYTES)


class Slot(NamedTuple):
    """The messages of one step."""

    time_ms: int
    """Begin of the step, since the epoch."""
    first: int
    """Position of the unit that came first."""
    last: int
    """Of the one that came last."""
    number: int
    """Messages less commands to delete one: an estimate, for flow control."""
    magic: int = 0
    """Means nothing, and stays."""


def wheel_bytes(slots: int = SLOTS) -> int:
    """How long the file is."""
    return 2 * slots * SLOT.size


class TimerWheel:
    """A wheel in a buffer of :func:`wheel_bytes`. Times are in milliseconds; each stands for the
    step that it is in."""

    def __init__(
        self, data: bytearray | memoryview, precision_ms: int, *, slots: int = SLOTS
    ) -> None:
        """A wheel of zeros is an empty one. ValueError: the buffer has another length, so that
        slots would be taken for others.
        """
        if len(data) != wheel_bytes(slots):
            raise ValueError(
                f"the timer wheel has {len(data)} bytes, and {wheel_bytes(slots)} are expected"
            )
        self._data = data
        self._precision_ms = precision_ms
        self._slots = 2 * slots
        self._changed: set[int] = set()

    def slot(self, time_ms: int) -> Slot | None:
        """The slot of a moment; None: it has no messages."""
        step = time_ms // self._precision_ms
        found, first, last, number, magic = SLOT.unpack_from(self._data, self._at(step))
        if found != step or not step:
            return None
        return Slot(step * self._precision_ms, first, last, number, magic)

    def put(self, slot: Slot) -> None:
        """Write a slot over whatever is there."""
        step = slot.time_ms // self._precision_ms
        at = self._at(step)
        SLOT.pack_into(self._data, at, step, *slot[1:])
        self._changed.add(at // PAGE_BYTES)

    def add(self, time_ms: int, position: int, weight: int = 1) -> None:
        """Take a unit, whose message is due then, into the slot of its moment, behind all others.
        ``weight``: 1 for a message, -1 for a command to delete one.
        """
        step = time_ms // self._precision_ms
        at = self._at(step)
        found, first, _, number, magic = SLOT.unpack_from(self._data, at)
        if found != step:
            first, number, magic = position, 0, 0
        SLOT.pack_into(self._data, at, step, first, position, number + weight, magic)
        self._changed.add(at // PAGE_BYTES)

    def is_free(self, time_ms: int, from_ms: int) -> bool:
        """Whether a unit of a moment can be added: its place is not taken by a later turn, which a
        clock that was set back leaves behind. Slots before ``from_ms`` are delivered.
        """
        step = time_ms // self._precision_ms
        found: int = SLOT.unpack_from(self._data, self._at(step))[0]
        return found == step or found < from_ms // self._precision_ms

    def previous(self, time_ms: int) -> int:
        """The position that a new unit of a moment names as the one before it."""
        step = time_ms // self._precision_ms
        found, _, last, _, _ = SLOT.unpack_from(self._data, self._at(step))
        return last if found == step and step else NO_POSITION

    def revise(self, time_ms: int, position: int, weight: int = 1) -> None:
        """Take a unit of the log into the slot of its moment, unless that knows it already: after a
        start, for all units from some position on, in their order.

        ``reviseSlot`` of RocketMQ gives a slot the same positions, and leaves its count as it was,
        also that of the turn before.
        """
        if position > self.previous(time_ms):
            self.add(time_ms, position, weight)

    def forget_lost(self, end: int) -> int | None:
        """Empty the slots that know units which the log has lost, of whatever turn, since it ends
        at ``end``; where the log is to be read again for them. None: there is none.

        ``checkPhyPos`` of RocketMQ leaves those of other turns, whose units a clock that is set
        back would look for.
        """
        lost = [(index, slot) for index, slot in self._known() if slot.last >= end]
        for index, _ in lost:
            at = index * SLOT.size
            self._data[at : at + SLOT.size] = bytes(SLOT.size)
            self._changed.add(at // PAGE_BYTES)
        return min((slot.first for _, slot in lost), default=None)

    def newest(self) -> Slot | None:
        """The slot whose last unit is the newest of all; None: the wheel is empty."""
        known = (slot for _, slot in self._known())
        return max(known, key=lambda slot: slot.last, default=None)

    def clear(self) -> None:
        """Empty it."""
        for index, _ in list(self._known()):
            at = index * SLOT.size
            self._data[at : at + SLOT.size] = bytes(SLOT.size)
            self._changed.add(at // PAGE_BYTES)

    def waiting(self, now_ms: int) -> int:
        """Messages from a moment on (``getAllNum``)."""
        return sum(slot.number for slot in self._from(now_ms))

    def ahead(self, now_ms: int, bounds_ms: Sequence[int]) -> list[int]:
        """How many messages are due within each of these times from a moment on, and not within the
        one before. The bounds rise."""
        counts = [0] * len(bounds_ms)
        for slot in self._from(now_ms):
            index = bisect_right(bounds_ms, slot.time_ms - now_ms)
            if index < len(counts):
                counts[index] += slot.number
        return counts

    def latest_ms(self) -> int:
        """The last step that has messages, or had some; 0: none."""
        return max((slot.time_ms for _, slot in self._known()), default=0)

    def take_changed(self) -> dict[int, bytes]:
        """Place and bytes of the pages that changed since the last call."""
        changed, self._changed = sorted(self._changed), set()
        places = (page * PAGE_BYTES for page in changed)
        return {at: bytes(self._data[at : at + PAGE_BYTES]) for at in places}

    def give_back(self, places: Iterable[int]) -> None:
        """Pages of :meth:`take_changed` that could not be written; they count as changed."""
        self._changed.update(at // PAGE_BYTES for at in places)

    def _at(self, step: int) -> int:
        return step % self._slots * SLOT.size

    def _from(self, now_ms: int) -> Iterator[Slot]:
        """The slots of the turn that begins at a moment, those without messages left out."""
        begin = now_ms // self._precision_ms
        for _, slot in self._known():
            if begin <= slot.time_ms // self._precision_ms < begin + self._slots:
                yield slot

    def _known(self) -> Iterator[tuple[int, Slot]]:
        """Each slot that was written, of whatever turn, with its index."""
        for place in range(0, len(self._data), PAGE_BYTES):
            page = bytes(self._data[place : place + PAGE_BYTES])
            if page == _ZERO_PAGE:
                continue
            for index, (step, *values) in enumerate(SLOT.iter_unpack(page), place // SLOT.size):
                if step:
                    yield index, Slot(step * self._precision_ms, *values)
