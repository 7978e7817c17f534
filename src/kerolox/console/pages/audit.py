"""The last lines of the audit log: who did what, and what was denied."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.console.rendering import slice_of
from kerolox.console.visit import Visit

__all__ = ["show"]

OUTCOMES = ("changed", "failed", "denied", "login", "login-failed", "logout")
TONES = {"changed": "good", "failed": "bad", "denied": "warn", "login-failed": "warn"}


async def show(visit: Visit) -> Response:
    """Newest first, those of one outcome, or with a text in any of their parts."""
    outcome, wanted = visit.asked("outcome"), visit.asked("q").lower()
    lines = [
        each
        for each in visit.console.audit.last()
        if outcome in ("", each.outcome)
        and wanted in f"{each.account} {each.address} {each.action} {each.detail}".lower()
    ]
    return visit.page(
        "audit.html",
        shown=slice_of(lines, visit.number("page", 1, 1)),
        outcome=outcome,
        outcomes=OUTCOMES,
        tones=TONES,
        q=visit.asked("q"),
    )
