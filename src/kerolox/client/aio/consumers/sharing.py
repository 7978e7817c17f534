"""The share of a topic's queues that a member of a group has, and when it is examined again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.rebalance import allocate
from kerolox.client.core.failures import note_failure
from kerolox.client.core.routes import subscribe_queues
from kerolox.errors import ClientError
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.consuming.rebalance import AllocationStrategy
    from kerolox.client.core.failures import FailureCallback
    from kerolox.message import MessageQueue

REBALANCE_RETRY_SECONDS = 0.5
"""First pause before a rebalance that failed, or that lacked a route, is repeated; it doubles."""

_log = logging.getLogger(__name__)


async def share_of(
    cluster: Cluster,
    group: str,
    topic: str,
    strategy: AllocationStrategy | None,
    say_hello: Callable[[], Awaitable[None]],
) -> list[MessageQueue] | None:
    """The queues of a topic that this member is to read now; None while the topic has no route.

    Args:
        cluster: who we are, and whom to ask.
        group: as brokers know it.
        topic: as brokers know it.
        strategy: how the group shares; None: each member reads all queues (broadcasting).
        say_hello: makes us known to a broker that has lost us, by its restart for example.

    Raises:
        KeroloxError: it could not be found out.
    """
    route = cluster.routes.get(topic) or await cluster.refresh(topic)
    if route is None:
        if not topic.startswith(RETRY_PREFIX):
            _log.info("topic %s has no route yet", topic)
        return None
    queues = subscribe_queues(topic, route)
    if strategy is None:
        return queues
    members = await cluster.members(group, topic)
    if cluster.client_id not in members:
        await say_hello()
        members = await cluster.members(group, topic)
        if not members:
            raise ClientError(f"no broker knows a member of group {group!r}")
    return allocate(strategy, cluster.client_id, queues, members)


async def keep_balanced(
    group: str,
    wanted: asyncio.Event,
    interval_ms: int,
    rebalance: Callable[[], Awaitable[None]],
    is_behind: Callable[[], bool],
    on_failure: FailureCallback | None = None,
) -> None:
    """Rebalance for ever: when it is wanted, else after an interval.

    Args:
        group: for the log.
        wanted: set by whoever wants it now.
        interval_ms: the longest pause.
        rebalance: what to do; what it raises is logged.
        is_behind: something failed or has no route. It is tried sooner, ever less often while it
            stays so.
        on_failure: told of what ``rebalance`` raises.
    """
    most, soon = interval_ms / 1000, REBALANCE_RETRY_SECONDS
    while True:
        again = is_behind()
        interval = min(soon, most) if again else most
        soon = min(2 * soon, most) if again else REBALANCE_RETRY_SECONDS
        try:
            async with asyncio.timeout(interval):
                await wanted.wait()
        except TimeoutError:
            pass
        wanted.clear()
        try:
            await rebalance()
        except Exception as error:
            note_failure(on_failure, _log, f"rebalance of group {group} failed", error)
