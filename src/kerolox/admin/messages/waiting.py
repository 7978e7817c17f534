"""What a broker keeps back: delayed messages until their time, halves of open transactions, which
can be ended in place of their producer."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.asking import is_kerolox
from kerolox.admin.consumers.offsets import OffsetRequests
from kerolox.admin.messages.reading import read_queue
from kerolox.admin.messages.timed import TimedMessageRequests
from kerolox.admin.positions import duration_ms
from kerolox.admin.topics import queue_statuses
from kerolox.client.core.checking import checked
from kerolox.errors import BrokerError, ClientError, NotFoundError, TopicNotFoundError
from kerolox.message import MessageExt, MessageQueue, PropertyKey
from kerolox.protocol.codes import MessageSysFlag, RequestCode
from kerolox.protocol.headers import EndTransactionHeader
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access

HALVES_READ_MAX, OPS_READ_MAX = 2_000, 10_000
"""Of one broker's half messages, and of the messages that end them."""

COPIES_AFTER_SECONDS = (0.0, 0.3)
"""When a RocketMQ broker is asked for copies of a half that is ended: it shows one that it has just
made a little later."""

_LEVEL_OFFSET = "scheduleMessageOffset_"


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """The messages of one delay level on one broker."""

    address: str
    broker: str
    """Its name."""
    number: int
    """From 1."""
    delay_ms: int
    """0: the broker has no such level (any more), so its messages are never delivered."""
    next_offset: int
    """Of the message that is delivered next."""
    end_offset: int

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return max(self.end_offset - self.next_offset, 0)


@dataclass(frozen=True, slots=True)
class OpenHalves:
    """The open transactions of one broker."""

    halves: tuple[MessageExt, ...]
    """Half messages that are neither committed nor rolled back, oldest first."""
    read: int
    """How many half messages were examined."""
    is_all: bool
    """False: there was more than is read, and some of ``halves`` may be ended."""


