"""Consume queues (skeleton)."""

from __future__ import annotations

__all__ = ["ConsumeQueue"]


class ConsumeQueue:
    """One consume queue. ``min_offset``/``max_offset`` count entries, not bytes."""

    topic: str
    queue_id: int
    topic_bytes: bytes
    min_offset: int
    max_offset: int
    held: object
    """Free for the subclass of the store: its held pulls of this queue. None at first."""
