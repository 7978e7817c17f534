"""Connections with TLS, of both kinds and on both loops, and what is said when there is none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.eventually import SECONDS_MAX
from tests.support.faults.cancelling import each_await
from tests.support.servers.tls import Authority, TlsProxy, locked, wait_closed
from tests.support.servers.up import deaf_address

from kerolox.errors import ClientClosedError, ConfigError, ConnectError, ConnectionLostError
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.blocking import BlockingConnection
from kerolox.remoting.client import RemotingClient
from kerolox.remoting.client_connection import ClientConnection
from kerolox.remoting.server import RemotingServer, ServerConnection
from kerolox.security.contexts import TlsContexts
from kerolox.security.tls import ResumingContext, Tls, TlsSettings

ECHO = 1
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


async def echo(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
    return command.response(0, body=command.body)


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """A server without TLS, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = RemotingServer(echo, host="127.0.0.1", port=0)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(SECONDS_MAX)
    yield f"127.0.0.1:{server.port}"
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(SECONDS_MAX)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(SECONDS_MAX)
    loop.close()


@pytest.fixture(scope="module")
def proxy(authority: Authority, plain: str) -> Iterator[TlsProxy]:
    with TlsProxy(authority.server(), plain) as made:
        yield made


@contextmanager
def silent_address() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def client_of(tls: Tls, **settings: Any):
    client = RemotingClient(**{"tls": tls, "connect_timeout_seconds": SECONDS_MAX, **settings})
    try:
        yield client
    finally:
        await client.close()


async def ask(client: RemotingClient, address: str, body: bytes = b"") -> bytes:
    request = RemotingCommand.request(ECHO, body=body)
    return (await client.invoke(address, request, timeout_seconds=SECONDS_MAX)).body


def ask_blocking(address: str, tls: Tls, body: bytes = b"") -> bytes:
    with BlockingConnection(address, tls=tls, connect_timeout_seconds=SECONDS_MAX) as connection:
        request = RemotingCommand.request(ECHO, body=body)
        return connection.invoke(request, SECONDS_MAX).body


def ask_both(address: str, tls: Tls, error: type[Exception] = ConnectError) -> list[str]:
    """The errors of either kind of client."""

    async def asked() -> None:
        async with client_of(tls) as client:
            await ask(client, address)

    with pytest.raises(error) as one:
        asyncio.run(asked())
    with pytest.raises(error) as other:
        ask_blocking(address, tls)
    return [str(one.value), str(other.value)]


def run_on(make_loop: MakeLoop, main: Coroutine[object, None, None]) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_frames_of_many_records_come_and_go_whole(
    authority: Authority, proxy: TlsProxy, make_loop: MakeLoop
) -> None:
    bodies = [bytes([index]) * size for index, size in enumerate([0, 1, 70_000, 3_000_000] * 8)]

    async def main() -> None:
        async with client_of(TlsSettings(ca=authority.ca)) as client:
            asked = (ask(client, proxy.address, body) for body in bodies)
            assert await asyncio.gather(*asked) == bodies

    taken = proxy.taken
    run_on(make_loop, main())
    assert proxy.taken == taken + 1


def test_a_blocking_connection_speaks_tls(authority: Authority, proxy: TlsProxy) -> None:
    body = b"x" * 3_000_000
    assert ask_blocking(proxy.address, TlsSettings(ca=authority.ca), body) == body


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_close_takes_leave_and_leaves_nothing_open(
    authority: Authority, proxy: TlsProxy, make_loop: MakeLoop
) -> None:
    async def main() -> None:
        async with client_of(TlsSettings(ca=authority.ca)) as client:
            await ask(client, proxy.address)
            assert proxy.open == 1
        assert client.connection(proxy.address) is None

    run_on(make_loop, main())
    wait_closed(proxy)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_close_does_not_wait_for_a_peer_that_takes_no_leave(
    authority: Authority, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("client", "connection"):
        monkeypatch.setattr(f"kerolox.remoting.{module}.CLOSE_SECONDS_MAX", 3600.0)
    closed = threading.Event()

    def serve(listener: socket.socket) -> None:
        with authority.server().wrap_socket(listener.accept()[0], server_side=True):
            closed.wait(SECONDS_MAX)

    async def main(address: str) -> None:
        client = RemotingClient(tls=TlsSettings(ca=authority.ca))
        await client.invoke_oneway(address, RemotingCommand.request(ECHO))
        async with asyncio.timeout(SECONDS_MAX):
            await client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        try:
            run_on(make_loop, main(f"127.0.0.1:{listener.getsockname()[1]}"))
        finally:
            closed.set()
            thread.join(SECONDS_MAX)


async def test_a_context_of_ones_own_is_taken_as_it_is(
    authority: Authority, proxy: TlsProxy
) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca))
    async with client_of(context) as client:
        assert await ask(client, proxy.address, b"x") == b"x"


