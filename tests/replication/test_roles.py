"""Roles that change under load, in processes of their own: back and forth, with kills of either at
each step. There is one master at most, and all that was acknowledged is there, once where nothing
was killed."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kerolox.admin import Access, Admin, BrokerRole
from kerolox.client import Producer, ProducerSettings, PullConsumer
from kerolox.errors import ClientError, KeroloxError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.bodies import decode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.extensions.roles import RoleStatus
from kerolox.remoting.client import RemotingClient
from tests.replication.members import NameServerProcess, OurMember
from tests.replication.rolling import Diary, clients_of, until_all_came, until_busy
from tests.support.clients.peer import peer_at
from tests.support.eventually import SECONDS_MAX, until
from tests.support.faults.proxy import Proxy
from tests.support.programs import java_command
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.command import kerolox

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

NAME, TOPIC, QUEUES = "broker-a", "T", 4
RETRY_SECONDS = 0.1
PAUSE_SECONDS = 0.01
"""Between two messages of a sender: four of them are some hundred a second, amid each step."""
STEPS = (
    "takes its master's tables",
    "comes near",
    "is paused",
    "reaches the end",
    "once more",
    "becomes a slave",
    "becomes the master",
    "all slaves follow",
)


class Pair:
    """Two brokers of one name, and a way to them."""

    def __init__(self, admin: Admin, namesrv: str, one: OurMember, two: OurMember) -> None:
        self.admin, self.namesrv = admin, namesrv
        self.members = {one.address: one, two.address: two}
        self.one, self.two = one, two

    async def roles(self) -> dict[str, BrokerRole]:
        """What those are that answer."""
        found = {}
        for address in self.members:
            with contextlib.suppress(KeroloxError):
                found[address] = await self.admin.broker_role(address)
        return found

    async def until_settled(self) -> str:
        """Wait until both answer and no pause is left; the master's address, or nothing."""
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            roles = await self.roles()
            masters = [at for at, each in roles.items() if each.role != "SLAVE"]
            assert len([at for at in masters if not roles[at].newer_epoch]) <= 1, roles
            is_calm = not any(roles[at].is_paused for at in masters)
            follows = all(each.is_following for each in roles.values() if each.role == "SLAVE")
            if len(roles) == 2 and is_calm and (follows or not masters):
                return masters[0] if masters else ""
            await asyncio.sleep(0.05)
        raise AssertionError(f"{await self.roles()}")

    async def until_known(self, slave: OurMember) -> None:
        """Wait until a slave knows what its master is."""
        async with peer_at(slave.address) as peer:

            async def is_known() -> bool:
                answer = await peer.ask(RequestCode.GET_BROKER_ROLE)
                return decode_body(answer.body, RoleStatus).master_role == "SYNC_MASTER"

            await until(is_known, what="a slave that knows what its master is")

    async def bodies(self) -> list[list[bytes]]:
        """What the topic has, by queue."""
        found = []
        async with PullConsumer("lookers", self.namesrv) as consumer:
            for number in range(QUEUES):
                queue, offset = MessageQueue(TOPIC, NAME, number), 0
                found.append([])
                while (result := await consumer.pull(queue, offset)).messages:
                    found[-1] += [each.body for each in result.messages]
                    offset = result.next_offset
        return found


