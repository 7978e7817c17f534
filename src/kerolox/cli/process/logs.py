"""Log lines of the command line: where they go and what may stand in them.

Names that clients send end up in lines, and in the texts of exceptions. One formatter escapes what
every record holds, so that no line can be forged and no call site has to think of it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TextIO

from kerolox.errors import ConfigError
from kerolox.remoting import AUDIT_LOGGER
from kerolox.text import printable

LINES_PER_SECOND_MAX = 10
"""Lines of one kind (one text before its values are filled in) within a second."""

KINDS_MAX = 1024
"""Kinds that are told apart at the same time; more start anew."""


class LogLimit(logging.Filter):
    """Lets at most :data:`LINES_PER_SECOND_MAX` lines of a kind through in a second; the next one
    after it says how many were left out.

    Whoever may connect can make a server write lines: bad frames, TLS, refused connections. A
    thousand of them a second say no more than ten, fill the disk and cost the time of others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, exempt: str = "") -> None:
        """``exempt``: a logger that limits its lines itself; ``clock``: seconds."""
        super().__init__()
        self._exempt = exempt
        self._clock = clock
        self._seen: dict[tuple[str, object], tuple[float, int]] = {}
        """Kind → start of its second, lines in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; called by ``logging``."""
        if record.name == self._exempt:
            return True
        kind = (record.name, record.msg)
        now = self._clock()
        since, count = self._seen.get(kind, (now, 0))
        if now - since >= 1:
            left_out = count - LINES_PER_SECOND_MAX
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} more lines like this left out)"
                record.args = ()
            since, count = now, 0
        if kind not in self._seen and len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = (since, count + 1)
        return count < LINES_PER_SECOND_MAX


LINE_CHARACTERS_MAX = 2048
"""A longer message, or text of an exception, is cut."""

CHAIN_MAX = 8
"""Exceptions of one traceback that are shown: the raised one, its causes, members of a group."""

_log = logging.getLogger(__name__)
_files: list[ReopenedFile] = []
"""The log file and that of audit lines, if there are any."""

TEXT, JSON = "text", "json"
"""How a line is written."""

_FORMAT = "%(asctime)s %(levelname)s {who}%(name)s: %(message)s"


