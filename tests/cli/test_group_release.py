"""Messages that members popped and hold: shown, and released by an operator."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.message import Message, MessageQueue
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import Peer
from tests.support.clients.pops import Member
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "workers"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    settings = {"brokerName": "broker-a"}
    with Up(tmp_path_factory.mktemp("release"), settings=settings) as servers:
        with Admin(servers.namesrv) as admin:
            admin.create_topic("T", queues=2)
            admin.put_group(SubscriptionGroupConfig(group_name=GROUP))
        yield servers


def pop(up: Up, topic: str, count: int) -> None:
    """A member that sends heartbeats takes messages of queue 0 and is gone."""

    async def take() -> None:
        client = RemotingClient()
        try:
            peer = Peer(up.broker, client)
            await peer.heartbeat("worker-1", GROUP, {topic: "*"})
            assert len(await Member(peer, topic, GROUP).pop(count, queueId=0)) == count
        finally:
            await client.close()

    asyncio.run(take())


def run(up: Up, *arguments: str, exit_code: int = 0) -> str:
    done = kerolox(*arguments, "-n", up.namesrv)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_messages_that_members_hold_are_shown_and_released(up: Up) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with Producer("senders", up.namesrv) as producer:
        for number in range(4):
            producer.send(Message("T", b"%d" % number), queue=queue)
    pop(up, "T", 3)

    described = run(up, "group", "describe", GROUP, "--topic", "T")
    assert "3 messages out, popped and not acknowledged" in described
    assert "worker-1 has 3 messages, for " in described
    rows: list[dict[str, Any]] = json.loads(
        run(up, "group", "describe", GROUP, "--topic", "T", "-o", "json")
    )
    [row] = [each for each in rows if each["queueId"] == 0]
    assert (row["inFlight"], row["heldBy"]) == (3, "worker-1")
    assert row["inFlightMs"] >= 0

    planned = run(up, "group", "release", GROUP, "--held", "1h", "--dry-run")
    assert "has nothing out that is meant" in planned
    one = ("--topic", "T", "--queue", "broker-a/0", "--offset", "1")
    planned = run(up, "group", "release", GROUP, *one, "--dry-run")
    assert "nothing was changed (--dry-run)" in planned
    assert "Nothing was done; --yes does it." in run(up, "group", "release", GROUP, exit_code=2)
    [row] = json.loads(run(up, "group", "release", GROUP, *one, "-y", "-o", "json"))
    assert (row["offset"], row["owner"], row["done"]) == (1, "worker-1", True)
    with Admin(up.namesrv) as admin:
        wait_until(lambda: admin.popped_messages(GROUP).messages == 2, what="the copy")
    # One of both that are left, and the copy.
    said = run(up, "group", "release", GROUP, "--owner", "worker-1", "--yes")
    assert "2 messages of group workers released" in said


def test_an_offset_needs_its_queue_and_a_queue_its_topic(up: Up) -> None:
    for given, needs in ((("--offset", "1"), "--queue"), (("--queue", "broker-a/0"), "--topic")):
        assert f"needs {needs}" in run(up, "group", "release", GROUP, *given, exit_code=2)
    given = ("--topic", "T", "--queue", "other/0")
    said = run(up, "group", "release", GROUP, *given, exit_code=1)
    assert "is on no broker 'other'; it is on broker-a" in said


def test_a_release_asks_brokers_that_are_there(up: Up) -> None:
    with Admin(up.namesrv) as admin:
        with pytest.raises(Exception, match="an offset of which queue"):
            admin.popped_messages(GROUP, offset=1)
        assert admin.release_popped(admin.popped_messages("nobody")).messages == 0


def test_the_doctor_tells_of_a_fifo_topic_that_is_popped_without_order(up: Up) -> None:
    with Admin(up.namesrv) as admin, Producer("senders", up.namesrv) as producer:
        admin.create_topic("Fifo", queues=1, attributes={"message.type": "FIFO"})
        producer.send(Message("Fifo", b"1"), queue=MessageQueue("Fifo", "broker-a", 0))
    pop(up, "Fifo", 1)
    findings = json.loads(
        kerolox("doctor", "-n", up.namesrv, "--between-looks", "0.2", "-o", "json").stdout
    )
    assert "fifo-not-in-order" in {each["code"] for each in findings}
