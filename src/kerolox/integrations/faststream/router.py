"""Routers: subscribers and publishers that a broker includes later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from kerolox.integrations.faststream.configs import KeroloxBrokerConfig
from kerolox.integrations.faststream.message import RawMessage
from kerolox.integrations.faststream.registrator import KeroloxRegistrator

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.configs import UnderlyingDriverAnnotations
    from faststream._internal.types import BrokerMiddleware, CustomCallable

    from kerolox.integrations.faststream.options import PublisherOptions, SubscriberOptions


class KeroloxPublisher(ArgsContainer):
    """A publisher of a :class:`KeroloxRoute`; takes what :meth:`KeroloxBroker.publisher` takes."""

    def __init__(
        self, topic: str, *, batch: bool = False, **options: Unpack[PublisherOptions]
    ) -> None:
        """Keep what the publisher is made with."""
        super().__init__(topic, batch=batch, **options)


class KeroloxRoute(SubscriberRoute):
    """A handler with its subscriber, given to a :class:`KeroloxRouter`."""

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        *topics: str,
        publishers: Iterable[KeroloxPublisher] = (),
        dependencies: Sequence[Dependant] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        """Keep what the subscriber is made with.

        Args:
            call: the handler.
            *topics: as of :meth:`KeroloxBroker.subscriber`.
            publishers: publish what it returns.
            dependencies: as of :meth:`KeroloxBroker.subscriber`.
            **options: see :class:`SubscriberOptions`.
        """
        super().__init__(call, *topics, publishers=publishers, dependencies=dependencies, **options)


class KeroloxRouter(KeroloxRegistrator, BrokerRouter[RawMessage, KeroloxBrokerConfig]):
    """Subscribers and publishers that a :class:`KeroloxBroker` includes."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[KeroloxRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[KeroloxRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
    ) -> None:
        """No broker has it yet.

        Args:
            prefix: stands before all its topics.
            handlers: registered at once.
            dependencies: run before its handlers.
            middlewares: around its handlers, within those of the broker.
            routers: included at once.
            parser: of its messages; None: the broker's.
            decoder: of their bodies; None: the broker's.
            include_in_schema: False: it is not in the AsyncAPI document.
            ack_policy: of subscribers without one of their own.
            underlying_driver_annotations: FastStream's.
        """
        super().__init__(
            handlers=handlers,
            config=KeroloxBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            routers=routers,
        )
