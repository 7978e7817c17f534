"""Publishes commands with a producer of ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from kerolox.client.aio.producers.transaction import TransactionProducer
from kerolox.client.core.sending.queue_choice import select_by_hash
from kerolox.client.core.sending.request_reply import create_reply
from kerolox.errors import ConfigError, RequestTimeoutError, TopicRouteNotFoundError
from kerolox.integrations.common import ensured_topic
from kerolox.integrations.faststream.parser import KeroloxParser, properties_of
from kerolox.integrations.faststream.response import KeroloxPublishCommand
from kerolox.message import Message

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import AsyncCallable, CustomCallable

    from kerolox.client.aio.producers.open_transaction import Transaction
    from kerolox.client.aio.producers.producer import Producer
    from kerolox.client.core.sending.send import SendResult
    from kerolox.message import MessageExt

NO_BODY = b"\0"
"""What an empty body travels as."""


class KeroloxProducer(ProducerProto[KeroloxPublishCommand]):
    """What encodes commands and sends them, while its broker is connected."""

    _parser: AsyncCallable
    _decoder: AsyncCallable
    codec: CodecProto

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        """Not connected yet; ``parser`` and ``decoder`` are for replies."""
        default = KeroloxParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._client: Producer | None = None

    def connect(
        self, client: Producer, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Send with a producer that is started."""
        self._client, self.serializer, self.codec = client, serializer, codec or DefaultCodec()

    def disconnect(self) -> None:
        """Send no more."""
        self._client = None

    @property
    def client(self) -> Producer:
        """What sends.

        Raises:
            IncorrectState: the broker is not connected.
        """
        if self._client is None:
            raise IncorrectState("the broker is not connected; call connect() or start() first")
        return self._client

    async def unknown_topics(self, topics: Iterable[str], *, create: bool) -> list[str]:
        """Those that no name server knows; ``create``: they are made.

        Raises:
            KeroloxError: one can't be made, or no name server answers.
        """
        client, unknown = self.client, []
        for topic in topics:
            try:
                if create:
                    await ensured_topic(client, topic)
                else:
                    await client.queues(topic)
            except TopicRouteNotFoundError:
                unknown.append(topic)
        return unknown

    async def publish(self, cmd: KeroloxPublishCommand) -> SendResult | Transaction:
        """Send a message: where it is stored. Of a command that opens a transaction: that one."""
        client = self.client
        message = await self.message(cmd)
        options = cmd.options
        if cmd.is_half:
            _refuse_delay(cmd, "message of a transaction")
            if not isinstance(client, TransactionProducer):
                raise ConfigError(
                    "the broker has no transaction_check; give KeroloxBroker a function that says"
                    " how a transaction ended"
                )
            transaction = client.transaction(message)
            await transaction.__aenter__()
            return transaction
        return await client.send(
            message,
            ordering_key=options.get("ordering_key"),
            deliver_after=options.get("deliver_after"),
            deliver_at=options.get("deliver_at"),
        )

    async def request(self, cmd: KeroloxPublishCommand) -> MessageExt:
        """Send a request; its reply.

        Raises:
            TimeoutError: none came in time.
        """
        _refuse_delay(cmd, "request")
        timeout_ms = None if cmd.timeout is None else max(round(cmd.timeout * 1000), 1)
        message = await self.message(cmd)
        try:
            return await self.client.request(
                message, ordering_key=cmd.options.get("ordering_key"), timeout_ms=timeout_ms
            )
        except RequestTimeoutError as error:
            raise TimeoutError(str(error)) from error

    async def publish_batch(self, cmd: KeroloxPublishCommand) -> list[SendResult]:
        """Send messages in as few requests as they need; where they are stored."""
        _refuse_delay(cmd, "batch")
        client, messages = self.client, await self.batch(cmd)
        if not messages:
            return []
        key, queue = cmd.options.get("ordering_key"), None
        if key is not None:
            queue = select_by_hash(key)(await client.queues(cmd.destination), messages[0])
        return await client.send_batches(messages, queue=queue)

    async def message(self, cmd: KeroloxPublishCommand) -> Message:
        """The message of a command."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return self._made(cmd, body, content_type)

    async def batch(self, cmd: KeroloxPublishCommand) -> list[Message]:
        """The messages of a command with several bodies."""
        codec = self.codec
        if isinstance(codec, BatchCodecProto):
            encoded = await codec.encode_batch(cmd.batch_bodies, self.serializer)
        else:
            encoded = [await codec.encode(body, self.serializer) for body in cmd.batch_bodies]
        return [self._made(cmd, body, content_type) for body, content_type in encoded]

    def _made(self, cmd: KeroloxPublishCommand, body: bytes, content_type: str | None) -> Message:
        properties = properties_of(
            cmd.headers,
            body=body,
            content_type=content_type,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
        )
        options: dict[str, Any] = cmd.options
        if cmd.request is not None:
            reply = create_reply(cmd.request, body or NO_BODY)
            reply.properties = properties
            return reply
        return Message(
            cmd.destination,
            body or NO_BODY,
            tags=options.get("tags", ""),
            keys=options.get("keys", ""),
            properties=properties,
            delay_level=options.get("delay_level", 0),
        )


def _refuse_delay(cmd: KeroloxPublishCommand, what: str) -> None:
    """Refuse by a ConfigError that what RocketMQ can't delay is delayed."""
    for name in ("deliver_after", "deliver_at", "delay_level"):
        if cmd.options.get(name):
            raise ConfigError(f"a {what} can't be delayed; leave {name} out")
