"""Messages that a group has out, popped and not acknowledged: who has them, and their release.

These are requests of Kerolox's own, which a RocketMQ broker does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from kerolox.admin.answers import read_struct
from kerolox.admin.asking import all_answers, nodes_of_group
from kerolox.admin.consumers.progress import ProgressRequests
from kerolox.client.core.checking import checked
from kerolox.errors import ClientError, ConfigError, RequestCodeNotSupportedError
from kerolox.message import MessageQueue
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.popped import (
    ANY,
    LISTED_MAX,
    PoppedAnswer,
    PoppedSelection,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PoppedMessage:
    """One message that a group has out."""

    queue: MessageQueue
    """Its own; of retries, that of retries."""
    offset: int
    owner: str
    """Who has it: a client id, or the address of one that sends no heartbeats; empty: not known."""
    held_ms: int
    """For how long."""
    left_ms: int
    """Until it comes again by itself; negative: so long it is overdue."""
    is_order: bool = False
    """It was popped in order: nothing more of its queue goes out before."""


@dataclass(frozen=True, slots=True)
class PoppedQueue:
    """What a group has out of a queue."""

    queue: MessageQueue
    messages: int
    oldest_ms: int
    """For how long the oldest is out."""
    oldest_owner: str = ""
    """Who has that."""
    is_order: bool = False
    """They were popped in order: nothing more of the queue goes out before."""
    overdue_ms: int = 0
    """For how long one is overdue that waits to come again, the longest; 0: none is."""
    tries: int = 0
    """How often a copy of one failed, the most; of ordered ones, how often one was delivered before
    and was not acknowledged."""


@dataclass(frozen=True, slots=True)
class PoppedOwner:
    """What a member has."""

    owner: str
    messages: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class PoppedMessages:
    """What a group has out, or what of it was released."""

    group: str
    messages: int
    """How many there are."""
    queues: tuple[PoppedQueue, ...]
    """Sorted by queue."""
    owners: tuple[PoppedOwner, ...]
    """Those with the most messages first."""
    listed: tuple[PoppedMessage, ...]
    """The first of each broker, by queue and offset; not all where there are more."""
    silent: tuple[str, ...] = ()
    """Names of brokers of RocketMQ, which do not tell."""
    releases: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Broker name → the request that releases what it counted, and nothing popped later."""


