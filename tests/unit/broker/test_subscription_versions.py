"""Whose subscription counts in a group, whatever the clocks of its members and the broker say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.tables import subscriptions as module
from kerolox.broker.tables.subscriptions import Changes, GroupSubscriptions
from kerolox.errors import ClientClosedError
from kerolox.message import encode_properties, tags_code
from kerolox.protocol.bodies import SubscriptionData
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until
from tests.support.slices import each_step_is_a_turn

NOW = 1_700_000_000_000
HOUR = 3_600_000
GO_VERSION = NOW * 1_000_000
"""Go's clients count nanoseconds."""


def of(tag: str, version: int, topic: str = "T") -> SubscriptionData:
    codes = [] if tag == "*" else [tags_code(tag)]
    return SubscriptionData(topic=topic, sub_string=tag, sub_version=version, code_set=codes)


def all_of(steps: Iterator[Changes]) -> None:
    for _ in steps:
        pass


class Group:
    """A group's subscriptions, told under a clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = NOW
        self.table = GroupSubscriptions()

    def declare(self, member: str, *wanted: SubscriptionData, client_id: str = "") -> None:
        self.now += 1
        all_of(self.table.declare(member, client_id or member, wanted, self.now))

    def leave(self, member: str) -> None:
        all_of(self.table.leave(member, member))

    @property
    def counts(self) -> str | None:
        found = self.table.current.get("T")
        return None if found is None else found.sub_string


def test_a_change_counts_though_its_version_is_lower() -> None:
    group = Group()
    group.declare("c", of("a", NOW))
    group.declare("c", of("b", NOW - HOUR))
    assert group.counts == "b"
    assert group.table.newest["T"] == NOW, "pulls that were made before are no earlier than this"
    group.declare("c", of("b", NOW - HOUR))
    group.declare("c", of("a", NOW - 2 * HOUR))
    assert group.counts == "a"


def test_the_others_subscription_counts_when_the_member_that_was_later_left() -> None:
    group = Group()
    group.declare("ahead", of("a", NOW + HOUR))
    group.declare("right", of("b", NOW - 1))
    assert group.counts == "a"
    group.leave("ahead")
    assert group.counts == "b"
    group.leave("right")
    assert group.counts is None
    assert (group.table.count, group.table.size, group.table.newest) == (0, 0, {})


@pytest.mark.parametrize("ahead", [NOW + HOUR, GO_VERSION, 2**63 - 1])
def test_no_version_makes_a_subscription_later_than_its_arrival(ahead: int) -> None:
    group = Group()
    group.declare("ahead", of("a", ahead))
    group.now += 60_000
    group.declare("next", of("b", NOW + 30_000))
    assert group.counts == "b"


def test_new_members_count_by_their_versions_as_after_a_restart() -> None:
    group = Group()
    group.declare("later", of("b", NOW - 1_000))
    group.declare("earlier", of("a", NOW - 2_000))
    assert group.counts == "b"
    group.declare("latest", of("c", NOW - 500))
    assert group.counts == "c"
    group.leave("latest")
    assert group.counts == "b"


def test_what_a_member_repeats_does_not_undo_the_change_of_another() -> None:
    group = Group()
    group.declare("x", of("a", NOW))
    group.declare("y", of("a", NOW + 5))
    group.declare("x", of("b", NOW - HOUR))
    group.declare("y", of("a", NOW + 5))
    assert group.counts == "b"
    group.declare("y", of("a", NOW + 6))
    assert group.counts == "a", "it subscribed anew"


def test_a_change_after_a_reconnect_counts_beside_the_old_connection() -> None:
    group = Group()
    group.declare("connection 1", of("a", NOW), client_id="c")
    group.declare("connection 2", of("b", NOW - HOUR), client_id="c")
    assert group.counts == "b"
    group.leave("connection 1")
    assert group.counts == "b"


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_step_of_the_brokers_clock_changes_no_order(step: int) -> None:
    group = Group()
    group.declare("c", of("a", NOW))
    group.declare("d", of("a", NOW))
    group.now += step
    group.declare("c", of("b", NOW + 10))
    assert group.counts == "b"
    group.declare("new", of("n", NOW + 20 + max(step, 0)))
    assert group.counts == "n"
    group.declare("d", of("c", NOW + 30))
    assert group.counts == "c"


def test_a_topic_stays_as_long_as_a_member_wants_it() -> None:
    group = Group()
    group.declare("x", of("a", NOW), of("*", NOW, "U"))
    group.declare("y", of("a", NOW + 1))
    assert set(group.table.current) == {"T", "U"}
    group.declare("x", of("a", NOW))
    assert set(group.table.current) == {"T"}


def test_growth_says_what_a_heartbeat_adds_and_no_more() -> None:
    group = Group()
    tellings: list[tuple[str, tuple[SubscriptionData, ...]]] = [
        ("x", (of("a", 1), of("*", 1, "U"))),
        ("y", (of("a", 2),)),
        ("y", (of("long" * 100, 3),)),
        ("x", (of("b", 0), of("*", 2, "V"))),
        ("y", ()),
    ]
    table = group.table
    for member, wanted in tellings:
        growth = table.growth(member, wanted)
        before = table.count, table.size
        group.declare(member, *wanted)
        assert (table.count, table.size) == (before[0] + growth[0], before[1] + growth[1])
    assert table.growth("z", (of("c", 1),)).fullest == 2


def test_a_step_changes_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_PER_STEP", 3)
    table = GroupSubscriptions()
    wanted = [of("a", 1, f"T{number}") for number in range(8)]
    others = [of("b", 2, f"T{number}") for number in range(4, 12)]
    updated = [
        [len(changes.updated) for changes in steps]
        for steps in (
            table.declare("c", "c", wanted, 1),
            table.declare("c", "c", others, 2),
            table.leave("c", "c"),
        )
    ]
    assert updated == [[3, 3, 2], [3, 3, 2, 3, 1], [3, 3, 2]]
    assert (table.is_empty, table.current, table.count, table.size) == (True, {}, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_members_that_declare_and_leave_at_the_same_time_end_as_if_in_turn(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each said last counts, whatever was said between its steps."""
    monkeypatch.setattr(module, "TOPICS_PER_STEP", 2)
    chance = random.Random(seed)
    table = GroupSubscriptions()
    begun: list[Iterator[Changes]] = []
    last: dict[str, dict[str, str]] = {}
    for now in range(60):
        member = chance.choice("xyz")
        if chance.random() < 0.25:
            last.pop(member, None)
            begun.append(table.leave(member, member))
        else:
            last[member] = {
                topic: chance.choice("ab") for topic in "STUVW" if chance.random() < 0.7
            }
            wanted = [of(tag, now, topic) for topic, tag in last[member].items()]
            begun.append(table.declare(member, member, wanted, NOW + now))
        next(begun[-1], None)
        for _ in range(chance.randrange(3)):
            next(chance.choice(begun), None)
    for steps in begun:
        all_of(steps)
    in_turn = Group()
    for member, topics in last.items():
        in_turn.declare(member, *(of(tag, 0, topic) for topic, tag in topics.items()))
    assert (table.count, table.size) == (in_turn.table.count, in_turn.table.size)
    assert table.current.keys() == in_turn.table.current.keys() == table.newest.keys()
    for topic, subscription in table.current.items():
        assert subscription.sub_string in {each.get(topic) for each in last.values()}
    for member in last:
        all_of(table.leave(member, member))
    assert (table.is_empty, table.current, table.count, table.size) == (True, {}, 0, 0)


