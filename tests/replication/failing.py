"""Two brokers under controllers, each on a host and a disk of its own, whose master fails while
producers of Java, Go and ours send: how long each waits, and what of the acknowledged is there.

Brokers and controllers are ours or RocketMQ's 5.3.3 (:data:`KINDS`). Controllers share a host; the
name server and the producers are on this process's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import KeroloxError
from kerolox.message import MessageId
from kerolox.protocol.bodies import decode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    EpochEntryCache,
    GetMetaDataResponseHeader,
    GetReplicaInfoHeader,
    MasterHeader,
    SyncStateSet,
)
from kerolox.remoting.client import RemotingClient
from tests.replication.judge import end_of
from tests.replication.members import ControllerProcess, Java53Member, NameServerProcess, OurMember
from tests.support.clients.peer import peer_at
from tests.support.eventually import SECONDS_MAX, until
from tests.support.faults.network import Network
from tests.support.faults.small_disk import MountedDisk, small_disk
from tests.support.growing import GrowingFile
from tests.support.programs import build_broker_53, build_go_clients, java_command
from tests.support.servers.clusters import JavaPeer, start_java
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from tests.replication.members import Member
    from tests.support.faults.network import Host

__all__ = ["CLIENTS", "FAULTS", "KINDS", "PROFILES", "Ack", "FailingSet", "Profile", "failing_set"]

KINDS = ("ours", "java")
CLIENTS = ("java", "go", "ours")
FAULTS = ("kill", "restart", "pause", "cut", "island", "disk")
"""``restart``: a kill, and a start at once, as a supervisor does it. ``cut``: the master reaches
nobody. ``island``: it reaches clients and the name server, but neither a controller nor the other
broker."""

NAME, TOPIC, QUEUES = "broker-a", "Orders", 4
MIB = 1 << 20
DISK_BYTES = 256 * MIB
ACKS_BETWEEN = 20
"""Of each client, before the next fault."""
SHOWN_SECONDS_MAX = 30.0
WHOLE_SECONDS_MAX = 60.0
"""From the end of a fault until both are in sync again."""
SETTINGS = {
    "brokerName": NAME,
    "brokerId": -1,
    "brokerRole": "SLAVE",
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "mappedFileSizeCommitLog": 2 * MIB,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "vipPortEnable": "false",
    # A test's disk is small: nothing goes before its time.
    "diskMaxUsedSpaceRatio": 95,
    "cleanFileForciblyEnable": "false",
    "diskSpaceWarningLevelRatio": 0.9,
    "timerWheelEnable": "false",
    "slaveReadEnable": "true",
}


@dataclass(frozen=True)
class Profile:
    """Settings of clients and servers. Times are milliseconds; 0: the defaults of each."""

    name: str
    route_ms: int = 0
    send_ms: int = 0
    brokers: Mapping[str, object] = field(default_factory=dict)
    controllers: Mapping[str, object] = field(default_factory=dict)


PROFILES = {
    "default": Profile("default"),
    "guide": Profile(
        "guide",
        route_ms=200,
        send_ms=500,
        # RocketMQ's brokers and controllers take times for them as they are.
        brokers={"controllerHeartBeatTimeoutMills": 1_000, "brokerHeartbeatInterval": 250},
        controllers={"scanNotActiveBrokerInterval": 200},
    ),
}


class Ack(NamedTuple):
    """A send that was acknowledged."""

    client: str
    body: str
    queue: int
    offset: int
    address: str
    """Of the broker that stored it."""
    position: int
    """Where it is in the log."""
    ms: int
    """Unix time."""


class Waits(NamedTuple):
    """A failure of a master."""

    seconds: dict[str, float]
    """By client: from the fault, or from a later answer of the old master, to the first send that
    the new one acknowledged; infinite: none was within the patience."""
    elected: float
    """Seconds from the fault until a controller named another master."""


class Journal:
    """What the producers wrote into one file; each line is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GrowingFile(path)
        self.acks: list[Ack] = []
        self.failures: dict[str, list[str]] = defaultdict(list)

    def update(self) -> list[Ack]:
        """All acknowledgements until now, in the order of their lines."""
        for line in self._file.new_lines():
            kind, client, rest = line.split(" ", 2)
            if kind != "sent":
                self.failures[client].append(rest)
                continue
            body, queue, offset, message_id, ms = rest.split(" ")
            place = MessageId.parse(message_id)
            address = f"{place.host}:{place.port}"
            self.acks.append(
                Ack(client, body, int(queue), int(offset), address, place.physical_offset, int(ms))
            )
        return self.acks


