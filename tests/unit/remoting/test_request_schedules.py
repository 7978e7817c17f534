"""A thousand random schedules of a client's requests, compared with a model of a few lines.

The model has what is said of them: room for so many, first come first served, each until its own
deadline, one end for each. Time is a grid of 125 ms, on which timers are exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.unit.codec.rig import CODECS
from tests.unit.remoting.hand_requests import HandRequests, HandWaiter

from kerolox.errors import ClientClosedError, ConnectionLostError, RequestTimeoutError

SCHEDULES = 1_000
STEPS = 30
GRID_SECONDS = 0.125
KINDS = ("send", "call", "pull", "oneway", "ahead")


@dataclass
class Asked:
    """A request, as the model sees it."""

    opaque: int
    kind: str
    deadline: int
    waiter: HandWaiter
    end: str = ""
    """Empty: it has none."""


class Model:
    """What becomes of requests."""

    def __init__(self, calls_max: int) -> None:
        self.calls_max = calls_max
        self.now = 0
        self.open: dict[int, Asked] = {}
        self.request_queue: list[Asked] = []
        self.written: list[int] = []
        self.is_blocked = self.is_closed = False

    def has_capacity(self) -> bool:
        return not (self.is_blocked or self.is_closed) and len(self.open) < self.calls_max

    def ask(self, asked: Asked) -> None:
        if asked.kind == "ahead" or (not self.request_queue and self.has_capacity()):
            self._write(asked)
        elif asked.kind == "pull":
            asked.end = "none"  # a pull asks for room before
        else:
            self.request_queue.append(asked)

    def _write(self, asked: Asked) -> None:
        self.written.append(asked.opaque)
        if asked.kind == "oneway":
            asked.end = "done"
        else:
            self.open[asked.opaque] = asked

    def admit(self) -> None:
        while self.request_queue and self.has_capacity():
            asked = self.request_queue.pop(0)
            if asked.deadline <= self.now:
                asked.end = "late unsent"
            else:
                self._write(asked)

    def answer(self, opaque: int) -> None:
        asked = self.open.pop(opaque, None)
        if asked is not None:
            asked.end = "done"

    def cancel(self, asked: Asked) -> None:
        asked.end = "cancelled"
        self.open.pop(asked.opaque, None)
        if asked in self.request_queue:
            self.request_queue.remove(asked)
        self.admit()

    def pass_time(self, steps: int) -> None:
        self.now += steps
        for asked in [each for each in self.open.values() if each.deadline <= self.now]:
            asked.end = "late"
            del self.open[asked.opaque]
        for asked in [each for each in self.request_queue if each.deadline <= self.now]:
            asked.end = "late unsent"
            self.request_queue.remove(asked)
        self.admit()

    def lose(self, how: str) -> None:
        self.is_closed = True
        for asked in self.open.values():
            asked.end = how
        for asked in self.request_queue:
            asked.end = f"{how} unsent"
        self.open.clear()
        self.request_queue.clear()


def end_of(waiter: HandWaiter) -> str:
    """What a caller learned, in the model's words."""
    if not waiter.done():
        return ""
    error = waiter.error
    if error is None:
        return "cancelled" if waiter.result is None else "done"
    is_unsent = "not sent" in str(error) or "was sent" in str(error)
    kinds = {RequestTimeoutError: "late", ConnectionLostError: "lost", ClientClosedError: "closed"}
    return kinds[type(error)] + (" unsent" if is_unsent else "")


