"""FastStream's base tests, on a broker of ours, in each mode in which subscribers read.

Those of the marker ``software`` run in memory, too, or for another mode.
"""

from __future__ import annotations

from typing import Any

import pytest
from faststream import BaseMiddleware

from kerolox.integrations.faststream import (
    KeroloxBroker,
    KeroloxPublisher,
    KeroloxRoute,
)
from tests.integrations.faststream.brokers import OnServer

from faststream_tests.brokers.base import (  # isort: skip
    connection,
    consume,
    middlewares,
    parser,
    publish,
    requests,
    router,
)

pytestmark = [
    pytest.mark.xdist_group("faststream"),
    pytest.mark.filterwarnings("default"),
]


class TestConsume(OnServer, consume.BrokerRealConsumeTestcase):
    pass


@pytest.mark.software
class TestConsumeInOrder(OnServer, consume.BrokerRealConsumeTestcase):
    def get_subscriber_params(self, *topics: Any, **options: Any) -> Any:
        return topics, {"mode": "ordered"} | options


class TestConsumeByQueueMode(OnServer, consume.BrokerRealConsumeTestcase):
    def get_subscriber_params(self, *topics: Any, **options: Any) -> Any:
        return topics, {"mode": "queue"} | options


class TestPublish(OnServer, publish.BrokerPublishTestcase):
    pass


@pytest.mark.software
class TestRouter(OnServer, router.RouterTestcase):
    route_class = KeroloxRoute
    publisher_class = KeroloxPublisher


@pytest.mark.software
class TestMiddlewares(OnServer, middlewares.MiddlewareTestcase):
    pass


@pytest.mark.software
class TestExceptionMiddlewares(OnServer, middlewares.ExceptionMiddlewareTestcase):
    pass


@pytest.mark.software
class TestParser(OnServer, parser.CustomParserTestcase):
    pass


class TestConnection(OnServer, connection.BrokerConnectionTestcase):
    broker = KeroloxBroker

    @pytest.fixture
    def settings(self) -> None:
        return None

    def get_broker_args(self, settings: object) -> dict[str, Any]:
        return {"name_server": self.server.name_server}


class Doubling(BaseMiddleware):
    """As those of the other brokers' tests: the raw message and the parsed one, each twice."""

    async def on_receive(self) -> None:
        self.msg.body *= 2

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= 2
        return await call_next(msg)


class TestRequests(OnServer, requests.RequestsTestcase):
    def get_middleware(self, **options: Any) -> type[BaseMiddleware]:
        return Doubling
