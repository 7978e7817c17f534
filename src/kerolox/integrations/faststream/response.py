"""What is published: by a call, by a publisher, or as what a handler returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypedDict, Unpack

from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand

from kerolox.client.core.delays import Duration
from kerolox.client.core.sending.queue_choice import OrderingKey
from kerolox.message import MessageExt


def refuse_unknown(call: str, given: Mapping[str, object], known: type) -> None:
    """Refuse an argument that no list has, as Python does for a function that lists its own.

    Raises:
        TypeError: with the call and the argument.
    """
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{call} got an unexpected keyword argument {name!r}")


class MessageOptions(TypedDict, total=False):
    """What a message has beside its body."""

    tags: str
    """One tag, which subscribers choose by."""
    keys: str | Sequence[str]
    """Business keys, by which tools find the message."""
    ordering_key: OrderingKey
    """Messages of one key are in one queue, so they stay in order."""


class PublishOptions(MessageOptions, total=False):
    """What a single message has beside that."""

    deliver_after: Duration
    """Seconds or a ``timedelta`` until it is delivered."""
    deliver_at: datetime
    """The moment at which it is delivered; not with ``deliver_after``."""
    delay_level: int
    """One of the brokers' delay levels, from 1; not with the two before."""


class KeroloxResponse(Response):
    """What a handler returns to say more than the body of what is published."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        """Nothing is sent yet.

        Args:
            body: what is published.
            headers: beside those of the publisher.
            correlation_id: None: that of the message that is handled.
            **options: see :class:`PublishOptions`; they count before those of the publisher.
        """
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        refuse_unknown("KeroloxResponse()", options, PublishOptions)
        self.options = options

    def as_publish_command(self) -> KeroloxPublishCommand:
        """As a command, still without its topic."""
        return KeroloxPublishCommand(
            self.body,
            topic="",
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            _publish_type=PublishType.PUBLISH,
        )


class KeroloxPublishCommand(BatchPublishCommand):
    """One publish on its way through the middlewares to the producer, which may change it."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str,
        _publish_type: PublishType,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        options: Any = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            body: of the message, or of the first of a batch.
            *bodies: of the others of a batch.
            topic: where to.
            headers: user properties.
            correlation_id: of FastStream.
            reply_to: the topic that what the handler returns is published to.
            timeout: seconds that a request waits for its reply; None: as long as a send may.
            options: those of :class:`PublishOptions`, by name.
        """
        super().__init__(
            body,
            *bodies,
            destination=topic,
            reply_to=reply_to,
            correlation_id=correlation_id,
            headers=headers,
            _publish_type=_publish_type,
        )
        refuse_unknown("publish()", options or {}, PublishOptions)
        self.timeout = timeout
        self.options: dict[str, Any] = dict(options or {})
        self.request: MessageExt | None = None
        """What this is the reply to."""
        self.is_half = False
        """It opens a transaction."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """The same command, or one of another kind as one of this; ``batch``: a list that a handler
        returned is a batch."""
        body, extra = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, cls):
            if batch:
                cmd.body, cmd.extra_bodies = body, (*extra, *cmd.extra_bodies)
            return cmd
        return cls(
            body,
            *extra,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def add_options(self, options: dict[str, Any]) -> None:
        """Options that count where the command has none of its own."""
        self.options = options | self.options
