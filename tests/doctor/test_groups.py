"""Consumer groups that are ill, on our cluster and on Java's; before that nothing is found."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import ConsumeFromWhere, PushConsumerSettings
from kerolox.client.sync import Producer, PushConsumer
from kerolox.errors import KeroloxError
from kerolox.message import Message, MessageExt, MessageQueue
from tests.doctor.patients import Said, found, named, said
from tests.support.eventually import wait_until
from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.xdist_group("doctor-groups")

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def _leaves_all(
    client_id: str, queues: list[MessageQueue], client_ids: list[str]
) -> list[MessageQueue]:
    """A way to share queues in which nobody gets one."""
    return []


class Groups(NamedTuple):
    healthy: list[Said]
    ill: list[Said]


@pytest.fixture(scope="module")
def groups(cluster: Cluster) -> Iterator[Groups]:
    let_go = threading.Event()
    with contextlib.ExitStack() as stack:
        enter, at = stack.enter_context, cluster.name_server
        stack.callback(let_go.set)
        admin, producer = enter(Admin(at)), enter(Producer("doctor-sends", at))
        [name] = admin.cluster_info().brokers
        for topic in ("One", "Two"):
            admin.create_topic(topic, queues=2)

        def take(messages: list[MessageExt]) -> None:
            """Done at once."""

        def hang(messages: list[MessageExt]) -> None:
            let_go.wait()

        def member(
            group: str, wanted: dict[str, str], *, hangs: bool = False, **settings: object
        ) -> PushConsumer:
            given = PushConsumerSettings(consume_from_where=FIRST, **settings)  # type: ignore[arg-type]
            consumer = PushConsumer(group, at, settings=given)
            for topic, expression in wanted.items():
                consumer.subscribe(topic, expression, hang if hangs else take)
            return enter(consumer)

        def done(group: str) -> bool:
            try:
                progress = admin.group_progress(group)
            except KeroloxError:
                return False
            return progress.lag == 0 and sum(each.consumer_offset for each in progress.queues) > 0

        def send() -> None:
            for topic in ("One", "Two"):
                for queue_id in range(2):
                    queue = MessageQueue(topic, name, queue_id)
                    producer.send(Message(topic, b"body", tags="a"), queue=queue)

        send()
        quick = {"persist_interval_ms": 200}
        member("well", {"One": "*"}, **quick)
        away = member("away", {"One": "*", "Two": "*"}, **quick)
        for group in ("well", "away"):
            wait_until(lambda group=group: done(group), what=f"the messages of {group}")
        healthy = found(at)

        away.close()
        member("differ", {"One": "a"})
        member("differ", {"One": "b"})
        member("hangs", {"One": "*"}, hangs=True, **quick)
        for _ in range(2):
            member("twins", {"One": "*"}, instance_name="same")
        member("nobody", {"One": "*"}, allocation=_leaves_all)
        for queue_id in range(2):
            admin.set_offset("nobody", MessageQueue("One", name, queue_id), 0)
            admin.set_offset("hangs", MessageQueue("One", name, queue_id), 0)
        send()
        wait_until(lambda: done("well"), what="the messages of the group that is well")
        for group, members in (("differ", 2), ("hangs", 1), ("twins", 2), ("nobody", 1)):
            wait_until(
                lambda group=group, members=members: _members(admin, group) == members,
                what=f"the members of {group}",
            )
        admin.update_group("away", consume_enable=False)
        admin.create_topic("%DLQ%away", queues=1)
        wait_until(lambda: "%DLQ%away" in admin.list_topics(), what="the dead-letter topic")
        admin.send_message(Message("%DLQ%away", b"dead"))
        yield Groups(healthy, found(at, "--stuck-after", "0.1"))


def _members(admin: Admin, group: str) -> int:
    try:
        return len(admin.consumer_connections(group).members)
    except KeroloxError:
        return 0


def test_a_cluster_that_is_well_gets_no_finding(groups: Groups) -> None:
    assert groups.healthy == []


@pytest.mark.parametrize(
    ("code", "group", "parts"),
    [
        ("subscriptions-differ", "differ", ["One a", "One b", "a group of its own"]),
        ("client-ids-clash", "twins", ["2 members", "@same", "instance name"]),
        ("group-offline", "away", ["messages wait", "start its consumers"]),
        ("group-paused", "away", ["it is paused: it gets no messages", "group resume away"]),
        ("dead-letters", "away", ["1 messages that it gave up", "dlq resend away"]),
    ],
)
def test_a_group_that_is_ill_is_named(
    groups: Groups, code: str, group: str, parts: list[str]
) -> None:
    named(said(groups.ill, code, f"group {group}"), *parts)


def test_queues_that_stand_still_are_named_with_their_owners(groups: Groups) -> None:
    stuck = [each for each in groups.ill if each["code"] == "queue-stuck"]
    unowned = [each for each in groups.ill if each["code"] == "queue-without-owner"]
    assert {each["where"] for each in unowned} == {"group nobody"}
    assert "group hangs" in {each["where"] for each in stuck}
    named(stuck[0], "One ", "messages left", "--stacks")
    named(unowned[0], "One ", "no member has the queue", "restart the members")
    assert "group well" not in {each["where"] for each in groups.ill}
