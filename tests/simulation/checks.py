"""What must hold after a run, when all faults are healed and the cluster is at rest.

:func:`check` compares what clients learned (:mod:`tests.simulation.history`) with what the stores
have, and the stores with each other. What may be lost, and only that, follows from the settings:

======================  ==========================================================================
the broker is killed    nothing, but with a transient store pool what was not committed; so where
                        it is stopped while its disk is full
its machine crashes     ASYNC_FLUSH: what was not flushed. SYNC_FLUSH: nothing that was answered
                        with another status than FLUSH_DISK_TIMEOUT, which the status of a slave
                        may hide
a slave is promoted     ASYNC_MASTER: what it did not have. SYNC_MASTER: nothing that was SEND_OK,
                        unless the machine of a slave crashed before
======================  ==========================================================================
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kerolox.protocol.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from tests.simulation.check_pops import check_popped
from tests.simulation.check_timer import check_timer
from tests.simulation.history import (
    COMMIT,
    CRASHED,
    DELAYED,
    DIED,
    KILLED,
    LATER,
    OK,
    ORDERED,
    PLAIN,
    PROMOTED,
    ROLLBACK,
    SEND_OK,
    STARTED,
    STOPPED,
    TRANSACTION,
    Event,
    Group,
    History,
    Received,
    Sent,
)

SHOWN_MAX = 5
"""Faults of one kind that are told."""
SOON_SECONDS = 3.0
"""A message that waits so long in a quiet cluster has been forgotten."""
EARLY_SECONDS = 0.005
"""A delay counts from the broker's time in milliseconds."""
HEARD_SECONDS = 20.0
"""An old master that comes back has heard of the new one so long after the change: a name server
that was away is tried again every ten seconds, and it may be away before that."""
_ENTRY = struct.Struct(">qiq")


class Kept(NamedTuple):
    """A record of a master's log that a queue has."""

    key: str
    broker: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    is_copy: bool
    """Of a half message that was stored again when its producer was asked."""
    out_ms: int = 0
    """What the timer says of it: begin of the step that it waited for; 0: it did not wait."""
    stored_ms: int = 0
    """By its broker's clock."""
    dequeued_ms: int = 0
    """When the timer found it due, by its broker's clock."""
    first_pop_ms: int = 0
    """Of a copy of a message that was popped: when it was first, by its broker's clock."""


