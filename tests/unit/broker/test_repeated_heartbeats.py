"""A heartbeat that repeats the one before is only noted: nobody can tell that from taking it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.broker.broker import Broker
from kerolox.broker.tables.clients import ClientTable
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.server import ServerConnection
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

CLIENTS = 3

Step = tuple[int, int | str]
"""Which client, and what it does: one of BEATS by its index, or one of ACTS."""

BEATS: list[dict[str, Any]] = [
    {"client_id": "one", "group": "g", "topics": {"T": "*"}, "producers": ["p"]},
    {
        "client_id": "one",
        "group": "g",
        "topics": {"T": "*"},
        "producers": ["p"],
        "mq_version": 253,
    },
    {"client_id": "one", "group": "g", "topics": {"T": "a"}, "codes": [97], "version": 2},
    {"client_id": "one", "group": "g", "topics": {"T": "*", "U": "*"}},
    {"client_id": "one", "group": "g", "topics": {"T": "*"}, "model": "BROADCASTING"},
    {"client_id": "two", "group": "g", "topics": {"T": "a > 1"}, "expression_type": "SQL92"},
    {"client_id": "two", "group": "h", "topics": {"T": "a > 1"}, "expression_type": "SQL92"},
    {"client_id": "two", "group": "h", "topics": {}, "producers": ["p", "q"]},
]

ACTS: dict[str, tuple[RequestCode, dict[str, object], bytes]] = {
    "leaves g": (RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "g", "clientID": "one"}, b""),
    "leaves p": (RequestCode.UNREGISTER_CLIENT, {"producerGroup": "p", "clientID": "one"}, b""),
    "deletes a retry topic": (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%g"}, b""),
    "deletes a group": (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""),
    "changes a group": (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        encode_body({"groupName": "g", "consumeBroadcastEnable": False, "retryQueueNums": 3}),
    ),
    "forbids new groups": (
        RequestCode.UPDATE_BROKER_CONFIG,
        {},
        b"autoCreateSubscriptionGroup=false\n",
    ),
    "allows new groups": (
        RequestCode.UPDATE_BROKER_CONFIG,
        {},
        b"autoCreateSubscriptionGroup=true\n",
    ),
}

clients = st.integers(0, CLIENTS - 1)


def _around(act: Step, beats: list[Step], times: int) -> list[Step]:
    return [*beats * times, act, *beats]


def scenarios_of(cast: list[int]) -> st.SearchStrategy[list[Step]]:
    """Few different heartbeats come again and again, before and after something else."""
    beats = st.lists(st.tuples(clients, st.sampled_from(cast)), min_size=1, max_size=4)
    acts = st.tuples(clients, st.sampled_from([*sorted(ACTS), "reconnects"]))
    parts = st.builds(_around, acts, beats, st.integers(1, 3))
    return st.lists(parts, min_size=1, max_size=4).map(lambda drawn: list(chain(*drawn)))


scenarios = st.lists(st.integers(0, len(BEATS) - 1), min_size=1, max_size=2, unique=True).flatmap(
    scenarios_of
)


class World:
    """A broker with a clock of its own, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.clock_ms = int(time.time() * 1000)
        config = small_config(folder, enable_property_filter=True)
        self.broker = Broker(config, kernel="python", clock_ms=lambda: self.clock_ms)
        self.peers: list[Peer] = []
        self.first_id = 0
        """Of the connections; all servers of a process number theirs together."""

    async def take(self, number: int, what: int | str) -> int | None:
        """The code of the answer."""
        self.clock_ms += 1000
        peer = self.peers[number]
        if isinstance(what, int):
            return (await peer.heartbeat(**BEATS[what])).code
        if what == "reconnects":
            left = set(self.connections())
            peer.client.disconnect(peer.address)
            await until(lambda: len(self.connections()) < len(left) or not left)
            # A connection that never came to be is made here.
            return (await peer.ask(RequestCode.GET_BROKER_CONFIG)).code
        code, fields, body = ACTS[what]
        return (await peer.ask(code, fields, body)).code

    def connections(self) -> list[ServerConnection]:
        server = self.broker._ports._main
        assert server is not None
        return [connection for connection in server.connections if not connection.closed]

    def state(self) -> dict[str, object]:
        """All that heartbeats decide; the connections by their numbers."""
        clients, numbers = self.broker.parts.tables.clients, {}
        groups = {}
        for name in "gh":
            group = clients.group(name)
            if group is not None:
                how = (group.consume_type, group.message_model, group.consume_from_where)
                members = {
                    connection.connection_id - self.first_id: (
                        member.client_id,
                        member.version,
                        member.last_heartbeat_ms,
                    )
                    for connection, member in group.members.items()
                }
                groups[name] = (how, group.subscriptions, members)
        for client_id in ("one", "two"):
            producer = clients.producer(client_id)
            numbers[client_id] = producer and producer.connection.connection_id - self.first_id
        return {
            "groups": groups,
            "producers": numbers,
            "their times": {
                name: [client.last_heartbeat_ms for client in members]
                for name, members in clients.producer_groups.items()
            },
            "topics": sorted(self.broker.parts.tables.topics.names),
            "known groups": sorted(
                self.broker.parts.tables.groups.snapshot().subscription_group_table
            ),
            "filters": {
                (topic, name): (found.text, found.version, found.dead_ms)
                for topic in ("T", "U")
                for name in "gh"
                if (found := self.broker.parts.tables.filters.get(topic, name)) is not None
            },
        }


