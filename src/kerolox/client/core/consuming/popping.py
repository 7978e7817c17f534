"""Pops: requests, what their answers say, receipts. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

from kerolox.client.core.consuming.leases import Lease, PopTimes, lease_of
from kerolox.client.core.delays import DELAYS_SECONDS
from kerolox.codec.pulling import Pulled, decode_pulled, message_codec
from kerolox.errors import BrokerError, ClientError, ConfigError, RemoteProtocolError
from kerolox.message import PropertyKey, give_parts, has_properties, parts_of, queue_ids_fit
from kerolox.protocol.codes import RequestCode, ResponseCode
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
    BatchAck,
    BatchAckBody,
    PoppedBatch,
    PopTextError,
    batches_from_texts,
)
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX, PopInitMode, TopicKind
from kerolox.protocol.routing.allocation import ALL_QUEUES

if TYPE_CHECKING:
    from kerolox.client.core.consuming.outcome import Outcome
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt

OFFSETS_SHOWN = 8
"""Offsets that an error names."""

_EMPTY = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
"""Answers of a broker that has no message now."""

NO_POPS = (
    "the broker serves no pops, which came with RocketMQ 5; read with a PushConsumer or a "
    "LitePullConsumer there"
)
"""What to do where a broker is too old."""


class NoPopsError(ClientError):
    """A broker serves no pops."""


_RETRY: dict[TopicKind, Literal["0", "1", "2"]] = {
    TopicKind.NORMAL: "0",
    TopicKind.RETRY_V1: "1",
    TopicKind.RETRY_V2: "2",
}


class PopTerms(NamedTuple):
    """What a pop asks for, beside its topic."""

    max_messages: int
    """Up to 32."""
    invisible_ms: int
    """How long nobody else gets them."""
    from_first: bool
    """Where a new group begins."""
    is_ordered: bool = False
    """The queue of a message is blocked until the message is done."""


def pop_request(
    group: str,
    subscription: Subscription,
    terms: PopTerms,
    *,
    poll_ms: int,
    attempt_id: str | None = None,
    queue_id: int = ALL_QUEUES,
) -> RemotingCommand:
    """A pop of a topic at one broker.

    Args:
        group: consumer group.
        subscription: the topic, and what is wanted of it.
        terms: how many messages, for how long.
        poll_ms: how long the broker may hold the request; 0: not at all.
        attempt_id: of an ordered pop: the same as of the one before, whose answer was lost.
        queue_id: of one queue; -1: of all.
    """
    header = PopMessageHeader(
        consumer_group=group,
        topic=subscription.topic,
        queue_id=queue_id,
        max_msg_nums=terms.max_messages,
        invisible_time=terms.invisible_ms,
        poll_time=poll_ms,
        init_mode=PopInitMode.MIN if terms.from_first else PopInitMode.MAX,
        exp_type=subscription.expression_type,
        exp=subscription.expression,
        order=terms.is_ordered,
        attempt_id=attempt_id,
    )
    return RemotingCommand.request(RequestCode.POP_MESSAGE, header.encode())


class PoppedMessages(NamedTuple):
    """What an answer to a pop brought."""

    pulled: Pulled
    leases: list[Lease]
    """Of each queue; all messages are out."""


NOTHING = PoppedMessages(Pulled([], 0, True, True), [])


def popped_messages(
    response: RemotingCommand,
    subscription: Subscription,
    *,
    broker_name: str,
    address: str,
    now: float,
) -> PoppedMessages:
    """The messages of an answer, under their leases. ``now``: by the event loop's clock.
    NoPopsError: the broker serves no pops. RemoteProtocolError: the answer contradicts itself.
    """
    if response.code in _EMPTY:
        return NOTHING
    _check(response, address)
    try:
        answer = PopMessageAnswer.decode(response.ext_fields)
        batches = batches_from_texts(
            answer.start_offset_info, answer.msg_offset_info, answer.order_count_info or ""
        )
    except (HeaderFieldError, PopTextError) as error:
        raise RemoteProtocolError(f"the answer of {address} to a pop: {error}") from None
    times = PopTimes(
        answer.pop_time,
        answer.invisible_time,
        answer.revive_qid,
        now + answer.invisible_time / 1000,
    )
    pulled = decode_pulled(response.body, 0, broker_name, (), None, message_codec())
    messages, at, leases = pulled.messages, 0, []
    for batch in batches:
        offsets, start = list(batch.offsets), at
        at += len(offsets)
        own = messages[start:at]
        if [message.queue_offset for message in own] != offsets or not queue_ids_fit(
            own, batch.queue_id
        ):
            raise RemoteProtocolError(
                f"the answer of {address} to a pop names messages {_listed(offsets)} of queue "
                f"{batch.queue_id}, and has others there"
            )
        lease = _lease(batch, subscription.topic, broker_name, times)
        lease.out = dict(zip(offsets, own, strict=True))
        give_parts(own, lease)
        if own and own[0].topic != subscription.topic:
            for message in own:
                message.topic = subscription.topic
        leases.append(lease)
    if at != len(messages):
        raise RemoteProtocolError(
            f"the answer of {address} to a pop has {len(messages)} messages and names {at}"
        )
    return PoppedMessages(pulled, leases)


def _lease(batch: PoppedBatch, topic: str, broker_name: str, times: PopTimes) -> Lease:
    counts = None
    if (least := batch.times_consumed) is not None:
        counts = {each: batch.times_by_offset.get(each, least) for each in batch.offsets}
    return Lease(topic, batch.kind, broker_name, batch.queue_id, batch.start_offset, times, counts)


def _listed(offsets: list[int]) -> str:
    shown = ", ".join(map(str, offsets[:OFFSETS_SHOWN]))
    return f"{shown}, ..." if len(offsets) > OFFSETS_SHOWN else shown


def _check(response: RemotingCommand, address: str) -> None:
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NoPopsError(f"{address}: {NO_POPS}")
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError.from_response(response.code, response.remark, address)


def unwanted(messages: list[MessageExt], tags: Collection[str]) -> list[MessageExt]:
    """Those without one of the tags: a broker compares hashes of tags."""
    return [each for each in messages if each.properties.get(PropertyKey.TAGS, "") not in tags]


def leased(message: MessageExt, topic: str) -> tuple[Lease, int]:
    """The lease of a message, and its offset there; ``topic``: as brokers know it. ConfigError: it
    has no receipt, so it was not received by a pop.
    """
    try:
        return lease_of(message, topic)
    except KeyError:
        raise ConfigError(f"a message of {topic} has no receipt: it was not popped") from None
    except PopTextError as error:
        raise ConfigError(f"a message of {topic}: {error}") from None


# -- what becomes of messages ----------------------------------------------------------------------
Done = dict[Lease, list[int]]
"""Messages that are done: their offsets, by lease."""


def ack_request(group: str, lease: Lease, offset: int) -> RemotingCommand:
    """Acknowledge a message."""
    header = AckMessageHeader(
        consumer_group=group,
        topic=lease.real_topic(group),
        queue_id=lease.queue_id,
        extra_info=lease.receipt(offset).text,
        offset=offset,
    )
    return RemotingCommand.request(RequestCode.ACK_MESSAGE, header.encode())


def batch_ack_request(group: str, done: Done) -> RemotingCommand:
    """Acknowledge messages of one broker together; those that ``Lease.can_batch`` allows."""
    acks = [_batch_ack(group, lease, offsets) for lease, offsets in done.items()]
    body = BatchAckBody(acks=acks, broker_name=next(iter(done)).broker_name)
    return RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, None, body=body.encode())


def _batch_ack(group: str, lease: Lease, offsets: list[int]) -> BatchAck:
    times = lease.times
    return BatchAck(
        # A broker of RocketMQ finds the pop by its start.
        b=BatchAck.bits(lease.start_offset, offsets),
        c=group,
        it=times.invisible_ms,
        pt=times.pop_time,
        q=lease.queue_id,
        r=_RETRY[lease.kind],
        rq=times.revive_queue_id,
        so=lease.start_offset,
        t=lease.topic,
    )


def change_request(group: str, lease: Lease, offset: int, invisible_ms: int) -> RemotingCommand:
    """Let the invisible time of a message begin anew; 0: it comes again at once."""
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=lease.real_topic(group),
        queue_id=lease.queue_id,
        extra_info=lease.receipt(offset).text,
        offset=offset,
        invisible_time=invisible_ms,
    )
    return RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())


def changed_lease(
    response: RemotingCommand,
    message: MessageExt,
    lease: Lease,
    offset: int,
    *,
    address: str,
    now: float,
) -> Lease:
    """The lease of a message from then on, which it has now. ``now``: by the event loop's clock.
    BrokerError: the broker refused; code 208: the message is done, or came again.
    RemoteProtocolError: its answer is malformed.
    """
    _check(response, address)
    try:
        answer = ChangeInvisibleTimeAnswer.decode(response.ext_fields)
    except HeaderFieldError as error:
        raise RemoteProtocolError(f"the answer of {address} to a change: {error}") from None
    ends_at = now + answer.invisible_time / 1000
    times = PopTimes(answer.pop_time, answer.invisible_time, answer.revive_qid, ends_at)
    new = lease.anew(times, offset)
    if parts_of(message) is not None:
        # Whoever reads its properties for the first time finds the new receipt there.
        give_parts([message], new)
    if has_properties(message):
        text = new.receipt(offset).text
        message.properties[PropertyKey.POP_RECEIPT] = text
    return new


POP_DELAYS_SECONDS: tuple[int, ...] = (10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""After how long a message that failed comes again, by the tries before (``popDelayLevel``)."""


def retry_seconds(reconsume_times: int, outcome: Outcome, delay_level: int) -> float:
    """How long a message that a listener of a push consumer failed for stays away.

    Args:
        reconsume_times: how often it came before.
        outcome: what the listener said.
        delay_level: what the settings say (``delay_level_when_next_consume``); 0: nothing.
    """
    if outcome.delay_seconds is not None:
        return outcome.delay_seconds
    level = delay_level if outcome.delay_level is None else outcome.delay_level
    if level > 0:
        return DELAYS_SECONDS[min(level, len(DELAYS_SECONDS)) - 1]
    return POP_DELAYS_SECONDS[min(reconsume_times, len(POP_DELAYS_SECONDS) - 1)]


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
