"""Runs loads: a topic and a group of their own, made before and removed after."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Callable

from kerolox.admin import Admin
from kerolox.admin.asking import is_kerolox
from kerolox.bench.load import STAMP_BYTES, Kind, Load, Tally
from kerolox.bench.pacing import work
from kerolox.client import (
    ConsumeFromWhere,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    SendStatus,
)
from kerolox.errors import ClientError
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.security.credentials import Credentials
from kerolox.security.tls import Tls

PREFIX = "KEROLOX_BENCH_"
"""Begins the names of topics and groups that a load makes."""
FILL_COUNT = 100_000
"""Messages that a topic of one's own is filled with for consuming, where no count is given."""
LOST_SECONDS = 30.0
"""A message of a round trip that has not come back by then is lost."""
READY_SECONDS = 60.0
"""How long a consumer may take to get its queues."""
REMOVE_SECONDS = 60.0
HOLD_MS = 1_000
"""How long a broker may hold a pull of a load's consumer."""
HELD_SECONDS = HOLD_MS / 1_000 + 7.0
"""A Java broker looks every 5 s which pulls it has held long enough (PullRequestHoldService)."""
BATCH = 32

_QUIET_SECONDS = 10.0
"""A topic of which nothing more comes for so long is read to its end."""


class NotStoredSafelyError(ClientError):
    """The message is stored, but not as safely as the broker's settings ask."""


class LostError(ClientError):
    """A message did not come back in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Clients:
    """How the clients of a load connect."""

    name_server: str
    credentials: Credentials | None = None
    tls: Tls = False

    def producer(self) -> Producer:
        """For sends without further tries: each failure is one that a user would see."""
        settings = ProducerSettings(credentials=self.credentials, tls=self.tls, retries=0)
        return Producer(f"{PREFIX}PRODUCER", self.name_server, settings=settings)

    def consumer(self, group: str, load: Load, first: ConsumeFromWhere) -> PushConsumer:
        """Of a group of our own."""
        settings = PushConsumerSettings(
            credentials=self.credentials,
            tls=self.tls,
            consume_from_where=first,
            consume_concurrency=min(load.concurrency, 1000),
            consume_batch_max=BATCH if load.kind is Kind.CONSUME else 1,
            suspend_timeout_ms=HOLD_MS,
        )
        return PushConsumer(group, self.name_server, settings=settings)


async def run_load(
    admin: Admin,
    clients: Clients,
    load: Load,
    *,
    on_start: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Do it; what came of it. KeroloxError: it could not begin, or what it made could not be
    removed. What fails during the load is counted.

    A topic that is not there is made by ``admin``, and deleted at the end, however the load ends;
    so is the group of its consumers. ``clients``: how the load connects. ``on_start`` gets the
    tally, which grows from then on.
    """
    tally = Tally(load)
    async with _topic(admin, load) as (topic, is_ours):
        load = tally.load = dataclasses.replace(load, topic=topic)
        match load.kind:
            case Kind.SEND:
                on_start(tally)
                await _send(clients, load, tally)
            case Kind.CONSUME:
                if is_ours:
                    await _fill(clients, load)
                await _consume(admin, clients, load, tally, on_start)
            case Kind.ROUNDTRIP:
                await _round_trip(admin, clients, load, tally, on_start)
    return tally


@contextlib.asynccontextmanager
async def _topic(admin: Admin, load: Load) -> AsyncIterator[tuple[str, bool]]:
    """The topic, and whether it was made for the load."""
    topic = load.topic or f"{PREFIX}{os.urandom(6).hex()}"
    is_ours = await admin.access.fetch_route(topic) is None
    if is_ours:
        await admin.create_topic(topic, cluster=load.cluster, queues=load.queues)
    try:
        yield topic, is_ours
    finally:
        if is_ours:
            async with asyncio.timeout(REMOVE_SECONDS):
                await admin.delete_topic(topic, cluster=load.cluster)


@contextlib.asynccontextmanager
async def _group(admin: Admin, load: Load) -> AsyncIterator[str]:
    """The name of a group that is gone afterwards."""
    group = f"{PREFIX}{os.urandom(6).hex()}"
    try:
        yield group
    finally:
        async with asyncio.timeout(REMOVE_SECONDS):
            await _remove_group(admin, group, load.cluster)


async def _remove_group(admin: Admin, group: str, cluster: str) -> None:
    """Delete it, for good.

    A Java broker answers a pull that it holds when its time is over, though its consumer has left,
    and makes a group that is not there anew for it (autoCreateSubscriptionGroup).
    """
    brokers = await admin.delete_group(group, cluster=cluster, remove_offsets=True)
    if not all([await is_kerolox(admin, each) for each in brokers]):
        await asyncio.sleep(HELD_SECONDS)
        await admin.delete_group(group, cluster=cluster, remove_offsets=True)


