"""Failures that no caller gets: of heartbeats, pulls, rebalances, offsets, listeners.

A log line has each; a function of the user's may be told as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.errors import KeroloxError

__all__ = ["FailureCallback", "note_failure", "notify_failure"]

FailureCallback = Callable[[str, BaseException], object]
"""Is told what failed, in the words of the log (``heartbeat failed``), and why: a
:class:`KeroloxError`, or what a function of the user's raised. It runs in the event loop, so it
must not wait; what it raises is logged."""

_log = logging.getLogger(__name__)


def note_failure(
    callback: FailureCallback | None,
    log: logging.Logger,
    what: str,
    error: BaseException,
    *,
    is_expected: bool = False,
) -> None:
    """Log a failure and notify: our own errors, and one that ``is_expected``, as a line, others
    with their traceback."""
    if not is_expected and not isinstance(error, KeroloxError):
        log.error("%s", what, exc_info=error)
    elif reason := str(error):
        log.warning("%s: %s", what, reason)
    else:  # a time limit's has no text
        log.warning("%s", what)
    notify_failure(callback, what, error)


def notify_failure(callback: FailureCallback | None, what: str, error: BaseException) -> None:
    """Notify of a failure that is logged elsewhere."""
    if callback is None:
        return
    try:
        callback(what, error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # also CancelledError: what does not wait is not cancelled itself
        _log.warning("on_failure failed", exc_info=True)
