"""Peers that do not read, or hardly write: others do not notice, and memory has a bound.

Against ``kerolox up`` in a process of its own, on each kernel.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import encode_batch
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import SECONDS_MAX
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "Slow"
BODY = 4096
BATCH = 32

HOLD_MS = 600_000
"""Longer than anybody waits for a stop, which must not wait for the pulls that are held."""

MEMORY_MIB_MAX = 60
"""What the not-reading connections of these tests may cost together. Each may have 4 MiB unsent
(WRITE_HIGH_WATER_BYTES), the 1 MiB of one feed's answers, and one chunk of requests."""


@pytest.fixture(params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    settings = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    with Up(tmp_path, settings=settings, kernel=request.param) as started:
        with PatientConnection(started.broker) as connection:
            body = encode_batch((0, bytes(BODY), b"") for _ in range(BATCH))
            answer = connection.invoke(send(body, batch=True), SECONDS_MAX)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        yield started


def send(body: bytes, *, batch: bool = False, queue_id: int = 0) -> RemotingCommand:
    fields = {**dict.fromkeys("afghj", "0"), "b": TOPIC, "c": "TBW102", "d": 4, "e": queue_id}
    fields |= {"i": "", "k": False, "m": batch}
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand.request(code, fields, body=body)


def pull(offset: int, *, queue_id: int = 0, suspend_ms: int = 0) -> RemotingCommand:
    fields = {
        "consumerGroup": "slow",
        "topic": TOPIC,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": BATCH,
        "sysFlag": 4 | (2 if suspend_ms else 0),
        "commitOffset": 0,
        "suspendTimeoutMillis": suspend_ms,
        "subscription": "*",
        "subVersion": 0,
    }
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)


def memory_mib(up: Up) -> float:
    """The process's memory besides mapped files."""
    assert up.process is not None
    with open(f"/proc/{up.process.pid}/status", encoding="ascii") as status:
        kib = next(line.split()[1] for line in status if line.startswith("RssAnon"))
    return int(kib) / 1024


def serve_another(address: str, count: int = 100) -> None:
    """Sends and reads of somebody else are answered."""
    with PatientConnection(address) as connection:
        for _ in range(count):
            sent = connection.invoke(send(b"x", queue_id=1), SECONDS_MAX)
            assert sent.code == ResponseCode.SUCCESS
            assert connection.invoke(pull(0, queue_id=1), SECONDS_MAX).code == ResponseCode.SUCCESS


def push_until_full(connection: socket.socket, data: bytes) -> int:
    """Write until the peer takes no more; how many bytes it took."""
    connection.settimeout(0.3)
    taken = 0
    with contextlib.suppress(TimeoutError):
        while taken < 64 << 20:
            taken += connection.send(data)
    return taken


def open_socket(up: Up) -> socket.socket:
    made = socket.socket()
    # Little room in the system's buffers, so that the broker's own limits are what counts.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.connect(("127.0.0.1", up.port))
    return made


def test_peers_that_never_read_cost_bounded_memory_and_nobody_s_time(up: Up) -> None:
    serve_another(up.broker, 20)
    before = memory_mib(up)
    request = pull(0)
    request.opaque = 1
    data = request.encode() * 1000  # 128 MB of answers
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(open_socket(up))
            taken = push_until_full(connection, data)
            assert taken < 64 << 20, "the broker reads on although nothing is taken"
        serve_another(up.broker)
        assert memory_mib(up) - before < MEMORY_MIB_MAX
        up.stop()  # they do not hold it up


def test_held_pulls_of_a_peer_that_never_reads_cost_bounded_memory(up: Up) -> None:
    """Each message makes answers for all held pulls; the peer is cut off at WRITE_BYTES_MAX."""
    before = memory_mib(up)
    held = 0
    body = encode_batch((0, bytes(BODY), b"") for _ in range(BATCH))
    with contextlib.ExitStack() as stack, PatientConnection(up.broker) as sender:
        connection = stack.enter_context(open_socket(up))
        offset = BATCH
        for _ in range(6):
            request = pull(offset, suspend_ms=HOLD_MS)
            request.opaque = held
            try:
                connection.sendall(request.encode() * 200)
            except OSError:
                break  # cut off
            held += 200
            # In order behind the holds of the other connection: a read by the same loop.
            assert (
                sender.invoke(pull(0, queue_id=2), SECONDS_MAX).code == ResponseCode.PULL_NOT_FOUND
            )
            assert sender.invoke(send(body, batch=True), SECONDS_MAX).code == ResponseCode.SUCCESS
            offset += BATCH
        serve_another(up.broker)
        # WRITE_BYTES_MAX, and once more what one message woke.
        assert memory_mib(up) - before < 64 + MEMORY_MIB_MAX


def test_peers_that_hardly_write_disturb_nobody(up: Up) -> None:
    data = send(bytes(60_000)).encode()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(open_socket(up)) for _ in range(50)]
        for index, connection in enumerate(connections):
            connection.sendall(data[: 1 + index * 1000])
        serve_another(up.broker)
        for connection in connections[:5]:
            for byte in data[1:40]:
                connection.sendall(bytes([byte]))
        serve_another(up.broker, 5)
        up.stop()  # half frames do not hold it up


def test_a_stop_waits_for_no_held_pull_and_no_connection(up: Up) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", up.port)))
            connection.sendall(pull(0, queue_id=3, suspend_ms=HOLD_MS).encode() * 5)
        with PatientConnection(up.broker) as other:
            assert (
                other.invoke(pull(0, queue_id=2), SECONDS_MAX).code == ResponseCode.PULL_NOT_FOUND
            )
        up.stop()
        assert not (up.data / "store" / "abort").exists()
    with up:
        serve_another(up.broker, 1)
