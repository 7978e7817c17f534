"""The status of work that no event loop runs: of files that are read."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from kerolox.cli.output import (
    STATUS_AFTER_SECONDS,
    STATUS_SECONDS,
    clear_status,
    has_status,
    show_status,
)


@contextlib.contextmanager
def status_of(doing: Callable[[], str]) -> Iterator[None]:
    """Show on a terminal what is done meanwhile, when that takes long.

    Args:
        doing: what is shown before the seconds; empty: nothing. A thread calls it.
    """
    if not has_status():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        begin, pause = time.monotonic(), STATUS_AFTER_SECONDS
        while not ended.wait(pause):
            if text := doing():
                show_status(f"{text}, {time.monotonic() - begin:.0f} s")
            pause = STATUS_SECONDS

    showing = threading.Thread(target=show, daemon=True)
    showing.start()
    try:
        yield
    finally:
        ended.set()
        showing.join()
        clear_status()
