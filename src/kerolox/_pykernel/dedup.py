"""Keys that topics had lately; see :class:`kerolox.kernel.dedup.DedupKernel`.

Keys are kept themselves, so nothing has to be compared with the log. A long one is its digest, in
a form that no key has. What one append stored has one time, so it is one run in the order of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b

from kerolox.kernel.dedup import KEYS_MAX, KeyWindow
from kerolox.message import ITEM_END, NAME_END, PropertyKey, property_value

KEY_BYTES_MAX = 64
"""A longer key is kept as a digest of as many bytes, and one more before them."""

BYTES_PER_KEY = 250
"""What one takes, measured with keys of 32 bytes."""

EXPIRED_PER_KEY = 2
EXPIRED_PER_COUNT = 65_536
"""Keys whose time is over that are forgotten for each new one, and by a call that counts them."""

_TAKEN = -2
"""The place of a key whose message is being stored."""
_ITEM_END = ITEM_END.encode()


class _Run:
    """Keys that were stored at the same time. Those before ``begin`` are forgotten."""

    __slots__ = ("begin", "keys", "offsets", "time_ms")

    def __init__(self, time_ms: int, keys: list[bytes], offsets: Sequence[int]) -> None:
        self.time_ms, self.keys, self.offsets, self.begin = time_ms, keys, offsets, 0


class Window:
    """The keys of one topic."""

    __slots__ = (
        "_begin",
        "_count",
        "_firsts",
        "_item",
        "_name",
        "_runs",
        "_taken",
        "_taken_at",
        "_touched",
        "by_keys",
        "cut",
        "window_ms",
    )

    def __init__(self, window_ms: int, touched: list[Window], *, by_keys: bool) -> None:
        """``touched``: gets the window when it takes the first key of an append."""
        self.window_ms = window_ms
        self.by_keys = by_keys
        self.cut = 0
        self._name = PropertyKey.KEYS if by_keys else PropertyKey.UNIQUE_KEY
        self._begin = (self._name + NAME_END).encode()
        self._item = _ITEM_END + self._begin
        self._firsts: dict[bytes, int] = {}
        self._runs: deque[_Run] = deque()
        self._count = 0
        self._touched = touched
        self._taken: list[bytes] = []
        self._taken_at: list[int] = []

    def __len__(self) -> int:
        """Keys in the order of time, those that were taken out among them."""
        return self._count

    @property
    def keys(self) -> int:
        """How many there are."""
        return len(self._firsts)

    @property
    def oldest_ms(self) -> int:
        """When the first one was stored; -1: there is none."""
        return self._runs[0].time_ms if self._runs else -1

    # -- fast sends: take() each, then settle() ----------------------------------------------------
    def take(self, text: bytes, index: int) -> bool:
        """Take the key of the message that is to be the ``index``-th of an append, by its stored
        properties, of which none is there twice; False: the topic has it."""
        at = text.find(self._item)
        if at >= 0:
            at += len(self._item)
        elif text.startswith(self._begin):
            at = len(self._begin)
        else:
            return True
        key = text[at : text.find(_ITEM_END, at)]  # The cluster's name follows.
        return self._take(key if len(key) <= KEY_BYTES_MAX else _kept(key), index)

    def take_any(self, text: bytes, index: int) -> bool:
        """The same by any property text."""
        key = property_value(text, self._name)
        return key is None or self._take(_kept(key), index)

    def _take(self, kept: bytes, index: int) -> bool:
        if kept in self._firsts:
            return False
        if not self._taken:
            self._touched.append(self)
        self._firsts[kept] = _TAKEN
        self._taken.append(kept)
        self._taken_at.append(index)
        return True

    def settle(self, offsets: Sequence[int], time_ms: int) -> None:
        """The first messages of the append were stored at these places; of the others nothing is
        known."""
        taken, taken_at = self._taken, self._taken_at
        self._taken, self._taken_at = [], []
        if len(taken) < len(offsets) or taken_at[-1] >= len(offsets):
            for kept, index in zip(taken, taken_at, strict=True):
                if index >= len(offsets):
                    del self._firsts[kept]
            taken = [kept for kept, at in zip(taken, taken_at, strict=True) if at < len(offsets)]
            offsets = [offsets[at] for at in taken_at if at < len(offsets)]
        self._firsts.update(zip(taken, offsets, strict=True))
        self._order(time_ms, taken, offsets)

    # -- the slow path ---------------------------------------------------------------------------
    def find(self, key: bytes) -> int | None:
        """Where the first record with a key is, whose time may be over."""
        return self._firsts.get(_kept(key))

    def add(self, key: bytes, physical_offset: int, time_ms: int) -> None:
        """Note a key, whatever was known of it."""
        kept = _kept(key)
        self._firsts[kept] = physical_offset
        self._order(time_ms, [kept], [physical_offset])

    def forget(self, key: bytes) -> None:
        """Take a key out; its place in the order of time goes when that is over."""
        self._firsts.pop(_kept(key), None)

    # -- the order of time -------------------------------------------------------------------------
    def _order(self, time_ms: int, keys: list[bytes], offsets: Sequence[int]) -> None:
        self.expire(time_ms, EXPIRED_PER_KEY * len(keys))
        if keys:
            self._runs.append(_Run(time_ms, keys, offsets))
            self._count += len(keys)

    def pop(self, count: int = 1) -> int:
        """Forget that many of the oldest keys of the first run; how many of them it had."""
        run = self._runs[0]
        end = min(run.begin + count, len(run.keys))
        firsts = self._firsts
        for at in range(run.begin, end):
            key = run.keys[at]
            if firsts.get(key) == run.offsets[at]:
                del firsts[key]
        count = end - run.begin
        run.begin = end
        self._count -= count
        if end == len(run.keys):
            self._runs.popleft()
        return count

    def expire(self, now_ms: int, count_max: int) -> None:
        """Forget some keys whose time is over."""
        end_ms = now_ms - self.window_ms
        while count_max > 0 and self._runs and self._runs[0].time_ms <= end_ms:
            count_max -= self.pop(count_max)


def _kept(key: bytes) -> bytes:
    return key if len(key) <= KEY_BYTES_MAX else b"\0" + blake2b(key).digest()


class Windows:
    """The windows of all topics, and how many keys they may have together."""

    def __init__(self) -> None:
        self.keys_max = KEYS_MAX
        self.touched: list[Window] = []
        """Those that took keys for the append that is on its way."""
        self._windows: dict[str, Window] = {}
        self._count = 0
        self._largest: Window | None = None

    def clear(self) -> None:
        """Forget all windows."""
        self._windows.clear()
        self._count = 0
        self._largest = None

    def get(self, topic: str) -> Window | None:
        """The window of a topic; None: it has none."""
        return self._windows.get(topic)

    def set(self, topic: str, window_ms: int, *, by_keys: bool) -> None:
        """See ``DedupKernel.set_dedup``."""
        known = self._windows.get(topic)
        if known is not None and window_ms > 0 and known.by_keys == by_keys:
            known.window_ms = window_ms
            return
        if known is not None:
            self._count -= len(known)
            del self._windows[topic]
            if known is self._largest:
                self._largest = None
        if window_ms > 0:
            self._windows[topic] = Window(window_ms, self.touched, by_keys=by_keys)

    def take_batch(self, window: Window | None, items: Sequence[tuple[int, bytes, bytes]]) -> bool:
        """Take the keys of (flag, body, property text) items; False: the topic has one, or they
        have one twice, and none is taken."""
        if window is None:
            return True
        if all(window.take_any(text, index) for index, (_, _, text) in enumerate(items)):
            return True
        self.settle((), 0)
        return False

    def settle(self, offsets: Sequence[int], time_ms: int) -> None:
        """Of an append whose keys were taken, the first messages were stored at these places."""
        for window in self.touched:
            before = len(window)
            window.settle(offsets, time_ms)
            self._counted(window, before)
        self.touched.clear()

    def note(self, window: Window, key: bytes, physical_offset: int, time_ms: int) -> None:
        """Note the key of a record that was stored."""
        before = len(window)
        window.add(key, physical_offset, time_ms)
        self._counted(window, before)

    def _counted(self, window: Window, before: int) -> None:
        self._count += len(window) - before
        while self._count > self.keys_max:
            self._cut(window)

    def _cut(self, window: Window) -> None:
        """Forget the oldest keys of the window that has the most, as far as that is known."""
        if self._largest is None or len(window) >= len(self._largest):
            self._largest = window
        count = self._largest.pop(self._count - self.keys_max)
        self._largest.cut += count
        self._count -= count

    def all(self, now_ms: int) -> list[KeyWindow]:
        """See ``DedupKernel.dedup_windows``."""
        found: list[KeyWindow] = []
        for topic, window in self._windows.items():
            self._count -= len(window)
            window.expire(now_ms, EXPIRED_PER_COUNT)
            self._count += len(window)
            taken = BYTES_PER_KEY * len(window)
            found.append(KeyWindow(topic, window.keys, window.oldest_ms, window.cut, taken))
        return found
