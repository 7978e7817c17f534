"""What clients did and were told in a run, and what befell the servers: plain data.

The workload and the cluster write it, :mod:`tests.simulation.checks` reads it. Each message has a
key of its own, which stands in its ``KEYS`` and in its body, so messages are compared by key. Times
are virtual seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from kerolox.message import ALL_TAGS

PLAIN, ORDERED, DELAYED, TRANSACTION = "plain", "ordered", "delayed", "transaction"
SEND_OK = "SEND_OK"
COMMIT, ROLLBACK, UNKNOWN = "commit", "rollback", "unknown"
ASKED, DONE = "asked", "done"
OK, LATER, DIED, LOST = "ok", "later", "died", "lost"


def is_wanted(tag: str, expression: str) -> bool:
    """Whether tags joined by ``||``, or all, have a tag."""
    return expression == ALL_TAGS or tag in expression.split(" || ")


@dataclass
class Sent:
    """One message that a producer tried to send."""

    key: str
    topic: str
    kind: str
    began: float
    status: str = ""
    """What the client learned: the name of a ``SendStatus``; empty: an error, or nothing yet."""
    ended: float = -1.0
    error: str = ""
    broker: str = ""
    """The broker's name, of the answer, like all that follows."""
    queue_id: int = -1
    queue_offset: int = -1
    physical_offset: int = -1
    """Of the offset message id."""
    shard: str = ""
    """ORDERED: messages of one shard go to one queue, one after the other."""
    delay_ms: int = 0
    decision: str = ""
    """TRANSACTION: what its producer decides, and says again whenever a broker asks."""
    is_timed: bool = False
    """DELAYED: the timer counts its delay."""
    moment_ms: int = 0
    """When it is due by its sender's clock; 0: its delay begins when it is stored."""
    recall: str = ""
    """ASKED or DONE: it was taken back."""
    one_way: bool = False
    tag: str = ""

    def told(
        self,
        at: float,
        status: str,
        broker: str = "",
        queue_id: int = -1,
        queue_offset: int = -1,
        physical_offset: int = -1,
    ) -> None:
        """The send returned a result."""
        self.ended, self.status, self.broker = at, status, broker
        self.queue_id, self.queue_offset = queue_id, queue_offset
        self.physical_offset = physical_offset

    def failed(self, at: float, error: str) -> None:
        """The send raised an error: the message may be stored or not."""
        self.ended, self.error = at, error


Delivery = tuple[str, str, str, int, int, int]
"""Group, broker, topic, queue and offset of a message that was popped, and its pop time."""


@dataclass
class Received:
    """One message that a consumer was given."""

    at: float
    group: str
    consumer: str
    key: str
    topic: str
    """Of the queue: the topic, or the retry topic of the group."""
    broker: str
    queue_id: int
    queue_offset: int
    reconsume_times: int = 0
    result: str = ""
    """OK: it was consumed; LATER: the listener asked for it again; DIED: nothing was said any more;
    empty: the listener is at it."""
    ended: float = -1.0
    """When the listener settled it."""
    acknowledged: float = -1.0
    """A member that pops was answered its acknowledgement then."""
    is_forwarded: bool = False
    """It was to be a dead letter, and is ``acknowledged`` when that was answered."""
    pop_time: int = 0
    """Of its receipt."""
    popped_at: float = -1.0
    """When its broker gave it out; perhaps long ago, as a member comes for it when it has time."""
    extended: float = -1.0
    """It was given more time then, if it was."""
    visible_at: float = -1.0
    """Before then nobody else is to get what was popped; -1: its group does not pop."""

    def given_back(self, at: float) -> None:
        """A member begins to give it back. Whose time is over keeps it no longer thereby: another
        member may have it since."""
        self.visible_at = min(self.visible_at, at)

    @property
    def delivery(self) -> Delivery:
        """Which pop gave it out."""
        return (
            self.group,
            self.broker,
            self.topic,
            self.queue_id,
            self.queue_offset,
            self.pop_time,
        )


class Subscribed(NamedTuple):
    """What the members of a group subscribe to: the first one since then, and since then all."""

    first_at: float
    all_at: float
    expression: str


class Rewind(NamedTuple):
    """An operator begins to set offsets of a group back."""

    at: float
    log_end: int
    """Of the broker then; 0: it is not known."""


class Reset(NamedTuple):
    """An operator sets offsets of a group to the ends of queues."""

    began: float
    ended: float
    is_at_once: bool
    """The broker took the ends and set the offsets in one step. Else what was given out meanwhile
    may come again."""


class Narrowed(NamedTuple):
    """A topic had so many queues while the log of a broker came from one place to another."""

    broker: str
    topic: str
    queues: int
    log_begin: int
    log_end: int