async def test_a_client_shows_its_certificate_where_one_is_asked_for(
    authority: Authority, plain: str, tmp_path: Path
) -> None:
    certificate, key = authority.files("client")
    whole = tmp_path / "whole.pem"
    whole.write_bytes(certificate.read_bytes() + key.read_bytes())
    with TlsProxy(authority.server(asks_client=True), plain) as proxy:
        for files in ({"certificate": certificate, "key": key}, {"certificate": whole}):
            async with client_of(TlsSettings(ca=authority.ca, **files)) as client:
                assert await ask(client, proxy.address, b"x") == b"x"


def test_a_server_that_hangs_up_after_the_handshake_is_told(
    authority: Authority, plain: str
) -> None:
    # With TLS 1.3 it has not seen then that a certificate is missing.
    with TlsProxy(authority.server(asks_client=True), plain) as proxy:
        for text in ask_both(proxy.address, TlsSettings(ca=authority.ca), ConnectionLostError):
            assert "does it want a certificate of ours (TlsSettings.certificate" in text


def test_the_alert_that_a_certificate_is_missing_is_told(authority: Authority) -> None:
    context = authority.server(asks_client=True)

    def refuse(listener: socket.socket) -> None:
        for _ in range(2):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            shaking = context.wrap_bio(incoming, outgoing, server_side=True)
            with listener.accept()[0] as taken:
                while data := taken.recv(65536):
                    incoming.write(data)
                    with contextlib.suppress(ssl.SSLError):
                        shaking.do_handshake()
                    taken.sendall(outgoing.read())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=[listener])
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for text in ask_both(address, TlsSettings(ca=authority.ca), ConnectionLostError):
            assert "alert certificate required" in text
            assert "does it want a certificate of ours (TlsSettings.certificate)" in text
        thread.join(SECONDS_MAX)


def test_an_unknown_authority_is_told(stranger: Authority, proxy: TlsProxy) -> None:
    for text in ask_both(proxy.address, TlsSettings(ca=stranger.ca)):
        assert f"no TLS connection to {proxy.address}" in text
        assert "signed by nobody that is trusted here" in text
        assert "TlsSettings.ca, tls.client.trustCertPath" in text


def test_the_authorities_of_the_system_count_without_a_file(proxy: TlsProxy) -> None:
    assert all("signed by nobody" in text for text in ask_both(proxy.address, True))


def test_a_certificate_of_yesterday_is_told(authority: Authority, plain: str) -> None:
    with TlsProxy(authority.server("127.0.0.1", expired=True), plain) as proxy:
        for text in ask_both(proxy.address, TlsSettings(ca=authority.ca)):
            assert "not valid any more" in text


def test_a_certificate_for_another_host_is_told_or_taken(authority: Authority, plain: str) -> None:
    with TlsProxy(authority.server("broker.example"), plain) as proxy:
        for text in ask_both(proxy.address, TlsSettings(ca=authority.ca)):
            assert "its certificate is for another name" in text
            assert "check_host_name" in text
        unnamed = TlsSettings(ca=authority.ca, check_host_name=False)
        assert ask_blocking(proxy.address, unnamed, b"x") == b"x"


def test_without_verification_any_certificate_is_taken(authority: Authority, plain: str) -> None:
    with TlsProxy(authority.server("broker.example", expired=True), plain) as proxy:
        assert ask_blocking(proxy.address, TlsSettings(verify=False), b"x") == b"x"


def test_a_port_without_tls_is_told(authority: Authority, plain: str) -> None:
    for text in ask_both(plain, TlsSettings(ca=authority.ca)):
        assert f"no TLS connection to {plain}" in text
        assert "does not speak TLS" in text


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "it speaks TLS; set tls in the settings"),
        (b"", "it said nothing; does it take TLS only"),
    ],
)
async def test_a_client_without_tls_is_told_of_a_server_that_wants_it(
    said: bytes, complaint: str
) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, client_of(False) as client:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLostError, match=complaint):
            await ask(client, f"127.0.0.1:{port}")