@dataclass
class Contents:
    """What the masters have."""

    by_topic: dict[str, dict[str, list[Kept]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """Topic to key to records."""
    queues: dict[tuple[str, str, int], list[Kept]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """(broker, topic, queue) to its records, in order."""


def check(history: History, cluster: Any) -> list[str]:
    """What does not hold, in sentences; none: all is well.

    Args:
        history: of the run.
        cluster: a :class:`tests.simulation.cluster.Cluster` at rest, whose brokers run.
    """
    faults: list[str] = []
    contents = Contents()
    masters: dict[str, Any] = {}
    for node, broker in cluster.brokers.items():
        if not broker.parts.role.current.is_slave:
            name = broker.config.broker_name
            if name in masters:
                faults.append(f"{name} has two masters")
            masters[name] = broker.parts
            faults += read_store(node, name, broker.parts.store, contents, history.deleted_topics)
    for node, broker in cluster.brokers.items():
        trouble = broker.parts.store.trouble
        # What a full disk refused is told until something is stored again.
        if trouble and "the disk is full" not in trouble:
            faults.append(f"{node} is in trouble: {trouble}")
        if broker.parts.role.current.is_slave and broker.config.broker_name in masters:
            faults += read_store(node, "", broker.parts.store, Contents(), history.deleted_topics)
            master = masters[broker.config.broker_name].store
            faults += compare_logs(node, master, broker.parts.store)
    for part in (
        check_sends(history, contents),
        check_transactions(history, contents),
        check_once(history, contents),
        check_received(history, contents),
        check_order(history, contents),
        check_popped(history, contents),
        check_delays(history),
        check_timer(history, contents),
        check_narrowed(history, contents),
        check_offsets(history, contents, masters),
        check_quiet(history),
    ):
        faults += part[:SHOWN_MAX]
        if len(part) > SHOWN_MAX:
            faults.append(f"... and {len(part) - SHOWN_MAX} more of the kind")
    return faults


# -- stores ---------------------------------------------------------------------------
def read_store(
    node: str, broker: str, store: Any, contents: Contents, deleted: Collection[str] = ()
) -> list[str]:
    """Read a whole store: each record has its entry, each entry its record, queues are dense.

    ``deleted``: topics that were deleted at some time. Records of theirs may lack entries before
    the first one that their queue knows: they are of an earlier life.
    """
    faults: list[str] = []
    log = store.files.log
    records = {}
    begins: dict[tuple[str, int], int] = {}
    at = log.min_offset
    while at < log.max_offset:
        for physical, record in log.records_from(at, log.max_offset):
            records[physical] = record
            at = physical + record.size
        following = log.roll_next(at)
        if following <= at:
            break
        at = following
    for topic, queue_id, low, high in store.queues():
        queue = store.files.queues.get(topic, queue_id)
        offset = low
        while offset < high:
            data = queue.read_entries(offset, high - offset)
            if not data:
                faults.append(f"{node}: {topic}:{queue_id} has no entry {offset} of {low}..{high}")
                break
            for physical, size, _code in _ENTRY.iter_unpack(data):
                record = records.get(physical)
                if record is None or record.size != size:
                    faults.append(f"{node}: {topic}:{queue_id} entry {offset} has no record")
                elif (record.topic.decode(), record.queue_id, record.queue_offset) != (
                    topic, queue_id, offset,
                ):  # fmt: skip
                    faults.append(
                        f"{node}: {topic}:{queue_id} entry {offset} is of {record.topic.decode()}:"
                        f"{record.queue_id}:{record.queue_offset} at {physical}"
                    )
                else:
                    del records[physical]
                    begins.setdefault((topic, queue_id), physical)
                    kept = Kept(
                        _key_of(record.properties), broker, topic, queue_id, offset, physical,
                        b"TRANSACTION_CHECK_TIMES" in record.properties,
                        int(_property(record.properties, b"TIMER_OUT_MS") or 0),
                        record.store_timestamp,
                        int(_property(record.properties, b"TIMER_DEQUEUE_MS") or 0),
                        int(_property(record.properties, b"1ST_POP_TIME") or 0),
                    )  # fmt: skip
                    contents.by_topic[topic][kept.key].append(kept)
                    contents.queues[broker, topic, queue_id].append(kept)
                offset += 1
    deletions = store.files._deletions
    for physical, record in records.items():
        topic = record.topic.decode()
        if record.sys_flag & 12 in (4, 12) or deletions.is_over(topic, physical):
            continue
        if topic in deleted and physical < begins.get((topic, record.queue_id), log.max_offset):
            continue
        faults.append(
            f"{node}: the record at {physical} of {topic}:{record.queue_id}:"
            f"{record.queue_offset} has no entry"
        )
    return faults[:SHOWN_MAX]


def _key_of(properties: bytes) -> str:
    return _property(properties, b"KEYS")


def _property(properties: bytes, wanted: bytes) -> str:
    if wanted in properties:
        for item in properties.split(b"\2"):
            name, _, value = item.partition(b"\1")
            if name == wanted:
                return value.decode()
    return ""


def compare_logs(node: str, master: Any, slave: Any) -> list[str]:
    """A slave's log is a prefix of its master's, byte for byte; at rest it is all of it."""
    low = max(master.min_physical_offset, slave.min_physical_offset)
    end = slave.max_physical_offset
    if end != master.max_physical_offset:
        return [f"{node} ends at {end}, its master at {master.max_physical_offset}"]
    while low < end:
        theirs, ours = master.read_log(low, end - low), slave.read_log(low, end - low)
        size = min(len(theirs), len(ours))
        if not size:
            return [f"{node}: nothing can be read at {low} of its log or its master's"]
        if theirs[:size] != ours[:size]:
            at = next(i for i in range(size) if theirs[i] != ours[i])
            return [f"{node}: its log differs from its master's at {low + at}"]
        low += size
    return []


# -- what was acknowledged ------------------------------------------------------------
def was_deleted(history: History, sent: Sent) -> bool:
    """Whether its topic may have been deleted after it was sent. What is delivered later, or
    committed, may still come to the topic then, where nobody has to get it."""
    return history.deleted_topics.get(sent.topic, -1.0) >= sent.began


def may_be_lost(history: History, sent: Sent) -> bool:
    """Whether what befell its broker after it was acknowledged may have cost a message."""
    if was_deleted(history, sent):
        return True
    # What is delivered later is stored again, and its position with it, which may reach the disk
    # before the record does.
    has_slave_crashed = has_master_crashed = has_master_died = False
    # The timer's does not: a message that waited is there until its copy is.
    is_stored_twice = sent.kind in (DELAYED, TRANSACTION) and not sent.is_timed
    slaves_down: set[str] = set()
    for event in history.events:
        if event.broker != sent.broker:
            continue
        if event.what in (KILLED, CRASHED, STOPPED) and not event.is_master:
            slaves_down.add(event.node)
        elif event.what == STARTED:
            slaves_down.discard(event.node)
        # What the master lost its slave may still have: the slave's end says nothing then.
        has_master_crashed = has_master_crashed or (event.what == CRASHED and event.is_master)
        has_master_died = has_master_died or (event.what == KILLED and event.is_master)
        was_copied = history.role == "SYNC_MASTER" and sent.status == SEND_OK
        if event.at < sent.began:
            # An old master that comes back while no name server answers takes messages until it
            # hears of the new one; what it took is set aside.
            is_emergency = has_master_died or has_master_crashed
            is_lately = sent.ended < event.at + HEARD_SECONDS
            if event.what == PROMOTED and is_emergency and is_lately and not was_copied:
                return True
            continue
        if event.what == CRASHED and not event.is_master:
            has_slave_crashed = True
        # What the slave did counts more than what the disk did.
        hides_flush = history.has_failing_syncs and sent.status != SEND_OK
        is_timeout = sent.status == "FLUSH_DISK_TIMEOUT" or hides_flush
        was_flushed = history.flush == "SYNC_FLUSH" and not is_timeout
        if event.what == CRASHED and event.is_master and not was_flushed:
            if is_stored_twice or sent.physical_offset >= event.flushed:
                return True
        elif event.is_master and _loses_pool(history, event):
            if is_stored_twice or sent.physical_offset >= event.log_end:
                return True
        elif event.what == PROMOTED:
            # The one slave that had it may be another one, which is down.
            was_copied = was_copied and not has_slave_crashed and not slaves_down - {event.node}
            is_unknown = is_stored_twice or has_master_crashed
            if not was_copied and (is_unknown or sent.physical_offset >= event.log_end):
                return True
    return False


def check_sends(history: History, contents: Contents) -> list[str]:
    """What was acknowledged is there, at the place that the answer named."""
    faults = []
    for sent in history.sent:
        if not sent.status or sent.recall or may_be_lost(history, sent):
            continue
        copies = contents.by_topic[sent.topic].get(sent.key, []) if sent.topic else []
        if sent.kind == TRANSACTION:
            continue
        if not copies:
            faults.append(f"{_named(sent)} was acknowledged and is not there")
        elif sent.kind != DELAYED and not any(_is_at(sent, kept) for kept in copies):
            faults.append(f"{_named(sent)} is not where it was said to be, but {copies}")
    return faults


def _named(sent: Sent) -> str:
    return (
        f"{sent.kind} {sent.key} of {sent.topic} ({sent.status or sent.error}, {sent.broker} "
        f"{sent.queue_id}:{sent.queue_offset} at {sent.physical_offset}, {sent.ended:.6f})"
    )


def _is_at(sent: Sent, kept: Kept) -> bool:
    return (sent.broker, sent.queue_id, sent.queue_offset) == kept[1:2] + kept[3:5] and (
        sent.physical_offset in (-1, kept.physical_offset)
    )


def check_transactions(history: History, contents: Contents) -> list[str]:
    """A transaction is committed once or not seen at all, as its producer decided."""
    faults = []
    for sent in history.sent:
        if sent.kind != TRANSACTION:
            continue
        copies = contents.by_topic[sent.topic].get(sent.key, [])
        if sent.decision == ROLLBACK and copies:
            faults.append(f"{_named(sent)} was rolled back and is there: {copies}")
        is_due = sent.decision == COMMIT and bool(sent.status)
        if is_due and not copies and not may_be_lost(history, sent):
            faults.append(f"{_named(sent)} was to be committed and is not there")
        # A half message that was sent again after an error has a commit of its own.
        halves = [kept for kept in contents.by_topic[HALF_TOPIC][sent.key] if not kept.is_copy]
        if len(copies) > len(halves) and not _lost_anything(history):
            faults.append(f"{_named(sent)} was committed {len(copies)} times: {copies}")
    return faults


def check_once(history: History, contents: Contents) -> list[str]:
    """With a window of keys a broker stores no message twice that a producer sent again. What is
    delivered later may come twice after a crash, as ever."""
    faults = []
    has_window = history.stores_once and not history.has_pool
    for sent in history.sent if has_window else ():
        copies = Counter(kept.broker for kept in contents.by_topic[sent.topic].get(sent.key, []))
        twice = [broker for broker, count in copies.items() if count > 1]
        if sent.kind != DELAYED and not sent.is_timed and twice:
            faults.append(f"{_named(sent)} is stored more than once by {', '.join(twice)}")
    return faults


def _lost_anything(history: History, since: float = 0.0) -> bool:
    return any(
        event.at >= since and (event.what in (CRASHED, PROMOTED) or _loses_pool(history, event))
        for event in history.events
    )


def _loses_pool(history: History, event: Event) -> bool:
    """Whether what was not committed went with its process: it was killed, or stopped while its
    disk took nothing."""
    is_full_at_stop = event.what == STOPPED and event.log_end >= 0
    return history.has_pool and (event.what == KILLED or is_full_at_stop)


# -- what was consumed ----------------------------------------------------------------
def check_received(history: History, contents: Contents) -> list[str]:
    """Each group got each message that is there at least once; nobody got what cannot be."""
    faults = []
    sent = {each.key: each for each in history.sent}
    done: dict[str, set[str]] = defaultdict(set)
    for received in history.received:
        each = sent.get(received.key)
        if each is None:
            faults.append(f"{received.consumer} got {received.key!r}, which nobody sent")
        elif each.decision == ROLLBACK:
            faults.append(f"{received.consumer} got {received.key}, which was rolled back")
        elif not received.reconsume_times and not history.groups[received.group].wants(
            each.tag, received.at
        ):
            # What a member gave back its group gets again, whatever it subscribes to.
            faults.append(f"{received.consumer} got {received.key}, whose tag it did not want")
        # What a listener gives back is stored without a wait for the disk or a slave, as RocketMQ's
        # broker does (setWaitStoreMsgOK(false)): a loss afterwards may cost the retry. What is
        # popped stays where it is until its copy is safe.
        if received.result == OK or (
            received.result == LATER
            and not history.groups[received.group].is_popped
            and _lost_anything(history, received.ended)
        ):
            done[received.group].add(received.key)
    for group in history.groups.values():
        passed = passed_by(group, history, contents)
        dead = contents.by_topic[DLQ_PREFIX + group.name]
        for (broker, topic, queue_id), records in contents.queues.items():
            if topic not in group.topics:
                continue
            begin = group.skipped.get((topic, broker, queue_id), 0)
            begin = max(begin, passed.get((broker, topic, queue_id), 0))
            for kept in records:
                if kept.queue_offset < begin or kept.key in done[group.name] or kept.key in dead:
                    continue
                if kept.key in sent and was_deleted(history, sent[kept.key]):
                    continue
                if kept.key in sent and group.may_pass(sent[kept.key].tag, sent[kept.key].began):
                    continue
                if group.has_tags and _replaces(history, kept):
                    continue
                faults.append(f"{group.name} never consumed {kept}")
    return faults


def _replaces(history: History, kept: Kept) -> bool:
    """Whether it came to the place of a message that was lost with its master. Who passed that one,
    whose tag it did not want, does not look there again."""
    if kept.topic in history.deleted_topics:
        return False
    queue, is_replaced, end = (kept.topic, kept.queue_id), False, 0
    for event in history.events:
        if event.broker != kept.broker or not event.is_master:
            continue
        if event.what in (KILLED, CRASHED):
            end = max(end, event.queue_ends.get(queue, 0))
        elif event.what in (STARTED, PROMOTED):
            is_after = kept.physical_offset >= event.log_end
            is_replaced = is_replaced or (is_after and kept.queue_offset < end)
    return is_replaced


def _places_of(group: Group, contents: Contents) -> dict[tuple[str, str, int, int], str]:
    """(broker, topic, queue, offset) to the key that is there, of a group's topics."""
    return {
        (kept.broker, kept.topic, kept.queue_id, kept.queue_offset): kept.key
        for records in contents.queues.values()
        for kept in records
        if kept.topic in group.topics
    }


def passed_by(
    group: Group, history: History, contents: Contents
) -> dict[tuple[str, str, int], int]:
    """Queues that lost messages which the group had been given, each with the offset up to which it
    may not check again: others came to their places, and a client that has read on cannot know. A
    topic that is deleted and made again is no such loss: its groups begin anew, unless a slave that
    has not heard of it gave out what it had."""
    has_lost = _lost_anything(history)
    has_slaves = any(not event.is_master for event in history.events)
    place = _places_of(group, contents)
    passed: dict[tuple[str, str, int], int] = {}
    for received in history.received:
        queue = (received.broker, received.topic, received.queue_id)
        is_ours = received.group == group.name and received.topic in group.topics
        deleted_at = history.deleted_topics.get(received.topic, received.at)
        may_pass = has_lost or (has_slaves and received.at > deleted_at)
        if is_ours and may_pass and place.get((*queue, received.queue_offset)) != received.key:
            passed[queue] = max(passed.get(queue, 0), received.queue_offset + 1)
    return passed


def check_order(history: History, contents: Contents) -> list[str]:
    """An orderly group gets no message of a queue before it has consumed all earlier ones."""
    faults = []
    for group in history.groups.values():
        if group.is_orderly or group.is_ordered:
            faults += _order_of(group, history, contents)
        if group.is_orderly:
            faults += _shared_by(group, history)
    return faults


def _shared_by(group: Group, history: History) -> list[str]:
    """Whom the broker gave a queue while another member's listener had it. A broker that starts
    anew knows no locks, nor does a slave that becomes the master."""
    if any(event.what != STARTED for event in history.events if event.is_master):
        return []
    if history.clock_jumps or history.role_changes:
        return []
    faults = []
    held: dict[tuple[str, str, int], Received] = {}
    for received in history.received:
        if received.group != group.name:
            continue
        queue = (received.broker, received.topic, received.queue_id)
        other = held.get(queue)
        if (
            other is not None
            and other.consumer != received.consumer
            and other.result != DIED
            and not 0 <= other.ended <= received.at
        ):
            faults.append(
                f"{received.consumer} got {received.key} ({queue[1]}:{queue[2]}) at "
                f"{received.at:.6f}, while {other.consumer} had {other.key} until {other.ended:.6f}"
            )
        held[queue] = received
    return faults


def _order_of(group: Group, history: History, contents: Contents) -> list[str]:
    place = _places_of(group, contents)
    passed = passed_by(group, history, contents)
    done: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    settled: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
    below: dict[tuple[str, str, int], int] = {}
    tags = {each.key: each for each in history.sent}
    # A member with other tags was, or is, not given them.
    unwanted = {
        at
        for at, key in place.items()
        if key in tags and group.may_pass(tags[key].tag, tags[key].began)
    }
    if group.has_tags:
        # What was there before, and is lost, may have been one of those.
        unwanted |= {
            (kept.broker, kept.topic, kept.queue_id, kept.queue_offset)
            for records in contents.queues.values()
            for kept in records
            if kept.topic in group.topics and _replaces(history, kept)
        }
    # Messages that came together, also where a member that pops took them one after the other.
    batches: dict[tuple[str, tuple[str, str, int]], tuple[float, set[int]]] = {}
    faults = []
    for received in history.received:
        queue = (received.broker, received.topic, received.queue_id)
        moment, whose = received.pop_time or received.at, (received.consumer, queue)
        if whose not in batches or batches[whose][0] != moment:
            batches[whose] = moment, set()
        batch = batches[whose][1]
        if queue in passed or received.topic in history.deleted_topics:
            continue
        if received.group != group.name or place.get((*queue, received.queue_offset)) != (
            received.key
        ):
            continue
        if queue not in below:
            records = contents.queues[queue]
            skipped = group.skipped.get((received.topic, received.broker, received.queue_id), 0)
            below[queue] = max(records[0].queue_offset, skipped)
        waiting = settled[queue]
        done[queue].update(offset for ended, offset in waiting if ended <= received.at)
        settled[queue] = [each for each in waiting if each[0] > received.at]
        at = below[queue]
        while at in done[queue] or (*queue, at) in unwanted:
            at += 1
        below[queue] = at
        batch.add(received.queue_offset)
        if received.queue_offset > at and at not in batch:
            faults.append(
                f"{received.consumer} got {received.key} ({queue[1]}:{queue[2]}:"
                f"{received.queue_offset}) at {received.at:.6f} before {group.name} had "
                f"consumed {at}"
            )
            below[queue] = received.queue_offset
        if received.result == OK:
            settled[queue].append((received.ended, received.queue_offset))
    return faults


def check_delays(history: History) -> list[str]:
    """Nothing that was to wait came early."""
    if history.clock_jumps:
        return []
    sent = {each.key: each for each in history.sent if each.kind == DELAYED}
    return [
        f"{received.consumer} got {received.key} {received.at - sent[received.key].began:.3f} s "
        f"after it was sent, with a delay of {sent[received.key].delay_ms} ms"
        for received in history.received
        if received.key in sent
        and received.at - sent[received.key].began
        < sent[received.key].delay_ms / 1_000 - EARLY_SECONDS
    ]


def check_narrowed(history: History, contents: Contents) -> list[str]:
    """What came while a topic had fewer queues is in those that it had. A broker that lost its end,
    or another one, may have known nothing of it; and with a transient store pool the log ends later
    than what it was given."""
    if _lost_anything(history) or history.role_changes or history.has_pool:
        return []
    return [
        f"{kept} came while {each.topic} had {each.queues} queues"
        for each in history.narrowed
        for (broker, topic, queue_id), records in contents.queues.items()
        if broker == each.broker and topic == each.topic and queue_id >= each.queues
        for kept in records
        if each.log_begin <= kept.physical_offset < each.log_end
    ]


def check_offsets(history: History, contents: Contents, masters: dict[str, Any]) -> list[str]:
    """What a group committed is the end of each of its queues, and not more."""
    faults = []
    for group in history.groups.values():
        if group.is_broadcast:
            continue
        passed = passed_by(group, history, contents)
        for broker, parts in masters.items():
            for topic in (*group.topics, RETRY_PREFIX + group.name):
                if topic in history.deleted_topics:
                    continue
                for queue_id, offset in parts.tables.offsets.of_topic(group.name, topic).items():
                    if (broker, topic, queue_id) in passed:
                        continue
                    high = parts.store.queue_bounds(topic, queue_id)[1]
                    if offset > high:
                        faults.append(
                            f"{group.name} committed {offset} in {broker} {topic}:{queue_id}, "
                            f"which ends at {high}"
                        )
    return faults


def check_quiet(history: History) -> list[str]:
    """Where nothing goes wrong each send is stored, and given out soon."""
    if not history.is_quiet:
        return []
    faults = []
    stored: set[str] = set()
    for sent in history.sent:
        producer = sent.key.partition(":")[0]
        if sent.status:
            stored.add(producer)
        elif producer in stored:
            # Before the first one it may have had to wait for the topic's route.
            faults.append(f"{_named(sent)} failed")
    told = {sent.key: sent.ended for sent in history.sent if sent.kind in (PLAIN, ORDERED)}
    reading: dict[tuple[str, str, str, int], float] = {}
    for received in history.received:
        queue = (received.group, received.broker, received.topic, received.queue_id)
        since = reading.setdefault(queue, received.at)
        ended = told.get(received.key, -1.0)
        late = received.at - ended
        takes_time = history.groups[received.group].takes_time
        if ended > since and late > SOON_SECONDS and not takes_time:
            faults.append(f"{received.group} got {received.key} {late:.3f} s after its send")
    return faults
