"""Settings from ``.properties`` files, the way ``broker.conf`` and ``namesrv.conf`` are written.

The same file starts a RocketMQ server, so the syntax is Java's (comments, continued lines,
escapes) and the keys are RocketMQ's. Where Java swallows a mistake and goes on with a default,
this module raises :class:`ConfigError` with the file, the key and what would be right:

- a key that nobody knows is an error that names the nearest known one;
- a key that RocketMQ knows and Kerolox does not use is a warning in the log;
- ``listenPort=10911 #mine`` is an error: a comment has a line of its own.

A role's settings are a frozen, keyword-only dataclass. A field ``listen_port`` is the key
``listenPort``; ``field(metadata={"key": "brokerIP1"})`` overrides that rule. The other metadata
that count: ``min`` and ``max`` (numbers, inclusive) and ``choices`` (texts, compared exactly).
Field types: ``str``, ``int``, ``float``, ``bool``, ``Path``, and each of them ``| None``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import os
import re
import shutil
import stat
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kerolox.errors import ConfigError

__all__ = [
    "camel",
    "convert_setting",
    "format_properties",
    "keep_mode",
    "load_settings",
    "nearest",
    "parse_properties",
    "read_properties",
    "setting_keys",
    "setting_text",
    "store_settings_file",
    "write_with_backup",
]

SETTINGS_FILE_BYTES_MAX = 1024 * 1024
"""Larger files are refused: they are no settings."""

_log = logging.getLogger(__name__)
_Settings = TypeVar("_Settings")

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_TRAILING_COMMENT = re.compile(r"\s[#!]")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def read_properties(path: Path) -> dict[str, str]:
    """Read a ``.properties`` file; a key given twice has its last value, as in Java.

    Raises:
        ConfigError: the file can't be read, is too large, or has a broken escape.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from error
    if len(data) > SETTINGS_FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {SETTINGS_FILE_BYTES_MAX} bytes; no settings file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # What Java assumes of every .properties file.
        text = data.decode("iso-8859-1")
    return parse_properties(text, where=str(path))


def parse_properties(text: str, *, where: str = "properties") -> dict[str, str]:
    """Parse Java ``.properties`` text.

    Raises:
        ConfigError: a ``\\u`` escape without four hex digits.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        at = f"{where}, line {number}"
        properties[_unescape(line[:end], at)] = _unescape(rest, at)
    return properties


def format_properties(values: Mapping[str, str]) -> str:
    """``key=value`` lines as ``MixAll.properties2String`` gives them, without escapes."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def camel(name: str) -> str:
    """``listen_port`` → ``listenPort``."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is most likely a misspelling of."""
    by_folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def setting_keys(settings_type: type[Any]) -> dict[str, str]:
    """Key in the file → field name of a settings dataclass."""
    return {
        str(field.metadata.get("key", camel(field.name))): field.name
        for field in dataclasses.fields(settings_type)
    }


def load_settings(
    settings_type: type[_Settings],
    values: Mapping[str, str],
    *,
    where: str,
    known_unused: frozenset[str] = frozenset(),
    overrides: Mapping[str, object] | None = None,
) -> _Settings:
    """Make settings of type ``settings_type`` from the texts of a file.

    Args:
        settings_type: a frozen, keyword-only dataclass.
        values: key → text, from :func:`read_properties`.
        where: the name of the file, for errors.
        known_unused: keys of RocketMQ that Kerolox accepts with a warning.
        overrides: field name → value, from the command line or a caller; stronger than the file.
            None means not given. Texts are converted as those of a file are.

    Raises:
        ConfigError: an unknown key, or a value that does not fit; the text names file and key.
    """
    keys = setting_keys(settings_type)
    _refuse_unknown(values, keys, known_unused, where)
    hints = typing.get_type_hints(settings_type)
    fields = {field.name: field for field in dataclasses.fields(settings_type)}  # type: ignore[arg-type]
    given: dict[str, object] = {}
    for key, text in values.items():
        if key in keys:
            name = keys[key]
            given[name] = convert_setting(
                text, hints[name], fields[name].metadata, where=f"{where}: {key}"
            )
    for name, value in (overrides or {}).items():
        if name not in fields:
            raise ConfigError(f"there is no setting {name!r}{_did_you_mean(name, fields)}")
        if value is None:
            continue
        metadata = fields[name].metadata
        if isinstance(value, str):
            given[name] = convert_setting(value, hints[name], metadata, where=f"option {name}")
        else:
            given[name] = _check_limits(value, metadata, f"option {name}")
    try:
        return settings_type(**given)
    except ConfigError as error:
        # A rule of several settings, checked in __post_init__, which does not know the file.
        raise ConfigError(f"{where}: {error}") from error


