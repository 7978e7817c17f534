"""Messages whose invisible time the broker renews while their client is here (``auto_renew``;
``ReceiptHandleProcessor``).

A push consumer names no invisible time. Its message is invisible for a minute, and before that is
over for longer and longer, three hours in all. Its first receipt counts all the time. When the
client leaves, its messages come again after a second. Times go by the steady clock, as those of
pops do: the pop times of receipts are of a clock that may be set.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.requests.pop_acks import change
from kerolox.kernel.feed import Given
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.protocol.pop import PopReceipt
from kerolox.protocol.pop_names import TopicKind
from kerolox.remoting.time_slices import TimeSlices
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kerolox.broker.context import Context
    from kerolox.broker.grpc.clients import GrpcClient
    from kerolox.broker.grpc.stats import GrpcStats
    from kerolox.broker.pop.leases import Lease
    from kerolox.broker.pop.table import PopTable
    from kerolox.kernel.feed import GivenMembers

AHEAD_MS = 10_000
"""So long before its time is over a message is renewed (``renewAheadTimeMillis``)."""

STEPS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
"""For how long, by the number of renewals before; the last one repeats."""

RENEWED_MS_MAX = 3 * 3_600_000
"""``renewMaxTimeMillis``."""

GIVEN_BACK_MS = 1_000
"""``NACK_INVISIBLE_TIME``."""


class _Place(NamedTuple):
    group: str
    topic: str
    kind: TopicKind
    queue_id: int
    offset: int


@dataclass(slots=True)
class _Renewed:
    client: GrpcClient
    first: int
    """Pop time of its delivery."""
    receipt: PopReceipt
    ends_at: int
    """When its message would come again, by the steady clock."""
    last_end: int
    """When its time ends at the latest, however often it is renewed."""
    times: int = 0


def _place(group: str, topic: str, receipt: PopReceipt) -> _Place:
    return _Place(group, topic, receipt.kind, receipt.queue_id, receipt.queue_offset)


class Renewals:
    """Those of one broker."""

    def __init__(
        self, broker: Context, stats: GrpcStats, client_of: Callable[[str], GrpcClient | None]
    ) -> None:
        """Nothing is renewed. ``stats`` count renewals. ``client_of``: who is here of that id."""
        self._client_of = client_of
        self._broker, self._stats = broker, stats
        self._all: dict[_Place, _Renewed] = {}
        self._of_client: dict[GrpcClient, set[_Place]] = {}
        self._due: list[tuple[int, _Place]] = []
        """By the steady clock; some are gone."""
        self._unread: deque[tuple[str, str, PopReceipt]] = deque()
        self._giving_back: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._all) + self._queues.renewed

    @property
    def _queues(self) -> PopTable:
        return self._broker.tables.pops.state.queues

    def add(
        self,
        client: GrpcClient,
        group: str,
        topic: str,
        receipt: PopReceipt,
        ends_at: int | None = None,
    ) -> None:
        """A client that is here got a message without an invisible time of its own. ``ends_at``:
        when that time ends, by the steady clock; None: it has just begun."""
        if ends_at is None:
            ends_at = self._broker.steady_ms() + receipt.invisible_time
        last_end = ends_at - receipt.invisible_time + RENEWED_MS_MAX
        place = _place(group, topic, receipt)
        self._drop(place)
        self._all[place] = _Renewed(client, receipt.pop_time, receipt, ends_at, last_end)
        self._of_client.setdefault(client, set()).add(place)
        self._plan(place, ends_at)

    def add_lent(self, lease: Lease) -> None:
        """Messages come back that the kernel gave out for a client that named no time."""
        client, key = self._client_of(lease.owner), lease.key
        if client is None:
            return
        given = Given(*key, lease.offsets[0], 0, lease.pop_time, lease.invisible_ms)
        for offset in lease.open_offsets():
            receipt = _receipt(given, offset, self._broker.config.broker_name)
            self.add(client, key.group, key.topic, receipt, lease.visible_at)

    def newest(self, group: str, topic: str, receipt: PopReceipt) -> PopReceipt | None:
        """The receipt that counts now, of a delivery that is renewed; None: it is not."""
        found = self._all.get(_place(group, topic, receipt))
        if found is None or not found.first <= receipt.pop_time <= found.receipt.pop_time:
            return None
        return found.receipt

    def remove(self, group: str, topic: str, receipt: PopReceipt) -> None:
        """A message is done, or its client has named a time. A later delivery stays."""
        if self.newest(group, topic, receipt) is not None:
            self._drop(_place(group, topic, receipt))

    async def run(self) -> None:
        """Renew what is due."""
        slices = TimeSlices()
        # The kernel does not renew: what is due soon comes back.
        now = self._broker.steady_ms()
        self._queues.take_back_renewed(None, now + 2 * AHEAD_MS)
        end = now + AHEAD_MS
        while self._due and self._due[0][0] <= end:
            due, place = heapq.heappop(self._due)
            renewed = self._all.get(place)
            if renewed is None or due != renewed.ends_at:
                continue
            self._renew(place, renewed)
            await slices.checkpoint()

    def give_back(self, given: Iterable[tuple[str, str, PopReceipt]]) -> None:
        """Messages were sent to a client that has not read them: they come again soon, unless they
        are done. Of each the group, the topic and its receipt."""
        self._unread.extend(given)
        if self._unread and self._giving_back is None:
            self._giving_back = asyncio.get_running_loop().create_task(self._give_back())

    async def _give_back(self) -> None:
        try:
            slices = TimeSlices()
            while self._unread:
                group, topic, receipt = self._unread.popleft()
                place = _place(group, topic, receipt)
                newest = self.newest(group, topic, receipt)
                if self._change(place, newest or receipt, GIVEN_BACK_MS) is not None:
                    self._stats.unread += 1
                    if newest is not None:
                        self._drop(place)
                await slices.checkpoint()
        finally:
            self._giving_back = None

    async def close(self) -> None:
        """What is not given back yet comes again after its time."""
        await end_tasks(self._giving_back)

    def client_left(self, client: GrpcClient) -> None:
        """Its messages come again soon."""
        self._queues.take_back_renewed(client.client_id, LONG_MAX)
        for place in self._of_client.pop(client, ()):
            renewed = self._all.pop(place, None)
            if renewed is not None:
                self._change(place, renewed.receipt, GIVEN_BACK_MS)

    def _renew(self, place: _Place, renewed: _Renewed) -> None:
        now = self._broker.steady_ms()
        left_ms = renewed.last_end - now
        step_ms = min(STEPS_MS[min(renewed.times, len(STEPS_MS) - 1)], left_ms)
        changed = None
        if left_ms > AHEAD_MS:
            changed = self._change(place, renewed.receipt, step_ms)
        if changed is None:
            self._drop(place)
            return
        self._stats.renewals += 1
        renewed.receipt, renewed.times = changed, renewed.times + 1
        renewed.ends_at = now + step_ms
        self._plan(place, renewed.ends_at)

    def _change(self, place: _Place, receipt: PopReceipt, ms: int) -> PopReceipt | None:
        """None: the message is done, or came again."""
        key = QueueKey(place.group, place.kind.topic(place.topic, place.group), place.queue_id)
        return change(self._broker, key, place.offset, receipt, ms)

    def _plan(self, place: _Place, ends_at: int) -> None:
        heapq.heappush(self._due, (ends_at, place))
        if len(self._due) > 1_024 + 2 * len(self._all):
            self._due = [(each.ends_at, at) for at, each in self._all.items()]
            heapq.heapify(self._due)

    def _drop(self, place: _Place) -> None:
        renewed = self._all.pop(place, None)
        if renewed is not None:
            places = self._of_client.get(renewed.client)
            if places is not None:
                places.discard(place)
                if not places:
                    del self._of_client[renewed.client]


def messages_of(
    given: Iterable[GivenMembers], broker_name: str
) -> Iterator[tuple[str, str, PopReceipt]]:
    """What the kernel gave out as :meth:`Renewals.give_back` takes it."""
    for each in map(Given._make, given):
        for offset in range(each.start, each.start + each.messages):
            yield each.group, each.topic, _receipt(each, offset, broker_name)


def _receipt(given: Given, offset: int, broker_name: str) -> PopReceipt:
    """Of a message that the kernel gave out."""
    return PopReceipt(
        start_offset=given.start,
        pop_time=given.pop_time,
        invisible_time=given.invisible_ms,
        revive_queue_id=0,
        kind=TopicKind.NORMAL,
        broker_name=broker_name,
        queue_id=given.queue_id,
        queue_offset=offset,
    )
