"""The life of a client: how long its end may take, shared among what there is to do."""

from __future__ import annotations

CLOSE_SECONDS_MAX = 5.0
"""How long a close takes at most, whatever brokers do."""

UNREGISTER_SECONDS = 2.0
"""Of these, what is left for offsets, unregistering and connections when listeners take their
time."""

SENDS_SECONDS_MAX = 1.5
"""How long a producer that closes waits for the answers to what it sent."""

OFFSETS_SECONDS_MAX = 1.0
"""How long a consumer that closes waits until its offsets are stored."""


def close_seconds(listener_seconds: float = 0.0) -> float:
    """The bound of a close whose listeners may take so long (``close_timeout_ms``)."""
    return max(CLOSE_SECONDS_MAX, listener_seconds + UNREGISTER_SECONDS)
