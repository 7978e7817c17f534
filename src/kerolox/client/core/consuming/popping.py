"""Pops: requests, what their answers say, receipts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from kerolox.codec.pulling import decode_messages
from kerolox.errors import BrokerError, ClientError, ConfigError, RemoteProtocolError
from kerolox.message import PropertyKey
from kerolox.protocol.codes import BATCH_ITEMS_MAX, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeAnswer,
    ChangeInvisibleTimeHeader,
    HeaderFieldError,
    PopMessageAnswer,
    PopMessageHeader,
)
from kerolox.protocol.pop import (
    INVISIBLE_MS_MAX,
    BatchAck,
    BatchAckBody,
    PopInitMode,
    PopReceipt,
    PopTextError,
    TopicKind,
    batches_from_texts,
)

if TYPE_CHECKING:
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt

ALL_QUEUES = -1

_EMPTY = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
"""Answers of a broker that has no message now."""

NO_POPS = (
    "the broker serves no pops, which came with RocketMQ 5; read with a PushConsumer or a "
    "LitePullConsumer there"
)
"""What to do where a broker is too old."""

_RETRY: dict[TopicKind, Literal["0", "1", "2"]] = {
    TopicKind.NORMAL: "0",
    TopicKind.RETRY_V1: "1",
    TopicKind.RETRY_V2: "2",
}


def pop_request(
    group: str,
    subscription: Subscription,
    *,
    max_messages: int,
    invisible_ms: int,
    poll_ms: int,
    from_first: bool,
    is_ordered: bool,
    attempt_id: str | None = None,
) -> RemotingCommand:
    """A pop of all queues of a topic at one broker.

    Args:
        group: consumer group.
        subscription: the topic, and what is wanted of it.
        max_messages: most messages of the answer, up to 32.
        invisible_ms: how long nobody else gets them.
        poll_ms: how long the broker may hold the request; 0: not at all.
        from_first: where a new group begins.
        is_ordered: the queue of a message is blocked until the message is done.
        attempt_id: of an ordered pop: the same as of the one before, whose answer was lost.
    """
    header = PopMessageHeader(
        consumer_group=group,
        topic=subscription.topic,
        queue_id=ALL_QUEUES,
        max_msg_nums=max_messages,
        invisible_time=invisible_ms,
        poll_time=poll_ms,
        init_mode=PopInitMode.MIN if from_first else PopInitMode.MAX,
        exp_type=subscription.expression_type,
        exp=subscription.expression,
        order=is_ordered,
        attempt_id=attempt_id,
    )
    return RemotingCommand.request(RequestCode.POP_MESSAGE, header.encode())


def popped_messages(
    response: RemotingCommand, subscription: Subscription, *, broker_name: str, address: str
) -> list[MessageExt]:
    """The messages of an answer, each with its receipt in the property ``POP_CK``. ClientError: the
    broker serves no pops. RemoteProtocolError: the answer contradicts itself.
    """
    if response.code in _EMPTY:
        return []
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise ClientError(f"{address}: {NO_POPS}")
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError.from_response(response.code, response.remark, address)
    try:
        answer = PopMessageAnswer.decode(response.ext_fields)
        batches = batches_from_texts(
            answer.start_offset_info, answer.msg_offset_info, answer.order_count_info or ""
        )
    except (HeaderFieldError, PopTextError) as error:
        raise RemoteProtocolError(f"the answer of {address} to a pop: {error}") from None
    messages = decode_messages(response.body, broker_name=broker_name)
    places = [(batch, offset) for batch in batches for offset in batch.offsets]
    if len(places) != len(messages):
        raise RemoteProtocolError(
            f"the answer of {address} to a pop has {len(messages)} messages and names {len(places)}"
        )
    for message, (batch, offset) in zip(messages, places, strict=True):
        if (message.queue_id, message.queue_offset) != (batch.queue_id, offset):
            raise RemoteProtocolError(
                f"the answer of {address} to a pop names message {offset} of queue "
                f"{batch.queue_id}, and has {message.queue_offset} of {message.queue_id} there"
            )
        message.topic = subscription.topic
        if batch.times_consumed is not None:
            times = batch.times_by_offset.get(offset, batch.times_consumed)
            message.reconsume_times = max(message.reconsume_times, times)
        message.properties[PropertyKey.POP_RECEIPT] = PopReceipt(
            start_offset=batch.start_offset,
            pop_time=answer.pop_time,
            invisible_time=answer.invisible_time,
            revive_queue_id=answer.revive_qid,
            kind=batch.kind,
            broker_name=broker_name,
            queue_id=batch.queue_id,
            queue_offset=offset,
        ).text
    return messages


class Popped(NamedTuple):
    """What an acknowledgement says of a message."""

    topic: str
    """As brokers know it; not that of retries."""
    receipt: PopReceipt

    def real_topic(self, group: str) -> str:
        """The queue's own topic."""
        return self.receipt.kind.topic(self.topic, group)