async def _send(clients: Clients, load: Load, tally: Tally) -> None:
    body = os.urandom(load.size)
    async with clients.producer() as producer:

        async def send(number: int) -> None:
            await _stored(producer, Message(load.topic, body))

        await work(load, tally, send, size=load.size)


async def _stored(producer: Producer, message: Message) -> None:
    result = await producer.send(message)
    if result.status is not SendStatus.SEND_OK:
        raise NotStoredSafelyError(result.status.name)


async def _fill(clients: Clients, load: Load) -> None:
    count = load.count or FILL_COUNT
    filling = dataclasses.replace(load, kind=Kind.SEND, count=count, seconds=0, rate=0)
    filled = Tally(filling)
    await _send(clients, filling, filled)
    if not filled.messages:
        raise ClientError(f"no message could be stored to consume: {dict(filled.errors)}")


async def _consume(
    admin: Admin,
    clients: Clients,
    load: Load,
    tally: Tally,
    on_start: Callable[[Tally], None],
) -> None:
    described = await admin.describe_topic(load.topic)
    wanted = sum(each.max_offset - each.min_offset for each in described.queues)
    wanted = min(wanted, load.count or wanted)
    if not wanted:
        raise ClientError(f"topic {load.topic!r} has no message to consume")
    progress = asyncio.Event()

    async def on_messages(messages: list[MessageExt]) -> None:
        now_ms = time.time_ns() // 1_000_000
        if not tally.started_ns:
            tally.begin()
        for each in messages:
            tally.took(len(each.body), (now_ms - each.store_timestamp) * 1_000_000)
        progress.set()

    async with _group(admin, load) as group:
        consumer = clients.consumer(group, load, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe(load.topic, "*", on_messages)
        on_start(tally)
        async with consumer:
            try:
                async with asyncio.timeout(load.seconds or None):
                    while tally.messages < wanted:
                        progress.clear()
                        async with asyncio.timeout(READY_SECONDS + _QUIET_SECONDS):
                            await progress.wait()
            except TimeoutError:
                if not load.seconds:
                    tally.failed(LostError("no more messages come"))
            tally.end()


async def _round_trip(
    admin: Admin,
    clients: Clients,
    load: Load,
    tally: Tally,
    on_start: Callable[[Tally], None],
) -> None:
    run, padding = os.urandom(16), os.urandom(load.size - STAMP_BYTES)
    waiting: dict[int, asyncio.Future[None]] = {}
    queues = (await admin.describe_topic(load.topic)).queues

    async def on_messages(messages: list[MessageExt]) -> None:
        for each in messages:
            # On a topic of others there may be messages of others.
            if each.body[:16] == run:
                future = waiting.pop(int.from_bytes(each.body[16:STAMP_BYTES]), None)
                if future is not None and not future.done():
                    future.set_result(None)

    async with _group(admin, load) as group, clients.producer() as producer:
        consumer = clients.consumer(group, load, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
        consumer.subscribe(load.topic, "*", on_messages)
        ready = _Ready(consumer, {each.queue for each in queues})
        for each in queues:
            # Else a new group would begin with all that a short topic has.
            await admin.set_offset(group, each.queue, each.max_offset)

        async def pass_on(number: int) -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting[number] = future
            body = run + number.to_bytes(8) + padding
            try:
                await _stored(producer, Message(load.topic, body))
                async with asyncio.timeout(LOST_SECONDS):
                    await future
            except TimeoutError:
                raise LostError(f"it did not come back within {LOST_SECONDS:g} s") from None
            finally:
                waiting.pop(number, None)

        async with consumer:
            await ready.wait()
            on_start(tally)
            await work(load, tally, pass_on, size=load.size)


class _Ready:
    """Whether a consumer that is alone in its group has its queues."""

    def __init__(self, consumer: PushConsumer, wanted: set[MessageQueue]) -> None:
        self._missing = set(wanted)
        self._is_ready = asyncio.Event()
        consumer.on_assigned(self._assigned)

    async def wait(self) -> None:
        """Wait until it has all of them; ClientError: it takes too long."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._is_ready.wait()
        except TimeoutError:
            raise ClientError(
                f"the consumer did not get {len(self._missing)} queues within {READY_SECONDS:g} s"
            ) from None

    async def _assigned(self, queues: list[MessageQueue]) -> None:
        self._missing -= set(queues)
        if not self._missing:
            self._is_ready.set()
