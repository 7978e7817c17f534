"""The races of a client's requests, one by one: answers, deadlines, room, cancellation, closing."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from tests.unit.codec.rig import CODECS, NAMES
from tests.unit.remoting.hand_requests import HandRequests, HandWaiter, command_of

from kerolox.errors import (
    ClientClosedError,
    ConnectionLostError,
    LocalProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.core import requests as module
from kerolox.remoting.core.client_requests import SILENT_SECONDS_MAX, SlowPathNeededError
from kerolox.remoting.core.requests import ENDED_AT_ONCE_MAX, Endings, Requests

if TYPE_CHECKING:
    from kerolox.codec.sending import SendCodec

KINDS = ["call", "pull", "send"]


# -- answers and deadlines ------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_an_answer_before_the_timer_fires_counts_though_the_time_is_over(
    codec: SendCodec, kind: str
) -> None:
    scene = HandRequests(codec=codec)
    opaque, waiter = scene.ask(kind, seconds=1.0)
    scene.now += 1.5
    scene.answer(opaque)
    scene.pass_time(0.0)
    assert waiter.result is not None
    assert waiter.error is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_an_answer_after_the_timer_has_fired_is_dropped(codec: SendCodec, kind: str) -> None:
    scene = HandRequests(codec=codec)
    opaque, waiter = scene.ask(kind, seconds=1.0)
    scene.pass_time(1.5)
    scene.answer(opaque)
    assert isinstance(waiter.error, RequestTimeoutError)
    assert waiter.result is None
    assert not scene.is_open(opaque)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_request_whose_time_is_over_leaves_its_room_to_the_next(
    codec: SendCodec, kind: str
) -> None:
    scene = HandRequests(codec=codec, calls_max=1)
    scene.ask(kind, seconds=1.0)
    second, waiter = scene.ask("call", seconds=5.0)
    scene.written()
    scene.pass_time(1.5)
    assert scene.written() == [second]
    scene.answer(second)
    assert isinstance(waiter.result, RemotingCommand)


def test_one_timer_is_armed_for_the_earliest_of_all_kinds() -> None:
    scene = HandRequests(calls_max=3)
    scene.ask("pull", seconds=30.0)
    assert scene.wake_at == 130.0
    scene.ask("send", seconds=3.0)
    assert scene.wake_at == 103.0
    scene.ask("call", seconds=2.0)
    scene.ask("call", seconds=1.0)  # it waits for room
    assert scene.wake_at == 101.0
    scene.pass_time(1.0)
    assert scene.wake_at == 102.0
    scene.pass_time(3.0)
    assert scene.wake_at == 130.0
    scene.pass_time(30.0)
    assert scene.wake_at == inf
    assert not scene.requests.waiters()


def test_a_timer_of_many_requests_fires_seldomer() -> None:
    scene = HandRequests()
    assert scene.requests.next_check(scene.now, scene.now) == scene.now + module.CHECK_SECONDS_MIN
    for opaque in range(50_000):
        scene.requests.calls.wait(HandWaiter(), opaque, scene.now + 60, "a call")
    later = scene.requests.next_check(scene.now, scene.now) - scene.now
    assert later == pytest.approx(50_000 * module.CHECK_SECONDS_PER_CALL)


def test_an_answer_that_was_never_asked_for_changes_nothing() -> None:
    scene = HandRequests(calls_max=1)
    opaque, _ = scene.ask()
    scene.answer(4_711)
    assert scene.is_open(opaque)


# -- room, and who goes away ----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["call", "send"])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_room_goes_to_who_came_first(codec: SendCodec, kind: str) -> None:
    scene = HandRequests(codec=codec, calls_max=1)
    first, *others = [scene.ask(each)[0] for each in ("call", kind, "oneway", kind)]
    assert scene.written() == [first]
    assert scene.request_queue() == others
    scene.answer(first)
    assert scene.written() == others[:1]
    scene.answer(others[0])
    assert scene.written() == others[1:], "a one-way request takes no room"


@pytest.mark.parametrize("kind", ["call", "send"])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_caller_that_goes_away_as_room_comes_is_passed_over(codec: SendCodec, kind: str) -> None:
    scene = HandRequests(codec=codec, calls_max=1)
    (first, _), (second, gone), (third, waiter) = (scene.ask(kind) for _ in range(3))
    # Its future is cancelled, but its task had no turn yet to say so.
    if kind == "call":
        gone.cancel()
        scene.answer(first)
    else:
        scene.cancel(second, gone)
        scene.answer(first)
    assert scene.written() == [first, third]
    scene.answer(third)
    assert waiter.result is not None
    assert not scene.is_open(second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_caller_that_goes_away_leaves_its_room_to_the_next(codec: SendCodec, kind: str) -> None:
    scene = HandRequests(codec=codec, calls_max=1)
    first, waiter = scene.ask(kind)
    second, _ = scene.ask()
    scene.cancel(first, waiter)
    assert scene.written() == [first, second]


@pytest.mark.parametrize("kind", ["call", "send"])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_room_that_comes_too_late_is_not_used(codec: SendCodec, kind: str) -> None:
    """The timer has not fired yet: our loop stood still, and what was read is handled first."""
    scene = HandRequests(codec=codec, calls_max=1)
    first, _ = scene.ask(seconds=60.0)
    second, late = scene.ask(kind, seconds=1.0)
    third, _ = scene.ask(kind, seconds=60.0)
    scene.now += 1.0
    scene.answer(first)
    assert scene.written() == [first, third]
    assert isinstance(late.error, RequestTimeoutError)
    assert "was not sent" in str(late.error)
    assert not scene.is_open(second)


def test_requests_wait_while_the_peer_takes_no_more_and_go_on_in_order() -> None:
    scene = HandRequests(calls_max=10)
    scene.block(True)
    asked = [scene.ask(kind)[0] for kind in ("call", "send", "oneway", "pull")]
    assert scene.written() == []
    scene.block(False)
    assert scene.written() == asked


def test_a_full_turn_is_written_before_the_next_request() -> None:
    scene = HandRequests(calls_max=10, buffer_bytes_max=1_000)
    asked = [scene.ask("call", body=bytes(600))[0] for _ in range(4)]
    assert len(scene._flushed) == 1
    assert scene.written() == asked


def test_one_that_goes_ahead_passes_those_that_wait_and_takes_room() -> None:
    scene = HandRequests(calls_max=1)
    first, second = scene.ask()[0], scene.ask()[0]
    ahead, _ = scene.ask("ahead")
    assert scene.written() == [first, ahead]
    scene.answer(first)
    assert scene.written() == []
    scene.answer(ahead)
    assert scene.written() == [second]


def test_one_that_no_frame_holds_fails_alone() -> None:
    scene = HandRequests(calls_max=1)
    first, _ = scene.ask()
    _, large = scene.ask(body=bytes(17 << 20))
    third, _ = scene.ask()
    scene.answer(first)
    assert isinstance(large.error, LocalProtocolError)
    assert scene.written() == [first, third]


def test_a_send_that_proves_not_plain_says_so_and_the_next_goes_on() -> None:
    scene, waiter = HandRequests(calls_max=1), HandWaiter()
    first, _ = scene.ask()
    scene.requests.post_later(lambda: False, 900, scene.now + 1, "a send", waiter)
    third, _ = scene.ask()
    scene.answer(first)
    assert isinstance(waiter.error, SlowPathNeededError)
    assert scene.written() == [first, third]


def test_a_request_knows_when_it_was_written_at_last() -> None:
    scene = HandRequests(calls_max=1)
    first, _ = scene.ask()
    second, _ = scene.ask()
    queued = scene.queued(second)
    assert queued.written_at is None
    scene.now += 1.0
    scene.answer(first)
    assert queued.written_at == 101.0


# -- loss and closing -----------------------------------------------------------------------------
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_lost_connection_says_of_each_request_whether_it_was_sent(codec: SendCodec) -> None:
    scene = HandRequests(codec=codec, calls_max=3)
    sent = [scene.ask(kind)[1] for kind in KINDS]
    unsent = [scene.ask(kind)[1] for kind in ("call", "send", "oneway")]
    scene.requests.lost("10.0.0.1:2", " (reset)")
    assert {type(each.error) for each in sent + unsent} == {ConnectionLostError}
    assert all("10.0.0.1:2 closed (reset) during" in str(each.error) for each in sent)
    assert all("to peer:1 closed before" in str(each.error) for each in unsent)
    assert not scene.requests.waiters()
    assert not scene.requests.pulls.opaques


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_closed_client_says_of_each_request_whether_it_was_sent(codec: SendCodec) -> None:
    scene = HandRequests(codec=codec, calls_max=3)
    sent = [scene.ask(kind)[1] for kind in KINDS]
    unsent = [scene.ask(kind)[1] for kind in ("call", "send", "oneway")]
    scene.requests.fail()
    assert {type(each.error) for each in sent + unsent} == {ClientClosedError}
    assert all("whether it was done is unknown" in str(each.error) for each in sent)
    assert all("was sent" in str(each.error) for each in unsent)


@pytest.mark.parametrize("kind", ["call", "send"])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_who_waits_for_room_does_not_get_it_on_a_connection_that_ends(
    codec: SendCodec, kind: str
) -> None:
    scene = HandRequests(codec=codec, calls_max=1)
    first, _ = scene.ask()
    _, waiter = scene.ask(kind)
    scene.written()
    scene.requests.sends.closed = True  # it is closing
    scene.answer(first)
    scene.block(False)
    assert scene.written() == []
    assert not waiter.done()
    scene.requests.lost("10.0.0.1:2", "")
    assert "closed before" in str(waiter.error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_an_answer_that_came_before_the_loss_stays(codec: SendCodec, kind: str) -> None:
    scene = HandRequests(codec=codec)
    opaque, waiter = scene.ask(kind)
    scene.answer(opaque)
    scene.requests.lost("10.0.0.1:2", "")
    scene.pass_time(60.0)
    assert waiter.result is not None
    assert waiter.error is None


def test_after_a_loss_no_timer_has_anything_left_to_do() -> None:
    scene = HandRequests(calls_max=1)
    waiters = [scene.ask(kind)[1] for kind in ("call", "call", "send")]
    scene.requests.lost("10.0.0.1:2", "")
    errors = [waiter.error for waiter in waiters]
    scene.pass_time(60.0)
    assert [waiter.error for waiter in waiters] == errors
    assert scene.wake_at == inf


def test_a_servers_requests_end_with_their_connection_too() -> None:
    armed: list[float] = []
    requests, waiter = Requests(armed.append, lambda: None), HandWaiter()
    answered = HandWaiter()
    requests.calls.wait(waiter, 1, 103.0, "request 1")
    requests.calls.wait(answered, 2, 101.0, "request 2")
    assert armed == [103.0, 101.0]
    requests.complete(command_of(2).response())
    requests.lost("10.0.0.1:2", "")
    assert answered.error is None
    assert isinstance(waiter.error, ConnectionLostError)


# -- silence --------------------------------------------------------------------------------------
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_peer_that_says_nothing_to_sends_is_suspected_since_the_first(codec: SendCodec) -> None:
    scene = HandRequests(codec=codec, calls_max=100)
    opaque, _ = scene.ask("send")
    scene.now += 0.5
    scene.answer(opaque)
    scene.now += 0.1
    began = scene.now
    while scene.now < began + SILENT_SECONDS_MAX:
        assert scene.suspected == []
        scene.ask("send", seconds=0.5)
        scene.pass_time(0.5)
    assert scene.suspected == [began]
    assert scene.requests.silence.lasts(began)


def test_room_that_never_came_is_no_silence() -> None:
    scene = HandRequests(calls_max=0)
    for _ in range(10):
        scene.ask("send", seconds=1.0)
        scene.pass_time(1.0)
    assert scene.suspected == []


# -- many at once ---------------------------------------------------------------------------------
def test_thousands_that_end_at_once_do_so_in_turns_and_in_order() -> None:
    turns, ended = [], []
    endings = Endings(lambda: turns.append(len(ended)))
    endings.add(range(1_000), ended.append)
    endings.add(range(1_000, 1_003), ended.append)
    assert len(ended) == ENDED_AT_ONCE_MAX
    assert len(endings) == 1_003 - ENDED_AT_ONCE_MAX
    while endings:
        endings.go_on()
    assert ended == list(range(1_003))
    assert turns == [ENDED_AT_ONCE_MAX * each for each in range(1, 6)]
    endings.add([], ended.append)
    endings.add([1_003], ended.append)
    assert len(ended) == 1_004


def test_who_is_told_of_an_end_may_end_others_meanwhile() -> None:
    ended: list[int] = []
    endings = Endings(lambda: None)

    def end(number: int) -> None:
        ended.append(number)
        if number == 0:
            endings.add([10, 11], ended.append)

    endings.add([0, 1], end)
    endings.go_on()
    assert ended == [0, 1, 10, 11]


def test_callers_of_a_lost_connection_are_told_in_turns() -> None:
    scene = HandRequests(calls_max=500)
    waiters = [scene.ask("call")[1] for _ in range(1_000)]
    scene.requests.lost("10.0.0.1:2", "")
    done = [sum(waiter.done() for waiter in waiters)]
    while scene.turns:
        scene.turns -= 1
        scene.requests.go_on()
        done.append(sum(waiter.done() for waiter in waiters))
    assert done == [200, 400, 600, 800, 1_000]
