"""Untrusted text, made safe to show: on a terminal, in a log, in an error.

A name that a client sends may hold a newline, which forges a log line, or an escape sequence,
which a terminal obeys. :func:`printable` is the one rule for both; what goes to a program (a body
with ``-o raw``, JSON) does not need it.
"""

from __future__ import annotations

import datetime

__all__ = [
    "SHOWN_CHARACTERS_MAX",
    "counted",
    "duration_text",
    "looks_like_seconds",
    "milliseconds_of",
    "noun_for",
    "printable",
    "quoted",
    "seconds_text",
    "time_text",
    "wrong_type",
]

SHOWN_CHARACTERS_MAX = 256
"""A longer text is cut when it is shown; the line says how long it is."""

SECONDS_DIGITS = 10
"""Digits of a time of these days in seconds since 1970."""


def printable(text: str, *, characters_max: int | None = SHOWN_CHARACTERS_MAX) -> str:
    r"""The text on one line, without characters that a terminal or a log reader acts on; those
    behind the first ``characters_max``, None: all, become ``… (N characters)``.

    Control characters, line and paragraph separators, direction marks, other invisible characters
    and lone surrogates become ``\n``, ``\x1b``, ``\u202e`` as in a Python literal; a backslash
    stays as it is.
    """
    cut = text if characters_max is None else text[:characters_max]
    if not cut.isprintable():
        cut = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
            for each in cut
        )
    return cut if len(text) <= (characters_max or len(text)) else f"{cut}… ({len(text)} characters)"


def quoted(text: str) -> str:
    """A name or a key in quotes, made safe by :func:`printable`: its first 64 characters."""
    return f"'{printable(text, characters_max=64)}'"


def split_list(text: str) -> tuple[str, ...]:
    """What ``;`` joins in a setting, without blanks around it; empty parts are left out."""
    return tuple(part.strip() for part in text.split(";") if part.strip())


def milliseconds_of(text: str) -> int:
    """A time as people write it, in milliseconds since 1970: these, or a date with a time, in the
    local zone unless it names one. ValueError: it is neither, or looks like seconds; the text says
    what would be right.
    """
    if text.isascii() and text.isdigit():
        if len(text) == SECONDS_DIGITS:
            raise ValueError(seconds_text(int(text)))
        return int(text)
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{printable(text)!r} is no time; write milliseconds since 1970, or as in "
            "2026-01-31T12:00"
        ) from None


def looks_like_seconds(number: int) -> bool:
    """Whether a number is more likely seconds since 1970 than milliseconds or an offset."""
    return len(str(number)) == SECONDS_DIGITS


def seconds_text(number: int, zone: datetime.tzinfo | None = None) -> str:
    """What to write in place of a number that :func:`looks_like_seconds`; ``zone``: in which the
    time is written, with its name; None: in the local one."""
    when = datetime.datetime.fromtimestamp(number, zone).isoformat()
    return f"{number} looks like seconds since 1970; write {number}000 or {when}"


def time_text(timestamp_ms: int, zone: datetime.tzinfo | None = None) -> str:
    """A time to the millisecond, in that zone or the local one; ``-`` where there is none."""
    if timestamp_ms <= 0:
        return "-"
    try:
        when = datetime.datetime.fromtimestamp(timestamp_ms / 1000, zone).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return when.isoformat(sep=" ", timespec="milliseconds")


_HINTS: dict[tuple[str, str], str] = {
    ("str", "bytes"): "write data.decode()",
    ("str", "int"): "write str(number)",
    ("bytes", "str"): "write text.encode()",
    ("int", "str"): "write int(text)",
    ("float", "str"): "write float(text)",
    ("Message", "bytes"): "write Message(topic, body)",
    ("Message", "str"): "write Message(topic, text.encode())",
    ("Message", "MessageExt"): "write Message(topic, message.body) to send it again",
}
"""By what is wanted and what is given."""

_WANTED: dict[str, tuple[str, str]] = {
    "str": ("a text (str)", "write str(...) of it"),
    "bytes": ("bytes", "encode it"),
    "int": ("a whole number (int)", "write int(...) of it"),
    "float": ("a number", "write float(...) of it"),
    "bool": ("a bool", "write True or False"),
    "Message": ("a Message", "write Message(topic, body)"),
    "MessageQueue": ("a MessageQueue", "take one of queues(topic)"),
    "MessageExt": ("a MessageExt", "give one that a consumer got"),
}
"""What is wanted, as a text, and what to do."""


def wrong_type(value: object, wanted: str) -> str:
    """What is said of a value of a wrong type, behind its name: what it is, what it must be, what
    to do. The value itself may be a secret. ``wanted``: the name of the type that it must have.
    """
    given = type(value).__name__
    text, hint = _WANTED.get(wanted, (_article(wanted), f"give {_article(wanted)}"))
    hint = "leave it out" if value is None else _HINTS.get((wanted, given), hint)
    return f"is of type {given}, not {text}; {hint}"


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def counted(number: int, noun: str, *, plural: str = "") -> str:
    """``1 message``, ``2 messages``; ``plural``: where it is not the noun with an s."""
    return f"{number} {noun_for(number, noun, plural)}"


def noun_for(number: float, noun: str, plural: str = "") -> str:
    """The noun behind a number, one or several; ``plural``: as that of :func:`counted`."""
    return noun if number == 1 else plural or f"{noun}s"


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration_text(milliseconds: float) -> str:
    """The two largest units: ``1 h 59 min``; below a second ``350 ms``, what is negative counts as
    nothing.
    """
    left, rest = divmod(max(int(milliseconds), 0), 1_000)
    if not left:
        return f"{rest} ms" if rest else "0 s"
    parts = []
    for unit, seconds in _UNITS:
        number, left = divmod(left, seconds)
        parts.append(f"{number} {unit}" if number else "")
    first = next(index for index, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)
