"""What consumer groups filter by expressions: ``ConsumerFilterManager`` of RocketMQ.

Heartbeats bring the expressions; they are compiled once. Which one of a group counts is decided by
``tables/subscriptions.py``; RocketMQ compares versions here, too. A group that leaves is dead, not
forgotten: it may come back within a day, and until then its expression counts. Kept in
``consumerFilter.json``.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kerolox.broker.config import BrokerConfig
from kerolox.broker.tables.json_file import TABLE_BYTES_MAX, JsonFile, text_bytes
from kerolox.filter.sql92_error import SQL92, Sql92Error
from kerolox.protocol.bodies import SubscriptionData
from kerolox.protocol.names import length_fault
from kerolox.remoting.time_slices import TimeSlices
from kerolox.store.queues.ext_unit import BitFilter, ExtUnit

if TYPE_CHECKING:
    from kerolox.filter.sql92 import Sql92Expression

COMPILED_MAX = 32
"""Expressions of pulls that bring their own which are kept compiled, or known to be none."""

FILTERS_MAX = 100_000
"""Pairs of topic and group; further ones are not kept, and their messages not filtered."""

ON_THE_SPOT_CHARACTERS_MAX = 1024
"""Longer expressions, and a broker's first one, are compiled in a thread, one at a time: that may
take 250 ms."""

FILTER_BYTES, POSITION_BYTES = 500, 30
"""What a filter takes in the file besides its texts, and each of its bits, at the most."""

CHARACTERS_MAX = 4 * 1024 * 1024
"""Characters of all expressions that are kept, of which each costs some 70 bytes."""

DEAD_SINCE_MS = 30_000
"""How long before a start the groups of the file are taken to have died."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GroupFilter:
    """The filter of one group for one topic (``ConsumerFilterData``)."""

    topic: str
    group: str
    text: str
    expression_type: str
    version: int
    born_ms: int
    dead_ms: int = 0
    """0: alive."""
    expression: Sql92Expression | None
    bloom_bits: int
    bloom_positions: list[int]

    def is_of(self, subscription: SubscriptionData) -> bool:
        """Whether this is what a subscription wants."""
        wanted = subscription.sub_string or "", subscription.expression_type or ""
        return wanted == (self.text, self.expression_type)


class _Bloom(msgspec.Struct, rename="camel"):
    bit_num: int = 0
    bit_pos: list[int] = []


class _Filter(msgspec.Struct, rename="camel", kw_only=True):
    bloom_filter_data: _Bloom | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str
    dead_time: int = 0
    expression: str
    expression_type: str = SQL92
    topic: str


class _TopicFilters(msgspec.Struct, rename="camel"):
    group_filter_data: dict[str, _Filter] = {}
    topic: str = ""


class _FilterFile(msgspec.Struct, rename="camel"):
    filter_data_by_topic: dict[str, _TopicFilters] = {}


def compile_expression(text: str, expression_type: str) -> Sql92Expression:
    """Compile an expression of a kind that is no tags; Sql92Error: it can't be, or nobody knows the
    kind.
    """
    if expression_type != SQL92:
        raise Sql92Error(f"there is no kind of filter {expression_type[:80]!r}; use TAG or SQL92")
    compiled = _compiled(text)
    if isinstance(compiled, str):
        raise Sql92Error(compiled)
    return compiled


@functools.lru_cache(COMPILED_MAX)
def _compiled(text: str) -> Sql92Expression | str:
    """The expression, or why it is none: who asks again for a wrong one has it read once."""
    from kerolox.filter.sql92 import compile_sql92

    try:
        return compile_sql92(text)
    except Sql92Error as error:
        return str(error)


