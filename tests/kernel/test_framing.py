"""The byte stream: any split of it, garbage in it, mutations of it."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.kernel.feed import FED_FOREIGN
from kerolox.protocol.codes import SerializeType
from tests.support.stores.bench import (
    NOW,
    Bench,
    commands,
    holding_pull,
    properties,
    pull,
    request,
    send,
    send_batch,
    send_v1,
)

RELAXED = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

BINARY = SerializeType.ROCKETMQ


def stream() -> list[bytes]:
    """Frames of every kind; pulls of an own topic, so that the split can't change the answers."""
    text = properties(KEYS="k", TAGS="t", WAIT="true", UNIQ_KEY="U")
    return [
        send(b"1", opaque=1, i=text),
        request(34, {}, b"heartbeat", opaque=2),
        pull(opaque=3, topic="Other"),
        send(b"4" * 300, opaque=4, encoding=BINARY, e=1),
        send(b"5", opaque=5, oneway=True),
        send_batch([(0, b"6", b""), (0, b"7", b"TAGS\x01t")], opaque=6),
        send_v1(b"8", opaque=8),
        send(b"", opaque=9),
        pull(opaque=10, topic="Other", encoding=BINARY, subscription="a"),
        holding_pull(opaque=11, topic="Other"),
        request(105, {"topic": "T"}, opaque=12, encoding=BINARY),
        send(b"13", opaque=13, b="Unknown"),
    ]


ANSWERED = [1, 3, 4, 6, 8, 10]
COLD = [1, 7, 10, 11]


@RELAXED
@given(st.lists(st.integers(0, 3_000), max_size=12))
def test_any_split_of_the_stream_gives_the_same(bench: Bench, cuts: list[int]) -> None:
    bench.store.set_topic("Other", 4, 4, 6, True)
    frames = stream()
    data = b"".join(frames)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    wire = bench.connect()
    before = bench.store.queue_bounds("T", 0)[1]
    answers, cold = b"", []
    for start, end in pairwise(edges):
        part = wire.feed(data[start:end])
        answers += part[0]
        cold += part[1]
        assert part[2:] == (0, None)
    assert [answer.opaque for answer in commands(answers)] == ANSWERED
    assert cold == [frames[index][4:] for index in COLD]
    assert bench.store.queue_bounds("T", 0)[1] == before + 5
    wire.connection.close()


def test_byte_by_byte_gives_the_same(bench: Bench) -> None:
    bench.store.set_topic("Other", 4, 4, 6, True)
    wire = bench.connect()
    answers = b""
    for byte in b"".join(stream()):
        answers += wire.feed(bytes((byte,)))[0]
    assert [answer.opaque for answer in commands(answers)] == ANSWERED


def test_only_the_given_size_is_taken(bench: Bench) -> None:
    wire = bench.connect()
    first, second = send(opaque=1), send(opaque=2)
    buffer = bytearray(first + second)
    answers, cold, _, _ = wire.connection.feed(buffer, len(first))
    assert [answer.opaque for answer in commands(answers)] == [1]
    assert cold is None
    answers, _, _, _ = wire.connection.feed(memoryview(bytes(second)), len(second))
    assert [answer.opaque for answer in commands(answers)] == [2]
    assert tuple(wire.connection.feed(b"", 0)) == (b"", None, 0, None)


def test_the_buffer_may_be_used_again_after_a_feed(bench: Bench) -> None:
    wire = bench.connect()
    whole = send(b"a" * 50, opaque=1) + request(34, {}, b"cold", opaque=2)
    half = len(whole) - 20
    buffer = bytearray(whole[:half])
    wire.connection.feed(buffer, half)
    buffer[:] = b"\xff" * half
    _, cold, _, _ = wire.connection.feed(whole[half:], 20)
    assert cold == [request(34, {}, b"cold", opaque=2)[4:]]
    assert bench.bodies() == [b"a" * 50]


