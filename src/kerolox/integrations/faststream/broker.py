"""The broker: one connection to the cluster, a producer, and all subscribers and publishers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream.context import ContextRepo
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from kerolox.client.aio.connection import Connection
from kerolox.client.aio.settings import ClientSettings
from kerolox.client.core.arguments import name_server_text
from kerolox.errors import KeroloxError
from kerolox.integrations.faststream.configs import KeroloxBrokerConfig
from kerolox.integrations.faststream.logs import make_logger
from kerolox.integrations.faststream.message import KeroloxMessage, RawMessage
from kerolox.integrations.faststream.options import BrokerOptions
from kerolox.integrations.faststream.producer import KeroloxProducer
from kerolox.integrations.faststream.registrator import KeroloxRegistrator
from kerolox.integrations.faststream.response import (
    KeroloxPublishCommand,
    MessageOptions,
    PublishOptions,
    refuse_unknown,
)
from kerolox.integrations.faststream.security import secured
from kerolox.integrations.faststream.subscriber import log_context

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage

    from kerolox.client.aio.producers.open_transaction import Transaction
    from kerolox.client.aio.producers.producer import Producer
    from kerolox.client.core.sending.send import SendResult

PING_SECONDS = 5.0
"""How long :meth:`KeroloxBroker.ping` waits when it is not told."""


class KeroloxBroker(KeroloxRegistrator, BrokerUsecase[RawMessage, Connection, KeroloxBrokerConfig]):
    """FastStream's broker for Kerolox and RocketMQ.

    ::

        broker = KeroloxBroker("127.0.0.1:9876")

        @broker.subscriber("Orders", group="billing")
        @broker.publisher("Bills")
        async def on_order(order: Order) -> Bill: ...
    """

    def __init__(
        self, name_server: str | Iterable[str] = "", **options: Unpack[BrokerOptions]
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            **options: see :class:`BrokerOptions`.

        Raises:
            ConfigError: the name server or a setting is illegal.
        """
        refuse_unknown("KeroloxBroker()", options, BrokerOptions)
        self._name_server = name_server_text(name_server)
        security = options.get("security")
        self._settings = secured(options.get("settings") or ClientSettings(), security)
        self._producer_settings = options.get("producer_settings")
        self._check = options.get("transaction_check")
        servers = self._name_server or os.environ.get("NAMESRV_ADDR", "")
        super().__init__(
            routers=options.get("routers", ()),
            config=self._made_config(options),
            specification=BrokerSpec(
                url=[options.get("specification_url") or servers],
                protocol=options.get("protocol") or "rocketmq",
                protocol_version=options.get("protocol_version") or "4.9",
                description=options.get("description"),
                tags=options.get("tags", ()),
                security=security,
            ),
        )

    def _made_config(self, options: BrokerOptions) -> KeroloxBrokerConfig:
        parser, decoder = options.get("parser"), options.get("decoder")
        return KeroloxBrokerConfig(
            producer=KeroloxProducer(parser, decoder),
            group=options.get("group", "faststream"),
            create_topics=options.get("create_topics", False),
            broker_middlewares=options.get("middlewares", ()),
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=options.get("codec"),
            broker_dependencies=options.get("dependencies", ()),
            logger=make_logger(
                logger=options.get("logger", EMPTY),
                log_level=options.get("log_level", logging.INFO),
            ),
            fd_config=FastDependsConfig(
                use_fastdepends=options.get("apply_types", True),
                serializer=options.get("serializer", EMPTY),
                provider=options.get("provider") or dependency_provider,
                context=options.get("context") or ContextRepo(),
            ),
            graceful_timeout=options.get("graceful_timeout", 15.0),
            ack_policy=options.get("ack_policy", EMPTY),
            id_generator=options.get("id_generator", gen_cor_id),
            extra_context={"broker": self},
            underlying_driver_annotations=options.get("underlying_driver_annotations") or {},
        )

    # -- life -----------------------------------------------------------------------------------
    async def _connect(self) -> Connection:
        connection = Connection(self._name_server, settings=self._settings)
        await connection.start()
        try:
            producer = self._made_producer(connection)
            await producer.start()
        except BaseException:
            await connection.close()
            raise
        config = self.config.broker_config
        config.connection = connection
        config.producer.connect(producer, config.serializer, config.broker_codec)
        return connection

    def _made_producer(self, connection: Connection) -> Producer:
        group, settings, check = self.config.group, self._producer_settings, self._check
        if check is None:
            return connection.producer(group, settings=settings)
        return connection.transaction_producer(group, check=check, settings=settings)

    async def start(self) -> None:
        """Connect, and have all subscribers begin to read.

        Raises:
            KeroloxError: a subscriber can't start.
        """
        await self.connect()
        self.config.logger.log("Connection established", logging.INFO, log_context(None))
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, once their handlers are done, and close the connection."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            connection, self._connection = self._connection, None
            config = self.config.broker_config
            config.producer.disconnect()
            config.connection = None
            if connection is not None:
                await connection.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a name server answers, within so many seconds (5)."""
        if self._connection is None:
            return False
        from kerolox.admin.admin import Admin  # most processes ask for nothing else of it

        try:
            async with asyncio.timeout(PING_SECONDS if timeout is None else timeout):
                await Admin.on(self._connection).cluster_info()
        except (TimeoutError, KeroloxError):
            return False
        return True

    # -- publishing -----------------------------------------------------------------------------
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
            topic: where to.
            headers: user properties.
            correlation_id: left out: a new one.
            reply_to: the topic that what the handler returns is published to.
            **options: see :class:`PublishOptions`.

        Raises:
            KeroloxError: as :meth:`kerolox.Producer.send`.
        """
        cmd = self._command((message,), topic, headers, correlation_id, options, reply_to=reply_to)
        sent = await self._basic_publish(cmd, producer=self.config.producer)
        return cast("SendResult", sent)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: SendableMessage,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[MessageOptions],
    ) -> list[SendResult]:
        """Publish messages in as few requests as they need (:meth:`kerolox.Producer.send_batches`).

        Args:
            *messages: the bodies.
            topic: where to.
            headers: user properties of each.
            correlation_id: of each; left out: a new one for all.
            reply_to: as of :meth:`publish`.
            **options: see :class:`MessageOptions`.

        Raises:
            KeroloxError: as :meth:`kerolox.Producer.send_batches`.
        """
        bodies = messages or (None,)
        cmd = self._command(bodies, topic, headers, correlation_id, options, reply_to=reply_to)
        cmd.batch_bodies = messages
        sent = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return cast("list[SendResult]", sent)

    async def request(  # type: ignore[override]
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = 0.5,
        **options: Unpack[MessageOptions],
    ) -> KeroloxMessage:
        """Publish a request, and wait for the reply to it (:meth:`kerolox.Producer.request`).

        Any consumer may reply, RocketMQ's in Java as well. A handler of FastStream replies with
        what it returns.

        Args:
            message: the body.
            topic: where to.
            headers: user properties.
            correlation_id: left out: a new one.
            timeout: seconds to wait; None: as long as a send may take.
            **options: see :class:`MessageOptions`.

        Raises:
            TimeoutError: no reply came in time.
            KeroloxError: as :meth:`kerolox.Producer.request`.
        """
        kind = PublishType.REQUEST
        cmd = self._command(
            (message,), topic, headers, correlation_id, options, kind=kind, timeout=timeout
        )
        reply = await self._basic_request(cmd, producer=self.config.producer)
        return cast("KeroloxMessage", reply)

    @asynccontextmanager
    async def transaction(
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> AsyncIterator[Transaction]:
        """A block of code as the local transaction of a message, which nobody sees before it
        succeeds (:meth:`kerolox.TransactionProducer.transaction`)::

            async with broker.transaction(order, "Orders") as transaction:
                await database.store(order, transaction.transaction_id)

        It does not span what a handler reads: that comes again when the handler fails.

        Args:
            message: the body.
            topic: where to.
            headers: user properties.
            correlation_id: left out: a new one.
            **options: see :class:`MessageOptions`.

        Raises:
            ConfigError: the broker has no ``transaction_check``.
            KeroloxError: at the begin: it was not stored, the block does not run.
        """
        cmd = self._command((message,), topic, headers, correlation_id, options)
        cmd.is_half = True
        begun = await self._basic_publish(cmd, producer=self.config.producer)
        async with AsyncExitStack() as stack:
            stack.push_async_exit(begun)
            yield begun

    def _command(
        self,
        bodies: tuple[Any, ...],
        topic: str,
        headers: dict[str, str] | None,
        correlation_id: str | None,
        options: Any,
        *,
        kind: PublishType = PublishType.PUBLISH,
        **more: Any,
    ) -> KeroloxPublishCommand:
        return KeroloxPublishCommand(
            *bodies,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            _publish_type=kind,
            **more,
        )
