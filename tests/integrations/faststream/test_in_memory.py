"""FastStream's base tests, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import BaseMiddleware

from kerolox.integrations.faststream import KeroloxPublisher, KeroloxRoute
from kerolox.integrations.faststream.response import KeroloxPublishCommand
from kerolox.integrations.faststream.testing import MemoryProducer
from tests.integrations.faststream.brokers import InMemory

from faststream_tests.brokers.base import (  # isort: skip
    codec,
    include_router,
    middlewares,
    parser,
    publish_command,
    requests,
    router,
    testclient,
)

pytestmark = [
    pytest.mark.xdist_group("faststream"),
    pytest.mark.filterwarnings("default"),
]


class TestTestclient(InMemory, testclient.BrokerTestclientTestcase):
    async def test_broker_gets_patched_attrs_within_cm(self) -> None:
        await super().test_broker_gets_patched_attrs_within_cm(MemoryProducer)


class TestRouter(InMemory, router.RouterLocalTestcase):
    route_class = KeroloxRoute
    publisher_class = KeroloxPublisher


class TestMiddlewares(InMemory, middlewares.MiddlewareTestcase):
    pass


class TestMiddlewaresOrder(InMemory, middlewares.MiddlewaresOrderTestcase):
    pass


class TestExceptionMiddlewares(InMemory, middlewares.ExceptionMiddlewareTestcase):
    pass


class TestParser(InMemory, parser.CustomParserTestcase):
    pass


class TestCodec(InMemory, codec.CodecTestcase):
    pass


class TestBatchCodec(InMemory, codec.BatchCodecTestcase):
    pass


class TestIncludedSubscriber(InMemory, include_router.IncludeSubscriberTestcase):
    pass


class TestIncludedPublisher(InMemory, include_router.IncludePublisherTestcase):
    pass


class TestPublishCommand(publish_command.BatchPublishCommandTestcase):
    publish_command_cls = KeroloxPublishCommand


class Doubling(BaseMiddleware):
    """As those of the other brokers' tests: the raw message and the parsed one, each twice."""

    async def on_receive(self) -> None:
        self.msg.body *= 2

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= 2
        return await call_next(msg)


class TestRequests(InMemory, requests.RequestsTestcase):
    def get_middleware(self, **options: Any) -> type[BaseMiddleware]:
        return Doubling