def test_a_frame_at_the_limit_is_taken_in_many_chunks(bench: Bench) -> None:
    frame = struct.pack(">II", 16 * 1024 * 1024, 2) + b"{}"
    frame += bytes(16 * 1024 * 1024 + 4 - len(frame))
    wire = bench.connect()
    for start in range(0, len(frame), 256 * 1024):
        answers, cold, _, error = wire.feed(frame[start : start + 256 * 1024])
        assert (answers, error) == (b"", None)
    assert cold == [frame[4:]]


def test_bytes_of_unfinished_frames_are_told(bench: Bench) -> None:
    wire = bench.connect()
    whole = send(b"x" * 5_000, opaque=1)
    assert wire.connection.unfinished_bytes == 0
    for end in (3, 8, 4_000):
        wire.feed(whole[wire.connection.unfinished_bytes : end])
        assert wire.connection.unfinished_bytes == end
    wire.feed(whole[4_000:] + whole[:10])
    assert wire.connection.unfinished_bytes == 10
    wire.connection.close()
    assert wire.connection.unfinished_bytes == 0


@pytest.mark.parametrize(
    ("begin", "protocol"),
    [(b"\x16\x03\x01\x02\0", "TLS"), (b"\x16\x03\x03\0\x05", "TLS"), (b"GET / HTTP", "HTTP")],
)
def test_another_protocol_is_called_by_its_name(bench: Bench, begin: bytes, protocol: str) -> None:
    for cut in (len(begin), 4):
        wire = bench.connect()
        _answers, _slow, flags, error = wire.feed(begin[:cut], begin[cut:])
        assert flags == FED_FOREIGN
        assert f": this is {protocol}" in error


