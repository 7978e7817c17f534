"""What can be wrong between a client and a server: names, ports, TLS, accounts, name servers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.addresses import local_address
from kerolox.admin import Admin
from kerolox.doctor.checks.paths import path_findings
from kerolox.doctor.paths import try_path
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.fastjson import dumps
from tests.doctor.patients import broker, found, name_server, named, said, wait_registered
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import kerolox
from tests.support.servers.fake_broker import FakeBroker
from tests.support.servers.tls import Authority, TlsProxy
from tests.support.servers.up import Up, deaf_address

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

SMALL = {"mappedFileSizeCommitLog": 4 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
ACCOUNTS = """
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: elsewhere
  secretKey: elsewhere-secret
  whiteRemoteAddress: 10.9.9.9
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up"), settings=SMALL) as started:
        yield started


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Stranger(socketserver.BaseRequestHandler):
    """Another program, which answers in another protocol."""

    def handle(self) -> None:
        self.request.recv(1024)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextlib.contextmanager
def stranger() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_name_that_nobody_knows_and_one_that_is_none() -> None:
    both = found("no-such-host.invalid:9876;127.0.0.1:1")
    named(said(both, "name-unknown"), "no-such-host.invalid:9876", "/etc/hosts")


def test_a_name_server_that_is_down_does_not_hide_the_other(up: Up) -> None:
    with deaf_address() as deaf:
        one = found(f"{deaf};{up.namesrv}")
    named(said(one, "unreachable", deaf), "Connection refused", "start it")
    assert len(one) == 1


def test_a_port_of_something_else_is_told_apart(up: Up) -> None:
    named(said(found(up.broker), "not-a-name-server"), "9876", "not that of a broker")
    with stranger() as other:
        named(said(found(other), "not-rocketmq", other), "look which program has the port")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        silent = found(address, "--timeout", "0.5")
        named(said(silent, "silent", address), "does not answer", "it hangs")


@pytest.mark.parametrize(
    ("name", "days", "code", "parts"),
    [
        ("127.0.0.1", -1, "tls-expired", ["not valid any more", "renew"]),
        ("127.0.0.1", 10, "tls-expires-soon", ["expires at", "renew it now"]),
        ("example.org", 400, "tls-wrong-name", ["another name", "checkHostName"]),
    ],
)
def test_a_certificate_that_is_wrong_is_named(
    up: Up, authority: Authority, tmp_path: Path, name: str, days: int, code: str, parts: list[str]
) -> None:
    config = tmp_path / "tls.properties"
    config.write_text(f"tls.client.trustCertPath={authority.ca}\n")
    with TlsProxy(authority.server(name, days=days), up.namesrv) as proxy:
        named(said(found(proxy.address, "--tls-config", config), code, proxy.address), *parts)


def test_tls_of_one_side_only_is_named(up: Up, authority: Authority, tmp_path: Path) -> None:
    with TlsProxy(authority.server(), up.namesrv) as proxy:
        named(said(found(proxy.address), "tls-needed", proxy.address), "TLS only", "--tls")
        unknown = said(found(proxy.address, "--tls"), "tls-unknown-authority", proxy.address)
        named(unknown, "nobody that is trusted", "tls.client.trustCertPath")
    with TlsProxy(authority.server(asks_client=True), up.namesrv) as proxy:
        config = tmp_path / "tls.properties"
        config.write_text(f"tls.client.trustCertPath={authority.ca}\n")
        refused = found(proxy.address, "--tls-config", config)
        named(said(refused, "not-rocketmq", proxy.address), "certificate of ours")
    with stranger() as plain:
        named(said(found(plain, "--tls"), "tls-not-spoken", plain), "tls.server.mode")