def test_a_port_that_nobody_listens_on_is_told_as_ever(authority: Authority) -> None:
    with deaf_address() as address:
        for text in ask_both(address, TlsSettings(ca=authority.ca)):
            assert "Connection refused" in text
            assert "TLS" not in text


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_handshake_that_nobody_answers_ends_in_the_time_of_a_connection(
    authority: Authority, make_loop: MakeLoop
) -> None:
    async def main(address: str) -> None:
        tls = TlsSettings(ca=authority.ca)
        async with client_of(tls, connect_timeout_seconds=0.05) as client:
            with pytest.raises(ConnectError, match="the TLS handshake included"):
                await ask(client, address)

    with silent_address() as address:
        run_on(make_loop, main(address))
        with pytest.raises(ConnectError, match=r"no TLS connection to .* within 0\.05 s"):
            BlockingConnection(address, tls=True, connect_timeout_seconds=0.05)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_close_ends_a_handshake_and_its_socket(authority: Authority, make_loop: MakeLoop) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun, ended = loop.create_future(), loop.create_future()

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun.set_result(await reader.read(1))
            try:
                while await reader.read(4096):
                    pass
            finally:
                ended.set_result(None)
                writer.close()

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with client_of(TlsSettings(ca=authority.ca)) as client:
            asking = asyncio.ensure_future(ask(client, address))
            assert await begun == b"\x16"
            await client.close()
            with pytest.raises(ClientClosedError):
                await asking
            async with asyncio.timeout(SECONDS_MAX):
                await ended
        server.close()

    run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_request_that_is_cancelled_anywhere_leaves_a_working_client(
    authority: Authority, proxy: TlsProxy, make_loop: MakeLoop
) -> None:
    """The handshake is among its awaits."""

    async def main() -> None:
        async def attempt() -> tuple[Coroutine[Any, Any, Any], Callable[[], Awaitable[None]]]:
            client = RemotingClient(tls=TlsSettings(ca=authority.ca))

            async def check() -> None:
                assert await ask(client, proxy.address, b"x") == b"x"
                await client.close()

            return ask(client, proxy.address), check

        assert await each_await(attempt) >= 2

    run_on(make_loop, main())
    wait_closed(proxy)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_client_closed_as_a_handshake_ends_leaves_no_open_socket(
    authority: Authority, proxy: TlsProxy, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS would wait for the peer's last word, for which no loop runs any more."""

    async def main() -> None:
        client = RemotingClient(tls=TlsSettings(ca=authority.ca))
        made: list[ClientConnection] = []
        closing: list[asyncio.Task[None]] = []

        class Connection(ClientConnection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                made.append(self)
                closing.append(self.loop.create_task(client.close()))

        monkeypatch.setattr("kerolox.remoting.client.ClientConnection", Connection)
        with pytest.raises(ClientClosedError):
            await ask(client, proxy.address)
        await closing[0]
        assert made[0].gone.done()

    run_on(make_loop, main())


async def test_one_who_gives_up_does_not_end_the_handshake_of_others(
    authority: Authority, proxy: TlsProxy
) -> None:
    async with client_of(TlsSettings(ca=authority.ca)) as client:
        asking = [asyncio.ensure_future(ask(client, proxy.address, b"x")) for _ in range(2)]
        await asyncio.sleep(0)
        asking[0].cancel()
        assert await asking[1] == b"x"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ca": "nowhere.pem"}, "can't use ca in .*nowhere.pem: No such file"),
        ({"ca": "empty.pem"}, "can't use ca in .*empty.pem"),
        ({"certificate": "nowhere.pem"}, "can't use certificate and key in .*nowhere.pem"),
        ({"certificate": "good.pem", "key": "other.key"}, "key values mismatch"),
        ({"certificate": "good.pem", "key": "locked.key"}, "locked.key is encrypted; give its"),
        (
            {"certificate": "good.pem", "key": "locked.key", "key_password": "wrong-one"},
            "can't use certificate and key in .*locked.key",
        ),
    ],
)
def test_a_file_that_can_not_be_used_is_named(
    authority: Authority, tmp_path: Path, settings: dict[str, str], complaint: str
) -> None:
    certificate, key = authority.files("client")
    (tmp_path / "good.pem").write_bytes(certificate.read_bytes())
    (tmp_path / "other.key").write_bytes(authority.files("another")[1].read_bytes())
    (tmp_path / "locked.key").write_bytes(locked(key, b"right-one"))
    (tmp_path / "empty.pem").write_bytes(b"")
    given = {n: v if n == "key_password" else str(tmp_path / v) for n, v in settings.items()}
    with pytest.raises(ConfigError, match=complaint) as caught:
        RemotingClient(tls=TlsSettings(**given))
    assert "wrong-one" not in str(caught.value)


