"""The HTTP server of metrics: what it answers, and what strangers can't do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kerolox.errors import ConfigError
from kerolox.metrics import http
from kerolox.metrics.http import CONNECTIONS_MAX, HttpAnswer, HttpRequest, HttpServer
from tests.support.eventually import until
from tests.support.servers.just_accepted import STEPS, ends_with_it


async def echo(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(f"{request.path}|{request.query}|{request.accept}".encode())


PARTS = [bytes([number]) * 50_000 for number in range(60)]


async def large(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(PARTS)


async def broken(request: HttpRequest) -> HttpAnswer:
    raise RuntimeError("boom")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[HttpServer]:
    made = HttpServer({"/echo": echo, "/large": large, "/broken": broken})
    await made.open("127.0.0.1", 0, "metricsPromExporterPort")
    try:
        yield made
    finally:
        await made.close()


async def ask(server: HttpServer, data: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""  # closed without an answer
    finally:
        writer.transport.abort()


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_a_path_is_answered_with_its_query(server: HttpServer) -> None:
    answer = await ask(server, get("/echo?a=b", "Accept: text/x"))
    assert answer.startswith(b"HTTP/1.1 200 \r\n")
    assert answer.endswith(b"\r\n\r\n/echo|a=b|text/x")
    head = await ask(server, get("/echo", method="HEAD"))
    assert head.endswith(b"\r\n\r\n")
    assert b"Content-Length: 7\r\n" in head


async def test_an_answer_in_parts_comes_whole(server: HttpServer) -> None:
    head, _, body = (await ask(server, get("/large"))).partition(b"\r\n\r\n")
    assert b"Content-Length: 3000000" in head
    assert body == b"".join(PARTS)
    assert (await ask(server, get("/large", method="HEAD"))).endswith(b"\r\n\r\n")


async def test_one_connection_serves_many_requests(server: HttpServer) -> None:
    request = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await ask(server, request * 3 + get("/echo"))
    assert answer.count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/nothing"), 404),
        (get("/echo", method="DELETE"), 405),
        (get("/echo", "Content-Length: 5", method="POST") + b"12345", 413),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000, 431),
        (b"\x16\x03\x01\x02\x00\x01", 400),
    ],
)
async def test_what_is_no_request_gets_an_error_and_others_are_served(
    server: HttpServer, data: bytes, status: int
) -> None:
    answer = await ask(server, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (await ask(server, get("/echo"))).startswith(b"HTTP/1.1 200")


async def test_a_handler_that_fails_costs_its_connection_only(server: HttpServer) -> None:
    assert await ask(server, get("/broken")) == b""
    assert (await ask(server, get("/echo"))).startswith(b"HTTP/1.1 200")


async def test_a_silent_client_is_cut_off(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.05)
    assert await ask(server, b"GET /echo HTTP/1.1\r\nHo") == b""


async def test_connections_are_bounded_and_room_comes_back(server: HttpServer) -> None:
    held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)]
    await until(lambda: len(server._tasks) == CONNECTIONS_MAX, what="all connections")
    assert await ask(server, get("/echo")) == b""
    for _, writer in held:
        writer.transport.abort()
    await until(lambda: not server._tasks, what="the end of all connections")
    assert (await ask(server, get("/echo"))).startswith(b"HTTP/1.1 200")


async def test_a_close_ends_what_is_open_and_may_be_repeated(server: HttpServer) -> None:
    asking = asyncio.create_task(ask(server, b"GET /echo"))
    await until(lambda: bool(server._tasks), what="the connection")
    await server.close()
    await server.close()
    assert await asking == b""


@pytest.mark.parametrize("steps", STEPS)
async def test_a_connection_that_is_just_accepted_ends_with_a_close(
    server: HttpServer, steps: int
) -> None:
    assert await ends_with_it(server.port, steps, server.close)


async def test_a_port_that_is_taken_is_named_with_its_setting(server: HttpServer) -> None:
    with pytest.raises(ConfigError, match=r"metricsPromExporterPort: .*127\.0\.0\.1"):
        await HttpServer({}).open("127.0.0.1", server.port, "metricsPromExporterPort")
