"""Groups that filter by SQL92: what they get, what is refused, how they wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.message import encode_properties
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from kerolox.testing import Clock
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from kerolox.testing import Clock
from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

WITH_EXPRESSION = int(PullSysFlag.SUBSCRIPTION)
HELD = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)


@pytest_asyncio.fixture
async def sql_broker(tmp_path: Path, kernel: str) -> AsyncIterator[Broker]:
    config = small_config(tmp_path, enable_property_filter=True)
    async with Broker(config, kernel=kernel, clock_ms=Clock()) as started:
        yield started


@pytest_asyncio.fixture
async def sql_peer(sql_broker: Broker) -> AsyncIterator[Peer]:
    async with peer_of(sql_broker) as client:
        yield client


async def send_numbers(peer: Peer, count: int) -> None:
    for number in range(count):
        text = encode_properties({"n": str(number), "UNIQ_KEY": f"U{number}"})
        answer = await peer.send("T", b"%d" % number, properties=text)
        assert answer.code == ResponseCode.SUCCESS


async def pull_sql(
    peer: Peer, expression: str, offset: int = 0, *, flags: int = WITH_EXPRESSION, wait_ms: int = 0
) -> RemotingCommand:
    return await peer.pull(
        "T",
        offset=offset,
        tags=expression,
        sys_flag=flags,
        suspendTimeoutMillis=wait_ms,
        expressionType="SQL92",
    )


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


async def test_only_what_matches_is_delivered(sql_peer: Peer) -> None:
    await send_numbers(sql_peer, 20)
    answer = await pull_sql(sql_peer, "n between 5 and 7 or n = 15")
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(answer) == [b"5", b"6", b"7", b"15"]
    assert answer.ext_fields["nextBeginOffset"] == "20"


async def test_a_full_answer_goes_on_behind_its_last_message(sql_peer: Peer) -> None:
    await send_numbers(sql_peer, 20)
    got: list[bytes] = []
    offset = 0
    while offset < 20:
        answer = await sql_peer.pull(
            "T",
            offset=offset,
            tags="n >= 3",
            sys_flag=WITH_EXPRESSION,
            expressionType="SQL92",
            maxMsgNums=5,
        )
        assert len(bodies(answer)) <= 5
        got += bodies(answer)
        offset = int(answer.ext_fields["nextBeginOffset"])
    assert got == [b"%d" % number for number in range(3, 20)]


@pytest.mark.parametrize(
    ("ratio", "setting", "limit"),
    [
        (40, "max_transfer_count_on_message_in_memory", 5),
        (0, "max_transfer_count_on_message_in_disk", 5),
        (40, "max_transfer_bytes_on_message_in_memory", 1000),
        (0, "max_transfer_bytes_on_message_in_disk", 1000),
    ],
)
async def test_an_answer_has_no_more_than_the_settings_allow(
    tmp_path: Path, ratio: int, setting: str, limit: int
) -> None:
    # With a ratio of 0 all that lies behind the end of the log counts as on disk.
    config = small_config(
        tmp_path,
        enable_property_filter=True,
        access_message_in_memory_max_ratio=ratio,
        **{setting: limit},
    )
    async with Broker(config) as broker, peer_of(broker) as peer:
        await send_numbers(peer, 9)
        answer = await pull_sql(peer, "n >= 0")
        records = decode_records(answer.body)
        most = limit if "count" in setting else limit // records[0].store_size
        assert len(records) == most < 9
        assert answer.ext_fields["nextBeginOffset"] == str(most)


async def test_nothing_that_matches_is_told_with_the_next_offset(sql_peer: Peer) -> None:
    await send_numbers(sql_peer, 40)
    answer = await pull_sql(sql_peer, "n > 100")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext_fields["nextBeginOffset"] == "40"


async def test_a_message_that_can_not_be_compared_is_not_delivered(sql_peer: Peer) -> None:
    await sql_peer.send("T", b"text", properties=encode_properties({"n": "many"}))
    await sql_peer.send("T", b"number", properties=encode_properties({"n": "6"}))
    assert bodies(await pull_sql(sql_peer, "n > 5")) == [b"number"]


async def test_the_expression_of_the_heartbeat_counts(sql_broker: Broker, sql_peer: Peer) -> None:
    await send_numbers(sql_peer, 5)
    topics = {"T": "n < 2"}
    await sql_peer.heartbeat("c1", topics=topics, expression_type="SQL92", version=7)
    answer = await sql_peer.pull("T", tags=None, subVersion=7)
    assert bodies(answer) == [b"0", b"1"]
    newer = await sql_peer.pull("T", tags=None, subVersion=8)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_pull_waits_until_something_matches(sql_broker: Broker, sql_peer: Peer) -> None:
    await send_numbers(sql_peer, 3)
    waiting = asyncio.create_task(pull_sql(sql_peer, "n = 2", offset=3, flags=HELD, wait_ms=60_000))
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
    await send_numbers(sql_peer, 2)
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
    assert not waiting.done()
    await sql_peer.send("T", b"late", properties=encode_properties({"n": "2"}))
    answer = await waiting
    assert bodies(answer) == [b"late"]
    assert answer.ext_fields["nextBeginOffset"] == "6"


async def test_a_waiting_group_gets_what_its_new_expression_wants(
    sql_broker: Broker, sql_peer: Peer
) -> None:
    await send_numbers(sql_peer, 3)
    held = int(PullSysFlag.SUSPEND)
    members = {"expression_type": "SQL92", "topics": {"T": "n = 9"}, "version": 1}
    await sql_peer.heartbeat("c1", **members)
    pull = sql_peer.pull("T", offset=3, tags=None, sys_flag=held, suspendTimeoutMillis=60_000)
    waiting = asyncio.create_task(pull)
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
    await sql_peer.heartbeat("c1", **{**members, "topics": {"T": "n = 1"}, "version": 2})
    await send_numbers(sql_peer, 2)
    answer = await waiting
    assert bodies(answer) == [b"1"]


async def test_a_pull_that_finds_nothing_in_time_is_answered_and_goes_on_behind(
    sql_broker: Broker, sql_peer: Peer
) -> None:
    await send_numbers(sql_peer, 1)
    waiting = asyncio.create_task(pull_sql(sql_peer, "n > 5", offset=1, flags=HELD, wait_ms=60_000))
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
    await send_numbers(sql_peer, 1)
    assert not waiting.done()
    sql_broker.parts.now_ms.ahead_ms = 60_001  # type: ignore[attr-defined]
    answer = await waiting
    assert answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
    assert answer.ext_fields["nextBeginOffset"] == "2"


async def test_a_pull_that_is_passed_over_is_answered_before_its_time(
    sql_broker: Broker, sql_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.requests.pull.PASSED_OVER_MS", 100)
    await send_numbers(sql_peer, 1)
    waiting = asyncio.create_task(pull_sql(sql_peer, "n > 5", offset=1, flags=HELD, wait_ms=60_000))
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
    await send_numbers(sql_peer, 1)
    answer = await waiting
    assert answer.ext_fields["nextBeginOffset"] == "2"


async def test_without_the_switch_expressions_are_refused(peer: Peer) -> None:
    await peer.send("T")
    answer = await pull_sql(peer, "n > 1")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support consumer to filter message by SQL92" in (answer.remark or "")


@pytest.mark.parametrize("expression", ["n >", "n > 'x'", "5"])
async def test_what_is_no_expression_is_refused(sql_peer: Peer, expression: str) -> None:
    await sql_peer.send("T")
    answer = await pull_sql(sql_peer, expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    ("expression", "kind", "code"),
    [
        ("n > 1", "SQL92", ResponseCode.SUCCESS),
        ("n >", "SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("n > 1", "XPATH", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("a || b", "TAG", ResponseCode.SUCCESS),
    ],
)
async def test_a_subscription_can_be_checked(
    sql_peer: Peer, expression: str, kind: str, code: int
) -> None:
    body = {
        "clientId": "c1",
        "group": "readers",
        "subscriptionData": {"topic": "T", "subString": expression, "expressionType": kind},
    }
    answer = await sql_peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))
    assert answer.code == code, answer.remark


async def test_expressions_are_kept_in_consumer_filter_json(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, enable_property_filter=True)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        topics = {"T": "n > 1"}
        await peer.heartbeat("c1", topics=topics, expression_type="SQL92", version=7)
    kept = json.loads((config.config_folder / "consumerFilter.json").read_text())
    item = kept["filterDataByTopic"]["T"]["groupFilterData"]["readers"]
    assert (item["expression"], item["clientVersion"]) == ("n > 1", 7)
    assert item["bloomFilterData"]["bitNum"] == 112
    assert len(item["bloomFilterData"]["bitPos"]) == 3
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        known = broker.parts.tables.filters.get("T", "readers")
        assert known is not None
        assert known.dead_ms
        await peer.heartbeat("c1", topics=topics, expression_type="SQL92", version=7)
        assert not known.dead_ms


async def test_a_group_that_left_is_dead_and_later_forgotten(tmp_path: Path) -> None:
    config = small_config(tmp_path, enable_property_filter=True, filter_data_clean_time_span=1)
    async with Broker(config) as broker:
        async with peer_of(broker) as peer:
            await peer.heartbeat("c1", topics={"T": "n > 1"}, expression_type="SQL92")
            assert broker.parts.tables.filters.get("T", "readers") is not None
        await until(lambda: broker.parts.tables.clients.group("readers") is None)

        def is_forgotten() -> bool:
            broker.parts.tables.filters.clean()
            return broker.parts.tables.filters.get("T", "readers") is None

        await until(is_forgotten)


@pytest.mark.parametrize(("supported", "found"), [(True, [b"1"]), (False, [b"1", b"2"])])
async def test_retried_messages_are_filtered_by_the_expression_of_their_first_topic(
    tmp_path: Path, *, supported: bool, found: list[bytes]
) -> None:
    config = small_config(tmp_path, enable_property_filter=True, filter_support_retry=supported)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c1", topics={"T": "n = 1"}, expression_type="SQL92")
        for number in ("1", "2"):
            text = encode_properties({"n": number, "RETRY_TOPIC": "T", "UNIQ_KEY": f"U{number}"})
            answer = await peer.send("%RETRY%readers", number.encode(), properties=text)
            assert answer.code == ResponseCode.SUCCESS
        assert bodies(await peer.pull("%RETRY%readers")) == found


async def test_more_waits_than_there_may_be_are_refused_as_busy(
    sql_broker: Broker, sql_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.services.filtered_pull.OFFSET_WAITS_MAX", 1)
    await sql_peer.create_topic("T")
    waiting = asyncio.create_task(pull_sql(sql_peer, "n > 1", flags=HELD, wait_ms=60_000))
    await until(lambda: sql_broker.parts.arrivals.is_full)
    refused = await pull_sql(sql_peer, "n > 1", flags=HELD, wait_ms=60_000)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark.startswith("[OVERLOAD]system busy, ")
    await send_numbers(sql_peer, 3)
    assert bodies(await waiting) == [b"2"]


async def test_a_closed_connection_gives_its_waits_back(sql_broker: Broker, sql_peer: Peer) -> None:
    await sql_peer.create_topic("T")
    async with peer_of(sql_broker) as other:
        waiting = asyncio.create_task(pull_sql(other, "n > 1", flags=HELD, wait_ms=1 << 60))
        await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
        waiting.cancel()
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 0)


async def test_what_a_wait_was_woken_by_counts_once_for_its_group(
    sql_broker: Broker, sql_peer: Peer
) -> None:
    await sql_peer.create_topic("T")
    waiting = asyncio.create_task(pull_sql(sql_peer, "n = 1", flags=HELD, wait_ms=60_000))
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"] == 1)
    await send_numbers(sql_peer, 2)
    assert bodies(await waiting) == [b"1"]
    assert sql_broker.parts.store.group_stats() == []


async def test_a_waiting_group_that_is_switched_off_is_refused(
    sql_broker: Broker, sql_peer: Peer
) -> None:
    await sql_peer.create_topic("T")
    waiting = asyncio.create_task(pull_sql(sql_peer, "n > 1", flags=HELD, wait_ms=60_000))
    await until(lambda: sql_broker.parts.store.stats()["held_pulls"])
    body = encode_body({"groupName": "readers", "consumeEnable": False})
    await sql_peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    answer = await waiting
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "subscription group no permission, readers"
