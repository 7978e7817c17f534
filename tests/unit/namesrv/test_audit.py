"""What was changed at a name server has an audit line: every code that can is asked here."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.unit.namesrv.test_handlers import ADDRESS, FakeConnection, Server

from kerolox.namesrv.handlers import router
from kerolox.protocol.codes import RequestCode
from kerolox.remoting import AUDIT_LOGGER

READING = frozenset(
    (
        *(RequestCode.GET_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE),
        *(RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO),
        *(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER),
        *(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_UNIT_TOPIC_LIST),
        *(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
        *(RequestCode.GET_NAMESRV_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO),
        # Signs of life, which only the broker's own connection can give.
        *(RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT),
    )
)
BROKER = {"brokerName": "broker-a", "brokerAddr": ADDRESS, "clusterName": "C", "brokerId": 0}
PLACE = {"address": ADDRESS, "cluster": "C"}
KEY = {"namespace": "N", "key": "K"}

CHANGES: dict[int, tuple[dict[str, object], bytes, dict[str, object]]] = {
    RequestCode.PUT_KV_CONFIG: (
        {**KEY, "value": "new"},
        b"",
        {"keyValue": "N:K", "old": "old", "new": "new"},
    ),
    RequestCode.DELETE_KV_CONFIG: (KEY, b"", {"keyValue": "N:K", "old": "old", "new": None}),
    RequestCode.UNREGISTER_BROKER: (BROKER, b"", {"broker": "broker-a:0", "old": PLACE}),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: (
        {"brokerName": "broker-a"},
        b"",
        {"broker": "broker-a"},
    ),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b"", {"broker": "broker-a"}),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: (
        {"topic": "T"},
        b"",
        {"topic": "T", "old": {"brokers": ["broker-a"]}, "new": None},
    ),
    RequestCode.UPDATE_NAMESRV_CONFIG: (
        {},
        b"orderMessageEnable=true\n",
        {"old": {"orderMessageEnable": "false"}, "new": {"orderMessageEnable": "true"}},
    ),
}


@pytest.fixture
def server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Server:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    return Server(tmp_path)


def taken(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [json.loads(each.getMessage()) for each in caplog.records if each.name == AUDIT_LOGGER]
    caplog.clear()
    return found


def changing() -> set[int]:
    return {code for code, route in router.routes.items() if route.changes}


def test_every_code_is_told_or_listed_as_reading() -> None:
    assert not changing() & READING
    assert router.codes - changing() - READING == set()
    assert CHANGES.keys() | {RequestCode.REGISTER_BROKER} == changing()


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: code.name)
async def test_what_a_request_changed_is_told_with_old_and_new(
    server: Server, caplog: pytest.LogCaptureFixture, code: RequestCode
) -> None:
    await server.register("T")
    await server.ask(RequestCode.PUT_KV_CONFIG, **KEY, value="old")
    taken(caplog)
    fields, body, expected = CHANGES[code]
    assert (await server.ask(code, body, **fields)).code == 0
    [line] = taken(caplog)
    assert (line["outcome"], line["request"]) == ("changed", code.name)
    assert line["server"] == "name server"
    assert {name: line[name] for name in expected} == expected


async def test_a_broker_that_is_new_or_moved_is_told_and_its_repeats_are_not(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await server.register("T")
    [line] = taken(caplog)
    assert (line["broker"], line["old"], line["new"]) == ("broker-a:0", None, PLACE)
    await server.register("T", brokerAddr="10.0.0.1:10915")
    [line] = taken(caplog)
    assert (line["old"], line["new"]) == ({"address": ADDRESS}, {"address": "10.0.0.1:10915"})


async def test_a_claim_that_is_refused_is_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await server.register("T")
    taken(caplog)
    other = FakeConnection(6, "10.0.0.9")
    assert (await server.register("T", brokerAddr="10.0.0.9:1", connection=other)).code == 1
    [line] = taken(caplog)
    assert (line["outcome"], line["from"], line["answer"]) == ("refused", "10.0.0.9:40000", 1)


async def test_what_changed_nothing_is_not_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for code, (fields, body, _) in CHANGES.items():
        if code not in (RequestCode.PUT_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
            await server.ask(code, body, **fields)
    for _ in range(2):
        await server.ask(RequestCode.PUT_KV_CONFIG, **KEY, value="v")
    assert [line["request"] for line in taken(caplog)] == ["PUT_KV_CONFIG"]


async def test_settings_that_are_refused_are_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"listenPort=1\n")
    assert answer.code != 0
    assert [line["outcome"] for line in taken(caplog)] == ["refused"]
