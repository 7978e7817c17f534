"""A ``kerolox`` process that counts the work of its event loop, turn by turn, and reads no clock.

Started as ``python -m tests.support.servers.counted up ...`` in place of ``kerolox up ...``. It
runs the servers as they are on asyncio's own loop, whose turns can be counted (uvloop's are hidden
in C), and counts:

- lines of Python that were executed, a line that repeats (a comprehension, a loop) each time:
  within each callback, which is what one connection or task does before all others have their turn,
  and within each turn, which is one callback of everybody who has something to do;
- bytes that were read from clients, and bytes that were inflated, within each turn: C works on
  those.

For each connection it counts how many turns its answers took. A callback or turn of too many lines
is noted with the place where the line after the limit was. None of this depends on how busy the
machine is: it is what others wait for, in a unit that is the same everywhere.

Whoever connects to the socket named by ``KEROLOX_COUNTED`` gets :class:`Figures` as JSON, of what
was since the ones before: see :func:`figures_of`.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import ctypes
import json
import os
import socket
import threading
import traceback
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import kerolox.cli.process.loop as cli_loop
from kerolox.remoting.server import ServerConnection
from tests.support.built import built
from tests.support.eventually import SECONDS_MAX

__all__ = [
    "COUNTED_VARIABLE",
    "LINES_PER_CALLBACK_MAX",
    "LINES_PER_TURN_MAX",
    "Figures",
    "LineCounter",
    "figures_of",
]

LINES_PER_CALLBACK_MAX = 200_000
"""Some ten milliseconds of a server that does not count."""

LINES_PER_TURN_MAX = 1_000_000
"""Some fifty milliseconds; also when a thousand connections have something to do at once."""

COUNTED_VARIABLE = "KEROLOX_COUNTED"
"""Of the environment: the abstract name of the socket."""

PLACES_MAX = 5


@dataclass
class Figures:
    """What was counted since somebody asked before."""

    turns: int = 0
    callback_lines_most: int = 0
    """Within one callback."""
    lines_most: int = 0
    """Within one turn; so are the others."""
    read_bytes_most: int = 0
    inflated_bytes_most: int = 0
    waited: dict[str, int] = field(default_factory=dict)
    """``ip:port`` of a client → the most turns from the one in which its request was read, which
    counts as 0, to the one in which it was answered. Right for those that ask one thing at a time.
    """
    places: list[str] = field(default_factory=list)
    """Where the line at the limit was, of the first callbacks and turns with so many."""


def figures_of(name: str) -> Figures:
    """Ask a process for its figures, which begin anew."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(SECONDS_MAX)
        asking.connect(f"\0{name}")
        data = b"".join(iter(lambda: asking.recv(1 << 16), b""))
    return Figures(**json.loads(data))


# -- the process that counts ------------------------------------------------------------------
class LineCounter:
    """``counted.c``: its counts, and the trace function that makes them."""

    def __init__(self, note: Callable[[FrameType], None]) -> None:
        library = ctypes.PyDLL(str(built(Path(__file__).with_suffix(".c"))))
        self._lines = ctypes.c_longlong.in_dll(library, "lines")
        self._lines_before = ctypes.c_longlong.in_dll(library, "lines_before")
        for name, limit in (
            ("callback_limit", LINES_PER_CALLBACK_MAX),
            ("turn_limit", LINES_PER_TURN_MAX),
        ):
            ctypes.c_longlong.in_dll(library, name).value = limit
        self._note = ctypes.PYFUNCTYPE(None, ctypes.py_object)(note)
        pointer = ctypes.cast(self._note, ctypes.c_void_p)
        ctypes.c_void_p.in_dll(library, "note").value = pointer.value
        self._function = ctypes.cast(library.count_line, ctypes.c_void_p)

    def start(self) -> None:
        """Count those of this thread from now on, of all its frames."""
        trace = ctypes.pythonapi.PyEval_SetTrace
        trace.argtypes, trace.restype = [ctypes.c_void_p, ctypes.py_object], None
        trace(self._function, None)

    def begin_callback(self) -> None:
        self._lines.value = 0

    def end_callback(self) -> int:
        lines = self._lines.value
        self._lines_before.value += lines
        self._lines.value = 0
        return lines

    def end_turn(self) -> int:
        lines = self._lines_before.value
        self._lines_before.value = self._lines.value = 0
        return lines