async def _scenario(folder: Path, scenario: Sequence[Step]) -> list[object]:
    world = World(folder)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.broker)
        for _ in range(CLIENTS):
            world.peers.append(await stack.enter_async_context(peer_of(world.broker)))
            await world.peers[-1].ask(RequestCode.GET_BROKER_CONFIG)
        world.first_id = min(each.connection_id for each in world.connections())
        began = world.clock_ms
        seen: list[object] = []
        for number, what in scenario:
            seen.append((await world.take(number, what), _relative(world.state(), began)))
        return seen


def _relative(state: Any, began: int) -> Any:
    """Times as milliseconds since the scenario began."""
    if isinstance(state, dict):
        return {key: _relative(value, began) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_relative(value, began) for value in state]
    return state - began if isinstance(state, int) and state >= began else state


@pytest.fixture(scope="module")
def skipped() -> Iterator[list[int]]:
    """How many heartbeats were only noted."""
    count = [0]
    knows = ClientTable.knows

    def counted(table: ClientTable, *arguments: Any) -> bool:
        known = knows(table, *arguments)
        count[0] += known
        return known

    with mock.patch.object(ClientTable, "knows", counted):
        yield count


def _check(scenario: Sequence[Step]) -> None:
    # By that clock clients are silent for minutes: they must not expire in one of both only.
    never = mock.patch("kerolox.broker.broker.EXPIRE_SECONDS", 3_600.0)
    with never, tempfile.TemporaryDirectory() as folder:
        noted = asyncio.run(_scenario(Path(folder, "noted"), scenario))
        with mock.patch.object(ClientTable, "knows", return_value=False):
            taken = asyncio.run(_scenario(Path(folder, "taken"), scenario))
    for step, (left, right) in enumerate(zip(noted, taken, strict=True)):
        assert left == right, (step, scenario[step])


def test_whatever_another_client_tells_the_next_one_does_the_same_as_ever() -> None:
    _check(
        [
            step
            for ours, theirs in product(range(len(BEATS)), repeat=2)
            for step in [(0, ours)] * 3 + [(1, theirs), (0, ours), (0, ours)]
        ]
    )


def test_whatever_an_operator_does_the_next_one_does_the_same_as_ever() -> None:
    unknown = ["forbids new groups", "deletes a group", "deletes a retry topic"]
    scenario: list[Step] = []
    for before, act, beat, actor in product([[], unknown], [*ACTS, "reconnects"], (0, 5), (0, 1)):
        scenario += [(0, 0), *((1, earlier) for earlier in before), *[(0, beat)] * 3]
        scenario += [(actor, act), (0, beat), (0, beat), (1, "allows new groups")]
    _check(scenario)


@settings(max_examples=12)
@given(scenario=scenarios)
def test_whatever_happens_the_next_one_does_the_same_as_ever(scenario: list[Step]) -> None:
    _check(scenario)


def test_a_heartbeat_is_noted_from_the_third_time_on(skipped: list[int], tmp_path: Path) -> None:
    """The first of a connection makes it a member; the second shows that there is no more to do."""
    before = skipped[0]
    asyncio.run(_scenario(tmp_path, [(0, 0)] * 5 + [(1, 0)] * 4))
    assert skipped[0] - before == 3 + 2