def test_an_account_that_is_denied_is_told_why(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    settings = {**SMALL, "aclEnable": "true", "aclFile": accounts}
    with Up(tmp_path / "up", settings=settings) as guarded:

        def refused(key: str, secret: str) -> dict[str, str]:
            keys = {"KEROLOX_ACCESS_KEY": key, "KEROLOX_SECRET_KEY": secret}
            return said(found(guarded.namesrv, **keys), "account-refused", guarded.broker)

        named(refused("operator", "wrong-secret"), "ignature", "secret key is not the one")
        named(refused("nobody", "some-secret"), "nobody", "no such access key")
        named(said(found(guarded.namesrv), "account-refused"), "give an account")
        given = {"KEROLOX_ACCESS_KEY": "operator", "KEROLOX_SECRET_KEY": "operator-secret"}
        assert found(guarded.namesrv, **given) == []


def test_an_interrupt_ends_it_while_a_server_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        command = [sys.executable, "-m", "kerolox.cli", "doctor", "-n", address, "--timeout", "60"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        mute.settimeout(SECONDS_MAX)
        with mute.accept()[0], mute.accept()[0] as asked:  # the try of the port, then a question
            asked.recv(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == 130


async def test_what_a_hostile_name_server_says_is_shown_and_not_obeyed() -> None:
    addresses = ["no address", "\x1b[31m:1", "host:99999", "::::", "127.0.0.1:1", "a..b:1"]
    table = {
        f"broker-{n}": {"cluster": "c", "brokerName": f"broker-{n}", "brokerAddrs": {0: address}}
        for n, address in enumerate(addresses)
    }
    body = dumps({"brokerAddrTable": table, "clusterAddrTable": {"c": list(table)}})
    async with FakeBroker() as hostile:

        async def info(command: RemotingCommand) -> RemotingCommand:
            return command.response(ResponseCode.SUCCESS, body=body)

        async def topics(command: RemotingCommand) -> RemotingCommand:
            names = dumps({"topicList": ["%RETRY%\x1b[2J", "%RETRY%" + "g" * 5000]})
            return command.response(ResponseCode.SUCCESS, body=names)

        hostile.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = info
        hostile.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = topics
        done = await asyncio.to_thread(
            kerolox, *("doctor", "-n", hostile.address, "--between-looks", "0.1", "--timeout", "2")
        )
    assert done.returncode == 1, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    for address in ("no address", "host:99999", "a..b:1", "127.0.0.1:1"):
        assert address in done.stdout
    assert done.stdout.count("name-unknown") == len(addresses) - 1


def test_a_name_server_without_brokers_is_named(tmp_path: Path) -> None:
    with name_server(tmp_path) as empty:
        address = empty.addresses["namesrv"]
        named(said(found(address), "no-broker", address), "start a broker", "namesrvAddr")


async def test_routes_that_only_one_name_server_has_are_named(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(name_server(tmp_path / name)).addresses["namesrv"]
            for name in ("one", "two")
        )
        both = f"{first};{second}"
        period = {"registerNameServerPeriod": 60_000}
        stack.enter_context(broker(tmp_path / "b", "broker-a", both, **period))
        await asyncio.to_thread(wait_registered, first, "broker-a")
        await asyncio.to_thread(wait_registered, second, "broker-a")
        async with Admin(both) as admin:
            await admin.create_topic("Lost")
            header = {"topic": "Lost"}
            await admin.access.ask(second, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        differing = await asyncio.to_thread(found, both)
    named(said(differing, "routes-differ", second), "Lost", "kerolox topic update")
    assert len(differing) == 1


def test_a_broker_of_the_loopback_misleads_clients_of_other_machines(tmp_path: Path) -> None:
    with Up(tmp_path, settings={**SMALL, "listenHost": "*"}) as up:
        outside = f"{local_address()}:{up.namesrv_port}"
        named(said(found(outside), "advertised-loopback", up.broker), "set brokerIP1")
        assert found(up.namesrv) == []


async def test_a_name_of_both_families_of_which_one_is_served(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no such name on every machine, so the look-up is made up; the server is not."""
    port = up.namesrv_port
    stream = socket.SOCK_STREAM, 6, ""
    answer = [
        (socket.AF_INET6, *stream, ("::1", port, 0, 0)),
        (socket.AF_INET, *stream, ("127.0.0.1", port)),
    ]
    path = None
    with monkeypatch.context() as patched:

        async def look_up(*_: object, **__: object) -> list[object]:
            return list(answer)

        patched.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up, raising=False)
        path = await try_path(f"both.test:{port}", None, timeout_seconds=5)
    [one] = path_findings(path, "name server")
    assert (one.code, one.where) == ("ipv6-half", f"both.test:{port}")
    assert "only IPv4 works" in one.what
    assert "listen on IPv6" in one.advice