@contextlib.contextmanager
def name_servers(folder: Path, kinds: Sequence[str]) -> Iterator[list[str]]:
    """The addresses of name servers of some kinds."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for kind in kinds:
            if kind == "ours":
                ours = stack.enter_context(NameServerProcess(folder / "namesrv"))
                addresses.append(ours.address)
            else:
                java = stack.enter_context(JavaPeer(folder / "java-namesrv", with_broker=False))
                addresses.append(f"127.0.0.1:{java.namesrv_port}")
        yield addresses


@contextlib.asynccontextmanager
async def pair_of(
    folder: Path,
    kinds: Sequence[str] = ("ours",),
    *,
    proxies: Sequence[Proxy] = (),
    attributes: Mapping[str, str] | None = None,
) -> AsyncIterator[Pair]:
    """A pair, and name servers of some kinds. ``proxies``: clients reach each of the pair through
    one. ``attributes``: of the topic."""
    with name_servers(folder, kinds) as addresses:
        namesrv = ";".join(addresses)
        quick = {"haSendHeartbeatInterval": 200, "mappedFileSizeCommitLog": 1 << 20}
        one = OurMember(folder / "one", namesrv, {"brokerRole": "SYNC_MASTER", **quick})
        slave = {"brokerRole": "SLAVE", "brokerId": 1, **quick}
        two = OurMember(folder / "two", namesrv, slave)
        for member, proxy in zip((one, two), proxies, strict=False):
            proxy.target = (member.host, member.port)
            member.settings["advertisedAddress"] = proxy.address
        try:
            one.start()
            two.start()
            async with RemotingClient() as client:
                admin = Admin.on(Access(client, tuple(addresses)))
                pair = Pair(admin, namesrv, one, two)
                assert await pair.until_settled() == one.address
                made = {"queues": QUEUES, "attributes": attributes}
                await admin.create_topic(TOPIC, broker=one.address, **made)
                yield pair
        finally:
            one.end()
            two.end()


class Load:
    """Senders, each of which keeps the order of its messages in a queue of its own."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.acknowledged: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.failures: list[KeroloxError] = []
        self._is_over = False

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    async def until(self, count: int) -> None:
        await until(lambda: self.count >= count)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        settings = ProducerSettings(send_timeout_ms=10_000)
        async with Producer("PG", self.namesrv, settings=settings) as producer:
            senders = [asyncio.create_task(self._send(producer, n)) for n in range(QUEUES)]
            try:
                yield
            finally:
                self._is_over = True
                await asyncio.gather(*senders)

    async def _send(self, producer: Producer, number: int) -> None:
        count = 0
        while not self._is_over:
            body = b"%d %d" % (number, count)
            count += 1
            try:
                await producer.send(Message(TOPIC, body), queue=MessageQueue(TOPIC, NAME, number))
            except KeroloxError as error:
                self.failures.append(error)
                # As an application that tries again, but not all the time.
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.acknowledged[number].append(body)
                await asyncio.sleep(PAUSE_SECONDS)


async def test_ten_changes_under_load_lose_nothing_and_no_sender_sees_an_error(
    tmp_path: Path,
) -> None:
    async with pair_of(tmp_path) as pair:
        load = Load(pair.namesrv)
        async with load.running():
            await load.until(100)
            for turn in range(10):
                new = (pair.two, pair.one)[turn % 2]
                changed = await pair.admin.promote_broker(new.address)
                assert (changed.master, changed.epoch) == (new.address, turn + 1)
                assert await pair.until_settled() == new.address
                await load.until(load.count + 40)
        assert load.failures == []
        # Once, and in the order in which they were sent.
        assert await pair.bodies() == load.acknowledged


async def test_a_dry_run_says_who_becomes_what_and_changes_nothing(tmp_path: Path) -> None:
    async with pair_of(tmp_path) as pair:
        master, slave = pair.one.address, pair.two.address

        async def said(*words: str) -> str:
            done = await asyncio.to_thread(kerolox, "broker", *words, "-n", pair.namesrv)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout

        plan = (
            f"{slave} would be the master of {NAME}, with all messages\n"
            f"{master} would be its slave\n"
            "nothing was changed (--dry-run)\n"
        )
        assert await said("promote", f"{NAME}@1", "--dry-run") == plan
        assert await said("demote", NAME, "--dry-run") == plan
        assert await said("demote", NAME, "--to", f"{NAME}@1", "--dry-run") == plan
        alone = await said("demote", NAME, "--without-master", "--dry-run")
        assert alone.startswith(f"{master} would be a slave; nobody takes its place\n")
        retire = ("broker", "retire", NAME, "--force", "--dry-run", "-n", pair.namesrv)
        retired = await asyncio.to_thread(kerolox, *retire)
        assert f"{master} would get no new messages" in retired.stderr
        assert await pair.until_settled() == master
        assert (await pair.admin.broker_role(master)).epoch == 0
        assert f"{slave} is the master of {NAME}" in await said("promote", f"{NAME}@1")
        assert await pair.until_settled() == slave


