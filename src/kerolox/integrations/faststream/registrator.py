"""What broker and router share: subscribers and publishers are registered here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from faststream._internal.broker.registrator import Registrator

from kerolox.integrations.faststream.configs import KeroloxBrokerConfig
from kerolox.integrations.faststream.message import RawMessage
from kerolox.integrations.faststream.options import PublisherOptions, SubscriberOptions
from kerolox.integrations.faststream.publisher import (
    KeroloxBatchPublisher,
    KeroloxPublisher,
    create_publisher,
)
from kerolox.integrations.faststream.subscriber import KeroloxSubscriber, create_subscriber

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.types import BrokerMiddleware


class KeroloxRegistrator(Registrator[RawMessage, KeroloxBrokerConfig]):
    """Makes subscribers and publishers, and includes routers."""

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        dependencies: Sequence[Dependant] = (),
        **options: Unpack[SubscriberOptions],
    ) -> KeroloxSubscriber:
        """Have handlers work on the messages of topics.

        Args:
            *topics: which ones; a router puts its prefix before each.
            dependencies: run before each handler.
            **options: see :class:`SubscriberOptions`.

        Returns:
            What decorates handlers; without one it is iterated over, or asked by ``get_one``.

        Raises:
            ConfigError: the options don't go together.
        """
        config = cast("KeroloxBrokerConfig", self.config)
        made = create_subscriber(config, topics, options)
        super().subscriber(made, persistent=options.get("persistent", True))
        return made.add_call(
            parser_=options.get("parser") or self._parser,
            decoder_=options.get("decoder") or self._decoder,
            codec_=options.get("codec"),
            dependencies_=dependencies,
        )

    @overload  # type: ignore[override]
    def publisher(
        self, topic: str, *, batch: Literal[False] = False, **options: Unpack[PublisherOptions]
    ) -> KeroloxPublisher: ...

    @overload
    def publisher(
        self, topic: str, *, batch: Literal[True], **options: Unpack[PublisherOptions]
    ) -> KeroloxBatchPublisher: ...

    @overload
    def publisher(
        self, topic: str, *, batch: bool, **options: Unpack[PublisherOptions]
    ) -> KeroloxPublisher: ...

    def publisher(
        self, topic: str, *, batch: bool = False, **options: Unpack[PublisherOptions]
    ) -> KeroloxPublisher:
        """Publish to a topic: by its ``publish``, or what the handlers return that it decorates.

        Args:
            topic: where to; a router puts its prefix before it.
            batch: it publishes lists of messages.
            **options: see :class:`PublisherOptions`.
        """
        config = cast("KeroloxBrokerConfig", self.config)
        made = create_publisher(config, topic, options, batch=batch)
        super().publisher(made, persistent=options.get("persistent", True))
        return made

    def include_router(
        self,
        router: Registrator[Any, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take over all subscribers and publishers of a router.

        Args:
            router: a :class:`KeroloxRouter`.
            prefix: stands before all its topics.
            dependencies: run before its handlers.
            middlewares: around its handlers.
            include_in_schema: False: it is not in the AsyncAPI document.

        Raises:
            TypeError: it is another broker's.
        """
        if not isinstance(router, KeroloxRegistrator):
            raise TypeError(f"router is {type(router).__name__}; it must be a KeroloxRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
