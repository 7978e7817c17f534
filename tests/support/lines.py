"""How much work something is, whatever the machine does meanwhile: lines of Python executed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["lines_executed"]


class _TooMany(BaseException):
    """Above all that the work itself may handle."""


def lines_executed(work: Callable[[], object], *, at_most: int) -> int:
    """The lines that some work executes in this thread, a line that repeats each time.

    Ends the work where they are more than ``at_most``, and gives one more than that.
    """
    count = 0

    def on_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count > at_most:
                raise _TooMany
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        work()
    except _TooMany:
        pass
    finally:
        sys.settrace(before)
    return count