@dataclass
class Group:
    """A consumer group."""

    name: str
    topics: tuple[str, ...]
    is_orderly: bool = False
    is_popped: bool = False
    is_ordered: bool = False
    """It pops in order."""
    is_broadcast: bool = False
    skipped: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """(topic, broker, queue) to the offset below which it need not get messages: offsets were
    reset forwards."""
    takes_time: bool = False
    """Its listeners are slow, or fail; or its members extend, or acknowledge twice."""
    rewinds: dict[tuple[str, str, int], Rewind] = field(default_factory=dict)
    """(topic, broker, queue) to the last time that the offset was set to the begin and that was
    answered. Queues that a topic lacks then stay where they are."""
    is_rewound: bool = False
    """Offsets were reset backwards: order begins anew there."""
    resets: list[Reset] = field(default_factory=list)
    """Forwards."""
    retries_max: int = 16
    subscriptions: list[Subscribed] = field(default_factory=list)
    """In order; none: all messages."""

    def skip(self, queue: tuple[str, str, int], offset: int) -> None:
        """It need not get what is before an offset of a queue, see ``skipped``."""
        self.skipped[queue] = max(self.skipped.get(queue, 0), offset)

    @property
    def has_tags(self) -> bool:
        """Whether it ever subscribed to some tags alone."""
        return any(each.expression != ALL_TAGS for each in self.subscriptions)

    def may_pass(self, tag: str, since: float) -> bool:
        """Whether a message that was sent then may reach none of its members: one of the
        subscriptions from then on does not want it."""
        wanted = [
            each.expression
            for number, each in enumerate(self.subscriptions)
            if self._ended(number) > since
        ]
        return not all(is_wanted(tag, each) for each in wanted)

    def wants(self, tag: str, at: float) -> bool:
        """Whether what any of its members subscribed to then has a tag."""
        return not self.subscriptions or any(
            each.first_at <= at <= self._ended(number) and is_wanted(tag, each.expression)
            for number, each in enumerate(self.subscriptions)
        )

    def _ended(self, number: int) -> float:
        later = self.subscriptions[number + 1 :]
        return later[0].all_at if later else math.inf


KILLED, CRASHED, STOPPED, STARTED, PROMOTED = "killed", "crashed", "stopped", "started", "promoted"


@dataclass
class Event:
    """Something that befell a broker's process or disk."""

    at: float
    what: str
    broker: str
    """The broker's name (of the master and its slaves)."""
    node: str
    """The process."""
    log_end: int = -1
    """End of its log at that time, where it is known. STOPPED: with a full disk; -1: it was not.
    STARTED: what its start found."""
    flushed: int = -1
    """CRASHED: what its store believed to be on the disk."""
    is_master: bool = True
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """KILLED, CRASHED: (topic, queue) to where it ended."""


@dataclass
class History:
    """Everything of one run, each list in order of time."""

    flush: str = "ASYNC_FLUSH"
    role: str = "ASYNC_MASTER"
    is_quiet: bool = False
    """No fault befell anything."""
    stores_once: bool = False
    """Topics have a window of keys."""
    has_failing_syncs: bool = False
    """Some disk fails to sync at some time."""
    kinds: frozenset[str] = frozenset()
    """Of faults that befall anything."""
    snapshot_seconds: float = 0.0
    """How often what is out is written."""
    has_index: bool = False
    """Brokers look messages up by their keys."""
    has_pool: bool = False
    """With a transient store pool a kill loses what was not committed to the page cache."""
    sent: list[Sent] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    gone_topics: set[str] = field(default_factory=set)
    """Topics that were deleted and not made again; a broker that was away may have them still."""
    deleted_topics: dict[str, float] = field(default_factory=dict)
    """Topic to the last time at which a deletion of it began or ended."""
    narrowed: list[Narrowed] = field(default_factory=list)
    clock_jumps: int = 0
    role_changes: int = 0
    """Promotions that were tried, planned ones, too."""
    timer_step_ms: int = 1_000
    """``timerPrecisionMs``."""
    checks: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, key, answer): brokers asked about a transaction."""
    stored: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """(broker, message id, queue offset) of what came by gRPC to its queue and place in the log, of
    which answers say nothing."""
    _popped: dict[Delivery, list[float]] = field(default_factory=lambda: defaultdict(list))
    _came: dict[tuple[str, Delivery], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def send(self, key: str, topic: str, kind: str, began: float) -> Sent:
        """A send begins."""
        sent = Sent(key, topic, kind, began)
        self.sent.append(sent)
        return sent

    def popped(self, delivery: Delivery, at: float) -> None:
        """A broker gives a message out."""
        self._popped[delivery].append(at)

    def came(self, consumer: str, delivery: Delivery, at: float) -> None:
        """The client of a member has a message, which the member may not have come for."""
        self._came[consumer, delivery].append(at)

    def popped_at(self, consumer: str, delivery: Delivery, until: float) -> float:
        """When a broker gave a message out that a member has by then; -1: none did. To be asked
        once for each time that the member has it.

        A crash forgets the last pop times, so with a clock that was set back the next life may give
        out a message with the same one. The last life that did so before the answer came counts.
        """
        came = self._came[consumer, delivery]
        until = came.pop(0) if came else until
        return max((at for at in self._popped[delivery] if at <= until), default=-1.0)

    def event(self, event: Event) -> None:
        """Note what befell a broker."""
        self.events.append(event)
