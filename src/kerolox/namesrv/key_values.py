"""The key-value configuration of a name server (``KVConfigManager``).

Namespaces of key → text, kept in ``kvConfig.json`` as
``{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}``, written on each change.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from kerolox.config import write_with_backup
from kerolox.errors import ConfigError
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import BodyError, decode_body

__all__ = ["KeyValues"]

KEY_VALUES_MAX = 100_000
"""Entries in all namespaces together; a put of one more is refused."""


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KeyValues:
    """The table and its file. ``put`` and ``delete`` return when the file is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Read the file; a missing one is an empty table.

        Raises:
            ConfigError: it can't be read, or is not of that shape.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self._path}: can't be read: {error.strerror}") from error
        if not data.strip():
            return
        try:
            self._table = decode_body(data, _File).config_table
        except BodyError as error:
            raise ConfigError(
                f"{self._path}: {error}; mend it, or put {self._path.name}.bak in its place"
            ) from error

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            ConfigError: the table is full.
            OSError: the file can't be written; the value counts until the next start.
        """
        table = self._table.setdefault(namespace, {})
        if key not in table and sum(map(len, self._table.values())) >= KEY_VALUES_MAX:
            raise ConfigError(f"there are {KEY_VALUES_MAX} key-values already; delete some")
        table[key] = value
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value; one that is not there is no error. Errors as those of ``put``."""
        self._table.get(namespace, {}).pop(key, None)
        await self._save()

    async def _save(self) -> None:
        async with self._writing:
            text = fastjson.dumps({"configTable": self._table}).decode()
            await asyncio.to_thread(write_with_backup, self._path, text)
