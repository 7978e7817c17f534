"""How far each group has consumed each queue: ``ConsumerOffsetManager`` of RocketMQ.

Fast pulls commit inside the kernel. Every method here takes those commits over first, so that a
reader never sees an older offset than the one it is told of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from kerolox.broker.tables.json_file import (
    TABLE_BYTES_MAX,
    JsonFile,
    text_bytes,
    without_long_names,
)
from kerolox.errors import BrokerError
from kerolox.kernel import OffsetSource
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.names import LMQ_PREFIX, NAME_BYTES_MAX, RETRY_PREFIX, length_fault

SEPARATOR = "@"
KEY_BYTES_MAX = len(RETRY_PREFIX) + NAME_BYTES_MAX + len(SEPARATOR) + NAME_BYTES_MAX
"""Longest ``topic@group`` that a request can name."""
LIGHT_QUEUE = 0
"""A light message queue is the only one of its name."""

OFFSETS_MAX = 1_000_000
"""Offsets, each of a queue and a group; further queues and groups can't commit."""

PAIR_BYTES, OFFSET_BYTES = 400, 100
"""What a topic of a group takes, besides its key, and what each of its queues, at the most."""

_log = logging.getLogger(__name__)


PLAIN_FILE, LIGHT_FILE = "consumerOffset.json", "lmqConsumerOffset.json"


class _OffsetFile(msgspec.Struct):
    offsetTable: dict[str, dict[int, int]] = {}
    lmqOffsetTable: dict[str, int] = {}


