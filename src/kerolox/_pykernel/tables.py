"""The tables that the broker pushes to the fast path, and what they make of a request's fields.

``Tables.send_shape`` and ``Tables.pull_shape`` judge everything in a header that does not change
from one request of a client to the next: topic, queue, permission, numbers, flags, subscription.
A shape says how to treat such requests; None says that they are slow. Shapes are remembered by the
fields that made them until a table changes, so the fast loop judges once per client and queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kerolox._pykernel.answers import Identity, json_send_template, unique_key
from kerolox._pykernel.dedup import Window, Windows
from kerolox._pykernel.headers import (
    INT32_MAX,
    INT64_MAX,
    PullFields,
    SendFields,
    SendFieldsV1,
    integer,
)
from kerolox._pykernel.holds import QueueKey
from kerolox._pykernel.properties import PropertyRules, TimerRule
from kerolox.filter.tags import TAGS_MAX, parse_tags
from kerolox.kernel.append import TIMER_QUEUE
from kerolox.message import ITEM_END, PropertyKey, encode_properties, property_value, tags_code
from kerolox.protocol.codes import (
    HOST_V6_MASK,
    PULL_COUNT_MAX,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    Perm,
    PullSysFlag,
)
from kerolox.protocol.names import HALF_TOPIC, TIMER_TOPIC, TOPIC_BYTES_MAX
from kerolox.protocol.recall_handles import RecallHandle
from kerolox.store.queues.consume_queue import ConsumeQueue

SHAPES_MAX = 4_096
"""Shapes of each kind that are remembered; beyond it the memory starts anew."""

SUBSCRIPTION_CHARACTERS_MAX = 1_024
"""A pull with a longer subscription is judged each time it comes."""

_PULL_BITS = int(
    PullSysFlag.COMMIT_OFFSET
    | PullSysFlag.SUSPEND
    | PullSysFlag.SUBSCRIPTION
    | PullSysFlag.LITE_PULL
)
"""Bits of a pull's sysFlag that the fast path knows."""


class _Topic(NamedTuple):
    read_queues: int
    write_queues: int
    perm: int


class _Subscription(NamedTuple):
    version: int
    tags: frozenset[int] | None


class SendShape(NamedTuple):
    """How to store and answer sends with the same fields."""

    queue: ConsumeQueue
    topic_size: int
    flag: int
    sys_flag: int
    reconsume_times: int
    json_template: bytes
    queue_id: int
    """As the answer says it."""
    real: bytes = b""
    """Of half messages, and those for a moment: the text of REAL_TOPIC and REAL_QID, with a
    separator before it."""
    member: str = ""
    """The member that their answers have besides."""
    window: Window | None = None
    """Where their keys are looked for."""


class PullShape(NamedTuple):
    """How to read and answer pulls with the same fields."""

    group: str
    key: QueueKey
    max_count: int
    tags: frozenset[int] | None
    commits: bool
    hold_ms: int
    """How long it may be held; 0 for not at all, -1 for as long as the handler says."""


