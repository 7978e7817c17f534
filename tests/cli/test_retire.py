"""``kerolox broker retire`` while others send and consume."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kerolox.admin import Admin
from kerolox.client import Producer, ProducerSettings, PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere, Message, MessageExt
from tests.support.eventually import until
from tests.support.servers.command import Server, kerolox, start
from tests.support.servers.settings import small_store

TOPIC, GROUP = "Retired", "readers"
ROUTE_MS = 200
"""How often the clients look for routes."""


async def test_no_send_fails_and_nothing_is_lost_while_a_broker_retires(tmp_path: Path) -> None:
    with Server(tmp_path / "n", "namesrv", "--port", 0, "--host", "127.0.0.1") as name_server:
        at = name_server.addresses["namesrv"]
        with broker(tmp_path, "a", at) as going, broker(tmp_path, "b", at) as staying:
            address = going.addresses["broker"]
            async with Admin(at) as admin:

                async def are_known() -> bool:
                    return set((await admin.cluster_info()).brokers) == {"a", "b"}

                await until(are_known, what="both brokers")
                await admin.create_topic(TOPIC, queues=2)
            got = await _retire_under_load(at, address)
            going.stop()
            assert got[-1].broker_name == "b"
            done = await asyncio.to_thread(kerolox, "send", TOPIC, "after", "-n", at)
            assert "queue=b/" in done.stdout, done.stderr
        assert staying.process.returncode == 0


async def _retire_under_load(at: str, address: str) -> list[MessageExt]:
    """Send and consume while the broker retires; what was consumed, which is all, each once."""
    got: list[MessageExt] = []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(messages)

    consumer = PushConsumer(
        GROUP,
        at,
        settings=PushConsumerSettings(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            route_poll_interval_ms=ROUTE_MS,
        ),
    )
    consumer.subscribe(TOPIC, "*", listen)
    retiring = None
    settings = ProducerSettings(route_poll_interval_ms=ROUTE_MS)
    async with consumer, Producer("writers", at, settings=settings) as producer:
        sent = 0
        while retiring is None or retiring.poll() is None:
            await producer.send(Message(TOPIC, b"%d" % sent))
            sent += 1
            if sent == 20:
                retiring = start("broker", "retire", address, "--quiet", 1, "-n", at)
        printed = retiring.communicate()[0]
        assert retiring.returncode == 0, printed
        assert f"{address} can be stopped" in printed
        await until(lambda: len(got) >= sent, what="all messages")
    assert sorted(int(each.body) for each in got) == list(range(sent))
    assert {each.broker_name for each in got} == {"a", "b"}
    return got


def broker(folder: Path, name: str, at: str) -> Server:
    """One of two brokers."""
    home = folder / name
    home.mkdir()
    conf = small_store(home, brokerName=name, storePathRootDir=home / "store")
    return Server(home, "broker", "-c", conf, "--port", 0, "--host", "127.0.0.1", "-n", at)
