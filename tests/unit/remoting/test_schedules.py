"""Random schedules of a client's connection: room, deadlines, answers, cancellations, loss.

No socket and no clock: a loop that is turned by hand, and a peer that reads, answers, stands still
or goes away as the dice say. What must hold is checked after each step. Those of its core alone
(``test_request_schedules.py``) are compared with a model.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.faults.hand_loop import DeafTransport, HandLoop
from tests.unit.codec.rig import CODECS, TOPIC, Rig

from kerolox.client.core.sending.send import SendHeader
from kerolox.codec.sending import OpenSend
from kerolox.errors import ClientClosedError, ConnectionLostError, RequestTimeoutError
from kerolox.message import Message
from kerolox.protocol.codes import FLAG_ONEWAY, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.client_connection import ClientConnection
from kerolox.remoting.connection import Shared

SCHEDULES, PARTS = 1_500, 3
STEPS = 25
SLICE_BYTES = 1_500
"""A turn is full so soon."""

LATE_SECONDS = 0.011
"""A timer of many calls may be so late."""


@dataclass
class Call:
    """A request of a caller, and what has become of it."""

    opaque: int
    kind: str
    deadline: float
    body: bytes
    future: asyncio.Future[Any] | None = None
    is_answered: bool = False
    is_cancelled: bool = False
    written_at: float = 0.0


def command_of(call: Call) -> RemotingCommand:
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"i": "x"}, body=call.body)
    command.opaque = call.opaque
    if call.kind == "oneway":
        command.flag |= FLAG_ONEWAY
    return command


def end_of(future: asyncio.Future[Any]) -> BaseException | None:
    """What a request failed with."""
    error = future.exception()
    if error is None and isinstance(future.result(), OpenSend):
        assert isinstance(future.result().answer, Exception)
        return future.result().answer
    return error


def answer_to(opaque: int) -> bytes:
    fields = {"msgId": "0" * 32, "queueId": 0, "queueOffset": opaque}
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {})
    request.opaque = opaque
    return request.response(ext_fields=fields).encode()


class Schedule:
    """One connection, its callers and its peer."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.loop = HandLoop()
        self.most = self.dice.randint(1, 5)
        shared = Shared(self.loop, 10, bytearray(4096))  # type: ignore[arg-type]
        codec = CODECS[seed % len(CODECS)]
        opaques = codec.Opaques()
        self.opaques = opaques
        self.connection = ClientConnection(
            shared, "peer", self._asked, lambda _: None, self.most, codec=codec, opaques=opaques
        )
        self.rig = Rig(codec, SendHeader("g", "TBW102", 4), make_future=self.loop.create_future)
        self.rig.lane.aim(0, self.connection.sends)
        self.transport = DeafTransport(self.loop)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.calls: dict[int, Call] = {}
        self.seen: list[int] = []
        """Opaques, as the peer read them."""
        self._decoder = FrameDecoder()

    async def _asked(self, command: RemotingCommand, connection: object) -> None:
        raise AssertionError("the peer asks nothing")

    # -- steps ------------------------------------------------------------------------------------
    def ask(self, kind: str) -> None:
        """What ``RemotingClient`` and the plain sends do with a connection that is open."""
        connection, loop = self.connection, self.loop
        if connection.closed:
            return
        seconds = self.dice.choice((0.001, 0.05, 0.3, 2.0, 10.0))
        deadline = loop.now + seconds
        has_capacity = connection.has_capacity()
        # A send that is written at once gets its opaque from the codec.
        opaque = len(self.calls) if kind == "send" and has_capacity else self.opaques.allocate()
        assert opaque == len(self.calls)
        call = Call(opaque, kind, deadline, bytes(self.dice.choice((1, 50, 300))))
        self.calls[opaque] = call
        what = f"{kind} {opaque}"
        message = Message(TOPIC, call.body)
        if kind == "send" and has_capacity:
            connection.sends.feed(bytearray(), 0)  # so that the time is read anew
            begun = self.rig.lane.begin(message, None, round(seconds * 1_000))
            assert begun is not None
            assert begun[1] == opaque
            call.future = begun[0]  # type: ignore[assignment]
        elif kind == "send":
            call.future = self.post_later(message, opaque, deadline, what)
        elif kind == "oneway" and connection.has_capacity():
            connection.write(command_of(call).encode())
        elif kind == "ahead" or connection.has_capacity():
            call.future = connection.wait_for(opaque, deadline, what)
            connection.write(command_of(call).encode())
        else:
            call.future, _ = connection.queue(command_of(call), deadline, what)
        if call.future is not None:
            call.future.add_done_callback(lambda future: self._done(call, future))

    def post_later(
        self, message: Message, opaque: int, deadline: float, what: str
    ) -> asyncio.Future[Any]:
        """As ``FastSends`` does it."""
        future = self.loop.create_future()
        queue, ends = self.rig.queues[0], (self.loop.now, deadline, 1)
        send = OpenSend(future, None, None, None, "", queue, False, *ends)  # type: ignore[arg-type]
        waiting = self.connection.post_later(
            lambda: self.rig.lane.admit(message, 0, opaque, send), opaque, deadline, what
        )
        waiting.add_done_callback(
            lambda waiting: None if waiting.exception() is None else send.end(waiting.exception())
        )
        return future

    def _done(self, call: Call, future: asyncio.Future[Any]) -> None:
        """The caller goes on."""
        if call.kind != "send":
            self.connection.forget(call.opaque)
        elif future.cancelled():
            self.rig.lane.withdraw(call.opaque)
            self.connection.withdraw(call.opaque)

    def cancel(self) -> None:
        open_calls = [
            c for c in self.calls.values() if c.future is not None and not c.future.done()
        ]
        if open_calls:
            call = self.dice.choice(open_calls)
            call.is_cancelled = True
            assert call.future is not None
            call.future.cancel()

    def read(self) -> None:
        """The peer reads all that was written."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        for frame in self._decoder.feed(data):
            self.seen.append(RemotingCommand.decode(frame).opaque)

    def answer(self) -> None:
        """The peer answers some, in any order, in one piece or two; or one that nobody asked."""
        self.read()
        waiting = [o for o in self.seen if self.calls[o].kind != "oneway"]
        waiting = [o for o in waiting if not self.calls[o].is_answered]
        chosen = self.dice.sample(waiting, self.dice.randint(0, len(waiting)))
        data = b"".join(map(answer_to, chosen))
        if self.dice.random() < 0.1:
            again = [o for o in self.seen if self.calls[o].is_answered]
            data += answer_to(self.dice.choice([*again, 1_000_000]))
        if self.transport.is_gone or self.connection.closed or not data:
            return
        were_open = {o for o in chosen if not self._future(o).done()}
        cut = self.dice.randint(0, len(data))
        for piece in (data[:cut], data[cut:]):
            for start in range(0, len(piece), 4096):
                part = piece[start : start + 4096]
                self.connection.get_buffer(-1)[: len(part)] = part
                self.connection.buffer_updated(len(part))
            if self.dice.random() < 0.3:
                self.loop.turn()
        for opaque in chosen:
            self.calls[opaque].is_answered = True
        lost = [o for o in were_open if not self._future(o).done()]
        assert not lost, f"answers to {lost} came and went unheard"

    def _future(self, opaque: int) -> asyncio.Future[Any]:
        future = self.calls[opaque].future
        assert future is not None
        return future

    def step(self) -> None:
        kind = self.dice.choices(
            (
                "send",
                "call",
                "ahead",
                "oneway",
                "turn",
                "later",
                "answer",
                "cancel",
                "pause",
                "end",
            ),
            (30, 12, 2, 5, 20, 12, 20, 8, 6, 0.8),
        )[0]
        if kind in ("send", "call", "ahead", "oneway"):
            self.ask(kind)
        elif kind == "turn":
            self.loop.turn()
        elif kind == "later":
            self.loop.now += self.dice.choice((0.01, 0.06, 0.5, 3.0))
            self.loop.turn()
        elif kind == "answer":
            self.answer()
        elif kind == "cancel":
            self.cancel()
        elif self.transport.is_gone:
            return
        elif kind == "pause":
            if self.connection.blocked:
                self.connection.resume_writing()
            else:
                self.connection.pause_writing()
        elif self.dice.random() < 0.5:
            self.transport.lose(ConnectionResetError("reset"))
        else:
            self.connection.close()

    # -- what holds -------------------------------------------------------------------------------
    def check(self) -> None:
        """After each step."""
        connection = self.connection
        calls = list(connection.requests.calls.opaques)
        ahead = sum(self.calls[o].kind == "ahead" for o in calls)
        assert len(connection.sends) + len(calls) - ahead <= self.most
        assert not self.loop.faults

    def check_quiet(self) -> None:
        """When nothing is due: nobody waits for room that is there, or beyond the time limit."""
        self.loop.run()
        connection = self.connection
        if not connection.closed:
            assert connection.has_capacity() or not connection.sends.takes_more()
        assert not any(future.done() for future in connection.waiting())
        assert not connection.waiting() or not connection.gone.done()
        late = self.loop.now - LATE_SECONDS
        for call in self.calls.values():
            if call.future is not None and not call.future.done():
                assert call.deadline > late, f"{call.kind} {call.opaque} hangs"

    def check_end(self) -> None:
        """When all time is over: each has its end, the right one, and nothing is kept."""
        if self.connection.blocked and not self.transport.is_gone:
            self.connection.resume_writing()
        self.loop.run()
        self.read()
        self.loop.now += 100.0
        self.loop.run()
        self.read()
        self._check_order()
        for call in self.calls.values():
            if call.future is not None:
                self._check_outcome(call, call.future)
        connection = self.connection
        assert not connection.requests.request_queue
        assert not connection.waiting()
        assert not connection.sends.buffered_bytes
        assert self.rig.sender.open_count == len(connection.sends) == 0
        assert self.loop.timers <= 1  # that of the deadlines, which finds nothing
        if self.transport.is_gone:
            assert connection.gone.done()

    def _check_order(self) -> None:
        """Each was written at most once, in the order in which they came."""
        assert len(set(self.seen)) == len(self.seen)
        in_order = [o for o in self.seen if self.calls[o].kind != "ahead"]
        assert in_order == sorted(in_order)

    def _check_outcome(self, call: Call, future: asyncio.Future[Any]) -> None:
        assert future.done(), f"{call.kind} {call.opaque} hangs"
        if future.cancelled():
            assert call.is_cancelled
            return
        error = end_of(future)
        if error is None:
            assert call.kind == "oneway" or call.is_answered
            return
        assert isinstance(error, (RequestTimeoutError, ConnectionLostError, ClientClosedError))
        if "not sent" in str(error) or "was sent" in str(error):
            assert call.opaque not in self.seen, f"{error}, but it was"


def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small turns, and none that the clock of the machine cuts short."""
    monkeypatch.setattr("kerolox.remoting.client_connection.BUFFER_BYTES_MAX", SLICE_BYTES)
    monkeypatch.setattr("kerolox.remoting.connection.SLICE_SECONDS_MAX", 3600.0)


def run(seed: int) -> Schedule:
    schedule = Schedule(seed)
    for number in range(STEPS):
        schedule.step()
        schedule.check()
        if number % 8 == 0:
            schedule.check_quiet()
    schedule.check_end()
    return schedule


@pytest.mark.parametrize("part", range(PARTS))
def test_a_connection_keeps_its_word_in_any_schedule(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(monkeypatch)
    each = SCHEDULES // PARTS
    for seed in range(part * each, (part + 1) * each):
        try:
            run(seed)
        except BaseException:
            print(f"schedule {seed}")
            raise


def test_the_schedules_reach_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(monkeypatch)
    ends: dict[str, int] = {}
    for seed in range(300):
        for call in run(seed).calls.values():
            future = call.future
            if future is None or future.cancelled():
                end = "cancelled" if future else "one-way"
            else:
                error = end_of(future)
                end = type(error).__name__ if error else "answered"
                end += " unsent" if error and "was not sent" in str(error) else ""
            ends[end] = ends.get(end, 0) + 1
    assert ends.keys() == {
        "one-way",
        "cancelled",
        "answered",
        "RequestTimeoutError",
        "RequestTimeoutError unsent",
        "ConnectionLostError",
    }
    assert min(ends.values()) > 50, ends
