"""Brokers of ours and of RocketMQ 5.3.3 under controllers of both, in one scenario: the master is
killed, and elected, and a controller is killed. Nothing acknowledged is lost, and mqadmin shows
what it shows where all of them are RocketMQ's, or a listed difference.

Without Java, ``tests/unit/controller/test_server.py`` holds what brokers and mqadmin ask our
controllers for, ``tests/unit/broker/roles/test_controlled.py`` what our broker asks, and
``tests/unit/broker/replication`` what brokers of RocketMQ send to each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin, ControllerState
from kerolox.errors import KeroloxError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.bodies import decode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import EpochEntryCache
from kerolox.remoting.client import RemotingClient
from tests.interop.controller_groups import GROUPS, ControllerGroup
from tests.replication.failing_over import TOPIC, Load
from tests.replication.members import Java53Member, Member, OurMember
from tests.support.clients.requests import send_fields
from tests.support.eventually import until
from tests.support.programs import build_broker_53, java_of
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(600),
]

HOST, NAME, CLUSTER = "127.0.0.1", "broker-a", "DefaultCluster"
ROUTE_MS = 500
"""How often clients ask who the master is: a master that is elected away keeps its connections."""
NOISE = re.compile(r"\s*$|\tat |\t\.\.\. \d|\d+:\d+:.*\|-|For more information")
"""Lines of mqadmin about itself."""
CHANGING = re.compile(r"(?<=Offset=)\d+|(?<=LeaderId\t).*|(?<=ControllerGroup\t).*")
"""What differs from run to run."""
TRIES = 5
BIG_BYTES, BIG_COUNT = 3 << 20, 6
"""Of messages that do not fit into the sockets between two brokers."""
BROKERS: dict[str, type[Member]] = {"ours": OurMember, "java": Java53Member}
ALONE = ("dledger", "java", "java")
MIXED = (
    ("dledger", "ours", "ours"),
    ("dledger", "ours", "java"),
    ("dledger", "java", "ours"),
    ("jraft", "ours", "ours"),
    ("jraft", "ours", "java"),
    ("ours", "java", "java"),
    ("ours", "ours", "java"),
    ("ours", "java", "ours"),
)


DIFFERENCES = {
    # These controllers have no names.
    "jraft": {"controllers": "#Peer:\tCONTROLLER"},
    # RocketMQ's say that the election has failed (2012).
    "ours": {"nobody is elected": "CODE: 2010  DESC: BrokerId: 7 hasn't been registered"},
}
"""Step → a part of what is shown instead, by controllers."""


class Site:
    """Controllers, a name server, and two brokers of one name."""

    def __init__(
        self, group: ControllerGroup, namesrv: str, folder: Path, kinds: list[str]
    ) -> None:
        self.group, self.namesrv, self.folder = group, namesrv, folder
        self.admin = Admin(namesrv)
        self.controllers = ";".join(group.addresses)
        settings = {
            "brokerId": -1,
            "brokerRole": "SLAVE",
            "enableControllerMode": "true",
            "controllerAddr": self.controllers,
            "allAckInSyncStateSet": "true",
            "mappedFileSizeCommitLog": 16 << 20,
        }
        self.members = {
            number: BROKERS[kind](
                folder / f"b{number}", namesrv, {**settings, "haListenPort": free_port()}
            )
            for number, kind in enumerate(kinds, 1)
        }
        """By the ids that they get."""
        self.shown: dict[str, str] = {}
        """Step → what mqadmin printed, with names in the place of addresses."""

    async def start(self, number: int) -> None:
        await asyncio.to_thread(self.members[number].start)

    async def show(self, step: str, command: str, *arguments: str) -> None:
        """Keep what a command of mqadmin prints."""
        text = ""
        # On a busy machine it gives an answer up that comes late.
        for _ in range(TRIES):
            text = await self._mqadmin(command, *arguments)
            if "RemotingTimeoutException" not in text:
                break
        for number, member in self.members.items():
            text = text.replace(member.address, f"broker{number}")
        for address in self.group.addresses:
            text = text.replace(address, "CONTROLLER")
        kept = [CHANGING.sub("?", each) for each in text.splitlines() if not NOISE.match(each)]
        self.shown[step] = "\n".join(kept)

    async def _mqadmin(self, *arguments: str) -> str:
        options = (f"-Drocketmq.home.dir={self.folder}", f"-Duser.home={self.folder}")
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        line = java_of(build_broker_53(), main, *arguments, options=options)
        done = await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, timeout=120, check=False
        )
        return str(done.stdout + done.stderr)

    async def show_set(self, step: str) -> None:
        await self.show(step, "getSyncStateSet", "-a", self.controllers, "-b", NAME)

    async def elect(self, step: str, number: int) -> None:
        options = ("-a", self.group.addresses[0], "-bn", NAME, "-c", CLUSTER, "-b", str(number))
        await self.show(step, "electMaster", *options)

    async def until_set(self, master: int, *in_sync: int) -> None:
        """Wait until the controllers have this master and this sync state set."""

        async def has_it() -> bool:
            with contextlib.suppress(KeroloxError):
                found = (await self.admin.sync_state_sets(self.controllers, [NAME])).get(NAME)
                return found is not None and (found.master_id, found.in_sync) == (master, in_sync)
            return False

        await until(has_it, what=f"the master {master} in {in_sync}")

    async def leader(self) -> int:
        """Which controller leads."""
        states = await self.admin.controller_states(self.controllers)
        [leader] = [
            address
            for address, each in states.items()
            if isinstance(each, ControllerState) and each.role == "leader"
        ]
        return self.group.addresses.index(leader)

    async def until_led(self) -> None:
        """Wait until a controller answers that leads."""

        async def is_led() -> bool:
            with contextlib.suppress(KeroloxError):
                return NAME in await self.admin.sync_state_sets(self.controllers, [NAME])
            return False

        await until(is_led, what="a leader")

    async def log(self, number: int) -> EpochEntryCache:
        """The epochs and the end of a broker's log."""
        async with RemotingClient() as client:
            request = RemotingCommand.request(RequestCode.GET_BROKER_EPOCH_CACHE)
            answer = await client.invoke(self.members[number].address, request)
            return decode_body(answer.body, EpochEntryCache)

    async def fill_sockets(self, number: int) -> None:
        """Send a master more than the sockets to a slave that reads nothing hold."""
        end = (await self.log(number)).max_offset
        address = self.members[number].address
        async with RemotingClient() as client:
            for _ in range(BIG_COUNT):
                fields = send_fields(b=TOPIC, e=0)
                request = RemotingCommand.request(
                    RequestCode.SEND_MESSAGE_V2, fields, body=b"x" * BIG_BYTES
                )
                await client.invoke_oneway(address, request)

            async def has_grown() -> bool:
                return (await self.log(number)).max_offset > end + BIG_BYTES * BIG_COUNT

            await until(has_grown)

    async def assert_equal(self) -> None:
        """Nobody sends: both have the same log and the same epochs."""

        async def are_equal() -> bool:
            one, other = await self.log(1), await self.log(2)
            return one.max_offset == other.max_offset

        await until(are_equal, what="the end of the copying")
        one, other = await self.log(1), await self.log(2)
        assert one.epoch_list == other.epoch_list
        assert self._bytes(1, one.max_offset) == self._bytes(2, one.max_offset)

    def _bytes(self, number: int, end: int) -> bytes:
        files = sorted((self.members[number].store / "commitlog").glob("[0-9]*"))
        return b"".join(each.read_bytes() for each in files)[: end - int(files[0].name)]