def test_an_encrypted_key_opens_with_its_password(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.files("client")
    (tmp_path / "locked.key").write_bytes(locked(key, b"right-one"))
    tls = TlsSettings(
        certificate=certificate, key=tmp_path / "locked.key", key_password="right-one"
    )
    assert tls.context().get_ca_certs() is not None
    assert "right-one" not in repr(tls)


@pytest.mark.parametrize(
    ("tls", "complaint"),
    [
        ("yes", "tls is a str; it must be True, False, TlsSettings or ssl.SSLContext"),
        (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "a context for servers"),
    ],
)
def test_what_is_no_tls_is_refused(tls: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        RemotingClient(tls=tls)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ConfigError, match="no certificate"):
        TlsSettings(key="key.pem")


def test_rocketmqs_file_of_tls_settings_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(
        "tls.test.mode.enable=false\n"
        "tls.client.trustCertPath=/etc/ca.pem\ntls.client.certPath=/etc/c.pem\n"
        "tls.client.keyPath=/etc/c.key\ntls.client.keyPassword=right-one\n"
        "tls.client.authServer=false\ntls.server.certPath=/etc/s.pem\n"
    )
    assert TlsSettings.from_file(path) == TlsSettings(
        ca="/etc/ca.pem",
        certificate="/etc/c.pem",
        key="/etc/c.key",
        key_password="right-one",
        verify=False,
    )
    path.write_text("tls.client.checkHostName=false\n")
    assert TlsSettings.from_file(path) == TlsSettings(check_host_name=False)
    with pytest.raises(ConfigError, match=r"can't read TLS settings from .*gone"):
        TlsSettings.from_file(tmp_path / "gone")


@pytest.mark.parametrize("make_loop", LOOPS)
def test_the_next_connection_goes_on_with_the_session_of_the_last(
    authority: Authority, plain: str, make_loop: MakeLoop
) -> None:
    contexts = TlsContexts(TlsSettings(ca=authority.ca))

    async def is_resumed(address: str) -> bool:
        async with client_of(contexts) as client:
            await ask(client, address)
            connection = client.connection(address)
            assert connection is not None
            used = connection._transport.get_extra_info("ssl_object")
            return bool(used.session_reused)

    async def main() -> None:
        with TlsProxy(authority.server(), plain) as proxy:
            assert not await is_resumed(proxy.address)
            assert await is_resumed(proxy.address)
        # Another server of the same host knows nothing of it.
        with TlsProxy(authority.server(), plain) as proxy:
            assert not await is_resumed(proxy.address)
            assert await is_resumed(proxy.address)

    run_on(make_loop, main())


def test_a_blocking_connection_goes_on_with_the_session_of_the_last(
    authority: Authority, proxy: TlsProxy
) -> None:
    context = TlsSettings(ca=authority.ca).context()
    reused = []
    for _ in range(2):
        with BlockingConnection(proxy.address, tls=context) as connection:
            connection.invoke(RemotingCommand.request(ECHO), SECONDS_MAX)
            used = connection._socket
            assert isinstance(used, ssl.SSLSocket)
            reused.append(used.session_reused)
    assert reused == [False, True]


def test_sessions_of_few_hosts_are_kept(
    authority: Authority, proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.security.tls.SESSIONS_MAX", 2)
    context = TlsSettings(verify=False).context()
    for name in ("localhost", "127.0.0.1", "127.0.0.1"):
        with BlockingConnection(
            f"{name}:{proxy.address.rpartition(':')[2]}", tls=context
        ) as connection:
            connection.invoke(RemotingCommand.request(ECHO), SECONDS_MAX)
    monkeypatch.setattr("kerolox.security.tls.SESSIONS_MAX", 1)
    ask_blocking(proxy.address, context)
    assert isinstance(context, ResumingContext)
    assert context.session_of("localhost") is None
    assert context.session_of("127.0.0.1") is not None
