"""What the scenarios are judged by counts what it says."""

from __future__ import annotations

import threading
from types import FrameType

from tests.support.servers.counted import LINES_PER_CALLBACK_MAX, LineCounter


def work(rounds: int) -> int:
    done = 0
    for _ in range(rounds):
        done += 1
    return done


def test_each_line_of_a_callback_counts_and_the_one_at_the_limit_is_noted() -> None:
    noted: list[str] = []
    counted: list[int] = []

    def note(frame: FrameType) -> None:
        noted.append(frame.f_code.co_name)

    def count() -> None:
        # In a thread of its own: the tracing of a thread ends with it.
        counter = LineCounter(note)
        counter.start()
        for rounds in (100, LINES_PER_CALLBACK_MAX):
            counter.begin_callback()
            work(rounds)
            counted.append(counter.end_callback())
        counted.append(counter.end_turn())

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    few, many, turn = counted
    assert 200 <= few <= 220
    assert 2 * LINES_PER_CALLBACK_MAX <= many <= 2 * LINES_PER_CALLBACK_MAX + 20
    assert few + many <= turn <= few + many + 20
    assert noted == ["work"]
