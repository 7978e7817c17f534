"""Sends whose answers are lost, over kills and promotions: each key is stored once.

Clients reach each broker of a pair through a proxy that resets their connections amid answers: what
was sent is stored, and nobody hears of it. So they send it again, with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.client import Producer, ProducerSettings
from kerolox.errors import KeroloxError
from kerolox.message import Message, MessageExt
from kerolox.protocol.records import decode_records
from tests.support.eventually import SECONDS_MAX, until
from tests.support.faults.proxy import Proxy
from tests.support.kernels import KERNELS
from tests.unit.broker.replication.pairs import quick_retries
from tests.unit.broker.roles.cluster import Cluster, cluster_of

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

QUEUES = 4
WINDOW_MS = 3_600_000
IN_FLIGHT = 16
ATTRIBUTES = {"dedup.window.ms": str(WINDOW_MS)}


class KeySender:
    """A producer behind proxies, which sends each key until it hears of its store.

    Attributes:
        done: keys of which it heard.
        lost: sends that failed.
        duplicates: keys that were there when it heard of them.
    """

    def __init__(self, name_server: str, proxies: Collection[Proxy], count: int, seed: int) -> None:
        self.name_server = name_server
        self.proxies = proxies
        self.count = count
        self.draw = random.Random(seed)
        self.done = 0
        self.lost = self.duplicates = 0

    @property
    def expected(self) -> Counter[str]:
        """Each key once."""
        return Counter(f"key-{number}" for number in range(self.count))

    async def send(self, producer: Producer, key: str) -> None:
        """As an application does that knows nothing of the first try's end."""
        message = Message("T", key.encode())
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    result = await producer.send(message, dedup_key=key)
                except KeroloxError:
                    self.lost += 1
                    await asyncio.sleep(0)
                    continue
                if result.is_ok:
                    self.duplicates += result.is_duplicate
                    self.done += 1
                    return

    async def send_all(self) -> None:
        keys = iter(self.expected)
        settings = ProducerSettings(send_timeout_ms=3_000, retries=4)
        async with Producer("p", self.name_server, settings=settings) as producer:

            async def worker() -> None:
                for key in keys:
                    await self.send(producer, key)

            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(worker())

    async def cut(self) -> None:
        """Lose answers again and again."""
        while True:
            before = self.done
            for proxy in self.proxies:
                proxy.cut(self.draw.randrange(1, 4_000))
            more = self.draw.randrange(5, 40)
            await until(lambda before=before, more=more: self.done >= before + more)  # type: ignore[misc]

    async def until_done(self, share: float) -> None:
        await until(lambda: self.done >= share * self.count)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All keys are sent, while answers are lost, by its end."""
        sending, cutting = asyncio.create_task(self.send_all()), asyncio.create_task(self.cut())
        try:
            yield
            await sending
        finally:
            cutting.cancel()
            sending.cancel()
            await asyncio.gather(cutting, sending, return_exceptions=True)


class Scenario(KeySender):
    """A pair behind proxies."""

    def __init__(self, cluster: Cluster, proxies: dict[str, Proxy], count: int, seed: int) -> None:
        super().__init__(cluster.address, proxies.values(), count, seed)
        self.cluster = cluster
        self.proxy_of = proxies
        self.master, self.slave = "a", "b"

    async def start(self, name: str, role: str, **more: object) -> None:
        config = {"broker_role": role, "advertised_address": self.proxy_of[name].address, **more}
        await self.cluster.start(name, **config)
        self.proxy_of[name].target = ("127.0.0.1", self.cluster[name].port)

    async def change_places(self) -> None:
        """A planned promotion, tried again where the proxy cut into it."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                with contextlib.suppress(KeroloxError):
                    await self.cluster.admin.promote_broker(self.cluster.at(self.slave))
                if self.cluster[self.slave].parts.role.current.is_slave is False:
                    break
                await asyncio.sleep(0.01)
        self.master, self.slave = self.slave, self.master

    async def lose_master(self) -> None:
        """The master is gone, its slave takes its place, and it comes back as a slave."""
        lost, other = self.master, self.slave
        await self.cluster.lose_master(lost)
        await self.cluster.admin.promote_broker(self.cluster.at(other), accept_loss=True)
        self.master, self.slave = other, lost
        await self.start(lost, "SLAVE", broker_id=1)


async def stored(broker: Broker) -> Counter[str]:
    """How often each key is there."""
    found: Counter[str] = Counter()
    store = broker.parts.store
    for queue_id in range(QUEUES):
        offset, end = store.queue_bounds("T", queue_id)
        while offset < end:
            read = store.read("T", queue_id, offset, 32, None)
            messages: list[MessageExt] = decode_records(read.records)
            found.update(message.unique_key for message in messages)
            offset = read.next_offset
    return found


@pytest.fixture
def proxies() -> Iterator[dict[str, Proxy]]:
    """One before each broker."""
    with Proxy() as of_a, Proxy() as of_b:
        yield {"a": of_a, "b": of_b}


async def play(
    folder: Path,
    kernel: str,
    proxies: dict[str, Proxy],
    count: int,
    *,
    changes: int,
    seed: int,
) -> Scenario:
    """Send all keys while answers are lost and brokers change places, every other time since the
    master is gone."""
    async with cluster_of(folder, kernel) as cluster:
        scenario = Scenario(cluster, proxies, count, seed)
        await scenario.start("a", "SYNC_MASTER")
        await scenario.start("b", "SLAVE", broker_id=1)
        await cluster.until_following("b")
        await cluster.admin.create_topic("T", queues=QUEUES, attributes=ATTRIBUTES)
        await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
        async with scenario.running():
            for number in range(changes):
                await scenario.until_done((number + 1) / (changes + 1))
                change = scenario.lose_master if number % 2 else scenario.change_places
                await change()
                await cluster.until_following(scenario.slave)
        keys = await stored(cluster[scenario.master])
        assert keys == scenario.expected
        return scenario


@pytest.mark.parametrize("kernel", KERNELS)
async def test_each_key_is_stored_once_though_answers_are_lost_and_brokers_change_places(
    tmp_path: Path, kernel: str, proxies: dict[str, Proxy]
) -> None:
    scenario = await play(tmp_path, kernel, proxies, 300, changes=2, seed=7)
    assert scenario.duplicates > 0, "no answer was lost behind its store"


@pytest.mark.software
async def test_each_of_100_000_keys_is_stored_once(
    tmp_path: Path, proxies: dict[str, Proxy]
) -> None:
    """What the test above holds in small."""
    scenario = await play(tmp_path, "native", proxies, 100_000, changes=20, seed=8)
    assert scenario.duplicates > 1_000
