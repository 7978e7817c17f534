"""100,000 keys are sent while answers are lost, processes are killed and brokers change places:
each is stored once.

It runs with ``KEROLOX_SOFTWARE=all`` alone. ``tests/recovery/test_duplicates.py`` holds the same in
small, with brokers of its own process that stop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from itertools import cycle, islice
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import KeroloxError
from tests.recovery.test_duplicates import ATTRIBUTES, KeySender, proxies
from tests.replication.test_roles import Pair, pair_of
from tests.support.eventually import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replication.members import OurMember
    from tests.support.faults.proxy import Proxy

__all__ = ["proxies"]

pytestmark = [pytest.mark.asyncio, pytest.mark.software, pytest.mark.timeout(1_800)]

KEYS, CHANGES = 100_000, 40


class Changes:
    """What is done to a pair, one thing after the other."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.master, self.slave = pair.one, pair.two

    async def master_is_killed(self) -> None:
        await self._again(self.master)

    async def slave_is_killed(self) -> None:
        await self._again(self.slave)

    async def places_change(self) -> None:
        await until(self._is_promoted, what="a promotion that no lost answer ended")
        self.master, self.slave = self.slave, self.master

    async def master_is_lost(self) -> None:
        await self.pair.until_known(self.slave)
        await asyncio.to_thread(self.master.kill)
        await until(self._is_promoted, what="a slave that takes the place of its master")
        self.master, self.slave = self.slave, self.master
        await asyncio.to_thread(self.slave.start)

    async def _again(self, member: OurMember) -> None:
        await asyncio.to_thread(member.kill)
        await asyncio.to_thread(member.start)

    async def _is_promoted(self) -> bool:
        with contextlib.suppress(KeroloxError):
            await self.pair.admin.promote_broker(self.slave.address, accept_loss=True)
        roles = await self.pair.roles()
        return self.slave.address in roles and roles[self.slave.address].role == "SYNC_MASTER"


async def test_each_of_100_000_keys_is_stored_once_over_kills_and_promotions(
    tmp_path: Path, proxies: dict[str, Proxy]
) -> None:
    before = list(proxies.values())
    async with pair_of(tmp_path, proxies=before, attributes=ATTRIBUTES) as pair:
        sender = KeySender(pair.namesrv, before, KEYS, seed=9)
        changes = Changes(pair)
        every = (
            changes.master_is_killed,
            changes.slave_is_killed,
            changes.places_change,
            changes.master_is_lost,
        )
        async with sender.running():
            for number, change in enumerate(islice(cycle(every), CHANGES), 1):
                await sender.until_done(number / (CHANGES + 1))
                await change()
                assert await pair.until_settled() == changes.master.address
        stored = Counter(each.decode() for queue in await pair.bodies() for each in queue)
    print(f"{sender.lost} sends failed, {sender.duplicates} keys were there already")
    assert stored == sender.expected
    assert sender.duplicates > 1_000
