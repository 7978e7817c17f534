"""The key-value configuration of a name server (``KVConfigManager``).

Namespaces of key → text, kept in ``kvConfig.json`` as
``{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}``. A change is there once the
file holds it; those that come while the file is written are covered by one write after it.

The table is bounded by what it takes in the file, which is far less than what a start reads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kerolox.config import write_with_backup
from kerolox.errors import ConfigError
from kerolox.protocol.bodies import BodyError, decode_body
from kerolox.protocol.names import NAME_BYTES_MAX, length_fault

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

CLOSE_SECONDS_MAX = 1.0

PIECE = 256
"""Entries that are encoded in one go."""

_encode = msgspec.json.Encoder().encode


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


def _tell_nobody() -> None:
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

    def load(self) -> None:
        """Read the file; a missing one is an empty table.

        Raises:
            ConfigError: it can't be read, or is not of that shape.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(READ_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self._path}: can't be read: {error.strerror}") from error
        if len(data) > READ_BYTES_MAX:
            raise ConfigError(
                f"{self._path}: larger than {READ_BYTES_MAX} bytes; take out what nobody needs, or "
                f"put {self._path.name}.bak in its place"
            )
        if not data.strip():
            return
        try:
            self._table = decode_body(data, _File).config_table
        except BodyError as error:
            raise ConfigError(
                f"{self._path}: {error}; mend it, or put {self._path.name}.bak in its place"
            ) from error
        self._count = sum(map(len, self._table.values()))
        self._bytes = sum(
            _namespace_bytes(namespace) + sum(_entry_bytes(*entry) for entry in table.items())
            for namespace, table in self._table.items()
        )

    async def close(self) -> None:
        """Let a write in flight end, for ``CLOSE_SECONDS_MAX`` at most."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=CLOSE_SECONDS_MAX)

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
        self, namespace: str, key: str, value: str, told: Callable[[], object] = _tell_nobody
    ) -> None:
        """Set a value. ``told`` is called as soon as it counts, before it is in the file.

        Raises:
            ConfigError: the table is full, or the value too long.
            OSError: the file can't be written; the value counts until the next start.
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
        told()
        await self._save()

    async def delete(
        self, namespace: str, key: str, told: Callable[[], object] = _tell_nobody
    ) -> None:
        """Remove a value; one that is not there is no error. ``told``: as of :meth:`put`.

        Raises:
            OSError: the file can't be written; the value is gone until the next start.
        """
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            self._count -= 1
            self._bytes -= _entry_bytes(key, old)
            told()
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
        """Wait until the file has all changes up to now, or a write that had them failed."""
        self._changed += is_changed
        wanted = self._changed
        while self._written < wanted:
            if self._writer is None or self._writer.done():
                self._writer = asyncio.get_running_loop().create_task(self._write())
                self._writer.add_done_callback(_seen)
            await asyncio.shield(self._writer)

    async def _write(self) -> None:
        # All requests that came in the same chunk are in.
        await asyncio.sleep(0)
        version = self._changed
        snapshot = {name: list(table.items()) for name, table in self._table.items()}
        await asyncio.to_thread(_store, self._path, snapshot)
        self._written = version


def _seen(task: asyncio.Task[None]) -> None:
    """Those who waited for a failed write may be gone."""
    if not task.cancelled():
        task.exception()


def _store(path: Path, snapshot: dict[str, list[tuple[str, str]]]) -> None:
    """Encode in pieces, as the loop's thread wants to run in between."""
    parts: list[str] = []
    for namespace, entries in snapshot.items():
        pieces = [
            str(_encode(dict(entries[start : start + PIECE])), "utf-8")[1:-1]
            for start in range(0, len(entries), PIECE)
        ]
        parts.append(f"{str(_encode(namespace), 'utf-8')}:{{{','.join(pieces)}}}")
    write_with_backup(path, f'{{"configTable":{{{",".join(parts)}}}}}')


def _entry_bytes(key: str, value: str) -> int:
    """What an entry takes in the file, with its colon and comma."""
    return len(_encode(key)) + len(_encode(value)) + 2


def _namespace_bytes(namespace: str) -> int:
    """The same of an empty namespace."""
    return len(_encode(namespace)) + len(":{},")
