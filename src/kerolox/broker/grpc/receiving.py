"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: pops of all
queues, and what becomes of their messages (``ReceiveMessageActivity``, ``AckMessageActivity``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakValueDictionary

from kerolox.broker.context import Context
from kerolox.broker.grpc import checks
from kerolox.broker.grpc.answers import AnswerError, error_of, ok, status_of_all
from kerolox.broker.grpc.asking import Caller
from kerolox.broker.grpc.clients import REQUEST_TIMEOUT_MS, GrpcClient
from kerolox.broker.grpc.records import inflate, message_of
from kerolox.broker.grpc.renewals import Renewals
from kerolox.broker.grpc.routes import ALL_QUEUES, is_fifo
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.requests.pop_fast import FastPops, FoundMessages
from kerolox.broker.tables.filters import compile_expression
from kerolox.filter.sql92_error import SQL92, Sql92Error
from kerolox.filter.tags import Subscription, subscription_of
from kerolox.kernel.feed import TRIED_DECLINED, TRIED_FOUND, TRIED_NOTHING
from kerolox.message import ALL_TAGS, PropertyKey
from kerolox.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeAnswer,
    ChangeInvisibleTimeHeader,
    PopMessageAnswer,
    PopMessageHeader,
    SendBackHeader,
)
from kerolox.protocol.pop import (
    PoppedBatch,
    PopReceipt,
    PopTextError,
    batches_from_texts,
)
from kerolox.protocol.pop_names import POP_MESSAGES_MAX, PopInitMode
from kerolox.protocol.records import decode_records
from kerolox.remoting.time_slices import TimeSlices

if TYPE_CHECKING:
    from kerolox.remoting.server import ServerConnection

POLL_MS_MIN, POLL_MS_MAX = 5_000, 20_000
"""``grpcClientConsumerMinLongPollingTimeoutMillis``, ``…Max…``."""

INIT_MODE = PopInitMode.MAX
"""A new group begins behind what is there."""

POLL_MARGIN_MS = 200
"""An answer is on its way before its call's deadline: messages that come too late are lost to the
client until they come again."""

AUTO_RENEWED_MS = 60_000
"""``defaultInvisibleTimeMills``: the invisible time of a message until its first renewal."""

FORWARDING_MS = 10_000
"""How long a message that is forwarded stays with its client: longer than a send waits for disk and
slave. When the broker stops before it is done, the message comes again after it."""

FIRST_OF_POLLING_TIME = "5.0.3"
"""Clients from this version on know ILLEGAL_POLLING_TIME; texts are compared, as in RocketMQ."""

INFLATED_OF_ALL_MAX = 32 * 1024 * 1024
"""To so much the compressed bodies of one answer are inflated; others go on as they are stored."""

ON_THE_SPOT_BYTES_MAX = 4 * 1024
"""A compressed body of more is inflated in a thread: each byte may become a thousand."""

EXPRESSION_CHARACTERS_MAX = 16 * 1024
"""Of a filter: each costs a microsecond. The tags of a message have no more."""

COMPRESSED = MessageSysFlag.COMPRESSED

ENTRIES_MAX = 4_096
"""Of one AckMessage."""

DEAD_LETTER_LEVEL = -1

_EMPTY = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.NO_MESSAGE,
)


