"""Who may connect to a server with TLS, what others learn, and sessions that go on."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from typing import Any

import pytest
from tests.support.eventually import until
from tests.support.servers.tls import Authority
from tests.unit.remoting.tls.serving import (
    asking,
    client_context,
    connected,
    files_of,
    serving,
)

from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import RemotingServer


async def refused(server: RemotingServer, context: ssl.SSLContext) -> None:
    with pytest.raises((OSError, ssl.SSLError, asyncio.IncompleteReadError)):
        async with connected(server, context) as peer:
            await peer.ask()


def talk(port: int, context: ssl.SSLContext, session: Any = None) -> tuple[bool, Any]:
    """One request in a connection that goes on with a session; its own session after it."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure,
    ):
        secure.sendall(RemotingCommand(1, body=b"x").encode())
        assert secure.recv(1 << 16)
        return bool(secure.session_reused), secure.session


async def test_an_enforcing_port_closes_plain_text_and_says_why(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tls_server_mode="enforcing", **files_of(authority)) as server:
        async with connected(server) as peer:
            peer.send()
            assert await peer.at_end()
        async with connected(server, client_context(authority)) as peer:
            assert (await peer.ask()).body == b"x"
    assert "it speaks no TLS, and tls.server.mode=enforcing; switch TLS on" in caplog.text


async def test_a_server_in_test_mode_makes_its_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server, connected(server, client_context()) as peer:
        assert (await peer.ask()).body == b"x"
    assert "clients that check certificates refuse it" in caplog.text


async def test_without_a_certificate_and_the_package_tls_is_refused_with_advice(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    async with serving() as server:
        for _ in range(2):
            await refused(server, client_context())
        async with connected(server) as peer:
            assert (await peer.ask()).body == b"x"
    assert "pip install 'kerolox[tls]', or set tls.server.mode=disabled" in caplog.text


async def test_the_subject_of_a_clients_certificate_is_known(authority: Authority) -> None:
    async with serving(**files_of(authority), **asking(authority)) as server:
        show = authority.files("client")
        async with connected(server, client_context(authority, show)) as peer:
            subject = (await peer.ask()).remark or ""
            assert "O=trustme" in subject
            assert subject == server.connections[0].certificate_subject


async def test_clients_without_a_good_certificate_are_refused_with_the_reason(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(**files_of(authority), **asking(authority)) as server:
        for show, reason in (
            (None, "it showed no certificate, which tls.server.need.client.auth=require"),
            (stranger.files("client"), "signed by nobody that is trusted here"),
            (authority.files("late", expired=True), "its certificate is not valid any more"),
        ):
            caplog.clear()
            await refused(server, client_context(authority, show))
            await until(lambda reason=reason: reason in caplog.text, what="a line in the log")
        assert server.tls is not None
        assert server.tls.handshakes.counters.failed == 3


async def test_an_optional_certificate_may_be_missing_but_not_wrong(
    authority: Authority, stranger: Authority
) -> None:
    async with serving(**files_of(authority), **asking(authority, "optional")) as server:
        async with connected(server, client_context(authority)) as peer:
            assert not (await peer.ask()).remark
        async with connected(server, client_context(authority, authority.files("c"))) as peer:
            assert (await peer.ask()).remark
        await refused(server, client_context(authority, stranger.files("c")))


async def test_a_wish_that_nobody_would_check_asks_nobody_and_warns(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"tls_server_need_client_auth": "require", **files_of(authority)}
    async with serving(**settings) as server, connected(server, client_context(authority)) as peer:
        assert (await peer.ask()).body == b"x"
    assert "without tls.server.authClient=true nobody checks" in caplog.text


async def test_a_client_that_does_not_trust_the_server_is_told_of(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    said = "it does not trust who signed our certificate"
    async with serving(**files_of(authority)) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(talk, server.port, client_context(stranger))
        await until(lambda: said in caplog.text, what="a line in the log")


async def test_versions_before_1_2_are_refused_with_the_reason(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    old = client_context(authority)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with serving(**files_of(authority)) as server:
        await refused(server, old)
        await until(lambda: "it speaks TLS 1.1 or older" in caplog.text, what="a line in the log")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("has_tickets", [True, False])
@pytest.mark.parametrize("shows", [False, True])
async def test_a_session_goes_on_in_the_next_connection(
    authority: Authority, version: ssl.TLSVersion, has_tickets: bool, shows: bool
) -> None:
    show = authority.files("client") if shows else None
    context = client_context(authority, show)
    context.minimum_version = context.maximum_version = version
    if not has_tickets:
        context.options |= ssl.OP_NO_TICKET
    wish = asking(authority) if shows else {}
    async with serving(**files_of(authority), **wish) as server:
        is_reused, session = await asyncio.to_thread(talk, server.port, context)
        assert not is_reused
        is_reused, _ = await asyncio.to_thread(talk, server.port, context, session)
        assert is_reused
        assert server.tls is not None
        counters = server.tls.handshakes.counters
        assert (counters.done, counters.resumed) == (2, 1)


async def test_nothing_is_compressed_and_no_client_renegotiates(authority: Authority) -> None:
    older = client_context(authority)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(**files_of(authority)) as server, connected(server, older) as peer:
        assert (await peer.ask()).body == b"x"
        made = server.connections[0]._transport.get_extra_info("ssl_object")
        assert made.context.options & ssl.OP_NO_RENEGOTIATION
        assert made.compression() is None