def popped_of(message: MessageExt, topic: str) -> Popped:
    """The receipt of a message; ConfigError: it has none: it was not received by a pop."""
    text = message.properties.get(PropertyKey.POP_RECEIPT)
    if text is None:
        raise ConfigError(f"a message of {topic} has no receipt: it was not popped")
    try:
        receipt = PopReceipt.parse(text)
    except PopTextError as error:
        raise ConfigError(f"a message of {topic}: {error}") from None
    return Popped(topic, receipt)


def batch_ack_request(group: str, popped: Sequence[Popped]) -> RemotingCommand:
    """Acknowledge messages of one broker together; those that :func:`is_batchable` allows."""
    body = BatchAckBody(acks=_gathered(group, popped), broker_name=popped[0].receipt.broker_name)
    return RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, None, body=body.encode())


def is_batchable(popped: Popped) -> bool:
    """Whether a batch of acknowledgements can name a message: it is near the start of its pop."""
    receipt = popped.receipt
    return 0 <= receipt.queue_offset - receipt.start_offset < BATCH_ITEMS_MAX


def ack_request(group: str, popped: Popped) -> RemotingCommand:
    """Acknowledge a message."""
    receipt = popped.receipt
    header = AckMessageHeader(
        consumer_group=group,
        topic=popped.real_topic(group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.queue_offset,
    )
    return RemotingCommand.request(RequestCode.ACK_MESSAGE, header.encode())


def _gathered(group: str, popped: Iterable[Popped]) -> list[BatchAck]:
    """By pop and queue."""
    found: dict[tuple[object, ...], list[Popped]] = {}
    for each in popped:
        receipt = each.receipt
        place = each.topic, receipt.kind, receipt.queue_id
        of_pop = receipt.start_offset, receipt.pop_time, receipt.revive_queue_id
        found.setdefault((place, of_pop), []).append(each)
    acks = []
    for members in found.values():
        topic, first = members[0]
        offsets = [each.receipt.queue_offset for each in members]
        acks.append(
            BatchAck(
                # A broker of RocketMQ finds the pop by its start.
                b=BatchAck.bits(first.start_offset, offsets),
                c=group,
                it=first.invisible_time,
                pt=first.pop_time,
                q=first.queue_id,
                r=_RETRY[first.kind],
                rq=first.revive_queue_id,
                so=first.start_offset,
                t=topic,
            )
        )
    return acks


def change_request(group: str, popped: Popped, invisible_ms: int) -> RemotingCommand:
    """Let the invisible time of a message begin anew; 0: it comes again at once."""
    receipt = popped.receipt
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=popped.real_topic(group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.queue_offset,
        invisible_time=invisible_ms,
    )
    return RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())


def changed_receipt(response: RemotingCommand, popped: Popped, address: str) -> str:
    """The receipt from then on. BrokerError: the broker refused; code 208: the message is done, or
    came again. RemoteProtocolError: its answer is malformed.
    """
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise ClientError(f"{address}: {NO_POPS}")
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError.from_response(response.code, response.remark, address)
    try:
        answer = ChangeInvisibleTimeAnswer.decode(response.ext_fields)
    except HeaderFieldError as error:
        raise RemoteProtocolError(f"the answer of {address} to a change: {error}") from None
    old = popped.receipt
    return PopReceipt(
        start_offset=old.start_offset,
        pop_time=answer.pop_time,
        invisible_time=answer.invisible_time,
        revive_queue_id=answer.revive_qid,
        kind=old.kind,
        broker_name=old.broker_name,
        queue_id=old.queue_id,
        queue_offset=old.queue_offset,
    ).text


def invisible_milliseconds(seconds: float, name: str, *, least: int = 1) -> int:
    """An invisible time; ConfigError: it is shorter than ``least`` ms or longer than brokers keep
    it.
    """
    milliseconds = round(seconds * 1000)
    if least <= milliseconds <= INVISIBLE_MS_MAX:
        return milliseconds
    raise ConfigError(
        f"{name} is {seconds:g} s; it must be from {least / 1000:g} to "
        f"{INVISIBLE_MS_MAX / 1000:g} s"
    )
