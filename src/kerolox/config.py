"""Settings from ``.properties`` files, the way ``broker.conf`` and ``namesrv.conf`` are written.

The same file starts a RocketMQ server, so the syntax is Java's (comments, continued lines,
escapes) and the keys are RocketMQ's. Where Java swallows a mistake and goes on with a default,
this module raises :class:`ConfigError` with the file, the key and what would be right:

- a key that nobody knows is an error that names the nearest known one;
- a key that RocketMQ knows and Kerolox does not use is a warning in the log;
- ``listenPort=10911 #mine`` is an error: a comment has a line of its own.

A role's settings are a frozen, keyword-only dataclass. A field ``listen_port`` is the key
``listenPort``; ``field(metadata={"key": "brokerIP1"})`` overrides that rule. The other metadata
that count: ``min`` and ``max`` (numbers, inclusive), ``choices`` (texts, compared exactly),
``bytes`` (the most that a text or path may have, in UTF-8), ``secret`` (never shown, in no error
either) and what :mod:`kerolox.dynamic_config` asks for. ``key`` None: no setting. Field types:
``str``, ``int``, ``float``, ``bool``, ``Path``, and each of them ``| None``, which an empty number
or switch is.

Whatever the file has, the work is bounded: a value has a length, and three unknown keys are named.
Only names of sane length are compared with the known ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import logging
import os
import re
import stat
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypedDict, TypeVar, cast

from kerolox.errors import ConfigError
from kerolox.properties import edit_properties, key_lines, parse_properties
from kerolox.text import quoted

SETTINGS_FILE_BYTES_MAX = 1024 * 1024
"""Larger files are refused: they are no settings. None that large is written."""

NAME_CHARACTERS_MAX = 64
"""Longer names are no misspelling of a known one, and comparing them would take long."""

UNKNOWN_NAMED_MAX = 3
"""Unknown keys that an error names; of more it says how many."""

TEXT_BYTES_MAX = 1024
PATH_BYTES_MAX = 16 * 1024
"""A setting may hold several paths."""
NUMBER_CHARACTERS_MAX = 64

HIDDEN = "******"
"""What is shown of a secret."""

_log = logging.getLogger(__name__)
_Settings = TypeVar("_Settings")

_HINTS: dict[type[object], dict[str, object]] = {}

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TRAILING_COMMENT = re.compile(r"\s[#!]")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def read_properties(path: Path) -> dict[str, str]:
    """Read a ``.properties`` file; a key given twice has its last value, as in Java. ConfigError:
    the file can't be read, is too large, or has a broken escape.
    """
    return parse_properties(_read_text(path)[0], where=str(path))


def read_key_lines(path: Path) -> dict[str, tuple[int, ...]]:
    """In which lines of a ``.properties`` file each key stands, from 1; the last one counts. Errors
    as of :func:`read_properties`.
    """
    return key_lines(_read_text(path)[0], where=str(path))


def change_settings_file(
    path: Path,
    changes: Mapping[str, str],
    *,
    header: str,
    check: Callable[[dict[str, str]], object],
) -> None:
    """Set some keys of a settings file and leave everything else in it as it is.

    The file, or the one that it leads to, if it is a symbolic link, is made if missing, replaced
    whole, the old one kept as ``.bak``; its permissions stay. Nothing is written when nothing
    changes. ``header``: what a file that is made starts with.

    ``check`` is given all keys of the file that would be written; it raises ConfigError if the next
    start would not take them. So does a file that can't be read, or would be too large.
    """
    refuse_one_time_file(path)
    path = path.resolve()
    text, encoding = _read_text(path) if path.exists() else (header, "utf-8")
    edited = edit_properties(text, changes, where=str(path))
    if edited == text:
        return
    data = edited.encode(encoding)
    if len(data) > SETTINGS_FILE_BYTES_MAX:
        raise ConfigError(f"{path}: would be larger than {SETTINGS_FILE_BYTES_MAX} bytes")
    check(parse_properties(edited, where=str(path)))
    write_with_backup(path, data)


def refuse_one_time_file(path: Path) -> None:
    """Only a regular file can be read a second time: a pipe (``-c <(...)``) gives its text once,
    and whoever opens it again waits for ever. ConfigError: it is there and something else.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path}: no regular file, so it is neither read again nor changed")


def open_regular(path: Path) -> BinaryIO:
    """Open a file that is read again and again; whoever opens a pipe waits for a writer. OSError:
    it can't be opened, or is something else than a regular file.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            return open(number, "rb")
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path, bytes_max: int) -> bytes:
    """All of a file, as :func:`open_regular` opens it; ValueError: it is longer."""
    with open_regular(path) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"longer than {bytes_max} bytes")
    return data


def _read_text(path: Path) -> tuple[str, str]:
    """The text of a settings file, and its encoding; ConfigError: it can't be read, or is too
    large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from error
    if len(data) > SETTINGS_FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {SETTINGS_FILE_BYTES_MAX} bytes; no settings file")
    encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        # What Java assumes of every .properties file.
        return data.decode("iso-8859-1"), "iso-8859-1"


