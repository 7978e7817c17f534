"""Time, randomness and identity of the current process, in place of this machine's.

Code that no simulated process runs gets this machine's: pytest and its threads go on as ever.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import sys
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

from tests.simulation.patches import Patches
from tests.simulation.process import _CURRENT, EPOCH_SECONDS, current

_RANDOM = (
    "random",
    "randrange",
    "randint",
    "choice",
    "getrandbits",
    "shuffle",
    "sample",
    "uniform",
)


# Code asks for the time at each step: each of these is one call, and the loop's.
def _time() -> float:
    process = _CURRENT.get()
    return _real["time"]() if process is None else process.clock.time_ns() / 1e9


def _time_ns() -> int:
    process = _CURRENT.get()
    return _real["time_ns"]() if process is None else process.clock.time_ns()


def _monotonic() -> float:
    process = _CURRENT.get()
    return _real["monotonic"]() if process is None else round(process.clock.virtual() * 1e9) / 1e9


def _monotonic_ns() -> int:
    process = _CURRENT.get()
    return _real["monotonic_ns"]() if process is None else round(process.clock.virtual() * 1e9)


def _thread_time() -> float:
    return _real["thread_time"]() if _CURRENT.get() is None else 0.0


def _drawn(name: str) -> Callable[..., Any]:
    real = getattr(random, name)

    def draw(*args: Any, **more: Any) -> Any:
        process = current()
        if process is None:
            return real(*args, **more)
        return getattr(process.random, name)(*args, **more)

    return draw


def _sleep(seconds: float) -> None:
    process = current()
    if process is None:
        _real_sleep(seconds)
    elif seconds > 0:
        process.stall(seconds)


def _urandom(size: int) -> bytes:
    process = current()
    return _real_urandom(size) if process is None else process.random.randbytes(size)


def _uuid4() -> uuid.UUID:
    return uuid.UUID(bytes=_urandom(16), version=4)


def _randbits(bits: int) -> int:
    process = current()
    return _real_randbits(bits) if process is None else process.random.getrandbits(bits)


def _getpid() -> int:
    process = current()
    return _real_getpid() if process is None else process.pid


_real_sleep, _real_urandom, _real_getpid = time.sleep, os.urandom, os.getpid
_real_randbits = secrets.randbits

_TIME: dict[str, Callable[..., Any]] = {
    "time": _time,
    "time_ns": _time_ns,
    "monotonic": _monotonic,
    "monotonic_ns": _monotonic_ns,
    "perf_counter": _monotonic,
    "perf_counter_ns": _monotonic_ns,
    "thread_time": _thread_time,
    "process_time": _thread_time,
    "sleep": _sleep,
}
_real: dict[str, Callable[[], Any]] = {name: getattr(time, name) for name in _TIME}
_DRAWS: dict[str, Callable[..., Any]] = {name: _drawn(name) for name in _RANDOM}
_OTHERS: list[tuple[Any, str, Callable[..., Any]]] = [
    (os, "urandom", _urandom),
    (uuid, "uuid4", _uuid4),
    (secrets, "randbits", _randbits),
    (os, "getpid", _getpid),
]
_REPLACED: dict[int, Callable[..., Any]] = {
    id(getattr(owner, name)): simulated
    for owner, name, simulated in [
        *((time, name, simulated) for name, simulated in _TIME.items()),
        *((random, name, simulated) for name, simulated in _DRAWS.items()),
        *_OTHERS,
    ]
}
"""The real function's id to what stands in for it; the real ones live as long as Python."""

_found: tuple[int, list[tuple[Any, str, Any]], list[tuple[Any, str, Any]]] | None = None


def _holders() -> tuple[list[tuple[Any, str, Any]], list[tuple[Any, str, Any]]]:
    """Where modules of Kerolox hold such a function by itself: (module, name, stand-in), and
    (keyword defaults, name, stand-in). Looked for once, and again when modules were imported."""
    global _found
    if _found is not None and _found[0] == len(sys.modules):
        return _found[1], _found[2]
    names: list[tuple[Any, str, Any]] = []
    defaults: list[tuple[Any, str, Any]] = []
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("kerolox"):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in _REPLACED:
                names.append((module, name, _REPLACED[id(value)]))
            elif getattr(value, "__module__", None) == module_name:
                functions = [value, *vars(value).values()] if isinstance(value, type) else [value]
                for function in functions:
                    if isinstance(function, types.FunctionType) and function.__kwdefaults__:
                        defaults += (
                            (function.__kwdefaults__, key, _REPLACED[id(default)])
                            for key, default in function.__kwdefaults__.items()
                            if id(default) in _REPLACED
                        )
    _found = len(sys.modules), names, defaults
    return names, defaults


def install(patches: Patches) -> None:
    """Have processes see their own clocks, randomness and process id."""
    names, defaults = _holders()
    for name, simulated in _TIME.items():
        patches.set(time, name, simulated)
    for module, name, simulated in names:
        patches.set(module, name, simulated)
    for held, name, simulated in defaults:
        patches.set_item(held, name, simulated)
    for name, simulated in _DRAWS.items():
        patches.set(random, name, simulated)
    for owner, name, simulated in _OTHERS:
        patches.set(owner, name, simulated)
    _count_anew(patches)


def _count_anew(patches: Patches) -> None:
    """Counters of the process begin where they did in the first run."""
    import kerolox.clock
    import kerolox.remoting.server

    # Read from this machine's clocks when it was imported.
    patches.set(kerolox.clock, "_STEADY_FROM_NS", EPOCH_SECONDS * 1_000_000_000)
    patches.set(kerolox.remoting.server, "_connection_ids", itertools.count(1))
