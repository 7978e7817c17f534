"""What members say of popped messages: acknowledgements (200051, 200151) and changes of invisible
times (200053); by the rules of ``AckMessageProcessor`` and ``ChangeInvisibleTimeProcessor``.

Receipts are not signed, so all in them is checked: a receipt that was never given has no effect.
"""

from __future__ import annotations

from dataclasses import replace

from kerolox.broker.context import Context
from kerolox.broker.errors import no_permission
from kerolox.broker.pop.checks import check_invisible, check_queue, check_range, illegal_order
from kerolox.broker.pop.copies import normal_topic
from kerolox.broker.pop.leases import AckOutcome, QueueKey
from kerolox.broker.requests.pop import refuse
from kerolox.errors import BrokerError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeAnswer,
    ChangeInvisibleTimeHeader,
    EmptyHeader,
)
from kerolox.protocol.pop import (
    BatchAck,
    BatchAckBody,
    PopReceipt,
    PopTextError,
)
from kerolox.protocol.pop_names import ORDER_REVIVE_QUEUE
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices

router: Router[Context] = Router()


@router.on(RequestCode.ACK_MESSAGE, AckMessageHeader.decode)
async def ack_message(broker: Context, header: AckMessageHeader, request: Request) -> Reply:
    """A message is done. One that came again meanwhile, or was done before, is SUCCESS, too."""
    _check_master(broker)
    key = _checked_queue(broker, header, request)
    bounds = broker.store.queue_bounds(key.topic, key.queue_id)
    refuse(check_range(key.topic, key.queue_id, header.offset, bounds))
    receipt = _receipt(header)
    committed = broker.tables.offsets.query(*key)
    outcome = broker.tables.pops.state.ack(
        key, header.offset, receipt.pop_time, is_order=receipt.is_order, committed=committed
    )
    if outcome is AckOutcome.ILLEGAL:
        address = f"/{request.connection.remote_address}"
        raise illegal_order(key.topic, key.group, key.queue_id, header.offset, committed, address)
    _done(broker, key, outcome is AckOutcome.DONE, is_order=receipt.is_order)
    return Reply()


@router.on(RequestCode.BATCH_ACK_MESSAGE, EmptyHeader.decode)
async def ack_messages(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Messages are done, of several pops and queues. What is none of them is passed over, as in
    RocketMQ, unless an ordered pop did not deliver it."""
    _check_master(broker)
    acks = BatchAckBody.decode(request.body).acks if request.body else []
    if not acks:
        return Reply(ResponseCode.NO_MESSAGE, "the body names no message to acknowledge")
    slices = TimeSlices()
    is_illegal = False
    for each in acks:
        is_illegal |= _acked_together(broker, each)
        await slices.checkpoint()
    if is_illegal:
        remark = "an ordered pop did not deliver one of the messages to acknowledge"
        return Reply(ResponseCode.MESSAGE_ILLEGAL, remark)
    return Reply()


def _acked_together(broker: Context, ack: BatchAck) -> bool:
    """Messages of one pop and queue; whether an ordered pop did not deliver one."""
    key = QueueKey(ack.c, ack.kind.topic(ack.t, ack.c), ack.q)
    if key.topic not in broker.tables.topics:
        return False
    low, end = broker.store.queue_bounds(key.topic, key.queue_id)
    is_order = ack.rq == ORDER_REVIVE_QUEUE
    done, is_illegal = broker.tables.pops.state.ack_batch(
        key,
        ack.so,
        ack.bits_between(low, end),
        ack.pt,
        is_order=is_order,
        committed=broker.tables.offsets.query(*key),
    )
    _done(broker, key, done > 0, is_order=is_order)
    return is_illegal


def _done(broker: Context, key: QueueKey, is_done: bool, *, is_order: bool) -> None:
    """Commit, and let others try again who may get something now."""
    if not is_done:
        return
    pops, popping = broker.tables.pops, broker.popping
    pops.commit()
    popping.is_done(key)
    if is_order and pops.state.orders.free_at(key) is None:
        popping.held.wake(key.topic, key.group)


@router.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeHeader.decode)
async def change_invisible_time(
    broker: Context, header: ChangeInvisibleTimeHeader, request: Request
) -> Reply:
    """The invisible time of a message begins anew; the answer makes its new receipt."""
    _check_master(broker)
    key = _checked_queue(broker, header, request)
    refuse(check_invisible(header.invisible_time, is_change=True))
    bounds = broker.store.queue_bounds(key.topic, key.queue_id)
    refuse(check_range(key.topic, key.queue_id, header.offset, bounds, is_change=True))
    receipt = _receipt(header)
    changed = change(broker, key, header.offset, receipt, header.invisible_time)
    if changed is None:
        raise BrokerError(
            f"message {header.offset} of queue {key.queue_id} of {key.topic} is not out for group "
            f"{key.group} any more under that receipt: it is done, or came again",
            code=ResponseCode.NO_MESSAGE,
        )
    answer = ChangeInvisibleTimeAnswer(
        pop_time=changed.pop_time,
        invisible_time=changed.invisible_time,
        revive_qid=changed.revive_queue_id,
    )
    return Reply(fields=answer.encode())


def change(
    broker: Context, key: QueueKey, offset: int, receipt: PopReceipt, invisible_ms: int
) -> PopReceipt | None:
    """Let the invisible time of a message begin anew: its new receipt. None: it is not out any more
    under this one. What the caller says was checked before."""
    pops = broker.tables.pops
    changed = pops.state.change(
        key, offset, receipt.pop_time, invisible_ms, pops.now(), is_order=receipt.is_order
    )
    if changed is None:
        return None
    if receipt.is_order:
        free_at = pops.state.orders.free_at(key)
        place = normal_topic(key), key.group
        broker.popping.held.note(place, is_starved=False, free_at=free_at)
    return replace(receipt, pop_time=changed.pop_time, invisible_time=changed.invisible_ms)


def _check_master(broker: Context) -> None:
    if broker.role.current.is_slave:
        raise no_permission(
            f"the broker[{broker.config.broker_ip1}] is a slave, which keeps no popped messages; "
            "ask the master, which the route of the topic names"
        )


def _checked_queue(broker: Context, header: AckMessageHeader, request: Request) -> QueueKey:
    """The queue that a message is out of; BrokerError, code 17 or 13: there is no such topic, or
    queue, of which nothing is out.
    """
    key = QueueKey(header.consumer_group, header.topic, header.queue_id)
    state = broker.tables.pops.state
    refuse(
        check_queue(
            broker.tables.topics.get(key.topic),
            key.topic,
            key.queue_id,
            f"/{request.connection.remote_address}",
            is_held=state.queues.has_out(key) or state.orders.free_at(key) is not None,
        )
    )
    return key


def _receipt(header: AckMessageHeader) -> PopReceipt:
    """The receipt; BrokerError, code 29: it is none, or of another message than the request."""
    try:
        receipt = PopReceipt.parse(header.extra_info)
    except PopTextError as error:
        raise BrokerError(str(error), code=ResponseCode.INVALID_PARAMETER) from None
    is_other = receipt.queue_id != header.queue_id or receipt.queue_offset not in (
        -1,
        header.offset,
    )
    if is_other:
        raise BrokerError(
            f"the receipt is of message {receipt.queue_offset} of queue {receipt.queue_id}, the "
            f"request of message {header.offset} of queue {header.queue_id}",
            code=ResponseCode.INVALID_PARAMETER,
        )
    return receipt
