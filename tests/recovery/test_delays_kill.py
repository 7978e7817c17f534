"""kill -9 while messages wait for their time: none is lost, none comes early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clients import delays
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

COUNT, RATE = 600, 600
DELAYS_MS = (1_000, 2_000, 3_000, 4_000)
SETTINGS = {
    "messageDelayLevel": "1s 2s 3s 4s",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
}


@pytest.mark.asyncio
@pytest.mark.parametrize("kernel", KERNELS)
async def test_no_delayed_message_is_lost_or_early_when_the_broker_is_killed(
    kernel: str, tmp_path: Path
) -> None:
    with Up(tmp_path, settings=SETTINGS, kernel=kernel) as up:
        found = await delays.run(
            up, count=COUNT, rate=RATE, delays_ms=DELAYS_MS, kill_after=COUNT // 2
        )
    assert len(found.acknowledged_ms) == COUNT
    assert found.outage is not None
    assert found.lost == set()
    assert found.early == {}


@pytest.mark.asyncio
@pytest.mark.parametrize("kernel", KERNELS)
async def test_no_message_for_a_moment_is_lost_or_early_when_the_broker_is_killed(
    kernel: str, tmp_path: Path
) -> None:
    with Up(tmp_path, settings=SETTINGS, kernel=kernel) as up:
        found = await delays.run(
            up,
            count=COUNT,
            rate=RATE,
            delays_ms=(700, 1_900, 3_100, 4_300),
            kill_after=COUNT // 2,
            has_levels=False,
        )
    assert len(found.acknowledged_ms) == COUNT
    assert found.outage is not None
    assert found.lost == set()
    assert found.early == {}
