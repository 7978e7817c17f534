"""TLS of our servers, each mode of it, and the clients of each language as they are.

A case's outcome is what RocketMQ's own servers have: the same client does the same with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.client import ProducerSettings, TlsSettings, sync
from kerolox.errors import KeroloxError
from kerolox.message import Message
from kerolox.security.tls import Tls
from tests.interop.secured import OK, Cases, go_cases, java_cases
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.clusters import QUICK_CHECKS
from tests.support.servers.tls import Authority, locked
from tests.support.servers.up import Up

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("tls")]

HERE = "127.0.0.1"
TOPIC = "Secured"
PASSWORD = "of-the-key"


class Certificates:
    """What servers and clients have: files by name."""

    def __init__(self, folder: Path) -> None:
        for name in ("trusted", "stranger"):
            (folder / name).mkdir()
        self.trusted, self.stranger = (Authority(folder / name) for name in ("trusted", "stranger"))
        self.here = self.trusted.files(HERE)
        self.expired = self.trusted.files("expired-127.0.0.1", expired=True)
        self.elsewhere = self.trusted.files("broker.example")
        self.client = self._of_client(self.trusted)
        self.unknown = self._of_client(self.stranger)
        self.locked = self.client[0], folder / "locked.key"
        self.locked[1].write_bytes(locked(self.client[1], PASSWORD.encode()))

    @staticmethod
    def _of_client(authority: Authority) -> tuple[Path, Path]:
        """With a key as Java reads it."""
        certificate, key = authority.files("client")
        return certificate, authority.readable_key(key)


class Servers:
    """Name servers and brokers by kind; each is started when it is first asked for."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self._folder = folder
        self._certificates = certificates
        self._running: dict[str, Up] = {}

    def __call__(self, kind: str) -> Up:
        if kind not in self._running:
            settings = {f"tls.{name}": value for name, value in self._settings(kind).items()}
            self._running[kind] = Up(self._folder / kind, settings=settings | QUICK_CHECKS).start()
        return self._running[kind]

    def stop(self) -> None:
        for each in self._running.values():
            each.stop()

    def _settings(self, kind: str) -> dict[str, object]:
        made = self._certificates
        files = {"expired": made.expired, "elsewhere": made.elsewhere}.get(kind, made.here)
        if kind == "disabled":
            return {"server.mode": kind}
        settings: dict[str, object] = {
            "server.mode": "permissive" if kind == "permissive" else "enforcing",
            "server.certPath": files[0],
            "server.keyPath": files[1],
        }
        if kind in ("optional", "require"):
            settings |= {
                "server.need.client.auth": kind,
                "server.authClient": "true",
                "server.trustCertPath": made.trusted.ca,
                "client.certPath": made.client[0],
                "client.keyPath": made.client[1],
            }
        return settings


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp("servers"), certificates)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def java() -> Iterator[Cases]:
    with java_cases() as cases:
        yield cases


@pytest.fixture(scope="module")
def go() -> Iterator[Cases]:
    with go_cases() as cases:
        yield cases


class Case:
    """A server, a client, and what both say.

    Args:
        server: its kind.
        client: how it speaks: ``plain``, ``unchecked`` (it believes any server), ``trusting`` (it
            checks the server), ``mistaken`` (it trusts another authority).
        shows: its certificate: none, ``client``, ``locked`` (the key is encrypted), ``unknown``
            (nobody trusts it).
        ours: what our client says; empty: it works. Java's works where ours does, but where
            ``java`` says otherwise.
        told: what the server logs, a regular expression.
    """

    def __init__(
        self,
        server: str,
        client: str,
        shows: str = "",
        ours: str = "",
        told: str = "",
        *,
        java: bool | None = None,
    ) -> None:
        self.server, self.client, self.shows = server, client, shows
        self.ours, self.told = ours, told
        self.java = not ours if java is None else java

    def __repr__(self) -> str:
        return "-".join(filter(None, (self.server, self.client, self.shows)))

    def tls(self, made: Certificates) -> Tls:
        """That of our client."""
        if self.client == "plain":
            return False
        certificate, key = getattr(made, self.shows) if self.shows else (None, None)
        return TlsSettings(
            ca=(made.stranger if self.client == "mistaken" else made.trusted).ca,
            certificate=certificate,
            key=key,
            key_password=PASSWORD if self.shows == "locked" else None,
            verify=self.client != "unchecked",
        )

    def words(self, made: Certificates) -> dict[str, object]:
        """The same for the Java client."""
        tls = self.tls(made)
        if not isinstance(tls, TlsSettings):
            return {"tls": False}
        words: dict[str, object] = {"tls": True, "authServer": tls.verify, "trust": tls.ca}
        shown = {"cert": tls.certificate, "key": tls.key, "password": tls.key_password}
        return words | {name: value for name, value in shown.items() if value is not None}