@functools.cache
def camel(name: str) -> str:
    """``listen_port`` → ``listenPort``; of fields alone, which are few."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is most likely a misspelling of; None when it is none."""
    if len(name) > NAME_CHARACTERS_MAX:
        return None
    import difflib

    by_folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


class SettingRules(TypedDict, total=False):
    """What a field's metadata may say of its setting; the text above says what it means."""

    key: str | None
    min: float
    max: float
    choices: Collection[str]
    bytes: int
    secret: bool
    wire: bool
    wire_if: str
    live: bool


def setting_rules(settings_type: type[object]) -> dict[str, SettingRules]:
    """Field name → what its metadata says."""
    fields = dataclasses.fields(settings_type)  # type: ignore[arg-type]
    return {each.name: cast("SettingRules", each.metadata) for each in fields}


def setting_keys(settings_type: type[object]) -> dict[str, str]:
    """Key in the file → field name of a settings dataclass."""
    rules = setting_rules(settings_type).items()
    keys = ((each.get("key", camel(name)), name) for name, each in rules)
    return {key: name for key, name in keys if key is not None}


def load_settings(
    settings_type: type[_Settings],
    values: Mapping[str, str],
    *,
    where: str,
    known_unused: Mapping[str, str] = types.MappingProxyType({}),
    overrides: Mapping[str, object] | None = None,
    warn: bool = True,
) -> _Settings:
    """Make settings of type ``settings_type`` from the texts of a file.

    Args:
        settings_type: a frozen, keyword-only dataclass.
        values: key → text, from :func:`read_properties`.
        where: the name of the file, for errors.
        known_unused: keys of RocketMQ that Kerolox accepts, and why they have no effect.
        overrides: field name → value, from the command line or a caller; stronger than the file.
            None means not given. Texts are converted as those of a file are.
        warn: say in the log which keys have no effect.

    Raises:
        ConfigError: an unknown key, or a value that does not fit; the text names file and key.
    """
    keys = setting_keys(settings_type)
    refuse_unknown(values, keys.keys() | known_unused, where)
    without_effect = [key for key in values if key in known_unused and key not in keys]
    if warn and without_effect:
        _log.warning("%s: without effect: %s", where, _with_reasons(without_effect, known_unused))
    hints = _hints(settings_type)
    rules = setting_rules(settings_type)
    given = convert_settings(settings_type, values, where=where)
    for name, value in (overrides or {}).items():
        if name not in rules:
            raise ConfigError(f"there is no setting {name!r}{_did_you_mean(name, rules)}")
        if value is None:
            continue
        if isinstance(value, str):
            given[name] = convert_setting(value, hints[name], rules[name], where=f"option {name}")
        else:
            given[name] = _check_limits(value, rules[name], f"option {name}")
    try:
        return settings_type(**given)
    except ConfigError as error:
        # A rule of several settings, checked in __post_init__, which does not know the file.
        raise ConfigError(f"{where}: {error}") from error


def convert_settings(
    settings_type: type[object], values: Mapping[str, str], *, where: str
) -> dict[str, object]:
    """Field name → value, of those keys that are settings of that type. ConfigError: a value does
    not fit; the text names ``where`` and the key.
    """
    hints = _hints(settings_type)
    rules = setting_rules(settings_type)
    return {
        name: convert_setting(values[key], hints[name], rules[name], where=f"{where}: {key}")
        for key, name in setting_keys(settings_type).items()
        if key in values
    }


def convert_setting(
    text: str, hint: object, rules: SettingRules | None = None, *, where: str
) -> object:
    """One text of a file as a value of the field's type; the text of the ConfigError for one that
    does not fit starts with ``where``.
    """
    text = text.strip()
    plain = _plain_type(hint)
    if not text and plain is not hint and plain not in (str, Path):
        return None
    rules = rules or {}
    _check_text(text, plain, rules, where)
    if _TRAILING_COMMENT.search(text) and not rules.get("secret"):
        raise ConfigError(
            f"{where}: {quoted(text)} ends in a comment; a comment must be on a line of its own"
        )
    converter = _CONVERTERS.get(plain)
    if converter is None:
        raise TypeError(f"{where}: no conversion from text to {hint}")
    return _check_limits(converter(text, where), rules, where)