# -- receives -------------------------------------------------------------------------------------
async def receive_message(
    broker: Context,
    caller: Caller,
    request: pb.ReceiveMessageRequest,
    client: GrpcClient | None,
    renewals: Renewals,
    fast: FastPops,
    data: bytes,
) -> None:
    """Pop, wait, and stream: status, messages, the time. ``data``: the request as it came."""
    topic = checks.topic_name(request.message_queue.topic)
    group = checks.group_name(request.group)
    subscription = await subscription_to(broker, topic, request.filter_expression)
    is_renewed = request.auto_renew
    invisible_ms = AUTO_RENEWED_MS
    if not is_renewed:
        invisible_ms = checks.receive_invisible_ms(request.invisible_duration)
    name = request.message_queue.broker.name
    if name and name != broker.config.broker_name:
        raise AnswerError(pb.BAD_REQUEST, f"this is broker {broker.config.broker_name}, not {name}")
    poll_ms = polling_ms(caller, request, client)
    count = min(max(request.batch_size, 1), POP_MESSAGES_MAX)
    header = PopMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=ALL_QUEUES,
        max_msg_nums=count,
        invisible_time=invisible_ms,
        poll_time=poll_ms,
        born_time=broker.now_ms(),
        init_mode=INIT_MODE,
        exp_type=subscription.expression_type,
        exp=subscription.expression,
        order=is_fifo(broker, group),
        attempt_id=request.attempt_id or None,
    )
    popped = await _popped(broker, caller, header, fast, data)
    if popped is None:
        return
    messages, unwanted = await _messages(broker, popped, subscription)
    for receipt in unwanted:
        await caller.ask(ack_command(group, topic, receipt))
    if not messages:
        raise AnswerError(pb.MESSAGE_NOT_FOUND, "no new message")
    given = [(group, topic, receipt) for _message, receipt in messages]
    if is_renewed and client is not None:
        for each in given:
            renewals.add(client, *each)
    if not caller.closed:
        caller.call.watch(partial(renewals.give_back, given))
        _stream(caller, ok(), [message for message, _receipt in messages])
    if caller.closed:
        renewals.give_back(given)


class _Popped(NamedTuple):
    """What a pop got."""

    batches: Sequence[PoppedBatch]
    records: bytes
    pop_time: int
    invisible_ms: int
    revive_queue_id: int


class _ReceiveFields(NamedTuple):
    """What :meth:`~kerolox.broker.requests.pop_fast.FastPops.receive` is asked."""

    topic: str
    group: str
    messages_max: int
    invisible_ms: int
    owner: str


class _ShortWay:
    """A receive of all messages: by the kernel, or in one step here. One of messages with some
    tags: by the kernel."""

    def __init__(
        self,
        caller: Caller,
        fast: FastPops,
        data: bytes,
        asked: _ReceiveFields,
        *,
        is_filtered: bool,
    ) -> None:
        self._caller, self._fast, self._data, self._asked = caller, fast, data, asked
        self._is_filtered = is_filtered
        self.found_nothing = False
        self.is_answered = False
        """By the kernel, whole."""
        self.found: FoundMessages | None = None

    @property
    def has_taken(self) -> bool:
        """Whether there were messages."""
        return self.is_answered or self.found is not None

    def take(self) -> None:
        """Try."""
        self.found_nothing = False
        if self._caller.closed or self._tried():
            return
        if self._is_filtered:
            if self._fast.lend_queues(self._asked.topic, self._asked.group):
                self._tried()
            return
        self.found = self._fast.receive(*self._asked)
        if self.found is None:
            # It may have lent what is empty.
            self._tried()

    def _tried(self) -> bool:
        """Whether the kernel knows."""
        tried = self._caller.call.try_receive(self._data, self._caller.client_id)
        self.is_answered = tried == TRIED_FOUND
        self.found_nothing = tried == TRIED_NOTHING
        return tried != TRIED_DECLINED

    def try_again(self) -> bool | None:
        """See :class:`~kerolox.remoting.server.ShortWay`."""
        self.take()
        if self.has_taken:
            self._caller.go_on()
            return True
        return False if self.found_nothing else None


async def _popped(
    broker: Context, caller: Caller, header: PopMessageHeader, fast: FastPops, data: bytes
) -> _Popped | None:
    """Pop, and wait; None: the kernel has answered the call. AnswerError: there is nothing."""
    group, topic, invisible_ms = header.consumer_group, header.topic, header.invisible_time
    short_way = None
    command = RemotingCommand.request(RequestCode.POP_MESSAGE, header.encode())
    # Limits count requests.
    if header.exp_type != SQL92 and not broker.guards.limits.is_on:
        owner = broker.tables.clients.named(group, cast("ServerConnection", caller))
        fields = _ReceiveFields(topic, group, header.max_msg_nums, invisible_ms, owner)
        caller.admit(broker, command)
        is_filtered = header.exp != ALL_TAGS
        short_way = caller.short_way = _ShortWay(
            caller, fast, data, fields, is_filtered=is_filtered
        )
        short_way.take()
    if short_way is None or not short_way.has_taken:
        answer = await caller.ask(command)
        if short_way is None or not short_way.has_taken:
            return _popped_of(answer)
    if short_way.found is None:
        return None
    found = short_way.found
    return _Popped(found.batches, b"".join(found.bodies), found.pop_time, invisible_ms, 0)


