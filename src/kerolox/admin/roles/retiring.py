"""Taking a broker out of service: no new messages, all of its messages consumed, then safe to stop.

The setting ``brokerPermission`` retires a broker, which outlasts restarts and registrations.
``wipeWritePerm`` notifies name servers that still send producers to it. A broker without write
permission goes on delivering, also delayed messages and the ends of transactions. Retries of
consumers go to other brokers.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.admin.asking import answers_of
from kerolox.admin.consumers.progress import ProgressRequests
from kerolox.admin.messages.waiting import WaitingMessageRequests
from kerolox.admin.name_server import (
    NameServerRequests,
)
from kerolox.admin.topic_lists import TopicListRequests
from kerolox.admin.topics import TopicKind, queue_statuses, topic_kind
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import ClientError, TopicNotFoundError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import Perm
from kerolox.protocol.names import DLQ_PREFIX, HALF_TOPIC, TRANSACTION_GROUP
from kerolox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kerolox.admin.cluster import ClusterInfo
    from kerolox.admin.topics import QueueStatus
    from kerolox.client.aio.network.access import Access
    from kerolox.client.core.routes import BrokerAddresses
    from kerolox.protocol.bodies import TopicConfig

QUIET_SECONDS = 40.0
"""Default of how long nothing must be stored: clients look for new routes every 30 s."""

POLL_SECONDS = 2.0
"""Between two checks of a broker that drains."""

ROUTE_SECONDS_MAX = 10.0
"""How long name servers may take to hear of a broker's permission from it."""


@dataclass(frozen=True, slots=True)
class BrokerDrain:
    """The work that is left before a broker can stop."""

    address: str
    broker_name: str
    sending: tuple[str, ...]
    """Name servers that send producers to it."""
    lag: dict[tuple[str, str], int]
    """Messages that are left, by group and topic; those with none are not there."""
    delayed: int
    """Messages that wait for their time."""
    transactions: int
    """Half messages that are not committed or rolled back."""
    unread: dict[str, int] = field(default_factory=dict)
    """Messages of topics that no group consumes, dead letters too; they stay on its disk."""
    log_end: int = 0
    """Of the commit log, in bytes; it moves with each message that is stored."""

    @property
    def is_drained(self) -> bool:
        """Nothing is left, and nobody is sent to it."""
        return not (self.sending or self.lag or self.delayed or self.transactions)


