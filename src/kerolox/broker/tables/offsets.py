"""How far each group has consumed each queue: ``ConsumerOffsetManager`` of RocketMQ.

Fast pulls commit inside the kernel. Every method here takes those commits over first, so that a
reader never sees an older offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from kerolox import clock
from kerolox.broker.errors import system_error
from kerolox.broker.tables.json_file import (
    TABLE_BYTES_MAX,
    JsonFile,
    text_bytes,
    without_long_names,
)
from kerolox.broker.tables.stale import ANYBODY, DeletedLately, StaleGroups, bits_of
from kerolox.errors import BrokerError
from kerolox.kernel.store import OffsetSource
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


_NO_BOUNDS: Mapping[tuple[str, str, int], int] = {}

PLAIN_FILE, LIGHT_FILE = "consumerOffset.json", "lmqConsumerOffset.json"


class _OffsetFile(msgspec.Struct):
    offsetTable: dict[str, dict[int, int]] = {}
    lmqOffsetTable: dict[str, int] = {}
    staleGroups: dict[str, str] = {}


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

    def has_capacity(self, group: str, topic: str, queue_id: int | None, more: int = 1) -> bool:
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
        """What is reported when there is no space."""
        return system_error(
            f"this broker keeps {self._count} offsets, which take {self._bytes} bytes, and no "
            "space for another one; delete consumer groups that nobody uses"
        )

    def forget(self, key: str, bits: int | None = None) -> bool:
        """Forget the offsets of a group for a topic; with ``bits`` those of some queues, bit i for
        queue i. False: there was none."""
        queues = self.by_key.get(key, {})
        gone = [q for q in queues if bits is None or (q >= 0 and bits >> q & 1)]
        if not gone:
            return False
        if len(gone) == len(queues):
            del self.by_key[key]
            self._bytes -= _pair_bytes(key)
        else:
            # A thread may be writing the other one.
            self.by_key[key] = {q: offset for q, offset in queues.items() if q not in gone}
        self._count -= len(gone)
        self._bytes -= len(gone) * OFFSET_BYTES
        return True

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

    def __init__(
        self,
        config_folder: Path,
        store: OffsetSource,
        *,
        has_lmq: bool = False,
        queues_of: Callable[[str], int] = lambda topic: 0,
        steady_ms: Callable[[], int] = clock.steady_ms,
    ) -> None:
        """Empty. ``has_lmq``: enableLmq. ``queues_of``: how many queues of a topic can be read.
        ``steady_ms``: of a clock that nobody sets.
        """
        self._store = store
        self.deleted = DeletedLately(steady_ms)
        self.stale = StaleGroups(
            queues_of, lambda key, is_slow: store.set_slow_pulls(key[1], key[0], is_slow)
        )
        self._has_lmq = has_lmq
        self._was_full = False
        names = (LIGHT_FILE, PLAIN_FILE) if has_lmq else (PLAIN_FILE, LIGHT_FILE)
        self.file, self._other_file = (
            JsonFile(config_folder / name, self.snapshot) for name in names
        )
        self._drained = _Kept(self.file.touch, has_lmq=has_lmq)
        self.on_commit: Callable[[str, str, int], object] | None = None
        """Called with the group, the topic and the queue when a client or a tool sets an offset,
        other than by a fast pull."""
        self._set_here: set[tuple[str, int]] | None = None
        """Keys and queues that were set since a master's table was taken; None: there is none."""

    def load(self) -> None:
        """Read the file; where there is none, that of a broker with the other kind of queues.
        RocketMQ would leave that aside, and all groups would start anew.
        """
        loaded = self.file.load(_OffsetFile) or self._other_file.load(_OffsetFile)
        if loaded is None:
            return
        by_key = without_long_names(loaded.offsetTable, self.file, _is_long)
        for key, offset in loaded.lmqOffsetTable.items():
            by_key[key] = {LIGHT_QUEUE: offset}
        self._drained.fill(by_key)
        self._replace_stale(loaded.staleGroups)

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
        broker's, which a table that clients filled has space for. Who sets it means the queue that
        there is now: see :meth:`is_stale`. BrokerError, code 1: it is new, and there are
        ``OFFSETS_MAX`` already, or as many as ``TABLE_BYTES_MAX`` hold.
        """
        kept = self._current()
        if not is_own and not kept.has_capacity(group, topic, queue_id):
            raise kept.full()
        before = kept.put(group, topic, queue_id, offset)
        self._refresh(group, topic, queue_id)
        if self.on_commit is not None and not is_own:
            self.on_commit(group, topic, queue_id)
        if self._set_here is not None:
            self._set_here.add((topic + SEPARATOR + group, self._kept_id(group, queue_id)))
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

    # -- queues that begin anew -----------------------------------------------------------------
    def begin_anew(
        self,
        topic: str,
        queue_ids: Collection[int],
        readers: Mapping[str, Collection[int]],
        *,
        is_whole: bool = False,
    ) -> list[str]:
        """Queues of a topic are deleted: forget the offsets of all groups there, and examine what
        comes of these groups until they begin anew. The groups.

        ``readers``: groups that may read them, beside those that have offsets; see
        ``StaleGroups.begin`` for their connections. ``is_whole``: these are all of its queues. What
        groups have of others goes, too: the topic had more of them once.
        """
        kept = self._current()
        groups = list(dict.fromkeys([*self.groups_of(topic), *readers]))
        bits = bits_of(queue_ids)
        forgotten = 0
        for group in groups:
            key = topic + SEPARATOR + group
            had = bits_of(kept.by_key.get(key, ())) if is_whole else 0
            has_offsets = kept.forget(key, None if is_whole else bits)
            connections = readers.get(group, ())
            if has_offsets and ANYBODY in connections:
                connections = ()
            forgotten += self.stale.begin(topic, group, bits | had, connections)
        self.deleted.add(topic, bits)
        if groups or bits:
            self.file.touch()
        if groups:
            _log.info("topic %s begins anew for the groups %s", topic, ", ".join(groups[:20]))
        if forgotten:
            _log.warning(
                "too many groups of deleted topics were not seen again; %d are forgotten, and "
                "their members may go on at offsets of before the deletion",
                forgotten,
            )
        return groups

    def met(self, group: str, topic: str) -> None:
        """A group comes whose members share their queues. Where those of a topic were deleted
        lately, and the group stored no offset since, it may have one of before."""
        bits = self.deleted.queues(topic) & ~bits_of(self.of_topic(group, topic))
        if bits:
            self.stale.begin(topic, group, bits)
            self.file.touch()
            _log.info("topic %s begins anew for group %s, which was away", topic, group)

    def is_unknown(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a queue was deleted lately, and a group has stored no offset since."""
        is_deleted = self.deleted.has(topic, self._kept_id(group, queue_id))
        return is_deleted and self.query(group, topic, queue_id) < 0

    def is_behind_the_end(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether an offset is behind the end of a queue that was deleted lately: it is of
        before."""
        is_deleted = self.deleted.has(topic, queue_id)
        return is_deleted and offset > self._store.queue_bounds(topic, queue_id)[1]

    def is_stale(self, group: str, topic: str, queue_id: int, connection_id: int = -1) -> bool:
        """Whether a request of a group may come from an earlier life of a queue: then it neither
        stores an offset nor reads behind the start."""
        if not self.stale:
            return False
        return self.stale.is_stale(topic, group, self._kept_id(group, queue_id), connection_id)

    def start_of(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group that is stale begins in a queue."""
        offset = self.query(group, topic, queue_id)
        return offset if offset >= 0 else self._store.queue_bounds(topic, queue_id)[0]

    def begins(self, group: str, topic: str, queue_id: int, connection_id: int) -> None:
        """A group that is stale pulls a queue at its start: it is so no longer.

        Its offset is noted, so that a slave has it in place of one from before the deletion.
        """
        kept_id = self._kept_id(group, queue_id)
        if self.stale.is_known(topic, group, kept_id):
            start = self.start_of(group, topic, queue_id)
            self._current().put(group, topic, queue_id, start)
        self.stale.refresh(topic, group, kept_id, connection_id)
        self.file.touch()

    def _refresh(self, group: str, topic: str, queue_id: int) -> None:
        if self.stale:
            self.stale.refresh(topic, group, self._kept_id(group, queue_id))

    def _kept_id(self, group: str, queue_id: int) -> int:
        return LIGHT_QUEUE if self._drained.is_light(group) else queue_id

    def take(self, table: Mapping[str, Mapping[int, int]], stale: Mapping[str, str]) -> None:
        """Take over all that a master has: its offsets, see :meth:`put_all`, and which groups are
        stale there, whose offsets here are of before a deletion."""
        kept = self._current()
        if stale != self._shown_stale():
            self._replace_stale(stale)
            for (topic, group), bits in self.stale.queues().items():
                kept.forget(topic + SEPARATOR + group, bits)
            self.file.touch()
        self.put_all(table)
        self._set_here = set()

    def _shown_stale(self) -> dict[str, str]:
        return {**self.stale.shown(), **self.deleted.shown()}

    def _replace_stale(self, shown: Mapping[str, str]) -> None:
        self.stale.replace(shown)
        self.deleted.replace(shown)

    def begin_younger(self, below: int) -> int:
        """A slave becomes the master: queues whose first message is at ``below`` in the log or
        behind it began anew after its master's table was taken, which has nothing of what is
        there. Forget the offsets that the table had of them; how many queues that are.
        """
        set_here, self._set_here = self._set_here or set(), None
        younger: dict[str, dict[int, set[str]]] = {}
        is_younger: dict[tuple[str, int], bool] = {}
        for key, queues in self._current().by_key.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in queues.items():
                if offset <= 0 or (key, queue_id) in set_here:
                    continue
                place = topic, queue_id
                if place not in is_younger:
                    is_younger[place] = self._begins_behind(*place, below)
                if is_younger[place]:
                    younger.setdefault(topic, {}).setdefault(queue_id, set()).add(group)
        for topic, queue_id, *_ in self._store.queues():
            if self._begins_behind(topic, queue_id, below):
                self.deleted.add(topic, bits_of([queue_id]))
        for topic, by_queue in younger.items():
            for queue_id, groups in by_queue.items():
                for group in groups:
                    self._current().forget(topic + SEPARATOR + group, 1 << queue_id)
                    self.stale.begin(topic, group, 1 << queue_id)
        self.file.touch()
        return sum(is_younger.values())

    def _begins_behind(self, topic: str, queue_id: int, below: int) -> bool:
        entry = self._store.queue_entry(topic, queue_id, 0)
        return entry is not None and entry[0] >= below

    def put_all(self, table: Mapping[str, Mapping[int, int]]) -> None:
        """Take over a master's offsets, by ``topic@group`` and queue id; others stay. What there is
        no space for is left out."""
        kept = self._current()
        for key, queues in table.items():
            parts = key.split(SEPARATOR)
            if len(parts) != 2 or _is_long(key):
                continue
            for queue_id, offset in queues.items():
                if kept.has_capacity(parts[1], parts[0], queue_id):
                    kept.put(parts[1], parts[0], queue_id, offset)

    def fit(self, *, has_crashed: bool) -> int:
        """Bring the offsets behind the end of their queues back to it; how many that were. Without
        a crash those of queues without messages stay.

        A crash of the machine takes messages that groups have consumed, while the table is on the
        disk. What comes in their places has their offsets, and no group would get it.
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
        """Give group ``target`` the offsets that ``source`` has for a topic; a BrokerError as of
        :meth:`commit`.
        """
        offsets = self.of_topic(source, topic)
        if not offsets:
            return
        kept = self._current()
        key = topic + SEPARATOR + target
        more = len(offsets) - len(kept.by_key.get(key, ()))
        if more > 0 and not kept.has_capacity(target, topic, None, more):
            raise kept.full()
        kept.forget(key)
        for queue_id, offset in offsets.items():
            kept.put(target, topic, queue_id, offset)
            self._refresh(target, topic, queue_id)

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

    def snapshot(
        self, highest: Mapping[tuple[str, str, int], int] = _NO_BOUNDS
    ) -> dict[str, Mapping[str, object]]:
        """Everything, as the file holds it; offsets that are committed meanwhile may be in it.
        ``highest``: what to say at most, by group, topic and queue id.
        """
        kept = self._current()
        rows = dict(kept.by_key)
        for (group, topic, queue_id), offset in highest.items():
            key = topic + SEPARATOR + group
            row = rows.get(key, {})
            if row.get(queue_id, -1) > offset:
                rows[key] = {**row, queue_id: offset}
        # RocketMQ passes over what it does not know.
        shown = self._shown_stale()
        stale = {"staleGroups": shown} if shown else {}
        if not self._has_lmq:
            return {"offsetTable": _Rows(rows), **stale}
        plain: dict[str, dict[int, int]] = {}
        light: dict[str, int] = {}
        for key, queues in rows.items():
            if kept.is_light(key.partition(SEPARATOR)[2]):
                light[key] = queues[LIGHT_QUEUE]
            else:
                plain[key] = dict(queues)
        return {"lmqOffsetTable": light, "offsetTable": plain, **stale}

    def _current(self) -> _Kept:
        """The offsets, the only way to them: what fast pulls committed is taken over first.

        New ones without space are left out, with a line in the log: whoever asked has the messages
        already.
        """
        kept = self._drained
        is_full = False
        for group, topic, queue_id, offset in self._store.drain_commits():
            if kept.has_capacity(group, topic, queue_id):
                kept.put(group, topic, queue_id, offset)
            else:
                is_full = True
        if is_full and not self._was_full:
            _log.warning("offsets that pulls commit are left out: %s", kept.full().remark)
        self._was_full = is_full
        return kept

    async def persist(self) -> None:
        """Write the file when something changed."""
        self._current()
        await self.file.persist()


class _Rows(Mapping[str, dict[int, int]]):
    """Offsets by key, each copied when it is examined. A thread writes them while others commit,
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
