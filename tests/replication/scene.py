"""Masters and slaves on hosts of their own, what goes wrong between and below them, and the load
that they are under meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError
from kerolox.protocol.codes import ResponseCode
from tests.replication.judge import assert_stored, end_of, until_copied
from tests.replication.load import CONCURRENCY, DELAYS, QUEUES, TOPICS, Load
from tests.replication.members import KINDS, NameServerProcess
from tests.support.clients.peer import peer_at
from tests.support.eventually import until
from tests.support.faults.network import Network
from tests.support.faults.small_disk import MountedDisk, small_disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from pathlib import Path

    from tests.replication.members import Member

__all__ = ["FILE_SIZE", "RECOVERY_SECONDS_MAX", "Scene", "scene_of"]

MIB = 1 << 20
FILE_SIZE = 2 * MIB
DISK_BYTES = 192 * MIB
BYTES_A_SECOND = MIB // 2
RECOVERY_SECONDS_MAX = 120.0
"""From the end of a fault until all is well again, on any machine; what it took is printed."""
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "messageDelayLevel": DELAYS,
    "flushDelayOffsetInterval": 500,
    "slaveReadEnable": "true",
}


class Scene:
    """A SYNC_MASTER with its slaves under load.

    Attributes:
        network: each broker is on a host of it, the load on this process's own.
        disks: of the brokers, the master's first.
        seconds: from the end of each fault until all was well.
        codes: answers meanwhile, by fault.
    """

    def __init__(
        self, network: Network, members: Sequence[Member], disks: Sequence[MountedDisk], load: Load
    ) -> None:
        self.network, self.disks, self.load = network, disks, load
        self.master, *self.slaves = members
        self.seconds: dict[str, float] = {}
        self.codes: dict[str, dict[int, int]] = {}
        self._mark = self._looked_at = 0

    # -- faults -----------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def bad_lines(
        self, slaves: Sequence[int], *, delay: float = 0.0, loss: float = 0.0, cut: bool = False
    ) -> AsyncIterator[None]:
        """Between the master and some of the slaves: packets are late or lost."""
        master, *hosts = self.network.hosts
        for number in slaves:
            fault = {"delay_seconds": delay, "loss": loss}
            self.network.set(master, hosts[number], is_cut=cut, **fault)
        yield
        for number in slaves:
            self.network.set(master, hosts[number])

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """The master is cut from everybody."""
        master, *others = self.network.hosts
        for other in (self.network.own, *others):
            self.network.set(master, other, is_cut=True)
        yield
        for other in (self.network.own, *others):
            self.network.set(master, other)

    @contextlib.asynccontextmanager
    async def paused(self, *members: Member) -> AsyncIterator[None]:
        """They stand still, and their connections stay."""
        for member in members:
            member.pause()
        yield
        for member in members:
            member.resume()

    @contextlib.asynccontextmanager
    async def dead(self, *members: Member) -> AsyncIterator[None]:
        """They are killed, and started again."""
        for member in members:
            await asyncio.to_thread(member.kill)
        yield
        for member in members:
            await asyncio.to_thread(member.start)

    @contextlib.asynccontextmanager
    async def full(self, *members: int) -> AsyncIterator[None]:
        """Their disks are full; 0 is the master's."""
        for number in members:
            await asyncio.to_thread(self.disks[number].fill)
        yield
        for number in members:
            self.disks[number].free()

    # -- judgement --------------------------------------------------------------------------
    async def through(
        self,
        name: str,
        fault: contextlib.AbstractAsyncContextManager[None],
        *,
        must: Collection[int] = (),
        may: Collection[int] = (),
        refuses: bool = False,
        late: int | None = None,
        seconds: float = 1.0,
    ) -> None:
        """A fault under load: its answers, what they are worth, and that all is well again.

        Args:
            name: of the fault.
            fault: it is on while this is entered.
            must: codes that answers have until it ends; a success is of a send amid it.
            may: others that they can have.
            refuses: the master stores nothing until it ends.
            late: a slave that comes to be behind.
            seconds: how long it lasts at least.
        """
        begin = len(self.load.acknowledged)
        refused = self.load.refused.total()
        loop = asyncio.get_running_loop()
        async with fault:
            until_then = loop.time() + seconds
            # So many may have been under way before: a success amid the fault comes later.
            amid = len(self.load.acknowledged) + CONCURRENCY

            async def is_seen() -> bool:
                acknowledged = self.load.acknowledged
                codes = {each.code for each in acknowledged[begin:]} - {ResponseCode.SUCCESS}
                codes |= {each.code for each in acknowledged[amid:]}
                is_refused = self.load.refused.total() > refused or not refuses
                is_late = late is None or await self._is_behind(self.slaves[late])
                return codes >= set(must) and is_refused and is_late and loop.time() >= until_then

            try:
                await until(is_seen, what=f"{name}: answers {set(must)}")
            except AssertionError as error:
                seen = Counter(each.code for each in self.load.acknowledged[begin:])
                raise AssertionError(f"{error}; there were {dict(seen)}") from None
            # What it says is on a slave is there now, whatever comes next.
            await asyncio.to_thread(self.look)
        ended = loop.time()
        during = self.load.acknowledged[begin:]
        await until(self.is_well, seconds=RECOVERY_SECONDS_MAX, what=f"{name}: all well")
        self.seconds[name] = round(loop.time() - ended, 1)
        codes = [each.code for each in during]
        self.codes[name] = {code: codes.count(code) for code in sorted(set(codes))}
        assert set(codes) <= {*must, *may}, f"{name}: {self.codes[name]}"

    async def _is_behind(self, slave: Member) -> bool:
        async with peer_at(self.master.address) as one, peer_at(slave.address) as other:
            return await end_of(other) < await end_of(one) - FILE_SIZE

    def look(self) -> None:
        """Each message that was answered with success since the last time is on a slave."""
        fresh = self.load.acknowledged[self._looked_at :]
        self._looked_at += len(fresh)
        ok = [each for each in fresh if each.code == ResponseCode.SUCCESS]
        assert_stored(ok, [slave.store for slave in self.slaves], FILE_SIZE)

    async def is_well(self) -> bool:
        """The master's answers are a success, and every slave goes on with it."""
        fresh = self.load.acknowledged[-20:]
        now = asyncio.get_running_loop().time()
        if {each.code for each in fresh} != {ResponseCode.SUCCESS} or fresh[-1].answered < now - 1:
            return False
        try:
            async with peer_at(self.master.address) as peer:
                mark = await end_of(peer)
            for slave in self.slaves:
                async with peer_at(slave.address) as peer:
                    if await end_of(peer) < mark:
                        return False
        except KeroloxError:
            return False
        return True


