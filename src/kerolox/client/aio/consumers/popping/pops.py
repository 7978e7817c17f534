"""Requests of one group about popped messages, and who is asked."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from kerolox.client.aio.consumers.popping.acks import Acks
from kerolox.client.core.consuming.leases import Lease
from kerolox.client.core.consuming.popping import (
    NOTHING,
    PoppedMessages,
    PopTerms,
    change_request,
    changed_lease,
    leased,
    pop_request,
    popped_messages,
    unwanted,
)
from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.codec.pulling import pulled_of
from kerolox.errors import ClientError, KeroloxError, TopicNotFoundError
from kerolox.message import parts_of
from kerolox.protocol.routing.allocation import ALL_QUEUES

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.consuming.popping import Done
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt
    from kerolox.protocol.command import RemotingCommand


class NoMasterError(ClientError):
    """A broker has no master now; pops are served by masters alone."""


class Pops:
    """Pops, acknowledges and changes for one group."""

    def __init__(self, group: str, namespace: str, cluster: Cluster) -> None:
        """Nothing is asked yet. ``group``: as brokers know it."""
        self._group = group
        self._namespace = namespace
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self.acks: Acks = Acks(group, self._ask)
        self._attempts: dict[tuple[str, str, int], str] = {}
        """Ordered pops without an answer: the next one gets the messages of that one."""

    async def pop(
        self,
        subscription: Subscription,
        broker_name: str,
        terms: PopTerms,
        seconds: float,
        queue_id: int = ALL_QUEUES,
    ) -> PoppedMessages:
        """Messages of one topic at one broker.

        Args:
            subscription: the topic, and what is wanted of it.
            broker_name: whom to ask.
            terms: how many, for how long. At most one ordered pop of a queue has no answer at a
                time.
            seconds: how long the broker may hold the request.
            queue_id: of one queue; -1: of all.

        Raises:
            NoPopsError: the broker is too old.
            NoMasterError: the broker has no master now.
            BrokerError: the broker refused.
            RemotingError: no answer.
        """
        topic, place = subscription.topic, (subscription.topic, broker_name, queue_id)
        address = await self._address(broker_name, topic)
        attempt = self._attempts.setdefault(place, uuid.uuid4().hex) if terms.is_ordered else None
        request = pop_request(
            self._group,
            subscription,
            terms,
            poll_ms=round(seconds * 1000),
            attempt_id=attempt,
            queue_id=queue_id,
        )
        response = await self._cluster.remoting.invoke(
            address, request, timeout_seconds=seconds + self._cluster.timeout_seconds
        )
        self._attempts.pop(place, None)
        try:
            popped = popped_messages(
                response,
                subscription,
                broker_name=broker_name,
                address=address,
                now=self._loop.time(),
            )
        except TopicNotFoundError:
            # It may have been made again, at other brokers.
            await self._cluster.refresh(topic)
            raise
        return self._shown(popped, subscription) if popped is not NOTHING else popped

    def _shown(self, popped: PoppedMessages, subscription: Subscription) -> PoppedMessages:
        """What users are to see of it."""
        messages = popped.pulled.messages
        if subscription.tags and (others := unwanted(messages, subscription.tags)):
            # They have the hash of a tag alone, so they are done.
            out = self.done(others)
            for lease, offsets in out.items():
                for offset in offsets:
                    del lease.out[offset]
            self.acks.add(out)
            gone = set(map(id, others))
            messages = [each for each in messages if id(each) not in gone]
            popped = PoppedMessages(pulled_of(messages), popped.leases)
        if self._namespace:
            shown = without_namespace(self._namespace, subscription.topic)
            for message in messages:
                message.topic = shown
        return popped

    def leased(self, message: MessageExt) -> tuple[Lease, int]:
        """The lease of a message, and its offset there. ConfigError: it was not popped."""
        topic = message.topic
        if self._namespace:
            topic = with_namespace(self._namespace, topic)
        return leased(message, topic)

    def done(self, messages: list[MessageExt]) -> Done:
        """The offsets of messages, by lease. ConfigError: one was not popped."""
        done: Done = {}
        for message in messages:
            parts = parts_of(message)
            if type(parts) is Lease:
                lease, offset = parts, message.queue_offset
            else:
                lease, offset = self.leased(message)
            if lease in done:
                done[lease].append(offset)
            else:
                done[lease] = [offset]
        return done

    async def change(
        self, message: MessageExt, lease: Lease, offset: int, milliseconds: int
    ) -> Lease:
        """Let the invisible time of a message begin anew; the lease that it has then. Errors as
        those of :meth:`pop`; BrokerError with code 208: it is done, or came again.
        """
        address = await self._address(lease.broker_name, lease.topic)
        response = await self._cluster.remoting.invoke(
            address,
            change_request(self._group, lease, offset, milliseconds),
            timeout_seconds=self._cluster.timeout_seconds,
        )
        now = self._loop.time()
        return changed_lease(response, message, lease, offset, address=address, now=now)

    async def give_back(self, messages: list[MessageExt]) -> list[KeroloxError]:
        """Messages that nobody worked on come again at once; why some come later."""
        given = (self.change(each, *self.leased(each), 0) for each in messages)
        results = await asyncio.gather(*given, return_exceptions=True)
        return [each for each in results if isinstance(each, KeroloxError)]

    async def _ask(self, broker_name: str, topic: str, request: RemotingCommand) -> RemotingCommand:
        address = await self._address(broker_name, topic)
        response = await self._cluster.remoting.invoke(
            address, request, timeout_seconds=self._cluster.timeout_seconds
        )
        response.raise_for_code(address)
        return response

    async def _address(self, broker_name: str, topic: str) -> str:
        address = self._cluster.master_address(broker_name)
        if address is None:
            await self._cluster.refresh(topic)
            address = self._cluster.master_address(broker_name)
        if address is None:
            raise NoMasterError(f"broker {broker_name} has no master now, which serves pops")
        return address
