"""What holds for all clients here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stands still for a second a client that closes would not wait until its
    broker has heard that it leaves."""
    for module in ("network.cluster", "producers.producer", "consumers.membership"):
        monkeypatch.setattr(f"kerolox.client.aio.{module}.FAREWELL_SECONDS_MAX", 30.0)
