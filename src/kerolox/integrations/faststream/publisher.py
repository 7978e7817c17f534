"""Publishers: by hand, of what handlers return, and of replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from kerolox.integrations.faststream.configs import KeroloxBrokerConfig
from kerolox.integrations.faststream.options import PublisherOptions
from kerolox.integrations.faststream.response import (
    KeroloxPublishCommand,
    MessageOptions,
    PublishOptions,
    refuse_unknown,
)

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.types import PublisherMiddleware
    from faststream.response import PublishCommand

    from kerolox.client.core.sending.send import SendResult
    from kerolox.integrations.faststream.message import KeroloxMessage
    from kerolox.integrations.faststream.producer import KeroloxProducer
    from kerolox.message import MessageExt


@dataclass(kw_only=True)
class KeroloxPublisherConfig(PublisherUsecaseConfig):
    """Of a publisher."""

    _outer_config: KeroloxBrokerConfig
    topic: str
    headers: dict[str, str]
    reply_to: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class KeroloxPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What a publisher's part of the AsyncAPI document is made of."""

    topic: str


class KeroloxPublisherSpecification(
    PublisherSpecification[KeroloxBrokerConfig, KeroloxPublisherSpecificationConfig]
):
    """A publisher's part of the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """With the prefix of the routers around it."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Of its channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Its channel, by name. AsyncAPI has no bindings for RocketMQ."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class KeroloxPublisher(PublisherUsecase):
    """Publishes to a topic."""

    batch: bool = False
    """It publishes lists."""

    _outer_config: KeroloxBrokerConfig

    def __init__(
        self, config: KeroloxPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        """What a registrator makes."""
        super().__init__(config, specification)
        self._topic: str = config.topic
        self.headers: dict[str, str] = config.headers
        self.reply_to: str = config.reply_to
        self.options: dict[str, Any] = config.options

    @property
    def topic(self) -> str:
        """With the prefix of the routers around it."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[PublishOptions],
    ) -> SendResult:
        """Publish a message, and wait until it is stored.

        Args:
            message: the body.
            topic: another one than the publisher's.
            headers: beside those of the publisher.
            correlation_id: left out: a new one.
            reply_to: another one than the publisher's.
            **options: these count before those of the publisher.

        Raises:
            KeroloxError: as :meth:`kerolox.Producer.send`.
        """
        cmd = self._command(
            (message,),
            topic=topic or self.topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to or self.reply_to,
            options=options,
        )
        producer = self._outer_config.producer
        sent = await self._basic_publish(cmd, producer=producer, _extra_middlewares=())
        return cast("SendResult", sent)

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler returned."""
        own = KeroloxPublishCommand.from_cmd(cmd, batch=self.batch)
        if self.batch and not own.batch_bodies:
            own.batch_bodies = (b"",)  # as one that is no batch publishes it
        own.destination = self.topic
        own.reply_to = own.reply_to or self.reply_to
        own.add_headers(self.headers, override=False)
        own.add_options(self.options)
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        producer = self._outer_config.producer
        await publish(own, producer=producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = 0.5,
        **options: Unpack[MessageOptions],
    ) -> KeroloxMessage:
        """Send a request and wait for the reply; see :meth:`KeroloxBroker.request`."""
        cmd = self._command(
            (message,),
            topic=topic or self.topic,
            headers=headers,
            correlation_id=correlation_id,
            timeout=timeout,
            options=options,
            kind=PublishType.REQUEST,
        )
        reply = await self._basic_request(cmd, producer=self._outer_config.producer)
        return cast("KeroloxMessage", reply)

    def _command(
        self,
        bodies: tuple[Any, ...],
        *,
        headers: dict[str, str] | None,
        correlation_id: str | None,
        options: Any,
        kind: PublishType = PublishType.PUBLISH,
        **more: Any,
    ) -> KeroloxPublishCommand:
        return KeroloxPublishCommand(
            *bodies,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options=self.options | options,
            _publish_type=kind,
            **more,
        )


class KeroloxBatchPublisher(KeroloxPublisher):
    """Publishes lists of messages to a topic."""

    batch = True

    async def publish(  # type: ignore[override]
        self,
        *messages: SendableMessage,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[MessageOptions],
    ) -> list[SendResult]:
        """Publish messages, and wait until they are stored.

        Args:
            *messages: the bodies.
            topic: another one than the publisher's.
            headers: beside those of the publisher, of each.
            correlation_id: of each; left out: a new one for all.
            reply_to: another one than the publisher's.
            **options: these count before those of the publisher.

        Raises:
            KeroloxError: as :meth:`kerolox.Producer.send_batches`.
        """
        cmd = self._command(
            messages or (None,),
            topic=topic or self.topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to or self.reply_to,
            options=options,
        )
        cmd.batch_bodies = messages
        producer = self._outer_config.producer
        sent = await self._basic_publish_batch(cmd, producer=producer, _extra_middlewares=())
        return cast("list[SendResult]", sent)


class ReplyPublisher(FakePublisher):
    """Publishes what the handler of a request returns: as RocketMQ's reply to the client that
    waits, else to the topic ``reply_to``."""

    def __init__(self, producer: KeroloxProducer, topic: str, request: MessageExt | None) -> None:
        """``request``: what waits for a reply; None: nothing does, ``topic`` counts."""
        super().__init__(producer=producer)
        self._topic, self._request = topic, request

    def patch_command(self, cmd: PublishCommand) -> KeroloxPublishCommand:
        """The command, on its way back."""
        own = KeroloxPublishCommand.from_cmd(super().patch_command(cmd))
        own.destination, own.request = self._topic, self._request
        return own


def create_publisher(
    config: KeroloxBrokerConfig, topic: str, options: PublisherOptions, *, batch: bool
) -> KeroloxPublisher:
    """A publisher with the options of a registrator."""
    refuse_unknown("publisher()", options, PublisherOptions)
    specification = KeroloxPublisherSpecification(
        config,
        KeroloxPublisherSpecificationConfig(
            topic=topic,
            schema_=options.get("schema"),
            title_=options.get("title"),
            description_=options.get("description"),
            include_in_schema=options.get("include_in_schema", True),
        ),
    )
    beside = MessageOptions.__annotations__
    usecase = KeroloxPublisherConfig(
        _outer_config=config,
        topic=topic,
        headers=options.get("headers") or {},
        reply_to=options.get("reply_to", ""),
        options={name: value for name, value in options.items() if name in beside},
    )
    kind = KeroloxBatchPublisher if batch else KeroloxPublisher
    return kind(usecase, specification)
