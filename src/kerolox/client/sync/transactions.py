"""A transaction as a ``with`` block: the block is its local part."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from kerolox.errors import ClientClosedError

if TYPE_CHECKING:
    from types import TracebackType

    from kerolox.client.aio.producers import open_transaction
    from kerolox.client.core.sending.send import SendResult
    from kerolox.client.core.sending.transaction import TransactionState
    from kerolox.client.sync._portal import Portal


class Transaction:
    """One message, visible to consumers only if the block that it stands around succeeds.

    ``TransactionProducer.transaction`` makes it.
    """

    def __init__(self, portal: Portal, inner: open_transaction.Transaction) -> None:
        """Nothing is sent yet."""
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Of a producer that was closed meanwhile the broker asks nothing, but others of its group.
        with contextlib.suppress(ClientClosedError):
            self._portal.run(self._inner.__aexit__(error_type, error, traceback))

    @property
    def result(self) -> SendResult:
        """Where the half message is stored.

        Raises:
            ClientError: it is not, yet.
        """
        return self._inner.result

    @property
    def transaction_id(self) -> str:
        """The message's id (UNIQ_KEY), by which a check knows it again (``getTransactionId``).

        Raises:
            ClientError: the transaction has not begun.
        """
        return self._inner.transaction_id

    @property
    def state(self) -> TransactionState:
        """How it ended; UNKNOWN before."""
        return self._inner.state

    def commit(self) -> None:
        """Commit at the block's end, even if it fails after this."""
        self._inner.commit()

    def rollback(self) -> None:
        """Roll back at the block's end, though it does not fail."""
        self._inner.rollback()

    def leave_open(self) -> None:
        """Leave the outcome to the check, whatever the block does."""
        self._inner.leave_open()
