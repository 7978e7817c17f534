"""Queues that nobody reads: topics with more write queues than read queues, and messages of a group
in queues that its topic has lost. Groups without queues for retries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kerolox.client.core.routes import QueueData
from kerolox.doctor.facts import ClusterSnapshot, GroupFacts
from kerolox.doctor.findings import Finding
from kerolox.message import MessageQueue
from kerolox.protocol.codes import Perm
from kerolox.protocol.names import RETRY_PREFIX

Reading = dict[tuple[str, str], int]
"""(topic, broker name) → queues that are read."""


def check_queues(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """All topics whose routes were examined, and all groups."""
    for topic, queues in _routes(snapshot):
        if queues.perm & Perm.WRITE and queues.write_queues > queues.read_queues:
            yield Finding(
                "queues-not-read",
                f"topic {topic}",
                f"on {queues.broker_name} messages are written to {queues.write_queues} queues, and"
                f" {queues.read_queues} of them are read",
                f"kerolox topic update {topic} --queues {queues.write_queues}",
            )
    reading = reading_of(snapshot)
    for group in snapshot.groups:
        yield from lost_queues(group, reading)
    for broker in snapshot.brokers:
        for name in broker.dropping:
            yield Finding(
                "retries-dropped",
                f"group {name}",
                f"it has no retry queues at {broker.node.address}, which drops each message that"
                " its members give back: no retry, no dead letter",
                f"kerolox group update {name} --retry-queues 1, unless that is wanted",
            )


def reading_of(snapshot: ClusterSnapshot) -> Reading:
    """As the name servers say it."""
    return {(topic, each.broker_name): each.read_queues for topic, each in _routes(snapshot)}


def is_lost(queue: MessageQueue, reading: Reading) -> bool:
    """Whether it is no queue that is read; False where its topic was not examined."""
    return queue.queue_id >= reading.get((queue.topic, queue.broker_name), queue.queue_id + 1)


def _routes(snapshot: ClusterSnapshot) -> Iterator[tuple[str, QueueData]]:
    for each in snapshot.name_servers:
        for topic, route in each.second.routes.items():
            for queues in () if route is None else route.queues:
                yield topic, queues


def lost_queues(facts: GroupFacts, reading: Reading) -> Iterator[Finding]:
    """What one group has left in queues of its topics that are read no more."""
    lost: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for each in facts.second.queues if facts.second else ():
        topic, broker, queue_id = each.queue
        if each.lag > 0 and is_lost(each.queue, reading):
            lost[topic, broker].append((queue_id, each.lag))
    for (topic, broker), queues in lost.items():
        last = max(queue_id for queue_id, _lag in queues)
        advice = (
            f"have them read: kerolox topic update {topic} --queues {last + 1}; fewer queues again"
            " when they are consumed"
        )
        if topic.startswith(RETRY_PREFIX):
            advice = f"have them read: kerolox group update {facts.group} --retry-queues {last + 1}"
        yield Finding(
            "messages-in-lost-queues",
            f"group {facts.group}",
            f"{sum(lag for _queue_id, lag in queues)} messages wait for it in"
            f" {'queue' if len(queues) == 1 else 'queues'}"
            f" {', '.join(str(queue_id) for queue_id, _lag in sorted(queues))} of {topic} on"
            f" {broker}, of which {reading[topic, broker]} are read: no member gets them",
            advice,
        )
