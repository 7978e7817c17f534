"""The topics of a broker: ``TopicConfigManager`` and ``TopicValidator`` of RocketMQ.

The table is the authority; each change goes to the kernel's table at once, to ``topics.json``
soon, and to the name servers through ``on_change``. Configurations are immutable, so that a
snapshot can be written by another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from kerolox import clock
from kerolox.broker.config import BrokerConfig, BrokerSettings
from kerolox.broker.errors import no_permission, system_error
from kerolox.broker.tables.json_file import (
    TABLE_BYTES_MAX,
    JsonFile,
    of_master,
    text_bytes,
    with_bounds,
    without_long_names,
)
from kerolox.errors import BrokerError, MessageIllegalError
from kerolox.kernel.store import StoreKernel
from kerolox.protocol.attributes import DedupRule, TopicMessageType, dedup_rule, types_taken
from kerolox.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import Perm
from kerolox.protocol.java_numbers import INT_MAX
from kerolox.protocol.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    LMQ_PREFIX,
    NAME_CHARACTERS,
    OFFSET_MOVED_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_QUEUES,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    TOPIC_BYTES_MAX,
    TOPIC_CHARACTERS_MAX,
    has_name_characters,
    is_closed_topic,
    is_system_topic,
    length_fault,
)
from kerolox.protocol.registration import TOPICS_MAX

QUEUES_MAX = 65536
"""Queues of one topic on one broker; more in a request are refused."""
QUEUES_OF_ALL_MAX = 2_000_000
"""Queues of all topics together: the kernel has 40 bytes for each, used or not."""
TOPIC_BYTES = 400
"""What a topic takes in the file besides its name, which is there twice, at the most."""

ATTRIBUTE_BYTES = 8
"""What an attribute takes in the file besides its name and value: an indent, ``:`` and ``,``."""


NO_DEDUP = DedupRule(0, by_keys=False)


def check_topic_name(topic: str) -> None:
    """``TopicValidator.validateTopic``; BrokerError, code 1: the name is blank, too long, or has
    characters that are not allowed.
    """
    if not topic.strip():
        raise system_error("The specified topic is blank.")
    if not has_name_characters(topic):
        raise system_error(
            f"The specified topic contains illegal characters, allowing only ^[{NAME_CHARACTERS}]+$"
        )
    if len(topic) > TOPIC_CHARACTERS_MAX:
        raise system_error("The specified topic is longer than topic max length.")


def check_sendable(topic: str) -> None:
    """``TopicValidator.isNotAllowedSendTopic``; BrokerError, code 16: no client may send there."""
    if is_closed_topic(topic):
        raise no_permission(f"Sending message to topic[{topic}] is forbidden.")


_log = logging.getLogger(__name__)


class TopicTable:
    """All topics of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: StoreKernel,
        now_ms: Callable[[], int],
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Without topics before :meth:`load`; ``on_change`` is called after each change that name
        servers must hear of.
        """
        self._settings = settings
        self._store = store
        self._now_ms = now_ms
        self._topics: dict[str, TopicConfig] = {}
        self._bytes = self._queues = 0
        self._system = set(SYSTEM_TOPICS)
        self._not_durable: set[str] = set()
        """Topics that were made on the way of a request and may not be in the file yet."""
        self.version = DataVersion(counter=0, timestamp=now_ms())
        self._filtered: set[str] = set()
        """Topics whose messages get bit maps, which only the slow path can calculate."""
        self.without_window: set[str] = set()
        """Topics with ``dedup.window.ms`` that have no window: the store has a transient pool, and
        what waits there can't be read."""
        self._timer_rule = (0, 0, "")
        self._on_change = on_change
        self.on_deleted: Callable[[str], object] = lambda topic: None
        """Called with each topic that is deleted."""
        self.file = JsonFile(settings.current.config_folder / "topics.json", self.snapshot)
        settings.subscribe(self._settings_changed)

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        if old.broker_permission != new.broker_permission:
            self.push_all()
        elif old.reject_transaction_message != new.reject_transaction_message:
            self.push_halves()
        self.push_timer()

    def load(self) -> None:
        """Read the file over the built-in topics and give all to the kernel."""
        for topic in self._built_in():
            self._topics[topic.topic_name] = topic
            self._system.add(topic.topic_name)
        loaded = self.file.load(TopicConfigTable)
        if loaded is not None:
            table = without_long_names(loaded.topic_config_table, self.file, _is_long)
            self._topics.update((name, with_bounds(topic)) for name, topic in table.items())
            self.version = loaded.data_version
        template = self._topics.get(AUTO_CREATE_TOPIC)
        if template is not None and not self._settings.current.auto_create_topic_enable:
            plain = msgspec.structs.replace(template, perm=template.perm & ~Perm.INHERIT)
            self._topics[AUTO_CREATE_TOPIC] = plain
        for topic in self._topics.values():
            self._push(topic)
        self._bytes = sum(map(_bytes_of, self._topics.values()))
        self._queues = sum(map(all_queues, self._topics.values()))

    def get(self, topic: str) -> TopicConfig | None:
        """The configuration of a topic; None when there is none.

        Every light message queue has one (``LmqTopicConfigManager``), which is in no table.
        """
        if self._is_lmq(topic):
            return _topic(topic, 1)
        return self._topics.get(topic)

    def queues_of(self, topic: str) -> int:
        """How many queues of a topic can be read; 0: there is no such topic."""
        config = self.get(topic)
        return 0 if config is None else config.read_queue_nums

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics or self._is_lmq(topic)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether there is a topic with such a queue, that is read or written."""
        known = self.get(topic)
        return known is not None and queue_id < all_queues(known)

    def _is_lmq(self, topic: str) -> bool:
        return self._settings.current.enable_lmq and topic.startswith(LMQ_PREFIX)

    @property
    def names(self) -> list[str]:
        """All topic names."""
        return list(self._topics)

    @property
    def system_names(self) -> list[str]:
        """The names that users may not take."""
        return sorted(self._system)

    def is_system(self, topic: str) -> bool:
        """``TopicValidator.isSystemTopic``."""
        return topic in self._system or is_system_topic(topic)

    def snapshot(self) -> TopicConfigTable:
        """The whole table, as ``topics.json`` holds it."""
        return TopicConfigTable(data_version=self.version, topic_config_table=dict(self._topics))

    def registration(self) -> TopicConfigTable:
        """The table as name servers get it: without permissions that the broker withholds."""
        table = self.snapshot()
        permission = self._settings.current.broker_permission
        if permission & Perm.READ and permission & Perm.WRITE:
            return table
        limited = {
            name: msgspec.structs.replace(topic, perm=permission)
            for name, topic in table.topic_config_table.items()
        }
        return msgspec.structs.replace(table, topic_config_table=limited)

    def create_for_send(
        self, topic: str, default_topic: str, client_queues: int, sys_flag: int
    ) -> TopicConfig | None:
        """``createTopicInSendMessageMethod``: make a topic after a template; None when the template
        does not exist or must not be inherited from."""
        template = self._topics.get(default_topic)
        if template is None or not template.perm & Perm.INHERIT:
            return None
        if (
            default_topic == AUTO_CREATE_TOPIC
            and not self._settings.current.auto_create_topic_enable
        ):
            return None
        queues = max(min(client_queues, template.write_queue_nums), 0)
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~Perm.INHERIT,
            topic_sys_flag=sys_flag,
            topic_filter_type=template.topic_filter_type,
        )
        self.put(created, is_durable=False)
        return created

    def create_for_group(self, topic: str, queues: int, *, sys_flag: int = 0) -> TopicConfig:
        """``createTopicInSendMessageBackMethod``: the retry or dead-letter topic of a group, with
        at least so many read queues. RocketMQ leaves one that is there as it is, and no consumer
        reads what comes to its further queues. Where this broker has no space for more queues, a
        topic that is there stays as it is. MessageIllegalError: the name is longer than a record
        can hold, or no folder's.
        """
        if len(topic.encode()) > TOPIC_BYTES_MAX:
            raise MessageIllegalError(f"topic {topic[:160]!r} is too long")
        if "/" in topic or "\0" in topic:
            raise MessageIllegalError(f"topic {topic!r} can't be the name of a folder")
        queues = min(max(queues, 0), QUEUES_MAX)
        existing = self._topics.get(topic)
        if existing is not None:
            return self._widened(existing, queues)
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=Perm.READ | Perm.WRITE,
            topic_sys_flag=sys_flag,
        )
        self.put(created, is_durable=False)
        return created

    def _widened(self, topic: TopicConfig, queues: int) -> TopicConfig:
        if topic.read_queue_nums >= queues:
            return topic
        wide = msgspec.structs.replace(
            topic,
            read_queue_nums=queues,
            write_queue_nums=max(topic.write_queue_nums, queues),
        )
        try:
            self.put(wide)
        except BrokerError:
            return topic
        return wide

    def set_write_queues(self, topic: str, queues: int) -> None:
        """Give a topic that is there so many write queues. Its read queues get no fewer: consumers
        still find what is in the others.
        """
        known = self._topics.get(topic)
        if known is None:
            return
        read_queues = max(known.read_queue_nums, queues)
        new = msgspec.structs.replace(known, write_queue_nums=queues, read_queue_nums=read_queues)
        if new != known:
            self.put(new)

    def dedup_rule(self, topic: str) -> DedupRule | None:
        """What a topic does against messages that come twice; None: nothing."""
        known = self._topics.get(topic)
        if known is None or known.attributes is None or topic in self.without_window:
            return None
        return dedup_rule(known.attributes)

    def is_durable(self, topic: str) -> bool:
        """A crash would not forget the topic; until then its sends are slow and wait."""
        return topic not in self._not_durable

    async def make_durable(self, topic: str) -> None:
        """Wait until a topic that a request made is in the file; OSError: it can't be written; the
        topic stays as it is.
        """
        await self.file.flush()
        self._not_durable.discard(topic)
        self._refresh(topic)

    def put(self, topic: TopicConfig, *, is_durable: bool = True) -> None:
        """Add or replace a topic; nothing to do for a light message queue. ``is_durable``: see
        :meth:`is_durable`. BrokerError, code 1: it is new, and there are ``TOPICS_MAX`` already, or
        they would have more than ``QUEUES_OF_ALL_MAX`` queues, or take more than
        ``TABLE_BYTES_MAX``.
        """
        if self._is_lmq(topic.topic_name):
            return
        old = self._topics.get(topic.topic_name)
        self._check_capacity(old, topic)
        self._count(old, -1)
        self._count(topic, 1)
        if not is_durable:
            self._not_durable.add(topic.topic_name)
        self._topics[topic.topic_name] = topic
        self._push(topic)
        self._changed()
        _log.debug("topic %s: %s", "made" if old is None else "changed", topic)

    def set_filtered(self, topic: str, is_filtered: bool) -> None:
        """Say whether messages to a topic, known or not, get bit maps."""
        (self._filtered.add if is_filtered else self._filtered.discard)(topic)
        self._refresh(topic)

    def _refresh(self, topic: str) -> None:
        config = self._topics.get(topic)
        if config is not None:
            self._push(config)

    def push_all(self) -> None:
        """What the broker may do has changed."""
        for topic in self._topics.values():
            self._push(topic)
        self._changed()

    def renew(self) -> None:
        """Have name servers take the table anew: its broker is the master now, and they may have
        had this version from the one before."""
        self._changed()

    def replace(self, table: TopicConfigTable, *, keeps_attributes: bool = False) -> None:
        """Take a master's table for this one, with its version. Names that are too long are left
        out. ``keeps_attributes``: the master does not know attributes: topics that are here keep
        theirs.
        """
        told = table.topic_config_table
        wanted = of_master(told, self._topics, _is_long, keeps_attributes=keeps_attributes)
        for name in self._topics.keys() - wanted.keys():
            self._store.delete_topic(name)
        self._topics = wanted
        self._not_durable.clear()
        for topic in wanted.values():
            self._push(topic)
        self._bytes = sum(map(_bytes_of, wanted.values()))
        self._queues = sum(map(all_queues, wanted.values()))
        self._changed()
        self.version = table.data_version

    def delete(self, topic: str) -> bool:
        """Take a topic out; its files stay. False: there was none."""
        self._not_durable.discard(topic)
        self.without_window.discard(topic)
        old = self._topics.pop(topic, None)
        if old is None:
            return False
        self._count(old, -1)
        self._store.delete_topic(topic)
        self.on_deleted(topic)
        if topic == HALF_TOPIC:
            self.push_halves()
        if topic == TIMER_TOPIC:
            self.push_timer()
        self._changed()
        _log.debug("topic deleted: %s", topic)
        return True

    async def persist(self) -> None:
        """Wait until every change made so far is in the file."""
        await self.file.flush()

    def set_ordered(self, ordered: Iterable[str]) -> None:
        """Apply the name servers' ORDER_TOPIC_CONFIG: these topics are ordered, all others not."""
        wanted = set(ordered)
        changed = [t for t in self._topics.values() if t.order != (t.topic_name in wanted)]
        for topic in changed:
            turned = msgspec.structs.replace(topic, order=not topic.order)
            self._topics[topic.topic_name] = turned
            self._push(turned)
        if changed:
            self.version = self.version.next(self._now_ms())
            self.file.write_soon()

    def _check_capacity(self, old: TopicConfig | None, new: TopicConfig) -> None:
        """Whether a topic may come, or become what it is to be."""
        more_queues, more_bytes = all_queues(new), _bytes_of(new)
        if old is not None:
            more_queues -= all_queues(old)
            more_bytes -= _bytes_of(old)
        full = ""
        if old is None and len(self._topics) >= TOPICS_MAX:
            full = f"{len(self._topics)} topics"
        elif more_queues > 0 and self._queues + more_queues > QUEUES_OF_ALL_MAX:
            full = f"topics with {self._queues} queues"
        elif more_bytes > 0 and self._bytes + more_bytes > TABLE_BYTES_MAX:
            full = f"topics that take {self._bytes} bytes"
        if full:
            raise system_error(
                f"this broker has {full}, and no space for another one; delete some that nobody "
                "uses"
            )

    def _count(self, topic: TopicConfig | None, sign: int) -> None:
        if topic is not None:
            self._queues += sign * all_queues(topic)
            self._bytes += sign * _bytes_of(topic)

    def _changed(self) -> None:
        self.version = self.version.next(self._now_ms())
        self.file.write_soon()
        self._on_change()

    def _push(self, topic: TopicConfig) -> None:
        name = topic.topic_name
        writable = bool(self._settings.current.broker_permission & Perm.WRITE)
        # The kernel knows neither retry limits, nor topics that are closed to clients, nor that a
        # broker without write permission refuses ordered topics only.
        fast = (
            not is_closed_topic(name)
            and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
            and topic.topic_filter_type == "SINGLE_TAG"
            and (writable or not topic.order)
            and name not in self._not_durable
            and name not in self._filtered
        )
        self._store.set_topic(name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, fast)
        taken = types_taken(topic.attributes)
        is_fast = fast and not is_system_topic(name)
        self._store.set_fast_calls(
            name,
            normal=is_fast and TopicMessageType.NORMAL in taken,
            fifo=is_fast and TopicMessageType.FIFO in taken,
        )
        self._push_dedup(topic)
        if name == HALF_TOPIC:
            self.push_halves()
        if name == TIMER_TOPIC:
            self.push_timer()

    def _push_dedup(self, topic: TopicConfig) -> None:
        name = topic.topic_name
        if dedup_rule(topic.attributes) is None or self._store.transient_buffers < 0:
            self.without_window.discard(name)
        elif name not in self.without_window:
            self.without_window.add(name)
            _log.warning(
                "topic %s has dedup.window.ms, and stores each message that comes again: with "
                "transientStorePoolEnable=true there are no windows; set it to false",
                name,
            )
        rule = self.dedup_rule(name) or NO_DEDUP
        self._store.set_dedup(name, rule.window_ms, rule.by_keys)

    def push_halves(self) -> None:
        """Say whether half messages may be fast: the topic that has them must be there."""
        self._store.set_halves(
            HALF_TOPIC in self._topics
            and HALF_TOPIC not in self._not_durable
            and HALF_TOPIC not in self._filtered
            and not self._settings.current.reject_transaction_message
        )

    def push_timer(self) -> None:
        """Say which sends for a moment may be fast: their topic must be there. The kernel knows no
        flow control of slots, and goes by the clock of the system."""
        config = self._settings.current
        rule = (0, 0, "")
        if (
            TIMER_TOPIC in self._topics
            and TIMER_TOPIC not in self._filtered
            and config.timer_wheel_enable
            and config.timer_congest_num_each_slot == INT_MAX
            and self._now_ms is clock.now_ms
        ):
            settings = config.timer_settings
            rule = (settings.precision_ms, settings.max_delay_sec * 1_000, config.broker_name)
        if rule != self._timer_rule:
            self._timer_rule = rule
            self._store.set_timer(*rule)

    def _built_in(self) -> Iterable[TopicConfig]:
        config = self._settings.current
        read_write = Perm.READ | Perm.WRITE
        yield _topic(SELF_TEST_TOPIC, 1)
        if config.auto_create_topic_enable:
            template_perm = read_write | Perm.INHERIT
            yield _topic(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, template_perm)
        yield _topic(BENCHMARK_TOPIC, 1024)
        cluster_perm = read_write if config.cluster_topic_enable else Perm(0)
        yield _topic(config.broker_cluster_name, 16, Perm.INHERIT | cluster_perm)
        broker_perm = read_write if config.broker_topic_enable else Perm(0)
        yield _topic(config.broker_name, 1, Perm.INHERIT | broker_perm)
        yield _topic(OFFSET_MOVED_TOPIC, 1)
        yield _topic(SCHEDULE_TOPIC, max(SCHEDULE_QUEUES, len(config.delay_levels_ms)))
        if config.trace_topic_enable:
            yield _topic(config.msg_trace_topic_name, 1)
        yield _topic(config.broker_cluster_name + REPLY_TOPIC_SUFFIX, 1)


def _topic(name: str, queues: int, perm: int = Perm.READ | Perm.WRITE) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=int(perm)
    )


def _bytes_of(topic: TopicConfig) -> int:
    size = TOPIC_BYTES + 2 * text_bytes(topic.topic_name) + text_bytes(topic.topic_filter_type)
    if topic.attributes:
        size += sum(
            ATTRIBUTE_BYTES + text_bytes(k) + text_bytes(v) for k, v in topic.attributes.items()
        )
    return size


def all_queues(topic: TopicConfig) -> int:
    """How many queues of a topic are read or written. RocketMQ mostly reports those that are
    written, and so not of what still waits in others."""
    return max(topic.read_queue_nums, topic.write_queue_nums, 0)


def _is_long(name: str) -> bool:
    return length_fault("", name, is_topic=True) is not None
