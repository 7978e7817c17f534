"""Tag expressions: ``*``, or tags joined by ``||`` (``FilterAPI`` of RocketMQ)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from kerolox.message import ALL_TAGS, tags_code

TAGS_MAX = 4_096
"""Tags of one topic that a broker takes from a group: each message is compared with all of them."""

_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""What Java's ``String.trim`` takes away: no blanks beyond ASCII."""

_SQL92 = re.compile(
    r"[<>=()']|(?:^|\s)(?:AND|OR|NOT|BETWEEN)\s|\s(?i:is\s+(?:not\s+)?null)\b"
    r"|\s(?i:between\s.*\sand)\s"
)


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
    class_source: str = ""
    """That of the filter class whose name ``expression`` is (``filterClassSource``)."""

    @property
    def tag_codes(self) -> tuple[int, ...] | None:
        """The codes to match; None when every message matches."""
        matches_all = self.class_filter_mode or self.expression in ("", ALL_TAGS)
        return None if matches_all else self.codes

    def matches(self, tags: str | None) -> bool:
        """The exact check by text that the client makes after the broker's check by code."""
        return not self.tags or tags in self.tags


def parse_tags(expression: str | None) -> tuple[str, ...]:
    """The tags of an expression (``FilterAPI.buildSubscriptionData``), each once.

    Empty for ``*``, an empty text and None: every message matches. ValueError: only separators and
    blanks.
    """
    if expression is None or expression in ("", ALL_TAGS):
        return ()
    parts = (part.strip(_JAVA_BLANKS) for part in expression.split("||"))
    tags = tuple(dict.fromkeys(part for part in parts if part))
    if not tags:
        raise ValueError(f"tag expression {expression!r} names no tag; write '*' or 'a || b'")
    return tags


def looks_like_sql92(expression: str) -> bool:
    """Whether a text that stands where tags are expected is meant as a condition (SQL92).

    Any text may be a tag, so a broker takes ``a > 5`` for one and finds nothing. This is for places
    where people write expressions: a comparison, a parenthesis, a quote, or one of SQL92's words in
    capitals (``IS NULL`` and ``BETWEEN .. AND`` also in small letters) between blanks.
    """
    return _SQL92.search(expression) is not None


def subscription_of(topic: str, expression: str | None, *, version: int = 0) -> Subscription:
    """Build a subscription from a tag expression (version 0: now, in milliseconds)."""
    tags = parse_tags(expression)
    return Subscription(
        topic=topic,
        expression=expression if tags and expression else ALL_TAGS,
        tags=tags,
        codes=tuple(tags_code(tag) for tag in tags),
        version=version or time.time_ns() // 1_000_000,
    )
