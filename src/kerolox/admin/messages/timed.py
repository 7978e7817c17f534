"""Messages for a moment: those that wait on a broker, the next first, and taking one back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.brokers import BrokerRequests
from kerolox.admin.messages.reading import read_queue
from kerolox.admin.topics import queue_statuses
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import (
    BrokerError,
    ConfigError,
    RemoteProtocolError,
    TopicNotFoundError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageExt, MessageQueue, PropertyKey
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.java_numbers import java_long
from kerolox.protocol.names import TIMER_TOPIC, TOOLS_GROUP
from kerolox.protocol.recall_handles import RecallError, RecallHandle, decode_handle

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access

TIMED_READ_MAX = 10_000
"""Records of one broker's timer that are read, the newest ones."""

STEP_MS = 1_000
"""A message comes so much behind its ``TIMER_OUT_MS`` at most (``timerPrecisionMs``)."""

_NO_TIMER = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR)


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """A message that waits for its moment."""

    message: MessageExt
    """As it lies in the timer's topic."""
    topic: str
    """Where it is delivered."""
    due_ms: int
    """When, in milliseconds since the epoch; up to a second later."""
    handle: str
    """What takes it back; empty: nothing does."""


@dataclass(frozen=True, slots=True)
class TimedMessages:
    """What waits for a moment on one broker."""

    address: str
    broker: str
    """Its name."""
    has_timer: bool
    """False: it is one of 4.x, or ``timerWheelEnable`` is false."""
    waiting: dict[str, int]
    """How many messages wait, by topic."""
    messages: tuple[TimedMessage, ...]
    """The next first."""
    is_all: bool
    """False: there were more records than are read; older ones may wait, too."""


@checked()
class TimedMessageRequests(BrokerRequests):
    """Reads what waits for a moment, and takes it back."""

    async def timed_messages(self, broker: str, *, max_messages: int = 100) -> TimedMessages:
        """What waits for a moment on a broker. Its newest 10,000 records are read.

        Args:
            broker: ``host:port`` of a master.
            max_messages: most of them, the next first.

        Raises:
            BrokerError, RemotingError: it refused or does not answer.
        """
        name = (await self.broker_settings(broker)).get("brokerName", "")
        try:
            read_ms = await self._read_ms(broker)
            waiting = await self._waiting(broker)
        except BrokerError as error:
            if error.code not in _NO_TIMER:
                raise
            return TimedMessages(broker, name, False, {}, (), True)
        records, is_all = await _newest(self.access, broker, name)
        found = sorted(_waiting_of(records, name, read_ms), key=lambda each: each.due_ms)
        return TimedMessages(broker, name, True, waiting, tuple(found[:max_messages]), is_all)

    async def recall_message(self, handle: str) -> str:
        """Take a message back that waits for its moment (RECALL_MESSAGE, 370).

        Args:
            handle: ``recall_handle`` of its send, or of a :class:`TimedMessage`.

        Returns:
            The message's id. With a broker of RocketMQ 5 that does not say that there was one.

        Raises:
            ConfigError: the text is no handle.
            TopicRouteNotFoundError: the broker that it names has no master with its topic.
            BrokerError: the broker refused (:meth:`kerolox.client.Producer.recall`).
            RemotingError: no answer; it may be taken back.
        """
        try:
            wanted = decode_handle(handle)
        except RecallError as error:
            raise ConfigError(str(error)) from None
        route = await self.access.fetch_route(wanted.topic)
        masters = [
            each.addresses.get(MASTER_ID)
            for each in (route.brokers if route else ())
            if each.broker_name == wanted.broker_name
        ]
        if not masters or masters[0] is None:
            raise TopicRouteNotFoundError(
                f"broker {wanted.broker_name!r}, which the handle names, has no master with topic"
                f" {wanted.topic!r}"
            )
        fields = {"producerGroup": TOOLS_GROUP, "topic": wanted.topic, "recallHandle": handle}
        answer = await self.access.ask(masters[0], RequestCode.RECALL_MESSAGE, fields)
        return answer.ext_fields.get("msgId") or wanted.unique_key

    async def _read_ms(self, broker: str) -> int:
        from kerolox.store.timer.checkpoint import decode_checkpoint

        answer = await self.access.ask(broker, RequestCode.GET_TIMER_CHECK_POINT)
        try:
            return decode_checkpoint(answer.body).last_read_ms
        except ValueError as error:
            raise RemoteProtocolError(f"{broker}: {error}") from None

    async def _waiting(self, broker: str) -> dict[str, int]:
        from kerolox.store.timer.metrics import decode_metrics

        answer = await self.access.ask(broker, RequestCode.GET_TIMER_METRICS)
        try:
            counts = decode_metrics(answer.body).timing_count
        except BodyError as error:
            raise RemoteProtocolError(f"{broker}: {error}") from None
        return {topic: each.count for topic, each in sorted(counts.items()) if each.count > 0}


async def _newest(access: Access, broker: str, name: str) -> tuple[list[MessageExt], bool]:
    """The newest records of the timer's topic; whether these are all."""
    queue = MessageQueue(TIMER_TOPIC, name, 0)
    try:
        status = (await queue_statuses(access, broker, TIMER_TOPIC)).get(queue)
    except TopicNotFoundError:
        status = None
    if status is None:
        return [], True
    begin = max(status.min_offset, status.max_offset - TIMED_READ_MAX)
    found = read_queue(access, broker, queue, begin, status.max_offset, most=TIMED_READ_MAX)
    return [each async for each in found], begin == status.min_offset


def _waiting_of(records: list[MessageExt], name: str, read_ms: int) -> list[TimedMessage]:
    """Those that are neither delivered nor taken back; of one that was stored again on its way the
    last record."""
    from kerolox.store.timer.puts import key_of, out_ms

    deleted, found = set(), {}
    for number, record in enumerate(records):
        properties = record.properties
        names = properties.get(PropertyKey.TIMER_DELETES)
        topic = properties.get(PropertyKey.REAL_TOPIC, "")
        moment = out_ms(properties)
        if names is not None:
            deleted.add(names)
        elif moment is not None and moment >= read_ms and topic:
            found[key_of(properties) or str(number)] = _timed(record, topic, name, moment)
    return [each for key, each in found.items() if key not in deleted]


def _timed(record: MessageExt, topic: str, name: str, out_ms: int) -> TimedMessage:
    deliver_ms = java_long(record.properties.get(PropertyKey.TIMER_DELIVER, ""))
    due_ms = out_ms + STEP_MS
    if deliver_ms is not None and out_ms < deliver_ms <= due_ms:
        due_ms = deliver_ms
    handle = ""
    if record.unique_key:
        handle = RecallHandle(topic, name, out_ms + 1, record.unique_key).encode()
    return TimedMessage(record, topic, due_ms, handle)
