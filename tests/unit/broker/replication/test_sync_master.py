"""A SYNC_MASTER answers the same on the fast path and on the slow one, and each in good time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.requests import ROUTER
from kerolox.broker.services.writer import WriteGate
from kerolox.broker.tables.groups import GroupTable
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.records import encode_batch
from tests.support.clients.peer import Peer, peer_of
from tests.support.eventually import SECONDS_MAX, until

from .pairs import (
    RawSlave,
    master_config,
    pair,
    quick_retries,
    raw_slave,
    slave_config,
    until_equal,
)

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

SYNC = {"broker_role": "SYNC_MASTER", "slave_timeout": 20_000}
HALF = {"f": 4, "properties": "TRAN_MSG\x01true\x02PGROUP\x01PG"}


@contextmanager
def slow_path() -> Iterator[None]:
    """No send takes the fast path, and no pull."""
    refresh, push = WriteGate.refresh, GroupTable._push

    def shut(gate: WriteGate) -> None:
        refresh(gate)
        gate._store.set_writable(False)

    def push_slow(table: GroupTable, group: Any) -> None:
        push(table, group)
        table._store.set_group(group.group_name, False, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteGate, "refresh", shut)
        patch.setattr(GroupTable, "_push", push_slow)
        yield


@contextmanager
def counted_codes() -> Iterator[Counter[int]]:
    """How often each code takes the slow path."""
    seen: Counter[int] = Counter()
    dispatch = type(ROUTER).dispatch

    async def counted(self: Any, owner: Any, command: Any, *rest: Any) -> Any:
        seen[command.code] += 1
        return await dispatch(self, owner, command, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ROUTER), "dispatch", counted)
        yield seen


async def each_kind(peer: Peer) -> list[int]:
    """The codes of answers to a message, a batch, a half, and to those of which nobody waits."""
    batch = encode_batch([(0, b"x", b""), (0, b"y", b"")])
    code = RequestCode.SEND_BATCH_MESSAGE
    answers = await asyncio.gather(
        peer.send("T", b"a"),
        peer.send("T", batch, code=code, m="true"),
        peer.send("T", b"b", **HALF),
        peer.send("T", b"c", properties="WAIT\x01false"),
        peer.send("T", batch, code=code, m="true", properties="WAIT\x01false"),
        peer.send("T", b"d" * 3_000),
    )
    return [answer.code for answer in answers]


async def acknowledge_all(slave: RawSlave) -> None:
    slave.report(0)
    while True:
        offset, data = await slave.frame()
        slave.report(offset + len(data))


@asynccontextmanager
async def slave_that(does: str, master: Broker) -> AsyncIterator[None]:
    if does == "is not there":
        yield
        return
    async with raw_slave(master) as slave:
        replicated = master.parts.peers.replication.waits.replicated
        if does == "takes all":
            task = asyncio.ensure_future(acknowledge_all(slave))
        else:
            slave.report(0)
            task = asyncio.ensure_future(slave.is_closed())
        await until(lambda: replicated.slaves == 1)
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


SUCCESS = ResponseCode.SUCCESS
EXPECTED = {
    "is not there": [ResponseCode.SLAVE_NOT_AVAILABLE] * 3 + [SUCCESS] * 2 + [11],
    "takes all": [SUCCESS] * 6,
    "takes nothing": [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3 + [SUCCESS] * 2 + [11],
}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("does", EXPECTED)
async def test_both_paths_answer_alike(tmp_path: Path, kernel: str, does: str, flush: str) -> None:
    found = []
    for path in ("fast", "slow"):
        more: dict[str, Any] = {**SYNC, "flush_disk_type": flush}
        if does == "takes nothing":
            more |= {"slave_timeout": 50, "ha_slave_fallbehind_max": 3_500}
        config = master_config(tmp_path / path, **more)
        with slow_path() if path == "slow" else nullcontext():
            async with Broker(config, kernel=kernel) as master, peer_of(master) as peer:
                await peer.create_topic("T")
                # It makes the topic of halves.
                await peer.send(
                    "T", b"first", properties=HALF["properties"] + "\x02WAIT\x01false", f=4
                )
                with counted_codes() as slow:
                    async with slave_that(does, master):
                        found.append(await each_kind(peer))
                sends = slow[RequestCode.SEND_MESSAGE_V2] + slow[RequestCode.SEND_BATCH_MESSAGE]
                assert sends == (0 if path == "fast" else 6)
    assert found == [EXPECTED[does]] * 2


async def test_a_send_wakes_the_master_and_waits_for_no_look(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.replication.server.POLL_SECONDS", 30.0)
    async with pair(tmp_path, kernel, of_master=SYNC) as (master, slave), peer_of(master) as peer:
        await peer.create_topic("T")
        async with asyncio.timeout(10):
            for number in range(20):
                answer = await peer.send("T", b"%d" % number)
                assert answer.code == ResponseCode.SUCCESS
                assert slave.parts.store.queue_bounds("T", 0)[1] == number + 1


async def test_a_master_without_its_slave_says_so_and_with_it_again_waits(
    tmp_path: Path, kernel: str
) -> None:
    config = master_config(tmp_path, **SYNC)
    async with Broker(config, kernel=kernel) as master, peer_of(master) as peer:
        await peer.create_topic("T")
        for _ in range(2):
            assert (await peer.send("T", b"a")).code == ResponseCode.SLAVE_NOT_AVAILABLE
            async with slave_that("takes all", master):
                assert (await peer.send("T", b"b")).code == ResponseCode.SUCCESS
            await until(lambda: master.parts.peers.replication.waits.replicated.slaves == 0)


async def test_a_stop_answers_sends_that_wait_for_a_slave(tmp_path: Path, kernel: str) -> None:
    """A Java client whose connection closes waits for the whole time of its send."""
    config = master_config(tmp_path, **SYNC)
    master = Broker(config, kernel=kernel)
    await master.start()
    async with slave_that("takes nothing", master), peer_of(master) as peer:
        await peer.create_topic("T")
        end = master.parts.store.max_physical_offset
        sending = asyncio.ensure_future(peer.send("T", b"x"))
        await until(lambda: master.parts.store.max_physical_offset > end)
        await master.stop()
        assert (await sending).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_a_stop_that_waits_for_a_slave_lets_pulls_wait_too(
    tmp_path: Path, kernel: str
) -> None:
    """One that was answered would ask again at once, and again, until the ports close."""
    config = master_config(tmp_path, **SYNC)
    master = Broker(config, kernel=kernel)
    await master.start()
    async with slave_that("takes nothing", master), peer_of(master) as peer:
        answers = 0

        async def pull() -> None:
            nonlocal answers
            while True:
                await peer.pull("Other", suspend_ms=60_000)
                answers += 1

        await peer.create_topic("T")
        await peer.create_topic("Other")
        end = master.parts.store.max_physical_offset
        pulling = asyncio.ensure_future(pull())
        sending = asyncio.ensure_future(peer.send("T", b"x"))
        await until(lambda: master.parts.store.max_physical_offset > end)
        await until(lambda: master.parts.store.stats()["held_pulls"] == 1)
        await master.stop()
        assert (await sending).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        peer.client.disconnect(peer.address)
        with pytest.raises(KeroloxError):
            await pulling
        assert 1 <= answers <= 5


async def test_a_stop_waits_for_a_slave_that_is_on_its_way(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.broker.HELD_SECONDS_MAX", SECONDS_MAX)
    config = master_config(tmp_path, **SYNC)
    master = Broker(config, kernel=kernel)
    await master.start()
    async with raw_slave(master) as slave, peer_of(master) as peer:
        slave.report(0)
        await until(lambda: master.parts.peers.replication.waits.replicated.slaves == 1)
        await peer.create_topic("T")
        sending = asyncio.ensure_future(peer.send("T", b"x"))
        offset, data = await slave.frame()
        stopping = asyncio.ensure_future(master.stop())
        await asyncio.sleep(0)
        slave.report(offset + len(data))
        assert (await sending).code == ResponseCode.SUCCESS
        await stopping


async def test_a_stop_does_not_wait_for_a_slave(tmp_path: Path, kernel: str) -> None:
    config = master_config(tmp_path, **SYNC)
    async with (
        Broker(config, kernel=kernel) as master,
        slave_that("takes nothing", master),
        peer_of(master) as peer,
    ):
        await peer.create_topic("T")
        waiting = asyncio.ensure_future(peer.send("T", b"a"))
        await until(lambda: master.parts.store.queue_bounds("T", 0)[1] == 1)
        async with asyncio.timeout(10):
            await master.stop()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def pulls_of_a_slave(tmp_path: Path, kernel: str) -> tuple[list[Any], Counter[int]]:
    """What a slave answers to pulls that commit, and which codes were slow."""
    async with pair(tmp_path, kernel, of_slave={"slave_read_enable": True}) as (master, slave):
        async with peer_of(master) as peer:
            await peer.create_topic("T")
            await peer.send("T", b"a")
            await peer.pull("T")
        await until_equal(master, slave)
        await slave.parts.peers.replication.tables.sync_from(master.address)
        seen: list[Any] = []
        flags = int(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION)
        async with peer_of(slave) as peer:
            with counted_codes() as slow:
                for offset in (0, 1, 5):
                    answer = await peer.pull("T", offset=offset, sys_flag=flags, commitOffset=1)
                    seen.append((answer.code, answer.ext_fields, len(answer.body)))
        assert slave.parts.tables.offsets.query("readers", "T", 0) == -1
        return seen, slow


async def test_a_slave_that_is_read_answers_fast_and_as_before(tmp_path: Path, kernel: str) -> None:
    fast, codes = await pulls_of_a_slave(tmp_path / "fast", kernel)
    # An offset outside the queue is for the handler.
    assert codes[RequestCode.PULL_MESSAGE] == 1
    with slow_path():
        slow, codes = await pulls_of_a_slave(tmp_path / "slow", kernel)
    assert codes[RequestCode.PULL_MESSAGE] == 3
    assert fast == slow
    assert [code for code, _, _ in fast] == [0, 19, 20]
    assert fast[0][1]["suggestWhichBrokerId"] == "0"


async def test_a_slave_that_is_not_read_answers_by_its_handler(tmp_path: Path, kernel: str) -> None:
    config = slave_config(tmp_path, 1)
    async with Broker(config, kernel=kernel) as slave, peer_of(slave) as peer:
        slave.parts.tables.topics.replace(slave.parts.tables.topics.snapshot())
        with counted_codes() as slow:
            await peer.pull("TBW102")
        assert slow[RequestCode.PULL_MESSAGE] == 1
