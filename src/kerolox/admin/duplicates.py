"""What brokers do against messages of a topic that come twice (``dedup.window.ms``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.asking import answers_of
from kerolox.protocol.attributes import dedup_rule
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.duplicates import DedupWindow
from kerolox.protocol.headers import HeaderFieldError
from kerolox.text import counted, duration_text

if TYPE_CHECKING:
    from kerolox.admin.admin import Admin
    from kerolox.client.core.routes import TopicRoute

__all__ = ["TopicWindow", "topic_windows"]


@dataclass(frozen=True, slots=True)
class TopicWindow:
    """The window of a topic on one broker."""

    broker: str
    window_ms: int
    """How long it is to be."""
    is_kept: bool
    """False: the broker stores what comes again: it has ``transientStorePoolEnable``, or does not
    know windows."""
    keys: int = 0
    bytes_taken: int = 0
    """Memory of the keys."""
    age_ms: int = 0
    """How old the oldest is; 0 without any."""
    cut: int = 0
    """Keys that were forgotten before their time."""
    answered: int = 0
    """Messages that were not stored again since the broker's start."""

    @property
    def text(self) -> str:
        """All of it on one line."""
        wanted = f"window of {duration_text(self.window_ms)}"
        if not self.is_kept:
            return f"{wanted} is not kept: transientStorePoolEnable=true, or no broker of Kerolox"
        found = f"{wanted}: {counted(self.keys, 'key')}, {counted(self.bytes_taken, 'byte')}"
        if self.keys:
            found += f", the oldest {duration_text(self.age_ms)} old"
        found += f", {counted(self.answered, 'message')} not stored again"
        return f"{found}, {counted(self.cut, 'key')} cut (dedupMaxKeys)" if self.cut else found


async def topic_windows(
    admin: Admin, route: TopicRoute, topic: str, attributes: Mapping[str, Mapping[str, str]]
) -> list[TopicWindow]:
    """By broker; those that are to have none, without a master, or silent are left out.

    Args:
        admin: asks.
        route: of the topic.
        topic: its name.
        attributes: its attributes by broker.
    """
    rules = {
        name: (address, rule)
        for name, address in route.masters.items()
        if (rule := dedup_rule(attributes.get(name))) is not None
    }

    async def ask(name: str) -> TopicWindow:
        address, rule = rules[name]
        answer = await admin.access.ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        try:
            window = DedupWindow.decode(answer.ext_fields)
        except HeaderFieldError:
            return TopicWindow(name, rule.window_ms, is_kept=False)
        return TopicWindow(
            name,
            rule.window_ms,
            is_kept=True,
            keys=window.dedup_keys,
            bytes_taken=window.dedup_bytes,
            age_ms=window.dedup_age_ms,
            cut=window.dedup_keys_cut,
            answered=window.dedup_answered,
        )

    found, _ = await answers_of(rules, ask)
    return [found[name] for name in rules if name in found]
