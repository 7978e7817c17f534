"""How much work something is, whatever the machine does meanwhile: lines of Python executed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.support.built import built

__all__ = ["counting_library", "lines_executed", "trace_with"]


class _TooMany(BaseException):
    """Above all that the work itself may handle."""


@cache
def counting_library() -> ctypes.PyDLL:
    """``servers/counted.c``."""
    return ctypes.PyDLL(str(built(Path(__file__).parent / "servers" / "counted.c")))


def trace_with(function: ctypes.c_void_p | None) -> None:
    """Have a ``Py_tracefunc`` called for all frames of this thread from now on, or none."""
    trace = ctypes.pythonapi.PyEval_SetTrace
    trace.argtypes, trace.restype = [ctypes.c_void_p, ctypes.py_object], None
    trace(function, None)


def lines_executed(work: Callable[[], object], *, at_most: int) -> int:
    """The lines that some work executes in this thread, a line that repeats each time.

    Ends the work where they are more than ``at_most``, and gives one more than that.
    """
    library = counting_library()
    count = ctypes.c_longlong.in_dll(library, "lines")
    ctypes.c_longlong.in_dll(library, "lines_max").value = at_most
    ctypes.c_void_p.in_dll(library, "too_many").value = id(_TooMany)
    before = sys.gettrace()
    count.value = 0
    trace_with(ctypes.cast(library.count_line, ctypes.c_void_p))
    try:
        work()
    except _TooMany:
        pass
    finally:
        trace_with(None)
        sys.settrace(before)
    return min(count.value, at_most + 1)
