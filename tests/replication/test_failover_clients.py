"""Producers of Java, Go and ours go on when a master fails, each in its way: one of the rounds of
``benchmarks/failover.py`` for each fault.

``test_failover.py`` has kills with our producer, ``tests/unit/broker/roles/test_controlled.py`` the
full disk, ``tests/unit/namesrv/test_route_table.py`` the place at the name server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.replication.failing import FAULTS, PROFILES, failing_set
from tests.support.faults.network import why_no_network
from tests.support.faults.small_disk import disk_kinds

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = int(os.environ.get("KEROLOX_FAILOVERS", "2"))
"""Of each fault."""
SECONDS_MAX = 3.0

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.java,
    pytest.mark.go,
    pytest.mark.software,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(bool(why_no_network()), reason=why_no_network()),
    pytest.mark.skipif("tmpfs" not in disk_kinds(), reason="no file system can be mounted"),
]


async def test_no_producer_waits_long_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with failing_set("ours", tmp_path, PROFILES["guide"]) as it:
        for fault in FAULTS:
            for number in range(ROUNDS):
                waits = await it.fail(fault)
                assert max(waits.seconds.values()) <= SECONDS_MAX, (fault, number, waits)
        await it.stop_sending()
        master = await it.until_whole()
        await it.until_equal()
        for number in (master, 1 - master):
            assert not await it.lost(number)
        assert not await it.two_masters(master)
        assert not it.helped