# -- brokers with clients of their own ------------------------------------------------------------


class Member:
    """A client of Java's shape: it reports tags, and pulls without them."""

    def __init__(self, peer: Peer, client_id: str) -> None:
        self.peer, self.client_id = peer, client_id
        self.version = 0
        self.offset = 0

    async def wants(self, expression: str, version: int, kind: str = "TAG") -> None:
        self.version = version
        more: dict[str, Any] = {"expression_type": kind}
        if kind == "TAG":
            tags = expression.split("||")
            more |= {"tags": tags, "codes": [tags_code(tag) for tag in tags]}
        answer = await self.peer.heartbeat(
            self.client_id, topics={"T": expression}, version=version, **more
        )
        assert answer.code == ResponseCode.SUCCESS

    async def pull(self, suspend_ms: int = 0) -> RemotingCommand:
        flags = int(PullSysFlag.SUSPEND) if suspend_ms else 0
        answer = await self.peer.pull(
            "T", 0, self.offset, tags=None, sys_flag=flags, subVersion=self.version,
            suspendTimeoutMillis=suspend_ms,
        )  # fmt: skip
        self.offset = int(answer.ext_fields.get("nextBeginOffset", self.offset))
        return answer

    async def gets(self) -> list[bytes]:
        """All that it gets until there is nothing more."""
        found: list[bytes] = []
        while (answer := await self.pull()).code in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        ):
            if answer.code == ResponseCode.SUCCESS:
                found += [each.body for each in decode_records(answer.body)]
        assert answer.code == ResponseCode.PULL_NOT_FOUND, answer.remark
        return found


