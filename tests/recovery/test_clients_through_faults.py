"""Our clients and a real broker with a proxy between them that drops, resets, delays, half-opens.

Whatever it does: no call hangs, what was acknowledged can be read, and when the clients are closed
no task, no thread and no socket of theirs is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from kerolox.client import (
    ClientSettings,
    Connection,
    LitePullConsumerSettings,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerSettings,
    connect,
    sync,
)
from kerolox.errors import KeroloxError, RequestTimeoutError
from kerolox.message import Message, MessageExt
from tests.support.eventually import SECONDS_MAX, until, wait_until
from tests.support.faults.proxy import Proxy
from tests.support.servers.up import Up

SENDERS = 8
SETTINGS = ClientSettings(api_timeout_ms=500, heartbeat_interval_ms=300, route_poll_interval_ms=200)
SENDS = ProducerSettings(send_timeout_ms=300)
READS = PushConsumerSettings(
    consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    rebalance_interval_ms=500,
    suspend_timeout_ms=200,
    pull_timeout_ms=600,
    pull_error_delay_ms=50,
)
SEEDS = range(int(os.environ.get("FAULT_SEEDS", "1")))
LITE_READS = LitePullConsumerSettings(
    consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    suspend_timeout_ms=200,
    suspended_pull_timeout_ms=600,
    pull_error_delay_ms=50,
    rebalance_interval_ms=500,
)
FAULTS = ("drop", "reset", "half_open", "delay", "cut", "refuse", "names")


class Between:
    """A broker and a name server, each behind a proxy of its own."""

    def __init__(self, up: Up, broker: Proxy, names: Proxy) -> None:
        self.up = up
        self.broker = broker
        self.names = names

    @property
    def name_server(self) -> str:
        return self.names.address

    def heal(self) -> None:
        for proxy in (self.broker, self.names):
            proxy.delay_seconds, proxy.refuses = 0.0, False


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    with Proxy() as broker, Proxy() as names:
        settings = {"advertisedAddress": broker.address}
        with Up(tmp_path_factory.mktemp("up"), settings=settings) as up:
            broker.target = ("127.0.0.1", up.port)
            names.target = ("127.0.0.1", up.namesrv_port)
            yield Between(up, broker, names)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that leads nowhere is given up sooner, for the sake of the tests' time."""
    monkeypatch.setattr("kerolox.remoting.core.client_requests.SILENT_SECONDS_MAX", 0.5)


