"""A client that asks more than its address may: it alone is refused, and all of it is counted."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from tests.support.clients.patient import PatientConnection
from tests.support.clients.raw import frame, pull, send
from tests.support.eventually import SECONDS_MAX
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 6_000
BURST_MS = 600_000
PER_SECOND = 5
"""So many requests an address has at once, and hardly any more while the test runs."""
HELD = PER_SECOND * BURST_MS // 1000


@pytest.fixture(scope="module", params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    settings = {"listenHost": "127.0.0.1", "mappedFileSizeCommitLog": 16 << 20}
    folder: Path = tmp_path_factory.mktemp("limited")
    with Up(folder, settings=settings, kernel=request.param, counted=True) as started:
        yield started


def refused(client: PatientConnection) -> int:
    """What the broker has counted."""
    asked = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.loads(client.invoke(asked, SECONDS_MAX).body)["table"]
    return int(table["requestsRefusedOfAddress"])


def codes_of(connection: socket.socket, count: int) -> Counter[int]:
    """The codes of so many answers."""
    decoder, codes = FrameDecoder(), Counter[int]()
    connection.settimeout(SECONDS_MAX)
    while codes.total() < count:
        data = connection.recv(1 << 18)
        assert data, "the broker closed the connection"
        codes.update(RemotingCommand.decode(each).code for each in decoder.feed(data))
    return codes


def test_who_floods_is_refused_and_others_are_served(up: Up) -> None:
    with Probe(up) as probe, PatientConnection(up.broker) as client:
        text = f"maxRequestsPerSecondPerAddress={PER_SECOND}\nrequestBurstMillis={BURST_MS}\n"
        command = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
        assert client.invoke(command, SECONDS_MAX).code == ResponseCode.SUCCESS
        before = refused(client)
        # Another address of the loopback than the probe's.
        with socket.create_connection(
            ("127.0.0.1", up.port), SECONDS_MAX, source_address=("127.0.0.9", 0)
        ) as flood:
            each = frame(*send("Flooded", b"x")) + frame(11, pull("Flooded", 0))
            codes = Counter[int]()
            for _ in range(6):
                flood.sendall(each * (REQUESTS // 12))
                codes += codes_of(flood, REQUESTS // 6)
        off = RemotingCommand.request(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"maxRequestsPerSecondPerAddress=0\n"
        )
        assert client.invoke(off, SECONDS_MAX).code == ResponseCode.SUCCESS
        counted = refused(client) - before
    probe.verdict(memory_mib_max=64)
    assert codes.total() == REQUESTS
    busy = codes[ResponseCode.SYSTEM_BUSY]
    assert counted == busy
    assert 0 <= REQUESTS - busy - HELD <= PER_SECOND * SECONDS_MAX
