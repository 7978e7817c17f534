"""What pops have out, beside the offsets: ``popState.json`` and ``consumerOrderInfo.json``.

:class:`~kerolox.broker.pop.state.PopState` decides; here are its files, and its commits go to the
table of offsets. The order of writes is that of :mod:`kerolox.broker.pop.snapshot`. A slave decides
nothing: it keeps what its master said last, until it is the master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kerolox import clock
from kerolox.broker.base import Base
from kerolox.broker.pop.copies import LastCopies
from kerolox.broker.pop.leases import Instant, Lease, QueueKey
from kerolox.broker.pop.orders import OrderFile
from kerolox.broker.pop.snapshot import (
    NO_MARK,
    PopSnapshot,
    QueueSnapshot,
    StoredQueue,
    restore,
    take_queue,
    written_by_uptime,
)
from kerolox.broker.pop.state import PopState
from kerolox.broker.pop.table import PopLimits
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.json_file import JsonFile, decode_table
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.names import REVIVE_GROUP
from kerolox.remoting.time_slices import TimeSlices

if TYPE_CHECKING:
    from kerolox.broker.pop.java_log import JavaReviveLog
    from kerolox.broker.pop.takeover import Takeover

STATE_FILE = "popState.json"
ORDER_FILE = "consumerOrderInfo.json"

SELF, JAVA = "a pop", "the revive log of a RocketMQ broker"
"""Who sets an offset, in the log."""

_log = logging.getLogger(__name__)

_Loaded = TypeVar("_Loaded")

_decode_orders = partial(decode_table, table_type=OrderFile)


class PopTables:
    """The pops of one broker, and their files."""

    def __init__(
        self, base: Base, topics: TopicTable, groups: GroupTable, offsets: OffsetTable
    ) -> None:
        """Nothing is out; no file is read."""
        self._base = base
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._limits = PopLimits(of_queue=base.config.pop_inflight_message_threshold)
        is_fast = base.now_ms is clock.now_ms and base.steady_ms is clock.steady_ms
        self._kernel = base.store if base.store.lends_pops and is_fast else None
        """What queues are lent to; None: to nobody, since the kernel has clocks of its own."""
        self.on_renewed: Callable[[Lease], None] | None = None
        """See :class:`~kerolox.broker.pop.table.PopTable`."""
        self.state = PopState(self._limits, self._kernel, self._renews)
        self.copies = LastCopies()
        """Of messages that nobody acknowledged."""
        offsets.on_commit = self._disturbed
        folder = base.config.config_folder
        self._state_file = JsonFile(folder / STATE_FILE, lambda: self._taken_last, is_own=True)
        """Without a backup: that could pass over what an operator wants again."""
        self._taken_last = PopSnapshot()
        """What the file of the state has, or is to have. The offsets of then are written."""
        self._order_file = JsonFile(folder / ORDER_FILE, self._orders)
        self._lock = asyncio.Lock()
        self._waiting: tuple[PopSnapshot | None, OrderFile | None] = None, None
        """Of the files, or of the master: what counts once this broker leads."""
        self._java_log: tuple[tuple[str, int], ...] = ()
        """Topics and queues of a Java broker's log, which is read to its end."""
        self._has_begun = False
        self._written: object = None
        """Which state the file has: a version of ours, or the pop time of a master that has nothing
        out."""
        self._in_file: frozenset[QueueKey] = frozenset()
        """The queues that the file has, and will have once its write is over."""

    def now(self) -> Instant:
        """The time of both clocks."""
        return Instant(self._base.now_ms(), self._base.steady_ms())

    def _uptime(self) -> tuple[str, int]:
        """The machine's boot, and how long it lasts; an empty text: there is no telling."""
        from kerolox.store.files.checkpoint import AbortFile

        is_real = self._base.steady_ms is clock.steady_ms
        boot = AbortFile(str(self._state_file.path)).boot_id() if is_real else ""
        return boot, clock.uptime_ms()

    def _last_said(self, now: Instant) -> tuple[PopSnapshot | None, OrderFile | None]:
        """What files, or the master, said last."""
        snapshot, orders = self._waiting
        if snapshot is not None:
            snapshot = written_by_uptime(snapshot, now, *self._uptime())
        return snapshot, orders

    # -- start, promotion, demotion -------------------------------------------------------------
    def load(self) -> None:
        """Read the files. One that is damaged is left aside: what it says is delivered again."""
        self._waiting = (
            _loaded(self._state_file, PopSnapshot.decode),
            _loaded(self._order_file, _decode_orders),
        )

    def take_over(self, log: JavaReviveLog, read: Mapping[tuple[str, int], int]) -> Takeover:
        """What a Java broker has out counts as what the file has; to be called before
        :meth:`begin`. ``read``: topics and queues of its log, with the offset of the last record
        that was read."""
        from kerolox.broker.pop.takeover import JavaPlace, take_over

        def place_of(key: QueueKey) -> JavaPlace | None:
            if key.topic not in self._topics or self._groups.get(key.group) is None:
                return None
            bounds = self._base.store.queue_bounds(key.topic, key.queue_id)
            return JavaPlace(self._offsets.query(key.group, key.topic, key.queue_id), *bounds)

        now = self.now()
        snapshot, orders = self._last_said(now)
        done = take_over(
            snapshot,
            log.revivals(),
            log.floors,
            now,
            place_of=place_of,
            stored_of=self._stored,
            limits=self._limits,
        )
        for key, offset in done.commits.items():
            self._offsets.commit(key.group, key.topic, key.queue_id, offset, JAVA, is_own=True)
        if done.commits or done.out:
            self._waiting = done.snapshot, orders
        self._java_log = tuple(read)
        for (topic, queue_id), offset in read.items():
            if offset == self._offsets.query(REVIVE_GROUP, topic, queue_id):
                continue
            self._offsets.commit(REVIVE_GROUP, topic, queue_id, offset, JAVA, is_own=True)
        return done

    def _pass_java_log(self) -> None:
        """What timers bring to the log of a Java broker is of pops that were taken over."""
        for topic, queue_id in self._java_log:
            last = self._base.store.queue_bounds(topic, queue_id)[1] - 1
            if last > self._offsets.query(REVIVE_GROUP, topic, queue_id):
                self._offsets.commit(REVIVE_GROUP, topic, queue_id, last, JAVA, is_own=True)

    def begin(self) -> int:
        """The broker leads, its offsets are those that count: what the files, or its master, said
        last is out again. How many queues are left out, of which the files say something that does
        not hold."""
        self._renew()
        now = self.now()
        snapshot, orders = self._last_said(now)
        self._waiting = None, None
        left_out = restore(self.state.queues, snapshot, now, self._stored)
        if orders is not None:
            left_out += self.state.orders.load(orders, now)
            left_out += self.state.orders.forget(self._is_unfit(), now)
            self.state.orders.is_touched = True
        self._has_begun = True
        self._in_file = frozenset(self.state.queues.held_queues())
        if snapshot is not None:
            self._in_file = self._in_file.union(each.key for each in snapshot.queues)
        self._written = None
        if left_out:
            _log.warning(
                "what was out of %d queues is not known any more: their groups get it again",
                left_out,
            )
        self.commit()
        return left_out

    def end(self) -> None:
        """The broker leads no longer: another one decides."""
        self._has_begun = False
        self._java_log = ()
        self.copies.clear()
        self._renew()
        self._waiting = None, None

    def _renew(self) -> None:
        self.state.queues.take_back_all()
        self.state = PopState(self._limits, self._kernel, self._renews)

    def _stored(self, key: QueueKey, offset: int) -> StoredQueue | None:
        """What there is of a queue that the file has."""
        if key.topic not in self._topics or self._groups.get(key.group) is None:
            return None
        return StoredQueue(
            self._offsets.query(key.group, key.topic, key.queue_id),
            self._base.store.queue_bounds(key.topic, key.queue_id)[1],
            self._mark(key, offset),
        )

    def _mark(self, key: QueueKey, offset: int) -> int:
        entry = self._base.store.queue_entry(key.topic, key.queue_id, offset)
        return NO_MARK if entry is None else entry[0]

    def _is_unfit(self) -> Callable[[QueueKey], bool]:
        """Blocks of queues that are gone, or that end before the block does: what comes in the
        places of messages that a crash took must not count as done."""
        bounds = self._base.store.queue_bounds
        unfit = {
            key
            for key, end in self.state.orders.ends()
            if key.topic not in self._topics
            or self._groups.get(key.group) is None
            or bounds(key.topic, key.queue_id)[1] < end
        }
        return unfit.__contains__

    # -- offsets --------------------------------------------------------------------------------
    def commit(self) -> None:
        """Bring the offsets that pops committed to their table. To be called after each change."""
        for key, offset in self.state.drain_commits():
            self._offsets.commit(key.group, key.topic, key.queue_id, offset, SELF, is_own=True)

    def _renews(self, lease: Lease) -> None:
        if self.on_renewed is not None:
            self.on_renewed(lease)

    def group_changed(self, group: str) -> None:
        """The kernel knows nothing of what changed: it asks anew."""
        self.state.queues.take_back_group(group)

    def _disturbed(self, group: str, topic: str, queue_id: int) -> None:
        """Somebody else committed an offset: where the group is, is decided with the next pop."""
        self.state.queues.take_back(QueueKey(group, topic, queue_id))

    # -- what operators do ----------------------------------------------------------------------
    def is_known(self, group: str, topic: str) -> bool:
        """Whether something of a topic is out for a group, or the file says so."""
        return any(key.group == group and key.topic == topic for key in self._known())

    def _known(self) -> Iterator[QueueKey]:
        yield from self._in_file
        yield from self.state.queues.held_queues()
        for key, _ in self.state.orders.ends():
            yield key

    @asynccontextmanager
    async def resetting(
        self, group: str, topic: str, queue_ids: Collection[int] | None = None
    ) -> AsyncIterator[None]:
        """An operator sets offsets of a group in the body, at once. What is out is forgotten
        before, here and in the file, and the offsets are on the disk afterwards. Meanwhile nobody
        gets anything of the queues: it would come again. OSError: a file can't be written; before
        the body nothing is forgotten, and the offsets must stay.
        """
        if not self.is_known(group, topic):
            yield
            return

        def is_meant(key: QueueKey) -> bool:
            is_queue = queue_ids is None or key.queue_id in queue_ids
            return key.group == group and key.topic == topic and is_queue

        with self.state.queues.closed(is_meant):
            has_block = any(is_meant(key) for key, _ in self.state.orders.ends())
            await self._write_over(is_meant, has_block=has_block)
            self.forget_now(is_meant)
            yield
            await self._offsets.persist()

    async def forget(self, is_gone: Callable[[QueueKey], bool]) -> None:
        """Queues or groups are gone: what was out of them is forgotten, here and in the files.
        Others that are made in their places meanwhile stay."""
        self.forget_now(is_gone)
        await self._write_over(is_gone, has_block=self.state.orders.is_touched)

    def forget_now(self, is_gone: Callable[[QueueKey], bool]) -> None:
        """The same in memory alone, before anybody else runs; :meth:`forget` has to follow, unless
        the files do not count for these queues."""
        self.state.forget(is_gone, self.now())

    async def _write_over(self, is_meant: Callable[[QueueKey], bool], *, has_block: bool) -> None:
        """Have the files lack queues that are forgotten, or closed."""
        try:
            if any(map(is_meant, self._in_file)):
                await self._write_state(is_forced=True)
            if has_block:
                await self._order_file.write_over()
        finally:
            # What is closed, or could not be written, is to be written again.
            self._written = None
            self.state.orders.is_touched |= has_block

    # -- the files ------------------------------------------------------------------------------
    async def persist(self) -> None:
        """Write the offsets, and what is out if that changed. After an OSError it is tried again at
        the next call.
        """
        if not self._has_begun:
            await self._offsets.persist()
            return
        self._pass_java_log()
        self.state.queues.take_back_idle()
        await self._write_state()
        if self.state.orders.is_touched:
            self.state.orders.is_touched = False
            self._order_file.touch()
        await self._order_file.persist()

    async def _write_state(self, *, is_forced: bool = False) -> None:
        async with self._lock:
            version = self.state.queues.version
            may_differ = self._in_file or self.state.queues.out
            if not is_forced and (version == self._written or not may_differ):
                await self._offsets.persist()
                return
            self._in_file = self._in_file.union(self.state.queues.held_queues())
            snapshot = await self._taken()
            await self._offsets.persist()
            await self._put(snapshot)
            self._in_file = frozenset(each.key for each in snapshot.queues)
            self._written = version

    async def _taken(self) -> PopSnapshot:
        """What is out, one queue after the other, with other work in between."""
        slices = TimeSlices()
        begin, state = self.now(), self.state
        boot, uptime = self._uptime()
        queues: list[QueueSnapshot] = []
        for key in list(state.queues.held_queues()):
            found = take_queue(state.queues, key, self.now(), self._mark)
            if found is not None:
                queues.append(found)
            await slices.checkpoint()
        # What was forgotten meanwhile is not out; what is closed is about to be forgotten.
        table = state.queues
        held = frozenset(each for each in table.held_queues() if not table.is_closed(each))
        kept = [each for each in queues if each.key in held]
        return PopSnapshot(
            pop_time=state.queues.pop_time,
            queues=kept,
            written_at=begin.wall_ms,
            boot=boot,
            uptime=uptime,
        )

    async def _put(self, snapshot: PopSnapshot) -> None:
        self._taken_last = snapshot
        self._state_file.mark()
        await self._state_file.flush()

    def _orders(self) -> object:
        return self.state.orders.snapshot(self.state.queues.is_closed)

    # -- slaves ---------------------------------------------------------------------------------
    async def shown(self) -> dict[str, str]:
        """What is out, and ordered blocks, as a slave takes them: members of an answer. To be asked
        before the offsets."""
        async with self._lock:
            snapshot = await self._taken()
        return {
            "popState": snapshot.encode().decode(),
            "popOrders": fastjson.dumps(self._orders()).decode(),
        }

    def take(self, state: str, orders: str) -> None:
        """Take over what a master has out; BodyError: it is no such text."""
        if self._has_begun:
            return
        snapshot = PopSnapshot.decode(state.encode()) if state else None
        blocks = _decode_orders(orders.encode()) if orders else None
        self._waiting = snapshot, blocks

    async def keep(self) -> None:
        """Write what a master has out, for a start of this slave without it."""
        snapshot, _ = self._waiting
        if self._has_begun or snapshot is None:
            return
        if not snapshot.queues and snapshot.pop_time == self._written:
            # Of nothing it does not matter when that was so.
            return
        self._written = None
        await self._put(snapshot)
        if not snapshot.queues:
            self._written = snapshot.pop_time


def _loaded(file: JsonFile, decode: Callable[[bytes], _Loaded]) -> _Loaded | None:
    """What a file has; None: there is none, or it is damaged and left aside."""
    try:
        return decode(file.read())
    except FileNotFoundError:
        return None
    except (OSError, BodyError) as error:
        file.put_aside()
        _log.warning(
            "%s: %s; it is kept as %s, and groups get again what was out",
            *(file.path, getattr(error, "strerror", None) or error, file.damaged_path.name),
        )
        return None
