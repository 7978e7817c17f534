"""The error of a job that can't go on, and what of an error of Spark is for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kerolox.errors import KeroloxError

ERROR_LINES_MAX = 4
"""Lines kept of an error of Spark: the first ones that say something."""

_NOISE = re.compile(
    r"^(?:\s*at |\s*File \"|Traceback |\s*\^+|JVM stacktrace|Caused by: org\.apache\.spark\.Spark|"
    r"Driver stacktrace|\s*\.\.\. \d+ more|=== Streaming|Identifier: |Current |Logical Plan)"
)
_OURS = re.compile(r"\bkerolox\.[\w.]*Error: (.*)$", re.MULTILINE)
_OF_PYTHON = re.compile(r"^\w+Error: .*$", re.MULTILINE)
_STATE = re.compile(r"(?: SQLSTATE: \w+)+(?: Thread State: \w+)?\s*$")
_CLASS = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Error|Exception): ")


class JobError(KeroloxError):
    """A job can't go on; the text says what stands as it was, and what to do next."""


NOTHING_WRITTEN = "nothing was written; mend that and run it again"
"""Of a job that only reads."""


@contextmanager
def clear_errors(what: str, stands: str = NOTHING_WRITTEN) -> Iterator[None]:
    """An error of Spark, or of another library, that is neither ours nor the system's, becomes a
    JobError for people. ``what`` failed, as in ``the audit stopped``; ``stands``: what is as it
    was, and what to do next.
    """
    try:
        yield
    except (KeroloxError, OSError):
        raise
    except Exception as error:
        raise JobError(f"{what}: {reason_of(error)}; {stands}") from error


def reason_of(error: BaseException) -> str:
    """What an error says, in a few lines: of one of Spark the last error of Python in it, or its
    first lines without the places in Java's code."""
    text = str(error)
    found = _OURS.findall(text) or _OF_PYTHON.findall(text)
    if found:
        return _STATE.sub("", str(found[-1])).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.match(line)]
    kept = [_CLASS.sub("", line) for line in lines[:ERROR_LINES_MAX]]
    return " ".join(kept) or type(error).__name__