@checked()
class RetirementRequests(
    NameServerRequests, WaitingMessageRequests, ProgressRequests, TopicListRequests
):
    """Takes brokers out of a cluster, and back."""

    async def retire_broker(
        self, broker: str, *, force: bool = False, dry_run: bool = False
    ) -> list[str]:
        """Have producers send to a master no more; the topics that no other broker takes messages
        of.

        Args:
            broker: ``host:port`` of the master.
            force: even where there are such topics: sending to them fails then.
            dry_run: change nothing.

        Raises:
            ClientError: it is no master that is registered; or topics are nowhere else and
                ``force`` is not given: the text names them, and nothing was changed.
            NoPermissionError: it may not be changed by requests (``configBlackList``).
            BrokerError, RemotingError: a broker or a name server refused or does not answer.
        """
        info = await self.cluster_info()
        node = _master(info, broker)
        alone = await self._only_here(info, node, broker)
        if alone and not force:
            shown = ", ".join(alone[:5]) + (f" and {len(alone) - 5} more" if len(alone) > 5 else "")
            raise ClientError(
                f"no other broker takes messages of {shown}; make them elsewhere first "
                "(kerolox topic create NAME --broker), or use --force: sending to them fails then"
            )
        if dry_run:
            return alone
        await self.update_broker_settings({"brokerPermission": str(int(Perm.READ))}, broker=broker)
        if await self._wait_for_routes(node, broker, is_writable=False):
            await self.wipe_write_permission(node.broker_name)
        return alone

    async def return_broker(self, broker: str, *, dry_run: bool = False) -> None:
        """Undo :meth:`retire_broker`. Where its registration does not bring the permission back,
        ``addWritePerm`` makes all of its topics readable and writable.

        Raises:
            ClientError: it is no master that is registered.
            BrokerError, RemotingError: a broker or a name server refused or does not answer.
        """
        node = _master(await self.cluster_info(), broker)
        if dry_run:
            return
        both = int(Perm.READ | Perm.WRITE)
        await self.update_broker_settings({"brokerPermission": str(both)}, broker=broker)
        if await self._wait_for_routes(node, broker, is_writable=True):
            await self.add_write_permission(node.broker_name)

    async def broker_drain(self, broker: str, *, ignored: Collection[str] = ()) -> BrokerDrain:
        """What a master still has to do before it can be stopped.

        Args:
            broker: ``host:port`` of the master.
            ignored: groups whose messages may be left.

        Raises:
            ClientError: it is no master that is registered.
            BrokerError, RemotingError: it or a name server refused or does not answer.
        """
        info = await self.cluster_info()
        node = _master(info, broker)
        topics = await self.all_topic_settings(broker)
        progress = await self.broker_progress(broker)
        lag: dict[tuple[str, str], int] = {}
        read = set()
        for group in progress.groups:
            for queue in group.queues:
                read.add(queue.queue.topic)
                if queue.lag > 0 and group.group not in (TRANSACTION_GROUP, *ignored):
                    key = group.group, queue.queue.topic
                    lag[key] = lag.get(key, 0) + queue.lag
        runtime = await self.broker_runtime(broker)
        routes = await _routes_that_differ(self.access, node, topics, is_writable=False)
        return BrokerDrain(
            address=broker,
            broker_name=node.broker_name,
            sending=tuple(routes),
            lag=dict(sorted(lag.items())),
            delayed=sum(level.waiting for level in await self.delay_levels(broker)),
            transactions=await self._transactions(node.broker_name, broker),
            unread=await _unread(self.access, info, broker, set(topics) - read),
            log_end=runtime.log_max_offset,
        )

    async def wait_until_drained(
        self,
        broker: str,
        *,
        quiet_seconds: float = QUIET_SECONDS,
        timeout_seconds: float | None = None,
        ignored: Collection[str] = (),
        on_look: Callable[[BrokerDrain], None] | None = None,
    ) -> BrokerDrain:
        """Wait until a retired master can be stopped: nothing is left to do, and nothing was stored
        for some time. It notifies a name server that sends producers to it again.

        Args:
            broker: ``host:port`` of the master.
            quiet_seconds: how long nothing must have been stored.
            timeout_seconds: most seconds to wait; None: no limit.
            ignored: groups whose messages may be left.
            on_look: called with each check.

        Returns:
            The last check.

        Raises:
            ClientError: the time is over: the text says what is left.
            BrokerError, RemotingError: see :meth:`broker_drain`.
        """
        begin = time.monotonic()
        quiet_since, log_end = begin, -1
        while True:
            found = await self.broker_drain(broker, ignored=ignored)
            if on_look is not None:
                on_look(found)
            if found.sending:
                await self.wipe_write_permission(found.broker_name)
            now = time.monotonic()
            if found.log_end != log_end:
                quiet_since, log_end = now, found.log_end
            if found.is_drained and now - quiet_since >= quiet_seconds:
                return found
            left = POLL_SECONDS if timeout_seconds is None else begin + timeout_seconds - now
            if left <= 0:
                raise ClientError(_still(found, quiet_seconds))
            await asyncio.sleep(min(left, POLL_SECONDS, max(quiet_seconds, 0.1)))

    async def _only_here(self, info: ClusterInfo, node: BrokerAddresses, broker: str) -> list[str]:
        """The users' topics of a master that no other one takes messages of, sorted."""
        topics = [
            name
            for name, settings in (await self.all_topic_settings(broker)).items()
            if settings.perm & Perm.WRITE and topic_kind(name, info) is TopicKind.NORMAL
        ]

        async def is_elsewhere(topic: str) -> bool:
            route = await self.access.fetch_route(topic)
            return route is not None and any(
                queue.broker_name != node.broker_name and queue.perm & Perm.WRITE
                for queue in route.queues
            )

        found, _ = await answers_of(topics, is_elsewhere)
        return [topic for topic in topics if not found.get(topic)]

    async def _wait_for_routes(
        self, node: BrokerAddresses, broker: str, *, is_writable: bool
    ) -> list[str]:
        """The name servers whose routes are otherwise after the broker had time to register."""
        topics = await self.all_topic_settings(broker)
        deadline = time.monotonic() + ROUTE_SECONDS_MAX
        while True:
            found = await _routes_that_differ(self.access, node, topics, is_writable=is_writable)
            if not found or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(POLL_SECONDS / 10)

    async def _transactions(self, broker_name: str, broker: str) -> int:
        count = 0
        for queue, status in (await _queues(self.access, broker, HALF_TOPIC)).items():
            place = MessageQueue(HALF_TOPIC, broker_name, queue.queue_id)
            offset = await self.get_offset(TRANSACTION_GROUP, place, broker=broker)
            count += max(status.max_offset - max(offset, status.min_offset), 0)
        return count