BROKEN = {
    "too long": struct.pack(">I", 16 * 1024 * 1024 + 1),
    "negative": struct.pack(">i", -1),
    "zero": struct.pack(">I", 0),
    "three": struct.pack(">I", 3),
    "header longer than the frame": struct.pack(">II", 10, 7) + bytes(6),
    "header longer than an unfinished frame": struct.pack(">II", 1_000, 997),
    "header without end": struct.pack(">II", 1_000, 0xFFFFFF),
    "header of more than 4 MiB": struct.pack(">II", 15_000_000, (4 << 20) + 1),
    "binary header of more than 4 MiB": struct.pack(">II", 15_000_000, 1 << 24 | (4 << 20) + 1),
    "text of another protocol": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("garbage", BROKEN.values(), ids=BROKEN)
def test_broken_framing_is_an_error_after_the_answers(bench: Bench, garbage: bytes) -> None:
    wire = bench.connect()
    cold = request(34, {}, opaque=2)
    answers, left, flags, error = wire.feed(send(opaque=1), cold, garbage)
    assert [answer.opaque for answer in commands(answers)] == [1]
    assert left == [cold[4:]]
    ended = FED_FOREIGN if garbage.startswith(b"GET") else 0
    assert flags == ended
    assert error
    again = wire.feed(send(opaque=3))
    assert again[:3] == (b"", [], ended)
    assert again[3]
    assert bench.store.queue_bounds("T", 0) == (0, 1)
    wire.connection.close()


@pytest.mark.parametrize("garbage", BROKEN.values(), ids=BROKEN)
def test_broken_framing_is_found_by_the_eighth_byte(bench: Bench, garbage: bytes) -> None:
    wire = bench.connect()
    errors = [wire.feed(bytes((byte,)))[3] for byte in garbage[:8].ljust(8)]
    assert any(errors)
    assert errors == sorted(errors, key=bool)


def test_a_header_of_4_mib_is_waited_for(bench: Bench) -> None:
    assert not bench.connect().feed(struct.pack(">II", 15_000_000, 4 << 20))[3]


def test_another_connection_is_not_disturbed(bench: Bench) -> None:
    broken, sound = bench.connect(), bench.connect()
    sound.feed(send()[:20])
    assert broken.feed(b"\xff" * 8)[3]
    answers, _, _, error = sound.feed(send()[20:])
    assert (len(commands(answers)), error) == (1, None)


def test_a_closed_connection_takes_nothing(bench: Bench) -> None:
    wire = bench.connect()
    wire.connection.close()
    assert wire.feed(send())[:3] == (b"", [], 0)
    assert bench.store.max_physical_offset == 0


def test_a_header_of_zero_bytes_is_cold(bench: Bench) -> None:
    assert bench.connect().is_cold(struct.pack(">II", 4, 0))


def test_deep_nesting_is_cold(bench: Bench) -> None:
    for header in (b"[" * 50_000, b'{"extFields":' * 20_000, b'{"x":' + b"[" * 50_000):
        frame = struct.pack(">II", 4 + len(header), len(header)) + header
        assert bench.connect().is_cold(frame)


@pytest.mark.parametrize("seed", range(6))
def test_mutations_never_raise(bench: Bench, seed: int) -> None:
    random_source = random.Random(seed)
    frames = stream()
    for _ in range(300):
        data = bytearray(random_source.choice(frames))
        for _ in range(random_source.randint(1, 6)):
            position = random_source.randrange(len(data))
            kind = random_source.randrange(4)
            if kind == 0:
                data[position] = random_source.randrange(256)
            elif kind == 1:
                data[position] ^= 1 << random_source.randrange(8)
            elif kind == 2:
                del data[position : position + random_source.randint(1, 9)]
            else:
                data[position:position] = random_source.randbytes(random_source.randint(1, 9))
            if not data:
                data = bytearray(b"\0")
        wire = bench.connect()
        # A right length lets the mutation reach the parsers; a wrong one the framing.
        if random_source.random() < 0.7 and len(data) >= 8:
            data[:4] = struct.pack(">I", len(data) - 4)
        answers, cold, _, error = wire.feed(bytes(data), send(opaque=99))
        commands(answers)
        assert all(isinstance(frame, bytes) for frame in cold)
        assert error is None or error
        wire.connection.close()
    bench.store.tick(NOW + 10**9)
    bench.store.drain_ready()
    assert bench.connect().ask(send(opaque=5))[0].code == 0


@RELAXED
@given(st.binary(max_size=400))
def test_random_bytes_never_raise(bench: Bench, data: bytes) -> None:
    wire = bench.connect()
    wire.feed(data)
    wire.feed(struct.pack(">II", 4 + len(data), len(data)), data)
    wire.connection.close()


@pytest.mark.parametrize("host", [b"", b"1234", bytes(12)])
def test_a_host_of_another_size_is_refused(bench: Bench, host: bytes) -> None:
    with pytest.raises(ValueError, match="host"):
        bench.kernel.Connection(bench.store, 9, host)


def test_a_connection_outlives_its_store(kernel: Any, tmp_path: Path) -> None:
    bench = Bench(kernel, tmp_path)
    bench.open()
    wire = bench.connect()
    wire.ask(send())
    bench.store.close()
    frame = send()
    answers, cold, _, error = wire.feed(frame)
    assert (answers, cold, error) == (b"", [frame[4:]], None)
    wire.connection.close()


def test_a_closed_store_still_answers_ticks_and_pulls(kernel: Any, tmp_path: Path) -> None:
    bench = Bench(kernel, tmp_path)
    bench.open()
    wire = bench.connect()
    wire.ask(send(), holding_pull(opaque=2, queueId=1, suspendTimeoutMillis=10))
    bench.store.close()
    answers, cold, _, error = wire.feed(pull(opaque=3))
    assert error is None
    assert bool(answers) != bool(cold)
    bench.store.tick(NOW + 10)
    bench.store.drain_ready()
    bench.store.drain_commits()
    bench.store.set_topic("T", 4, 4, 6, True)
    wire.connection.close()


def test_a_topic_in_the_table_that_no_folder_can_have_is_cold(bench: Bench) -> None:
    bench.store.set_topic("a/b", 4, 4, 6, True)
    bench.store.set_topic("x" * 128, 4, 4, 6, True)
    for topic in ("a/b", "x" * 128):
        assert bench.connect().is_cold(send(b=topic))
