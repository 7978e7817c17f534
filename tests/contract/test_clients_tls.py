"""All clients through TLS, to our servers behind a proxy that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import uvloop

from kerolox.client import (
    ConsumeFromWhere,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    TlsSettings,
    sync,
)
from kerolox.errors import ConnectError
from kerolox.message import Message, MessageExt
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.tls import Authority, TlsProxy
from tests.support.servers.up import Up

BEHIND = "127.0.0.2"
"""Where clients reach the broker: its own port, on another address."""

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
TIME_MS = int(SECONDS_MAX * 1000)


class Secured(NamedTuple):
    names: TlsProxy
    broker: TlsProxy
    tls: TlsSettings


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    with (
        Up(tmp_path_factory.mktemp("up"), settings={"brokerIP1": BEHIND}) as up,
        TlsProxy(authority.server(), up.namesrv) as names,
        TlsProxy(authority.server(BEHIND), up.broker, host=BEHIND, port=up.port) as broker,
    ):
        yield Secured(names, broker, TlsSettings(ca=authority.ca))


@pytest.mark.parametrize("make_loop", LOOPS)
def test_messages_of_all_sizes_come_and_go(
    secured: Secured, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    topic = f"tls-{make_loop.__module__.replace('.', '-')}"
    bodies = [bytes([number % 251]) * (1 + number * number * 40) for number in range(1, 100)]

    async def main() -> None:
        got: list[bytes] = []

        async def listen(messages: list[MessageExt]) -> None:
            got.extend(message.body for message in messages)

        sending = ProducerSettings(tls=secured.tls, compress_bytes_min=2**31)
        pushed = PushConsumerSettings(tls=secured.tls, consume_from_where=FIRST)
        names = secured.names.address
        async with Producer("senders", names, settings=sending) as producer:
            await asyncio.gather(
                *(producer.send(Message(topic, body), timeout_ms=TIME_MS) for body in bodies)
            )
            consumer = PushConsumer(f"g-{topic}", names, settings=pushed)
            consumer.subscribe(topic, "*", listen)
            async with consumer:
                await until(lambda: len(got) >= len(bodies))
            assert sorted(got) == sorted(bodies)
            settings = PullConsumerSettings(tls=secured.tls)
            async with PullConsumer("pullers", names, settings=settings) as pulling:
                [queue, *_] = await pulling.queues(topic)
                assert (await pulling.pull(queue, 0)).messages[0].body in bodies

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


def test_blocking_clients_speak_tls(secured: Secured) -> None:
    settings = sync.ProducerSettings(tls=secured.tls)
    with sync.Producer("senders", secured.names.address, settings=settings) as producer:
        assert producer.send(Message("tls-blocking", b"x"), timeout_ms=TIME_MS).is_ok
    untrusting = sync.ProducerSettings(tls=True)
    with (
        sync.Producer("senders", secured.names.address, settings=untrusting) as producer,
        pytest.raises(ConnectError, match="signed by nobody that is trusted here"),
    ):
        producer.send(Message("tls-blocking", b"x"))


async def test_a_lost_connection_is_made_again(secured: Secured) -> None:
    settings = ProducerSettings(tls=secured.tls)
    async with Producer("senders", secured.names.address, settings=settings) as producer:
        await producer.send(Message("tls-lost", b"x"), timeout_ms=TIME_MS)
        taken = secured.broker.taken
        await asyncio.to_thread(secured.broker.hang_up)
        await producer.send(Message("tls-lost", b"y"), timeout_ms=TIME_MS)
        assert secured.broker.taken > taken
