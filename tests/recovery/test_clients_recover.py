"""kill -9 of the broker under load of our own clients: they recover by themselves, soon."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from kerolox.client import Producer, ProducerSettings, PushConsumer, PushConsumerSettings
from kerolox.errors import KeroloxError
from kerolox.message import ConsumeFromWhere, Message, MessageExt
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.command import Server
from tests.support.servers.settings import small_store
from tests.support.servers.up import free_port

TOPIC = "Recover"
SENDERS = 8
AHEAD_MAX = 64
ROUNDS = 2
RARELY_MS = 600_000
"""Between periodic looks: whoever waits for the next one comes after all deadlines."""
RARELY = dict.fromkeys(
    ("route_poll_interval_ms", "heartbeat_interval_ms", "rebalance_interval_ms"), RARELY_MS
)
REGISTRATION_SECONDS = 60
"""Between a broker's periodic registrations: the most there is."""
SENDS = ProducerSettings(route_poll_interval_ms=RARELY_MS, heartbeat_interval_ms=RARELY_MS)
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def is_listening(port: int) -> bool:
    """Whether somebody takes connections at a port of this machine."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


class Load:
    """Senders that go on whatever happens; what was acknowledged, and what came to a listener.

    They keep at most ``AHEAD_MAX`` messages before the listener while the broker listens, and try
    again as soon as it does when it did not.
    """

    def __init__(self, producer: Producer, port: int) -> None:
        self.producer = producer
        self.port = port
        self.acknowledged: set[bytes] = set()
        self.consumed: Counter[bytes] = Counter()
        self.places: Counter[tuple[int, int]] = Counter()
        self.failures = 0
        self.stopping = False

    async def send_always(self, name: int) -> None:
        number = 0
        while not self.stopping:
            body = b"%d-%d" % (name, number)
            try:
                await self.producer.send(Message(TOPIC, body), timeout_ms=1_000)
            except KeroloxError:
                self.failures += 1
                await until(self._may_try_again, what="the broker's port")
            else:
                self.acknowledged.add(body)
                await until(self._may_go_on, what="consuming, or the broker's end")
            number += 1

    def _may_try_again(self) -> bool:
        return self.stopping or is_listening(self.port)

    def _may_go_on(self) -> bool:
        ahead = len(self.acknowledged) - len(self.consumed)
        return self.stopping or ahead < AHEAD_MAX or not is_listening(self.port)

    async def listen(self, messages: list[MessageExt]) -> None:
        for message in messages:
            self.consumed[message.body] += 1
            self.places[message.queue_id, message.queue_offset] += 1


class Cluster:
    """``up`` in one process, or name server and broker in two of which the broker is killed."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.port, self.namesrv_port = free_port(), free_port()
        conf = small_store(folder, registerNameServerPeriod=REGISTRATION_SECONDS * 1000)
        common = ["--port", self.port, "--data", folder / "store", "-c", conf]
        self.stack = ExitStack()
        if kind == "up":
            self.broker = Server(folder / "b", "up", "--namesrv-port", self.namesrv_port, *common)
        else:
            names = ["namesrv", "--port", self.namesrv_port, "--data", folder / "names"]
            self.names = self.stack.enter_context(Server(folder / "n", *names))
            self.broker = Server(folder / "b", "broker", "-n", self.name_server, *common)
        self.stack.enter_context(self.broker)

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    def kill(self) -> None:
        self.broker.process.kill()
        self.broker.process.wait(SECONDS_MAX)
        self.broker.ready_file.unlink()

    async def start_again(self) -> None:
        await asyncio.to_thread(self.broker.__enter__)


@pytest.mark.parametrize("kind", ["up", "broker"])
async def test_clients_outlive_a_killed_broker_and_nothing_acknowledged_is_missed(
    kind: str, tmp_path: Path
) -> None:
    cluster = Cluster(kind, tmp_path)
    settings = PushConsumerSettings(consume_from_where=FIRST, **RARELY)
    consumer = PushConsumer("recovering", cluster.name_server, settings=settings)
    with cluster.stack:
        async with Producer("recovering", cluster.name_server, settings=SENDS) as producer:
            load = Load(producer, cluster.port)
            await producer.create_topic(TOPIC, queues=4)
            consumer.subscribe(TOPIC, "*", load.listen)
            async with consumer:
                senders = [asyncio.ensure_future(load.send_always(n)) for n in range(SENDERS)]
                for _ in range(ROUNDS):
                    before = len(load.consumed)
                    await until(lambda b=before: len(load.consumed) > b + 500, what="consuming")
                    cluster.kill()
                    failed = load.failures
                    await until(lambda f=failed: load.failures >= f + SENDERS, what="a failure")
                    old = set(load.acknowledged)
                    await cluster.start_again()
                    await until(
                        lambda old=old: set(load.consumed) & load.acknowledged - old,
                        what="consuming of a message that was sent after the restart",
                    )
                load.stopping = True
                await asyncio.gather(*senders)
                await until(
                    lambda: load.acknowledged <= set(load.consumed), what="consuming of all"
                )
    # A send whose answer was lost may be stored twice; no place is read twice, though.
    assert max(load.places.values()) == 1


async def test_a_killed_name_server_stops_nobody_and_knows_all_again_after_its_restart(
    tmp_path: Path,
) -> None:
    cluster = Cluster("broker", tmp_path)
    settings = PushConsumerSettings(consume_from_where=FIRST, **RARELY)
    consumer = PushConsumer("recovering", cluster.name_server, settings=settings)
    names = Server(
        tmp_path / "again", "namesrv", "--port", cluster.namesrv_port, "--data", tmp_path / "names"
    )
    with cluster.stack:
        async with Producer("recovering", cluster.name_server, settings=SENDS) as producer:
            load = Load(producer, cluster.port)
            await producer.create_topic(TOPIC, queues=4)
            consumer.subscribe(TOPIC, "*", load.listen)
            async with consumer:
                await producer.send(Message(TOPIC, b"before"))
                await until(lambda: load.consumed[b"before"], what="consuming")
                cluster.names.process.kill()
                cluster.names.process.wait(SECONDS_MAX)
                for index in range(20):
                    await producer.send(Message(TOPIC, b"meanwhile-%d" % index))
                await until(lambda: len(load.consumed) == 21, what="consuming without routes")
                await asyncio.to_thread(names.__enter__)
                try:
                    async with Producer("newcomer", cluster.name_server) as newcomer:
                        cluster_of = newcomer._open_cluster()
                        await until(
                            lambda: cluster_of.refresh(TOPIC),
                            seconds=REGISTRATION_SECONDS - 5,
                            what="the route's coming back",
                        )
                        await newcomer.send(Message(TOPIC, b"after"))
                    await until(lambda: load.consumed[b"after"], what="consuming after it")
                finally:
                    await asyncio.to_thread(names.stop)
