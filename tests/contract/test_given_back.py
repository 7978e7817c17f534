"""What becomes of messages that a listener can't handle: retries, dead letters, broadcasting.

Against our broker with short delay levels, in the test's own loop, on both kernels.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, NamedTuple

import lz4.frame
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.client import (
    ConsumeStatus,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.errors import TopicRouteNotFoundError
from kerolox.message import Message, MessageExt, MessageModel, MessageQueue
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.names import SCHEDULE_TOPIC
from tests.contract.conftest import FIRST
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.kernels import KERNELS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest


class Here(NamedTuple):
    """A name server and a broker."""

    name_server: str
    broker: Broker


@pytest_asyncio.fixture(params=KERNELS)
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Here]:
    names = NamesrvConfig.load(
        None,
        listen_port=0,
        kv_config_path=tmp_path / "kv.json",
        config_store_path=tmp_path / "namesrv.properties",
    )
    async with NameServer(names) as name_server:
        address = f"127.0.0.1:{name_server.port}"
        # RocketMQ's third level is ten seconds; here it is one.
        config = small_config(
            tmp_path, namesrv_addr=address, message_delay_level="3s 2s 1s 1s 1s 1s"
        )
        async with Broker(config, kernel=request.param) as broker:
            yield Here(address, broker)


def settings(**given: object) -> PushConsumerSettings:
    return PushConsumerSettings(consume_from_where=FIRST, **given)


async def dead_letters(here: Here, group: str) -> list[MessageExt]:
    async with PullConsumer("undertaker", here.name_server) as reader:
        try:
            queues = await reader.queues(f"%DLQ%{group}")
        except TopicRouteNotFoundError:
            return []
        return [m for queue in queues for m in (await reader.pull(queue, 0)).messages]


async def until_dead(here: Here, group: str, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []

    async def all_dead() -> bool:
        found[:] = await dead_letters(here, group)
        return len(found) >= count

    await until(all_dead, what=f"{count} dead letters")
    return found


async def test_retries_go_through_the_third_delay_level_and_end_as_dead_letters(here: Here) -> None:
    tries: list[tuple[int, str]] = []

    async def listen(messages: list[MessageExt]) -> ConsumeStatus:
        tries.extend((m.reconsume_times, m.topic) for m in messages)
        return ConsumeStatus.RECONSUME_LATER

    consumer = PushConsumer("g", here.name_server, settings=settings(max_reconsume_times=2))
    async with Producer("p", here.name_server) as producer:
        sent = await producer.send(Message("T", b"never", keys="k", tags="t"))
        consumer.subscribe("T", "*", listen)
        async with consumer:
            [dead] = await until_dead(here, "g", 1)
    assert tries == [(0, "T"), (1, "T"), (2, "T")]
    # One waited in the queue of the third level, one in that of the fourth.
    waited = [here.broker.parts.store.queue_bounds(SCHEDULE_TOPIC, level)[1] for level in range(6)]
    assert waited == [0, 0, 1, 1, 0, 0]
    assert (dead.body, dead.keys, dead.tags, dead.reconsume_times) == (b"never", "k", "t", 3)
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert dead.properties["ORIGIN_MESSAGE_ID"] in (sent.message_id, sent.offset_message_id)


async def test_an_unreadable_body_is_retried_becomes_a_dead_letter_and_stops_nobody(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    got: list[bytes] = []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(message.body for message in messages)

    packed = {b"corrupt": (0x301, b"no zlib at all"), b"lz4": (0x101, lz4_bytes(b"text"))}
    async with peer_of(here.broker) as peer:
        await peer.create_topic("T", queues=1)
        for sys_flag, body in packed.values():
            assert (await peer.send("T", body, f=sys_flag)).code == 0
        good = zlib.compress(b"good" * 10)
        assert (await peer.send("T", good, f=0x301)).code == 0
    consumer = PushConsumer("g", here.name_server, settings=settings(max_reconsume_times=1))
    consumer.subscribe("T", "*", listen)
    async with consumer:
        await until(lambda: got == [b"good" * 10])
        dead = await until_dead(here, "g", 2)
    assert got == [b"good" * 10]
    # What an undertaker finds is what was sent, to the byte.
    assert {(m.sys_flag & 0x701, m.body) for m in dead} == set(packed.values())
    assert {bool(m.body_error) for m in dead} == {True}
    async with PullConsumer("readers", here.name_server) as reader:
        queue = MessageQueue("T", "broker-t", 0)
        result = await reader.pull(queue, 0)
        assert [bool(message.body_error) for message in result.messages] == [True, True, False]
        assert result.next_offset == 3
        monkeypatch.undo()
        again = await reader.pull(queue, 0)
        assert [message.body for message in again.messages][1:] == [b"text", b"good" * 10]


async def test_a_broadcasting_member_drops_what_it_can_t_read(here: Here, tmp_path: Path) -> None:
    got: list[bytes] = []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(message.body for message in messages)

    async with peer_of(here.broker) as peer:
        await peer.create_topic("T", queues=1)
        await peer.send("T", b"no zlib", f=0x301)
        await peer.send("T", b"good")
    consumer = PushConsumer(
        "g",
        here.name_server,
        settings=settings(message_model=MessageModel.BROADCASTING, local_offset_folder=tmp_path),
    )
    consumer.subscribe("T", "*", listen)
    async with consumer:
        await until(lambda: got == [b"good"])
    assert await dead_letters(here, "g") == []


def lz4_bytes(data: bytes) -> bytes:
    packed: bytes = lz4.frame.compress(data)
    return packed


async def test_a_retried_message_waits_uncounted_for_a_member_that_has_a_listener(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[tuple[str, int, bytes]] = []

    async def listen(message: MessageExt) -> ConsumeStatus | None:
        got.append((message.topic, message.reconsume_times, message.body))
        return None if message.reconsume_times else ConsumeStatus.RECONSUME_LATER

    def passed_on() -> int:
        return len([r for r in caplog.records if "no listener for topic U" in r.getMessage()])

    caplog.set_level("DEBUG", "kerolox.client")
    # One more failure, or two that do not count as such, would make it a dead letter.
    consumer = PushConsumer("g", here.name_server, settings=settings(max_reconsume_times=1))
    for topic in "TU":
        consumer.subscribe_each(topic, "*", listen)
    async with Producer("p", here.name_server) as producer, consumer:
        await producer.send(Message("U", b"kept"))
        await until(lambda: got, what="the first try")
        owned = consumer._assignments.values()
        await until(lambda: not any(len(each.process_queue) for each in owned), what="its end")
        consumer.unsubscribe("U")
        await until(lambda: passed_on() >= 2, what="two rounds through the retry topic")
        consumer.subscribe_each("U", "*", listen)
        await until(lambda: len(got) == 2, what="the second try")
    assert got == [("U", 0, b"kept"), ("U", 1, b"kept")]
    assert await dead_letters(here, "g") == []
