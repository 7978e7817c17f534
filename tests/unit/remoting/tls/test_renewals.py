"""Certificates that change while a server runs: in force soon, wrong ones never, nobody notices.

``KEROLOX_TLS_RENEWALS=1000`` makes it longer.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.tls import Authority, locked
from tests.unit.remoting.tls.serving import client_context, connected, serving

from kerolox.namesrv.config import NamesrvConfig
from kerolox.remoting.server import RemotingServer
from kerolox.remoting.tls.watching import DAY_SECONDS, CertificateWatch
from kerolox.security.server.contexts import ServerFiles

RENEWALS = int(os.environ.get("KEROLOX_TLS_RENEWALS", "30"))
WATCH = 0.01


class Place:
    """Where a server's certificate and key lie."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.authority = authority
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.put("127.0.0.1")

    @property
    def settings(self) -> dict[str, str]:
        return {
            "tls_server_cert_path": str(self.certificate),
            "tls_server_key_path": str(self.key),
        }

    def put(self, name: str) -> None:
        """Have a new certificate for a name."""
        certificate, key = self.authority.files(name)
        for file, source in ((self.certificate, certificate), (self.key, key)):
            shutil.copy(source, file)


@pytest.fixture
def place(authority: Authority, tmp_path: Path) -> Place:
    return Place(authority, tmp_path)


async def certificate_of(server: RemotingServer) -> bytes:
    async with connected(server, client_context()) as peer:
        shown = peer.writer.get_extra_info("ssl_object").getpeercert(True)
        assert (await peer.ask()).body == b"x"
        return bytes(shown)


async def until_another(server: RemotingServer, before: bytes) -> None:
    """Wait until new connections get another certificate."""
    async with asyncio.timeout(SECONDS_MAX):
        while await certificate_of(server) == before:
            pass


async def test_a_renewed_certificate_is_in_force_and_named(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        serving(watch_seconds=WATCH, **place.settings) as server,
        connected(server, client_context(place.authority)) as old,
    ):
        await old.ask()
        before = await certificate_of(server)
        place.put("127.0.0.1")

        await until_another(server, before)
        assert (await old.ask()).body == b"x"
    lines = [line for line in caplog.messages if "new connections get the certificate" in line]
    assert len(lines) == 2
    assert "O=trustme" in lines[1]


async def test_many_renewals_under_load_lose_no_request(place: Place) -> None:
    """Connections that are there, and such as come, all with a full handshake."""
    async with serving(watch_seconds=WATCH, **place.settings) as server:
        is_over = asyncio.Event()
        asked = 0

        async def stay() -> None:
            nonlocal asked
            async with connected(server, client_context(place.authority)) as peer:
                while not is_over.is_set():
                    assert (await peer.ask()).body == b"x"
                    asked += 1

        async def come_and_go() -> None:
            nonlocal asked
            while not is_over.is_set():
                async with connected(server, client_context(place.authority)) as peer:
                    assert (await peer.ask()).body == b"x"
                    asked += 1

        work = [asyncio.ensure_future(each) for each in (stay(), stay(), come_and_go())]
        assert server.tls is not None
        watch = server.tls._watch
        assert watch is not None
        for index in range(RENEWALS):
            before = watch._in_force
            if index % 10 == 0:
                certificate, key = place.authority.files("127.0.0.1")
            # The same certificate with another comment counts as renewed, too.
            place.certificate.write_bytes(certificate.read_bytes() + b"# %d\n" % index)
            shutil.copy(key, place.key)
            await until(lambda before=before: watch._in_force != before, what="the new one")
        is_over.set()
        await asyncio.gather(*work)
        assert asked > 3
        assert server.tls.handshakes.counters.failed == 0


WRONG = {
    "cut": lambda place: place.certificate.write_bytes(place.certificate.read_bytes()[:200]),
    "empty": lambda place: place.key.write_bytes(b""),
    "gone": lambda place: place.key.unlink(),
    "other key": lambda place: shutil.copy(place.authority.files("other")[1], place.key),
    "binary": lambda place: place.certificate.write_bytes(bytes(range(256)) * 99),
    "zeros": lambda place: place.key.write_bytes(bytes(4096)),
    "large": lambda place: place.key.write_bytes(bytes(2 << 20)),
    "locked": lambda place: place.key.write_bytes(locked(place.key, b"no-password-given")),
    "folder": lambda place: (place.key.unlink(), place.key.mkdir()),
    "pipe": lambda place: (place.certificate.unlink(), os.mkfifo(place.certificate)),
    "link to nowhere": lambda place: (place.key.unlink(), place.key.symlink_to("away")),
    "link to itself": lambda place: (place.key.unlink(), place.key.symlink_to(place.key.name)),
    "device": lambda place: (place.certificate.unlink(), place.certificate.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_file_leaves_the_old_one_in_force_with_one_error(
    place: Place, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(watch_seconds=WATCH, **place.settings) as server:
        before = await certificate_of(server)
        WRONG[kind](place)
        await until(lambda: "TLS goes on with the certificate" in caplog.text, what="an error")
        for _ in range(10):
            assert await certificate_of(server) == before
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert str(place.certificate.parent) in errors[0].getMessage()
        for each in (place.certificate, place.key):
            each.rmdir() if each.is_dir() else each.unlink(missing_ok=True)
        place.put("127.0.0.1")
        await until_another(server, before)


async def test_what_expires_soon_is_told_at_the_start_and_daily(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    files = ServerFiles.of(_settings(place))
    _, info = files.load()
    now = info.valid_until - 20 * 86_400
    contexts: list[ssl.SSLContext] = []
    watch = CertificateWatch(files, contexts.append, clock=lambda: now)
    watch.start(WATCH)
    try:
        told = "is valid for 20 more days; renew it"
        assert caplog.text.count(told) == 1
        now += DAY_SECONDS
        await until(lambda: "is valid for 19 more days" in caplog.text, what="the next day")
        now += 30 * DAY_SECONDS
        await until(lambda: "is not valid any more" in caplog.text, what="the end")
        assert len(set(contexts)) == 3
    finally:
        await watch.stop()


async def test_what_is_not_valid_yet_serves_and_is_told(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    files = ServerFiles.of(_settings(place))
    _, info = files.load()
    contexts: list[ssl.SSLContext] = []
    watch = CertificateWatch(files, contexts.append, clock=lambda: info.valid_from - 1)
    watch.start(WATCH)
    await watch.stop()
    assert len(contexts) == 1
    assert caplog.text.count("is not valid yet, and clients that check it refuse it") == 1


def _settings(place: Place) -> NamesrvConfig:
    return NamesrvConfig(**place.settings)


def test_the_expiry_is_the_one_of_the_certificate(place: Place) -> None:
    _, info = ServerFiles.of(_settings(place)).load()
    made = x509.load_pem_x509_certificates(place.certificate.read_bytes())[0]
    assert datetime.datetime.fromtimestamp(info.valid_until, datetime.UTC) == (
        made.not_valid_after_utc
    )
