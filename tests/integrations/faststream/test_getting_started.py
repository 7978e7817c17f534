"""The examples of FastStream's "getting started", on our broker: in memory, as its own tests run
them, and as an application on a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from faststream import BaseMiddleware, Context, ContextRepo, Depends, FastStream, TestApp
from faststream.annotations import Logger
from pydantic import Field, NonNegativeInt, ValidationError

from kerolox.integrations.faststream import (
    KeroloxBroker,
    KeroloxMessage,
    KeroloxPublisher,
    KeroloxRoute,
    KeroloxRouter,
    TestKeroloxBroker,
)
from kerolox.integrations.faststream import annotations as injected
from kerolox.message import MessageExt
from kerolox.testing import LocalBroker

pytestmark = pytest.mark.xdist_group("faststream")

JOHN = {"name": "John", "user_id": 1}


@pytest.fixture
def broker() -> KeroloxBroker:
    return KeroloxBroker("localhost:9876")


async def test_subscription_fields_are_checked(broker: KeroloxBroker) -> None:
    @broker.subscriber("test-topic")
    async def handle(
        name: Annotated[str, Field(examples=["John"], description="Registered user name")],
        user_id: Annotated[NonNegativeInt, Field(examples=[1], description="Registered user id")],
    ) -> None:
        assert (name, user_id) == ("John", 1)

    async with TestKeroloxBroker(broker) as tested:
        await tested.publish(JOHN, topic="test-topic")
        handle.mock.assert_called_once_with(JOHN)
        with pytest.raises(ValidationError):
            await tested.publish("wrong message", topic="test-topic")
        handle.mock.assert_called_with("wrong message")


async def test_subscription_filters_choose_the_handler(broker: KeroloxBroker) -> None:
    subscriber = broker.subscriber("test-topic")

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def handle(name: str, user_id: int) -> None: ...

    @subscriber
    async def default_handler(message: str) -> None: ...

    async with TestKeroloxBroker(broker) as tested:
        await tested.publish(JOHN, topic="test-topic")
        await tested.publish("Hello, FastStream!", topic="test-topic")
        handle.mock.assert_called_once_with(JOHN)
        default_handler.mock.assert_called_once_with("Hello, FastStream!")


async def test_publishing_by_decorator_by_object_and_by_hand(broker: KeroloxBroker) -> None:
    publisher = broker.publisher("by-object")

    @broker.subscriber("test-topic")
    @broker.publisher("by-decorator")
    async def handle() -> str:
        await publisher.publish("Hi!")
        await broker.publish("Hi!", topic="by-broker")
        return "Hi!"

    got: list[str] = []

    @broker.subscriber("by-decorator")
    @broker.subscriber("by-object")
    @broker.subscriber("by-broker")
    async def handle_next(message: str) -> None:
        got.append(message)

    async with TestKeroloxBroker(broker) as tested:
        await tested.publish("", topic="test-topic")
        publisher.mock.assert_called_with("Hi!")
    assert got == ["Hi!"] * 3


async def test_routers_put_their_prefix_before_topics(broker: KeroloxBroker) -> None:
    router = KeroloxRouter(prefix="prefix_")

    @router.subscriber("test-topic")
    @router.publisher("another-topic")
    async def handle(name: str, user_id: int) -> str:
        return "Hi!"

    @router.subscriber("another-topic")
    async def handle_response(message: str) -> None: ...

    broker.include_router(router)
    async with TestKeroloxBroker(broker) as tested:
        await tested.publish(JOHN, topic="prefix_test-topic")
        handle.mock.assert_called_once_with(JOHN)
        handle_response.mock.assert_called_once_with("Hi!")


async def test_routes_are_registered_later(broker: KeroloxBroker) -> None:
    async def handle(name: str, user_id: int) -> str:
        return "Hi!"

    publishers = (KeroloxPublisher("outer-topic"),)
    route = KeroloxRoute(handle, "test-topic", publishers=publishers)
    broker.include_router(KeroloxRouter(handlers=(route,)))
    outer = broker.subscriber("outer-topic")

    @outer
    async def handle_outer(message: str) -> None: ...

    async with TestKeroloxBroker(broker) as tested:
        await tested.publish(JOHN, topic="test-topic")
        handle_outer.mock.assert_called_once_with("Hi!")


async def test_dependencies_are_resolved_nested(broker: KeroloxBroker) -> None:
    def another_dependency() -> int:
        return 1

    def simple_dependency(b: int = Depends(another_dependency)) -> int:
        return b * 2

    sums: list[int] = []

    @broker.subscriber("test")
    async def handler(
        body: dict[str, Any],
        a: int = Depends(another_dependency),
        b: int = Depends(simple_dependency),
    ) -> None:
        sums.append(a + b)

    async with TestKeroloxBroker(broker) as tested:
        await tested.publish({}, "test")
    assert sums == [3]


async def test_context_has_message_broker_headers_and_what_is_set(broker: KeroloxBroker) -> None:
    got: dict[str, Any] = {}

    @broker.subscriber("test-topic")
    async def handle(
        body: str,
        message: KeroloxMessage,
        used: injected.KeroloxBroker,
        logger: Logger,
        context: ContextRepo,
        correlation_id: Annotated[str, Context("message.correlation_id")],
        user: Annotated[str, Context("message.headers.user")],
        secret: Annotated[str, Context()],
    ) -> None:
        got.update(locals())

    broker.context.set_global("secret", "my-perfect-secret")
    async with TestKeroloxBroker(broker) as tested:
        await tested.publish("Hi!", "test-topic", headers={"user": "John"}, correlation_id="7")
    assert got["used"] is broker
    assert got["message"].raw_message.topic == "test-topic"
    assert (got["correlation_id"], got["user"]) == ("7", "John")
    assert got["secret"] == "my-perfect-secret"


async def test_a_parser_changes_messages(broker: KeroloxBroker) -> None:
    async def custom_parser(
        message: MessageExt, original: Callable[[MessageExt], Awaitable[Any]]
    ) -> Any:
        parsed = await original(message)
        parsed.message_id = parsed.headers.get("custom_message_id")
        return parsed

    own, ids = KeroloxBroker("localhost:9876", parser=custom_parser), []

    @own.subscriber("test")
    async def handle(message: KeroloxMessage) -> None:
        ids.append(message.message_id)

    async with TestKeroloxBroker(own) as tested:
        await tested.publish("", "test", headers={"custom_message_id": "1"})
    assert ids == ["1"]


async def test_a_middleware_is_around_handlers_and_publishes() -> None:
    steps: list[str] = []

    class Steps(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            steps.append("consume")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            steps.append(f"publish {cmd.destination}")
            return await call_next(cmd)

    broker = KeroloxBroker("localhost:9876", middlewares=[Steps])

    @broker.subscriber("test")
    @broker.publisher("next")
    async def handle() -> str:
        return "Hi!"

    async with TestKeroloxBroker(broker) as tested:
        await tested.publish("", "test")
    assert steps == ["publish test", "consume", "publish next", "consume"]


async def test_an_application_starts_publishes_and_stops(server: LocalBroker) -> None:
    broker = KeroloxBroker(server.name_server, create_topics=True)
    app, done = FastStream(broker), asyncio.Event()
    topic = server.create_topic()

    @broker.subscriber(topic)
    async def handle(message: str) -> None:
        assert message == "Hi!"
        done.set()

    @app.after_startup
    async def publish() -> None:
        await broker.publish("Hi!", topic=topic)

    async with TestApp(app), asyncio.timeout(5):
        assert await broker.ping(timeout=3)
        await done.wait()
    assert not await broker.ping()


async def test_a_dynamic_subscriber_is_asked_and_iterated(server: LocalBroker) -> None:
    topic = server.create_topic()
    async with KeroloxBroker(server.name_server) as broker, asyncio.timeout(5):
        subscriber = broker.subscriber(topic, persistent=False)
        async with subscriber:
            await broker.publish("one", topic)
            message = await subscriber.get_one(timeout=3.0)
            assert message is not None
            assert await message.decode() == "one"
            await message.ack()
        async with subscriber:
            await broker.publish("two", topic)
            async for message in subscriber:
                assert await message.decode() == "two"
                await message.ack()
                break
