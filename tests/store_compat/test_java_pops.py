"""One store, a broker of RocketMQ 5.3.3 and ours in turn: what either has popped and not
acknowledged comes again at the other, or is still out there for who has it."""

from __future__ import annotations

import logging
import re
import shutil
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import ResponseCode
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.clients.pops import Member, PoppedMessage
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.programs import build_broker_53
from tests.support.servers.clusters import JavaPeer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.asyncio]

LONG_MS, SHORT_MS = 600_000, 500
SIZES = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 1_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 40_000,
}
LINES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=40000",
)


@asynccontextmanager
async def java_member(data: Path) -> AsyncIterator[Member]:
    """A member of the group at a Java broker that has a store."""
    with JavaPeer(data, settings=LINES, with_namesrv=False, built=build_broker_53) as java:
        client = RemotingClient()
        try:
            yield Member(Peer(f"127.0.0.1:{java.port}", client))
        finally:
            await client.close()


@asynccontextmanager
async def our_member(data: Path, kernel: str) -> AsyncIterator[tuple[Broker, Member]]:
    """A member of the group at ours that has the store."""
    config = small_config(data, broker_name="broker-a", **SIZES)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        yield broker, Member(peer)


async def popped(member: Member, count: int, invisible_ms: int = LONG_MS) -> list[PoppedMessage]:
    """So many messages, taken for so long."""
    member.invisible_ms = invisible_ms
    found: list[PoppedMessage] = []

    async def come() -> bool:
        found.extend(await member.pop(count - len(found), bornTime=int(time.time() * 1000)))
        return len(found) >= count

    await until(come, what=f"{count} messages")
    return found


def texts(messages: list[PoppedMessage]) -> list[str]:
    return sorted(each.text for each in messages)


async def test_what_either_broker_has_out_is_lost_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    async with java_member(data) as member:
        assert (await member.peer.create_topic("T", 2)).code == ResponseCode.SUCCESS
        for number in range(12):
            await member.peer.send("T", b"%d" % number, queue_id=number % 2)
        held = await popped(member, 4)
        await member.ack_all([held[0], held[2]])
        changed = await member.change(held[1], LONG_MS)
        assert changed.code == ResponseCode.SUCCESS, changed.remark
        overdue = await popped(member, 3, SHORT_MS)
    acknowledged = {held[0].text, held[2].text}

    for kernel in KERNELS:
        copy = tmp_path / kernel
        shutil.copytree(data, copy)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="kerolox.broker.services.java_pops"):
            async with our_member(copy, kernel) as (broker, member):
                told = re.search(r"taken over from a RocketMQ broker: (\d) messages", caplog.text)
                # What was overdue the Java broker may have copied to the retries as it stopped.
                assert told is not None
                assert 2 <= int(told[1]) <= 5
                assert "0 records of its revive log can't be read" in caplog.text
                queues = broker.parts.tables.pops.state.queues
                again = await popped(member, 8)
                new = {str(number) for number in range(12)} - {each.text for each in held}
                assert texts(again) == sorted(new)
                # Its receipt counts here.
                assert (await member.ack(held[3])).code == ResponseCode.SUCCESS
                assert queues.out == 9
            caplog.clear()
            # What is out is in a file of ours from now on.
            async with our_member(copy, kernel) as (broker, member):
                assert broker.parts.tables.pops.state.queues.out == 9
                assert await member.pop() == []
                await member.ack_all(again[:2])
            assert "taken over" not in caplog.text
    acknowledged |= {held[3].text, *(each.text for each in again[:2])}
    expected = {str(number) for number in range(12)} - acknowledged
    assert {each.text for each in overdue} & expected

    async with java_member(tmp_path / KERNELS[-1]) as member:
        found: set[str] = set()

        async def come() -> bool:
            messages = await member.pop(bornTime=int(time.time() * 1000))
            found.update(each.text for each in messages)
            return expected <= found

        await until(come, what="what was out at ours")