class FilterTable:
    """The expressions of all groups, by topic."""

    def __init__(
        self,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        *,
        on_topic: Callable[[str, bool], None] = lambda topic, needs_bit_map: None,
    ) -> None:
        """Without expressions before :meth:`load`. ``on_topic``: called with a topic and whether
        messages to it need bit maps, when that changes."""
        self._now_ms = now_ms
        self._bloom = config.bloom_filter
        self._kept_ms = config.filter_data_clean_time_span
        self._is_calculated = config.enable_calc_filter_bit_map and config.enable_consume_queue_ext
        self._on_topic = on_topic
        self._filters: dict[str, dict[str, GroupFilter]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """Group → the topics that it filters."""
        self._count = 0
        self._characters = self._bytes = 0
        self._compiling = asyncio.Lock()
        self.file = JsonFile(config.config_folder / "consumerFilter.json", self._snapshot)

    def load(self) -> None:
        """Read the file; whoever is in it is dead until a heartbeat says otherwise."""
        loaded = self.file.load(_FilterFile)
        if loaded is None:
            return
        found = [f for topic in loaded.filter_data_by_topic.values() for f in _values(topic)]
        if any(not self._is_of_this_size(item) for item in found):
            _log.warning("the Bloom filter is of another size now: kept filters are left out")
            return
        for item in found:
            self._load_one(item)

    def _load_one(self, item: _Filter) -> None:
        if length_fault("", item.topic, is_topic=True) or length_fault("", item.consumer_group):
            return
        dead_ms = item.dead_time or max(self._now_ms() - DEAD_SINCE_MS, item.born_time)
        self._put(
            GroupFilter(
                topic=item.topic,
                group=item.consumer_group,
                text=item.expression,
                expression_type=item.expression_type,
                version=item.client_version,
                born_ms=item.born_time,
                dead_ms=dead_ms,
                expression=_compiled_or_none(item.expression, item.expression_type),
                bloom_bits=self._bloom.bits,
                bloom_positions=item.bloom_filter_data.bit_pos if item.bloom_filter_data else [],
            )
        )

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """What a group wants of a topic, alive or dead."""
        return self._filters.get(topic, {}).get(group)

    def text_of(self, topic: str, group: str) -> str:
        """A group's filter as JSON, as an operator is shown it; ``null`` without one."""
        found = self.get(topic, group)
        return json.dumps(None if found is None else _as_json(found), indent=2)

    @property
    def makes_bit_maps(self) -> bool:
        """Messages of some topics may get a bit map."""
        return self._is_calculated

    def needs_bit_map(self, topic: str) -> bool:
        """Messages to a topic get a bit map (``enableCalcFilterBitMap``)."""
        return self._is_calculated and topic in self._filters

    def bit_map(self, topic: str, properties: Mapping[str, str]) -> bytes:
        """The bits of the groups, dead ones too, that want a message (``CommitLogDispatcherCalc
        BitMap``); empty when there is nobody to ask."""
        if not self.needs_bit_map(topic):
            return b""
        bits = bytearray(self._bloom.bits // 8)
        for item in self._filters[topic].values():
            if item.expression is not None and item.expression.matches(properties):
                for position in item.bloom_positions:
                    bits[position // 8] |= 1 << position % 8
        return bytes(bits)

    def bits_of(self, item: GroupFilter) -> tuple[int, int, Sequence[int]] | None:
        """What rules messages out by their bit maps, see ``RecordReader.read``; None: nothing."""
        if len(item.bloom_positions) != self._bloom.hashes:
            return None
        return item.bloom_bits, item.born_ms, item.bloom_positions

    def may_match(self, group: str, subscription: SubscriptionData, unit: ExtUnit) -> bool:
        """Whether a group may want the message of a unit, as far as that tells
        (``isMatchedByConsumeQueue``)."""
        if subscription.is_tag_type:
            codes = subscription.tag_codes
            return codes is None or unit.tags_code in codes
        known = self.get(subscription.topic, group)
        bits = None if known is None else self.bits_of(known)
        return bits is None or not BitFilter(*bits).rules_out(unit)

    async def register(
        self, group: str, current: Mapping[str, SubscriptionData], slices: TimeSlices
    ) -> None:
        """A heartbeat: what a group subscribes to may have changed. Many expressions take many
        turns. ``current``: topic → the subscription that counts; others may change it meanwhile.
        """
        for subscription in list(current.values()):
            if not subscription.is_tag_type and subscription.sub_string:
                await slices.checkpoint()
                await self._prepare(group, subscription)
                if current.get(subscription.topic) is subscription:
                    self._register_one(group, subscription)
        for known in self._of_group(group):
            if known.topic not in current and not known.dead_ms:
                self._die(known)

    async def prepare(self, text: str, expression_type: str) -> None:
        """Let the next :func:`compile_expression` of the same take no time worth the name, whatever
        it says then."""
        from kerolox.filter.sql92 import is_parser_loaded

        is_quick = len(text) <= ON_THE_SPOT_CHARACTERS_MAX and is_parser_loaded()
        if expression_type == SQL92 and not is_quick:
            async with self._compiling:
                await asyncio.to_thread(_compiled, text)

    def unregister(self, group: str) -> None:
        """The last member of a group left."""
        for known in self._of_group(group):
            if not known.dead_ms:
                self._die(known)

    def clean(self) -> None:
        """Forget who is dead for longer than filterDataCleanTimeSpan."""
        limit = self._now_ms() - self._kept_ms
        for topic, groups in list(self._filters.items()):
            for group, known in list(groups.items()):
                if known.dead_ms and known.dead_ms <= limit:
                    self._drop(topic, group)

    async def persist(self) -> None:
        """Write the file when something changed."""
        self.clean()
        await self.file.persist()

    # -- inside -----------------------------------------------------------------------------------
    async def _prepare(self, group: str, subscription: SubscriptionData) -> None:
        text, kind = subscription.sub_string or "", subscription.expression_type or ""
        old = self.get(subscription.topic, group)
        if old is None or not old.is_of(subscription):
            await self.prepare(text, kind)

    def _register_one(self, group: str, subscription: SubscriptionData) -> None:
        text, kind = subscription.sub_string or "", subscription.expression_type or ""
        old = self.get(subscription.topic, group)
        if old is not None and old.is_of(subscription):
            if old.dead_ms or old.version != subscription.sub_version:
                old.version, old.dead_ms = subscription.sub_version, 0
                self.file.touch()
            return
        expression = _compiled_or_none(text, kind)
        if expression is None:
            # What was meant is not known: what was meant before counts no more.
            self._drop(subscription.topic, group)
            return
        self._put(
            GroupFilter(
                topic=subscription.topic,
                group=group,
                text=text,
                expression_type=kind,
                version=subscription.sub_version,
                born_ms=self._now_ms(),
                expression=expression,
                bloom_bits=self._bloom.bits,
                bloom_positions=self._bloom.positions(f"{group}#{subscription.topic}"),
            )
        )

    def _put(self, item: GroupFilter) -> None:
        groups = self._filters.get(item.topic, {})
        old = groups.get(item.group)
        size = _bytes_of(item)
        if old is not None:
            self._characters -= len(old.text)
            self._bytes -= _bytes_of(old)
        elif self._count >= FILTERS_MAX or self._bytes + size > TABLE_BYTES_MAX:
            _log.warning(
                "%d filters are kept already, which take %d bytes; none for %s",
                self._count,
                self._bytes,
                item.group,
            )
            return
        if self._characters + len(item.text) > CHARACTERS_MAX:
            _log.warning(
                "filters of %d characters are kept, and %d are the most; none for %s",
                self._characters,
                CHARACTERS_MAX,
                item.group,
            )
            if old is not None:
                self._characters += len(old.text)
                self._bytes += _bytes_of(old)
                self._drop(item.topic, item.group)
            return
        self._count += old is None
        self._characters += len(item.text)
        self._bytes += size
        self._topics_of.setdefault(item.group, set()).add(item.topic)
        is_first = not groups
        self._filters.setdefault(item.topic, groups)[item.group] = item
        self.file.touch()
        if is_first and self._is_calculated:
            self._on_topic(item.topic, True)

    def _drop(self, topic: str, group: str) -> None:
        groups = self._filters.get(topic, {})
        known = groups.pop(group, None)
        if known is None:
            return
        self._count -= 1
        self._characters -= len(known.text)
        self._bytes -= _bytes_of(known)
        topics = self._topics_of[group]
        topics.discard(topic)
        if not topics:
            del self._topics_of[group]
        self.file.touch()
        if not groups:
            del self._filters[topic]
            if self._is_calculated:
                self._on_topic(topic, False)

    def _die(self, known: GroupFilter) -> None:
        known.dead_ms = self._now_ms()
        self.file.touch()

    def _of_group(self, group: str) -> list[GroupFilter]:
        return [self._filters[topic][group] for topic in self._topics_of.get(group, ())]

    def _is_of_this_size(self, item: _Filter) -> bool:
        bloom = item.bloom_filter_data
        return (
            bloom is not None
            and bloom.bit_num == self._bloom.bits
            and len(bloom.bit_pos) == self._bloom.hashes
        )

    def _snapshot(self) -> object:
        return {
            "filterDataByTopic": {
                topic: {
                    "groupFilterData": {name: _as_json(item) for name, item in groups.items()},
                    "topic": topic,
                }
                for topic, groups in self._filters.items()
            }
        }


def _values(topic: _TopicFilters) -> Iterable[_Filter]:
    return topic.group_filter_data.values()


def _bytes_of(item: GroupFilter) -> int:
    texts = text_bytes(item.text) + text_bytes(item.expression_type)
    names = 3 * text_bytes(item.topic) + 2 * text_bytes(item.group)
    return FILTER_BYTES + texts + names + POSITION_BYTES * len(item.bloom_positions)


def _as_json(item: GroupFilter) -> object:
    return {
        "bloomFilterData": {"bitNum": item.bloom_bits, "bitPos": list(item.bloom_positions)},
        "bornTime": item.born_ms,
        "clientVersion": item.version,
        "consumerGroup": item.group,
        "deadTime": item.dead_ms,
        "expression": item.text,
        "expressionType": item.expression_type,
        "topic": item.topic,
    }


def _compiled_or_none(text: str, expression_type: str) -> Sql92Expression | None:
    try:
        return compile_expression(text, expression_type)
    except Sql92Error as error:
        _log.warning("a filter is left out: %s", error)
        return None
