"""Clients that ask too much at once: others are served all the while, and memory has a bound."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerolox.kernel import HELD_OF_CONNECTION_MAX
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.blocking import BlockingConnection
from tests.hostile.support import connect, connected, frame, raw_frame
from tests.hostile.support import pull as pull_fields
from tests.hostile.support import send as send_fields
from tests.support.eventually import wait_until
from tests.support.witness import Witness, memory_mib

if TYPE_CHECKING:
    import socket

    from tests.support.up import Up

MEMORY_MIB_MAX = 64
"""What each of these stories may cost the broker at its worst moment."""

STORM_SECONDS = 0.4


@contextlib.contextmanager
def read_by_others(connections: list[socket.socket]) -> Iterator[list[int]]:
    """The answers to these connections are taken and counted, each by a thread."""
    counts = [0] * len(connections)

    def read(index: int) -> None:
        with contextlib.suppress(OSError):
            while data := connections[index].recv(1 << 20):
                counts[index] += len(data)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(connections))]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(2)
        for thread in threads:
            thread.join()


def test_connections_that_come_and_go_hold_up_nobody(up: Up) -> None:
    chance = random.Random(1)
    with Witness(up) as witness:
        deadline = time.monotonic() + STORM_SECONDS
        while time.monotonic() < deadline:
            with connected(up, 100) as storm:
                for connection in storm[:50]:
                    connection.send(chance.randbytes(64))
    witness.verdict(memory_mib_max=MEMORY_MIB_MAX, log_lines_max=60)


def test_a_thousand_at_once_that_send_garbage_are_all_refused(up: Up) -> None:
    chance = random.Random(2)
    with Witness(up) as witness, connected(up, 1000) as storm:
        for connection in storm:
            connection.sendall(b"\xff" + chance.randbytes(40))
        for connection in storm:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    witness.verdict(memory_mib_max=MEMORY_MIB_MAX, log_lines_max=60)


def test_tens_of_thousands_of_small_requests_at_once_hold_up_nobody(up: Up) -> None:
    request = raw_frame(b'{"code":105}')
    with (
        Witness(up) as witness,
        connected(up, 3) as greedy,
        read_by_others(greedy) as counts,
    ):
        for connection in greedy:
            connection.sendall(request * 25_000)
        wait_until(
            lambda: all(count > 25_000 * 80 for count in counts), seconds=60, what="all the answers"
        )
    witness.verdict(memory_mib_max=MEMORY_MIB_MAX, late_max=0)


def consumer(group: str, subscriptions: list[dict[str, object]]) -> dict[str, object]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
    }


def heartbeat(consumers: list[dict[str, object]], client_id: str = "hostile") -> bytes:
    body = {"clientID": client_id, "consumerDataSet": consumers, "producerDataSet": []}
    return json.dumps(body).encode()


def test_heartbeats_of_groups_that_are_made_up_hold_up_nobody(up: Up) -> None:
    with Witness(up) as witness, BlockingConnection(up.broker) as client:
        many = heartbeat([consumer(f"made-up-{number}", []) for number in range(1500)])
        answer = client.invoke(RemotingCommand.request(RequestCode.HEART_BEAT, body=many), 60)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        topics = [{"topic": f"t{n}", "subString": "*", "subVersion": 1} for n in range(1000)]
        wide = heartbeat([consumer("wide", topics)])
        answer = client.invoke(RemotingCommand.request(RequestCode.HEART_BEAT, body=wide), 60)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        huge = RemotingCommand.request(RequestCode.HEART_BEAT, body=many * 10)
        answer = client.invoke(huge, 60)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "at most 1048576 are taken" in (answer.remark or "")
        for number in range(100):
            client.send_frames(frame(*send_fields(f"made-up-{number}", b"x"), opaque=number))
    witness.verdict(memory_mib_max=MEMORY_MIB_MAX)


def test_one_client_s_pulls_that_wait_are_bounded_and_end_without_a_pause(up: Up) -> None:
    """At most HELD_OF_CONNECTION_MAX wait; one message answers them all."""
    count, held_max = 12_000, HELD_OF_CONNECTION_MAX
    with (
        Witness(up) as witness,
        BlockingConnection(up.broker) as sender,
        connected(up, 1) as connections,
        read_by_others(connections) as counts,
    ):
        code, fields, body = send_fields("Held", b"first")
        request = RemotingCommand.request(code, fields, body=body)
        assert sender.invoke(request, 60).code == ResponseCode.SUCCESS
        hold = frame(RequestCode.PULL_MESSAGE, pull_fields("Held", 1, suspend_ms=600_000))
        connections[0].sendall(hold * count)
        refused = (count - held_max) * 100
        wait_until(lambda: counts[0] >= refused, seconds=60, what="the refusals")
        assert sender.invoke(request, 60).code == ResponseCode.SUCCESS
        wait_until(lambda: counts[0] >= refused + held_max * 150, seconds=60, what="the answers")
    witness.verdict(memory_mib_max=MEMORY_MIB_MAX)


def test_requests_for_replies_that_never_come_cost_bounded_memory(up: Up) -> None:
    """A client asks, registers, and never says that it has the replies pushed to it."""
    memory_mib_max = 192  # 10,000 are under way (replyThreadPoolQueueCapacity)
    with (
        Witness(up) as witness,
        BlockingConnection(up.broker) as client,
        connect(up) as replier,
    ):
        body = json.dumps(
            {
                "clientID": "asker",
                "consumerDataSet": [],
                "producerDataSet": [{"groupName": "askers"}],
            }
        ).encode()
        answer = client.invoke(RemotingCommand.request(RequestCode.HEART_BEAT, body=body), 60)
        assert answer.code == ResponseCode.SUCCESS
        properties = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c\x02"
        _, fields, _ = send_fields("DefaultCluster_REPLY_TOPIC", b"", properties=properties)
        reply = frame(RequestCode.SEND_REPLY_MESSAGE_V2, fields, bytes(1000))
        replier.settimeout(60)
        replier.sendall(reply * 12_000)
        # More than may be under way are refused at once.
        said = b""
        while b"OVERLOAD" not in said:
            said += (more := replier.recv(1 << 20))
            assert more, "the broker closed the connection"
    witness.verdict(memory_mib_max=memory_mib_max)


def test_transactions_that_nobody_ends_hold_up_nobody(up: Up) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01nobody\x02UNIQ_KEY\x01k\x02"
    _, fields, _ = send_fields("Open", b"", properties=properties, sys_flag=4)
    half = frame(RequestCode.SEND_MESSAGE_V2, fields, b"half")
    with (
        Witness(up) as witness,
        connected(up, 2) as connections,
        read_by_others(connections) as counts,
    ):
        for connection in connections:
            connection.sendall(half * 1500)
        wait_until(
            lambda: all(count > 1500 * 100 for count in counts), seconds=60, what="the answers"
        )
    witness.verdict(memory_mib_max=MEMORY_MIB_MAX)


def test_what_the_storms_left_behind_is_little(up: Up) -> None:
    assert up.process is not None
    assert memory_mib(up.process.pid) < 300
