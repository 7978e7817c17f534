"""How many requests a kernel may answer by itself (``ConnectionKernel.allowance``)."""

from __future__ import annotations

from kerolox.kernel.feed import ALLOWANCE_MAX, FED_MORE
from kerolox.protocol.codes import RequestCode
from tests.support.stores.bench import Bench, commands, pull, request, send


def opaques(answers: bytes) -> list[int]:
    return [each.opaque for each in commands(answers)]


def test_without_a_limit_any_number_is_answered_and_none_is_counted(bench: Bench) -> None:
    wire = bench.connect()
    connection = wire.connection
    assert connection.allowance == ALLOWANCE_MAX
    answers, slow, _, _ = wire.feed(b"".join(send(opaque=n) for n in range(100)))
    assert (opaques(answers), slow) == (list(range(100)), [])
    assert connection.allowance == ALLOWANCE_MAX


def test_what_is_over_the_allowance_is_slow_in_its_order(bench: Bench) -> None:
    wire = bench.connect()
    connection = wire.connection
    frames = [send(opaque=1), pull(opaque=2), send(opaque=3), send(opaque=4), pull(opaque=5)]
    connection.allowance = 3
    answers, slow, _, _ = wire.feed(b"".join(frames))
    assert (opaques(answers), slow) == ([1, 2, 3], [each[4:] for each in frames[3:]])
    assert connection.allowance == 0
    answers, slow, _, _ = wire.feed(send(opaque=6))
    assert (answers, slow) == (b"", [send(opaque=6)[4:]])
    connection.allowance = ALLOWANCE_MAX
    assert opaques(wire.feed(send(opaque=7))[0]) == [7]


def test_frames_that_are_slow_anyway_take_none_of_it(bench: Bench) -> None:
    wire = bench.connect()
    connection = wire.connection
    connection.allowance = 2
    answers, slow, _, _ = wire.feed(
        request(RequestCode.HEART_BEAT, {})
        + send(opaque=1)
        + request(RequestCode.UNREGISTER_CLIENT, {})
    )
    assert (opaques(answers), len(slow)) == ([1], 2)
    assert connection.allowance == 1
    wire.feed(send(opaque=2, b="Unknown"))
    assert connection.allowance == 1, "a send to an unknown topic is slow"


def test_one_way_sends_and_frames_in_pieces_take_of_it_too(bench: Bench) -> None:
    wire = bench.connect()
    connection = wire.connection
    connection.allowance = 2
    whole = send(opaque=1)
    wire.feed(whole[:20])
    assert connection.allowance == 2
    wire.feed(whole[20:])
    assert connection.allowance == 1
    wire.feed(send(opaque=2, oneway=True))
    assert connection.allowance == 0


def test_frames_that_wait_for_the_next_feed_are_counted_when_they_come(bench: Bench) -> None:
    wire = bench.connect()
    connection = wire.connection
    for _ in range(20):
        wire.feed(send(body=bytes(60_000)))
    pulls = [pull(opaque=n, maxMsgNums=32) for n in range(40)]
    connection.allowance = 30
    answers, slow, flags, _ = wire.feed(b"".join(pulls))
    assert flags & FED_MORE
    answered = len(opaques(answers))
    assert connection.allowance == 30 - answered
    while flags & FED_MORE:
        answers, more, flags, _ = wire.feed(b"")
        answered += len(opaques(answers))
        slow = [*(slow), *(more)]
    assert (answered, connection.allowance, len(slow)) == (30, 0, 10)
