"""Calls of gRPC in the kernel: however their bytes are cut, each is answered or handed on whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kerolox.kernel.feed import FED_MORE, FED_WAITS
from kerolox.kernel.http2 import Http2Error, Opened, Received
from kerolox.protocol.grpc import messages as pb
from kerolox.remoting.grpc.wire import OK_TRAILERS, PREFIX_BYTES, with_prefix
from kerolox.remoting.http2.choice import http2_of
from kerolox.remoting.http2.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    PREFACE,
    FrameType,
    frame,
    header_block,
    settings_frame,
)
from tests.support.kernels import MODULES
from tests.support.stores.bench import NOW, Bench

SERVICE = b"/apache.rocketmq.v2.MessagingService/"


def headers(name: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b":method", b"POST"),
        (b":path", SERVICE + name.encode()),
        (b"content-type", b"application/grpc"),
        (b"x-mq-client-id", b"me"),
    )


def request(body: bytes) -> bytes:
    message = pb.Message(topic=pb.Resource(name="T"), body=body)
    system = message.system_properties
    system.message_id, system.born_host = "01AB", "somewhere"
    system.born_timestamp.seconds = 1_700_000_000
    message.user_properties["a"] = "b"
    return with_prefix(pb.SendMessageRequest(messages=[message]).SerializeToString())


def call(stream_id: int, data: bytes, name: str = "SendMessage") -> bytes:
    """The frames of a call, its message in two."""
    half = len(data) // 2
    return (
        frame(FrameType.HEADERS, END_HEADERS, stream_id, header_block(headers(name)))
        + frame(FrameType.DATA, 0, stream_id, data[:half])
        + frame(FrameType.DATA, END_STREAM, stream_id, data[half:])
    )


def bodies_of(bench: Bench) -> list[bytes]:
    """All that is stored."""
    return [body for queue_id in range(4) for body in bench.bodies(queue_id)]


def frames_of(output: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, stream and payload of each."""
    found, at = [], 0
    while at < len(output):
        end = at + HEAD_BYTES + int.from_bytes(output[at : at + 3], "big")
        stream_id = int.from_bytes(output[at + 5 : at + 9], "big")
        found.append((output[at + 3], stream_id, output[at + HEAD_BYTES : end]))
        at = end
    return found


class Client:
    """One connection of a kernel, and what became of what it got."""

    def __init__(self, bench: Bench) -> None:
        names = {module: name for name, module in MODULES.items()}
        self.http2 = http2_of(names[bench.kernel.__name__])()
        self.store = bench.store
        self.connection = bench.connect().connection
        self.events: list[Any] = []
        self.output = b""
        self.flags = 0

    def feed(self, data: bytes) -> None:
        flags = FED_MORE
        while flags & FED_MORE:
            events, flags = self.connection.feed_calls(self.http2, data)
            self.events += events
            self.output += self.http2.take_output()
            self.flags |= flags
            data = b""

    def drain(self) -> None:
        """Send what became ready; it is the only connection."""
        for _, answers in self.store.drain_ready():
            self.connection.answer_calls(self.http2, answers)
        self.output += self.http2.take_output()

    def answers(self) -> dict[int, Any]:
        """The answer of each stream."""
        return {
            stream_id: pb.SendMessageResponse.FromString(payload[PREFIX_BYTES:])
            for kind, stream_id, payload in frames_of(self.output)
            if kind == FrameType.DATA
        }

    def data_of(self, stream_id: int) -> bytes:
        """All that came of an answer."""
        wanted = FrameType.DATA, stream_id
        parts = frames_of(self.output)
        return b"".join(payload for *head, payload in parts if tuple(head) == wanted)

    def handed_on(self) -> dict[int, bytes]:
        """The data of each call that Python is to answer."""
        found = {each.stream_id: b"" for each in self.events if isinstance(each, Opened)}
        for each in self.events:
            if isinstance(each, Received):
                found[each.stream_id] += each.data
        return found