@contextlib.asynccontextmanager
async def site(folder: Path, controllers: str, *kinds: str) -> AsyncIterator[Site]:
    names = NamesrvConfig(listen_port=0, listen_host=HOST, kv_config_path=folder / "kv.json")
    group = GROUPS[controllers](folder)
    async with group, NameServer(names) as namesrv:
        made = Site(group, f"{HOST}:{namesrv.port}", folder, kinds)
        try:
            async with made.admin:
                yield made
        finally:
            for member in made.members.values():
                member.end()


async def shown_by(folder: Path, controllers: str, *kinds: str) -> dict[str, str]:
    """Play the scenario; what mqadmin shows at each step."""
    async with site(folder, controllers, *kinds) as it:
        await it.start(1)
        await it.until_set(1, 1)
        await it.start(2)
        await it.until_set(1, 1, 2)
        await it.show_set("both are in sync")
        await it.show("controllers", "getControllerMetaData", "-a", it.group.addresses[0])
        load = Load(it.namesrv, route_ms=ROUTE_MS)
        async with load.running():
            await kill_masters(it, load)
            await elect_masters(it, load)
            await kill_a_controller(it, load)
            await until(lambda: load.received >= load.acknowledged.keys(), what="all messages")
        await it.assert_equal()
    return it.shown


