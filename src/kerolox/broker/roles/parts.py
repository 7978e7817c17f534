"""What the parts of a broker do when its role changes while it runs.

A slave that becomes a master may have heard more from the old one than it has of its log: offsets
and delay positions beyond the end of their queues come back to it, and topics that its log speaks
of, and its table does not have yet, are made. Otherwise messages would be passed by, or be
nobody's, that the old master acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from kerolox.broker.base import Base
from kerolox.broker.replication.replication import Peers
from kerolox.broker.roles.record import RoleRecord, role_of
from kerolox.broker.services.java_pops import take_over
from kerolox.broker.services.registration import OPERATOR_SECONDS_MAX
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.tables import Tables
from kerolox.broker.tables.topics import QUEUES_MAX, check_topic_name
from kerolox.errors import KeroloxError
from kerolox.kernel.read import RecordReader
from kerolox.kernel.values import RecoveryReport
from kerolox.message import PropertyKey, property_value
from kerolox.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
)
from kerolox.protocol.records import parse_record

WAITING_TOPICS = frozenset((HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, CHECK_MAX_TIME_TOPIC))
"""Whose messages are for another topic (REAL_TOPIC)."""

SCANNED_MAX = 100_000
"""Messages of one of their queues that are examined, the newest ones: clients wait meanwhile."""

SCANNED_PER_SLICE = 500
"""Before other work of the loop runs."""


async def unlisted_topics(
    store: RecordReader,
    has_queue: Callable[[str, int], bool],
    complete_below: int,
    passed_below: Callable[[str, int], int],
) -> dict[str, int]:
    """Topics that the log has messages of, or for, in queues that nobody knows.

    A slave has its master's log at once, and its table of topics every 10 s. When the master is
    gone, the log alone knows of a topic that is younger than the table. A commit of a half or the
    delivery of a delayed message would bring it to a topic that no client finds.

    Args:
        store: the log and its queues.
        has_queue: whether the table has a topic with such a queue.
        complete_below: messages that begin below this offset of the log speak of topics and queues
            that are in the table, or were deleted.
        passed_below: topic and queue of ``WAITING_TOPICS`` → the queue offset below which messages
            wait for nothing any more.

    Returns:
        Topic → how many queues it has at least.
    """
    found: dict[str, int] = {}

    def add(topic: str, queue_id: int) -> None:
        found[topic] = max(found.get(topic, 0), queue_id + 1)

    for topic, queue_id, low, high, *_ in store.queues():
        if high == low:
            continue
        if not has_queue(topic, queue_id):
            entry = store.queue_entry(topic, queue_id, high - 1)
            # Others are those of topics that were deleted.
            if entry is not None and entry[0] >= complete_below:
                add(topic, queue_id)
        if topic in WAITING_TOPICS:
            first = max(low, passed_below(topic, queue_id), high - SCANNED_MAX)
            for number, place in enumerate(
                _places(store, topic, queue_id, range(first, high), complete_below)
            ):
                for_topic, for_queue = _destination(store.lookup(place))
                if for_topic and not has_queue(for_topic, for_queue):
                    add(for_topic, for_queue)
                if number % SCANNED_PER_SLICE == SCANNED_PER_SLICE - 1:
                    await asyncio.sleep(0)
    return found


def _places(
    store: RecordReader, topic: str, queue_id: int, offsets: range, begin: int
) -> Iterator[int]:
    """Where in the log the messages of a queue are, from an offset of the log on."""

    def place(offset: int) -> int:
        entry = store.queue_entry(topic, queue_id, offset)
        return -1 if entry is None else entry[0]

    for offset in offsets[bisect_left(offsets, begin, key=place) :]:
        if (found := place(offset)) >= 0:
            yield found


def _destination(data: bytes | None) -> tuple[str, int]:
    """Topic and queue that a record is for; an empty name: it does not say."""
    record = None if data is None else parse_record(data, 0, len(data))
    if record is None:
        return "", 0
    topic = property_value(record.properties, PropertyKey.REAL_TOPIC) or b""
    queue = property_value(record.properties, PropertyKey.REAL_QUEUE_ID) or b"0"
    # Halves of a log that another broker wrote may say anything.
    is_number = queue.isdigit() and len(queue) <= len(str(QUEUES_MAX))
    return topic.decode(errors="replace"), min(int(queue), QUEUES_MAX - 1) if is_number else 0


RECOVERED_BYTES = 1 << 20
"""At the end of the log: behind each final message of a transaction comes the note of its half, and
the old master may have sent the one without the other."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoleParts:
    """The parts of one broker that do something else on a slave than on a master."""

    base: Base
    tables: Tables
    writing: Writing
    peers: Peers

    async def lead(
        self, record: RoleRecord, begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Become the master that a record names, which is on disk. The gate is held meanwhile, and
        the port for slaves is open. ``begin`` is awaited when the log is this broker's own."""
        tables = self.peers.replication.tables
        complete_below = 0 if tables is None else tables.complete_below
        offsets_below = 0 if tables is None else tables.offsets_below
        await self.peers.replication.stop_following()
        # Part of a record that the old master did not send to its end.
        self.base.store.append_log(self.base.store.max_physical_offset, b"")
        if begin is not None:
            await begin()
        await self._reconcile_tables(complete_below, offsets_below)
        self.base.role.replace(role_of(record, self.base.config))
        self.writing.transactions.forget()
        await self.writing.duplicates.rebuild()
        # What was seen some seconds ago may be over.
        await self.writing.cleaner.check_disk()
        self.writing.gate.hold(False)
        await self.writing.transactions.recover(self._end_of_log())
        await self._renew_and_announce()

    async def follow(self, record: RoleRecord) -> None:
        """Become the slave that a record names, which is on disk, or the slave of another master.
        The gate was held before, so that nothing is written."""
        self.tables.pops.end()
        self.base.role.replace(role_of(record, self.base.config))
        self.writing.gate.hold(False)
        self.writing.transactions.forget()
        await self.peers.replication.follow(record.master_ha_address, record.master_address)

    async def hand_over(self, successor: str) -> None:
        """Let the name servers know who gets this master's place, so that it is never empty."""
        if self.base.role.current.is_sync_master:
            # Those who wait for a slave hear that it has their message.
            await self.peers.replication.waits.wait(self.base.store.max_physical_offset)
        self.peers.registration.successor = successor
        await self.peers.registration.now(timeout_seconds=OPERATOR_SECONDS_MAX)

    async def announce_role(self) -> None:
        """Have name servers hear of the role."""
        self.peers.registration.successor = ""
        self.peers.registration.begin_anew()
        await self.peers.registration.now(timeout_seconds=OPERATOR_SECONDS_MAX)

    async def _renew_and_announce(self) -> None:
        self.tables.topics.renew()
        await self.announce_role()

    async def _reconcile_tables(self, complete_below: int, offsets_below: int) -> None:
        anew = self.tables.offsets.begin_younger(offsets_below) if offsets_below else 0
        if anew:
            _log.warning(
                "%d queues began anew since the master's offsets came: groups begin there at the "
                "first message",
                anew,
            )
        for group in self.tables.clients.groups():
            self.tables.meet(group.name, group.message_model, group.subscriptions)
        moved = self.tables.offsets.fit(has_crashed=True)
        if moved:
            _log.warning("%d offsets of groups were beyond the end of their queues", moved)
        await take_over(self.base, self.tables)
        self.tables.pops.begin()
        self.writing.schedule.bound()
        unlisted = await unlisted_topics(
            self.base.store, self.tables.topics.has_queue, complete_below, self._passed_below
        )
        for topic, queues in unlisted.items():
            self._make_topic(topic, queues)

    def _passed_below(self, topic: str, queue_id: int) -> int:
        """Where those messages of a queue begin that may still be delivered elsewhere."""
        if topic == SCHEDULE_TOPIC:
            return self.writing.schedule.offsets.get(queue_id + 1, 0)
        if topic == HALF_TOPIC:
            return self.tables.offsets.query(TRANSACTION_GROUP, topic, queue_id)
        return 0

    def _make_topic(self, topic: str, queues: int) -> None:
        """Make a topic with at least so many queues, or give it so many. Producers may know of more
        than have messages, so a topic of applications gets as many as a send would make."""
        is_own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or self.tables.topics.is_system(topic)
        is_known = topic in self.tables.topics
        if not is_own and not is_known:
            queues = max(queues, self.base.config.default_topic_queue_nums)
        try:
            check_topic_name(topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX))
            self.tables.topics.create_for_group(topic, queues)
        except KeroloxError as error:
            _log.error("topic %r has messages, and is in no table: %s", topic, error)
            return
        if topic not in self.tables.topics:
            return  # A light message queue is in no table.
        if is_known:
            _log.warning(
                "topic %s has messages in queues that the master's table did not have when that "
                "was taken last; it gets %d read queues",
                topic,
                queues,
            )
            return
        _log.warning(
            "topic %s has messages and was not in the master's table when that was taken last; it "
            "is made with %d queues",
            topic,
            queues,
        )

    def _end_of_log(self) -> RecoveryReport:
        """Where the records begin that may lack notes."""
        store = self.base.store
        end = store.max_physical_offset
        lasts = (
            entry[0]
            for topic, queue_id, low, high, *_ in store.queues()
            if high > low and (entry := store.queue_entry(topic, queue_id, high - 1)) is not None
        )
        begin = min((each for each in lasts if each >= end - RECOVERED_BYTES), default=end)
        return RecoveryReport(
            clean=False,
            min_offset=store.min_physical_offset,
            max_offset=end,
            scanned_bytes=0,
            truncated_bytes=0,
            dispatched=0,
            indexed=0,
            queues=0,
            notes=[],
            begin_offset=begin,
        )
