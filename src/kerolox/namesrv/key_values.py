"""The key-value configuration of a name server (``KVConfigManager``).

Namespaces of key → text, kept in ``kvConfig.json`` as
``{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}``. A change is there once the
disk holds it; those that come during a write are covered by one write after it.

A large file is not written anew for each change. Changes go to ``kvConfig.json.changes``, a line
each. The file follows when these are as long as the file, after :data:`FOLLOW_SECONDS`, and at a
stop. So what is written is some times what was changed, and not the whole table for each.

The table is bounded by what it takes in the file, which is far less than what a start reads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kerolox.config import sync_folder, write_with_backup
from kerolox.errors import ConfigError
from kerolox.protocol.bodies import BodyError, decode_body
from kerolox.protocol.names import NAME_BYTES_MAX, length_fault
from kerolox.tasks import retrieve_error

KEY_VALUES_MAX = 100_000
"""Entries in all namespaces together; a put of one more is refused."""

NAMESPACES_MAX = 1_000
"""Namespaces; when there are more, those that are empty are forgotten first."""

VALUE_BYTES_MAX = 64 * 1024
"""Longest value: the order of a topic on thousands of brokers."""

FILE_BYTES_MAX = 8 * 1024 * 1024
"""What all entries take in the file at most; a put that would need more is refused."""

READ_BYTES_MAX = 4 * FILE_BYTES_MAX
"""Largest file that a start reads: one that another name server wrote may be larger than ours."""

SMALL_BYTES = 64 * 1024
"""A file up to so long is written whole for each change."""

FOLLOW_SECONDS = 10.0
"""So long after a change the file may lack it, which another name server would read."""

CLOSE_SECONDS_MAX = 1.0

PIECE = 256
"""Entries that are encoded in one go."""

_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(list[str]).decode


class _KeyValueFile(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


def _ignore() -> None:
    pass


class KeyValues:
    """The table and its file. ``put`` and ``delete`` return when the file is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._count = 0
        self._bytes = 0
        self._changed = 0
        self._written = 0
        self._writer: asyncio.Task[None] | None = None
        self._changes_path = path.with_name(path.name + ".changes")
        self._lines: list[bytes] = []
        """Changes that are on no disk yet."""
        self._file_bytes = self._changes_bytes = 0
        """How long both files are."""
        self._is_whole_due = False
        """The next write is one of the whole file."""
        self._follows: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """Read the file, and the changes that it lacks; a missing one is an empty table.
        ConfigError: one can't be read, or is not of that shape.
        """
        data = _read(self._path, f"put {self._path.name}.bak in its place")
        if data.strip():
            try:
                self._table = decode_body(data, _KeyValueFile).config_table
            except BodyError as error:
                raise ConfigError(
                    f"{self._path}: {error}; mend it, or put {self._path.name}.bak in its place"
                ) from error
        changes = _read(self._changes_path, "remove it, and what it has is lost")
        self._file_bytes, self._changes_bytes = len(data), len(changes)
        # The last line may have been cut off by a crash; nobody was told that it is there.
        for line in changes.splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._take(line)
        self._is_whole_due = bool(changes)
        self._count = sum(map(len, self._table.values()))
        self._bytes = sum(
            _namespace_bytes(namespace) + sum(_entry_bytes(*entry) for entry in table.items())
            for namespace, table in self._table.items()
        )

    def _take(self, line: bytes) -> None:
        """A change that the file lacks: the namespace, the key, and the value; none: deleted."""
        try:
            namespace, key, *value = _decode_line(line)
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(
                f"{self._changes_path}: a line is no change ({error}); remove it, and what it has "
                "is lost"
            ) from None
        table = self._table.setdefault(namespace, {})
        if value:
            table[key] = value[0]
        else:
            table.pop(key, None)

    async def close(self) -> None:
        """Let a write in flight end, and the file have all changes, for ``CLOSE_SECONDS_MAX`` at
        most."""
        if self._follows is not None:
            self._follows.cancel()
        tasks = [each for each in (self._writer,) if each is not None and not each.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS_MAX)
        if self._changes_bytes and (self._writer is None or self._writer.done()):
            self._is_whole_due = True
            await asyncio.wait([self._start()], timeout=CLOSE_SECONDS_MAX)

    @property
    def version(self) -> int:
        """Another one after each change."""
        return self._changed

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    def namespace_pieces(self, namespace: str) -> Iterator[bytes]:
        """The members of a namespace as JSON, some at a time, without what is around them."""
        entries = iter(list(self._table.get(namespace, {}).items()))
        while piece := dict(itertools.islice(entries, PIECE)):
            yield _encode(piece)[1:-1]

    async def put(
        self, namespace: str, key: str, value: str, on_change: Callable[[], object] = _ignore
    ) -> None:
        """Set a value. ``on_change`` is called as soon as it counts, before it is in the file.

        ConfigError: the table is full, or the value too long. OSError: the file can't be written;
        the value counts until the next start.
        """
        fault = (
            length_fault("namespace", namespace, NAME_BYTES_MAX)
            or length_fault("key", key, NAME_BYTES_MAX)
            or length_fault("value", value, VALUE_BYTES_MAX)
        )
        if fault is not None:
            raise ConfigError(fault)
        table = self._table.get(namespace)
        old = None if table is None else table.get(key)
        more = _entry_bytes(key, value) - (0 if old is None else _entry_bytes(key, old))
        if table is None:
            more += _namespace_bytes(namespace)
        if old is None and self._count >= KEY_VALUES_MAX:
            raise ConfigError(f"there are {KEY_VALUES_MAX} key-values already; delete some")
        if more > 0 and self._bytes + more > FILE_BYTES_MAX:
            raise ConfigError(
                f"the key-values take {self._bytes} bytes, and at most {FILE_BYTES_MAX} are kept; "
                "delete some"
            )
        if table is None:
            table = self._new_namespace(namespace)
        self._count += old is None
        self._bytes += more
        table[key] = value
        self._lines.append(_encode((namespace, key, value)) + b"\n")
        on_change()
        await self._save()

    async def delete(
        self, namespace: str, key: str, on_change: Callable[[], object] = _ignore
    ) -> None:
        """Remove a value; one that is not there is no error. ``on_change``: as of :meth:`put`.
        OSError: the file can't be written; the value is gone until the next start.
        """
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            self._count -= 1
            self._bytes -= _entry_bytes(key, old)
            self._lines.append(_encode((namespace, key)) + b"\n")
            on_change()
        await self._save(is_changed=old is not None)

    def _new_namespace(self, namespace: str) -> dict[str, str]:
        if len(self._table) >= NAMESPACES_MAX:
            for empty in [name for name, table in self._table.items() if not table]:
                del self._table[empty]
                self._bytes -= _namespace_bytes(empty)
        if len(self._table) >= NAMESPACES_MAX:
            raise ConfigError(f"there are {NAMESPACES_MAX} namespaces already; empty some")
        # Its bytes count with those of its first entry.
        table = self._table[namespace] = {}
        return table

    async def _save(self, *, is_changed: bool = True) -> None:
        """Wait until the disk has all changes up to now, or a write that had them failed."""
        self._changed += is_changed
        wanted = self._changed
        while self._written < wanted:
            if self._writer is None or self._writer.done():
                self._start()
            assert self._writer is not None
            await asyncio.shield(self._writer)

    def _start(self) -> asyncio.Task[None]:
        self._writer = asyncio.get_running_loop().create_task(self._write())
        self._writer.add_done_callback(retrieve_error)
        return self._writer

    async def _write(self) -> None:
        # All requests that came in the same chunk are in.
        await asyncio.sleep(0)
        version = self._changed
        lines, self._lines = b"".join(self._lines), []
        most = max(self._file_bytes, SMALL_BYTES)
        is_whole = self._is_whole_due or self._bytes <= SMALL_BYTES
        if is_whole or self._changes_bytes + len(lines) > most:
            # Until it is done: what a write that fails leaves of a line is not to be gone on with.
            self._is_whole_due = True
            snapshot = {name: list(table.items()) for name, table in self._table.items()}
            self._file_bytes = await asyncio.to_thread(_store, self._path, snapshot)
            if self._changes_bytes:
                await asyncio.to_thread(_remove, self._changes_path)
            self._is_whole_due, self._changes_bytes = False, 0
        else:
            self._is_whole_due = True
            await asyncio.to_thread(_append, self._changes_path, lines)
            self._is_whole_due = False
            self._changes_bytes += len(lines)
            self._follow_later()
        self._written = version

    def _follow_later(self) -> None:
        if self._follows is None:
            loop = asyncio.get_running_loop()
            self._follows = loop.call_later(FOLLOW_SECONDS, self._follow)

    def _follow(self) -> None:
        """Have the file written, which lacks changes."""
        self._follows = None
        if not self._changes_bytes:
            return
        if self._writer is not None and not self._writer.done():
            self._follow_later()
            return
        self._is_whole_due = True
        self._start()