@pytest.mark.parametrize("victim", ["master", "slave"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_a_step_leaves_one_master_at_most_and_loses_nothing(
    tmp_path: Path, step: str, victim: str
) -> None:
    async with pair_of(tmp_path) as pair:
        member = pair.one if victim == "master" else pair.two
        load = Load(pair.namesrv)
        done: list[str] = []

        def kill(text: str) -> None:
            # "takes its master's tables once more" is a later one.
            if step in text and (step != STEPS[0] or not done) and member.is_alive():
                member.kill()
            done.append(text)

        async with load.running():
            await load.until(50)
            with contextlib.suppress(ClientError):
                await pair.admin.promote_broker(pair.two.address, on_step=kill)
            assert not member.is_alive()
            member.start()
            master = await pair.until_settled()
            if not master:
                # Both have all of it.
                changed = await pair.admin.promote_broker(pair.two.address, accept_loss=True)
                master = changed.master
                assert await pair.until_settled() == master
            await load.until(load.count + 20)
        stored = await pair.bodies()
        for number in range(QUEUES):
            assert set(load.acknowledged[number]) <= set(stored[number])


@pytest.mark.java
@pytest.mark.xdist_group("java")
async def test_a_java_application_sees_no_error_while_roles_change(tmp_path: Path) -> None:
    # Its client asks for routes every 30 s, so most of what it sends goes to former masters.
    command = java_command("interop.Steady")
    async with pair_of(tmp_path) as pair:
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*command, pair.namesrv, TOPIC, **pipes)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while (line := await process.stdout.readline()) != b"sending\n":
                assert line, "it ended"
            for turn in range(4):
                new = (pair.two, pair.one)[turn % 2]
                await pair.admin.promote_broker(new.address)
                assert await pair.until_settled() == new.address
            process.stdin.close()
            printed = (await process.stdout.read()).decode()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        counts = dict(re.findall(r"^(errors|sent|missing)\t(\d+)$", printed, re.MULTILINE))
        assert counts.keys() == {"errors", "sent", "missing"}, printed
        assert (counts["errors"], counts["missing"]) == ("0", "0"), printed
        assert int(counts["sent"]) > 20


@pytest.mark.java
@pytest.mark.go
@pytest.mark.xdist_group("java")
@pytest.mark.parametrize(
    "kinds",
    [("java",), pytest.param(("ours", "java"), marks=pytest.mark.software)],
    ids="-and-".join,
)
async def test_clients_of_all_languages_see_no_error_at_java_name_servers(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    """Beside one of ours with ``KEROLOX_SOFTWARE=all``: ours alone are in the tests above."""
    diary = Diary(tmp_path / "diary")
    async with pair_of(tmp_path, kinds) as pair:
        with clients_of(pair.namesrv, TOPIC, diary) as clients:
            await until_busy(diary, 30)
            for turn in range(4):
                new = (pair.two, pair.one)[turn % 2]
                await pair.admin.promote_broker(new.address)
                assert await pair.until_settled() == new.address
                await until_busy(diary, 30)
            for client in clients:
                await asyncio.to_thread(client.stop_sending)
            await until_all_came(diary)
        assert not diary.words("failed"), diary.words("failed")
        # The master is gone without a word, and comes back.
        old, new = pair.one, pair.two
        await pair.until_known(new)
        old.kill()

        async def is_promoted() -> bool:
            with contextlib.suppress(ClientError):
                await pair.admin.promote_broker(new.address)
            return (await pair.roles())[new.address].role == "SYNC_MASTER"

        await until(is_promoted, what="name servers that miss the master")
        old.start()
        assert await pair.until_settled() == new.address
        roles = await pair.roles()
        assert roles[old.address].role == "SLAVE"
        assert roles[old.address].epoch == roles[new.address].epoch > 4