class JavaController(ControllerProcess):
    """A controller of RocketMQ 5.3.3."""

    def __enter__(self) -> Self:
        (self.folder / "home").mkdir(parents=True)
        settings = {"controllerStorePath": self.folder / "raft", **self.settings}
        self._process = start_java(
            self.folder,
            "controller",
            "controller.ControllerStartup",
            [f"{key}={value}" for key, value in settings.items()],
            built=build_broker_53,
            options=(),
            prefix=self.prefix,
        )
        return self


def _controllers(
    kind: str, folder: Path, host: Host, count: int, settings: Mapping[str, object]
) -> dict[str, ControllerProcess]:
    """Controllers that are not started yet, by their addresses."""
    addresses = [f"{host.address}:{free_port()}" for _ in range(count)]
    common = {
        "controllerDLegerGroup": "controllers",
        "controllerDLegerPeers": ";".join(f"n{n}-{each}" for n, each in enumerate(addresses)),
        **settings,
    }
    if kind == "ours":
        common["controllerSecret"] = "failing"
    made = {"ours": ControllerProcess, "java": JavaController}[kind]
    return {
        address: made(
            folder / f"controller-{number}",
            {**common, "controllerDLegerSelfId": f"n{number}"},
            host=host.address,
            prefix=host.prefix,
        )
        for number, address in enumerate(addresses)
    }


@contextlib.contextmanager
def _name_server(kind: str, folder: Path, host: str) -> Iterator[str]:
    """The address of one that runs."""
    if kind == "ours":
        with NameServerProcess(folder, host=host) as made:
            yield made.address
    else:
        with JavaPeer(folder, with_broker=False, built=build_broker_53) as peer:
            yield f"{host}:{peer.namesrv_port}"