def _still(found: BrokerDrain, quiet_seconds: float) -> str:
    parts = [
        f"{counted(count, 'message')} of {topic} for {group}"
        for (group, topic), count in found.lag.items()
    ]
    if found.delayed:
        parts.append(counted(found.delayed, "delayed message"))
    if found.transactions:
        parts.append(counted(found.transactions, "open transaction"))
    if found.sending:
        parts.append(f"producers that {', '.join(found.sending)} sends to it")
    what = "; ".join(parts) or f"messages came within the last {quiet_seconds:g} s"
    return f"broker {found.address} is not drained: {what}. It stays retired"


def _master(info: ClusterInfo, broker: str) -> BrokerAddresses:
    for node in info.nodes():
        if node.addresses.get(MASTER_ID) == broker:
            return node
    known = ", ".join(
        each.addresses[MASTER_ID] for each in info.nodes() if MASTER_ID in each.addresses
    )
    raise ClientError(f"{broker} is no master that is registered; masters: {known or 'none'}")


async def _routes_that_differ(
    access: Access, node: BrokerAddresses, topics: dict[str, TopicConfig], *, is_writable: bool
) -> list[str]:
    """The name servers that have another permission of the broker's topics. One topic stands for
    all, as a registration and a change of permissions are about all."""
    one = next((name for name, each in topics.items() if each.perm & Perm.WRITE), None)
    if one is None:
        return []

    async def differs(name_server: str) -> bool:
        route = await access.fetch_route_from(name_server, one)
        return any(
            queue.broker_name == node.broker_name and bool(queue.perm & Perm.WRITE) != is_writable
            for queue in (route.queues if route is not None else ())
        )

    found, failed = await answers_of(access.name_servers, differs)
    for error in failed.values():
        raise error
    return [name_server for name_server, is_other in found.items() if is_other]


async def _queues(access: Access, broker: str, topic: str) -> dict[MessageQueue, QueueStatus]:
    try:
        return await queue_statuses(access, broker, topic)
    except TopicNotFoundError:
        return {}


async def _unread(
    access: Access, info: ClusterInfo, broker: str, topics: Collection[str]
) -> dict[str, int]:
    """Messages of users' topics and of dead letters among these; what a broker does not say is left
    out."""
    names = [
        name
        for name in sorted(topics)
        if name.startswith(DLQ_PREFIX) or topic_kind(name, info) is TopicKind.NORMAL
    ]
    found, _ = await answers_of(names, lambda name: _queues(access, broker, name))
    counts = {
        name: sum(each.max_offset - each.min_offset for each in queues.values())
        for name, queues in found.items()
    }
    return {name: count for name, count in counts.items() if count}
