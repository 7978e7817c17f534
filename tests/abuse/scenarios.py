"""What hostile clients do to a server, as functions: the tests judge what is counted meanwhile,
``benchmarks/abuse.py`` shows how long others waited."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.kernel.held_pulls import HELD_OF_CONNECTION_MAX
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import encode_batch
from tests.abuse.every_code import BROKER, NAMESRV, Role
from tests.abuse.everything import ask_everything, ask_everything_huge
from tests.support.clients.patient import PatientConnection
from tests.support.clients.raw import connect, connected, frame, push, raw_frame
from tests.support.clients.raw import pull as pull_fields
from tests.support.clients.raw import send as send_fields
from tests.support.eventually import SECONDS_MAX, wait_until

if TYPE_CHECKING:
    from tests.support.servers.up import Up

__all__ = ["FLOODS", "SCENARIOS", "Scenario", "everything_of"]

MEMORY_MIB_MAX = 64
"""What most of these scenarios may cost the server at their worst moment."""

REPLIES_MEMORY_MIB_MAX = 192
"""As many replies are under way as may be (replyThreadPoolQueueCapacity): 10,000, if nobody says
otherwise."""

UNREAD_MEMORY_MIB_MAX = 40 * 8 + 64
"""Each of 40 may have WRITE_HIGH_WATER_BYTES unsent, and the answers of one feed."""

EVERYTHING_MEMORY_MIB_MAX = 192
"""Requests of a few MB that are under way on eight connections, and tables that clients fill."""

HUGE_MEMORY_MIB_MAX = 96
"""Two requests of 4 MiB that are under way, each as unfinished frame, as frame and as text, and
what the allocator keeps of those before. Headers over HEADER_BYTES_MAX are not kept at all."""

EVERYTHING_LINES_MAX = 3_000


@dataclass(frozen=True)
class Scenario:
    """What somebody does, and what it may cost."""

    play: Callable[[Up], None]
    memory_mib_max: float = MEMORY_MIB_MAX
    log_lines_max: int = 200


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


def answered(client: PatientConnection, code: int, body: bytes) -> RemotingCommand:
    """One request without members."""
    return client.invoke(RemotingCommand.request(code, body=body), SECONDS_MAX)


# -- many connections -------------------------------------------------------------------------
def connections_come_and_go(up: Up) -> None:
    chance = random.Random(1)
    for _ in range(10):
        with connected(up, 100) as storm:
            for connection in storm[:50]:
                connection.send(chance.randbytes(64))


def a_thousand_send_garbage(up: Up) -> None:
    chance = random.Random(2)
    with connected(up, 1000) as storm:
        for connection in storm:
            connection.sendall(b"\xff" + chance.randbytes(40))
        for connection in storm:
            connection.settimeout(SECONDS_MAX)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def writers_of_a_byte_at_a_time(up: Up) -> None:
    begun = frame(*send_fields("Slow", bytes(60_000)))
    with connected(up, 200) as writers:
        for index, writer in enumerate(writers):
            writer.sendall(begun[: 1 + index * 20])
        for step in range(10):
            for index, writer in enumerate(writers):
                writer.sendall(begun[1 + index * 20 + step :][:1])


def readers_ask_for_megabytes_and_never_read(up: Up) -> None:
    with PatientConnection(up.broker) as client:
        _, fields, _ = send_fields("Unread", b"")
        body = encode_batch((0, bytes(4096), b"") for _ in range(32))
        client.send_frames(frame(RequestCode.SEND_BATCH_MESSAGE, {**fields, "m": True}, body))
        client.receive(SECONDS_MAX)
    request = frame(11, pull_fields("Unread", 0))
    with connected(up, 40, receive_bytes=4096) as readers:
        push(readers, request * 200, seconds=3, stalled=0.5)


# -- many requests ----------------------------------------------------------------------------
def thousands_of_small_requests(up: Up) -> None:
    request, count = raw_frame(b'{"code":105}'), 10_000
    with connected(up, 3) as greedy, read_by_others(greedy) as counts:
        for connection in greedy:
            connection.sendall(request * count)
        wait_until(
            lambda: all(each > count * 80 for each in counts), seconds=SECONDS_MAX, what="answers"
        )


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


def heartbeats_of_groups_that_are_made_up(up: Up) -> None:
    with PatientConnection(up.broker) as client:
        many = heartbeat([consumer(f"made-up-{number}", []) for number in range(1500)])
        answer = answered(client, RequestCode.HEART_BEAT, many)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        told = {"subString": "*", "subVersion": 1, "codeSet": list(range(200))}
        topics = [{"topic": f"t{number}", **told} for number in range(1000)]
        answer = answered(client, RequestCode.HEART_BEAT, heartbeat([consumer("wide", topics)]))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        asked = RemotingCommand.request(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "wide"}
        )
        assert client.invoke(asked, SECONDS_MAX).code == ResponseCode.SUCCESS
        answer = answered(client, RequestCode.HEART_BEAT, many * 10)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "at most 1048576 are taken" in (answer.remark or "")
        for number in range(100):
            client.send_frames(frame(*send_fields(f"made-up-{number}", b"x"), opaque=number))


def pulls_that_wait_end_together(up: Up) -> None:
    """At most HELD_OF_CONNECTION_MAX wait; one message answers them all."""
    count, held_max = 12_000, HELD_OF_CONNECTION_MAX
    with (
        PatientConnection(up.broker) as sender,
        connected(up, 1) as connections,
        read_by_others(connections) as counts,
    ):
        code, fields, body = send_fields("Held", b"first")
        request = RemotingCommand.request(code, fields, body=body)
        first = sender.invoke(request, SECONDS_MAX)
        assert first.code == ResponseCode.SUCCESS
        next_offset = int(first.ext_fields["queueOffset"]) + 1
        hold = frame(RequestCode.PULL_MESSAGE, pull_fields("Held", next_offset, suspend_ms=600_000))
        connections[0].sendall(hold * count)
        refused = (count - held_max) * 100
        wait_until(lambda: counts[0] >= refused, seconds=SECONDS_MAX, what="the refusals")
        assert sender.invoke(request, SECONDS_MAX).code == ResponseCode.SUCCESS
        everything = refused + held_max * 150
        wait_until(lambda: counts[0] >= everything, seconds=SECONDS_MAX, what="the answers")


def replies_that_nobody_takes(up: Up) -> None:
    """A client asks, registers, and never says that it has the replies pushed to it."""
    with PatientConnection(up.broker) as client, connect(up) as replier:
        producers = [{"groupName": "askers"}]
        body = {"clientID": "asker", "consumerDataSet": [], "producerDataSet": producers}
        answer = answered(client, RequestCode.HEART_BEAT, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS
        properties = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c\x02"
        _, fields, _ = send_fields("DefaultCluster_REPLY_TOPIC", b"", properties=properties)
        reply = frame(RequestCode.SEND_REPLY_MESSAGE_V2, fields, bytes(1000))
        replier.settimeout(SECONDS_MAX)
        sending = threading.Thread(target=send_until_it_ends, args=(replier, reply * 12_000))
        sending.start()
        # More than may be under way are refused at once.
        said = b""
        try:
            while b"OVERLOAD" not in said:
                said += (more := replier.recv(1 << 20))
                assert more, "the broker closed the connection"
        finally:
            replier.shutdown(socket.SHUT_RDWR)
            sending.join()


def send_until_it_ends(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(data)


def transactions_that_nobody_ends(up: Up) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01nobody\x02UNIQ_KEY\x01k\x02"
    _, fields, _ = send_fields("Open", b"", properties=properties, sys_flag=4)
    half = frame(RequestCode.SEND_MESSAGE_V2, fields, b"half")
    with connected(up, 2) as connections, read_by_others(connections) as counts:
        for connection in connections:
            connection.sendall(half * 1500)
        wait_until(
            lambda: all(count > 1500 * 100 for count in counts), seconds=SECONDS_MAX, what="answers"
        )


FLOODS = {
    "connections that come and go": Scenario(connections_come_and_go, log_lines_max=60),
    "a thousand connections that send garbage": Scenario(a_thousand_send_garbage, log_lines_max=60),
    "writers of a byte at a time": Scenario(writers_of_a_byte_at_a_time),
    "readers that never read": Scenario(
        readers_ask_for_megabytes_and_never_read, UNREAD_MEMORY_MIB_MAX
    ),
    "tens of thousands of small requests": Scenario(thousands_of_small_requests),
    "heartbeats of groups that are made up": Scenario(heartbeats_of_groups_that_are_made_up),
    "12,000 pulls that wait": Scenario(pulls_that_wait_end_together),
    "replies that nobody takes": Scenario(replies_that_nobody_takes, REPLIES_MEMORY_MIB_MAX),
    "transactions that nobody ends": Scenario(transactions_that_nobody_ends),
}
"""All of these may be played on one server, in any order, and again."""


def everything_of(role: Role) -> dict[str, Scenario]:
    """All that can be wrong with each code of a role."""
    return {
        f"{what} of the {role.name}": Scenario(
            lambda up, ask=ask: ask(up, role), memory, EVERYTHING_LINES_MAX
        )
        for what, ask, memory in (
            ("every code", ask_everything, EVERYTHING_MEMORY_MIB_MAX),
            ("every code with huge members", ask_everything_huge, HUGE_MEMORY_MIB_MAX),
        )
    }


SCENARIOS = FLOODS | everything_of(BROKER) | everything_of(NAMESRV)