@checked()
class WaitingMessageRequests(OffsetRequests, TimedMessageRequests):
    """Reads messages that wait: delayed ones and half messages."""

    async def delay_levels(self, broker: str) -> list[DelayLevel]:
        """The delay levels of a broker with what waits in each, by number.

        Args:
            broker: ``host:port`` of a master.

        Raises:
            BrokerError, RemotingError: it refused or does not answer.
        """
        values = (await self.broker_runtime(broker)).values
        settings = await self.broker_settings(broker)
        delays = settings.get("messageDelayLevel", "").split()
        try:
            statuses = await queue_statuses(self.access, broker, SCHEDULE_TOPIC)
        except TopicNotFoundError:
            statuses = {}
        bounds = {queue.queue_id: (s.min_offset, s.max_offset) for queue, s in statuses.items()}
        name = settings.get("brokerName", "")
        levels = []
        for number in sorted({*range(1, len(delays) + 1), *(queue + 1 for queue in bounds)}):
            first, end = bounds.get(number - 1, (0, 0))
            # A broker tells no offset of a level of which it has delivered nothing yet.
            value = values.get(f"{_LEVEL_OFFSET}{number}", "").partition(",")[0]
            is_number = value.isascii() and value.isdigit() and len(value) < 20
            begin = max(int(value), first) if is_number else first
            delay_ms = _duration(delays[number - 1]) if number <= len(delays) else 0
            levels.append(DelayLevel(broker, name, number, delay_ms, begin, end))
        return levels

    async def delayed_messages(
        self, level: DelayLevel, *, max_messages: int = 100
    ) -> list[MessageExt]:
        """The messages of a level that are delivered next, in order. They are due ``delay_ms``
        after their ``store_timestamp``; the property ``REAL_TOPIC`` says where to.

        Args:
            level: as :meth:`delay_levels` gave it.
            max_messages: most of them.

        Raises:
            BrokerError, RemotingError: the broker refused or does not answer.
        """
        queue = MessageQueue(SCHEDULE_TOPIC, level.broker, level.number - 1)
        return await _from(self.access, level.address, queue, level.next_offset, max_messages)

    async def open_halves(self, broker: str) -> OpenHalves:
        """The open transactions of a broker: half messages from where the broker's check is
        (``CID_RMQ_SYS_TRANS``), without those that an op message ends. At most 2,000 are read.

        Args:
            broker: ``host:port`` of a master.

        Raises:
            BrokerError, RemotingError: it refused or does not answer.
        """
        name = (await self.broker_settings(broker)).get("brokerName", "")
        queues = MessageQueue(HALF_TOPIC, name, 0), MessageQueue(OP_HALF_TOPIC, name, 0)
        begins = [
            max(await self.get_offset(TRANSACTION_GROUP, queue, broker=broker), 0)
            for queue in queues
        ]
        halves = await _from(self.access, broker, queues[0], begins[0], HALVES_READ_MAX)
        ops = await _from(self.access, broker, queues[1], begins[1], OPS_READ_MAX) if halves else []
        ended = {
            int(text)
            for op in ops
            # RocketMQ 5 has several offsets in one.
            for text in op.body.decode("ascii", "replace").split(",")
            if text.isascii() and text.isdigit() and len(text) < 19
        }
        return OpenHalves(
            tuple(half for half in halves if half.queue_offset not in ended),
            len(halves),
            len(halves) < HALVES_READ_MAX and len(ops) < OPS_READ_MAX,
        )

    async def open_half(self, broker: str, message_id: str) -> MessageExt:
        """An open transaction of a broker by its message's id. Of the copies that the broker makes
        when it asks the producer, the newest.

        Args:
            broker: ``host:port`` of a master.
            message_id: the producer's (``UNIQ_KEY``), or the broker's.

        Raises:
            NotFoundError: none of those that :meth:`open_halves` finds has it.
            BrokerError, RemotingError: the broker refused or does not answer.
        """
        copies = await self._copies(broker, message_id)
        if not copies:
            raise NotFoundError(
                f"no open transaction of {broker} has the id {message_id!r}; it may be ended by now"
            )
        return copies[-1]

    async def end_half_message(self, broker: str, message_id: str, *, commit: bool) -> MessageExt:
        """Commit or roll back an open transaction in place of its producer (END_TRANSACTION, 37).

        One that is ended by now is left alone: a RocketMQ broker would commit it a second time. It
        does so, too, where the producer ends it in the same moment; a broker of Kerolox ends each
        once. Copies that the broker makes meanwhile, to ask the producer, are dropped.

        Args:
            broker: ``host:port`` of the master that has it.
            message_id: see :meth:`open_half`.
            commit: store the message under its topic; else drop it.

        Returns:
            The half message; its property ``REAL_TOPIC`` says where a commit stores it.

        Raises:
            NotFoundError: it is not open.
            ClientError: it does not say of which producer group it is.
            BrokerError: the broker refused, or could not store the message.
            RemotingError: no answer; it may be ended.
        """
        half = await self.open_half(broker, message_id)
        group = half.properties.get(PropertyKey.PRODUCER_GROUP, "")
        if not group:
            raise ClientError(f"half message {message_id!r} names no producer group")
        await self._end(broker, half, group, commit=commit)
        if half.unique_key and not await is_kerolox(self, broker):
            for seconds in COPIES_AFTER_SECONDS:
                await asyncio.sleep(seconds)
                for copy in await self._copies(broker, half.unique_key):
                    with contextlib.suppress(BrokerError):  # the broker has dropped it by now
                        await self._end(broker, copy, group, commit=False)
        return half

    async def _copies(self, broker: str, message_id: str) -> list[MessageExt]:
        """Open half messages of one id, oldest first."""
        halves = (await self.open_halves(broker)).halves
        return [each for each in halves if message_id in (each.message_id, each.offset_message_id)]

    async def _end(self, broker: str, half: MessageExt, group: str, *, commit: bool) -> None:
        decision = (
            MessageSysFlag.TRANSACTION_COMMIT if commit else MessageSysFlag.TRANSACTION_ROLLBACK
        )
        header = EndTransactionHeader(
            producer_group=group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=int(decision),
            msg_id=half.unique_key,
            transaction_id=half.unique_key,
        )
        await self.access.ask(broker, RequestCode.END_TRANSACTION, header.encode())


def _duration(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError:
        return 0


async def _from(
    access: Access, broker: str, queue: MessageQueue, offset: int, most: int
) -> list[MessageExt]:
    """Messages of a queue; none where the broker has not made its topic yet. It asks the broker
    itself: a RocketMQ broker registers these topics up to 30 s later."""
    try:
        statuses = await queue_statuses(access, broker, queue.topic)
    except TopicNotFoundError:
        return []
    status = statuses.get(queue)
    if status is None:
        return []
    begin = max(offset, status.min_offset)
    found = read_queue(access, broker, queue, begin, status.max_offset, most=most)
    return [message async for message in found]
