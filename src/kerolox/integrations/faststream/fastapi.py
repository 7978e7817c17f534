"""A router for FastAPI, whose handlers take FastAPI's dependencies.

::

    router = KeroloxRouter("127.0.0.1:9876")

    @router.subscriber("Orders", group="billing")
    async def on_order(order: Order, store: Annotated[Store, Depends(store)]) -> None: ...

    app = FastAPI()
    app.include_router(router)

FastStream 1.0 will have this in a package of its own (``faststream_fastapi``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, Unpack, cast

from fastapi import params
from fastapi.datastructures import Default
from fastapi.routing import APIRoute
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter
from faststream.specification.base import SpecificationFactory
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Lifespan

from kerolox.integrations.faststream.broker import KeroloxBroker as _Broker
from kerolox.integrations.faststream.message import KeroloxMessage as _Message
from kerolox.integrations.faststream.message import RawMessage
from kerolox.integrations.faststream.options import (
    CommonOptions,
    PublisherOptions,
    SubscriberOptions,
)
from kerolox.integrations.faststream.publisher import KeroloxPublisher
from kerolox.integrations.faststream.response import refuse_unknown
from kerolox.integrations.faststream.subscriber import KeroloxSubscriber

__all__ = ["Context", "ContextRepo", "KeroloxBroker", "KeroloxMessage", "KeroloxRouter", "Logger"]

KeroloxBroker = Annotated[_Broker, Context("broker")]
KeroloxMessage = Annotated[_Message, Context("message")]


class RouterOptions(CommonOptions, total=False):
    """Of the router: those of the broker, and those of FastAPI's ``APIRouter``."""

    specification: SpecificationFactory | None
    """Of the AsyncAPI document."""
    specification_tags: Iterable[Any]
    """In the AsyncAPI document."""
    setup_state: bool
    """The broker is in the application's state."""
    schema_url: str | None
    """Where the AsyncAPI document is served (``/asyncapi``); None: nowhere."""
    prefix: str
    tags: list[str | Enum] | None
    dependencies: Sequence[params.Depends] | None
    default_response_class: type[Response]
    responses: dict[int | str, dict[str, Any]] | None
    callbacks: list[BaseRoute] | None
    routes: list[BaseRoute] | None
    redirect_slashes: bool
    default: ASGIApp | None
    dependency_overrides_provider: Any
    route_class: type[APIRoute]
    on_startup: Sequence[Callable[[], Any]] | None
    on_shutdown: Sequence[Callable[[], Any]] | None
    lifespan: Lifespan[Any] | None
    deprecated: bool | None
    include_in_schema: bool
    generate_unique_id_function: Callable[[APIRoute], str]


class KeroloxRouter(StreamRouter[RawMessage]):
    """A router of FastAPI with a broker of its own, which runs while the application does."""

    broker_class: type[_Broker] = _Broker
    broker: _Broker

    def __init__(
        self, name_server: str | Iterable[str] = "", **options: Unpack[RouterOptions]
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_server: as of :class:`kerolox.integrations.faststream.KeroloxBroker`.
            **options: see :class:`RouterOptions`.

        Raises:
            ConfigError: the name server or a setting is illegal.
        """
        refuse_unknown("KeroloxRouter()", options, RouterOptions)
        given: dict[str, Any] = {"context": None, **options}
        super().__init__(name_server, **given)

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        dependencies: Iterable[params.Depends] = (),
        response_model: Any = Default(None),  # noqa: B008  # FastAPI's mark of what is not given
        response_model_include: Any = None,
        response_model_exclude: Any = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
        **options: Unpack[SubscriberOptions],
    ) -> KeroloxSubscriber:
        """Have handlers work on the messages of topics.

        Args:
            *topics: which ones.
            dependencies: FastAPI's, run before each handler.
            response_model, response_model_include, response_model_exclude, response_model_by_alias:
                of what handlers return, as of a route of FastAPI.
            response_model_exclude_unset: as of a route of FastAPI.
            response_model_exclude_defaults: as of a route of FastAPI.
            response_model_exclude_none: as of a route of FastAPI.
            **options: see :class:`kerolox.integrations.faststream.options.SubscriberOptions`.
        """
        given: dict[str, Any] = dict(options)
        made = super().subscriber(
            *topics,
            dependencies=dependencies,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
            **given,
        )
        return cast("KeroloxSubscriber", made)

    def publisher(  # type: ignore[override]
        self, topic: str, *, batch: bool = False, **options: Unpack[PublisherOptions]
    ) -> KeroloxPublisher:
        """Publish to a topic; see :meth:`KeroloxBroker.publisher`."""
        return self.broker.publisher(topic, batch=batch, **options)
