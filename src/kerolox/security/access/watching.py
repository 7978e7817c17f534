"""The accounts of a role that runs: examined again and again, changed one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kerolox.errors import BrokerBusyError
from kerolox.security.access.accounts import Accounts

if TYPE_CHECKING:
    from kerolox.security.access.files import AclFiles

POLL_SECONDS = 0.25
"""How often the files are examined. A change is in force after two checks."""

WAITING_MAX = 16
"""Changes by requests that wait for others; further ones are refused as busy."""

_Result = TypeVar("_Result")


class AccountsWatch:
    """The files of access control beside an event loop, which no file keeps waiting."""

    def __init__(self, files: AclFiles, on_change: Callable[[Accounts], None]) -> None:
        """``on_change`` gets each new set of accounts, in the event loop; what it raises goes to
        who asked for the check."""
        self.files = files
        self._on_change = on_change
        self._notified = files.accounts
        self._busy = asyncio.Lock()
        self._waiting = 0

    def load(self) -> Accounts:
        """Read all files, at a start, as :meth:`AclFiles.load`; ``on_change`` is told."""
        self.files.load()
        self._notify()
        return self._notified

    async def poll(self) -> None:
        """Have in force what changed; to be called every :data:`POLL_SECONDS`."""
        await self._run(self.files.poll)

    async def reload(self) -> None:
        """The same without waiting until files that change have settled (what SIGHUP asks for)."""
        await self._run(partial(self.files.poll, at_once=True))

    async def change(self, work: Callable[[AclFiles], _Result]) -> _Result:
        """Have a change of the files made, and in force; ``work`` runs in a thread, to its end even
        when the caller is cancelled. BrokerBusyError: too many changes wait already.
        """
        if self._waiting >= WAITING_MAX:
            raise BrokerBusyError(f"{WAITING_MAX} changes of accounts wait already; try again")
        self._waiting += 1
        try:
            return await self._run(partial(work, self.files))
        finally:
            self._waiting -= 1

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        async with self._busy:
            try:
                return await asyncio.to_thread(work)
            finally:
                self._notify()

    def _notify(self) -> None:
        # Not what a look returned: one that was cancelled has changed them as well.
        accounts = self.files.accounts
        if accounts is not self._notified:
            self._notified = accounts
            self._on_change(accounts)
