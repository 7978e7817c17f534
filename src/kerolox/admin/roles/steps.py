"""A planned change of roles: a slave and its master, which is there, change places.

1. The slave takes its master's tables, writes what it is to become, which does not count yet, and
   comes near the end of the log, while clients go on.
2. The master is paused: it holds what clients send.
3. The slave reaches the master's very end; the ends of both logs are compared.
4. The slave takes the tables once more.
5. The master becomes a slave. From here on there is no master until
6. the slave becomes the master.
7. All slaves follow it, the former master too, which passes on what it held.

A step before 5 that fails leaves everything as it was: the master goes on. When 6 is refused the
former master is promoted again. A broker that does not report the result of a request gets a
question for its role. While it is silent nobody is promoted in its place, since then there might be
two masters.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kerolox.errors import ClientError, KeroloxError
from kerolox.protocol.extensions.roles import RoleAction, RoleChange, RoleStatus

PAUSE_MS = 15_000
"""How long a master is paused when whoever does this dies."""

CATCH_UP_SECONDS = 5.0
"""How long the slave may take to the end of its master's log while that is paused."""

NEAR_BYTES = 4 << 20
"""A slave this far from the end is near enough for a pause."""

POLL_SECONDS = 0.02


class Brokers(Protocol):
    """Requests to brokers about their roles."""

    async def status(self, address: str, tail_from: int = -1) -> RoleStatus:
        """What one says that it is. Raises KeroloxError."""

    async def change(self, address: str, change: RoleChange) -> RoleStatus:
        """Have one do a step. Raises KeroloxError."""


@dataclass(slots=True)
class ChangeOutcome:
    """The outcome of a change of roles."""

    master: RoleStatus
    """The new master."""
    not_told: dict[str, str]
    """Slaves that could not be notified of it → why; name servers tell them."""