def descriptors() -> set[str]:
    """The sockets of this process that are connected to somebody."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


class Load:
    """Senders that go on whatever happens: what was acknowledged, and what was not.

    Their pauses wait for nothing: they are the pace, so that faults find sends of many moments and
    not all the machine's time.
    """

    def __init__(self, producer: Producer, topic: str) -> None:
        self.producer = producer
        self.topic = topic
        self.acknowledged: set[bytes] = set()
        self.failures = 0
        self.stopping = False

    async def send_always(self, name: int) -> None:
        number = 0
        while not self.stopping:
            body = b"%d-%d" % (name, number)
            number += 1
            try:
                await self.producer.send(Message(self.topic, body))
            except KeroloxError:
                self.failures += 1
                await asyncio.sleep(0.01)
            else:
                self.acknowledged.add(body)
                await asyncio.sleep(0.001)


async def bring_about(fault: str, between: Between, load: Load, dice: random.Random) -> None:
    """One fault, and the wait until it has been felt and is over."""
    failures, acknowledged = load.failures, len(load.acknowledged)
    broker = between.broker
    if fault == "delay":
        broker.delay_seconds = dice.choice((0.01, 0.05))
    elif fault == "refuse":
        broker.refuses = True
        broker.reset()
        await until(lambda: load.failures > failures, what="a failure")
    elif fault == "cut":
        broker.cut(dice.randint(0, 400))
    elif fault == "names":
        between.names.refuses = True
        between.names.reset()
    else:
        getattr(broker, fault)()
    if fault in ("delay", "names"):
        await until(lambda: len(load.acknowledged) > acknowledged + 20, what="slow sends")
    between.heal()
    now = len(load.acknowledged)
    await until(lambda: len(load.acknowledged) > now + 20, what=f"sends after {fault}")


async def bodies(name_server: str, topic: str) -> set[bytes]:
    """All that is stored of a topic."""
    found = set()
    async with PullConsumer("faults-reader", name_server) as reader:
        for queue in await reader.queues(topic):
            offset = await reader.min_offset(queue)
            while True:
                result = await reader.pull(queue, offset, max_messages=32)
                if result.status is not PullStatus.FOUND:
                    break
                found |= {message.body for message in result.messages}
                offset = result.next_offset
    return found


async def under_faults(between: Between, connection: Connection, seed: int) -> None:
    topic = f"Faults{seed}"
    dice = random.Random(seed)
    consumed: set[bytes] = set()

    async def listen(messages: list[MessageExt]) -> None:
        consumed.update(message.body for message in messages)

    sends = SENDS.changed(batching=seed % 2 == 0)
    producer = connection.producer("faults", settings=sends)
    polled: set[bytes] = set()
    lite = connection.lite_pull_consumer(f"faults-lite-{seed}", settings=LITE_READS)
    lite.subscribe(topic)
    consumer = connection.push_consumer(f"faults-{seed}", settings=READS)
    consumer.subscribe(topic, "*", listen)
    await producer.start()
    await producer.create_topic(topic, queues=4)
    await consumer.start()
    await lite.start()

    async def poll_always() -> None:
        while not load.stopping or not load.acknowledged <= polled:
            polled.update(message.body for message in await lite.poll(timeout_ms=200))

    load = Load(producer, topic)
    senders = [asyncio.ensure_future(load.send_always(n)) for n in range(SENDERS)]
    polling = asyncio.ensure_future(poll_always())
    await until(lambda: load.acknowledged)
    for fault in dice.sample(FAULTS, len(FAULTS)):
        await bring_about(fault, between, load, dice)
    load.stopping = True
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(*senders)
    await until(lambda: load.acknowledged <= consumed, what="consuming of all acknowledged")
    await until(polling.done, what="polling of all acknowledged")
    await polling
    assert load.acknowledged <= await bodies(between.name_server, topic)
    assert load.failures


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_acknowledged_is_lost_whatever_becomes_of_connections(
    between: Between, seed: int
) -> None:
    gc.collect()
    tasks, threads, sockets = asyncio.all_tasks(), threading.active_count(), descriptors()
    connection = await connect(between.name_server, settings=SETTINGS)
    try:
        await under_faults(between, connection, seed)
    finally:
        between.heal()
        await connection.close()
    await until(lambda: asyncio.all_tasks() <= tasks, what="the end of all tasks")
    await until(lambda: threading.active_count() <= threads, what="the end of all threads")
    await until(lambda: not between.broker.open + between.names.open, what="the close of all")
    # The ends of half open connections towards the broker are the proxy's.
    left = 2 * len(between.broker._pairs)
    await until(lambda: len(descriptors()) <= len(sockets) + left, what="the close of sockets")


def test_blocking_sends_of_threads_end_well_or_with_an_error_under_faults(
    between: Between,
) -> None:
    threads_before = set(threading.enumerate())
    topic, dice = "FaultsBlocking", random.Random(3)
    acknowledged: list[bytes] = []
    failures: list[KeroloxError] = []
    stop = threading.Event()

    def send(name: int) -> None:
        number = 0
        while not stop.is_set():
            body = b"%d-%d" % (name, number)
            number += 1
            try:
                producer.send(Message(topic, body))
            except KeroloxError as error:
                failures.append(error)
            else:
                acknowledged.append(body)

    with sync.Producer("blocking-faults", between.name_server, settings=SENDS) as producer:
        producer.create_topic(topic, queues=4)
        senders = [threading.Thread(target=send, args=[n], daemon=True) for n in range(16)]
        for sender in senders:
            sender.start()
        wait_until(lambda: len(acknowledged) > 50)
        for fault in dice.sample(("drop", "reset", "half_open", "drop"), 4):
            getattr(between.broker, fault)()
            now = len(acknowledged)
            wait_until(lambda n=now: len(acknowledged) > n + 50, what=f"sends after {fault}")  # type: ignore[misc]
        stop.set()
        for sender in senders:
            sender.join(SECONDS_MAX)
            assert not sender.is_alive()
    wait_until(lambda: set(threading.enumerate()) <= threads_before, what="the end of all threads")
    stored = asyncio.run(bodies(between.name_server, topic))
    assert set(acknowledged) <= stored
    assert failures


@contextlib.contextmanager
def stopped(up: Up) -> Iterator[None]:
    """The broker stands still: its sockets take bytes, and nothing reads them."""
    assert up.process is not None
    up.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        up.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_sends_and_closes_end_in_their_time_while_a_broker_is_stopped(
    between: Between, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("aio.life", "aio.connection", "core.life"):
        monkeypatch.setattr(f"kerolox.client.{module}.CLOSE_SECONDS_MAX", 0.5)
    hour = 3_600_000
    own = ClientSettings(api_timeout_ms=hour)
    sends = ProducerSettings(send_timeout_ms=hour, api_timeout_ms=hour)
    reads = PushConsumerSettings(close_timeout_ms=0, api_timeout_ms=hour)
    name_server, topic = between.up.namesrv, f"Stopped{is_shared}"
    connection = connect(name_server, settings=own)
    if is_shared:
        producer = connection.producer("stopped", settings=sends)
        consumer = connection.push_consumer("stopped", settings=reads)
    else:
        producer = Producer("stopped", name_server, settings=sends)
        consumer = PushConsumer("stopped", name_server, settings=reads)
    await producer.start()
    await producer.create_topic(topic, queues=4)
    await producer.send(Message(topic, b"before"))
    consumer.subscribe_each(topic, "*", lambda message: None)
    await consumer.start()
    with stopped(between.up):
        with pytest.raises(RequestTimeoutError):
            await producer.send(Message(topic, b"x"), timeout_ms=100)
        sending = asyncio.ensure_future(producer.send(Message(topic, b"y")))
        await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS_MAX):
            if is_shared:
                await connection.close()
            else:
                await asyncio.gather(producer.close(), consumer.close())
            with pytest.raises(KeroloxError):
                await sending


def test_blocking_sends_and_closes_end_in_their_time_while_a_broker_is_stopped(
    between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("aio.life", "core.life", "sync._portal"):
        monkeypatch.setattr(f"kerolox.client.{module}.CLOSE_SECONDS_MAX", 0.5)
    hour = 3_600_000
    settings = ProducerSettings(send_timeout_ms=hour, api_timeout_ms=hour)
    producer = sync.Producer("stopped", between.up.namesrv, settings=settings)
    producer.start()
    producer.create_topic("StoppedThreads", queues=4)
    producer.send(Message("StoppedThreads", b"before"))
    ended: list[KeroloxError] = []

    def send() -> None:
        try:
            producer.send(Message("StoppedThreads", b"x"))
        except KeroloxError as error:
            ended.append(error)

    with stopped(between.up):
        with pytest.raises(RequestTimeoutError):
            producer.send(Message("StoppedThreads", b"x"), timeout_ms=100)
        threads = [threading.Thread(target=send, daemon=True) for _ in range(16)]
        for thread in threads:
            thread.start()
        client = producer._client

        def open_sends() -> int:
            plain = 0 if client._fast_sends is None else client._fast_sends.open_count
            return plain + client._delivery.open_count

        wait_until(lambda: producer._portal.call(open_sends) == 16)
        producer.close()
        for thread in threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
    assert len(ended) == 16