class _Kept:
    """The offsets with their number and size, without what fast pulls committed meanwhile."""

    def __init__(self, touch: Callable[[], None], *, has_lmq: bool) -> None:
        self._touch = touch
        self._has_lmq = has_lmq
        self.by_key: dict[str, dict[int, int]] = {}
        self._count = self._bytes = 0

    def fill(self, by_key: dict[str, dict[int, int]]) -> None:
        """Take what a file had."""
        self.by_key = by_key
        for key, queues in by_key.items():
            if self.is_light(key.partition(SEPARATOR)[2]) and LIGHT_QUEUE not in queues:
                queues[LIGHT_QUEUE] = max(queues.values(), default=0)
        self._count = sum(map(len, by_key.values()))
        self._bytes = self._count * OFFSET_BYTES + sum(map(_pair_bytes, by_key))

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Set an offset; the one before."""
        if self.is_light(group):
            queue_id = LIGHT_QUEUE
        key = topic + SEPARATOR + group
        queues = self.by_key.get(key)
        if queues is None:
            queues = self.by_key[key] = {}
            self._bytes += _pair_bytes(key)
        before = queues.get(queue_id)
        if before is None:
            self._count += 1
            self._bytes += OFFSET_BYTES
        if before != offset:
            queues[queue_id] = offset
            self._touch()
        return before

    def has_room(self, group: str, topic: str, queue_id: int | None, more: int = 1) -> bool:
        """Whether ``more`` offsets may come, unless the queue has one."""
        key = topic + SEPARATOR + group
        size = more * OFFSET_BYTES
        if self._count + more <= OFFSETS_MAX and self._bytes + size <= TABLE_BYTES_MAX // 2:
            # Far from full: the key alone is not measured.
            return True
        known = self.by_key.get(key)
        if known is None:
            size += _pair_bytes(key)
        elif (LIGHT_QUEUE if self.is_light(group) else queue_id) in known:
            return True
        return self._count + more <= OFFSETS_MAX and self._bytes + size <= TABLE_BYTES_MAX

    def full(self) -> BrokerError:
        """What is told when there is no room."""
        return BrokerError(
            f"this broker keeps {self._count} offsets, which take {self._bytes} bytes, and no room "
            "for another one; delete consumer groups that nobody uses",
            code=ResponseCode.SYSTEM_ERROR,
        )

    def forget(self, key: str) -> None:
        """Forget the offsets of a group for a topic."""
        queues = self.by_key.pop(key, None)
        if queues is not None:
            self._count -= len(queues)
            self._bytes -= len(queues) * OFFSET_BYTES + _pair_bytes(key)

    def pairs(self) -> list[tuple[str, str]]:
        """(topic, group) of each key."""
        pairs = []
        for key in self.by_key:
            parts = key.split(SEPARATOR)
            if len(parts) == 2:
                pairs.append((parts[0], parts[1]))
        return pairs

    def is_light(self, group: str) -> bool:
        """Whether a group has one offset, whatever the queue id."""
        return self._has_lmq and group.startswith(LMQ_PREFIX)


class OffsetTable:
    """Offsets by ``topic@group`` and queue id, kept in ``consumerOffset.json``.

    With light message queues they are kept in ``lmqConsumerOffset.json``. There the groups of such
    names have a table of their own: one offset by ``topic@group``, whatever the queue id
    (``LmqConsumerOffsetManager``).

    Not written on each change: :meth:`persist` does it, every few seconds and at the stop.
    """

    def __init__(self, config_folder: Path, store: OffsetSource, *, has_lmq: bool = False) -> None:
        """Empty. ``has_lmq``: enableLmq."""
        self._store = store
        self._has_lmq = has_lmq
        self._was_full = False
        names = (LIGHT_FILE, PLAIN_FILE) if has_lmq else (PLAIN_FILE, LIGHT_FILE)
        self.file, self._other_file = (
            JsonFile(config_folder / name, self.snapshot) for name in names
        )
        self._drained = _Kept(self.file.touch, has_lmq=has_lmq)

    def load(self) -> None:
        """Read the file; where there is none, that of a broker with the other kind of queues.
        RocketMQ would leave that aside, and all groups would start anew.

        Raises:
            StoreError: the file is broken and so is its backup.
        """
        loaded = self.file.load(_OffsetFile) or self._other_file.load(_OffsetFile)
        if loaded is None:
            return
        by_key = without_long_names(loaded.offsetTable, self.file, _is_long)
        for key, offset in loaded.lmqOffsetTable.items():
            by_key[key] = {LIGHT_QUEUE: offset}
        self._drained.fill(by_key)

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        client: str,
        *,
        is_own: bool = False,
    ) -> None:
        """Set the offset of a queue; going back is allowed and logged. ``is_own``: it is the
        broker's, which a table that clients filled has room for.

        Raises:
            BrokerError: code 1; it is new, and there are ``OFFSETS_MAX`` already, or as many as
                ``TABLE_BYTES_MAX`` hold.
        """
        kept = self._current()
        if not is_own and not kept.has_room(group, topic, queue_id):
            raise kept.full()
        before = kept.put(group, topic, queue_id, offset)
        if before is not None and offset < before:
            _log.warning(
                "offset of group %s, topic %s, queue %d goes back from %d to %d, said %s",
                group,
                topic,
                queue_id,
                before,
                offset,
                client,
            )

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The offset of a queue; -1 when there is none."""
        kept = self._current()
        if kept.is_light(group):
            queue_id = LIGHT_QUEUE
        return kept.by_key.get(topic + SEPARATOR + group, {}).get(queue_id, -1)

    def of_topic(self, group: str, topic: str) -> dict[int, int]:
        """All offsets of a group for a topic, by queue id."""
        return dict(self._current().by_key.get(topic + SEPARATOR + group, {}))

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets for."""
        return [topic for topic, each in self._current().pairs() if each == group]

    def topics_by_group(self) -> dict[str, list[str]]:
        """The topics that each group has offsets for, found in one pass."""
        found: dict[str, list[str]] = {}
        for topic, group in self._current().pairs():
            found.setdefault(group, []).append(topic)
        return found

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets for a topic."""
        return [group for each, group in self._current().pairs() if each == topic]

    def put_all(self, table: Mapping[str, Mapping[int, int]]) -> None:
        """Take over a master's offsets, by ``topic@group`` and queue id; others stay. What there is
        no room for is left out."""
        kept = self._current()
        for key, queues in table.items():
            parts = key.split(SEPARATOR)
            if len(parts) != 2 or _is_long(key):
                continue
            for queue_id, offset in queues.items():
                if kept.has_room(parts[1], parts[0], queue_id):
                    kept.put(parts[1], parts[0], queue_id, offset)

    def fit(self, *, has_crashed: bool) -> int:
        """Bring the offsets behind the end of their queues back to it; how many that were.

        A crash of the machine takes messages that groups have consumed, while the table is on the
        disk. What comes in their places has their offsets, and no group would get it.

        Args:
            has_crashed: else those of queues without messages stay.
        """
        count = 0
        by_key = self._current().by_key
        for key, queues in by_key.items():
            topic = key.partition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = self._store.queue_bounds(topic, queue_id)[1] if offset > 0 else offset
                if offset > end and (end or has_crashed):
                    queues[queue_id] = end
                    count += 1
        if count:
            self.file.touch()
        return count

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give group ``target`` the offsets that ``source`` has for a topic.

        Raises:
            BrokerError: code 1; there is no room for them, see :meth:`commit`.
        """
        offsets = self.of_topic(source, topic)
        if not offsets:
            return
        kept = self._current()
        key = topic + SEPARATOR + target
        more = len(offsets) - len(kept.by_key.get(key, ()))
        if more > 0 and not kept.has_room(target, topic, None, more):
            raise kept.full()
        kept.forget(key)
        for queue_id, offset in offsets.items():
            kept.put(target, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for topic in self.topics_of(group):
            self._current().forget(topic + SEPARATOR + group)
            self.file.touch()

    def lowest(self, topic: str, without_groups: set[str]) -> dict[int, int]:
        """The lowest offset of each queue over all groups but some, as far as it still exists."""
        lowest: dict[int, int] = {}
        for group in self.groups_of(topic):
            if group in without_groups:
                continue
            for queue_id, offset in self.of_topic(group, topic).items():
                if offset >= self._store.queue_bounds(topic, queue_id)[0]:
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    def snapshot(self) -> dict[str, Mapping[str, object]]:
        """Everything, as the file holds it; offsets that are committed meanwhile may be in it."""
        kept = self._current()
        if not self._has_lmq:
            return {"offsetTable": _Rows(dict(kept.by_key))}
        plain: dict[str, dict[int, int]] = {}
        light: dict[str, int] = {}
        for key, queues in kept.by_key.items():
            if kept.is_light(key.partition(SEPARATOR)[2]):
                light[key] = queues[LIGHT_QUEUE]
            else:
                plain[key] = dict(queues)
        return {"lmqOffsetTable": light, "offsetTable": plain}

    def _current(self) -> _Kept:
        """The offsets, the only way to them: what fast pulls committed is taken over first.

        New ones without room are left out, with a line in the log: whoever asked has the messages
        already.
        """
        kept = self._drained
        is_full = False
        for group, topic, queue_id, offset in self._store.drain_commits():
            if kept.has_room(group, topic, queue_id):
                kept.put(group, topic, queue_id, offset)
            else:
                is_full = True
        if is_full and not self._was_full:
            _log.warning("offsets that pulls commit are left out: %s", kept.full().remark)
        self._was_full = is_full
        return kept

    async def persist(self) -> None:
        """Write the file when something changed.

        Raises:
            OSError: it can't be written; tried again at the next call.
        """
        self._current()
        await self.file.persist()


class _Rows(Mapping[str, dict[int, int]]):
    """Offsets by key, each copied when it is looked at. A thread writes them while others commit,
    and to copy all at once would hold the loop up."""

    def __init__(self, table: dict[str, dict[int, int]]) -> None:
        self._table = table

    def __getitem__(self, key: str) -> dict[int, int]:
        return dict(self._table[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _pair_bytes(key: str) -> int:
    return PAIR_BYTES + text_bytes(key)


def _is_long(key: str) -> bool:
    return length_fault("", key, KEY_BYTES_MAX) is not None
