"""The accounts of a role that runs: looked at again and again, changed one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kerolox.security.access.accounts import Accounts
from kerolox.security.access.files import AclFiles

LOOK_SECONDS = 0.25
"""How often the files are looked at. A change is in force after two looks."""


class AccountsWatch:
    """The files of access control beside an event loop, which no file keeps waiting."""

    def __init__(self, files: AclFiles, on_change: Callable[[Accounts], None]) -> None:
        """``on_change`` gets each new set of accounts, in the event loop; what it raises goes to
        who asked for the look."""
        self.files = files
        self._on_change = on_change
        self._told = files.accounts
        self._busy = asyncio.Lock()

    def load(self) -> Accounts:
        """Read all files, at a start; ``on_change`` is told.

        Raises:
            ConfigError: a file is wrong; the text says where, and what is right.
        """
        self.files.load()
        self._tell()
        return self._told

    async def look(self) -> None:
        """Have in force what changed; to be called every :data:`LOOK_SECONDS`."""
        async with self._busy:
            await asyncio.to_thread(self.files.look)
            self._tell()

    async def reload(self) -> None:
        """The same without waiting until files that change have settled (what SIGHUP asks for)."""
        async with self._busy:
            await asyncio.to_thread(self.files.look, at_once=True)
            self._tell()

    def _tell(self) -> None:
        # Not what a look returned: one that was cancelled has changed them as well.
        accounts = self.files.accounts
        if accounts is not self._told:
            self._told = accounts
            self._on_change(accounts)
