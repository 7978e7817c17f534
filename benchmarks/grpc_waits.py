"""Claim: ten thousand receives that wait by gRPC cost little, and each is answered within a second.

Opens connections of clients of RocketMQ 5, each with some ReceiveMessage calls that find nothing
and wait. Tells by how much the broker's memory grew, for each call, and how long it took from the
first of as many messages as calls until each call had its message and its end.

    python benchmarks/grpc_waits.py [--connections 200] [--calls 50] [--kernel native]
"""

from __future__ import annotations

import argparse
import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.abuse.kept import ask
from tests.support.clients.grpc_raw import call_block
from tests.support.clients.patient import PatientConnection
from tests.support.clients.raw import frame as remoting_frame
from tests.support.clients.requests import send_fields, topic_fields
from tests.support.servers.probe import memory_mib
from tests.support.servers.up import Up

from benchmarks.peers import cpu_seconds
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.grpc.wire import with_prefix
from kerolox.remoting.http2.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    PREFACE,
    FrameType,
    frame,
    settings_frame,
)

TOPICS = 40
"""Of one topic and group 1,024 calls wait at the most (popPollingSize)."""

WAIT_SECONDS = 20
SECONDS_MAX = 60.0


class Waiting:
    """One connection; counts the calls that are over."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.ended = self.messages = self.pongs = 0
        self._buffer = bytearray()

    def ask(self, number: int, calls: int) -> None:
        """Begin calls that wait."""
        out = [PREFACE + settings_frame(())]
        for call in range(calls):
            request = pb.ReceiveMessageRequest(batch_size=1)
            topic = (number * calls + call) % TOPICS
            request.group.name = f"group-{topic}"
            request.message_queue.topic.name = f"Topic{topic}"
            request.filter_expression.expression = "*"
            request.invisible_duration.seconds = 60
            request.long_polling_timeout.seconds = WAIT_SECONDS
            told = {"x-mq-client-id": f"client-{number}", "grpc-timeout": "30S"}
            stream_id = 2 * call + 1
            out.append(
                frame(FrameType.HEADERS, END_HEADERS, stream_id, call_block("ReceiveMessage", told))
            )
            data = with_prefix(request.SerializeToString())
            out.append(frame(FrameType.DATA, END_STREAM, stream_id, data))
        out.append(frame(FrameType.PING, 0, 0, bytes(8)))
        self.socket.sendall(b"".join(out))

    def read(self) -> None:
        """Take what came."""
        self._buffer += self.socket.recv(1 << 18)
        at, buffer = 0, self._buffer
        while len(buffer) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) < end:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            if kind == FrameType.PING:
                self.pongs += 1
            elif kind == FrameType.HEADERS and flags & END_STREAM:
                self.ended += 1
            elif kind == FrameType.DATA and b"body-of-a-wait" in buffer[at:end]:
                self.messages += 1
            at = end
        del buffer[:at]


def send_all(up: Up, count: int) -> None:
    """One message for each call, a hundred under way."""
    with PatientConnection(up.broker) as client:
        frames = []
        for number in range(count):
            fields = send_fields(b=f"Topic{number % TOPICS}", e=0)
            code = RequestCode.SEND_MESSAGE_V2
            frames.append(remoting_frame(code, fields, b"body-of-a-wait", opaque=number))
        client.send_frames(b"".join(frames))
        for _ in range(count):
            assert client.receive(SECONDS_MAX).code == ResponseCode.SUCCESS


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--kernel", default="native")
    given = parser.parse_args()
    count = given.connections * given.calls
    with (
        tempfile.TemporaryDirectory() as folder,
        Up(Path(folder), kernel=given.kernel, grpc=True) as up,
        selectors.DefaultSelector() as selector,
    ):
        assert up.process is not None
        for topic in range(TOPICS):
            fields = topic_fields(f"Topic{topic}", queues=1)
            ask(up.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        first = Waiting(up.grpc_port)  # imports what the port needs
        first.ask(given.connections, 1)
        while not first.ended:
            first.read()
        before = memory_mib(up.process.pid)
        all_of_them = []
        for number in range(given.connections):
            waiting = Waiting(up.grpc_port)
            waiting.ask(number, given.calls)
            selector.register(waiting.socket, selectors.EVENT_READ, waiting)
            all_of_them.append(waiting)
        while not all(each.pongs for each in all_of_them) or selector.select(1.0):
            for key, _ in selector.select(1.0):
                key.data.read()
        assert not sum(each.ended for each in all_of_them), "a call did not wait"
        held = memory_mib(up.process.pid) - before
        begin, worked = time.monotonic(), cpu_seconds(up.process.pid)
        send_all(up, count)
        sent = time.monotonic() - begin
        while sum(each.ended for each in all_of_them) < count:
            for key, _ in selector.select(SECONDS_MAX):
                key.data.read()
        seconds = time.monotonic() - begin
        worked = cpu_seconds(up.process.pid) - worked
        got = sum(each.messages for each in all_of_them)
    print(
        f"{given.kernel}: {count} calls wait: {held:.0f} MiB, {held * 1024 / count:.1f} KiB each; "
        f"{got} got a message, all within {seconds:.2f} s (sent within {sent:.2f} s), "
        f"of which the broker worked {worked:.2f} s"
    )


if __name__ == "__main__":
    main()
