"""Consumer groups: members that don't fit together, queues that stand still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kerolox.admin import ConsumerStatus, GroupProgress
from kerolox.doctor.checks.queues import Reading, is_lost, reading_of
from kerolox.doctor.facts import ClusterSnapshot, GroupFacts
from kerolox.doctor.findings import Finding
from kerolox.protocol.codes import GRPC
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.text import duration_text

BROADCASTING = "BROADCASTING"
NAMED_MAX = 3
POPPED_MS_MAX = 3_600_000
"""A message that is out for longer holds up its group's offset."""
OVERDUE_MS_MAX = 60_000
"""A message that is to come again is not that late where all is well."""
TRIES_MAX = 3
"""An ordered message that was delivered so often before, and never acknowledged, fails."""


def check_groups(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """All that were examined."""
    reading = reading_of(snapshot)
    for each in snapshot.groups:
        yield from group_findings(each, snapshot.stuck_after_ms, reading)


def group_findings(facts: GroupFacts, stuck_after_ms: int, reading: Reading) -> Iterator[Finding]:
    """Of one group; what its members read themselves (BROADCASTING) has no lag at brokers."""
    where = f"group {facts.group}"
    status = facts.status
    yield from _paused(where, facts)
    if facts.dead_letters:
        yield Finding(
            "dead-letters",
            where,
            f"{facts.dead_letters} messages that it gave up wait for somebody",
            f"kerolox dlq show {facts.group} --waiting says why; send them again once the cause is"
            f" mended (kerolox dlq resend {facts.group}), or mark them as done (kerolox dlq purge"
            f" {facts.group})",
        )
    if status is not None:
        yield from _members(where, status)
        if status.connections.message_model == BROADCASTING:
            return
    if facts.second is None:
        return
    yield from _popped(where, facts.second)
    yield from _ordered(where, facts, stuck_after_ms)
    yield from _coming_again(where, facts)
    yield from _fifo(where, facts)
    if status is None:
        if facts.second.in_flight:
            # Members that pop send no heartbeats.
            return
        # What is in lost queues is told of by itself: no member would get it.
        left = sum(each.lag for each in facts.second.queues if not is_lost(each.queue, reading))
        if left > 0:
            yield Finding(
                "group-offline",
                where,
                f"no member is online, and {left} messages wait for it",
                "start its consumers; if nobody needs it any more: kerolox group delete"
                f" {facts.group}",
            )
        return
    yield from _queues(where, facts, status, stuck_after_ms, reading)


def _popped(where: str, progress: GroupProgress) -> Iterator[Finding]:
    """Messages that members took and never acknowledge, nor let come again."""
    long = [each for each in progress.queues if each.in_flight_ms >= POPPED_MS_MAX]
    if not long:
        return
    oldest = max(long, key=lambda each: each.in_flight_ms)
    yield Finding(
        "popped-for-long",
        where,
        f"in {len(long)} queues messages are out that were popped and not acknowledged, in"
        f" {oldest.queue.topic} {oldest.queue.broker_name}/{oldest.queue.queue_id} for"
        f" {duration_text(oldest.in_flight_ms)}, and the group's offset waits for them",
        "look why its members do not acknowledge them (ack), or give them back (nack); shorter"
        " invisible times let them come again sooner",
    )


def _ordered(where: str, facts: GroupFacts, stuck_after_ms: int) -> Iterator[Finding]:
    """Queues that are popped in order and stand still: whoever has the messages holds up all behind
    them."""
    stalled = set(facts.stalled)
    for each in facts.popped:
        queue = each.queue
        waits_ms = facts.waits_ms.get((queue.topic, queue.broker_name, queue.queue_id), 0)
        is_held = each.oldest_ms >= stuck_after_ms or each.tries >= TRIES_MAX
        if not each.is_order or not is_held or queue not in stalled or waits_ms < stuck_after_ms:
            continue
        place = f"{queue.broker_name}/{queue.queue_id}"
        again = f", delivered {each.tries + 1} times" if each.tries else ""
        yield Finding(
            "ordered-queue-stuck",
            where,
            f"{queue.topic} {place} is popped in order and stands still:"
            f" {each.oldest_owner or 'a member that is not known'} has {each.messages} messages for"
            f" {duration_text(each.oldest_ms)}{again}, and all behind them wait",
            "look what that member does; if it hangs or is gone, let another one have them: kerolox"
            f" group release {facts.group} --topic {queue.topic} --queue {place}",
        )


def _coming_again(where: str, facts: GroupFacts) -> Iterator[Finding]:
    """Messages whose time is over, and that do not come again."""
    late = [each for each in facts.popped if each.overdue_ms >= OVERDUE_MS_MAX]
    failed = [each for each in facts.popped if each.tries and not each.is_order]
    if not late and not failed:
        return
    worst = max(late or failed, key=lambda each: (each.overdue_ms, each.tries))
    why = (
        f"{duration_text(worst.overdue_ms)} overdue"
        if late
        else f"whose copy failed {worst.tries} times"
    )
    yield Finding(
        "pops-behind",
        where,
        f"in {len({*late, *failed})} queues are messages that nobody acknowledged in time and that"
        f" do not come again, in {worst.queue.topic} {worst.queue.broker_name}/"
        f"{worst.queue.queue_id} one {why}",
        "the broker's log says why it can't store their copies (kerolox_pop_copies_failed_total);"
        " check its disk, and whether it takes messages",
    )


def _fifo(where: str, facts: GroupFacts) -> Iterator[Finding]:
    """FIFO topics whose messages members pop without order."""
    found = sorted(
        {
            each.queue.topic
            for each in facts.popped
            if each.queue.topic in facts.fifo_topics and not each.is_order
        }
    )
    if found:
        yield Finding(
            "fifo-not-in-order",
            where,
            f"its members pop {', '.join(found[:NAMED_MAX])} without order, and the messages of"
            " that are to be consumed in order (message.type=FIFO)",
            "have its members pop in order (is_ordered=True, of clients by gRPC a group with"
            " consumeMessageOrderly), or let the topic be NORMAL",
        )


def _paused(where: str, facts: GroupFacts) -> Iterator[Finding]:
    state = facts.state
    if state is None or not state.paused:
        return
    left = f", and {facts.second.lag} messages wait" if facts.second and facts.second.lag else ""
    yield Finding(
        "group-paused",
        where,
        f"it is {state.text}: it gets no messages there{left}",
        f"to deliver again: kerolox group resume {facts.group}",
    )


def _members(where: str, status: ConsumerStatus) -> Iterator[Finding]:
    if not status.has_same_subscriptions:
        text = [
            f"{member.client_id}: "
            + ", ".join(
                f"{each.topic} {each.sub_string or '*'}"
                for each in member.subscriptions
                if not each.topic.startswith(RETRY_PREFIX)
            )
            for member in status.members
        ]
        yield Finding(
            "subscriptions-differ",
            where,
            f"its members subscribe to different things ({'; '.join(text[:NAMED_MAX])}), so each"
            " loses messages that only the other wants",
            "have all members subscribe to the same topics with the same expressions, or give each"
            " kind a group of its own",
        )
    yield from _pulls_and_pops(where, status)
    counts = Counter(member.client_id for member in status.connections.members)
    for client_id, count in counts.items():
        if count > 1:
            yield Finding(
                "client-ids-clash",
                where,
                f"{count} members have the client id {client_id}: they take the same queues, and"
                " leave others to nobody",
                "give each process an instance name of its own (instanceName)",
            )


def _pulls_and_pops(where: str, status: ConsumerStatus) -> Iterator[Finding]:
    """Members that own queues beside members that pop from all queues."""
    popping = [each.client_id for each in status.connections.members if each.protocol == GRPC]
    pulling = [each.client_id for each in status.members if each.queues]
    if popping and pulling:
        yield Finding(
            "group-pulls-and-pops",
            where,
            f"members by gRPC pop from all queues ({', '.join(popping[:NAMED_MAX])}), and others"
            f" have queues of their own ({', '.join(pulling[:NAMED_MAX])}): each message comes to"
            " both",
            "give the clients by gRPC a group of their own, or move all members of the group to one"
            " kind of client; while they are moved messages come twice",
        )


def _queues(
    where: str, facts: GroupFacts, status: ConsumerStatus, stuck_after_ms: int, reading: Reading
) -> Iterator[Finding]:
    queues = {each.queue: each for each in facts.second.queues} if facts.second else {}
    subscribed = {each.topic for each in status.connections.subscriptions}
    for queue in facts.stalled:
        lag, owner = queues[queue].lag, queues[queue].client_id
        waits_ms = facts.waits_ms.get((queue.topic, queue.broker_name, queue.queue_id), 0)
        place = f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
        is_paused = facts.state is not None and queue.broker_name in facts.state.paused
        if queue.topic not in subscribed or waits_ms < stuck_after_ms:
            continue
        if is_paused or is_lost(queue, reading):
            continue
        if owner:
            yield Finding(
                "queue-stuck",
                where,
                f"{place} stands still: {lag} messages left, the next waits for"
                f" {duration_text(waits_ms)}, and {owner} has the queue",
                "look what that member does (kerolox group members --stacks); a handler that hangs,"
                " or a message that fails again and again, holds up all behind it",
            )
        elif not status.silent:
            yield Finding(
                "queue-without-owner",
                where,
                f"{place} has {lag} messages left, the next waits for {duration_text(waits_ms)},"
                " and no member has the queue",
                "restart the members one by one; look for members with one client id, and for a"
                " member that another cluster's name server leads",
            )
