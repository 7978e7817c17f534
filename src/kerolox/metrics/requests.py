"""Metrics of connections and requests, which all roles have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.metrics.families import Families
    from kerolox.remoting.audit import Audit
    from kerolox.remoting.limits.requests import LimitCounts


def measure_requests(families: Families, counts: LimitCounts, audit: Audit, kept: int) -> None:
    """Add open connections and the bytes that they keep, what limits refused, and what the audit
    log counted."""
    families.gauge("kerolox_connections", "Open connections", counts.connections)
    families.gauge(
        "kerolox_connections_memory_bytes",
        "Frames that are not whole yet, and answers that are not read yet",
        kept,
    )
    for limit, count in (
        ("connections", counts.connections_refused),
        ("connections_of_address", counts.connections_refused_of_address),
        ("requests_of_address", counts.requests_refused_of_address),
        ("requests_of_account", counts.requests_refused_of_account),
    ):
        families.counter("kerolox_refused_total", "What limits refused", count, {"limit": limit})
    for outcome, count in audit.counts.items():
        families.counter(
            "kerolox_audited_total",
            "Changes by operators, and denials",
            count,
            {"outcome": outcome},
        )
