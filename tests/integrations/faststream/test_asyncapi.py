"""FastStream's base tests of the AsyncAPI document, and what a broker of ours says in one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from faststream.specification import AsyncAPI

from kerolox.integrations.faststream import (
    KeroloxBroker,
    KeroloxPublisher,
    KeroloxRoute,
    KeroloxRouter,
    TestKeroloxBroker,
)
from kerolox.integrations.faststream.fastapi import KeroloxRouter as FastAPIRouter
from tests.integrations.faststream import upstream  # noqa: F401  # has the next ones found

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # FastAPI's client for tests on httpx
    from faststream_tests.asyncapi.base.v2_6_0 import naming as naming_2
    from faststream_tests.asyncapi.base.v3_0_0 import arguments, fastapi, naming, publisher, router

pytestmark = [
    pytest.mark.xdist_group("faststream"),
    pytest.mark.filterwarnings("default"),
]


class Arguments(arguments.FastAPICompatible):
    def test_slash_in_title(self) -> None:
        """Of an older release than ours: its documents had the title as address."""
        broker: Any = self.broker_class()

        async def handle(msg: str) -> None: ...

        broker.subscriber("test", title="/")(handle)
        [[name, channel]] = self.get_spec(broker).to_jsonable()["channels"].items()
        assert (name, channel["address"]) == (".", "test")


class TestArguments(Arguments, arguments.ArgumentsTestcase):
    broker_class = KeroloxBroker


class TestPublisher(publisher.PublisherTestcase):
    broker_class = KeroloxBroker


class TestRouter(router.RouterTestcase):
    broker_class = KeroloxBroker
    router_class = KeroloxRouter
    route_class = KeroloxRoute
    publisher_class = KeroloxPublisher


class TestNaming(naming.NamingTestCase):
    broker_class = KeroloxBroker


class TestNamingOfVersion2(naming_2.NamingTestCase):
    broker_class = KeroloxBroker


class TestFastAPI(Arguments, fastapi.FastAPITestCase):
    broker_class = router_class = FastAPIRouter
    broker_wrapper = staticmethod(TestKeroloxBroker)

    def get_spec(self, broker: Any) -> Any:
        return super().get_spec(broker.broker)


class TestFastAPIPublisher(publisher.PublisherTestcase):
    broker_class = FastAPIRouter

    def get_spec(self, broker: Any) -> Any:
        return super().get_spec(broker.broker)


def test_a_document_has_a_channel_for_each_topic_at_the_name_server() -> None:
    broker = KeroloxBroker("127.0.0.1:9876")

    @broker.subscriber("Orders", "Returns", group="billing")
    async def handle(message: dict[str, str]) -> None: ...

    broker.publisher("Bills", schema=int)
    document = AsyncAPI(broker).to_specification().to_jsonable()
    server = document["servers"]["development"]
    assert (server["host"], server["protocol"]) == ("127.0.0.1:9876", "rocketmq")
    assert sorted(document["channels"]) == ["Bills:Publisher", "Orders:Handle", "Returns:Handle"]
