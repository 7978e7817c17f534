"""Attributes of topics in a pair with a Java broker of 4.9, which knows none."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.replication.judge import until_copied
from tests.replication.members import JavaMember, NameServerProcess, OurMember
from tests.support.clients.peer import peer_at
from tests.support.eventually import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replication.members import Member

pytestmark = [pytest.mark.asyncio, pytest.mark.java, pytest.mark.timeout(600)]

SECONDS_MAX = 120
"""A Java slave takes its master's tables each ten seconds."""
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 60_000}
MASTER = {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}
FIFO = {"message.type": "FIFO"}


async def topics(member: Member) -> dict[str, dict[str, object]]:
    async with peer_at(member.address) as peer:
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table: dict[str, dict[str, object]] = fastjson.loads(answer.body)["topicConfigTable"]
        return table


async def until_topic(member: Member, topic: str) -> dict[str, object]:
    """What a broker has of a topic, once it has it."""

    async def is_there() -> bool:
        return topic in await topics(member)

    await until(is_there, seconds=SECONDS_MAX, what=f"topic {topic} at {member.kind}")
    return (await topics(member))[topic]


async def make(member: Member, topic: str) -> None:
    async with peer_at(member.address) as peer:
        answer = await peer.create_topic(topic, attributes="+message.type=FIFO")
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.send(topic, b"x")).code == ResponseCode.SUCCESS


async def begin(member: Member, role: dict[str, object]) -> None:
    member.settings.update(role)
    await asyncio.to_thread(member.start)


async def test_a_topic_has_its_attributes_again_after_a_java_master(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(NameServerProcess(tmp_path / "namesrv")).address
        ours = OurMember(tmp_path / "ours", namesrv, SMALL)
        java = JavaMember(tmp_path / "java", namesrv, SMALL)
        for member in (ours, java):
            stack.callback(member.end)
        await begin(ours, MASTER)
        await make(ours, "T")
        await begin(java, SLAVE)
        await until_copied(ours, java, SECONDS_MAX)
        assert "attributes" not in await until_topic(java, "T")
        for member in (ours, java):
            await asyncio.to_thread(member.stop)
        await begin(java, MASTER)
        await make(java, "OfJava")
        await begin(ours, SLAVE)
        assert "attributes" not in await until_topic(ours, "OfJava")
        assert (await topics(ours))["T"]["attributes"] == FIFO
        await until_copied(java, ours, SECONDS_MAX)
        for member in (ours, java):
            await asyncio.to_thread(member.stop)
        await begin(ours, MASTER)
        assert (await topics(ours))["T"]["attributes"] == FIFO