def test_each_call_is_answered_or_handed_on_whole(kernel: Any, tmp_path: Path) -> None:
    bench = Bench(kernel, tmp_path)
    bench.open()
    bench.store.set_fast_calls("T", normal=True, fifo=True)
    source = random.Random(7)
    stored: list[bytes] = []
    try:
        for _ in range(30):
            client = Client(bench)
            bodies = {number: b"%d" % source.randrange(1 << 30) for number in range(1, 40, 2)}
            sent = {number: request(body) for number, body in bodies.items()}
            data = PREFACE + settings_frame(())
            data += b"".join(call(number, each) for number, each in sent.items())
            while data:
                size = source.choice((1, 30, 300, 3_000))
                client.feed(data[:size])
                data = data[size:]
            left = client.handed_on()
            assert all(sent[number] == each for number, each in left.items())
            assert client.output.count(OK_TRAILERS) == len(sent) - len(left)
            stored += [body for number, body in bodies.items() if number not in left]
        found = bodies_of(bench)
        assert sorted(found) == sorted(stored)
        assert bool(stored) == (kernel.__name__ == MODULES["native"])
    finally:
        bench.store.close()


def test_calls_of_a_topic_that_is_not_for_them_are_handed_on(kernel: Any, tmp_path: Path) -> None:
    bench = Bench(kernel, tmp_path)
    bench.open()
    try:
        for change in (
            lambda: None,
            lambda: bench.store.set_fast_calls("T", normal=False, fifo=True),
            lambda: (
                bench.store.set_fast_calls("T", normal=True, fifo=True),
                bench.store.set_writable(False),
            ),
            lambda: (bench.store.set_writable(True), bench.store.set_accounts([])),
            lambda: (bench.store.set_accounts(None), bench.store.set_topic("T", 4, 4, 4, True)),
            lambda: (bench.store.set_topic("T", 4, 4, 6, True), bench.store.delete_topic("T")),
            lambda: bench.store.set_topic("T", 4, 4, 6, True),
        ):
            change()
            client = Client(bench)
            client.feed(PREFACE + settings_frame(()) + call(1, request(b"body")))
            assert client.handed_on() == {1: request(b"body")}
    finally:
        bench.store.close()


def test_requests_that_are_torn_or_lie_are_handed_on(kernel: Any, tmp_path: Path) -> None:
    bench = Bench(kernel, tmp_path)
    bench.open()
    bench.store.set_fast_calls("T", normal=True, fifo=True)
    source, usual = random.Random(3), request(b"body")
    try:
        for _ in range(600):
            data = bytearray(usual)
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(len(data))] = source.randrange(256)
            if source.random() < 0.3:
                del data[source.randrange(len(data)) :]
            client = Client(bench)
            try:
                client.feed(PREFACE + settings_frame(()) + call(1, bytes(data)))
            except Http2Error:
                raise AssertionError("a body broke its connection") from None
            answered = client.output.count(OK_TRAILERS)
            assert answered + len(client.handed_on()) == 1
            if answered:
                # What is stored Python would have stored, too.
                message = pb.SendMessageRequest.FromString(bytes(data[5:])).messages[0]
                assert message.topic.name == "T"
                assert message.body in bodies_of(bench)
    finally:
        bench.store.close()


def test_answers_wait_for_a_slave_and_say_what_did_not_come(closed_bench: Bench) -> None:
    if closed_bench.kernel.__name__ != MODULES["native"]:
        pytest.skip("no call waits in Python's")
    bench, far, timeout = closed_bench, 1 << 40, 3_000
    bench.open()
    bench.store.set_fast_calls("T", normal=True, fifo=True)
    bench.store.set_slave_timeout(timeout)
    bench.store.set_replicated(0, far)
    client = Client(bench)
    client.feed(PREFACE + settings_frame(()) + call(1, request(b"one")) + call(3, request(b"two")))
    assert (client.answers(), client.handed_on()) == ({}, {})
    assert client.flags & FED_WAITS
    bench.store.set_replicated(bench.store.max_physical_offset, far)
    client.drain()
    statuses = {number: each.status.code for number, each in client.answers().items()}
    assert statuses == {1: pb.OK, 3: pb.OK}
    # One is given up, of one the slave is late, and of one there is no slave.
    client.feed(call(5, request(b"three")) + call(7, request(b"four")))
    client.feed(frame(FrameType.RST_STREAM, 0, 5, bytes(4)))
    bench.store.tick(NOW + timeout)
    client.drain()
    bench.store.set_replicated(0, 0)
    client.feed(call(9, request(b"five")))
    found = client.answers()
    assert sorted(found) == [1, 3, 7, 9]
    assert client.events == []
    for number, code in ((7, pb.SLAVE_PERSISTENCE_TIMEOUT), (9, pb.HA_NOT_AVAILABLE)):
        [entry] = found[number].entries
        assert (entry.status.code, entry.status.message) == (code, "stored")
        assert entry.message_id == "01AB"
    assert len(bodies_of(bench)) == 5
