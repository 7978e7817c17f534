"""Limits of requests on sockets: the fast path and the handlers keep one and the same limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.security.credentials import Credentials
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.clients.requests import send_fields
from tests.support.eventually import until

FEW = 40
SLOWLY = {"max_requests_per_second_per_address": 1, "request_burst_millis": FEW * 1000}
"""So many at once, and no further one within the test."""


async def sent(peer: Peer, count: int) -> Counter[int]:
    """The codes of the answers to so many sends."""
    return Counter([(await peer.send("T")).code for _ in range(count)])


async def test_sends_and_pulls_over_the_limit_are_busy_whoever_answers_them(
    tmp_path: Path, kernel: str
) -> None:
    async with Broker(small_config(tmp_path, **SLOWLY), kernel=kernel) as broker:
        async with peer_of(broker) as peer:
            await peer.create_topic("T", queues=1)
            assert await sent(peer, FEW - 2) == {0: FEW - 2}
            assert (await peer.pull("T")).code == 0
            assert await sent(peer, 3) == {2: 3}
            busy = await peer.pull("T")
            assert busy.code == ResponseCode.SYSTEM_BUSY
            assert "(maxRequestsPerSecondPerAddress)" in (busy.remark or "")
            assert (await peer.ask(RequestCode.GET_BROKER_CONFIG)).code == 2
        async with peer_of(broker) as another:
            assert await sent(another, 1) == {2: 1}, "it comes from the same address"
        counts = broker.parts.guards.limits.counts.shown()
        assert counts["requestsRefusedOfAddress"] == 6
        assert broker.parts.store.queue_bounds("T", 0) == (0, FEW - 2)


async def test_one_chunk_of_many_sends_is_cut_at_the_limit(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, **SLOWLY)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", queues=1)
        fields = send_fields(b="T", e=0)
        commands = [
            RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=b"x")
            for _ in range(100)
        ]
        codes = await many(peer, commands)
    assert codes == {0: FEW - 1, 2: 101 - FEW}


async def many(peer: Peer, commands: list[RemotingCommand]) -> Counter[int]:
    asked = (peer.client.invoke(peer.address, each, timeout_seconds=30) for each in commands)
    return Counter(answer.code for answer in await asyncio.gather(*asked))


async def test_one_way_requests_over_the_limit_are_dropped_and_counted(
    tmp_path: Path, kernel: str
) -> None:
    async with Broker(small_config(tmp_path, **SLOWLY), kernel=kernel) as broker:
        async with peer_of(broker) as peer:
            await peer.create_topic("T", queues=1)
            for _ in range(FEW + 10):
                fields = send_fields(b="T", e=0)
                command = RemotingCommand.request(
                    RequestCode.SEND_MESSAGE_V2, fields, body=b"x", oneway=True
                )
                await peer.client.invoke_oneway(peer.address, command)
            assert (await peer.send("T")).code == 2
        assert broker.parts.store.queue_bounds("T", 0)[1] == FEW - 1
        assert (broker.parts.guards.limits.counts.shown())["requestsRefusedOfAddress"] == 12


async def test_a_limit_comes_and_goes_while_clients_are_connected(
    tmp_path: Path, kernel: str
) -> None:
    async with Broker(small_config(tmp_path), kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", queues=1)
        assert await sent(peer, 100) == {0: 100}
        await change(peer, "maxRequestsPerSecondPerAddress=1\nrequestBurstMillis=10000\n")
        assert await sent(peer, 20) == {0: 10, 2: 10}
        # Whoever may, changes it in the file (SIGHUP) or from another address.
        await broker.parts.dynamic_config.change(b"maxRequestsPerSecondPerAddress=0\n", "test")
        assert await sent(peer, 100) == {0: 100}


async def change(peer: Peer, text: str) -> None:
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())
    assert answer.code == 0, answer.remark


async def test_the_runtime_info_tells_what_was_refused(peer: Peer) -> None:
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.loads(answer.body)["table"]
    assert table["connections"] == "1"
    assert table["requestsRefusedOfAddress"] == table["auditDenied"] == "0"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_connections": 2, "max_connections_per_address": 9}, "connectionsRefused"),
        ({"max_connections_per_address": 2}, "connectionsRefusedOfAddress"),
    ],
)
async def test_connections_that_are_refused_are_counted(
    tmp_path: Path, settings: dict[str, int], reason: str
) -> None:
    async with Broker(small_config(tmp_path, **settings)) as broker:
        streams = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(10)]
        shown = broker.parts.guards.limits.counts.shown
        await until(lambda: shown()[reason] == 8)
        assert shown()["connections"] == 2
        for _, writer in streams:
            writer.close()
        await until(lambda: shown()["connections"] == 0)


WORKER, READER = Credentials("worker-1", "12345678"), Credentials("reader-1", "12345678")
ACCOUNTS = """
accounts:
- {accessKey: worker-1, secretKey: "12345678", defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: reader-1, secretKey: "12345678", defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""


async def test_an_account_has_a_limit_of_its_own_on_all_its_connections(
    tmp_path: Path, kernel: str
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    limit = {"max_requests_per_second_per_account": 1, "request_burst_millis": FEW * 1000}
    config = small_config(tmp_path, acl_enable=True, acl_file=str(file), **limit)
    async with Broker(config, kernel=kernel) as broker:
        async with peer_of(broker, WORKER) as one, peer_of(broker, WORKER) as other:
            assert await sent(one, FEW // 2) == {0: FEW // 2}
            assert await sent(other, FEW) == {0: FEW // 2, 2: FEW // 2}
            busy = await one.pull("T")
            assert busy.code == ResponseCode.SYSTEM_BUSY
            assert "by account worker-1 (maxRequestsPerSecondPerAccount)" in (busy.remark or "")
        async with peer_of(broker, READER) as another, peer_of(broker) as stranger:
            assert await sent(another, 3) == {0: 3}
            assert await sent(stranger, 1) == {1: 1}, "denied, and of no account"
        counts = broker.parts.guards.limits.counts.shown()
        assert counts["requestsRefusedOfAccount"] == FEW // 2 + 1
        assert counts["requestsRefusedOfAddress"] == 0
