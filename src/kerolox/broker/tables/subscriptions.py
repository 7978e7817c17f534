"""Subscriptions of the members of a consumer group, and the one that counts.

A group reads a topic with one subscription, the latest one (``ConsumerGroupInfo``). RocketMQ takes
the one of the highest version for it. A version is the time at which a client made it, by its own
clock. After a step back of that clock, or beside a member whose clock is ahead, a subscription
counts that nobody wants any more.

So the broker compares a client's word with the earlier word of the same client: a change counts
from its arrival on, whatever its version. A version only orders members that are new to the broker,
as after its restart, and none makes a subscription later than its arrival. When the last member
leaves that wants the current subscription, that of the others counts again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kerolox.protocol.bodies import SubscriptionData

SUBSCRIPTION_BYTES, TAG_BYTES, DECLARED_BYTES = 700, 150, 250
"""What a subscription takes besides its texts, each of its tags, and what a member said of a topic:
tables' entries, in Python and in the kernel."""

TOPICS_PER_STEP = 128
"""Topics whose subscriptions change in one step: a fifth of a millisecond to a whole one."""

WANTED_MAX = 1_024
"""Different subscriptions of one topic that the members of one group may have at a time."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """A subscription that one or several members have."""

    key: Hashable
    """See :func:`_key`; that of any of its data."""
    data: SubscriptionData
    """As it was told last."""
    since: int
    """When it was told last, in milliseconds; greater than that of whatever came before it."""
    members: int = 0


class _Declared(NamedTuple):
    """What one member said of one topic last."""

    wanted: _Wanted
    version: int


class Growth(NamedTuple):
    """The size that a heartbeat would add to the tables."""

    subscriptions: int
    size: int
    fullest: int
    """Different subscriptions that the topic with most of them would have."""


class Changes(NamedTuple):
    """The changes that a heartbeat or a leave made."""

    updated: set[str]
    """Topics whose subscription is to be told to the kernel."""
    is_other: bool
    """The group wants something else of a topic now."""
    is_other_topics: bool
    """The group subscribes to other topics now."""


class GroupSubscriptions:
    """Those of one group.

    Attributes:
        current: topic → the subscription that counts.
        newest: topic → the highest version that any member told. A pull that is made with a higher
            one comes before its heartbeat.
        count: different subscriptions of all topics.
        size: bytes that all of it takes, estimated from above.
    """

    def __init__(self) -> None:
        self.current: dict[str, SubscriptionData] = {}
        self.newest: dict[str, int] = {}
        self.count = 0
        self.size = 0
        self._wanted: dict[str, dict[Hashable, _Wanted]] = {}
        self._declared: dict[Hashable, dict[str, _Declared]] = {}
        self._member_of: dict[str, Hashable] = {}
        """Client id → the member that told last."""

    @staticmethod
    def size_max(subscriptions: Iterable[SubscriptionData]) -> int:
        """What :meth:`declare` adds to the size at most."""
        return sum(DECLARED_BYTES + _bytes_of(each) for each in subscriptions)

    def growth(self, member: Hashable, subscriptions: Iterable[SubscriptionData]) -> Growth:
        """What :meth:`declare` would add."""
        declared = self._declared.get(member, {})
        count = size = fullest = 0
        named = {each.topic: each for each in subscriptions}
        for topic in declared.keys() | named.keys():
            of_topic = self._wanted.get(topic)
            old, new = declared.get(topic), named.get(topic)
            if of_topic is None and new is not None:  # then nobody told of it
                count += 1
                size += DECLARED_BYTES + _bytes_of(new)
                fullest = max(fullest, 1)
                continue
            of_topic = of_topic or {}
            kinds = len(of_topic)
            found = None if new is None else of_topic.get(_key(new))
            size += DECLARED_BYTES * ((new is not None) - (old is not None))
            if old is not None and old.wanted is not found and old.wanted.members == 1:
                kinds -= 1
                count -= 1
                size -= _bytes_of(old.wanted.data)
            if new is not None and found is None:
                kinds += 1
                count += 1
                size += _bytes_of(new)
                fullest = max(fullest, kinds)
        return Growth(count, size, fullest)

    @property
    def is_empty(self) -> bool:
        """Whether no member has anything here, also none that is leaving."""
        return not self._declared

    def declare(
        self,
        member: Hashable,
        client_id: str,
        subscriptions: Iterable[SubscriptionData],
        now_ms: int,
    ) -> Iterator[Changes]:
        """A heartbeat of a member, ``TOPICS_PER_STEP`` topics at each step. What it names no more
        it does not want any more.

        Others may declare and leave between two steps. A later heartbeat of the member, or its
        leave, ends this one.
        """
        before = self._declared.get(member)
        if before is None:
            # The same client over a new connection, before the old one was found dead.
            before = self._declared.get(self._member_of.get(client_id))
            before = None if before is None else dict(before)
        own = self._declared[member] = dict(self._declared.get(member, ()))
        self._member_of[client_id] = member
        named = {each.topic: each for each in subscriptions}
        for topics in _batched(list(named)):
            if self._declared.get(member) is not own:
                return
            changed: set[str] = set()
            raised: set[str] = set()
            for topic in topics:
                known = (before or {}).get(topic)
                is_highest = self._declare_one(
                    topic, named[topic], own, known, before is not None, now_ms
                )
                if is_highest is not None:
                    changed.add(topic)
                if is_highest:
                    raised.add(topic)
            yield self._recount(changed, raised)
        for topics in _batched([topic for topic in own if topic not in named]):
            if self._declared.get(member) is not own:
                return
            for topic in topics:
                self._drop(topic, own.pop(topic))
            yield self._recount(topics, set())

    def _declare_one(
        self,
        topic: str,
        subscription: SubscriptionData,
        own: dict[str, _Declared],
        before: _Declared | None,
        is_known: bool,
        now_ms: int,
    ) -> bool | None:
        """Of one topic. ``own``: what the member has declared so far; ``before``: what the client
        had of the topic before this heartbeat, and whether it had declared anything. None: it said
        the same before; else whether the version is the highest one now."""
        earlier = own.get(topic)
        known = earlier or before
        wanted = self._wanted.setdefault(topic, {})
        key = _key(subscription)
        now_wanted = wanted.get(key)
        version = subscription.sub_version
        if earlier is not None and earlier == (now_wanted, version):
            return None
        is_news = is_known and (known is None or known != (now_wanted, version))
        if wanted:
            latest = max(each.since for each in wanted.values())
            since = min(version, max(now_ms, latest + 1))
            since = max(since, latest + 1) if is_news else since
        else:
            since = now_ms if is_news else min(version, now_ms)
        if now_wanted is None:
            now_wanted = wanted[key] = _Wanted(key, subscription, since)
            self.count += 1
            self.size += _bytes_of(subscription)
        elif since > now_wanted.since:
            now_wanted.data, now_wanted.since = subscription, since
        now_wanted.members += 1
        self.size += DECLARED_BYTES
        if earlier is not None:
            self._drop(topic, earlier)
        own[topic] = _Declared(now_wanted, version)
        if version > self.newest.get(topic, version - 1):
            self.newest[topic] = version
            return True
        return False

    def leave(self, member: Hashable, client_id: str) -> Iterator[Changes]:
        """A member left, ``TOPICS_PER_STEP`` topics at each step. Once it declares again, it does
        not leave any more."""
        if self._member_of.get(client_id) == member:
            del self._member_of[client_id]
        if member not in self._declared:
            return
        own = self._declared[member] = dict(self._declared[member])
        for topics in _batched(list(own)):
            if self._declared.get(member) is not own:
                return
            for topic in topics:
                self._drop(topic, own.pop(topic))
            yield self._recount(topics, set())
        if self._declared.get(member) is own:
            del self._declared[member]

    def _drop(self, topic: str, declared: _Declared) -> None:
        """A member does not want that any more."""
        self.size -= DECLARED_BYTES
        wanted = declared.wanted
        wanted.members -= 1
        if not wanted.members:
            del self._wanted[topic][wanted.key]
            self.count -= 1
            self.size -= _bytes_of(wanted.data)

    def _recount(self, topics: Iterable[str], updated: set[str]) -> Changes:
        """Which subscriptions count now of some topics."""
        is_other = is_other_topics = False
        for topic in topics:
            wanted = self._wanted.get(topic)
            old = self.current.get(topic)
            if old is None and wanted and len(wanted) == 1:  # as nearly always in a first heartbeat
                (best,) = wanted.values()
                self.current[topic] = best.data
                is_other_topics = True
                updated.add(topic)
                continue
            if not wanted:
                self._wanted.pop(topic, None)
                self.newest.pop(topic, None)
                if self.current.pop(topic, None) is not None:
                    is_other_topics = True
                    updated.add(topic)
                continue
            old_key = None if old is None else _key(old)
            if len(wanted) == 1:
                ((key, best),) = wanted.items()
            else:
                # Of two that are equally late the one that counts goes on to count.
                key, best = max(
                    wanted.items(), key=lambda item: (item[1].since, item[0] == old_key)
                )
            if best.data is not old:
                self.current[topic] = best.data
                is_other_topics |= old is None
                is_other |= key != old_key
                updated.add(topic)
        return Changes(updated, is_other or is_other_topics, is_other_topics)


def _batched(topics: list[str]) -> Iterator[list[str]]:
    for begin in range(0, len(topics), TOPICS_PER_STEP):
        yield topics[begin : begin + TOPICS_PER_STEP]


def _key(data: SubscriptionData) -> Hashable:
    """What is wanted, whoever made it and when."""
    kind = "TAG" if data.is_tag_type else data.expression_type
    if not data.code_set and not data.tags_set:
        return data.class_filter_mode, kind, data.sub_string, (), ()
    codes, tags = tuple(sorted(data.code_set)), tuple(sorted(data.tags_set))
    return data.class_filter_mode, kind, data.sub_string, codes, tags


def _bytes_of(data: SubscriptionData) -> int:
    tags = data.tags_set
    size = SUBSCRIPTION_BYTES + len(data.topic) + len(data.sub_string or "")
    if tags or data.code_set:
        size += TAG_BYTES * (len(tags) + len(data.code_set)) + sum(map(len, tags))
    return size
