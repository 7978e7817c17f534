"""What holds for all clients here."""

from __future__ import annotations

import pytest

BOUNDS = (
    "core.life.UNREGISTER_SECONDS",
    "aio.life.CLOSE_SECONDS_MAX",
    "aio.consumers.lite.member.OFFSETS_SECONDS_MAX",
    "aio.consumers.lite_pull_consumer.PARTING_SECONDS_MAX",
    "aio.consumers.pull_consumer.OFFSETS_SECONDS_MAX",
    "aio.consumers.push.ownership.ownership.OFFSETS_SECONDS_MAX",
    "aio.network.instance.UNREGISTER_SECONDS_MAX",
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stands still for a second a client that closes would not wait until its
    broker has heard that it leaves."""
    for bound in BOUNDS:
        monkeypatch.setattr(f"kerolox.client.{bound}", 30.0)
    # Most tests that close a producer during a send do so since nothing will ever answer.
    monkeypatch.setattr("kerolox.client.aio.producers.producer.SENDS_SECONDS_MAX", 0.1)