def convert_setting(
    text: str, hint: object, metadata: Mapping[str, Any] = types.MappingProxyType({}), *, where: str
) -> object:
    """One text of a file as a value of the field's type.

    Raises:
        ConfigError: the text does not fit; begins with ``where``.
    """
    text = text.strip()
    if _TRAILING_COMMENT.search(text):
        raise ConfigError(
            f"{where}: {text!r} ends in a comment; a comment must be on a line of its own"
        )
    plain = _plain_type(hint)
    converter = _CONVERTERS.get(plain)
    if converter is None:
        raise TypeError(f"{where}: no conversion from text to {hint}")
    return _check_limits(converter(text, where), metadata, where)


def setting_text(value: object) -> str:
    """A setting as it stands in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines without comments, continued lines joined; with the number of their first line."""
    pending, first = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield first, pending + line
        pending = ""
    if pending:
        yield first, pending


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        character = line[position]
        if character == "\\":
            position += 2
            continue
        if character in "=:" or character in _BLANKS:
            return position
        position += 1
    return len(line)


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            parts.append(character if character != "\\" else "")
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
                raise ConfigError(f"{where}: \\u{digits} is no escape; it needs four hex digits")
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    joined = "".join(parts)
    # Escaped characters beyond 0xFFFF come as two surrogates.
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _refuse_unknown(
    values: Mapping[str, str], keys: Mapping[str, str], known_unused: frozenset[str], where: str
) -> None:
    known = keys.keys() | known_unused
    unknown = sorted(values.keys() - known)
    if unknown:
        named = "; ".join(f"{key!r}{_did_you_mean(key, known)}" for key in unknown)
        noun = "setting" if len(unknown) == 1 else "settings"
        raise ConfigError(f"{where}: unknown {noun} {named}")
    for key in sorted(values.keys() & known_unused - keys.keys()):
        _log.warning("%s: setting %s is not used and has no effect", where, key)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    best = nearest(name, known)
    return f" (did you mean {best!r}?)" if best else ""


def _plain_type(hint: object) -> object:
    """The one type in ``X | None``."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [each for each in typing.get_args(hint) if each is not type(None)]
        return members[0] if len(members) == 1 else hint
    return hint


def _check_limits(value: object, metadata: Mapping[str, Any], where: str) -> object:
    low, high, choices = (metadata.get(name) for name in ("min", "max", "choices"))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if low is not None and value < low:
            raise ConfigError(f"{where}: {value} is too small; the least is {low}")
        if high is not None and value > high:
            raise ConfigError(f"{where}: {value} is too large; the most is {high}")
    if choices is not None and value not in choices:
        best = nearest(str(value), choices)
        hint = f" (did you mean {best!r}?)" if best else ""
        raise ConfigError(f"{where}: {value!r} is none of {', '.join(choices)}{hint}")
    return value


def _convert_bool(text: str, where: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{where}: {text!r} is neither true nor false")
    return text == "true"


def _convert_int(text: str, where: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ConfigError(f"{where}: {text!r} is no whole number")
    value = int(text) if len(text) < 24 else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise ConfigError(f"{where}: {text!r} does not fit 64 bits")
    return value


def _convert_float(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is no number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{where}: {text!r} is no finite number")
    return value


_CONVERTERS: dict[object, Callable[[str, str], object]] = {
    str: lambda text, where: text,
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    Path: lambda text, where: Path(text).expanduser(),
}


def store_settings_file(
    path: Path, settings: Mapping[str, str], changed: Mapping[str, str]
) -> None:
    """Write all settings, what was changed, and what else the file has.

    Raises:
        ConfigError, OSError: the file can't be read or written.
    """
    kept = read_properties(path) if path.exists() else {}
    text = format_properties(kept | dict(settings) | dict(changed)).replace("\\", "\\\\")
    write_with_backup(path, text)


def keep_mode(path: Path, descriptor: int) -> None:
    """Give a file that will take the place of ``path`` the rights of ``path``, if it is there: an
    operator may have widened or narrowed them."""
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))


def write_with_backup(path: Path, text: str) -> None:
    """Replace a file the way RocketMQ's ``MixAll.string2File`` does: the new text goes to
    ``.tmp``, the old file is kept as ``.bak``, then ``.tmp`` takes its place. A reader sees the
    old file or the new one, never a part.

    Raises:
        OSError: the folder can't be made or the file can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        keep_mode(path, file.fileno())
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        shutil.copy(path, path.with_name(path.name + ".bak"))
    temporary.replace(path)
