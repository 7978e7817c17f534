"""Who of a group reads which queue: the allocation strategies and the difference they make.

Every member computes the same answer from the same sorted queues and the same sorted client ids,
so nobody has to be asked. As long as all members see the same lists, each queue has exactly one.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kerolox.errors import ClientError, ConfigError, KeroloxError
from kerolox.message import MessageQueue
from kerolox.protocol.routing.allocation import (
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
    sort_as_java,
)

__all__ = [
    "STRATEGIES",
    "VIRTUAL_NODES",
    "AllocationStrategy",
    "QueueChange",
    "allocate",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_consistent_hash",
    "queue_changes",
    "sort_as_java",
    "strategy_of",
]

VIRTUAL_NODES = 10
"""Places of each member on the ring (``virtualNodeCnt``)."""


class QueueChange(NamedTuple):
    """How the queues of a topic are shared now (``MessageQueueListener``)."""

    topic: str
    queues: list[MessageQueue]
    """All queues of the topic, sorted."""
    assigned: list[MessageQueue]
    """Those of them that are this consumer's."""


def allocate_by_consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> AllocationStrategy:
    """CONSISTENT_HASH: queues move little when members come and go.

    Args:
        virtual_nodes: places of each member on the ring.

    Raises:
        ConfigError: there would be no place.
    """
    if virtual_nodes < 1:
        raise ConfigError(f"virtual_nodes is {virtual_nodes!r}; it must be at least 1")

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        places = {
            _place(f"{member}-{number}"): member
            for member in client_ids
            for number in range(virtual_nodes)
        }
        ring = sorted(places)
        return [queue for queue in queues if places[_next(ring, _text(queue))] == client_id]

    return allocate


def _place(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _next(ring: Sequence[int], key: str) -> int:
    at = bisect_left(ring, _place(key))
    return ring[at if at < len(ring) else 0]


def _text(queue: MessageQueue) -> str:
    """``MessageQueue.toString`` of RocketMQ."""
    topic, broker_name, queue_id = queue
    return f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]"


STRATEGIES: dict[str, AllocationStrategy] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
    "CONSISTENT_HASH": allocate_by_consistent_hash(),
}
"""Strategies by RocketMQ's names; those that need to be told more are in ``strategies.py``."""


def strategy_of(allocation: str | AllocationStrategy) -> AllocationStrategy:
    """The strategy that a setting names, or is; ConfigError: there is none of that name."""
    if callable(allocation):
        return allocation
    if not isinstance(allocation, str) or allocation not in STRATEGIES:
        raise ConfigError(
            f"allocation is {allocation!r}; it must be one of {', '.join(STRATEGIES)}, or a"
            " function, as allocate_by_config, allocate_by_machine_room and allocate_nearby make"
        )
    return STRATEGIES[allocation]


def allocate(
    strategy: AllocationStrategy,
    client_id: str,
    queues: Collection[MessageQueue],
    client_ids: Collection[str],
) -> list[MessageQueue]:
    """Sort both lists as every member does, then ask the strategy. ClientError: a strategy of the
    user's failed, or gave queues that are not there.
    """
    everything = sorted(set(queues))
    name = getattr(strategy, "__qualname__", repr(strategy))
    try:
        share = list(strategy(client_id, everything, sort_as_java(set(client_ids))))
    except KeroloxError:
        raise
    except Exception as error:
        raise ClientError(f"allocation strategy {name} failed: {error!r}") from error
    foreign = set(share) - set(everything)
    if foreign:
        raise ClientError(f"allocation strategy {name} gave {min(foreign)}, which is not there")
    return share


def queue_changes(
    owned: Collection[MessageQueue], allocated: Collection[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """What to give up and what to take on, each sorted."""
    before, after = set(owned), set(allocated)
    return sorted(before - after), sorted(after - before)