async def kill_masters(it: Site, load: Load) -> None:
    """First one whose log has what its slave's lacks, then the other one."""
    await load.more(50)
    it.members[2].pause()
    await it.fill_sockets(1)
    it.members[1].kill()
    it.members[2].resume()
    await it.until_set(2, 2)
    await it.show_set("the first one is killed")
    await load.more(50)
    await it.start(1)
    await it.until_set(2, 1, 2)
    await it.show_set("it is back as a slave")
    it.members[2].kill()
    await it.until_set(1, 1)
    await load.more(50)
    await it.start(2)
    await it.until_set(1, 1, 2)


async def elect_masters(it: Site, load: Load) -> None:
    await it.elect("the slave is elected", 2)
    await it.until_set(2, 1, 2)
    await load.more(50)
    await it.show_set("the slave is the master")
    await it.elect("the master is elected", 2)
    await it.elect("nobody is elected", 7)
    await it.show("epochs", "getBrokerEpoch", "-n", it.namesrv, "-b", NAME)
    brokers = re.split(r"\n(?=#clusterName)", it.shown["epochs"])
    it.shown["epochs"] = "\n".join(sorted(brokers))
    options = ("-a", it.group.addresses[0], "-bn", NAME, "-c", CLUSTER)
    await it.show("a living set is cleaned", "cleanBrokerMetadata", *options)
    await it.show("a living broker is cleaned", "cleanBrokerMetadata", *options, "-b", "1")
    await it.show("unknown", "getSyncStateSet", "-a", it.controllers, "-b", "nobody")


async def kill_a_controller(it: Site, load: Load) -> None:
    """The leading one; then the master. Then all are back.

    Another one leads between the two: controllers with jRaft overlook for good that a broker is
    gone while none of them leads.
    """
    leader = await it.leader()
    await it.group.end(leader)
    await it.until_led()
    await load.more(50)
    it.members[2].kill()
    await it.until_set(1, 1)
    await load.more(50)
    await it.group.start(leader)
    await it.start(2)
    await it.until_set(1, 1, 2)
    await load.more(50)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mqadmin shows where all are RocketMQ's."""
    return asyncio.run(shown_by(tmp_path_factory.mktemp("alone"), *ALONE))


@pytest.mark.parametrize("which", MIXED, ids="-".join)
def test_all_go_on_and_mqadmin_shows_what_it_shows_of_rocketmq_alone(
    which: tuple[str, ...], alone: dict[str, str], tmp_path: Path
) -> None:
    shown = asyncio.run(shown_by(tmp_path, *which))
    differences = DIFFERENCES.get(which[0], {})
    assert shown.keys() == alone.keys()
    for step, text in shown.items():
        if step in differences:
            assert differences[step] in text != alone[step], step
        else:
            assert text == alone[step], step
