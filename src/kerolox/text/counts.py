"""How many of something, in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, *, plural: str = "") -> str:
    """``1 message``, ``2 messages``; ``plural``: where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
