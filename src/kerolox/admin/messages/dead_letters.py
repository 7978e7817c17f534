"""Dead letters: read, count, send again, mark as done.

A dead letter stays where it is (``%DLQ%group``) whatever becomes of it. Its broker, RocketMQ's or
ours, keeps that it was sent again or is not wanted any more, beside the offsets of groups
(:mod:`kerolox.protocol.extensions.dead_letter_marks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kerolox.admin.asking import all_answers, answers_of
from kerolox.admin.consumers.groups import GroupRequests
from kerolox.admin.consumers.offsets import OffsetRequests, topics_with_offsets
from kerolox.admin.messages.reading import MessageReadRequests, bounds_of, read_queue
from kerolox.admin.messages.resending import MessageCopyRequests
from kerolox.admin.messages.sending import GROUP, QueueSender, writable_queues
from kerolox.admin.positions import Position
from kerolox.admin.topics import queue_statuses
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID, TopicRoute
from kerolox.client.core.sending.send import passed_on_message
from kerolox.errors import (
    ClientError,
    GroupNotFoundError,
    KeroloxError,
    RequestCodeNotSupportedError,
    TopicExistsError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageExt, MessageQueue, PropertyKey
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.extensions.dead_letter_marks import (
    DONE_GROUP,
    RUNS_MAX,
    DoneOffsets,
    run_groups,
)
from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from kerolox.protocol.pop_names import pop_retry_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kerolox.client.core.sending.send import SendResult

RUNS_AT_ONCE = 16
"""Runs of marks that are asked for together."""

MARKS_READ_EVERY = 100
"""Of so many letters the marks are read again: somebody else may send some, too."""


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue of a group's dead letters, and which of them are done."""

    queue: MessageQueue
    address: str
    """Of the queue's broker: its master, else a slave."""
    is_writable: bool
    """It is the master: marks can be set."""
    min_offset: int
    max_offset: int
    last_update_ms: int
    """When the last letter came, since the epoch; 0: never."""
    marks: DoneOffsets

    @property
    def messages(self) -> int:
        """Letters that are there."""
        return max(self.max_offset - self.min_offset, 0)

    @property
    def waiting(self) -> int:
        """Letters that were neither sent again nor marked as done."""
        return self.marks.waiting(self.min_offset, self.max_offset)

    def is_done(self, message: MessageExt) -> bool:
        """Whether a letter of the queue is done."""
        return message.queue_offset in self.marks


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSummary:
    """The dead letters of a group."""

    group: str
    messages: int
    waiting: int
    """Neither sent again nor marked as done."""
    last_update_ms: int
    """When the last one came, since the epoch; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResentLetter:
    """The result of sending a dead letter again."""

    message: MessageExt
    topic: str
    """That it was consumed from."""
    state: str
    """``sent``, ``failed``, ``done before`` (it was left out), or ``chosen`` (a dry run)."""
    result: SendResult | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PurgedQueue:
    """A queue whose dead letters were marked as done, or would be."""

    before: DeadLetterQueue
    marked: int
    """Letters that waited."""


@checked()
class DeadLetterRequests(MessageCopyRequests, MessageReadRequests, OffsetRequests, GroupRequests):
    """Reads, resends and purges dead letters."""

    async def dead_letters(
        self,
        group: str,
        *,
        start: Position | None = None,
        stop: Position | None = None,
        max_messages: int | None = None,
    ) -> AsyncIterator[MessageExt]:
        """The messages that a group gave up (topic ``%DLQ%group``), in order; none where the
        group has no such topic, which is made with the first one. Arguments and other errors:
        see :meth:`read_messages`.
        """
        found = self.read_messages(
            DLQ_PREFIX + group, start=start, stop=stop, max_messages=max_messages
        )
        with contextlib.suppress(TopicRouteNotFoundError):
            async for message in found:
                yield message

    async def dead_letter_queues(self, group: str) -> list[DeadLetterQueue]:
        """The queues of a group's dead letters with what is done of them, sorted; empty: it has
        none.

        Raises:
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        topic = DLQ_PREFIX + group
        try:
            route = await self.access.route(topic)
        except TopicRouteNotFoundError:
            return []
        addresses = [address for broker in route.brokers if (address := broker.any_address())]
        masters = {broker.addresses.get(MASTER_ID) for broker in route.brokers}

        async def query(address: str) -> list[DeadLetterQueue]:
            statuses = await queue_statuses(self.access, address, topic)
            return [
                DeadLetterQueue(
                    queue,
                    address,
                    address in masters,
                    status.min_offset,
                    status.max_offset,
                    status.last_update_timestamp,
                    await self._marks(queue, address, status.max_offset),
                )
                for queue, status in statuses.items()
            ]

        found = await all_answers(addresses, query)
        return sorted((each for one in found.values() for each in one), key=lambda each: each.queue)

    async def dead_letter_summaries(self) -> list[DeadLetterSummary]:
        """The groups that have dead letters, sorted by name; those whose brokers don't say are left
        out.

        Raises:
            RemotingError: no name server answers.
        """
        topics = await self.list_topics()
        groups = [each.removeprefix(DLQ_PREFIX) for each in topics if each.startswith(DLQ_PREFIX)]
        found, _ = await answers_of(groups, lambda group: self.dead_letter_queues(group))
        return [
            DeadLetterSummary(
                group=group,
                messages=sum(each.messages for each in queues),
                waiting=sum(each.waiting for each in queues),
                last_update_ms=max((each.last_update_ms for each in queues), default=0),
            )
            for group, queues in sorted(found.items())
        ]

    async def resend_dead_letter(
        self, group: str, message: MessageExt, *, body: bytes | None = None
    ) -> SendResult:
        """Give a dead letter to its group again, and to no other group. A copy goes to the retry
        topic that the group reads, that of its pops where it pops, with all its retries before it.
        The dead letter itself stays, marked as done.

        Args:
            group: who gave it up.
            message: the dead letter; whether it is marked already is not asked.
            body: another body; None: the same.

        Raises:
            TopicRouteNotFoundError: the group has no retry topic.
            MessageRejectedError: the message's properties can't be sent.
            ClientError: it was not sent: there is no room for its mark.
            BrokerError: the copy was not stored.
            RemotingError: the broker does not answer; whether it is stored is unknown.
        """
        for each in await self.dead_letter_queues(group):
            if each.queue == message.queue:
                result, _, _ = await self._send_and_mark(group, each, message, body=body)
                return result
        raise ClientError(f"the message is no dead letter of group {group!r}: {message.queue}")

    async def resend_dead_letters(
        self,
        group: str,
        *,
        start: Position | None = None,
        stop: Position | None = None,
        wanted: Callable[[MessageExt], bool] | None = None,
        max_messages: int | None = None,
        again: bool = False,
        tell_done: bool = False,
        to_topic: bool = False,
        dry_run: bool = False,
    ) -> AsyncIterator[ResentLetter]:
        """Send the dead letters of a group again, in order, each at most once. It leaves marked
        ones out and marks each that it has sent at once. So a call that was broken off goes on
        where it was. What became of each comes one by one; memory holds a few at a time.

        Args:
            group: who gave them up.
            start: where to begin in each queue; None: at the first.
            stop: where to end in each queue; None: at what is the end now.
            wanted: which ones; None: all.
            max_messages: most of them; None: all.
            again: also those that are done.
            tell_done: say also which of the wanted ones are left out as done.
            to_topic: to the topic that they came from, so all of its groups get them; else to the
                group alone.
            dry_run: only say which; ``state`` is ``chosen`` then.

        Raises:
            BrokerError, RemotingError: a broker can't be read. A letter that can't be sent is a
                result.
        """
        left = max_messages
        for each in await self.dead_letter_queues(group):
            queue, count = each, 0
            begin, end = await bounds_of(self, queue.address, queue.queue, start, stop)
            is_whole = again or tell_done
            for first, behind in [(begin, end)] if is_whole else list(queue.marks.gaps(begin, end)):
                letters = read_queue(self.access, queue.address, queue.queue, first, behind)
                async for message in letters:
                    if left == 0:
                        return
                    if wanted is not None and not wanted(message):
                        continue
                    if not dry_run and count % MARKS_READ_EVERY == 0:
                        queue = await self._with_new_marks(queue)
                    count += 1
                    is_left_out = queue.is_done(message) and not again
                    if is_left_out and not tell_done:
                        continue
                    letter = ResentLetter(message=message, topic=_origin(message), state="chosen")
                    if is_left_out:
                        yield replace(letter, state="done before")
                        continue
                    left = None if left is None else left - 1
                    if not dry_run:
                        letter, queue = await self._resent(group, queue, letter, to_topic=to_topic)
                    yield letter

    async def purge_dead_letters(
        self, group: str, *, stop: Position | None = None, dry_run: bool = False
    ) -> list[PurgedQueue]:
        """Mark the dead letters of a group as done, so that nothing counts or sends them any more;
        by queue, sorted. The letters stay until their log is deleted, as all messages do.

        Args:
            group: who gave them up.
            stop: where to end in each queue; None: at what is the end now.
            dry_run: only look.

        Raises:
            ClientError: the master of a queue is not there.
            BrokerError, RemotingError: a broker refused or does not answer. Those of other queues
                may be marked by then.
        """
        purged = []
        for each in await self.dead_letter_queues(group):
            end = each.max_offset
            if stop is not None:
                _, end = await bounds_of(self, each.address, each.queue, None, stop)
            purged.append(PurgedQueue(each, each.marks.waiting(each.min_offset, end)))
            if not dry_run:
                await self._mark(each, each.min_offset, end)
        return purged

    async def _marks(self, queue: MessageQueue, address: str, max_offset: int) -> DoneOffsets:
        async def offset_of(group: str) -> int:
            return await self.get_offset(group, queue, broker=address)

        before = await offset_of(DONE_GROUP)
        runs: list[tuple[int, int]] = []
        while len(runs) < RUNS_MAX:
            numbers = range(len(runs) + 1, len(runs) + 1 + (RUNS_AT_ONCE if runs else 1))
            groups = [group for number in numbers for group in run_groups(number)]
            found = await all_answers(groups, offset_of)
            for number in numbers:
                first, end = run_groups(number)
                if found[end] <= 0:
                    return DoneOffsets.of(before, runs, max_offset)
                runs.append((found[first], found[end]))
        return DoneOffsets.of(before, runs, max_offset)

    async def _with_new_marks(self, queue: DeadLetterQueue) -> DeadLetterQueue:
        marks = await self._marks(queue.queue, queue.address, queue.max_offset)
        return replace(queue, marks=marks)

    async def _mark(self, queue: DeadLetterQueue, begin: int, end: int) -> DeadLetterQueue:
        """Mark a range as done; the queue with it.

        Raises:
            ClientError: it would be one run too many.
        """
        new = queue.marks.with_done(begin, end, queue.min_offset)
        _check_markable(queue, new)
        for group, offset in queue.marks.changes_to(new):
            try:
                await self.set_offset(group, queue.queue, offset, broker=queue.address)
            except GroupNotFoundError:
                # RocketMQ 5 keeps offsets only of groups that it knows.
                await self.put_group(
                    SubscriptionGroupConfig(group_name=group), broker=queue.address
                )
                await self.set_offset(group, queue.queue, offset, broker=queue.address)
        return replace(queue, marks=new)

    async def _resent(
        self, group: str, queue: DeadLetterQueue, letter: ResentLetter, *, to_topic: bool
    ) -> tuple[ResentLetter, DeadLetterQueue]:
        try:
            result, queue, error = await self._send_and_mark(
                group, queue, letter.message, to_topic=to_topic
            )
        except KeroloxError as failure:
            return replace(letter, state="failed", error=str(failure)), queue
        return replace(letter, state="sent", result=result, error=error), queue

    async def _send_and_mark(
        self,
        group: str,
        queue: DeadLetterQueue,
        message: MessageExt,
        *,
        body: bytes | None = None,
        to_topic: bool = False,
    ) -> tuple[SendResult, DeadLetterQueue, str]:
        """The result, the queue with the mark, and why there is no mark. Who gives up meanwhile
        waits until what was sent is marked, too.
        """
        at = message.queue_offset
        _check_markable(queue, queue.marks.with_done(at, at + 1, queue.min_offset))

        async def work() -> tuple[SendResult, DeadLetterQueue, str]:
            if to_topic:
                result = await self.send_copy(message, body=body)
            else:
                result = await self._send_to_group(group, queue, message, body)
            try:
                return result, await self._mark(queue, at, at + 1), ""
            except KeroloxError as error:
                return result, queue, f"sent, but not marked, so it may be sent once more: {error}"

        task = asyncio.ensure_future(work())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    async def _send_to_group(
        self, group: str, letters: DeadLetterQueue, message: MessageExt, body: bytes | None
    ) -> SendResult:
        queue, route = await self._retry_queue(group, letters, message)
        outgoing = passed_on_message(message, group, delay_level=0, topic=_origin(message))
        outgoing = outgoing._replace(topic=queue.topic, reconsume_times=0, max_reconsume_times=None)
        if body is not None:
            outgoing = outgoing._replace(body=body, sys_flag=0)
        return await QueueSender(self.access, GROUP).send_outgoing(outgoing, queue, route)

    async def _retry_queue(
        self, group: str, letters: DeadLetterQueue, message: MessageExt
    ) -> tuple[MessageQueue, TopicRoute]:
        """Where the group reads its retries, and how to get there. Members that pop read others
        than those that pull: they get a letter that was popped, or whose group has popped retries
        of its topic, or has an offset there and never pulled.

        Raises:
            ClientError: the retries of its pops would have the name of another group's.
        """
        origin = _origin(message)
        try:
            known = await topics_with_offsets(self.access, letters.address, group)
        except RequestCodeNotSupportedError:  # It serves no pops.
            return await self._pulled_retries(group)
        names = [pop_retry_topic(origin, group, is_v2=is_v2) for is_v2 in (False, True)]
        topic = next((name for name in names if name in known), "")
        if not topic and not _was_popped(message):
            try:
                return await self._pulled_retries(group)
            except TopicRouteNotFoundError:
                if origin not in known:
                    raise
        if not topic:
            topic = names[0]
            try:
                await self.create_topic(topic, queues=1, broker=letters.address)
            except TopicExistsError:
                raise ClientError(
                    f"topic {topic} is not of group {group!r}, which has no retries of {origin} "
                    "yet; send the letter to its topic (kerolox dlq resend --to-topic)"
                ) from None
        # One queue on each broker. Name servers may not know it yet.
        queue = MessageQueue(topic, letters.queue.broker_name, 0)
        return queue, await self.access.route(letters.queue.topic)

    async def _pulled_retries(self, group: str) -> tuple[MessageQueue, TopicRoute]:
        topic = RETRY_PREFIX + group
        route = await self.access.route(topic)
        return random.choice(writable_queues(route, topic)), route


def _check_markable(queue: DeadLetterQueue, new: DoneOffsets) -> None:
    place = f"{queue.queue.topic} {queue.queue.broker_name}/{queue.queue.queue_id}"
    if not queue.is_writable:
        raise ClientError(
            f"the master of {place} is not there, so nothing would remember what is sent; try again"
            " when it is back"
        )
    if len(new.runs) > RUNS_MAX:
        raise ClientError(
            f"the letters of {place} that are done lie in {RUNS_MAX} runs already, and no more are "
            "kept; send the first ones again, or purge up to some of them (kerolox dlq purge "
            "--until)"
        )


def _origin(message: MessageExt) -> str:
    return message.properties.get(PropertyKey.RETRY_TOPIC, "")


def _was_popped(message: MessageExt) -> bool:
    names = (PropertyKey.FIRST_POP_TIME, PropertyKey.POP_RECEIPT)
    return any(name in message.properties for name in names)
