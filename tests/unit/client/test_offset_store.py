from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.client.aio.consumers.offset_store import BrokerOffsets, LocalOffsets
from kerolox.client.aio.network.cluster import Cluster
from kerolox.errors import ClientError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.member_offsets import MEMBER_FIELD
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

UPDATE, QUERY = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def store(folder: Path) -> LocalOffsets:
    return LocalOffsets(folder, "1.2.3.4@DEFAULT", "group")


async def test_offsets_survive_in_the_folder_of_client_and_group(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert await first.load(Q0) == -1
    first.table.update(Q0, 5, increase_only=True)
    await first.persist([Q0, Q1])
    assert (tmp_path / "1.2.3.4@DEFAULT" / "group" / "offsets.json").exists()
    second = store(tmp_path)
    assert await second.load(Q0) == 5
    assert second.table.read(Q0) == 5


async def test_other_queues_of_the_file_are_kept(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    first.table.update(Q0, 5, increase_only=True)
    second.table.update(Q1, 6, increase_only=True)
    await first.persist([Q0])
    await second.persist([Q1])
    third = store(tmp_path)
    assert (await third.load(Q0), await third.load(Q1)) == (5, 6)


async def test_a_torn_file_falls_back_to_its_backup(tmp_path: Path) -> None:
    first = store(tmp_path)
    for offset in (5, 6):
        first.table.update(Q0, offset, increase_only=True)
        await first.persist([Q0])
    first.path.write_bytes(b'{"offsetTa')
    assert await store(tmp_path).load(Q0) == 5
    first.path.unlink()
    assert await store(tmp_path).load(Q0) == 5


async def test_two_unreadable_files_are_an_error_and_stay_as_they_are(tmp_path: Path) -> None:
    broken = store(tmp_path)
    broken.path.parent.mkdir(parents=True)
    for path in (broken.path, broken.path.with_name("offsets.json.bak")):
        path.write_bytes(b"{")
    with pytest.raises(ClientError, match=r"offsets\.json"):
        await broken.load(Q0)
    broken.table.update(Q0, 5, increase_only=True)
    await broken.persist([Q0])
    assert broken.path.read_bytes() == b"{"


class BlackHole(FakeBroker):
    """Takes requests of one code and answers none of them until the test lets it."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.answers[code] = self.swallow
        self.open = asyncio.Event()

    async def __aenter__(self) -> BlackHole:
        await super().__aenter__()
        return self

    async def swallow(self, command: RemotingCommand) -> RemotingCommand | None:
        await self.open.wait()
        return self._default(command)

    async def __aexit__(self, *_: object) -> None:
        self.open.set()
        await super().__aexit__()


async def test_a_broker_that_does_not_answer_holds_up_no_offset_of_another() -> None:
    async with BlackHole(UPDATE) as hole, FakeBroker() as good:
        good.routes["T"] = route_body({"a": hole.address, "b": good.address})
        cluster = Cluster((good.address,), client_id="me", api_timeout_ms=600_000)
        await cluster.refresh("T")
        store = BrokerOffsets(cluster, "group")
        queues = [MessageQueue("T", name, number) for name in "ab" for number in range(4)]
        for queue in queues:
            store.table.update(queue, 7, increase_only=True)
        storing = asyncio.ensure_future(store.persist(queues, wait=True))
        await until(lambda: len(good.committed) == 4)
        assert not storing.done()
        hole.open.set()
        await storing
        await cluster.close()


async def test_a_broker_that_does_not_answer_is_given_up_after_one_time_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kerolox.client.aio.consumers.offset_store.OFFSETS_IN_FLIGHT_MAX", 2)
    async with BlackHole(UPDATE) as hole, FakeBroker() as names:
        names.routes["T"] = route_body({"a": hole.address})
        cluster = Cluster((names.address,), client_id="me", api_timeout_ms=300)
        await cluster.refresh("T")
        store = BrokerOffsets(cluster, "group")
        queues = [MessageQueue("T", "a", number) for number in range(6)]
        for queue in queues:
            store.table.update(queue, 7, increase_only=True)
        await store.persist(queues, wait=True)
        assert len(hole.seen[UPDATE]) == 2
        assert f"not all offsets of 6 queues were stored at {hole.address}" in caplog.text
        # What the broker says of one queue is about that one alone.
        hole.open.set()
        await store.persist(queues, wait=True)
        assert len(hole.committed) == 6
        assert all(each.ext_fields[MEMBER_FIELD] == "true" for each in hole.seen[UPDATE])
        await cluster.close()


async def test_a_broker_that_does_not_answer_holds_up_no_queue_of_another() -> None:
    async with BlackHole(QUERY) as hole, QueueBroker() as good:
        good.routes["T"] = route_body({"a": hole.address, "b": good.address}, queues=1)
        good.count = 1
        consumer = Consumer(good, api_timeout_ms=600_000)
        hole.members = good.members
        starting = asyncio.ensure_future(consumer.start())
        await until(lambda: consumer.got)
        assert not starting.done()
        hole.open.set()
        await starting
        await consumer.close()
