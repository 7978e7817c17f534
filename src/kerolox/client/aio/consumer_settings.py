"""Settings of consumers, with RocketMQ's defaults; see :mod:`kerolox.client.aio.settings`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from kerolox.client.aio.settings import CONCURRENCY_MAX, ClientSettings
from kerolox.client.core.arguments import checked_keywords
from kerolox.client.core.consuming.offsets import OffsetStorage
from kerolox.client.core.consuming.rebalance import AllocationStrategy, strategy_of
from kerolox.client.core.hooks import ConsumeHook
from kerolox.errors import ConfigError
from kerolox.message import ConsumeFromWhere, MessageModel
from kerolox.protocol.names import SCHEDULE_QUEUES, TRACE_TOPIC
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX, POP_MESSAGES_MAX
from kerolox.settings_class import settings_dataclass

BROKER_STRATEGIES = ("AVG", "AVG_BY_CIRCLE")
"""How brokers share queues."""


def _default_offset_folder() -> Path:
    return Path(os.path.expanduser("~")) / ".rocketmq_offsets"


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerSettings(ClientSettings):
    """The settings that all consumers share (``DefaultMQPullConsumer`` and others)."""

    message_model: MessageModel | str = MessageModel.CLUSTERING
    """A member or its name in any case; reads as the member. When broadcasting, offsets are kept in
    a local file."""
    allocation: str | AllocationStrategy = "AVG"
    """How a group shares queues; all its members must agree (``allocateMessageQueueStrategy``):
    AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, or a function of our client id, all queues and all client
    ids (both sorted) that gives our queues."""
    persist_interval_ms: int = 5_000
    """Offsets are stored at least so often (``persistConsumerOffsetInterval``)."""
    local_offset_folder: Path = dataclasses.field(default_factory=_default_offset_folder)
    """Where broadcasting consumers keep offsets (``rocketmq.client.localOffsetStoreDir``)."""

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        self._choose("message_model", MessageModel)
        self._check("persist_interval_ms", 10, 3_600_000)
        strategy_of(self.allocation)


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SubscriberSettings(ConsumerSettings):
    """The settings that consumers share which subscribe to topics."""

    consume_from_where: ConsumeFromWhere | str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """Where a group starts in a queue of which its broker gives no offset: a member or its name in
    any case; reads as the member. A broker gives 0 to a new group, which reads the queue from its
    start then, while the queue's first message is stored and near the end of the log (within
    ``accessMessageInMemoryMaxRatio``, 40, percent of the memory): this setting does not count."""
    consume_timestamp_ms: int | None = None
    """For CONSUME_FROM_TIMESTAMP: milliseconds since the epoch; None: half an hour before start."""
    cached_messages_max: int = 1_000
    """Messages of a queue, pulled and not done with, above which its pulling pauses
    (``pullThresholdForQueue``). A lite pull consumer is done with those that it has returned."""
    cached_mib_max: int = 100
    """The same for MiB of bodies (``pullThresholdSizeForQueue``)."""
    cached_span_max: int = 2_000
    """The same for the distance between oldest and newest (``consumeConcurrentlyMaxSpan``,
    ``consumeMaxSpan``)."""
    pull_error_delay_ms: int = 1_000
    """Pause after a failed pull (``pullTimeDelayMillsWhenException``)."""
    rebalance_interval_ms: int = 20_000
    """Rebalance at least so often (``rocketmq.client.rebalance.waitInterval``)."""
    enable_trace: bool = False
    """Write traces of each message that a listener gets, or that is returned
    (``enableMsgTrace``)."""
    trace_topic: str = TRACE_TOPIC
    """Where traces go (``customizedTraceTopic``)."""

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        self._choose("consume_from_where", ConsumeFromWhere)
        self._check("cached_messages_max", 1, 65_535)
        self._check("cached_mib_max", 1, 1024)
        self._check("cached_span_max", 1, 65_535)
        self._check("pull_error_delay_ms", 0, 600_000)
        self._check("rebalance_interval_ms", 10, 3_600_000)
        self._check_trace_topic(self.trace_topic)


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PushConsumerSettings(SubscriberSettings):
    """Settings of a push consumer (``DefaultMQPushConsumer``)."""

    consume_concurrency: int = 20
    """Most listeners that run at the same time (``consumeThreadMax``)."""
    consume_batch_max: int = 1
    """Most messages of one listener call (``consumeMessageBatchMaxSize``)."""
    pull_batch_size: int = 32
    """Most messages of one pull."""
    pull_interval_ms: int = 0
    """Pause between pulls."""
    cached_messages_per_topic_max: int = -1
    """Unfinished messages of all queues of a topic above which only those of its queues are pulled
    that have none; -1: no limit (``pullThresholdForTopic``)."""
    cached_mib_per_topic_max: int = -1
    """The same for MiB of bodies (``pullThresholdSizeForTopic``)."""
    cached_messages_in_all_max: int = 100_000
    """The same for all queues of the consumer; -1: no limit. So a consumer has at most so many,
    and one pull more for each queue."""
    cached_mib_in_all_max: int = 1_024
    """The same for MiB of bodies; -1: no limit."""
    suspend_timeout_ms: int = 15_000
    """How long a broker may hold a pull that finds nothing."""
    pull_timeout_ms: int = 30_000
    """Time limit of a pull; more than ``suspend_timeout_ms``."""
    illegal_offset_delay_ms: int = 10_000
    """How long a queue rests whose offset the broker refused, before it starts at the right one."""
    max_reconsume_times: int = -1
    """Retries of a message before it goes to the dead-letter topic; -1: 16, of an ordered one
    without end."""
    delay_level_when_next_consume: int = 0
    """Delay level of a retry; 0: the broker decides (3 + retries so far), -1: dead letters."""
    consume_timeout_minutes: int = 15
    """A listener that needs longer has its message sent back; the message is retried."""
    suspend_current_queue_ms: int = 1_000
    """Pause of an ordered queue whose message failed (``suspendCurrentQueueTimeMillis``)."""
    lock_interval_ms: int = 20_000
    """The locks of ordered queues are renewed so often (``rebalanceLockInterval``)."""
    close_timeout_ms: int = 3_000
    """How long ``close`` waits for running listeners (``awaitTerminationMillisWhenShutdown``)."""
    client_rebalance: bool = True
    """Members share queues among themselves, and pull them; False: the broker says which queues a
    member reads, and whether it pulls or pops them (``clientRebalance``). Queues that are read in
    order, and broadcasting, are the members' own matter in any case."""
    pop_batch_size: int = 32
    """Most messages of one pop, up to 32 (``popBatchNums``)."""
    pop_invisible_ms: int = 60_000
    """How long nobody else gets a message that was popped; it begins anew while the message is not
    settled, up to ``consume_timeout_minutes`` (``popInvisibleTime``)."""
    popped_messages_max: int = 96
    """Unfinished messages of a queue, or of a broker, above which its popping pauses
    (``popThresholdForQueue``)."""
    offset_store: OffsetStorage | None = None
    """Keeps the offsets instead of brokers or the local file (``offsetStore``)."""
    consume_hooks: tuple[ConsumeHook, ...] = ()
    """Run around each call of a listener."""

    def __post_init__(self) -> None:
        SubscriberSettings.__post_init__(self)
        self._check("consume_concurrency", 1, CONCURRENCY_MAX)
        self._check("consume_batch_max", 1, 1024)
        self._check("pull_batch_size", 1, 1024)
        self._check("pull_interval_ms", 0, 65_535)
        for name, most in (("messages", 65_535 * 100), ("mib", 102_400)):
            for whole in ("per_topic", "in_all"):
                limit = f"cached_{name}_{whole}_max"
                self._check(limit, -1 if getattr(self, limit) == -1 else 1, most)
        self._check("suspend_current_queue_ms", 10, 30_000)
        self._check("lock_interval_ms", 10, 30_000)
        self._check("suspend_timeout_ms", 1, 600_000)
        self._check("pull_timeout_ms", self.suspend_timeout_ms + 1, 3_600_000)
        self._check("illegal_offset_delay_ms", 0, 600_000)
        self._check("max_reconsume_times", -1, 2**31 - 1)
        self._check("delay_level_when_next_consume", -1, SCHEDULE_QUEUES)
        self._check("consume_timeout_minutes", 1, 24 * 60)
        self._check("pop_batch_size", 1, POP_MESSAGES_MAX)
        self._check("pop_invisible_ms", 1, INVISIBLE_MS_MAX)
        self._check("popped_messages_max", 1, 65_535)
        if not self.client_rebalance and self.allocation not in BROKER_STRATEGIES:
            raise ConfigError(
                f"allocation is {self.allocation!r}; with client_rebalance=False brokers share "
                f"queues, by {' or '.join(BROKER_STRATEGIES)}"
            )
        self._check("close_timeout_ms", 0, 3_600_000)

    @property
    def broker_strategy(self) -> str | None:
        """How brokers share queues; None: members do."""
        return None if self.client_rebalance else str(self.allocation)


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PullConsumerSettings(ConsumerSettings):
    """Settings of a pull consumer (``DefaultMQPullConsumer``)."""

    pull_timeout_ms: int = 10_000
    """Time limit of a pull that is not held (``consumerPullTimeoutMillis``)."""
    suspend_timeout_ms: int = 20_000
    """How long a broker may hold a pull that waits (``brokerSuspendMaxTimeMillis``)."""
    suspended_pull_timeout_ms: int = 30_000
    """Time limit of a pull that waits (``consumerTimeoutMillisWhenSuspend``)."""
    max_reconsume_times: int = 16
    """Retries of a message that is sent back before it goes to the dead-letter topic."""
    consume_hooks: tuple[ConsumeHook, ...] = ()
    """Run, before and after at once, for each pull that found messages."""

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        self._check("pull_timeout_ms", 1, 3_600_000)
        self._check("suspend_timeout_ms", 1, 600_000)
        self._check("suspended_pull_timeout_ms", self.suspend_timeout_ms + 1, 3_600_000)
        self._check("max_reconsume_times", 0, 2**31 - 1)


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LitePullConsumerSettings(SubscriberSettings):
    """Settings of a lite pull consumer (``DefaultLitePullConsumer``)."""

    auto_commit: bool = True
    """What polls before the last one returned is committed by itself."""
    auto_commit_interval_ms: int = 5_000
    """So often, when ``poll`` is called (``autoCommitIntervalMillis``)."""
    poll_timeout_ms: int = 5_000
    """How long ``poll`` waits when it is not told (``pollTimeoutMillis``)."""
    pull_batch_size: int = 10
    """Most messages of one pull, and of what ``poll`` returns."""
    pull_concurrency: int = 20
    """Most pulls on their way at the same time (``pullThreadNums``); one that its broker holds
    does not count."""
    cached_messages_in_all_max: int = 10_000
    """Messages of all queues, pulled and not returned yet, above which only those queues are pulled
    that have none; -1: no limit (``pullThresholdForAll``)."""
    cached_mib_in_all_max: int = 1_024
    """The same for MiB of bodies; -1: no limit."""
    suspend_timeout_ms: int = 20_000
    """How long a broker may hold a pull that finds nothing (``brokerSuspendMaxTimeMillis``)."""
    suspended_pull_timeout_ms: int = 30_000
    """Time limit of a pull (``consumerTimeoutMillisWhenSuspend``)."""
    topic_check_interval_ms: int = 30_000
    """How often topics are examined whose queues have a listener
    (``topicMetadataCheckIntervalMillis``)."""
    consume_hooks: tuple[ConsumeHook, ...] = ()
    """Run, before and after at once, for each list that ``poll`` returns."""

    def __post_init__(self) -> None:
        SubscriberSettings.__post_init__(self)
        self._check("auto_commit_interval_ms", 10, 3_600_000)
        self._check("poll_timeout_ms", 0, 3_600_000)
        self._check("pull_batch_size", 1, 1024)
        self._check("pull_concurrency", 1, CONCURRENCY_MAX)
        for name, most in (("messages", 65_535 * 100), ("mib", 102_400)):
            limit = f"cached_{name}_in_all_max"
            self._check(limit, -1 if getattr(self, limit) == -1 else 1, most)
        self._check("suspend_timeout_ms", 1, 600_000)
        self._check("suspended_pull_timeout_ms", self.suspend_timeout_ms + 1, 3_600_000)
        self._check("topic_check_interval_ms", 10, 3_600_000)


