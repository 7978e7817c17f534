"""Transactions as a producer sees them: what it decides, and the requests that say so."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.core.validate import with_properties
from kerolox.message import MessageId, PropertyKey
from kerolox.protocol.codes import FLAG_ONEWAY, MessageSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand

if TYPE_CHECKING:
    from kerolox.client.core.sending.send import OutgoingMessage, SendResult


class TransactionState(Enum):
    """The outcome of the local part of a transaction (``LocalTransactionState``)."""

    COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)
    ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)
    UNKNOWN = 0
    """Not known yet: the broker asks later."""

    def __str__(self) -> str:
        return self.name


class TransactionResult(NamedTuple):
    """Where the half message was stored, and what was decided."""

    send: SendResult
    state: TransactionState

    @property
    def transaction_id(self) -> str:
        """The message's id (UNIQ_KEY), by which a check knows it again (``getTransactionId``)."""
        return self.send.message_id


def state_after(chosen: TransactionState | None, error: BaseException | None) -> TransactionState:
    """How a transaction ends whose local part is a block of code: as the block has ``chosen``
    itself. Else it commits without an error, and rolls back after an :class:`Exception`. After a
    cancellation, or the end of the program, nobody knows how far the local transaction came: the
    broker asks later.
    """
    if chosen is not None:
        return chosen
    if error is None:
        return TransactionState.COMMIT
    is_failure = isinstance(error, Exception)
    return TransactionState.ROLLBACK if is_failure else TransactionState.UNKNOWN


class Half(NamedTuple):
    """A half message, as requests name it."""

    queue_offset: int
    commit_log_offset: int
    message_id: str

    @classmethod
    def of(cls, result: SendResult) -> Half:
        """The half message that a send stored."""
        physical_offset = MessageId.parse(result.offset_message_id).physical_offset
        return cls(result.queue_offset, physical_offset, result.message_id)


def half_message(outgoing: OutgoingMessage, group: str) -> OutgoingMessage:
    """A message as the half of a transaction of a producer group."""
    marks = {PropertyKey.TRANSACTION_PREPARED: "true", PropertyKey.PRODUCER_GROUP: group}
    text = with_properties(outgoing.properties, marks)
    sys_flag = outgoing.sys_flag | MessageSysFlag.TRANSACTION_PREPARED
    return outgoing._replace(properties=text, sys_flag=sys_flag)


def end_request(
    half: Half, group: str, state: TransactionState, *, from_check: bool, remark: str = ""
) -> RemotingCommand:
    """END_TRANSACTION; nobody answers it."""
    fields = {
        "producerGroup": group,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.commit_log_offset),
        "commitOrRollback": str(state.value),
        "fromTransactionCheck": "true" if from_check else "false",
        "msgId": half.message_id,
        "transactionId": half.message_id,
    }
    return RemotingCommand(
        RequestCode.END_TRANSACTION, fields, flag=FLAG_ONEWAY, remark=remark or None
    )
