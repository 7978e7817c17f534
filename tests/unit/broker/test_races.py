"""What happens to requests while a table of the broker is being written or changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.tables import json_file
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads
from tests.support.clients.peer import Peer, peer_of
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker


class Disk:
    """Writes of tables go on only while it is released; ``waiting`` when one is held up."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.released.set()
        self.waiting = threading.Event()

    def hold(self) -> None:
        self.released.clear()
        self.waiting.clear()

    def release(self) -> None:
        self.released.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made, store = Disk(), json_file._store

    def slow(*arguments: object) -> None:
        made.waiting.set()
        assert made.released.wait(SECONDS_MAX)
        store(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(json_file, "_store", slow)
    yield made
    made.release()


def topics_on_disk(broker: Broker) -> set[str]:
    return set(loads(broker.parts.tables.topics.file.path.read_bytes())["topicConfigTable"])


async def test_no_send_to_a_new_topic_is_answered_before_the_topic_is_on_disk(
    any_broker: Broker, any_peer: Peer, disk: Disk
) -> None:
    disk.hold()
    async with peer_of(any_broker) as other:
        sends = [asyncio.ensure_future(any_peer.send("New", b"%d" % i)) for i in range(5)]
        await until(disk.waiting.is_set)
        # Sent when the topic is in the tables, but not in the file.
        assert "New" in any_broker.parts.tables.topics
        sends += [asyncio.ensure_future(other.send("New", b"5")) for _ in range(3)]
        assert (await other.pull("New")).code == ResponseCode.PULL_NOT_FOUND
        done = [send for send in sends if send.done()]
        assert not done
        disk.release()
        answers = await asyncio.gather(*sends)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert "New" in topics_on_disk(any_broker)
    assert len(await any_peer.messages("New")) == 8


async def test_a_topic_that_can_t_be_written_takes_messages_when_it_can(
    any_broker: Broker, any_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(json_file, "_store", full)
        for _ in range(2):
            answer = await any_peer.send("New")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "No space left" in (answer.remark or "")
    assert (await any_peer.send("New")).code == ResponseCode.SUCCESS
    assert len(await any_peer.messages("New")) == 1


async def test_what_a_topic_gets_that_is_made_again_during_its_deletion_stays(
    any_broker: Broker, any_peer: Peer, disk: Disk
) -> None:
    await any_peer.create_topic("T")
    await any_peer.send("T", b"old")
    disk.hold()
    deletion = asyncio.ensure_future(
        any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    )
    await until(disk.waiting.is_set)
    any_broker.parts.tables.topics.put(
        TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
    )
    async with peer_of(any_broker) as other:
        sent = await other.send("T", b"new")
        assert (sent.code, sent.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
        disk.release()
        assert (await deletion).code == ResponseCode.SUCCESS
    assert [message.body for message in await any_peer.messages("T")] == [b"new"]


async def test_a_held_pull_of_a_deleted_topic_is_answered_and_sends_go_on(
    any_broker: Broker, any_peer: Peer
) -> None:
    await any_peer.create_topic("T")
    await any_peer.create_topic("Other")
    async with peer_of(any_broker) as reader:
        held = asyncio.ensure_future(reader.pull("T", suspend_ms=60_000))
        other = asyncio.ensure_future(reader.pull("Other", suspend_ms=600_000))
        await until(lambda: any_broker.parts.store.stats().get("held_pulls", 2) == 2)
        deleted = await any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        any_broker.parts.now_ms.ahead_ms = 60_001  # type: ignore[attr-defined]
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
        assert (await reader.pull("T")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await any_peer.send("Other", b"x")).code == ResponseCode.SUCCESS
        assert (await other).code == ResponseCode.SUCCESS


async def test_sends_and_pulls_survive_a_topic_that_comes_and_goes(
    any_broker: Broker, any_peer: Peer
) -> None:
    codes: set[int] = set()
    stopping = asyncio.Event()

    async def load(work: str, peer: Peer) -> None:
        while not stopping.is_set():
            answer = await (peer.send("T") if work == "send" else peer.pull("T", suspend_ms=20))
            codes.add(answer.code)

    async with peer_of(any_broker) as one, peer_of(any_broker) as two:
        loads = [asyncio.ensure_future(load("send", peer)) for peer in (one, two)]
        loads += [asyncio.ensure_future(load("pull", peer)) for peer in (one, two)]
        for _ in range(20):
            await any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            await any_peer.create_topic("T")
        stopping.set()
        await asyncio.gather(*loads)
    assert codes <= {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.TOPIC_NOT_EXIST,
    }
    low, high = any_broker.parts.store.queue_bounds("T", 0)
    assert len(await any_peer.messages("T", 0)) == min(high - low, 32)
    sent = await any_peer.send("T", b"last")
    got = await any_peer.messages("T", 0, int(sent.ext_fields["queueOffset"]))
    assert [message.body for message in got] == [b"last"]


async def test_a_client_that_comes_back_over_a_new_connection_is_one_member(
    broker: Broker, peer: Peer
) -> None:
    async with peer_of(broker) as again, peer_of(broker) as other:
        await peer.heartbeat("c1", topics={"T": "*"})
        await again.heartbeat("c1", topics={"T": "*"})
        await other.heartbeat("c2", topics={"T": "*"})
        fields = {"consumerGroup": "readers"}
        answer = await other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
        assert loads(answer.body)["consumerIdList"] == ["c1", "c2"]
        # Questions go to the connection that it uses now.
        await again.heartbeat("c1", topics={"T": "*"})
        question = {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": False}
        asked = await other.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, question)
        assert asked.code == ResponseCode.SUCCESS
        codes = [notice.code for notice in again.notices]
        assert RequestCode.GET_CONSUMER_RUNNING_INFO in codes
        # The old connection's end takes nothing from the new one.
        await peer.client.close()
        group = broker.parts.tables.clients.group("readers")
        await until(lambda: group is not None and len(group.members) == 2)
        answer = await other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
        assert loads(answer.body)["consumerIdList"] == ["c1", "c2"]
        assert (await again.pull("TBW102", tags=None)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_connection_that_closes_takes_its_waiting_requests_along(
    any_broker: Broker, any_peer: Peer, disk: Disk
) -> None:
    disk.hold()
    async with peer_of(any_broker) as leaver:
        sends = [asyncio.ensure_future(leaver.send("New", b"%d" % i)) for i in range(3)]
        pull = asyncio.ensure_future(leaver.pull("TBW102", suspend_ms=60_000))
        await until(disk.waiting.is_set)
    await asyncio.gather(*sends, pull, return_exceptions=True)
    assert any_broker._ports._main is not None
    connections = any_broker._ports._main
    await until(lambda: len(connections.connections) <= 1)
    disk.release()
    await until(lambda: any_broker.parts.tables.topics.is_durable("New"))
    assert (await any_peer.send("New", b"after")).code == ResponseCode.SUCCESS


async def test_one_way_sends_that_come_too_early_are_held_back_and_none_is_lost(
    any_broker: Broker, any_peer: Peer, disk: Disk
) -> None:
    disk.hold()
    count, body = 6_000, bytes(5_000)  # more than the buffers of a socket
    fields = {"a": "P", "b": "New", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    command = RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2, {**fields, "i": "", "j": 0}, body=body, oneway=True
    )
    _, writer = await asyncio.open_connection("127.0.0.1", any_broker.port)
    for _ in range(count):
        writer.write(command.encode())
    sent = asyncio.ensure_future(writer.drain())
    await until(disk.waiting.is_set)
    # The sender is stopped by TCP, and others are served meanwhile.
    assert (await any_peer.pull("New")).code == ResponseCode.PULL_NOT_FOUND
    assert not sent.done()
    disk.release()
    await sent
    await until(lambda: any_broker.parts.store.queue_bounds("New", 0)[1] == count)
    writer.close()
    await writer.wait_closed()
