"""Time limits of a broker in this process that a stalled machine would reach before the work."""

from __future__ import annotations

import pytest


def lift_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a minute to a pull with an expression, and to the registration that an answer waits
    for."""
    for module in ("send", "client"):
        monkeypatch.setattr(f"kerolox.broker.requests.{module}.ANSWER_SECONDS_MAX", 60.0)
    for module in ("requests.admin", "services.registration"):
        monkeypatch.setattr(f"kerolox.broker.{module}.OPERATOR_SECONDS_MAX", 60.0)
    for limit in ("SCAN_SECONDS_MAX", "SCAN_CPU_SECONDS_MAX"):
        monkeypatch.setattr(f"kerolox.broker.services.filtered_pull.{limit}", 60.0)