NO_TLS = "it does not speak TLS"
UNTRUSTED = "signed by nobody that is trusted here"
REFUSES_OURS = "closed the connection during the TLS handshake|refuses our|does not trust"
"""What the server makes of a client that likes no certificate of its."""
CASES = [
    Case("disabled", "plain"),
    Case("disabled", "trusting", ours=NO_TLS, told="TLS"),
    Case("permissive", "plain"),
    Case("permissive", "unchecked"),
    Case("permissive", "trusting"),
    Case("permissive", "mistaken", ours=UNTRUSTED, told=REFUSES_OURS),
    Case("enforcing", "plain", ours="TLS only", told="it speaks no TLS"),
    Case("enforcing", "unchecked"),
    Case("enforcing", "trusting"),
    Case("enforcing", "trusting", "client"),
    Case("enforcing", "mistaken", ours=UNTRUSTED, told=REFUSES_OURS),
    Case("optional", "trusting"),
    Case("optional", "trusting", "client"),
    Case("optional", "trusting", "unknown", ours="refuses our side", told="no TLS connection"),
    Case("require", "trusting", ours="certificate of ours", told="no TLS connection"),
    Case("require", "trusting", "client"),
    Case("require", "trusting", "locked"),
    Case("require", "unchecked", "client"),
    Case("require", "trusting", "unknown", ours="refuses our side", told="no TLS connection"),
    Case("expired", "trusting", ours="not valid any more", told=REFUSES_OURS),
    Case("expired", "unchecked"),
    # Java's client examines no name.
    Case("elsewhere", "trusting", ours="for another name", told=REFUSES_OURS, java=True),
    Case("elsewhere", "unchecked"),
]


def tried(up: Up, tls: Tls) -> str:
    """A send of ours: what went wrong."""
    settings = ProducerSettings(tls=tls, retries=0, send_timeout_ms=int(SECONDS_MAX * 1000))
    try:
        with sync.Producer("ours", up.namesrv, settings=settings) as producer:
            producer.send(Message(TOPIC, b"x"))
    except KeroloxError as error:
        return str(error)
    return ""


def told(up: Up, since: int) -> str:
    """What the servers logged from a place on."""
    return up.log.read_text()[since:]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_our_client_and_server_agree_or_both_say_why(
    case: Case, servers: Servers, certificates: Certificates
) -> None:
    up = servers(case.server)
    since = len(up.log.read_text())
    outcome = tried(up, case.tls(certificates))
    if not case.ours:
        assert outcome == ""
        return
    assert case.ours in outcome
    wait_until(lambda: re.search(case.told, told(up, since)), what=f"a line with {case.told!r}")


@pytest.mark.java
@pytest.mark.parametrize(
    # Its Netty opens no key that is encrypted in today's way (PBES2).
    "case",
    [case for case in CASES if case.shows != "locked"],
    ids=repr,
)
def test_the_java_client_works_where_it_does_with_its_own_servers(
    case: Case, servers: Servers, certificates: Certificates, java: Cases
) -> None:
    up = servers(case.server)
    since = len(up.log.read_text())
    # Where nothing can come it need not wait for a busy machine.
    patience = {} if case.java else {"timeout": 3_000}
    words = case.words(certificates) | patience
    outcome = java("send", namesrv=up.namesrv, topic=TOPIC, **words)
    assert (outcome == OK) is case.java, outcome
    if not case.java:
        wait_until(lambda: re.search(case.told, told(up, since)), what=f"a line with {case.told!r}")


@pytest.mark.go
@pytest.mark.parametrize(
    ("server", "tls", "works"),
    [
        ("disabled", False, True),
        ("disabled", True, False),
        ("permissive", False, True),
        ("permissive", True, True),
        ("enforcing", False, False),
        ("enforcing", True, True),
        ("optional", True, True),
        ("require", True, False),
        ("expired", True, True),
    ],
)
def test_the_go_client_speaks_tls_as_it_is_told(
    server: str, tls: bool, works: bool, servers: Servers, go: Cases
) -> None:
    outcome = go("send", namesrv=servers(server).namesrv, topic=TOPIC, tls=tls)
    assert (outcome == OK) is works, outcome


@pytest.mark.java
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_java_client_does_all_on_one_port(
    tls: bool, servers: Servers, certificates: Certificates, java: Cases
) -> None:
    given: dict[str, Any] = {"tls": tls, "authServer": True, "trust": certificates.trusted.ca}
    up = servers("permissive")
    assert java("all", namesrv=up.namesrv, topic=f"All-{tls}", group=f"all-{tls}", **given) == OK


@pytest.mark.go
def test_the_go_client_does_all_with_tls(servers: Servers, go: Cases) -> None:
    up = servers("enforcing")
    assert go("all", namesrv=up.namesrv, topic="GoAll", group="go-all", tls=True) == OK
