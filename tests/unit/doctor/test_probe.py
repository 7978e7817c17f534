"""What a snapshot asks twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Access, Admin
from kerolox.broker.broker import Broker
from kerolox.doctor import ProbeOptions, diagnose, probe
from kerolox.doctor.checks.brokers import TIMER_OFF_MS
from kerolox.doctor.facts import TimerFacts
from kerolox.doctor.timers import timer_facts
from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.fastjson import dumps
from kerolox.remoting.client import RemotingClient
from kerolox.testing import Clock
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_broker_that_starts_is_asked_once_more(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ 4.9.8 has no figures before it has taken its first sample, and says so by code 1."""
    monkeypatch.setattr(probe, "AGAIN_SECONDS", 0.0)
    async with FakeBroker() as fake, RemotingClient() as client:
        node = {"cluster": "c", "brokerName": "a", "brokerAddrs": {0: fake.address}}
        info = dumps({"brokerAddrTable": {"a": node}, "clusterAddrTable": {"c": ["a"]}})
        said = {
            RequestCode.GET_BROKER_CLUSTER_INFO: info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: dumps({"topicList": []}),
            RequestCode.GET_KVLIST_BY_NAMESPACE: dumps({"table": {}}),
            RequestCode.GET_BROKER_CONFIG: b"brokerName=a\nvipPortEnable=false\n",
        }

        async def answer(command: RemotingCommand) -> RemotingCommand:
            return command.response(ResponseCode.SUCCESS, body=said[RequestCode(command.code)])

        async def figures(command: RemotingCommand) -> RemotingCommand:
            if len(fake.seen[command.code]) <= failures:
                return command.response(ResponseCode.SYSTEM_ERROR, "NoSuchElementException")
            return command.response(ResponseCode.SUCCESS, body=dumps({"table": {}}))

        fake.answers = dict.fromkeys(said, answer)
        fake.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = figures
        found = await diagnose(
            Admin.on(Access(client, (fake.address,))), ProbeOptions(between_looks_seconds=0.0)
        )
    codes = [each.code for each in found]
    assert codes == ([] if failures == 1 else ["check-failed"]), found


async def test_groups_without_retry_queues_are_found_at_their_master() -> None:
    async with FakeBroker() as fake, RemotingClient() as client:
        node = {"cluster": "c", "brokerName": "a", "brokerAddrs": {0: fake.address}}
        info = dumps({"brokerAddrTable": {"a": node}, "clusterAddrTable": {"c": ["a"]}})
        groups = {
            name: {"groupName": name, "retryQueueNums": queues}
            for name, queues in (("none", 0), ("one", 1))
        }
        said = {
            RequestCode.GET_BROKER_CLUSTER_INFO: info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: dumps({"topicList": []}),
            RequestCode.GET_KVLIST_BY_NAMESPACE: dumps({"table": {}}),
            RequestCode.GET_BROKER_RUNTIME_INFO: dumps({"table": {}}),
            RequestCode.GET_BROKER_CONFIG: b"vipPortEnable=false\nbrokerRole=ASYNC_MASTER\n",
            RequestCode.GET_BROKER_HA_STATUS: dumps({"haConnectionInfo": []}),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: dumps({"subscriptionGroupTable": groups}),
        }

        async def answer(command: RemotingCommand) -> RemotingCommand:
            return command.response(ResponseCode.SUCCESS, body=said[RequestCode(command.code)])

        fake.answers = dict.fromkeys(said, answer)
        found = await diagnose(
            Admin.on(Access(client, (fake.address,))), ProbeOptions(between_looks_seconds=0.0)
        )
    dropped = [each for each in found if each.code == "retries-dropped"]
    assert [each.where for each in dropped] == ["group none"], found
    assert dropped[0].advice.startswith("kerolox group update none --retry-queues 1")


async def test_a_timer_says_how_far_it_is_behind_its_clock(tmp_path: Path) -> None:
    clock = Clock()
    config = small_config(tmp_path, timer_stop_dequeue=True)
    async with (
        Broker(config, clock_ms=clock) as broker,
        peer_of(broker) as peer,
        RemotingClient() as client,
    ):
        access = Access(client, ("127.0.0.1:1",))
        assert await timer_facts(access, peer.address, 0) is None
        await peer.create_topic("T")
        later = encode_properties({"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "k"})
        assert (await peer.send("T", properties=later)).code == ResponseCode.SUCCESS

        async def found() -> TimerFacts:
            facts = await timer_facts(access, peer.address, clock.ahead_ms)
            return facts or TimerFacts(waiting=0, behind_ms=0)

        async def waits() -> bool:
            return (await found()).waiting == 1

        await until(waits, what="the wheel")
        assert (await found()).behind_ms < TIMER_OFF_MS
        clock.ahead_ms = 3_600_000
        behind = await found()
        assert behind.behind_ms == pytest.approx(3_600_000, abs=TIMER_OFF_MS)
        ahead = await timer_facts(access, peer.address, -3_600_000)
        assert ahead is not None
        assert ahead.behind_ms == pytest.approx(-3_600_000, abs=TIMER_OFF_MS)
