"""How far a broker's timer is behind its clock, or ahead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.clock import now_ms
from kerolox.doctor.facts import TimerFacts
from kerolox.errors import RemoteProtocolError
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.admin import Access


async def timer_facts(access: Access, address: str, clock_ahead_ms: int) -> TimerFacts | None:
    """What the timer of a master says (GET_TIMER_CHECK_POINT, 60; GET_TIMER_METRICS, 61); None: it
    has none, or has had no message.

    Args:
        access: asks it.
        address: of the broker.
        clock_ahead_ms: how far its clock is before ours.

    Raises:
        KeroloxError: it refused or does not answer.
    """
    from kerolox.store.timer.checkpoint import decode_checkpoint
    from kerolox.store.timer.metrics import decode_metrics

    counts = await access.ask(address, RequestCode.GET_TIMER_METRICS)
    asked_ms = now_ms()
    point = await access.ask(address, RequestCode.GET_TIMER_CHECK_POINT)
    answered_ms = now_ms()
    try:
        read_ms = decode_checkpoint(point.body).last_read_ms
        waiting = sum(each.count for each in decode_metrics(counts.body).timing_count.values())
    except (ValueError, BodyError) as error:
        raise RemoteProtocolError(f"{address}: {error}") from None
    if not read_ms:
        return None
    ahead_ms = read_ms - answered_ms - clock_ahead_ms
    behind_ms = max(asked_ms + clock_ahead_ms - read_ms, 0)
    return TimerFacts(waiting=max(waiting, 0), behind_ms=-ahead_ms if ahead_ms > 0 else behind_ms)
