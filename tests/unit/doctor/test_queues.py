"""Queues that nobody reads, by what name servers and brokers say."""

from __future__ import annotations

from kerolox.admin import GroupProgress, QueueProgress
from kerolox.client.core.routes import QueueData, TopicRoute
from kerolox.doctor.checks.groups import check_groups
from kerolox.doctor.checks.queues import check_queues
from kerolox.doctor.facts import (
    ClusterSnapshot,
    GroupFacts,
    NameServerFacts,
    NameServerSnapshot,
    PathFacts,
)
from kerolox.doctor.findings import Finding, Severity
from kerolox.message import MessageQueue


def snapshot_of(
    read: int, write: int, *lags: int, topic: str = "T", perm: int = 6
) -> ClusterSnapshot:
    """A topic on one broker, and a group with so many messages left in its queues."""
    route = TopicRoute(queues=(QueueData("a", read, write, perm),))
    look = NameServerSnapshot(routes={topic: route, "gone": None})
    queues = tuple(
        QueueProgress(MessageQueue(topic, "a", queue_id), 10, 10 - lag, 0)
        for queue_id, lag in enumerate(lags)
    )
    progress = GroupProgress("g", queues, 0.0)
    group = GroupFacts(
        group="g",
        first=progress,
        second=progress,
        status=None,
        waits_ms={(topic, "a", queue_id): 1 << 40 for queue_id in range(len(lags))},
    )
    name_server = NameServerFacts(path=PathFacts(address="n:1"), first=look, second=look)
    return ClusterSnapshot(
        now_ms=0,
        signs=False,
        encrypts=False,
        stuck_after_ms=1,
        name_servers=(name_server,),
        groups=(group,),
    )


def findings(snapshot: ClusterSnapshot) -> list[Finding]:
    return list(check_queues(snapshot))


def test_topics_that_are_read_as_widely_as_written_get_no_finding() -> None:
    assert findings(snapshot_of(4, 4, 1, 2, 3, 4)) == []
    assert findings(snapshot_of(4, 2, 1, 2, 3, 4)) == []


def test_a_topic_that_is_written_more_widely_than_read_is_named() -> None:
    [found] = findings(snapshot_of(2, 5))
    assert (found.code, found.severity, found.where) == (
        "queues-not-read",
        Severity.ERROR,
        "topic T",
    )
    assert found.what == "on a messages are written to 5 queues, and 2 of them are read"
    assert found.advice == "kerolox topic update T --queues 5"
    assert findings(snapshot_of(2, 5, perm=4)) == []


def test_messages_that_a_group_left_in_lost_queues_are_counted() -> None:
    [found] = findings(snapshot_of(2, 2, 0, 9, 3, 0, 4))
    assert (found.code, found.where) == ("messages-in-lost-queues", "group g")
    assert found.what == (
        "7 messages wait for it in queues 2, 4 of T on a, of which 2 are read: no member gets them"
    )
    assert "kerolox topic update T --queues 5;" in found.advice


def test_a_lost_queue_of_retries_is_given_back_by_its_group() -> None:
    [found] = findings(snapshot_of(1, 1, 0, 2, topic="%RETRY%g"))
    assert "2 messages wait for it in queue 1 of %RETRY%g on a, of which 1 are" in found.what
    assert found.advice == "have them read: kerolox group update g --retry-queues 2"


def test_a_lost_queue_is_not_one_that_lacks_an_owner() -> None:
    snapshot = snapshot_of(1, 1, 0, 5)
    [group] = snapshot.groups
    assert [queue.queue_id for queue in group.stalled] == [1]
    assert list(check_groups(snapshot)) == []
    [offline] = check_groups(snapshot_of(1, 1, 3, 5))
    assert offline.what == "no member is online, and 3 messages wait for it"