@contextlib.contextmanager
def _producers(
    namesrv: str, path: Path, profile: Profile
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One of each of :data:`CLIENTS`, which send until the end."""
    of_go = [str(profile.send_ms)] if profile.send_ms else []
    times = [str(profile.route_ms), *of_go] if profile.send_ms else []
    to = [namesrv, TOPIC, str(path)]
    commands = (
        java_command("interop.Sending", *to, *times),
        [str(build_go_clients()), namesrv, "sending", TOPIC, str(path), *of_go],
        [sys.executable, "-m", "tests.replication.sender", *to, *times],
    )
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with path.with_suffix(f".{len(running)}").open("wb") as output:
                running.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
                )
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


class FailingSet:
    """A set of two brokers under load.

    Attributes:
        members: its brokers.
        journal: what the producers have noted.
        producers: their processes.
        helped: how often a broker did not come back into the set by itself.
    """

    def __init__(
        self,
        network: Network,
        members: Sequence[Member],
        disks: Sequence[MountedDisk],
        controllers: Sequence[str],
        journal: Journal,
    ) -> None:
        self.members, self.journal = members, journal
        self._network, self._disks = network, disks
        self._controllers = controllers
        self._leader = controllers[0]
        self._client = RemotingClient(connect_timeout_seconds=1)
        self.producers: list[subprocess.Popen[bytes]] = []
        self.helped = 0

    async def close(self) -> None:
        """Close the connections to the controllers."""
        await self._client.close()

    # -- what the controllers say -------------------------------------------------------------
    async def replica_info(self) -> tuple[str, int]:
        """The address of the master, empty without one, and how many are in sync."""
        ask = RemotingCommand.request(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoHeader(broker_name=NAME).encode()
        )
        with contextlib.suppress(KeroloxError, OSError):
            answer = await self._client.invoke(self._leader, ask, timeout_seconds=2)
            if answer.code == ResponseCode.SUCCESS:
                header = MasterHeader.decode(answer.ext_fields)
                in_sync = decode_body(answer.body, SyncStateSet).sync_state_set
                return header.master_address or "", len(in_sync)
        for address in self._controllers:
            told = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
            with contextlib.suppress(KeroloxError, OSError):
                answer = await self._client.invoke(address, told, timeout_seconds=2)
                found = GetMetaDataResponseHeader.decode(answer.ext_fields)
                self._leader = found.controller_leader_address or self._leader
                break
        return "", 0

    async def until_whole(self) -> int:
        """Wait until there is a master and both are in sync; the number of the master. Where that
        does not come, the other broker is started again, which counts in ``helped``."""
        try:
            return await self._whole()
        except AssertionError:
            self.helped += 1
            for member in self.members:
                if member.address != (await self.replica_info())[0]:
                    await asyncio.to_thread(member.end)
                    await asyncio.to_thread(member.start)
            return await self._whole()

    async def _whole(self) -> int:
        found = ""

        async def is_whole() -> bool:
            nonlocal found
            found, count = await self.replica_info()
            return bool(found) and count == len(self.members)

        await until(is_whole, seconds=WHOLE_SECONDS_MAX, what="a sync state set of both")
        return next(n for n, member in enumerate(self.members) if member.address == found)

    # -- faults -------------------------------------------------------------------------------
    async def _begin(self, fault: str, number: int) -> None:
        match fault:
            case "kill":
                await asyncio.to_thread(self.members[number].kill)
            case "restart":
                await asyncio.to_thread(self.members[number].kill)
                await asyncio.to_thread(self.members[number].start)
            case "pause":
                self.members[number].pause()
            case "cut" | "island":
                self._cut(fault, number, is_cut=True)
            case "disk":
                await asyncio.to_thread(self._disks[number].fill)

    async def _end(self, fault: str, number: int) -> None:
        member = self.members[number]
        match fault:
            case "pause":
                member.resume()
            case "cut" | "island":
                self._cut(fault, number, is_cut=False)
            case "disk":
                self._disks[number].free()
        if fault == "kill" or member.process.poll() is not None:
            await asyncio.to_thread(member.end)
            await asyncio.to_thread(member.start)

    def _cut(self, fault: str, number: int, *, is_cut: bool) -> None:
        *brokers, of_controllers = self._network.hosts
        others = [brokers[1 - number], of_controllers]
        if fault == "cut":
            others.append(self._network.own)
        for other in others:
            self._network.set(brokers[number], other, is_cut=is_cut)

    async def fail(self, fault: str, patience: float = SECONDS_MAX) -> Waits:
        """Have the master fail, and be well again when all producers have gone on, or nothing more
        is expected."""
        old = await self.until_whole()
        await self.until_busy()
        lost = self.members[old].address
        begin = time.time()
        await self._begin(fault, old)
        elected = float("inf")

        async def have_all_gone_on() -> bool:
            nonlocal elected
            if elected == float("inf"):
                master, _ = await self.replica_info()
                if master not in ("", lost):
                    elected = time.time() - begin
            return set(self._first_acks(begin, lost)) == set(CLIENTS)

        with contextlib.suppress(AssertionError):
            await until(have_all_gone_on, seconds=patience)
        first = self._first_acks(begin, lost)
        seconds = {client: float("inf") for client in CLIENTS}
        for client, ms in first.items():
            earlier = (
                each.ms
                for each in self.journal.acks
                if each.client == client and each.address == lost and each.ms < ms
            )
            seconds[client] = (ms - max(begin * 1000, *earlier)) / 1000
        await self._end(fault, old)
        return Waits(seconds, elected)

    def _first_acks(self, begin: float, lost: str) -> dict[str, int]:
        first: dict[str, int] = {}
        for each in self.journal.update():
            if each.ms >= begin * 1000 and each.address != lost:
                first.setdefault(each.client, each.ms)
        return first

    async def until_busy(self) -> None:
        """Wait until each producer has some more acknowledgements."""
        before = len(self.journal.update())

        def is_busy() -> bool:
            fresh = [each.client for each in self.journal.update()[before:]]
            return all(fresh.count(client) >= ACKS_BETWEEN for client in CLIENTS)

        await until(is_busy, what="sends of all producers")

    async def stop_sending(self) -> None:
        """End the producers: what they noted until now is all."""
        for process in self.producers:
            assert process.poll() is None, f"{process.args} has ended: {process.returncode}"
            await asyncio.to_thread(process.communicate)

    # -- judgement ----------------------------------------------------------------------------
    async def until_equal(self) -> None:
        """Nobody sends: wait until both logs end alike."""

        async def are_equal() -> bool:
            ends = set()
            for member in self.members:
                async with peer_at(member.address) as peer:
                    ends.add(await end_of(peer))
            return len(ends) == 1

        await until(are_equal, what="logs that end alike")

    async def lost(self, number: int) -> list[Ack]:
        """What was acknowledged and is not in its place on a broker. A slave shows the last record
        when it hears that it is confirmed, which may be a moment later."""
        found: list[Ack] = []

        async def is_nothing_lost() -> bool:
            nonlocal found
            stored = await self._stored(number)
            acks = self.journal.update()
            found = [each for each in acks if stored.get((each.queue, each.offset)) != each.body]
            return not found

        with contextlib.suppress(AssertionError):
            await until(is_nothing_lost, seconds=SHOWN_SECONDS_MAX)
        return found

    async def _stored(self, number: int) -> dict[tuple[int, int], str]:
        """Body by queue and offset: all that a broker shows."""
        stored: dict[tuple[int, int], str] = {}
        async with peer_at(self.members[number].address) as peer:
            for queue in range(QUEUES):
                offset = 0
                while messages := await peer.messages(TOPIC, queue, offset):
                    for each in messages:
                        stored[queue, each.queue_offset] = each.body.decode()
                    offset = messages[-1].queue_offset + 1
        return stored

    async def two_masters(self, number: int) -> list[str]:
        """What shows that two brokers acknowledged in one epoch, by a broker's epochs; empty:
        nothing does."""
        async with peer_at(self.members[number].address) as peer:
            answer = await peer.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
        epochs = decode_body(answer.body, EpochEntryCache).epoch_list
        masters: dict[int, set[str]] = defaultdict(set)
        places: dict[int, Ack] = {}
        found = []
        for ack in self.journal.update():
            epoch = max(each.epoch for each in epochs if each.start_offset <= ack.position)
            masters[epoch].add(ack.address)
            if (other := places.setdefault(ack.position, ack)) is not ack:
                found.append(f"{ack} and {other} have one place")
        found += [f"epoch {epoch}: {who}" for epoch, who in masters.items() if len(who) > 1]
        return found


@contextlib.asynccontextmanager
async def failing_set(
    kind: str, folder: Path, profile: Profile, *, controllers: int = 3
) -> AsyncIterator[FailingSet]:
    """Two brokers of a kind under controllers of that kind, and producers that send."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(3))
        own = network.own.address
        namesrv = stack.enter_context(_name_server(kind, folder / "namesrv", own))
        *brokers, of_controllers = network.hosts
        group = _controllers(kind, folder, of_controllers, controllers, profile.controllers)
        for each in group.values():
            await asyncio.to_thread(stack.enter_context, each)
        settings = {**SETTINGS, **profile.brokers, "controllerAddr": ";".join(group)}
        members: list[Member] = []
        disks: list[MountedDisk] = []
        made = {"ours": OurMember, "java": Java53Member}[kind]
        for number, host in enumerate(brokers):
            place = folder / f"broker-{number}"
            disk = stack.enter_context(
                small_disk("tmpfs", place / "store", folder, size=DISK_BYTES)
            )
            assert isinstance(disk, MountedDisk)
            disks.append(disk)
            more = {"haListenPort": free_port()} if kind == "java" else {}
            member = made(
                place, namesrv, {**settings, **more}, host=host.address, prefix=host.prefix
            )
            members.append(member)
            stack.callback(member.end)
            await asyncio.to_thread(member.start)
        journal = Journal(folder / "journal")
        failing = FailingSet(network, members, disks, list(group), journal)
        try:
            master = await failing.until_whole()
            await _create_topic(members, master)
            with _producers(namesrv, journal.path, profile) as failing.producers:
                await failing.until_busy()
                yield failing
        finally:
            await failing.close()


async def _create_topic(members: Sequence[Member], master: int) -> None:
    """A slave of RocketMQ hears of topics every 10 s only."""
    async with peer_at(members[master].address) as peer:
        assert (await peer.create_topic(TOPIC, QUEUES)).code == ResponseCode.SUCCESS

    async def is_known() -> bool:
        async with peer_at(members[1 - master].address) as peer:
            answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            return TOPIC.encode() in answer.body

    await until(is_known, what="the topic at the slave")