class Schedule:
    """One connection's requests, and the model of them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        most = self.dice.randint(1, 5)
        buffer_bytes_max = self.dice.choice((500, 1 << 20))
        codec = CODECS[seed % len(CODECS)]
        self.scene = HandRequests(codec=codec, calls_max=most, buffer_bytes_max=buffer_bytes_max)
        self.model = Model(most)
        self.asked: list[Asked] = []
        self.written: list[int] = []

    def step(self) -> None:
        names = ("ask", "answer", "cancel", "pass_time", "stall", "block", "end")
        weights = (40, 22, 10, 20, 4, 8, 0.8)
        getattr(self, self.dice.choices(names, weights)[0])()

    def ask(self) -> None:
        kind = self.dice.choices(KINDS, (40, 30, 10, 10, 3))[0]
        if self.scene.requests.sends.closed or (kind == "pull" and not self.model.has_capacity()):
            return
        if kind == "pull" and self.model.request_queue:
            return
        steps = self.dice.choice((1, 2, 5, 40))
        opaque, waiter = self.scene.ask(kind, seconds=steps * GRID_SECONDS)
        asked = Asked(opaque, kind, self.model.now + steps, waiter)
        self.asked.append(asked)
        self.model.ask(asked)

    def answer(self) -> None:
        some = [each.opaque for each in self.model.open.values()]
        chosen = self.dice.sample(some, self.dice.randint(0, len(some)))
        if self.dice.random() < 0.2:
            chosen.append(self.dice.choice([each.opaque for each in self.asked] or [1_000]))
        if not self.scene.requests.sends.closed:
            self.scene.answer(*dict.fromkeys(chosen))
            for opaque in chosen:
                self.model.answer(opaque)
            self.model.admit()

    def cancel(self) -> None:
        some = [each for each in self.asked if not each.end]
        if some:
            asked = self.dice.choice(some)
            self.scene.cancel(asked.opaque, asked.waiter)
            self.model.cancel(asked)

    def pass_time(self) -> None:
        steps = self.dice.choice((1, 1, 2, 10))
        self.scene.pass_time(steps * GRID_SECONDS)
        self.model.pass_time(steps)

    def stall(self) -> None:
        """The loop stands still; what has arrived meanwhile is read before the timer fires."""
        steps = self.dice.choice((1, 3, 50))
        self.scene.now += steps * GRID_SECONDS
        self.model.now += steps
        self.answer()
        self.scene.pass_time(0.0)
        self.model.pass_time(0)

    def block(self) -> None:
        self.model.is_blocked = not self.model.is_blocked
        self.scene.block(self.model.is_blocked)
        self.model.admit()

    def end(self) -> None:
        if self.dice.random() < 0.5:
            self.scene.requests.lost("10.0.0.1:2", "")
            self.model.lose("lost")
        else:
            self.scene.requests.fail()
            self.model.lose("closed")

    def check(self) -> None:
        scene, model = self.scene, self.model
        assert [end_of(each.waiter) for each in self.asked] == [each.end for each in self.asked]
        self.written += scene.written()
        assert self.written == model.written
        assert scene.request_queue() == [each.opaque for each in model.request_queue]
        for asked in self.asked:
            assert scene.is_open(asked.opaque) is not bool(asked.end)
        requests = scene.requests
        assert scene.rig.sender.open_count == len(requests.sends)
        assert len(requests.calls) + len(requests.pulls) + len(requests.sends) == len(model.open)
        assert not scene.turns


def run(seed: int) -> Schedule:
    schedule = Schedule(seed)
    for _ in range(STEPS):
        schedule.step()
        schedule.check()
    schedule.scene.pass_time(20_000 * GRID_SECONDS)
    schedule.model.pass_time(20_000)
    schedule.check()
    assert all(each.end for each in schedule.asked)
    return schedule


def test_requests_end_as_the_model_says_in_any_schedule_and_reach_every_end() -> None:
    ends: set[tuple[str, str]] = set()
    for seed in range(SCHEDULES):
        try:
            ends.update((asked.kind, asked.end) for asked in run(seed).asked)
        except BaseException:
            print(f"schedule {seed}")
            raise
    lost = {"lost", "closed"}
    unsent = {"late unsent", "lost unsent", "closed unsent"}
    for kind in ("send", "call"):
        of_kind = {end for each, end in ends if each == kind}
        assert of_kind == {"done", "late", "cancelled"} | lost | unsent
    assert {end for each, end in ends if each == "pull"} - lost == {"done", "late", "cancelled"}
    assert {end for each, end in ends if each == "oneway"} >= {"done", "late unsent"}
