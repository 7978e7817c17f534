"""The requests of a connection without one: a peer, a timer and turns that tests make by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from tests.unit.codec.rig import CODECS, TOPIC, Rig

from kerolox.codec.sending import OpenSend, SendChannel, SendCodec
from kerolox.message import Message
from kerolox.protocol.codes import FLAG_ONEWAY, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.core.client_requests import ClientRequests, Queued

__all__ = ["HandRequests", "HandWaiter", "answer_to", "command_of"]


class HandWaiter:
    """A future that a test examines."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return self.is_done and self.result is self.error is None

    def cancel(self) -> None:
        self.is_done = True

    def set_result(self, result: Any) -> None:
        assert not self.is_done
        self.is_done = True
        if isinstance(result, OpenSend):
            assert isinstance(result.answer, Exception)
            self.error = result.answer
        else:
            self.result = "written" if result is None else result

    def set_exception(self, error: Exception) -> None:
        assert not self.is_done
        self.error, self.is_done = error, True

    def __await__(self) -> Any:
        raise AssertionError


def command_of(opaque: int, kind: str = "call", body: bytes = b"x") -> RemotingCommand:
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"i": "x"}, body=body)
    command.opaque = opaque
    if kind == "oneway":
        command.flag |= FLAG_ONEWAY
    return command


def answer_to(opaque: int) -> bytes:
    fields = {"msgId": "0" * 32, "queueId": 0, "queueOffset": opaque}
    return command_of(opaque).response(ext_fields=fields).encode()


class HandRequests:
    """The requests, and what a connection does for them."""

    def __init__(
        self, *, codec: SendCodec = CODECS[0], calls_max: int = 2, buffer_bytes_max: int = 1 << 20
    ) -> None:
        self.now = 100.0
        self.wake_at = inf
        self.turns = 0
        """Turns that were asked for."""
        self.suspected: list[float] = []
        self._flushed: list[bytes] = []
        self._decoder = FrameDecoder()
        self._codec = codec
        self._opaques = codec.Opaques()
        self._bounds = (calls_max, buffer_bytes_max)
        self.requests = ClientRequests(
            "peer:1", self._make_sends, self._arm, self._next_iteration, self.suspected.append
        )
        self.rig = Rig(codec, make_future=HandWaiter)
        self.rig.lane.aim(0, self.requests.sends)

    def _make_sends(
        self, calls: Sequence[dict[int, Any]], request_queue: dict[int, Any]
    ) -> SendChannel:
        return self._codec.SendChannel(
            self._opaques,
            calls,
            request_queue,
            *self._bounds,
            lambda: self.now,
            lambda: None,
            self._flush,
            self._arm,
            self.admit,
        )

    def _flush(self) -> None:
        self._flushed.append(self.requests.sends.take())

    def _arm(self, deadline: float) -> None:
        self.wake_at = self.requests.next_check(deadline, self.now)

    def _next_iteration(self) -> None:
        self.turns += 1

    # -- events -----------------------------------------------------------------------------------
    def ask(
        self, kind: str = "call", *, seconds: float = 3.0, body: bytes = b"x"
    ) -> tuple[int, HandWaiter]:
        """What a client does with an open connection: its opaque, and who waits."""
        requests, deadline = self.requests, self.now + seconds
        has_capacity = requests.sends.has_capacity()
        if kind == "send" and has_capacity:
            requests.sends.feed(bytearray(), 0)  # so that the time is read anew
            begun: Any = self.rig.lane.begin(Message(TOPIC, body), None, round(seconds * 1000))
            return begun[1], begun[0]
        opaque, waiter = self._opaques.allocate(), HandWaiter()
        what = f"{kind} {opaque}"
        command = command_of(opaque, kind, body)
        if kind == "send":
            self._post_later(opaque, waiter, deadline, what, body)
        elif kind == "oneway" and has_capacity:
            requests.sends.write(command.encode())
            waiter.set_result(command)
        elif kind == "pull" and has_capacity:
            requests.pull(command.encode(), opaque, deadline, what, waiter)
        elif kind == "ahead" or has_capacity:
            requests.calls.wait(waiter, opaque, deadline, what)
            requests.sends.write(command.encode())
        else:
            requests.queue(command, deadline, what, waiter)
        return opaque, waiter

    def _post_later(
        self, opaque: int, waiter: HandWaiter, deadline: float, what: str, body: bytes
    ) -> None:
        """As the plain sends do it: their futures are told by another one."""
        ends = (self.now, deadline, 1)
        queue = self.rig.queues[0]
        send = OpenSend(waiter, None, None, None, "", queue, False, *ends)

        class Posted(HandWaiter):
            def set_exception(self, error: Exception) -> None:
                super().set_exception(error)
                send.end(error)

        message = Message(TOPIC, body)
        self.requests.post_later(
            lambda: self.rig.lane.admit(message, 0, opaque, send), opaque, deadline, what, Posted()
        )

    def answer(self, *opaques: int) -> None:
        """Answers arrive, in one piece."""
        data = b"".join(map(answer_to, opaques))
        self.requests.silence.received_at = self.now
        frames, fault = self.requests.sends.feed(bytearray(data), len(data))
        assert fault is None
        for frame in frames:
            self.requests.complete(RemotingCommand.decode(frame))
        self.admit()

    def cancel(self, opaque: int, waiter: HandWaiter) -> None:
        """A caller goes away."""
        waiter.cancel()
        self.rig.lane.withdraw(opaque)
        self.requests.withdraw(opaque)
        self.requests.forget(opaque)
        self.requests.pulls.drop(opaque)
        self.admit()

    def admit(self) -> None:
        self.requests.admit(self.now)

    def block(self, is_blocked: bool) -> None:
        """The peer takes no more, or again."""
        self.requests.sends.blocked = is_blocked
        self.admit()

    def pass_time(self, seconds: float) -> None:
        """Time goes by, and the timer fires if it is due."""
        self.now += seconds
        if self.wake_at <= self.now:
            self.wake_at = inf
            self.requests.expire(self.now)

    def written(self) -> list[int]:
        """The opaques of what was written since the last check."""
        data = b"".join([*self._flushed, self.requests.sends.take()])
        self._flushed.clear()
        return [RemotingCommand.decode(frame).opaque for frame in self._decoder.feed(data)]

    def is_open(self, opaque: int) -> bool:
        """A request with this opaque waits for its response, or to be written."""
        requests = self.requests
        tables = (requests.sends, requests.calls, requests.request_queue.entries, requests.pulls)
        return any(opaque in table for table in tables)

    def request_queue(self) -> list[int]:
        """The opaques of those that wait for room, in order."""
        return list(self.requests.request_queue.entries)

    def queued(self, opaque: int) -> Queued:
        queued = self.requests.request_queue.entries[opaque]
        assert isinstance(queued, Queued)
        return queued
