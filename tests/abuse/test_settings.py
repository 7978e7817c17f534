"""Requests that change settings (25, 318) in ways that nobody should: refused, and after a restart
both servers are what they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.properties import parse_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.abuse.conftest import SETTINGS
from tests.support.clients.patient import PatientConnection
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_MIB_MAX = 64
ROLES = {
    "broker": (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG),
    "namesrv": (RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG),
}
TEXTS = {"broker": "regionId", "namesrv": "productEnvName"}


def ask(server: PatientConnection, code: int, body: bytes = b"") -> RemotingCommand:
    return server.invoke(RemotingCommand.request(code, body=body), 60.0)


def abuse(role: str, shown: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """A name and a body of each request that must be refused."""
    text = TEXTS[role].encode()
    yield "thousands of unknown keys", b"".join(b"traceO%d=1\n" % n for n in range(9000))
    yield "a few unknown keys", b"".join(b"listenPor%d=1\n" % n for n in range(900))
    for size in (60, 1000, 15_000, 2_000_000):
        yield f"a key of {size}", b"k" * size + b"=1\n"
        yield f"escapes of {size}", b"\\u0041" * (size // 6) + b"=1"
    for size in (2000, 16_000, 4_000_000):
        yield f"a value of {size}", text + b"=" + b"x" * size
        yield f"a number of {size}", b"serverSocketBacklog=" + b"9" * size
    for line_end in (b"\\n", b"\\r", b"\\u000a", b"\\u000d", b"\\u2028", b"\\u0000", b"\\u001b"):
        for key in (b"storePathRootDir", b"kvConfigPath", b"listenPort"):
            yield f"a forged line of {key.decode()}", text + b"=c" + line_end + key + b"=/tmp/x"
    for name, value in shown.items():
        if name.startswith(("listen", "storePath", "brokerI", "namesrv", "kv", "mapped")) or (
            name.endswith(("Path", "Host", "Name", "BlackList")) and name != "productEnvName"
        ):
            yield f"another {name}", f"{name}={value}1\n".encode()
            yield f"no {name}", f"{name}=\n".encode()
    yield "no text", b"\xff\xfe" + bytes(100)
    yield "a broken escape", text + b"=\\u12"
    yield "continued lines", (text + b"=\\\n") * 5000
    yield "empty lines", b"\n" * 3_000_000
    yield "nothing but separators", b"=" * 3_000_000


@pytest.mark.parametrize("kernel", KERNELS)
def test_settings_survive_every_odd_request_and_a_restart(tmp_path: Path, kernel: str) -> None:
    up = Up(tmp_path, settings=SETTINGS, kernel=kernel)
    servers = {"broker": up.broker, "namesrv": up.namesrv}
    before = {}
    with up:
        conf = (tmp_path / "broker.conf").read_text()
        with Probe(up) as probe:
            for role, (update, get) in ROLES.items():
                with PatientConnection(servers[role]) as server:
                    before[role] = parse_properties(ask(server, get).body.decode())
                    for name, body in abuse(role, before[role]):
                        answer = ask(server, update, body)
                        assert answer.code in (1, 16), (role, name, answer.code, answer.remark)
                        assert len(answer.remark or "") < 1000, name
                    assert parse_properties(ask(server, get).body.decode()) == before[role]
        probe.verdict(memory_mib_max=MEMORY_MIB_MAX)
    assert (tmp_path / "broker.conf").read_text() == conf
    assert not list((tmp_path / "store").glob("*/*.properties*"))
    with up:
        for role, (_, get) in ROLES.items():
            with PatientConnection(servers[role]) as server:
                assert parse_properties(ask(server, get).body.decode()) == before[role]
