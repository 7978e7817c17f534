"""The end of a transaction: END_TRANSACTION (37), by the rules of ``EndTransactionProcessor``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kerolox.broker.handlers.send import code_of
from kerolox.broker.router import Reply, Request, Router
from kerolox.errors import BrokerError
from kerolox.message import PropertyKey
from kerolox.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from kerolox.protocol.headers import EndTransactionHeader

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker
    from kerolox.message import MessageExt

__all__ = ["router"]

router = Router()

_log = logging.getLogger(__name__)


@router.on(RequestCode.END_TRANSACTION, EndTransactionHeader.decode)
async def end_transaction(
    broker: Broker, header: EndTransactionHeader, request: Request
) -> Reply | None:
    """Commit or roll back. A producer that has not decided is not answered; it will be asked."""
    if header.commit_or_rollback not in (
        MessageSysFlag.TRANSACTION_COMMIT,
        MessageSysFlag.TRANSACTION_ROLLBACK,
    ):
        _log.info(
            "transaction %s of %s is undecided: %s",
            header.transaction_id,
            request.connection.remote_address,
            request.command.remark,
        )
        return None
    half = _checked_half(broker, header)
    if header.commit_or_rollback == MessageSysFlag.TRANSACTION_ROLLBACK:
        await broker.transactions.rollback(half)
        return Reply()
    code_of(broker, await broker.transactions.commit(half))
    return Reply()


def _checked_half(broker: Broker, header: EndTransactionHeader) -> MessageExt:
    """The half that is meant (``checkPrepareMessage``)."""
    half = broker.transactions.half_at(header.commit_log_offset)
    if half is None:
        raise _refused("Find prepared transaction message failed")
    if half.properties.get(PropertyKey.PRODUCER_GROUP) != header.producer_group:
        raise _refused("The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise _refused("The transaction state table offset wrong")
    return half


def _refused(remark: str) -> BrokerError:
    return BrokerError(remark, code=ResponseCode.SYSTEM_ERROR)
