"""Three members on one event loop, with real files; the network is a list of who hears whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.support.eventually import until

from kerolox.controller import storage as storage_module
from kerolox.controller.group import RaftGroup
from kerolox.controller.raft.messages import Message
from kerolox.controller.raft.raft import NotLeaderError, Raft
from kerolox.controller.storage import RaftStorage

pytestmark = pytest.mark.asyncio

MEMBERS = {"n0": "a", "n1": "b", "n2": "c"}
TICK_SECONDS = 0.01


class Texts:
    """A state machine: all texts that were applied."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def apply(self, data: bytes) -> int:
        self.texts.append(data)
        return len(self.texts)

    def encode(self) -> bytes:
        return b"\n".join(self.texts)

    def restore(self, data: bytes) -> None:
        self.texts = data.split(b"\n") if data else []


class Groups:
    """The members that run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, tuple[RaftGroup, RaftStorage, Texts]] = {}

    def start(self, node_id: str) -> None:
        storage = RaftStorage(self.folder / node_id, group="g", node_id=node_id)
        storage.open(MEMBERS)
        raft = Raft(
            node_id,
            hard_state=storage.hard_state,
            snapshot=storage.snapshot,
            entries=storage.entries,
            random=Random(node_id),
        )
        texts = Texts()
        group = RaftGroup(raft, storage, texts, self.send, tick_seconds=TICK_SECONDS)
        self.running[node_id] = group, storage, texts
        group.start()

    async def stop(self, node_id: str) -> None:
        group, storage, _ = self.running.pop(node_id)
        await group.stop()
        storage.close()

    def send(self, message: Message) -> None:
        if message.to in self.running:
            asyncio.get_running_loop().call_soon(self.deliver, message)

    def deliver(self, message: Message) -> None:
        if message.to in self.running:
            self.running[message.to][0].step(message)

    async def leader(self) -> RaftGroup:
        def leaders() -> list[RaftGroup]:
            return [group for group, _, _ in self.running.values() if group.is_leader]

        await until(leaders, what="a leader")
        return leaders()[0]

    def texts(self, node_id: str) -> list[bytes]:
        return self.running[node_id][2].texts


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Groups]:
    groups = Groups(folder)
    for node_id in MEMBERS:
        groups.start(node_id)
    try:
        yield groups
    finally:
        for node_id in list(groups.running):
            await groups.stop(node_id)


async def test_what_was_acknowledged_outlives_each_leader(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    async with running(tmp_path) as groups:
        for round_number in range(3):
            leader = await groups.leader()
            for number in range(5):
                text = b"%d-%d" % (round_number, number)
                assert await leader.propose(text) == len(acknowledged) + 1
                acknowledged.append(text)
            begin = time.monotonic()
            await groups.stop(leader.raft.node_id)
            await groups.leader()
            # Twenty ticks, a lost election, and a machine that is busy.
            assert time.monotonic() - begin < 300 * TICK_SECONDS
            groups.start(leader.raft.node_id)
        last = await groups.leader()
        await last.confirm_read()
        assert groups.texts(last.raft.node_id) == acknowledged
        for node_id in MEMBERS:
            await until(
                lambda node_id=node_id: groups.texts(node_id) == acknowledged,
                what="equal state machines",
            )


async def test_a_follower_takes_no_proposal_and_no_read(tmp_path: Path) -> None:
    async with running(tmp_path) as groups:
        leader = await groups.leader()
        follower = next(g for g, _, _ in groups.running.values() if g is not leader)
        with pytest.raises(NotLeaderError, match="is no leader"):
            await follower.propose(b"x")
        with pytest.raises(NotLeaderError, match="is no leader"):
            await follower.confirm_read()


async def test_a_leader_alone_confirms_no_read(tmp_path: Path) -> None:
    async with running(tmp_path) as groups:
        leader = await groups.leader()
        for node_id in MEMBERS.keys() - {leader.raft.node_id}:
            await groups.stop(node_id)
        with pytest.raises(NotLeaderError, match="no leader any more"):
            await leader.confirm_read()


async def test_a_long_log_becomes_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "LOG_BYTES_MAX", 2_000)
    async with running(tmp_path) as groups:
        leader = await groups.leader()
        late = next(each for each in MEMBERS if each != leader.raft.node_id)
        await groups.stop(late)
        for number in range(40):
            await leader.propose(b"%d" % number)
        assert leader.raft.log.snapshot.index > 1
        groups.start(late)
        await until(lambda: len(groups.texts(late)) == 40, what="the snapshot's state")


async def test_a_disk_that_fails_ends_the_part_of_its_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as groups:
        leader = await groups.leader()
        storage = groups.running[leader.raft.node_id][1]

        def fail(_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(storage, "save", fail)
        with pytest.raises(NotLeaderError, match="its disk failed"):
            await leader.propose(b"x")
        assert not leader.is_leader
        assert (await groups.leader()) is not leader