class _Counter:
    def __init__(self) -> None:
        self.figures = Figures()
        self.lines: LineCounter
        self.read_bytes = self.inflated_bytes = self.turn = 0

    def start(self) -> None:
        self.lines = LineCounter(self._note)
        self.lines.start()

    def _note(self, frame: FrameType) -> None:
        if len(self.figures.places) < PLACES_MAX:
            stack = traceback.extract_stack(frame)[-6:]
            told = (f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in stack)
            self.figures.places.append(" > ".join(told))

    def count_inflated(self, made: bytes) -> None:
        """What another thread inflates holds up nobody's turn."""
        if threading.current_thread() is threading.main_thread():
            self.inflated_bytes += len(made)

    def end_callback(self) -> None:
        lines = self.lines.end_callback()
        self.figures.callback_lines_most = max(self.figures.callback_lines_most, lines)

    def end_turn(self) -> None:
        figures = self.figures
        figures.turns += 1
        figures.lines_most = max(figures.lines_most, self.lines.end_turn())
        figures.read_bytes_most = max(figures.read_bytes_most, self.read_bytes)
        figures.inflated_bytes_most = max(figures.inflated_bytes_most, self.inflated_bytes)
        self.turn += 1
        self.read_bytes = self.inflated_bytes = 0


_counter = _Counter()


class _CountingLoop(asyncio.SelectorEventLoop):
    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        _counter.end_turn()


def _count_callbacks() -> None:
    run = asyncio.Handle._run

    def counted(self: asyncio.Handle) -> None:
        _counter.lines.begin_callback()  # without those of the loop itself
        try:
            run(self)
        finally:
            _counter.end_callback()

    asyncio.Handle._run = counted  # type: ignore[method-assign]


class _CountingInflater:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        made: bytes = self._inner.decompress(data, max_length)
        _counter.count_inflated(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _count_inflating() -> None:
    make, inflate = zlib.decompressobj, zlib.decompress

    def counted(data: bytes, *args: Any, **options: Any) -> bytes:
        made = inflate(data, *args, **options)
        _counter.count_inflated(made)
        return made

    zlib.decompressobj = lambda *args, **options: _CountingInflater(make(*args, **options))  # type: ignore[misc, assignment, return-value]
    zlib.decompress = counted  # type: ignore[assignment]


def _count_waiting() -> None:
    """From a read of a connection to the next write to it."""
    transport: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    made, updated = ServerConnection.connection_made, ServerConnection.buffer_updated
    write = transport.write
    read_in: dict[str, int] = {}

    def making(self: ServerConnection, made_transport: asyncio.BaseTransport) -> None:
        made(self, made_transport)
        # The port may have been another connection's.
        read_in.pop(self.remote_address, None)
        _counter.figures.waited.pop(self.remote_address, None)

    def reading(self: ServerConnection, nbytes: int) -> None:
        _counter.read_bytes += nbytes
        read_in.setdefault(self.remote_address, _counter.turn)
        updated(self, nbytes)

    def writing(self: Any, data: Any) -> None:
        client = ":".join(map(str, (self.get_extra_info("peername") or ("", 0))[:2]))
        begin = read_in.pop(client, None)
        if begin is not None:
            waited = _counter.figures.waited
            waited[client] = max(waited.get(client, 0), _counter.turn - begin)
        write(self, data)

    ServerConnection.connection_made = making  # type: ignore[method-assign]
    ServerConnection.buffer_updated = reading  # type: ignore[method-assign]
    transport.write = writing


def _answer_who_asks(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        while True:
            asking, _ = listening.accept()
            with asking:
                figures, _counter.figures = _counter.figures, Figures()
                asking.sendall(json.dumps(asdict(figures)).encode())


def main() -> None:
    name = os.environ[COUNTED_VARIABLE]
    threading.Thread(target=_answer_who_asks, args=(name,), daemon=True).start()
    _count_callbacks()
    _count_inflating()
    _count_waiting()
    cli_loop._loop_factory = lambda: _CountingLoop
    _counter.start()
    from kerolox.cli import main as kerolox

    kerolox()


if __name__ == "__main__":
    main()