class PlannedChange:
    """One change; :meth:`run` does it."""

    def __init__(
        self,
        brokers: Brokers,
        old: RoleStatus,
        new: RoleStatus,
        others: Iterable[str] = (),
        *,
        timeout_seconds: float,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Nothing is asked yet. ``old``: the master; ``new``: its slave; ``others``: addresses of
        further slaves. ``timeout_seconds``: how long the slave may take to come near the master's
        end. ``on_step`` is called with each step's name before it.
        """
        self._brokers = brokers
        self._old, self._new = old, new
        self._others = tuple(others)
        self._timeout_seconds = timeout_seconds
        self._on_step = on_step
        self._token = secrets.token_hex(8)
        self._epoch = max(old.epoch, new.epoch) + 1

    async def run(self) -> ChangeOutcome:
        """Do it; ClientError: a step failed; the text says which, why, and who is the master."""
        self._check()
        await self._prepare()
        # In this order a kill in between leaves no master, which is mended by a promotion; in the
        # other one it could leave two, which write different logs.
        await self._demote()
        master = await self._promote()
        self._on_step("all slaves follow it")
        return ChangeOutcome(master, await self.notify(master, (self._old.address, *self._others)))

    async def notify(self, master: RoleStatus, slaves: Iterable[str]) -> dict[str, str]:
        """Have slaves follow a master; those that could not be notified, and why."""
        return await notify_slaves(self._brokers, master, slaves)

    def _check(self) -> None:
        old, new = self._old, self._new
        if old.broker_name != new.broker_name:
            raise ClientError(
                f"{new.address} is of {new.broker_name}, and {old.address} of {old.broker_name}"
            )
        if not old.is_master or old.newer_epoch:
            raise ClientError(f"{old.address} is no master that takes messages")
        if new.is_master:
            raise ClientError(f"{new.address} is a master")
        if not new.is_following:
            raise ClientError(
                f"{new.address} does not follow its master now; its log says why "
                "(haMasterAddress, haListenPort)"
            )

    # -- steps ----------------------------------------------------------------------------------
    async def _prepare(self) -> None:
        step = ""
        is_paused = False
        try:
            for step, work in (
                (f"{self._new.address} takes its master's tables", self._make_ready),
                (f"{self._new.address} comes near the end of the log", self._come_near),
                (f"{self._old.address} is paused", self._pause),
                (f"{self._new.address} reaches the end of the log", self._reach_end),
                (f"{self._new.address} takes its master's tables once more", self._take_tables),
            ):
                self._on_step(step)
                is_paused = is_paused or work == self._pause
                await work()
        except (KeroloxError, asyncio.CancelledError) as error:
            if is_paused:
                await self._resume()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise ClientError(
                f"failed where {step}: {error}; nothing was changed, {self._old.address} is the "
                "master"
            ) from error

    async def _pause(self) -> None:
        change = RoleChange(
            action=RoleAction.PAUSE,
            epoch=self._old.epoch,
            token=self._token,
            milliseconds=PAUSE_MS,
        )
        await self._brokers.change(self._old.address, change)

    async def _resume(self) -> RoleStatus | None:
        change = RoleChange(action=RoleAction.RESUME, token=self._token)
        try:
            return await self._brokers.change(self._old.address, change)
        except KeroloxError:
            # Its pause ends by itself.
            return None

    async def _make_ready(self) -> None:
        change = RoleChange(
            action=RoleAction.TAKE_TABLES,
            epoch=self._epoch,
            broker_role=self._old.broker_role,
            master_address=self._old.address,
        )
        await self._brokers.change(self._new.address, change)

    async def _take_tables(self) -> None:
        change = RoleChange(action=RoleAction.TAKE_TABLES, master_address=self._old.address)
        await self._brokers.change(self._new.address, change)

    async def _come_near(self) -> None:
        await self._until_behind(NEAR_BYTES, self._timeout_seconds)

    async def _reach_end(self) -> None:
        await self._until_behind(0, CATCH_UP_SECONDS)
        old = await self._brokers.status(self._old.address)
        new = await self._brokers.status(self._new.address, old.tail_begin)
        if new.tail_begin > old.tail_begin:
            # It began in the middle of the master's log.
            old = await self._brokers.status(self._old.address, new.tail_begin)
        if not old.is_paused:
            raise ClientError("the pause is over")
        ends = [(each.log_end, each.tail_begin, each.tail_crc) for each in (old, new)]
        if ends[0] != ends[1]:
            raise ClientError(
                f"the logs differ: the master's ends at {old.log_end}, the slave's at "
                f"{new.log_end}, or they hold other bytes behind {old.tail_begin}"
            )

    async def _until_behind(self, most: int, seconds: float) -> None:
        behind = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    old = await self._brokers.status(self._old.address)
                    new = await self._brokers.status(self._new.address)
                    behind = old.log_end - new.log_end
                    if behind <= most:
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise ClientError(f"after {seconds:g} s it is {behind} bytes behind") from None

    async def _demote(self) -> None:
        self._on_step(f"{self._old.address} becomes a slave")
        change = RoleChange(
            action=RoleAction.DEMOTE,
            epoch=self._epoch,
            token=self._token,
            broker_id=self._new.broker_id,
            master_address=self._new.address,
        )
        try:
            await self._brokers.change(self._old.address, change)
        except KeroloxError as error:
            # Behind a demotion that is under way, so what this says is the end of it.
            status = await self._resume()
            if status is None:
                raise ClientError(
                    f"{self._old.address} does not say whether it became a slave: {error}; when it "
                    "answers again, examine it (kerolox broker role) and promote the one or the "
                    "other again"
                ) from error
            if status.is_master:
                raise ClientError(
                    f"{self._old.address} did not become a slave: {error}; nothing was changed, it "
                    "is the master"
                ) from error

    async def _promote(self) -> RoleStatus:
        self._on_step(f"{self._new.address} becomes the master")
        change = RoleChange(
            action=RoleAction.PROMOTE, epoch=self._epoch, broker_role=self._old.broker_role
        )
        try:
            return await self._brokers.change(self._new.address, change)
        except KeroloxError as error:
            return await self._after_failure(error)

    async def _after_failure(self, error: KeroloxError) -> RoleStatus:
        """The slave did not say that it is the master: it is, or the former one is again."""
        new, old = self._new.address, self._old.address
        # With a newer epoch it can't be promoted any more by what is under way.
        fence = RoleChange(action=RoleAction.FOLLOW, epoch=self._epoch + 1, master_address=old)
        status: RoleStatus | None = None
        try:
            status = await self._brokers.change(new, fence)
        except KeroloxError:
            try:
                status = await self._brokers.status(new)
            except KeroloxError:
                status = None
        if status is not None and status.is_master and status.epoch == self._epoch:
            return status
        if status is None or status.epoch <= self._epoch:
            raise ClientError(
                f"{new} does not say whether it is the master: {error}; {old} is a slave now. When "
                f"it answers again, run this again; if it is gone for good, promote {old}: it "
                "lacks nothing"
            ) from error
        back = RoleChange(
            action=RoleAction.PROMOTE, epoch=self._epoch + 2, broker_role=self._old.broker_role
        )
        try:
            master = await self._brokers.change(old, back)
        except KeroloxError as other:
            raise ClientError(
                f"{new} did not become the master: {error}; and {old}, which is a slave now, could "
                f"not become the master again: {other}; promote one of them"
            ) from error
        await self.notify(master, (new, *self._others))
        raise ClientError(f"{new} did not become the master: {error}; {old} is the master again")


async def notify_slaves(
    brokers: Brokers, master: RoleStatus, slaves: Iterable[str]
) -> dict[str, str]:
    """Have slaves follow a master; those that could not be notified, and why."""
    change = RoleChange(
        action=RoleAction.FOLLOW,
        epoch=master.epoch,
        master_address=master.address,
        master_ha_address=master.ha_address,
    )
    failed = {}
    for address in slaves:
        try:
            await brokers.change(address, change)
        except KeroloxError as error:
            failed[address] = str(error)
    return failed
