"""When brokers gave out what is popped, and where they reset offsets.

A member may come late for an answer, and a receipt tells the time of a wall clock that jumps. So
the tables of the brokers are watched, and the answers that clients get. A reset may be done long
after its operator gave it up: its request waited at a broker that stood still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.pop.orders import Delivery, OrderTable
from kerolox.broker.pop.table import PopTable
from kerolox.client.aio.consumers.popping.pops import Pops
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.audit import Audit
from tests.simulation.patches import Patches
from tests.simulation.process import current

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


def install(patches: Patches, cluster: Cluster) -> None:
    """Have the history of a cluster note each pop and reset."""
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

    real_changed = Audit.changed

    def changed(
        self: Any, request: Any, kind: str, name: str, old: Any = None, new: Any = None, **more: Any
    ) -> None:
        real_changed(self, request, kind, name, old, new, **more)
        if request.command.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            _note_reset(cluster, name, old, new)

    loop = cluster.loop
    patches.set(Audit, "changed", changed)
    patches.set(Pops, "pop", pop)
    patches.set(PopTable, "deliver", deliver)
    patches.set(OrderTable, "deliver", deliver_in_order)


def _note(cluster: Cluster, key: QueueKey, offsets: Sequence[int], pop_time: int) -> None:
    broker = _broker(cluster)
    for offset in offsets:
        cluster.history.popped(
            (key.group, broker, key.topic, key.queue_id, offset, pop_time), cluster.loop.time()
        )


def _note_reset(
    cluster: Cluster, name: str, old: Mapping[str, int], new: Mapping[str, int]
) -> None:
    """A group need not get what is before its new offsets. ``name``: ``group@topic``."""
    group, _, topic = name.partition("@")
    broker = _broker(cluster)
    for queue_id, offset in new.items():
        if offset != old.get(queue_id):
            cluster.history.groups[group].skip((topic, broker, int(queue_id)), offset)


def _broker(cluster: Cluster) -> str:
    """The name of the broker whose code runs."""
    name: str = cluster.nodes[_name()].broker.config.broker_name
    return name


def _name() -> str:
    process = current()
    assert process is not None
    return process.name
