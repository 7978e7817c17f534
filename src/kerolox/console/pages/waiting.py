"""What brokers keep back: delayed messages until their time, halves of open transactions."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.admin.asking import answers_of
from kerolox.admin.messages.waiting import HALVES_READ_MAX
from kerolox.clock import now_ms
from kerolox.console.rendering import preview_text
from kerolox.console.visit import Visit

__all__ = ["delayed", "transactions"]

SHOWN_MAX = 50


async def delayed(visit: Visit) -> Response:
    """Levels with how many wait; of one level the next messages."""
    masters = await visit.console.cluster.masters()
    found, failed = await answers_of(masters, lambda name: visit.admin.delay_levels(masters[name]))
    levels = [level for each in found.values() for level in each]
    broker, number = visit.asked("broker"), visit.number("level", 0)
    chosen = next((e for e in levels if (e.broker, e.number) == (broker, number)), None)
    messages = (
        [] if chosen is None else await visit.admin.delayed_messages(chosen, max_messages=SHOWN_MAX)
    )
    return visit.page(
        "delayed.html",
        levels=[level for level in levels if level.waiting],
        failed=failed,
        chosen=chosen,
        messages=messages,
        now_ms=now_ms(),
        preview=preview_text,
    )


async def transactions(visit: Visit) -> Response:
    """Halves that are neither committed nor rolled back."""
    masters = await visit.console.cluster.masters()
    found, failed = await answers_of(masters, lambda name: visit.admin.open_halves(masters[name]))
    return visit.page(
        "transactions.html",
        brokers=found,
        failed=failed,
        now_ms=now_ms(),
        most=HALVES_READ_MAX,
        preview=preview_text,
    )