def setting_text(value: object) -> str:
    """A setting as it stands in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def shown_setting(settings: object, name: str) -> str:
    """A field as tools and logs show it: its text, or :data:`HIDDEN` for a secret that is set."""
    text = setting_text(getattr(settings, name))
    is_secret = setting_rules(type(settings))[name].get("secret", False)
    return HIDDEN if is_secret and text else text


def refuse_unknown(keys: Iterable[str], known: Iterable[str], where: str) -> None:
    """Have only known keys; ConfigError: there are others; the first three are named, with the
    nearest known ones.
    """
    known = frozenset(known)
    unknown = sorted(set(keys) - known)
    if not unknown:
        return
    named = [f"{quoted(key)}{_did_you_mean(key, known)}" for key in unknown[:UNKNOWN_NAMED_MAX]]
    if len(unknown) > UNKNOWN_NAMED_MAX:
        named.append(f"and {len(unknown) - UNKNOWN_NAMED_MAX} more")
    noun = "setting" if len(unknown) == 1 else "settings"
    raise ConfigError(f"{where}: unknown {noun} {'; '.join(named)}")


def _with_reasons(keys: Sequence[str], reasons: Mapping[str, str]) -> str:
    """Keys of one reason together: ``a, b (nobody asks for them); c (it is old)``."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(reasons[key], []).append(key)
    return "; ".join(f"{', '.join(group)} ({reason})" for reason, group in groups.items())


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    best = nearest(name, known)
    return f" (did you mean {best!r}?)" if best else ""


def _hints(settings_type: type[object]) -> dict[str, object]:
    """Field name → type. It takes milliseconds to find out."""
    if settings_type not in _HINTS:
        _HINTS[settings_type] = typing.get_type_hints(settings_type)
    return _HINTS[settings_type]


def _plain_type(hint: object) -> object:
    """The one type in ``X | None``."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [each for each in typing.get_args(hint) if each is not type(None)]
        return members[0] if len(members) == 1 else hint
    return hint


def _check_text(text: str, plain: object, rules: SettingRules, where: str) -> None:
    """A bounded length, and nothing that a line of the file or of the log can't hold."""
    if plain in (str, Path):
        most = rules.get("bytes", TEXT_BYTES_MAX if plain is str else PATH_BYTES_MAX)
        count = len(text.encode("utf-8", "surrogatepass"))
    else:
        most, count = NUMBER_CHARACTERS_MAX, len(text)
    if count > most:
        raise ConfigError(f"{where}: {count} bytes are too many; the most is {most}")
    if _CONTROL.search(text):
        shown = "it" if rules.get("secret") else quoted(text)
        raise ConfigError(f"{where}: {shown} has a control character")


def _check_limits(value: object, rules: SettingRules, where: str) -> object:
    low, high, choices = rules.get("min"), rules.get("max"), rules.get("choices")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if low is not None and value < low:
            raise ConfigError(f"{where}: {value} is too small; the least is {low}")
        if high is not None and value > high:
            raise ConfigError(f"{where}: {value} is too large; the most is {high}")
    if choices is not None and value not in choices:
        hint = _did_you_mean(str(value), choices)
        raise ConfigError(f"{where}: {quoted(str(value))} is none of {', '.join(choices)}{hint}")
    return value


def _convert_bool(text: str, where: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"{where}: {quoted(text)} is neither true nor false")
    return text == "true"


def _convert_int(text: str, where: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ConfigError(f"{where}: {quoted(text)} is no whole number")
    value = int(text) if len(text) < 24 else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise ConfigError(f"{where}: {quoted(text)} does not fit 64 bits")
    return value


def _convert_float(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {quoted(text)} is no number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{where}: {quoted(text)} is no finite number")
    return value


_CONVERTERS: dict[object, Callable[[str, str], object]] = {
    str: lambda text, where: text,
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    Path: lambda text, where: Path(text).expanduser(),
}


def write_with_backup(path: Path, text: str | bytes) -> None:
    """Replace a file by a text, and make its folder: see :func:`replace_file`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    replace_file(path, lambda file: file.write(data))


def replace_file(
    path: Path, write: Callable[[BinaryIO], object], *, keeps_backup: bool = True
) -> None:
    """Replace a file the way RocketMQ's ``MixAll.string2File`` does. The new text goes to ``.tmp``
    and to the disk, the old file is kept as ``.bak``, then ``.tmp`` takes its place. A reader sees
    the old file or the new one, never a part. The new one has the permissions of the old one, which
    an operator may have widened or narrowed.

    The folder exists. ``write`` writes all of the new file. ``keeps_backup`` of False: ``.bak``
    stays as it is. After an OSError the file is as before.
    """
    temporary = path.with_name(path.name + ".tmp")
    write_beside(path, temporary, write)
    if keeps_backup and path.exists():
        _keep(path, path.with_name(path.name + ".bak"))
    put_in_place(temporary, path)


def write_beside(path: Path, temporary: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write what is to take the place of a file, which is left alone, and to the disk. The new one,
    in the same folder, gets its permissions; after an OSError it is not there. ``write`` writes all
    of it.
    """
    try:
        with temporary.open("wb") as file:
            with contextlib.suppress(OSError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        # On a full disk it only takes room from the rest.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Have what was written beside a file take its place, for good. That takes no room."""
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have what was made, renamed or removed in a folder be so after a crash, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep(path: Path, backup: Path) -> None:
    """Make the file the backup too, without a moment in which neither exists."""
    link = backup.with_name(backup.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    try:
        os.link(path, link)
    except OSError:
        # Not every file system has hard links. Imported here, since it brings three compressors.
        import shutil

        shutil.copy(path, link)
    link.replace(backup)
