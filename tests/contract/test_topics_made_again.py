"""A topic is deleted and made again while its consumers run, and while they do not: each group gets
all of the new one. RocketMQ's groups pass over what comes at the offsets that they had seen."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import (
    LitePullConsumer,
    LitePullConsumerSettings,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.client.core.consuming.pull import PullStatus
from kerolox.message import Message, MessageModel
from tests.contract.conftest import FIRST
from tests.support.eventually import until

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

QUEUES = 2
OLD, NEW = 20, 200
"""Messages of both lives. The new one soon has more than anybody saw of the old one."""


class Scene:
    """A topic, and who sends to it."""

    def __init__(self, name_server: str, producer: Producer, admin: Admin) -> None:
        self.name_server = name_server
        self.producer = producer
        self.admin = admin
        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        self.got: list[bytes] = []

    async def make(self) -> None:
        await self.producer.create_topic(self.topic, queues=QUEUES)
        cluster = self.producer._open_cluster()
        await until(lambda: cluster.fetch_route(self.topic), what="the route")

    async def send(self, mark: bytes, count: int) -> set[bytes]:
        bodies = {mark + b"%d" % number for number in range(count)}
        await asyncio.gather(*(self.producer.send(Message(self.topic, b)) for b in bodies))
        return bodies

    async def listen(self, messages: list[MessageExt]) -> None:
        self.got += [message.body for message in messages]

    async def until_all(self, bodies: set[bytes]) -> None:
        await until(lambda: bodies.issubset(self.got), what="all messages")

    async def make_again(self) -> set[bytes]:
        """The new life; what was sent to it."""
        await self.admin.delete_topic(self.topic)
        await self.make()
        return await self.send(b"new ", NEW)


@pytest_asyncio.fixture
async def scene(our_cluster: Cluster) -> AsyncIterator[Scene]:
    name_server = our_cluster.name_server
    async with Producer("PG", name_server) as producer, Admin(name_server) as admin:
        made = Scene(name_server, producer, admin)
        await made.make()
        yield made


def push(scene: Scene, group: str, folder: Path, *, ordered: bool, is_broadcasting: bool):
    settings = PushConsumerSettings(
        consume_from_where=FIRST,
        illegal_offset_delay_ms=10,
        pull_error_delay_ms=100,
        message_model=MessageModel.BROADCASTING if is_broadcasting else MessageModel.CLUSTERING,
        local_offset_folder=folder,
    )
    consumer = PushConsumer(group, scene.name_server, settings=settings)
    consumer.subscribe(scene.topic, "*", scene.listen, ordered=ordered)
    return consumer


@pytest.mark.parametrize("way", ["concurrent", "ordered", "broadcasting"])
async def test_a_push_consumer_that_runs_gets_all_of_the_new_topic(
    scene: Scene, group: str, way: str, tmp_path: Path
) -> None:
    ordered, is_broadcasting = way == "ordered", way == "broadcasting"
    made = push(scene, group, tmp_path, ordered=ordered, is_broadcasting=is_broadcasting)
    async with made:
        await scene.until_all(await scene.send(b"old ", OLD))
        await scene.until_all(await scene.make_again())


async def test_a_push_consumer_that_was_away_gets_all_of_the_new_topic(
    scene: Scene, group: str, tmp_path: Path
) -> None:
    for life in range(2):
        sent = await (scene.make_again() if life else scene.send(b"old ", OLD))
        async with push(scene, group, tmp_path, ordered=False, is_broadcasting=False):
            await scene.until_all(sent)


async def subscribe(consumer: LitePullConsumer, scene: Scene) -> None:
    consumer.subscribe(scene.topic)


async def assign(consumer: LitePullConsumer, scene: Scene) -> None:
    consumer.assign(await scene.producer.queues(scene.topic))


async def assign_and_seek(consumer: LitePullConsumer, scene: Scene) -> None:
    queues = await scene.producer.queues(scene.topic)
    consumer.assign(queues)
    for queue in queues:
        await consumer.seek(queue, 0)


@pytest.mark.parametrize("begin", [subscribe, assign, assign_and_seek])
@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_lite_pull_consumer_that_runs_gets_all_of_the_new_topic(
    scene: Scene,
    group: str,
    begin: Callable[[LitePullConsumer, Scene], Awaitable[None]],
    auto_commit: bool,
) -> None:
    settings = LitePullConsumerSettings(
        consume_from_where=FIRST, pull_error_delay_ms=100, auto_commit=auto_commit
    )
    async with LitePullConsumer(group, scene.name_server, settings=settings) as consumer:
        await begin(consumer, scene)

        async def poll() -> None:
            while True:
                await scene.listen(await consumer.poll(100))

        polling = asyncio.create_task(poll())
        try:
            await scene.until_all(await scene.send(b"old ", OLD))
            await scene.until_all(await scene.make_again())
        finally:
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling


async def test_a_pull_consumer_behind_the_end_of_the_new_topic_is_told_its_start(
    scene: Scene, group: str
) -> None:
    async with PullConsumer(group, scene.name_server) as consumer:
        await scene.send(b"old ", OLD)
        ends = {}
        for queue in await consumer.queues(scene.topic):
            ends[queue] = (await consumer.pull(queue, 0)).next_offset
        assert sum(ends.values()) == OLD
        await scene.admin.delete_topic(scene.topic)
        await scene.make()
        sent = await scene.send(b"new ", QUEUES)
        for queue, end in ends.items():
            moved = await consumer.pull(queue, end)
            assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_ILLEGAL, 0)
            await scene.listen((await consumer.pull(queue, 0)).messages)
        assert set(scene.got) == sent