def _popped_of(answer: RemotingCommand) -> _Popped:
    """What the answer to a pop has; AnswerError: nothing."""
    if answer.code == ResponseCode.POLLING_FULL:
        raise AnswerError(pb.TOO_MANY_REQUESTS, "too many receives wait at this broker")
    if answer.code in _EMPTY:
        raise AnswerError(pb.MESSAGE_NOT_FOUND, "no new message")
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(answer)
    said = PopMessageAnswer.decode(answer.ext_fields)
    batches = batches_from_texts(
        said.start_offset_info, said.msg_offset_info, said.order_count_info or ""
    )
    return _Popped(batches, answer.body, said.pop_time, said.invisible_time, said.revive_qid)


def _stream(caller: Caller, status: pb.Status, messages: list[pb.Message]) -> None:
    call = caller.call
    call.send(pb.ReceiveMessageResponse(status=status).SerializeToString())
    for message in messages:
        # The order of a map counts for nothing; the kernel sorts it, too.
        call.send(pb.ReceiveMessageResponse(message=message).SerializeToString(deterministic=True))
    last = pb.ReceiveMessageResponse()
    checks.set_ms(last.delivery_timestamp, time.time_ns() // 1_000_000)
    call.send(last.SerializeToString())


def stream_error(caller: Caller, error: AnswerError) -> None:
    """The whole answer of a receive that gets nothing."""
    _stream(caller, error.status, [])


def polling_ms(caller: Caller, request: pb.ReceiveMessageRequest, client: GrpcClient | None) -> int:
    """How long a receive waits; AnswerError where its deadline leaves too little."""
    left = caller.call.seconds_left
    left_ms = None if left is None else int(left * 1000)
    if request.HasField("long_polling_timeout"):
        wanted = checks.milliseconds(request.long_polling_timeout)
    elif left_ms is not None:
        request_ms = REQUEST_TIMEOUT_MS if client is None else client.request_timeout_ms
        wanted = left_ms - request_ms // 2
    else:
        wanted = POLL_MS_MAX
    wanted = min(max(wanted, POLL_MS_MIN), POLL_MS_MAX)
    if left_ms is None:
        return wanted
    if left_ms < POLL_MS_MIN and wanted > left_ms:
        is_new = caller.version >= FIRST_OF_POLLING_TIME
        raise AnswerError(
            pb.ILLEGAL_POLLING_TIME if is_new else pb.BAD_REQUEST,
            "The deadline time remaining is not enough for polling, please check network condition",
        )
    return max(min(wanted, left_ms - POLL_MARGIN_MS), 1)


async def subscription_to(
    broker: Context, topic: str, expression: pb.FilterExpression
) -> Subscription:
    """What a filter means; AnswerError ILLEGAL_FILTER_EXPRESSION."""
    text = expression.expression
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise AnswerError(
            pb.ILLEGAL_FILTER_EXPRESSION,
            f"a filter of {len(text)} characters; at most {EXPRESSION_CHARACTERS_MAX} are taken",
        )
    try:
        if expression.type != pb.SQL:
            return subscription_of(topic, text)
        await broker.tables.filters.prepare(text, SQL92)
        compile_expression(text, SQL92)
    except (ValueError, Sql92Error) as error:
        raise AnswerError(pb.ILLEGAL_FILTER_EXPRESSION, f"filter expression: {error}") from None
    return Subscription(topic=topic, expression=text, expression_type=SQL92, version=1)


async def _messages(
    broker: Context, popped: _Popped, subscription: Subscription
) -> tuple[list[tuple[pb.Message, PopReceipt]], list[PopReceipt]]:
    """The messages of a pop with their receipts; and the receipts of those that only have the hash
    of a tag in common with what is wanted."""
    places = [(batch, offset) for batch in popped.batches for offset in batch.offsets]
    messages: list[tuple[pb.Message, PopReceipt]] = []
    unwanted: list[PopReceipt] = []
    slices, left = TimeSlices(), INFLATED_OF_ALL_MAX
    for stored, (batch, offset) in zip(
        decode_records(popped.records, inflate=False), places, strict=True
    ):
        if batch.times_consumed is not None:
            times = batch.times_by_offset.get(offset, batch.times_consumed)
            stored.reconsume_times = max(stored.reconsume_times, times)
        receipt = PopReceipt(
            start_offset=batch.start_offset,
            pop_time=popped.pop_time,
            invisible_time=popped.invisible_ms,
            revive_queue_id=popped.revive_queue_id,
            kind=batch.kind,
            broker_name=broker.config.broker_name,
            queue_id=batch.queue_id,
            queue_offset=offset,
            commit_log_offset=stored.commit_log_offset,
        )
        if subscription.matches(stored.properties.get(PropertyKey.TAGS)):
            if len(stored.body) > ON_THE_SPOT_BYTES_MAX and stored.sys_flag & COMPRESSED:
                await asyncio.to_thread(inflate, stored, left)
            else:
                inflate(stored, left)
            left = max(left - len(stored.body), 1)
            message = message_of(stored, subscription.topic, receipt.text)
            messages.append((message, receipt))
            await slices.checkpoint()
        else:
            unwanted.append(receipt)
    return messages, unwanted


# -- what becomes of messages ---------------------------------------------------------------------
def checked_receipt(
    broker: Context, renewals: Renewals, group: str, topic: str, text: str
) -> PopReceipt:
    """A receipt that counts still; AnswerError INVALID_RECEIPT_HANDLE. One that the broker renews
    does, however old it is; its newest is given."""
    receipt = parsed_receipt(broker, text)
    newest = renewals.newest(group, topic, receipt)
    if newest is not None:
        return newest
    if receipt.pop_time + receipt.invisible_time <= broker.now_ms():
        raise AnswerError(pb.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
    return receipt


def parsed_receipt(broker: Context, text: str) -> PopReceipt:
    """A receipt of this broker, which may count or not; AnswerError INVALID_RECEIPT_HANDLE."""
    try:
        receipt = PopReceipt.parse(text)
    except PopTextError as error:
        raise AnswerError(pb.INVALID_RECEIPT_HANDLE, f"receipt handle: {error}") from None
    if receipt.broker_name != broker.config.broker_name:
        raise AnswerError(
            pb.INVALID_RECEIPT_HANDLE,
            f"the message is at broker {receipt.broker_name}, and this is "
            f"{broker.config.broker_name}: send the receipt where the message came from",
        )
    return receipt


async def ack_message(
    broker: Context,
    caller: Caller,
    request: pb.AckMessageRequest,
    renewals: Renewals,
    fast: FastPops,
) -> pb.AckMessageResponse:
    """Messages are done; one entry for each."""
    topic, group = checks.topic_name(request.topic), checks.group_name(request.group)
    if len(request.entries) > ENTRIES_MAX:
        raise AnswerError(
            pb.BAD_REQUEST, f"{len(request.entries)} entries; at most {ENTRIES_MAX} are taken"
        )
    response = pb.AckMessageResponse()
    slices = TimeSlices()
    for each in request.entries:
        await slices.checkpoint()
        if caller.closed:
            break
        entry = response.entries.add()
        entry.message_id, entry.receipt_handle = each.message_id, each.receipt_handle
        try:
            receipt = checked_receipt(broker, renewals, group, topic, each.receipt_handle)
            key = QueueKey(group, receipt.kind.topic(topic, group), receipt.queue_id)
            if not fast.acknowledge(key, receipt):
                await _acked(caller, group, topic, receipt)
            renewals.remove(group, topic, receipt)
            entry.status.CopyFrom(ok())
        except AnswerError as error:
            entry.status.CopyFrom(error.status)
    response.status.CopyFrom(status_of_all(entry.status for entry in response.entries))
    return response


def ack_command(group: str, topic: str, receipt: PopReceipt) -> RemotingCommand:
    """The acknowledgement of a message; ``topic``: not that of retries."""
    header = AckMessageHeader(
        consumer_group=group,
        topic=receipt.kind.topic(topic, group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.queue_offset,
    )
    return RemotingCommand.request(RequestCode.ACK_MESSAGE, header.encode())


def change_command(
    group: str, topic: str, receipt: PopReceipt, invisible_ms: int
) -> RemotingCommand:
    """The change of a message's invisible time."""
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=receipt.kind.topic(topic, group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.queue_offset,
        invisible_time=invisible_ms,
    )
    return RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())


_LATE = (
    ResponseCode.NO_MESSAGE,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.TOPIC_NOT_EXIST,
)
"""Answers that will not change: clients would ask for ever after any other code."""


def _check_receipt_answer(answer: RemotingCommand) -> None:
    if answer.code in _LATE:
        raise AnswerError(pb.INVALID_RECEIPT_HANDLE, answer.remark or "receipt handle is invalid")
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(answer)


async def _acked(caller: Caller, group: str, topic: str, receipt: PopReceipt) -> None:
    _check_receipt_answer(await caller.ask(ack_command(group, topic, receipt)))


async def change_invisible_duration(
    broker: Context,
    caller: Caller,
    request: pb.ChangeInvisibleDurationRequest,
    renewals: Renewals,
) -> pb.ChangeInvisibleDurationResponse:
    """The invisible time begins anew; the answer has the new receipt."""
    topic, group = checks.topic_name(request.topic), checks.group_name(request.group)
    invisible_ms = checks.changed_invisible_ms(request.invisible_duration)
    receipt = checked_receipt(broker, renewals, group, topic, request.receipt_handle)
    answer = await caller.ask(change_command(group, topic, receipt, invisible_ms))
    _check_receipt_answer(answer)
    renewals.remove(group, topic, receipt)
    return pb.ChangeInvisibleDurationResponse(
        status=ok(), receipt_handle=changed_receipt(receipt, answer).text
    )


def changed_receipt(receipt: PopReceipt, answer: RemotingCommand) -> PopReceipt:
    """The receipt that the answer to a change makes."""
    said = ChangeInvisibleTimeAnswer.decode(answer.ext_fields)
    return replace(
        receipt,
        pop_time=said.pop_time,
        invisible_time=said.invisible_time,
        revive_queue_id=said.revive_qid,
    )


_FORWARDED: WeakValueDictionary[tuple[str, QueueKey, int], asyncio.Lock] = WeakValueDictionary()
"""By broker, queue and offset: messages on their way to the dead letters, each once."""


async def forward_to_dead_letters(
    broker: Context,
    caller: Caller,
    request: pb.ForwardMessageToDeadLetterQueueRequest,
    renewals: Renewals,
) -> pb.ForwardMessageToDeadLetterQueueResponse:
    """A message goes to the dead letters of its group, and is done.

    A receipt that counts no more makes no dead letter, and the answer is a success, as that to a
    late acknowledgement: the message is done, or comes again by itself. Clients would repeat the
    call for ever after any other code.
    """
    topic, group = checks.topic_name(request.topic), checks.group_name(request.group)
    said = parsed_receipt(broker, request.receipt_handle)
    receipt = renewals.newest(group, topic, said) or said
    if receipt.commit_log_offset < 0:
        # What the kernel gave out is renewed without it.
        receipt = replace(receipt, commit_log_offset=said.commit_log_offset)
    if receipt.commit_log_offset < 0:
        raise AnswerError(pb.INVALID_RECEIPT_HANDLE, "the receipt has no commit log offset")
    key = QueueKey(group, receipt.kind.topic(topic, group), receipt.queue_id)
    place = broker.config.broker_name, key, receipt.queue_offset
    async with _FORWARDED.setdefault(place, asyncio.Lock()):
        # Whoever has the message keeps it meanwhile.
        held = await caller.ask(change_command(group, topic, receipt, FORWARDING_MS))
        if held.code != ResponseCode.NO_MESSAGE:
            _check_receipt_answer(held)
            await _send_dead_letter(caller, request, key, receipt)
            await _acked(caller, group, topic, changed_receipt(receipt, held))
    renewals.remove(group, topic, receipt)
    return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())


async def _send_dead_letter(
    caller: Caller,
    request: pb.ForwardMessageToDeadLetterQueueRequest,
    key: QueueKey,
    receipt: PopReceipt,
) -> None:
    header = SendBackHeader(
        offset=receipt.commit_log_offset,
        group=key.group,
        delay_level=DEAD_LETTER_LEVEL,
        origin_msg_id=request.message_id,
        origin_topic=key.topic,
        max_reconsume_times=0,
    )
    await caller.done(RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode()))
