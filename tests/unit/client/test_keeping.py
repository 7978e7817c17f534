"""Leases that are kept, without a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from kerolox.client.aio.consumers.popping import keeping
from kerolox.client.aio.consumers.popping.keeping import Keeper, Keeping
from kerolox.client.core.consuming.leases import Lease, PopTimes
from kerolox.message import MessageExt
from kerolox.protocol.pop_names import TopicKind
from tests.support.eventually import until

if TYPE_CHECKING:
    from collections.abc import Callable

INVISIBLE_MS = 60_000


def _lease(offset: int, ends_at: float) -> Lease:
    times = PopTimes(0, INVISIBLE_MS, 0, ends_at)
    lease = Lease("T", TopicKind.NORMAL, "b", 0, offset, times)
    place = {"queue_id": 0, "queue_offset": offset, "commit_log_offset": 0}
    lease.out = {offset: MessageExt(topic="T", body=b"", properties={}, **place)}
    return lease


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_leases_whose_renewal_is_overdue_are_renewed_with_others(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """uvloop's timers have no time once they are due."""

    async def main() -> list[int]:
        renewed: list[int] = []

        async def renew(message: MessageExt, lease: Lease, offset: int, ms: int) -> Lease:
            renewed.append(offset)
            return lease.anew(PopTimes(0, ms, 0, loop.time() + ms / 1000), offset)

        loop = asyncio.get_running_loop()
        keeper = Keeper(renew, None)
        end = loop.time() + 3_600
        for offset, left in enumerate((1.0, 2.0, 3_000.0)):
            keeper.keep([(_lease(offset, loop.time() + left), (offset,))], end, Keeping())
        await until(lambda: len(renewed) == 2, what="two renewals")
        await keeper.close()
        return renewed

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == [0, 1]


async def test_what_is_settled_soon_takes_no_place_and_what_is_not_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeping, "YOUNG_SECONDS", 0.01)
    renewed: list[int] = []

    async def renew(message: MessageExt, lease: Lease, offset: int, ms: int) -> Lease:
        renewed.append(offset)
        return lease.anew(PopTimes(0, ms, 0, loop.time() + ms / 1000), offset)

    loop = asyncio.get_running_loop()
    keeper = Keeper(renew, None)
    # Renewed while a third of the time is left: that is 20 s.
    leases = [_lease(offset, loop.time() + 20.1) for offset in range(3)]
    for offset, lease in enumerate(leases):
        keeper.keep([(lease, (offset,) if offset else None)], loop.time() + 3_600, Keeping())
    leases[1].out.clear()
    assert not keeper._kept
    await until(lambda: keeper._kept, what="the sweep")
    assert [kept.lease for kept in sorted(keeper._kept)] == [leases[0], leases[2]]
    await until(lambda: len(renewed) == 2, what="the renewals")
    await keeper.close()
    assert renewed == [0, 2]
