"""A message as handlers get it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from faststream.message import AckStatus, StreamMessage

from kerolox.client.core.delays import Duration
from kerolox.message import MessageExt

RawMessage = MessageExt | tuple[MessageExt, ...]
"""What a subscriber reads: a message, or those of a batch."""


class Settler(Protocol):
    """Tells the broker what became of messages."""

    def ack(self, messages: Sequence[MessageExt], *, waits: bool = True) -> Awaitable[object]:
        """They are done. ``waits`` until the broker of a popped message has heard so."""

    async def nack(self, messages: Sequence[MessageExt], delay: Duration | None) -> None:
        """They are to come again."""

    async def reject(self, messages: Sequence[MessageExt], reason: str) -> None:
        """They are dead letters."""


class KeroloxMessage(StreamMessage[Any]):
    """A message, or a batch of them; ``raw_message`` is the :class:`kerolox.MessageExt`, or a tuple
    of them. ``headers`` are the user properties.

    It is settled once: the first of the next three counts.
    """

    settler: Settler | None = None
    """None: it was not read from a queue; it is a reply, or of an in-memory test."""

    @property
    def raw_messages(self) -> tuple[MessageExt, ...]:
        """The message, or those of the batch."""
        raw = self.raw_message
        return raw if isinstance(raw, tuple) else (raw,)

    async def ack(self) -> None:
        """It is done, and does not come again. Of mode ``queue``: the broker knows it when this
        returns, so what is acknowledged first is handled at most once."""
        await self._ack(waits=True)

    async def submit_ack(self) -> None:
        """As :meth:`ack`, of mode ``queue`` without waiting for the broker, which hears of many
        together. This is how a subscriber acknowledges what its handler has done."""
        await self._ack(waits=False)

    async def _ack(self, *, waits: bool) -> None:
        if self.committed is None:
            if self.settler is not None:
                await self.settler.ack(self.raw_messages, waits=waits)
            self.committed: AckStatus | None = AckStatus.ACKED

    async def nack(self, delay: Duration | None = None) -> None:
        """It comes again, with one more of ``reconsume_times``; too often: it is a dead letter.

        Args:
            delay: seconds or a ``timedelta`` until then; None: 10 s, 30 s, longer each time. A
                subscriber that is not of mode ``queue`` takes the next delay level that is as long.
        """
        if self.committed is None and self.settler is not None:
            await self.settler.nack(self.raw_messages, delay)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """It is a dead letter of the group at once.

        Args:
            reason: kept in the dead letter's property ``DEAD_LETTER_REASON``.
        """
        if self.committed is None and self.settler is not None:
            await self.settler.reject(self.raw_messages, reason)
        await super().reject()
