"""The findings of the doctor, with what to do about each."""

from __future__ import annotations

from collections.abc import Container

from starlette.responses import Response

from kerolox.console.health import TONES
from kerolox.console.visit import Visit
from kerolox.doctor import Finding, Severity

__all__ = ["ICONS", "findings", "link_of"]

ICONS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
"""Severity → the name of an icon."""
_GROUP = "group "
"""How the place of a finding about a group begins."""


async def findings(visit: Visit) -> Response:
    """All that the last check found."""
    checks = visit.console.health
    health = checks.newest()
    addresses = await visit.console.cluster.broker_addresses()
    return visit.page(
        "health.html",
        health=health,
        is_running=checks.is_running,
        Severity=Severity,
        tones=TONES,
        icons=ICONS,
        link_of=lambda finding: link_of(visit, finding, addresses),
    )


def link_of(visit: Visit, finding: Finding, brokers: Container[str]) -> str:
    """The page about what a finding of the doctor is about; empty: there is none. ``brokers``:
    ``host:port`` of those that have a page.
    """
    if finding.where.startswith(_GROUP):
        group = finding.where.removeprefix(_GROUP)
        if finding.code == "dead-letters":
            return visit.path("/dead-letter", group=group)
        return visit.path("/group", name=group)
    return visit.path("/broker", address=finding.where) if finding.where in brokers else ""