class Tables:
    """Identity, topics, groups and subscriptions; ``find_queue`` makes the queue of a topic."""

    def __init__(
        self, make_queue: Callable[[str, int], ConsumeQueue], *, long_polling: bool
    ) -> None:
        self._make_queue = make_queue
        self._long_polling = long_polling
        self._has_stopped_holding = False
        self._topics: dict[str, _Topic] = {}
        self._read_queues: dict[bytes, int] = {}
        """Of all topics, the slow ones too."""
        self._has_fast_halves = False
        self.timer: TimerRule | None = None
        self.windows = Windows()
        self._groups: dict[str, int] = {}
        self._slow_groups: dict[str, int] = {}
        self._subscriptions: dict[str, dict[str, _Subscription]] = {}
        self._slow_pulls: set[tuple[str, str]] = set()
        """Groups and topics of which their pulls are slow."""
        self._send_shapes: dict[tuple[int | str, ...], SendShape] = {}
        self._pull_shapes: dict[tuple[str, ...], PullShape] = {}
        self.identity = Identity()
        self.properties = PropertyRules(self.identity.cluster)

    def forget(self) -> None:
        """Forget every topic, group and subscription."""
        self._topics.clear()
        self._read_queues.clear()
        self._has_fast_halves = False
        self.timer = None
        self.windows.clear()
        self._groups.clear()
        self._slow_groups.clear()
        self._subscriptions.clear()
        self._slow_pulls.clear()
        self.forget_shapes()

    def forget_shapes(self) -> None:
        """A table changed: check anew."""
        self._send_shapes.clear()
        self._pull_shapes.clear()

    def set_identity(self, identity: Identity) -> None:
        """See ``StoreKernel.set_identity``."""
        self.identity = identity
        self.properties = PropertyRules(identity.cluster)
        self.forget_shapes()

    def set_topic(self, topic: str, entry: tuple[int, int, int] | None) -> None:
        """Put (read queues, write queues, perm) of a fast topic; None takes it out."""
        if entry is None or len(topic.encode()) > TOPIC_BYTES_MAX:
            self._topics.pop(topic, None)
        else:
            self._topics[topic] = _Topic(*entry)
        self.forget_shapes()

    def set_read_queues(self, topic: str, queues: int) -> None:
        """How many queues of a topic are read; 0: it is not there."""
        if queues > 0:
            self._read_queues[topic.encode()] = queues
        else:
            self._read_queues.pop(topic.encode(), None)

    def has_read_queue(self, topic: bytes, queue_id: int) -> bool:
        """Whether consumers read a queue of a topic."""
        return queue_id < self._read_queues.get(topic, 0)

    def may_end_halves(self, topic: bytes, queue_id: int) -> bool:
        """Whether halves for a queue may be committed in bulk, which looks for no keys."""
        has_window = self.windows.get(topic.decode(errors="replace")) is not None
        return not has_window and self.has_read_queue(topic, queue_id)

    def set_halves(self, fast: bool) -> None:
        """See ``HalfKernel.set_halves``."""
        self._has_fast_halves = fast
        self.forget_shapes()

    def set_dedup(self, topic: str, window_ms: int, *, by_keys: bool) -> None:
        """See ``DedupKernel.set_dedup``."""
        self.windows.set(topic, window_ms, by_keys=by_keys)
        self.forget_shapes()

    def set_timer(self, rule: TimerRule | None) -> None:
        """See ``TimerKernel.set_timer``."""
        self.timer = rule

    def set_group(self, group: str, fast: bool, slow_broker_id: int) -> None:
        """See ``StoreKernel.set_group``."""
        self._groups.pop(group, None)
        self._slow_groups.pop(group, None)
        (self._groups if fast else self._slow_groups)[group] = slow_broker_id
        self.forget_shapes()

    def stop_holding(self) -> None:
        """See ``StoreKernel.stop_holding``."""
        self._has_stopped_holding = True
        self.forget_shapes()

    def delete_group(self, group: str) -> None:
        """See ``StoreKernel.delete_group``."""
        self._groups.pop(group, None)
        self._slow_groups.pop(group, None)
        self._subscriptions.pop(group, None)
        self.forget_shapes()

    def set_subscription(
        self, group: str, topic: str, version: int, tags: frozenset[int] | None
    ) -> bool:
        """See ``StoreKernel.set_subscription``. True: the group wanted other tags before."""
        subscriptions = self._subscriptions.setdefault(group, {})
        old = subscriptions.get(topic)
        subscriptions[topic] = _Subscription(version, tags)
        self._pull_shapes.clear()
        return old is not None and old.tags != tags

    def delete_subscription(self, group: str, topic: str) -> bool:
        """See ``StoreKernel.delete_subscription``. False: there was none."""
        subscriptions = self._subscriptions.get(group, {})
        old = subscriptions.pop(topic, None)
        if not subscriptions:
            self._subscriptions.pop(group, None)
        self._pull_shapes.clear()
        return old is not None

    def set_slow_pulls(self, group: str, topic: str, slow: bool) -> None:
        """See ``OffsetCommits.set_slow_pulls``."""
        (self._slow_pulls.add if slow else self._slow_pulls.discard)((group, topic))
        self._pull_shapes.clear()

    def suggested_broker(self, group: str, slow: bool) -> int:
        """The broker that a pull answer suggests for the next pull."""
        own = self.identity.broker_id
        if not slow:
            return own
        return self._groups.get(group, self._slow_groups.get(group, own))

    def send_shape(self, fields: SendFields | SendFieldsV1, batch: bool) -> SendShape | None:
        """The shape of a send, None when it is slow."""
        key = (fields.b, fields.e, fields.f, fields.h, fields.j, fields.d, fields.k, fields.l,
               fields.m, batch)  # fmt: skip
        return self._send_shapes.get(key) or self._make_send_shape(fields, batch, key)

    def pull_shape(self, fields: PullFields) -> PullShape | None:
        """The shape of a pull, None when it is slow."""
        key = (fields.consumerGroup, fields.topic, fields.queueId, fields.maxMsgNums,
               fields.sysFlag, fields.suspendTimeoutMillis, fields.subVersion,
               fields.subscription, fields.expressionType)  # fmt: skip
        return self._pull_shapes.get(key) or self._make_pull_shape(fields, key)

    def _make_send_shape(
        self, fields: SendFields | SendFieldsV1, batch: bool, key: tuple[int | str, ...]
    ) -> SendShape | None:
        topic = self._topics.get(fields.b)
        queue_id = integer(fields.e, INT32_MAX)
        sys_flag = integer(fields.f, INT32_MAX)
        flag = integer(fields.h, INT32_MAX)
        reconsume_times = integer(fields.j, INT32_MAX)
        if (
            topic is None
            or not topic.perm & Perm.WRITE
            or queue_id is None
            or not 0 <= queue_id < topic.write_queues
            or sys_flag is None
            or sys_flag < 0
            or flag is None
            or reconsume_times is None
            or integer(fields.d, INT32_MAX) is None
            or integer(fields.l, INT32_MAX) is None
            or fields.k != "false"
            or fields.m != ("true" if batch else "false")
        ):
            return None
        kind = sys_flag & TRANSACTION_MASK
        is_half = kind == TRANSACTION_PREPARED and self._has_fast_halves and not reconsume_times
        if kind and not is_half:
            return None
        name = HALF_TOPIC if is_half else fields.b
        try:
            queue = self._make_queue(name, 0 if is_half else queue_id)
        except ValueError:
            # No folder can have this name; the handler in Python says so.
            return None
        shape = SendShape(
            queue,
            len(name.encode()),
            flag,
            sys_flag & ~(HOST_V6_MASK | TRANSACTION_MASK),
            reconsume_times,
            json_send_template(self.identity, queue_id, batch=batch),
            queue_id,
            _real_text(fields.b, queue_id) if is_half else b"",
            "transactionId" if is_half else "",
            # Of a transaction the commit counts.
            None if is_half else self.windows.get(fields.b),
        )
        if len(self._send_shapes) >= SHAPES_MAX:
            self._send_shapes.clear()
        self._send_shapes[key] = shape
        return shape

    def timed_send(
        self, shape: SendShape, fields: SendFields | SendFieldsV1, now_ms: int
    ) -> tuple[SendShape, tuple[bytes, int, bool] | None]:
        """The shape of a send for a moment, of that of a plain one to the same queue, with what is
        stored (``PropertyRules.take``); that is None when it is slow."""
        if self.timer is None or shape.real:
            return shape, None
        real = _real_text(fields.b, shape.queue_id)
        taken = self.properties.take_timed(fields.i, self.timer, now_ms, real)
        if taken is None:
            return shape, None
        queue = self._make_queue(TIMER_TOPIC, TIMER_QUEUE)
        size = len(TIMER_TOPIC)
        return shape._replace(queue=queue, topic_size=size, real=real, member="recallHandle"), taken

    def member_value(self, shape: SendShape, stored: bytes) -> bytes:
        """The value of :attr:`SendShape.member`; empty: there is none."""
        key = unique_key(stored)
        if self.timer is None or shape.member != "recallHandle" or not key:
            return key
        topic = (property_value(stored, PropertyKey.REAL_TOPIC) or b"").decode()
        out_ms = int(property_value(stored, PropertyKey.TIMER_OUT) or b"0")
        handle = RecallHandle(topic, self.timer.broker_name, out_ms + 1, key.decode())
        return handle.encode().encode()

    def _make_pull_shape(self, fields: PullFields, key: tuple[str, ...]) -> PullShape | None:
        topic = self._topics.get(fields.topic)
        queue_id = integer(fields.queueId, INT32_MAX)
        max_count = integer(fields.maxMsgNums, INT32_MAX)
        sys_flag = integer(fields.sysFlag, INT32_MAX)
        suspend_ms = integer(fields.suspendTimeoutMillis, INT64_MAX)
        version = integer(fields.subVersion, INT64_MAX)
        if (
            topic is None
            or not topic.perm & Perm.READ
            or fields.consumerGroup not in self._groups
            or queue_id is None
            or not 0 <= queue_id < topic.read_queues
            or max_count is None
            or not 1 <= max_count <= PULL_COUNT_MAX
            or sys_flag is None
            or sys_flag & ~_PULL_BITS
            or suspend_ms is None
            or version is None
            or fields.expressionType != "TAG"
            or (fields.consumerGroup, fields.topic) in self._slow_pulls
        ):
            return None
        if sys_flag & PullSysFlag.SUBSCRIPTION:
            subscription = _parse_subscription(fields.subscription)
        else:
            known = self._subscriptions.get(fields.consumerGroup, {}).get(fields.topic)
            subscription = known if known is not None and known.version >= version else None
        if subscription is None:
            return None
        may_hold = sys_flag & PullSysFlag.SUSPEND and not self._has_stopped_holding
        hold_ms = max(suspend_ms, 0) if self._long_polling else -1
        shape = PullShape(
            fields.consumerGroup,
            (fields.topic, queue_id),
            max_count,
            subscription.tags,
            bool(sys_flag & PullSysFlag.COMMIT_OFFSET),
            hold_ms if may_hold else 0,
        )
        if len(fields.subscription) <= SUBSCRIPTION_CHARACTERS_MAX:
            if len(self._pull_shapes) >= SHAPES_MAX:
                self._pull_shapes.clear()
            self._pull_shapes[key] = shape
        return shape


def _real_text(topic: str, queue_id: int) -> bytes:
    """What a half's text ends with."""
    real = {PropertyKey.REAL_TOPIC: topic, PropertyKey.REAL_QUEUE_ID: str(queue_id)}
    return (ITEM_END + encode_properties(real)).encode()


def _parse_subscription(text: str) -> _Subscription | None:
    """None when the text names no tag, or more than the slow path takes."""
    try:
        tags = parse_tags(text)
    except ValueError:
        return None
    if len(tags) > TAGS_MAX:
        return None
    return _Subscription(0, frozenset(map(tags_code, tags)) if tags else None)
