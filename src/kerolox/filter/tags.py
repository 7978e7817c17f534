"""Tag expressions: ``*``, or tags joined by ``||`` (``FilterAPI`` of RocketMQ)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kerolox.message import java_hash

__all__ = ["ALL_TAGS", "TAGS_MAX", "Subscription", "parse_tags", "subscription_of"]

ALL_TAGS = "*"

TAGS_MAX = 4_096
"""Tags of one topic that a broker takes from a group: each message is compared with all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a group wants of a topic (``SubscriptionData``)."""

    topic: str
    expression: str = ALL_TAGS
    expression_type: str = "TAG"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    class_filter_mode: bool = False

    @property
    def tag_codes(self) -> tuple[int, ...] | None:
        """The codes to match; None when every message matches."""
        return None if self.expression in ("", ALL_TAGS) else self.codes

    def matches(self, tags: str | None) -> bool:
        """The exact check by text that the client makes after the broker's check by code."""
        return not self.tags or tags in self.tags


def parse_tags(expression: str | None) -> tuple[str, ...]:
    """The tags of an expression; empty for ``*``, an empty text and None.

    Raises:
        ValueError: only separators and blanks.
    """
    if expression is None or expression in ("", ALL_TAGS):
        return ()
    tags = tuple(dict.fromkeys(part.strip() for part in expression.split("||") if part.strip()))
    if not tags:
        raise ValueError(f"tag expression {expression!r} names no tag; write '*' or 'a || b'")
    return tags


def subscription_of(topic: str, expression: str | None, *, version: int = 0) -> Subscription:
    """Build a subscription from a tag expression (version 0: now, in milliseconds)."""
    tags = parse_tags(expression)
    return Subscription(
        topic=topic,
        expression=expression if tags and expression else ALL_TAGS,
        tags=tags,
        codes=tuple(java_hash(tag) for tag in tags),
        version=version or time.time_ns() // 1_000_000,
    )