def _read(path: Path, remedy: str) -> bytes:
    """All of a file; b"": there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(READ_BYTES_MAX + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    if len(data) > READ_BYTES_MAX:
        raise ConfigError(
            f"{path}: larger than {READ_BYTES_MAX} bytes; take out what nobody needs, or {remedy}"
        )
    return data


def _append(path: Path, data: bytes) -> None:
    """Put lines at the end of a file, and on the disk; a file that is made is kept, too."""
    is_new = not path.exists()
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)


def _remove(path: Path) -> None:
    """For good: taken again after a crash, it would undo changes that only the file has."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def _store(path: Path, snapshot: dict[str, list[tuple[str, str]]]) -> int:
    """Encode in pieces, as the loop's thread wants to run in between; the size of the file."""
    parts: list[str] = []
    for namespace, entries in snapshot.items():
        pieces = [
            str(_encode(dict(entries[start : start + PIECE])), "utf-8")[1:-1]
            for start in range(0, len(entries), PIECE)
        ]
        parts.append(f"{str(_encode(namespace), 'utf-8')}:{{{','.join(pieces)}}}")
    text = f'{{"configTable":{{{",".join(parts)}}}}}'
    write_with_backup(path, text)
    return len(text)


def _entry_bytes(key: str, value: str) -> int:
    """What an entry takes in the file, with its colon and comma."""
    return len(_encode(key)) + len(_encode(value)) + 2


def _namespace_bytes(namespace: str) -> int:
    """The same of an empty namespace."""
    return len(_encode(namespace)) + len(":{},")