class LogFormatter(logging.Formatter):
    """One line per record, and one per line of its traceback; whatever the texts are, they make no
    further lines and hold nothing that a terminal obeys."""

    def __init__(self, who: str = "") -> None:
        """``who``: the process, where several write to one place."""
        super().__init__(_FORMAT.format(who=f"[{who}] " if who else ""))

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines. ``record.exc_text``, which others may have made, is not examined."""
        record.message = printable(record.getMessage(), characters_max=LINE_CHARACTERS_MAX)
        record.asctime = self.formatTime(record)
        lines = [self.formatMessage(record)]
        if record.exc_info and record.exc_info[1] is not None:
            lines += traceback_lines(record.exc_info[1])
        if record.stack_info:
            lines += (_shown(line) for line in record.stack_info.splitlines())
        return "\n".join(lines)


def traceback_lines(error: BaseException) -> list[str]:
    """What ``traceback.format_exception`` shows, with the text of each exception on one line."""
    return list(_chain(error, "", set()))


class JsonFormatter(logging.Formatter):
    """One line of JSON per record, with members ``time`` (UTC, to the millisecond), ``level``,
    ``logger`` and ``message``; ``exception`` and ``stack`` where there is one, ``audit`` instead of
    a message for audit lines (:mod:`kerolox.remoting.audit`); ``broker`` where several write to
    one place."""

    def __init__(self, who: str = "") -> None:
        """``who``: see :class:`LogFormatter`."""
        super().__init__()
        self._who = {"broker": who} if who else {}

    def format(self, record: logging.LogRecord) -> str:
        """The record's line. ``record.exc_text``, which others may have made, is not examined."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        members: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._who,
        }
        if record.name == AUDIT_LOGGER:
            members["audit"] = json.loads(record.getMessage())
        else:
            members["message"] = _shown(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            members["exception"] = "\n".join(traceback_lines(record.exc_info[1]))
        if record.stack_info:
            members["stack"] = "\n".join(map(_shown, record.stack_info.splitlines()))
        return json.dumps(members, ensure_ascii=False)


class PlainFormatter(logging.Formatter):
    """The message alone: an audit line, which has its time in it and is safe by itself."""

    def format(self, record: logging.LogRecord) -> str:
        """The message."""
        return record.getMessage()


class ReopenedFile(logging.FileHandler):
    """A log file that is opened again when it was moved away or deleted, as logrotate does, or when
    it is asked to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._place = self._opened_place()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record where the name is now."""
        self.follow()
        super().emit(record)

    def follow(self) -> None:
        """Open the file anew if it is no longer what its name stands for. Where that fails the old
        one stays, and the next line tries again."""
        try:
            place: tuple[int, int] | None = _place(os.stat(self.baseFilename))
        except FileNotFoundError:
            place = None
        except OSError:
            return
        if place != self._place:
            with contextlib.suppress(OSError):
                self.reopen()

    def _opened_place(self) -> tuple[int, int]:
        assert self.stream is not None
        return _place(os.fstat(self.stream.fileno()))

    def reopen(self) -> None:
        """Go on in the file that has the name now; it is made. Where that fails, an OSError, the
        old one stays.
        """
        assert self.stream is not None
        # A pipe that nobody reads is an error then, and no wait for a reader.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self.baseFilename, flags, 0o666)
        try:
            os.set_blocking(descriptor, True)
            # The number stays: what is to be written in a crash knows nothing else.
            os.dup2(descriptor, self.stream.fileno(), inheritable=False)
        finally:
            os.close(descriptor)
        self._place = self._opened_place()


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def configure_logging(
    level: str, file: Path | None = None, *, form: str = TEXT, who: str = ""
) -> None:
    """Log lines of that level and above go to a file, or to stderr, of each kind a few a second.
    What ends a thread, or the process, is shown the same way. Audit lines go with them; beside a
    log file they have one of their own (``broker.audit.log`` of ``broker.log``), whatever the
    level. ``form``: ``text`` or ``json``. ``who``: the broker, where several have one file.
    ConfigError: a file can't be opened.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = _opened(file)
        if file.is_file():  # beside a pipe or a terminal there is no place for another one
            _log_audit_to(_opened(file.with_name(f"{file.stem}.audit{file.suffix}")))
    handler.addFilter(LogLimit(exempt=AUDIT_LOGGER))
    handler.setFormatter(JsonFormatter(who) if form == JSON else LogFormatter(who))
    logging.basicConfig(handlers=[handler], level=level.upper())
    threading.excepthook = _log_ended_thread
    sys.excepthook = _show_uncaught


def reopen_log() -> None:
    """Open the log files anew, if there are any. A failure is a line in the old one."""
    for file in _files:
        try:
            file.reopen()
        except OSError as error:
            _log.error("%s can't be opened: %s; the old file goes on", file.baseFilename, error)


def log_stream() -> TextIO:
    """Where log lines go; the same for the life of the process."""
    return (_files and _files[0].stream) or sys.stderr


def _opened(path: Path) -> ReopenedFile:
    try:
        file = ReopenedFile(path)
    except OSError as error:
        raise ConfigError(f"the log file {path} can't be opened: {error.strerror}") from error
    _files.append(file)
    return file


def _log_audit_to(file: ReopenedFile) -> None:
    file.setFormatter(PlainFormatter())
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.addHandler(file)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def write_lines(lines: list[str]) -> None:
    """Write lines that are no records to where log lines go, escaped as those are, as text
    in each format: stacks, as a crash shows them."""
    if _files:
        _files[0].follow()
    stream = log_stream()
    if stream is None:
        return
    stream.write("".join(f"{_shown(line)}\n" for line in lines))
    stream.flush()


def _chain(error: BaseException, indent: str, seen: set[int]) -> Iterator[str]:
    """The lines of an exception, after those of what caused it."""
    seen.add(id(error))
    before, how = error.__cause__, "The above exception was the direct cause of this one:"
    if before is None and not error.__suppress_context__:
        before, how = error.__context__, "While the above exception was handled, this one came:"
    if before is not None and id(before) not in seen and len(seen) < CHAIN_MAX:
        yield from _chain(before, indent, seen)
        yield indent + how
    if error.__traceback__ is not None:
        yield indent + "Traceback (most recent call last):"
        for chunk in traceback.format_tb(error.__traceback__):
            yield from (indent + _shown(line) for line in chunk.splitlines())
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    yield indent + _shown(text)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            if len(seen) < CHAIN_MAX:
                yield from _chain(member, indent + "  | ", seen)


def _shown(text: str) -> str:
    return printable(text, characters_max=LINE_CHARACTERS_MAX)


def _log_ended_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = "a thread" if ended.thread is None else ended.thread.name
        _log.error("%s ended", name, exc_info=ended.exc_value)


def _show_uncaught(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    if sys.stderr is not None:
        sys.stderr.write("\n".join(traceback_lines(error)) + "\n")
