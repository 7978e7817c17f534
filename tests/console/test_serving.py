"""The console as a process: TLS, proxies, clients that send slowly or nothing, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme

from kerolox.console import server as server_module
from kerolox.console.console import Console
from kerolox.console.server import ConsoleServer
from kerolox.console.settings import ConsoleSettings
from kerolox.console.visit import TOKEN_FIELD
from tests.console.site import PASSWORD, users_file
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.faults.resets import reset_at_once
from tests.support.servers.command import Server, kerolox

if TYPE_CHECKING:
    from pathlib import Path

FORWARDED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}


@contextlib.contextmanager
def serving(folder: Path, *arguments: object) -> Iterator[Server]:
    """A console that has no cluster."""
    given = ("--users", users_file(folder), "--history", folder / "history", "--port", 0)
    with Server(folder, "console", *given, "-n", "127.0.0.1:1", *arguments) as server:
        yield server


def log_in(client: httpx.Client) -> httpx.Response:
    page = client.get("/login")
    token = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert token
    fields = {TOKEN_FIELD: token[1], "name": "viewer", "password": PASSWORD}
    # By hand: a secure one does not go to a proxy's neighbour, which has no TLS.
    cookie = {"Cookie": page.headers["set-cookie"].partition(";")[0]}
    return client.post("/login", data=fields, headers=cookie)


def logins_of(server: Server) -> list[dict[str, str]]:
    lines = re.findall(r"kerolox\.audit: (\{.*\})", server.log.read_text())
    return [json.loads(line) for line in lines]


def test_a_console_with_a_certificate_serves_tls_alone(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with serving(tmp_path, "--tls-certificate", certificate, "--tls-key", key) as server:
        address = server.addresses["console"]
        with httpx.Client(
            base_url=f"https://{address}", verify=context, timeout=SECONDS_MAX
        ) as client:
            done = log_in(client)
            assert done.status_code == 303
            assert "secure" in done.headers["set-cookie"].lower()
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{address}/login", timeout=SECONDS_MAX)


@pytest.mark.parametrize("trusted", [True, False])
def test_forwarded_headers_count_from_a_trusted_proxy_alone(tmp_path: Path, trusted: bool) -> None:
    options = ("--trust-proxy", "127.0.0.1") if trusted else ()
    with serving(tmp_path, *options) as server:
        base = f"http://{server.addresses['console']}"
        with httpx.Client(base_url=base, headers=FORWARDED, timeout=SECONDS_MAX) as client:
            done = log_in(client)
            assert done.status_code == 303
            assert ("secure" in done.headers["set-cookie"].lower()) == trusted
        wait_until(lambda: logins_of(server))
        [line] = logins_of(server)
        assert line["from"] == ("203.0.113.9" if trusted else "127.0.0.1")


def test_strangers_who_send_nothing_or_too_much_do_not_stop_others(tmp_path: Path) -> None:
    with serving(tmp_path) as server, contextlib.ExitStack() as stack:
        host, port = server.addresses["console"].split(":")

        def connected() -> socket.socket:
            made = stack.enter_context(socket.create_connection((host, int(port))))
            made.settimeout(SECONDS_MAX)
            return made

        silent = [connected() for _ in range(50)]
        for each in silent[::2]:
            each.sendall(b"GET /login HTTP/1.1\r\nHost: x\r\n")
        long = connected()
        with contextlib.suppress(OSError):
            long.sendall(b"GET /login HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
            assert b"200" not in long.recv(100)
        garbage = connected()
        garbage.sendall(b"\x16\x03\x01" + b"\x00" * 100 + b"\r\n\r\n")
        assert b"400" in garbage.recv(100)
        assert httpx.get(f"http://{host}:{port}/health", timeout=SECONDS_MAX).text == "ok\n"
        server.stop()
    assert "Traceback" not in server.log.read_text()


def test_connections_that_are_reset_at_once_take_no_room(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        host, port = server.addresses["console"].split(":")
        reset_at_once(int(port), 2 * server_module.CONNECTIONS_MAX, host)

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                url = f"http://{host}:{port}/health"
                return httpx.get(url, timeout=SECONDS_MAX).text == "ok\n"
            return False

        wait_until(answers)
        server.stop()
    assert "Traceback" not in server.log.read_text()


async def test_a_connection_that_sends_no_whole_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS_MAX", 0.3)
    settings = ConsoleSettings(
        name_server="127.0.0.1:1", users=users_file(tmp_path), history=None, port=0
    )
    server = ConsoleServer(Console(settings))
    await server.start()
    try:
        host, port = server.address.split(":")
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            async with asyncio.timeout(SECONDS_MAX):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
        base = f"http://{server.address}"
        async with httpx.AsyncClient(base_url=base, timeout=SECONDS_MAX) as client:
            assert (await client.get("/health")).text == "ok\n"
    finally:
        await server.stop()


def test_a_console_that_others_reach_in_the_clear_is_refused(tmp_path: Path) -> None:
    given = ("--users", users_file(tmp_path), "--history", tmp_path / "h")
    refused = kerolox("console", *given, "--host", "0.0.0.0", "--port", 0)
    assert refused.returncode == 1
    assert "in the clear" in refused.stderr
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    refused = kerolox("console", *given, "--tls-certificate", broken, "--tls-key", broken)
    assert refused.returncode == 1
    assert "no usable certificate" in refused.stderr
