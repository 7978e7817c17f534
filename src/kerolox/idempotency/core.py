"""What a store of handled messages offers, and handlers around it. No I/O of its own."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from kerolox.errors import KeroloxError
from kerolox.message import MessageExt

LEASE_SECONDS = 300.0
"""For so long nobody else handles a message whose handler said nothing."""

_Result = TypeVar("_Result")


class ClaimOutcome(StrEnum):
    """What became of a claim."""

    NEW = "new"
    """The message is the caller's to handle."""
    DONE = "done"
    """It was handled."""
    BUSY = "busy"
    """Another one handles it, or died while it did, and its lease is not over."""


class Claim(NamedTuple):
    """One try to handle a message."""

    group: str
    key: str
    token: str
    """Of this try alone."""
    outcome: ClaimOutcome


class ProcessedMessages(Protocol):
    """Which messages groups have handled. All methods may be called from any thread."""

    def claim(self, group: str, key: str, lease_seconds: float) -> Claim:
        """Try to get a message to handle, for ``lease_seconds`` at most."""

    def complete(self, claim: Claim) -> bool:
        """Note that it is handled. False: the lease was over, and another one has it."""

    def release(self, claim: Claim) -> None:
        """Give it back, not handled; nothing where the lease was over."""


class AsyncProcessedMessages(Protocol):
    """The same for asyncio."""

    async def claim(self, group: str, key: str, lease_seconds: float) -> Claim:
        """See :class:`ProcessedMessages`."""

    async def complete(self, claim: Claim) -> bool:
        """See :class:`ProcessedMessages`."""

    async def release(self, claim: Claim) -> None:
        """See :class:`ProcessedMessages`."""


class InThreads:
    """A blocking store for asyncio: each call runs in a thread."""

    def __init__(self, store: ProcessedMessages) -> None:
        self._store = store

    async def claim(self, group: str, key: str, lease_seconds: float) -> Claim:
        """See :class:`ProcessedMessages`."""
        return await asyncio.to_thread(self._store.claim, group, key, lease_seconds)

    async def complete(self, claim: Claim) -> bool:
        """See :class:`ProcessedMessages`."""
        return await asyncio.to_thread(self._store.complete, claim)

    async def release(self, claim: Claim) -> None:
        """See :class:`ProcessedMessages`."""
        await asyncio.to_thread(self._store.release, claim)


class InProgressError(KeroloxError):
    """Another consumer handles the message now. It is to come again later."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(
            f"message {claim.key!r} of group {claim.group!r} is being handled by another consumer, "
            "or that one died: it is free when its lease is over"
        )


def message_key(message: MessageExt) -> str:
    """What a message is known by: its ``UNIQ_KEY``, which stays when it comes again, or its id."""
    return message.unique_key or message.message_id


def new_token() -> str:
    """For one try."""
    return uuid.uuid4().hex


def idempotent(
    store: ProcessedMessages,
    group: str,
    handler: Callable[[MessageExt], _Result],
    *,
    key: Callable[[MessageExt], str] = message_key,
    lease_seconds: float = LEASE_SECONDS,
) -> Callable[[MessageExt], _Result | None]:
    """The handler for messages that may come again, for blocking consumers.

    Args:
        store: where handled messages are noted.
        group: the consumer group; each has notes of its own.
        handler: handles one message. What it raises is raised, and the message is free again.
        key: what a message is known by.
        lease_seconds: longer than the handler ever takes.

    Returns:
        A handler. For a message that was handled it returns None at once; for one that another
        consumer has it raises :class:`InProgressError`.
    """

    @functools.wraps(handler)
    def handle(message: MessageExt) -> _Result | None:
        claim = store.claim(group, key(message), lease_seconds)
        if claim.outcome is ClaimOutcome.DONE:
            return None
        if claim.outcome is ClaimOutcome.BUSY:
            raise InProgressError(claim)
        try:
            result = handler(message)
        except BaseException:
            store.release(claim)
            raise
        store.complete(claim)
        return result

    return handle


def idempotent_async(
    store: AsyncProcessedMessages,
    group: str,
    handler: Callable[[MessageExt], Awaitable[_Result]],
    *,
    key: Callable[[MessageExt], str] = message_key,
    lease_seconds: float = LEASE_SECONDS,
) -> Callable[[MessageExt], Awaitable[_Result | None]]:
    """As :func:`idempotent`, of an async function; for a blocking store see :class:`InThreads`."""

    @functools.wraps(handler)
    async def handle(message: MessageExt) -> _Result | None:
        claim = await store.claim(group, key(message), lease_seconds)
        if claim.outcome is ClaimOutcome.DONE:
            return None
        if claim.outcome is ClaimOutcome.BUSY:
            raise InProgressError(claim)
        try:
            result = await handler(message)
        except BaseException:
            # Also when it is cancelled: then nobody waits for the lease.
            await asyncio.shield(store.release(claim))
            raise
        await store.complete(claim)
        return result

    return handle
