"""The Node.js client speaks no TLS: it works where a port takes plain text too."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.client import ProducerSettings, TlsSettings, sync
from kerolox.message import Message
from tests.support.programs import build_node_clients
from tests.support.servers.tls import Authority
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.node, pytest.mark.timeout(600), pytest.mark.xdist_group("node")]

TOPICS = ("NodeSend", "NodeTags")


def outcomes(up: Up, *scenarios: str) -> dict[str, str]:
    command = ["node", str(build_node_clients()), up.namesrv, "key", "secret", *scenarios]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    rows = [row.split("\t") for row in done.stdout.splitlines() if row.startswith("scenario\t")]
    return {name: outcome for _, name, outcome in rows}


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_node_client_works_in_plain_text_where_a_port_takes_that(
    mode: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.files("127.0.0.1")
    tls = {"tls.server.certPath": certificate, "tls.server.keyPath": key, "tls.server.mode": mode}
    settings = ProducerSettings(tls=TlsSettings(ca=authority.ca))
    with (
        Up(tmp_path / "up", settings=tls) as up,
        sync.Producer("with-tls", up.namesrv, settings=settings) as producer,
    ):
        for topic in TOPICS:
            producer.create_topic(topic, queues=4)
        found = outcomes(up, "send", "tags")
        if mode == "permissive":
            assert found == {"send": "ok", "tags": "ok"}
        else:
            assert found.keys() == {"send", "tags"}
            # What its close is to the client depends on what it had sent by then.
            closed = ("SocketCloseError", "Error: read ECONNRESET")
            assert all(text.startswith(closed) for text in found.values()), found
            told = f"it speaks no TLS, and tls.server.mode={mode}; switch TLS on in the client"
            assert told in up.log.read_text()
        assert producer.send(Message(TOPICS[0], b"beside")).queue_offset >= 0


def test_no_module_of_the_node_client_asks_for_tls() -> None:
    """The reason, so that a release that can speak it is noticed."""
    modules = build_node_clients().parent / "node_modules"
    sources = {each.relative_to(modules): each.read_text() for each in modules.rglob("*.js")}
    asking = re.compile(r"require\(['\"](node:)?(tls|https|http2)['\"]\)")
    assert [str(path) for path, text in sources.items() if asking.search(text)] == []
    [connecting] = [path for path, text in sources.items() if "net.connect(" in text]
    assert str(connecting) == "tcp-base/lib/base.js"