@checked()
class PoppedRequests(ProgressRequests):
    """Asks what groups have out, and releases it."""

    async def popped_messages(
        self,
        group: str,
        *,
        topic: str = "",
        queue: MessageQueue | None = None,
        offset: int | None = None,
        owner: str = "",
        held_ms: int = 0,
        max_messages: int = LISTED_MAX,
    ) -> PoppedMessages:
        """What a group has out, who has it, and for how long (code 31040). Each argument that is
        given narrows it. Of messages that were popped in order all of their queue are meant where
        one is.

        Args:
            group: its name.
            topic: of this topic, with its retries; empty: all.
            queue: of this queue alone.
            offset: this message of the queue alone.
            owner: what this member has, as an answer names it.
            held_ms: out for so long at least, in milliseconds.
            max_messages: how many each broker names one by one, 0 to 1,000.

        Raises:
            ConfigError: there is an offset and no queue, or ``max_messages`` is out of range.
            ClientError: the group is not on the queue's broker.
            TopicRouteNotFoundError: no name server knows the topic.
            RequestCodeNotSupportedError: all brokers of the group are brokers of RocketMQ.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        if offset is not None and queue is None:
            raise ConfigError("an offset of which queue? name that, too")
        if not 0 <= max_messages <= LISTED_MAX:
            raise ConfigError(f"max_messages={max_messages} is not between 0 and {LISTED_MAX}")
        selection = PoppedSelection(
            group=group,
            topic=topic if queue is None else queue.topic,
            queue_id=ANY if queue is None else queue.queue_id,
            offset=ANY if offset is None else offset,
            owner=owner,
            held_ms=held_ms,
            listed=max_messages,
        )
        nodes = await nodes_of_group(self, group, topic=topic)
        if queue is not None:
            if queue.broker_name not in nodes:
                raise ClientError(
                    f"group {group!r} is on no broker {queue.broker_name!r}; it is on "
                    + ", ".join(sorted(nodes))
                )
            nodes = {queue.broker_name: nodes[queue.broker_name]}
        bodies = dict.fromkeys(nodes, encode_body(selection))
        answers, silent = await self._popped(nodes, RequestCode.GET_POPPED_MESSAGES, bodies)
        releases = {
            name: encode_body(msgspec.structs.replace(selection, popped_until=each.now))
            for name, each in answers.items()
            if each.messages
        }
        return replace(_joined(group, answers), silent=silent, releases=releases)

    async def release_popped(self, plan: PoppedMessages) -> PoppedMessages:
        """Let messages come again at once, whoever has them (code 31041): those that an answer of
        :meth:`popped_messages` counts, and that are still out. Acknowledgements of who had them
        have no effect from then on.

        Returns:
            What was released.

        Raises:
            ClientError: a broker of the plan is not registered any more; nothing was released.
            BrokerError, RemotingError: a broker refused or does not answer; messages of others may
                be released by then. It may be called again.
        """
        nodes = await nodes_of_group(self, plan.group)
        if gone := plan.releases.keys() - nodes.keys():
            raise ClientError(
                f"no broker {min(gone)!r} is registered with group {plan.group!r} any more, and "
                "nothing was released; ask again what is out"
            )
        nodes = {name: nodes[name] for name in plan.releases}
        code = RequestCode.RELEASE_POPPED_MESSAGES
        answers, _ = await self._popped(nodes, code, plan.releases)
        return _joined(plan.group, answers)

    async def _popped(
        self, nodes: Mapping[str, str], code: int, bodies: Mapping[str, bytes]
    ) -> tuple[dict[str, PoppedAnswer], tuple[str, ...]]:
        """The answers, and the names of the brokers that do not know the request."""
        refused: list[RequestCodeNotSupportedError] = []

        async def ask(name: str) -> PoppedAnswer | None:
            try:
                response = await self.access.ask(nodes[name], code, {}, body=bodies[name])
            except RequestCodeNotSupportedError as error:
                refused.append(error)
                return None
            return await read_struct(response, PoppedAnswer, "what is out", nodes[name])

        answers = await all_answers(nodes, ask)
        known = {name: each for name, each in answers.items() if each is not None}
        if refused and not known:
            raise refused[0]
        return known, tuple(sorted(answers.keys() - known.keys()))


def _joined(group: str, answers: Mapping[str, PoppedAnswer]) -> PoppedMessages:
    """The answers of brokers, by name, as one."""
    owners: dict[str, PoppedOwner] = {}
    for answer in answers.values():
        for each in answer.owners:
            known = owners.get(each.owner, PoppedOwner(each.owner, 0, 0))
            owners[each.owner] = PoppedOwner(
                each.owner,
                known.messages + each.messages,
                max(known.oldest_ms, each.oldest_ms),
            )
    return PoppedMessages(
        group,
        sum(each.messages for each in answers.values()),
        tuple(
            sorted(
                (
                    PoppedQueue(
                        MessageQueue(each.topic, name, each.queue_id),
                        each.messages,
                        each.oldest_ms,
                        each.oldest_owner,
                        each.is_order,
                        each.overdue_ms,
                        each.tries,
                    )
                    for name, answer in answers.items()
                    for each in answer.queues
                ),
                key=lambda each: each.queue,
            )
        ),
        tuple(sorted(owners.values(), key=lambda each: (-each.messages, each.owner))),
        tuple(
            PoppedMessage(
                MessageQueue(each.topic, name, each.queue_id),
                each.offset,
                each.owner,
                each.held_ms,
                each.left_ms,
                each.is_order,
            )
            for name, answer in sorted(answers.items())
            for each in answer.listed
        ),
    )
