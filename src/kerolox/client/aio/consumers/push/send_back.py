"""Messages that go back to the broker: to be retried later, or by a member with a listener."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.consuming.outcome import (
    DEAD_LETTER_LEVEL,
    Action,
    Outcome,
)
from kerolox.client.core.failures import note_failure
from kerolox.client.core.namespaces import with_namespace
from kerolox.client.core.sending.send import (
    OutgoingMessage,
    SendHeader,
    dead_letter_message,
    passed_on_message,
    retry_message,
    send_result,
)
from kerolox.errors import ClientError, KeroloxError
from kerolox.message import DEAD_LETTER_REASON, MessageExt, MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import AUTO_CREATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.aio.network.cluster import Cluster

MAX_RECONSUME_TIMES = 16
"""Retries of a message when the settings leave it to RocketMQ."""

SEND_BACK_SECONDS_MAX = 5.0
"""Time limit of a send-back."""

UNHANDLED_DELAY_LEVEL = 14
"""A retried message without listener here comes again so much later (10 minutes by default)."""

_log = logging.getLogger(__name__)


class SendBacks:
    """Gives messages of one group back to their brokers."""

    def __init__(
        self, group: str, namespace: str, settings: PushConsumerSettings, cluster: Cluster
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._settings = settings
        self._cluster = cluster

    @property
    def max_reconsume_times(self) -> int:
        """Retries before the dead-letter topic."""
        given = self._settings.max_reconsume_times
        return MAX_RECONSUME_TIMES if given < 0 else given

    async def settle(self, message: MessageExt, outcome: Outcome, broker_name: str) -> bool:
        """Give back a message that was not consumed, as its listener wants it; False when nothing
        worked. Broadcasting knows no retries: there the message is dropped."""
        if self._settings.message_model is MessageModel.BROADCASTING:
            _log.warning("dropped message %s: broadcasting has no retry", message.message_id)
            return True
        if outcome.action is Action.DEAD_LETTER:
            return await self.bury(message, outcome.reason, broker_name)
        level = outcome.delay_level
        if level is None:
            level = self._settings.delay_level_when_next_consume
        return await self.send_back(message, level, broker_name)

    async def bury_ordered(self, message: MessageExt, reason: str, broker_name: str) -> bool:
        """As :meth:`bury`; broadcasting has no dead letters either, the message is dropped."""
        return await self.settle(message, Outcome.dead_letter(reason), broker_name)

    async def bury(self, message: MessageExt, reason: str, broker_name: str) -> bool:
        """Make a message a dead letter; False: that failed."""
        _log.warning(
            "message %s of topic %s goes to the dead letters of group %s: %s",
            message.message_id,
            message.topic,
            self._group,
            reason or "no reason given",
        )
        # A send-back has no place for a reason; a copy of the message has.
        if reason and await self._send_again(
            message,
            lambda: dead_letter_message(
                message,
                self._group,
                properties={DEAD_LETTER_REASON: reason},
                topic=with_namespace(self._namespace, message.topic),
            ),
            broker_name,
        ):
            return True
        return await self._ask_back(message, DEAD_LETTER_LEVEL, broker_name)

    async def send_back(self, message: MessageExt, delay_level: int, broker_name: str) -> bool:
        """Have the broker put a message into the group's retry topic; False when nothing worked."""
        return await self._ask_back(message, delay_level, broker_name) or await self._send_retry(
            message, broker_name
        )

    async def _ask_back(self, message: MessageExt, delay_level: int, broker_name: str) -> bool:
        """CONSUMER_SEND_MSG_BACK; False: it was refused or not answered."""
        fields = {
            "offset": message.commit_log_offset,
            "group": self._group,
            "delayLevel": delay_level,
            "originMsgId": message.message_id,
            "originTopic": with_namespace(self._namespace, message.topic),
            "unitMode": self._settings.unit_mode,
            "maxReconsumeTimes": self.max_reconsume_times,
        }
        address = self._cluster.master_address(broker_name)
        try:
            if address is None:
                raise ClientError(f"broker {broker_name!r} has no known master")
            await self._cluster.ask(
                address,
                RequestCode.CONSUMER_SEND_MSG_BACK,
                fields,
                timeout_seconds=SEND_BACK_SECONDS_MAX,
            )
        except KeroloxError as error:
            what = f"send-back of message {message.message_id} failed"
            note_failure(self._settings.on_failure, _log, what, error)
            return False
        return True

    async def _send_retry(self, message: MessageExt, broker_name: str) -> bool:
        """The second way: send the message to the retry topic as a new one."""
        return await self._send_again(
            message,
            lambda: retry_message(
                message,
                self._group,
                max_reconsume_times=self.max_reconsume_times,
                topic=with_namespace(self._namespace, message.topic),
            ),
            broker_name,
        )

    async def pass_on(self, message: MessageExt, broker_name: str) -> bool:
        """Put a retried message back into the retry topic as it came; False: that failed."""
        return await self._send_again(
            message,
            lambda: passed_on_message(
                message,
                self._group,
                delay_level=UNHANDLED_DELAY_LEVEL,
                topic=with_namespace(self._namespace, message.topic),
            ),
            broker_name,
        )

    async def _send_again(
        self, message: MessageExt, make: Callable[[], OutgoingMessage], broker_name: str
    ) -> bool:
        try:
            await send_copy(self._cluster, make(), broker_name, unit_mode=self._settings.unit_mode)
        except KeroloxError as error:
            what = f"retry of message {message.message_id} failed"
            note_failure(self._settings.on_failure, _log, what, error)
            return False
        return True


async def send_copy(
    cluster: Cluster, copy: OutgoingMessage, broker_name: str, *, unit_mode: bool
) -> None:
    """Send a message to the broker that it came from, once more, as its copy says.

    Raises:
        KeroloxError: it is not stored.
    """
    address = cluster.master_address(broker_name)
    if address is None:
        raise ClientError(f"broker {broker_name!r} has no known master")
    header = SendHeader("CLIENT_INNER_PRODUCER", AUTO_CREATE_TOPIC, 1, unit_mode)
    queue = MessageQueue(copy.topic, broker_name, 0)
    response = await cluster.remoting.invoke(
        address,
        header.request(copy, queue.queue_id, clock.now_ms()),
        timeout_seconds=SEND_BACK_SECONDS_MAX,
    )
    send_result(response, copy.message_id, queue, address)
