"""A Java pair becomes ours part by part, and Java's again, while clients of three kinds send and
consume: none sees an error that its own retries do not mend, and nothing is lost.

It runs with ``KEROLOX_SOFTWARE=all`` alone. The ordinary run holds each part of it:
``tests/docs/test_operations.py`` a Java broker that becomes ours and Java's again under load,
``test_roles.py`` clients of all kinds while roles change, and ``test_pairs.py`` the same files of
pairs with Java."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin
from kerolox.protocol.codes import ResponseCode
from tests.replication.judge import LogFiles, assert_same_files, end_of, until_copied, until_same
from tests.replication.members import KINDS, NameServerProcess, OurMember
from tests.replication.rolling import Diary, clients_of, until_all_came, until_busy
from tests.support.clients.peer import peer_at
from tests.support.eventually import until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.replication.members import Member

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.java,
    pytest.mark.go,
    pytest.mark.software,
    pytest.mark.timeout(600),
]

TOPIC, QUEUES = "Rolling", 4
SHARE = 30
"""Messages of each client that are sent and taken before the next change."""
FILE_SIZE = 1 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "haSendHeartbeatInterval": 500,
    "slaveReadEnable": "true",
}


class Pair:
    """Two folders with a port each; who serves them, and as what, changes."""

    def __init__(self, folder: Path, namesrv: str, diary: Diary) -> None:
        self._folder, self._namesrv, self._diary = folder, namesrv, diary
        self._ports = {place: free_port() for place in "AB"}
        self.members: dict[str, Member] = {}
        self.master = "A"

    @property
    def slave(self) -> str:
        """The place that is not the master's."""
        return "B" if self.master == "A" else "A"

    async def start(self, place: str, kind: str) -> None:
        """Have a broker of a kind serve a place, as what it is now."""
        is_master = place == self.master
        role = {"brokerRole": "SYNC_MASTER", "brokerId": 0}
        if not is_master:
            role = {"brokerRole": "SLAVE", "brokerId": 1}
        settings = {**SETTINGS, **role}
        folder, port = self._folder / place, self._ports[place]
        member = KINDS[kind](folder, self._namesrv, settings, port=port)
        if isinstance(member, OurMember):
            member.keeps_role = False
        self.members[place] = member
        await asyncio.to_thread(member.start)

    async def replace(self, place: str, kind: str) -> None:
        """Stop who serves a place, and go on with one of another kind.

        A Java master stops without answers to what it has read, and a Java client waits for each
        until its time is over: with a Java master that is an error of the client in one of
        about seven stops. So its operators have producers leave it first.
        """
        member = self.members[place]
        if place == self.master and member.kind == "java":
            async with Admin(self._namesrv) as admin:
                await admin.wipe_write_permission("broker-a")
            await until_left(self._diary, member)
        await asyncio.to_thread(member.stop)
        await self.start(place, kind)

    async def change_roles(self) -> None:
        """The slave becomes master by its settings, and the master its slave."""
        old, new = self.members[self.master], self.members[self.slave]
        async with peer_at(old.address) as one, peer_at(new.address) as other:
            await until_same(one, other)
        await asyncio.to_thread(old.stop)
        end = LogFiles(old.store, FILE_SIZE).end
        async with peer_at(new.address) as peer:

            async def has_all() -> bool:
                return await end_of(peer) == end

            await until(has_all, what=f"a slave with all {end} bytes of the master that stopped")
        await asyncio.to_thread(new.stop)
        self.master = self.slave
        await self.start(self.master, new.kind)
        await self.start(self.slave, old.kind)

    async def promote(self) -> None:
        """Master and slave, both ours, change places while they run."""
        async with Admin(self._namesrv) as admin:
            await admin.promote_broker(self.members[self.slave].address)
        self.master = self.slave

    async def settle(self) -> None:
        """Until the slave follows."""
        await until_copied(self.members[self.master], self.members[self.slave])

    def end(self) -> None:
        for member in self.members.values():
            member.end()


async def until_used(diary: Diary, address: str) -> None:
    """Until each client has sent and taken more, and the broker at an address has more."""
    async with peer_at(address) as peer:
        begin = await end_of(peer)

        async def is_written() -> bool:
            return await end_of(peer) > begin

        await until_busy(diary, SHARE)
        await until(is_written, what="more messages on the pair")


async def until_left(diary: Diary, member: Member) -> None:
    """Until Java's client, which sends one message after the other, sends to others only."""

    def sent_to_it() -> int:
        records = LogFiles(member.store, FILE_SIZE).records()
        # The other clients' messages have no keys.
        return sum(b"KEYS\x01" in record.properties for record in records)

    async def is_left() -> bool:
        before = sent_to_it()
        await until_busy(diary, SHARE)
        return sent_to_it() == before

    await until(is_left, what="Java's client with other brokers")


async def test_a_java_pair_becomes_ours_and_javas_again_and_no_client_notes_it(tmp_path: Path):
    diary = Diary(tmp_path / "diary")
    changes: list[int] = []
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(NameServerProcess(tmp_path / "namesrv"))
        other = KINDS["ours"](tmp_path / "other", namesrv.address, {"brokerName": "broker-b"})
        stack.callback(other.end)
        await asyncio.to_thread(other.start)
        pair = Pair(tmp_path, namesrv.address, diary)
        stack.callback(pair.end)
        for place in "AB":
            await pair.start(place, "java")
        for address in (other.address, pair.members["A"].address):
            async with peer_at(address) as peer:
                made = await peer.create_topic(TOPIC, QUEUES)
                assert made.code == ResponseCode.SUCCESS
                await peer.send(TOPIC, b"first")
        await pair.settle()
        clients = stack.enter_context(clients_of(namesrv.address, TOPIC, diary))
        await until_used(diary, pair.members["A"].address)
        for change in (
            pair.replace("B", "ours"),
            pair.replace("A", "ours"),
            pair.change_roles(),
            pair.promote(),
            pair.promote(),
            pair.replace("A", "java"),
            pair.change_roles(),
            pair.replace("B", "java"),
        ):
            # What fails says when it was sent.
            changes.append(int(time.time() * 1_000))
            await change
            await pair.settle()
            await until_used(diary, pair.members[pair.master].address)
        for client in clients:
            await asyncio.to_thread(client.stop_sending)
        await until_all_came(diary)
        await pair.settle()
        await asyncio.to_thread(pair.members["A"].stop)
        await asyncio.to_thread(pair.members["B"].stop)
    assert not diary.words("failed"), (diary.words("failed"), changes)
    one, two = pair.members["A"].store, pair.members["B"].store
    assert_same_files(one, two, LogFiles(one, FILE_SIZE).end, with_java=True)
    counts = {client: len(lines) for client, lines in diary.words("sent").items()}
    print(f"sent {counts}, in {time.monotonic() - began:.0f} s")
