"""Each step of a run that matters: a hash of all of them, and the last ones as text."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

from tests.simulation.process import current

LINES_MAX = 400


class Trace:
    """What happened, in order."""

    def __init__(
        self, virtual: Callable[[], float], lines_max: int = LINES_MAX, root: str = ""
    ) -> None:
        """``virtual`` gives the loop's time; so many of the last lines are kept. ``root``: the
        folder of the run, which is another one in each process, and left out."""
        self._virtual = virtual
        self._root = root
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=lines_max)
        self.count = 0

    def add(self, text: str) -> None:
        """A step of the current process."""
        process = current()
        if self._root:
            text = text.replace(self._root, "")
        line = f"{self._virtual():.6f} {'-' if process is None else process.name} {text}"
        self._hash.update(line.encode("utf-8", "surrogateescape"))
        self._hash.update(b"\n")
        self.lines.append(line)
        self.count += 1

    def tell(self, text: str) -> None:
        """A line that is shown and not hashed: of a log, with what may differ between two runs."""
        process = current()
        name = "-" if process is None else process.name
        self.lines.append(f"{self._virtual():.6f} {name} | {text}")

    def digest(self) -> str:
        """The hash of all lines so far."""
        return self._hash.hexdigest()