@contextlib.asynccontextmanager
async def scene_of(
    kinds: Sequence[str], folder: Path, settings: Mapping[str, object]
) -> AsyncIterator[Scene]:
    """A master and slaves of some kinds, each on a host and a disk of its own, and a load."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(len(kinds)))
        own = network.own.address
        namesrv = stack.enter_context(NameServerProcess(folder / "namesrv", host=own))
        members, disks = [], []
        for number, (kind, host) in enumerate(zip(kinds, network.hosts, strict=True)):
            place = folder / f"{number}-{kind}"
            disk = small_disk("tmpfs", place / "store", folder, size=DISK_BYTES)
            made = stack.enter_context(disk)
            assert isinstance(made, MountedDisk)
            role = {"brokerRole": "SLAVE" if number else "SYNC_MASTER", "brokerId": number}
            member = KINDS[kind](
                place,
                namesrv.address,
                {**SETTINGS, **role, **settings},
                host=host.address,
                prefix=host.prefix,
            )
            stack.callback(member.end)
            await asyncio.to_thread(member.start)
            members.append(member)
            disks.append(made)
        master = members[0]
        async with peer_at(master.address) as peer:
            for topic in TOPICS:
                assert (await peer.create_topic(topic, QUEUES)).code == ResponseCode.SUCCESS
            await peer.send(TOPICS[0], b"first")
        # A Java slave that began later would not have the first files.
        for slave in members[1:]:
            await until_copied(master, slave)
        async with Load(master.address, bytes_a_second=BYTES_A_SECOND) as load:
            scene = Scene(network, members, disks, load)
            await until(scene.is_well, what="a load that is copied")
            yield scene
