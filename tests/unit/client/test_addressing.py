"""Name servers from a web server: where it is asked, when, and what comes of its answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.client import Producer, ProducerSettings, PullConsumer, PullConsumerSettings
from kerolox.client.aio.network.background import PeriodicTasks
from kerolox.client.core.addressing import address_of_answer, address_server_url
from kerolox.errors import ConfigError, ConnectError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.listening import close_listeners
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class WebServer:
    """Answers every request with the same text; ``paths`` has what was asked for."""

    def __init__(self) -> None:
        self.status, self.text = "200 OK", ""
        self.paths: list[str] = []
        self._server: asyncio.Server | None = None

    @property
    def domain(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> WebServer:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await close_listeners([self._server])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.paths.append(head.split()[1].decode())
        body = self.text.encode()
        writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def web() -> AsyncIterator[WebServer]:
    async with WebServer() as made:
        yield made


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = route_body({"a": made.address})
        yield made


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "ROCKETMQ_NAMESRV_DOMAIN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        (("host", "nsaddr"), "http://host:8080/rocketmq/nsaddr"),
        (("host:80", "mine"), "http://host:80/rocketmq/mine"),
        (("host", "nsaddr", "north"), "http://host:8080/rocketmq/nsaddr-north?nofix=1"),
    ],
)
def test_the_address_is_made_of_domain_subgroup_and_unit(
    arguments: tuple[str, ...], url: str
) -> None:
    assert address_server_url(*arguments) == url


@pytest.mark.parametrize("domain", ["http://d:1", "http://d:1/", "d:1", " d:1"])
def test_a_domain_may_be_written_as_what_is_asked(domain: str) -> None:
    assert address_server_url(domain, "s") == "http://d:1/rocketmq/s"


@pytest.mark.parametrize("domain", ["https://d:1", "http://http://d:1", "d/x"])
def test_a_domain_that_is_another_url_is_refused(domain: str) -> None:
    with pytest.raises(ConfigError, match="write a host, or host:port"):
        address_server_url(domain, "s")


@pytest.mark.parametrize("answer", ["a:1;b:2\nmore", "\n a:1;b:2\r\nx", "a:1;b:2"])
def test_the_first_line_of_the_answer_counts(answer: str) -> None:
    assert address_of_answer(answer) == "a:1;b:2"


async def test_a_client_without_name_servers_asks_the_web_server(
    web: WebServer, broker: FakeBroker
) -> None:
    web.text = f"{broker.address}\n"
    given = ProducerSettings(name_server_domain=web.domain, enable_trace=True, unit_name="u")
    async with Producer("G", settings=given) as producer:
        assert (await producer.send(Message("T", b"x"))).is_ok
        assert producer.client_id.endswith("@u")
    # The second is the producer of traces.
    assert web.paths == ["/rocketmq/nsaddr-u?nofix=1"] * 2


async def test_the_domain_may_stand_in_the_environment(
    web: WebServer, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.text = broker.address
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", web.domain)
    given = PullConsumerSettings(name_server_subgroup="mine")
    async with PullConsumer("G", settings=given) as consumer:
        assert len(await consumer.queues("T")) == 4
    assert web.paths == ["/rocketmq/mine"]


async def test_it_is_asked_again_after_ten_seconds_and_every_two_minutes(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, tuple[int, int | None]] = {}

    def note(
        self: PeriodicTasks,
        interval_ms: int,
        action: object,
        what: str,
        *,
        first_ms: int | None = None,
    ) -> None:
        seen[what] = interval_ms, first_ms

    monkeypatch.setattr(PeriodicTasks, "every", note)
    async with Producer("G", settings=ProducerSettings(name_server_domain=web.domain)):
        assert seen["looking for name servers"] == (120_000, 10_000)


async def test_new_name_servers_are_used_and_old_ones_kept_while_it_fails(
    web: WebServer,
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("kerolox.client.aio.network.instance.ADDRESS_FIRST_MS", 5)
    monkeypatch.setattr("kerolox.client.aio.network.instance.ADDRESS_INTERVAL_MS", 5)
    web.status = "404 Not Found"
    given = ProducerSettings(name_server_domain=web.domain)

    def known() -> tuple[str, ...]:
        return producer._open_cluster().name_servers

    with caplog.at_level(logging.WARNING):
        async with Producer("G", settings=given) as producer:
            with pytest.raises(ConnectError, match="has told of no name server yet"):
                await producer.send(Message("T", b"x"))
            web.status, web.text = "200 OK", "127.0.0.1:1"
            await until(lambda: known() == ("127.0.0.1:1",))
            web.text = broker.address
            await until(lambda: known() == (broker.address,))
            for web.text in ("", "not an address", "a b:1"):
                web.paths.clear()
                await until(lambda: len(web.paths) > 1)
            assert known() == (broker.address,)
            assert (await producer.send(Message("T", b"x"))).is_ok
    assert "404" in caplog.text


async def test_name_servers_that_are_given_are_not_asked_for(
    web: WebServer, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ProducerSettings(name_server_domain=web.domain)
    async with Producer("G", broker.address, settings=given) as producer:
        await producer.send(Message("T", b"x"))
    monkeypatch.setenv("NAMESRV_ADDR", broker.address)
    async with Producer("G", settings=given) as producer:
        await producer.send(Message("T", b"x"))
    assert not web.paths
    assert len(broker.seen[RequestCode.SEND_MESSAGE_V2]) == 2


def test_without_either_it_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="no name server is given"):
        Producer("G")


async def test_a_web_server_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"name_server_domain": "127.0.0.1:1"}
    with caplog.at_level(logging.WARNING):
        async with PullConsumer("G", settings=PullConsumerSettings(**given)) as consumer:
            with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1/rocketmq/nsaddr"):
                await consumer.queues("T")
    assert "no name servers from http://127.0.0.1:1/rocketmq/nsaddr" in caplog.text