@checked_keywords
@settings_dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimpleConsumerSettings(ClientSettings):
    """Settings of a simple consumer."""

    invisible_ms: int = 60_000
    """How long nobody else gets a message that was received; it comes again unless it is done by
    then."""
    wait_ms: int = 20_000
    """How long ``receive`` waits when it is not told, and a broker may hold its request."""
    receive_batch_size: int = 16
    """Most messages that ``receive`` gives when it is not told, up to 32."""
    receive_ahead: int | None = 0
    """Messages that are received ahead while those before are worked on; 0: none. Their invisible
    time runs meanwhile. None: a loop over the consumer gets as many at once, and as many ahead, as
    it takes in 0.1 s, up to 32: the slower it is, the more are left to other members."""
    held_messages_max: int = 10_000
    """Messages that were received and are neither acknowledged nor given back, above which no
    further ones are received until their time is over; those on their way come on top."""
    held_mib_max: int = 256
    """The same for MiB of their bodies."""
    from_first: bool = False
    """Where a group begins that a broker does not know: at the first message of each queue, else
    at its last one. Of a queue that is young it gets all in any case."""
    is_ordered: bool = False
    """Messages of a queue come in order: no others of it until those received are done, or their
    time is over. All members of the group must agree."""

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        self._check("invisible_ms", 1, INVISIBLE_MS_MAX)
        self._check("wait_ms", 0, 3_600_000)
        self._check("receive_batch_size", 1, POP_MESSAGES_MAX)
        if self.receive_ahead is not None:
            self._check("receive_ahead", 0, 65_535)
        self._check("held_messages_max", 1, 65_535 * 100)
        self._check("held_mib_max", 1, 102_400)