@asynccontextmanager
async def member(broker: Broker, client_id: str) -> AsyncIterator[Member]:
    async with peer_of(broker) as peer:
        yield Member(peer, client_id)


async def send(peer: Peer, *tags: str) -> None:
    for tag in tags:
        text = encode_properties({"TAGS": tag, "n": str(ord(tag))})
        assert (await peer.send("T", tag.encode(), properties=text)).code == ResponseCode.SUCCESS


KINDS = [("TAG", "a", "b"), ("SQL92", "n = 97", "n = 98")]


@pytest.mark.parametrize(("kind", "a", "b"), KINDS)
async def test_a_member_whose_clock_was_set_back_gets_what_it_wants_now(
    tmp_path: Path, kernel: str, kind: str, a: str, b: str
) -> None:
    config = small_config(tmp_path, enable_property_filter=True)
    async with Broker(config, kernel=kernel) as broker, member(broker, "c") as one:
        await one.peer.create_topic("T")
        await one.wants(a, NOW, kind)
        held = asyncio.create_task(one.pull(suspend_ms=60_000))
        stats = broker.parts.store.stats
        await until(lambda: stats()["held_pulls"] or broker.parts.arrivals.count)
        await one.wants(b, NOW - HOUR, kind)
        await send(one.peer, "b", "a", "b")
        answer = await held
        found = [each.body for each in decode_records(answer.body)] if answer.body else []
        assert found + await one.gets() == [b"b", b"b"]
        # And once more: with the same clock, and after the broker forgot everybody.
        await one.wants(a, NOW - 2 * HOUR, kind)
        await send(one.peer, "b", "a")
        assert await one.gets() == [b"a"]
    async with Broker(config, kernel=kernel) as broker, member(broker, "c") as again:
        again.offset = one.offset
        await again.wants(b, NOW - 3 * HOUR, kind)
        await send(again.peer, "a", "b")
        assert await again.gets() == [b"b"]


@pytest.mark.parametrize(("kind", "a", "b"), KINDS)
@pytest.mark.parametrize("leaves_well", [True, False])
async def test_the_member_that_is_left_gets_what_it_wants(
    tmp_path: Path, kernel: str, kind: str, a: str, b: str, leaves_well: bool
) -> None:
    config = small_config(tmp_path, enable_property_filter=True)
    async with Broker(config, kernel=kernel) as broker, member(broker, "right") as right:
        await right.peer.create_topic("T")
        await right.wants(b, NOW, kind)
        async with member(broker, "ahead") as ahead:
            await ahead.wants(a, NOW + HOUR, kind)
            held = asyncio.create_task(right.pull(suspend_ms=60_000))
            stats = broker.parts.store.stats
            await until(lambda: stats()["held_pulls"] or broker.parts.arrivals.count)
            if leaves_well:
                leaving = {"clientID": "ahead", "consumerGroup": "readers"}
                await ahead.peer.ask(RequestCode.UNREGISTER_CLIENT, leaving)
        online = broker.parts.tables.clients.group("readers")
        assert online is not None
        await until(lambda: len(online.members) == 1)
        await send(right.peer, "b", "a", "b")
        answer = await held
        found = [each.body for each in decode_records(answer.body)] if answer.body else []
        assert found + await right.gets() == [b"b", b"b"]


