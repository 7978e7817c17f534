"""When brokers gave out what is popped.

A member may come late for an answer, and a receipt tells the time of a wall clock that jumps. So
the tables of the brokers are watched, and the answers that clients get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.pop.orders import Delivery, OrderTable
from kerolox.broker.pop.table import PopTable
from kerolox.client.aio.consumers.popping.pops import Pops
from tests.simulation.patches import Patches
from tests.simulation.process import current

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


def install(patches: Patches, cluster: Cluster) -> None:
    """Have the history of a cluster note each pop."""
    of_queues, of_orders = PopTable.deliver, OrderTable.deliver

    def deliver(
        self: Any, key: QueueKey, start: int, offsets: Sequence[int], *args: Any, **more: Any
    ) -> int:
        pop_time = of_queues(self, key, start, offsets, *args, **more)
        _note(cluster, key, offsets, pop_time)
        return pop_time

    def deliver_in_order(
        self: Any, key: QueueKey, start: int, offsets: Sequence[int], *args: Any, **more: Any
    ) -> Delivery:
        delivery = of_orders(self, key, start, offsets, *args, **more)
        _note(cluster, key, offsets, delivery.pop_time)
        return delivery

    real_pop = Pops.pop

    async def pop(self: Any, *args: Any, **more: Any) -> Any:
        popped = await real_pop(self, *args, **more)
        for lease in popped.leases:
            place = self._group, lease.broker_name, lease.real_topic(self._group), lease.queue_id
            for offset in lease.out:
                cluster.history.came(_name(), (*place, offset, lease.times.pop_time), loop.time())
        return popped

    loop = cluster.loop
    patches.set(Pops, "pop", pop)
    patches.set(PopTable, "deliver", deliver)
    patches.set(OrderTable, "deliver", deliver_in_order)


def _note(cluster: Cluster, key: QueueKey, offsets: Sequence[int], pop_time: int) -> None:
    broker = cluster.nodes[_name()].broker.config.broker_name
    for offset in offsets:
        cluster.history.popped(
            (key.group, broker, key.topic, key.queue_id, offset, pop_time), cluster.loop.time()
        )


def _name() -> str:
    process = current()
    assert process is not None
    return process.name
