"""A transaction as an ``async with`` block: the block is its local part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kerolox.client.core.sending.send import SendStatus
from kerolox.client.core.sending.transaction import TransactionState, state_after
from kerolox.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from kerolox.client.core.sending.send import OutgoingMessage, SendResult

Half = tuple["OutgoingMessage", "SendResult"]
"""A half message, and where it is stored."""


class Transaction:
    """One message, visible to consumers only if the block that it stands around succeeds.

    ``TransactionProducer.transaction`` makes it.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[Half]],
        end: Callable[[OutgoingMessage, SendResult, TransactionState, str], Awaitable[None]],
    ) -> None:
        """Nothing is sent yet.

        Args:
            begin: sends the half message.
            end: tells the broker the outcome, with a remark.
        """
        self._begin = begin
        self._end_half = end
        self._half: Half | None = None
        self._is_begun = False
        self._chosen: TransactionState | None = None
        self._state = TransactionState.UNKNOWN

    async def __aenter__(self) -> Self:
        if self._is_begun:
            raise ClientError("this transaction has begun already; make a new one")
        self._is_begun = True
        outgoing, sent = self._half = await self._begin()
        if sent.status is not SendStatus.SEND_OK:
            self._state = TransactionState.ROLLBACK
            reason = f"the half message is stored, but {sent.status.value}"
            await self._end_half(outgoing, sent, self._state, reason)
            raise ClientError(f"{reason}; it is rolled back, the local transaction did not run")
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._half is not None
        self._state = state_after(self._chosen, error)
        if isinstance(error, GeneratorExit):
            return  # whoever drops a coroutine lets nothing wait in it; the broker asks
        remark = "" if error is None else f"{type(error).__name__}: {error}"
        await self._end_half(*self._half, self._state, remark)

    @property
    def result(self) -> SendResult:
        """Where the half message is stored.

        Raises:
            ClientError: it is not, yet.
        """
        if self._half is None:
            raise ClientError("the transaction has not begun; use it in a with statement")
        return self._half[1]

    @property
    def transaction_id(self) -> str:
        """The message's id (UNIQ_KEY), by which a check knows it again (``getTransactionId``).

        Raises:
            ClientError: the transaction has not begun.
        """
        return self.result.message_id

    @property
    def state(self) -> TransactionState:
        """How it ended; UNKNOWN before."""
        return self._state

    def commit(self) -> None:
        """Commit at the block's end, even if it fails after this."""
        self._chosen = TransactionState.COMMIT

    def rollback(self) -> None:
        """Roll back at the block's end, though it does not fail."""
        self._chosen = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Leave the outcome to the check, whatever the block does."""
        self._chosen = TransactionState.UNKNOWN