async def test_two_members_may_pull_with_versions_of_their_own(tmp_path: Path, kernel: str) -> None:
    async with (
        Broker(small_config(tmp_path), kernel=kernel) as broker,
        member(broker, "java") as java,
        member(broker, "go") as go,
    ):
        await java.peer.create_topic("T")
        await go.wants("a", GO_VERSION)
        await java.wants("a", NOW)
        await send(java.peer, "a", "b")
        assert await java.gets() == await go.gets() == [b"a"]
        await java.wants("b", NOW - HOUR)
        java.offset = go.offset = 0
        assert await java.gets() == await go.gets() == [b"b"]
        java.version = GO_VERSION + 1
        assert (await java.pull()).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_the_ways_in_which_a_group_wants_a_topic_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.tables.clients.WANTED_MAX", 2)
    assert module.WANTED_MAX > 100
    async with (
        Broker(small_config(tmp_path)) as broker,
        peer_of(broker) as one,
        peer_of(broker) as two,
        peer_of(broker) as three,
    ):
        await one.heartbeat("1", topics={"T": "a"}, version=1)
        await two.heartbeat("2", topics={"T": "b"}, version=2)
        refused = await three.heartbeat("3", topics={"T": "c"}, version=3)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "there are 2 ways in which its group wants a topic already" in (refused.remark or "")
        assert (await three.heartbeat("3", topics={"T": "a"}, version=3)).code == 0
        assert (await two.heartbeat("2", topics={"T": "c"}, version=0)).code == 0


async def test_others_are_served_while_a_heartbeat_of_many_topics_is_taken(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later heartbeat of the connection, its end and other members come between the steps."""
    monkeypatch.setattr("kerolox.broker.requests.client.TOPICS_PER_STEP", 2)
    monkeypatch.setattr(module, "TOPICS_PER_STEP", 2)
    each_step_is_a_turn(monkeypatch)
    table = broker.parts.tables.clients

    def wanted() -> int:
        found = table.group("readers")
        return 0 if found is None else len(found.subscriptions)

    many = {f"T{number}": "*" for number in range(1_000)}
    async with peer_of(broker) as one, peer_of(broker) as two:
        long = asyncio.create_task(one.heartbeat("c", topics=many))
        await until(wanted)
        assert wanted() < 1_000
        waiting = asyncio.create_task(two.heartbeat("d", topics=many))
        assert (await peer.heartbeat("e", topics={"own": "*"})).code == ResponseCode.SUCCESS
        assert 0 < wanted() < 1_000
        later = await one.heartbeat("c", topics={"later": "*"}, version=2)
        assert later.code == (await long).code == ResponseCode.SUCCESS
        assert not waiting.done()
        found = table.group("readers")
        assert found is not None
        assert {"later", "own"} <= found.subscriptions.keys()
        assert (await waiting).code == ResponseCode.SUCCESS
        assert wanted() == 1_002
        leaving = asyncio.create_task(
            two.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "d", "consumerGroup": "readers"})
        )
        await until(lambda: wanted() < 1_000)
        assert wanted() > 2
        assert (await leaving).code == ResponseCode.SUCCESS
        assert found.subscriptions.keys() == {"later", "own"}
        await two.heartbeat("d", topics=many)
        cut_off = asyncio.create_task(two.heartbeat("d", topics={each + "x": "*" for each in many}))
        await until(lambda: "T0x" in found.subscriptions)
    with pytest.raises(ClientClosedError):
        await cut_off
    await until(lambda: found.subscriptions.keys() == {"own"})
    await peer.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "e", "consumerGroup": "readers"})
    assert (table._bytes, table._members, table._subscriptions) == (0, 0, 0)
