"""The ends of transactions: END_TRANSACTION (37), by the rules of ``EndTransactionProcessor``, many
at once by END_HALF_MESSAGES (31037), and RESUME_CHECK_HALF_MESSAGE (323)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.broker.context import Context
from kerolox.broker.errors import system_error
from kerolox.broker.requests.send import code_of
from kerolox.broker.services.writer import Put
from kerolox.errors import BrokerError
from kerolox.kernel.append import HALF_QUEUE
from kerolox.message import MessageExt, MessageId, PropertyKey
from kerolox.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from kerolox.protocol.extensions.half_messages import EndedHalves, HalfSelection, HalfSelector
from kerolox.protocol.headers import (
    EndHalfMessagesHeader,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from kerolox.remoting.router import Reply, Request, Router

router: Router[Context] = Router()

COMMIT_SECONDS_MAX = 1.0
"""How long an end may wait for its half to leave the transient store pool."""

COMMIT_POLL_SECONDS = 0.02

_log = logging.getLogger(__name__)


@router.on(RequestCode.END_TRANSACTION, EndTransactionHeader.decode)
async def end_transaction(
    broker: Context, header: EndTransactionHeader, request: Request
) -> Reply | None:
    """Commit or roll back. A producer that has not decided is not answered; it will be asked."""
    _check_master(broker)
    if header.commit_or_rollback not in (
        MessageSysFlag.TRANSACTION_COMMIT,
        MessageSysFlag.TRANSACTION_ROLLBACK,
    ):
        _log.info(
            "transaction %s of %s is undecided: %s",
            # Producers in other languages may send neither.
            header.transaction_id or header.msg_id or f"at offset {header.commit_log_offset}",
            request.connection.remote_address,
            request.command.remark,
        )
        return None
    await _committed(broker, lambda: header.commit_log_offset < broker.store.max_physical_offset)
    half = _checked_half(broker, header)
    topic = half.properties.get(PropertyKey.REAL_TOPIC, "")
    broker.guards.access.check_write(topic, request.command, request.connection)
    if header.commit_or_rollback == MessageSysFlag.TRANSACTION_ROLLBACK:
        await broker.writing.transactions.rollback(half)
        return Reply()
    code_of(broker, await broker.writing.transactions.commit(half))
    return Reply()


@router.on(RequestCode.END_HALF_MESSAGES, EndHalfMessagesHeader.decode)
async def end_half_messages(
    broker: Context, header: EndHalfMessagesHeader, request: Request
) -> Reply:
    """Commit or roll back the halves of a range that the body selects, as far as one request goes;
    see :mod:`kerolox.protocol.extensions.half_messages`."""
    _check_master(broker)
    commit = header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT
    if not commit and header.commit_or_rollback != MessageSysFlag.TRANSACTION_ROLLBACK:
        raise system_error(
            f"commitOrRollback is {header.commit_or_rollback}; 8 commits, 12 rolls back"
        )
    if header.from_offset < 0:
        raise system_error(f"fromOffset is {header.from_offset}; the first offset is 0")
    selection = HalfSelection.decode(request.body)
    fault = selection.fault(is_commit=commit)
    if fault:
        raise system_error(fault)
    if header.from_offset < header.to_offset:
        await _committed(
            broker, lambda: broker.store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[1] >= header.to_offset
        )
    done, failed = await broker.writing.bulk_ends.end(
        header.producer_group,
        header.from_offset,
        header.to_offset,
        HalfSelector(selection),
        commit=commit,
    )
    if failed is not None:
        raise _stopped(broker, failed, done)
    return Reply(fields=done.fields)


def _check_master(broker: Context) -> None:
    if broker.role.current.is_slave:
        raise BrokerError(
            "Message store is slave mode, so end transaction is forbidden. ",
            code=ResponseCode.SLAVE_NOT_AVAILABLE,
        )


def _stopped(broker: Context, put: Put, done: EndedHalves) -> BrokerError:
    """What is reported when a put failed on the way; whoever asks again goes on there."""
    where = f"at half message {done.next_offset}, with {done.ended} ended before it"
    try:
        code = code_of(broker, put)
    except BrokerError as error:
        return BrokerError(f"{error.remark} It stopped {where}.", code=error.code)
    what = (
        "the flush did not come" if code == ResponseCode.FLUSH_DISK_TIMEOUT else "no slave has it"
    )
    return BrokerError(f"{what} in time {where}", code=code)


@router.on(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader.decode, changes=True)
async def resume_check(broker: Context, header: ResumeCheckHeader, request: Request) -> Reply:
    """Ask again, from the first time on, about a message that was given up after many questions."""
    try:
        offset = MessageId.parse(header.msg_id).physical_offset
    except ValueError as error:
        raise system_error(f"{header.msg_id!r} is no message id: {error}") from None
    message = broker.writing.transactions.given_up_at(offset)
    if message is None:
        raise system_error(
            f"no message of {HALF_TOPIC} or {CHECK_MAX_TIME_TOPIC} is {header.msg_id}"
        )
    code_of(broker, await broker.writing.transactions.resume(message))
    broker.audit.changed(request, "halfMessage", header.msg_id)
    return Reply()


async def _committed(broker: Context, is_readable: Callable[[], bool]) -> None:
    """Producers end a transaction as soon as its half is acknowledged, which a transient store pool
    commits a little later. RocketMQ refuses such an end, and asks the producer in a minute."""
    for _look in range(int(COMMIT_SECONDS_MAX / COMMIT_POLL_SECONDS)):
        if is_readable() or not broker.store.stats()["uncommitted_bytes"]:
            return
        await asyncio.sleep(COMMIT_POLL_SECONDS)


def _checked_half(broker: Context, header: EndTransactionHeader) -> MessageExt:
    """The half that is meant (``checkPrepareMessage``)."""
    half = broker.writing.transactions.half_at(header.commit_log_offset)
    if half is None:
        raise system_error("Find prepared transaction message failed")
    if half.properties.get(PropertyKey.PRODUCER_GROUP) != header.producer_group:
        raise system_error("The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise system_error("The transaction state table offset wrong")
    return half
