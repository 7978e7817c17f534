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
from tests.simulation.process import Process, current

_CLOCKS: dict[str, Callable[[Process], float]] = {
    "time": lambda process: process.clock.time_ns() / 1e9,
    "time_ns": lambda process: process.clock.time_ns(),
    "monotonic": lambda process: process.clock.monotonic_ns() / 1e9,
    "monotonic_ns": lambda process: process.clock.monotonic_ns(),
    "perf_counter": lambda process: process.clock.monotonic_ns() / 1e9,
    "perf_counter_ns": lambda process: process.clock.monotonic_ns(),
    "thread_time": lambda process: 0.0,
    "process_time": lambda process: 0.0,
}
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


def _clock(name: str) -> Callable[[], float]:
    real, simulated = getattr(time, name), _CLOCKS[name]

    def now() -> float:
        process = current()
        return real() if process is None else simulated(process)

    return now


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

_TIME: dict[str, Callable[..., Any]] = {name: _clock(name) for name in _CLOCKS} | {"sleep": _sleep}
_REPLACED: dict[int, Callable[..., Any]] = {
    id(getattr(time, name)): simulated for name, simulated in _TIME.items()
}
"""The real function's id to what stands in for it; the real ones live as long as Python."""

_found: tuple[int, list[tuple[Any, str, Any]], list[tuple[Any, str, Any]]] | None = None


def _holders() -> tuple[list[tuple[Any, str, Any]], list[tuple[Any, str, Any]]]:
    """Where modules of Kerolox hold a function of ``time`` by itself: (module, name, stand-in), and
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
    for name in _RANDOM:
        patches.set(random, name, _drawn(name))
    patches.set(os, "urandom", _urandom)
    patches.set(uuid, "uuid4", _uuid4)
    patches.set(secrets, "randbits", _randbits)
    patches.set(os, "getpid", _getpid)
    _count_anew(patches)


def _count_anew(patches: Patches) -> None:
    """Counters of the process begin where they did in the first run."""
    import kerolox.remoting.server

    patches.set(kerolox.remoting.server, "_connection_ids", itertools.count(1))
