"""Bit maps of filters: calculated when a message is stored, used when it is read."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from tests.support.clients.peer import Peer

pytestmark = pytest.mark.asyncio

SWITCHES = {
    "enable_property_filter": True,
    "enable_consume_queue_ext": True,
    "enable_calc_filter_bit_map": True,
    "mapped_file_size_consume_queue_ext": 10_000,
}
BITS = 112
"""Length of a map with RocketMQ's settings."""


@pytest_asyncio.fixture
async def broker(tmp_path: Path, kernel: str) -> AsyncIterator[Broker]:
    async with Broker(small_config(tmp_path, **SWITCHES), kernel=kernel) as started:
        yield started


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with peer_of(broker) as client:
        yield client


async def subscribe(peer: Peer, group: str, expression: str, version: int = 1) -> None:
    topics = {"T": expression}
    answer = await peer.heartbeat(
        f"c-{group}", group, topics, expression_type="SQL92", version=version
    )
    assert answer.code == ResponseCode.SUCCESS


async def send_numbers(broker: Broker, peer: Peer, first: int, end: int) -> None:
    # What is stored in the millisecond of a filter's birth is not told by its bits.
    born = broker.parts.now_ms()
    await until(lambda: broker.parts.now_ms() > born)
    for number in range(first, end):
        text = encode_properties({"n": str(number), "UNIQ_KEY": f"U{number}"})
        answer = await peer.send("T", b"%d" % number, properties=text)
        assert answer.code == ResponseCode.SUCCESS


def map_of(broker: Broker, offset: int) -> bytes:
    unit = broker.parts.store.queue_unit("T", 0, offset)
    assert unit is not None
    return unit[2]


def set_bits(bit_map: bytes) -> set[int]:
    return {bit for bit in range(len(bit_map) * 8) if bit_map[bit // 8] >> bit % 8 & 1}


async def bodies(peer: Peer, group: str, version: int = 1) -> list[bytes]:
    answer = await peer.pull("T", group=group, tags=None, subVersion=version)
    return [message.body for message in decode_records(answer.body)]


async def test_a_map_has_the_bits_of_the_groups_that_want_the_message(
    broker: Broker, peer: Peer
) -> None:
    await send_numbers(broker, peer, 0, 1)
    await subscribe(peer, "low", "n < 2")
    await subscribe(peer, "high", "n > 0")
    await send_numbers(broker, peer, 1, 4)
    low, high = (broker.parts.tables.filters.get("T", group) for group in ("low", "high"))
    assert low is not None
    assert high is not None
    assert map_of(broker, 0) == b"", "nobody filtered then"
    assert len(map_of(broker, 1)) * 8 == BITS
    wanted = [{*low.bloom_positions, *high.bloom_positions}, {*high.bloom_positions}]
    assert [set_bits(map_of(broker, offset)) for offset in (1, 2)] == wanted
    assert await bodies(peer, "low") == [b"0", b"1"]
    assert await bodies(peer, "high") == [b"1", b"2", b"3"]


async def test_what_the_map_rules_out_is_not_examined(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(peer, "readers", "n = 2")
    await send_numbers(broker, peer, 0, 5)
    known = broker.parts.tables.filters.get("T", "readers")
    assert known is not None
    assert known.expression is not None
    seen = []
    right = known.expression.matches

    class Watched:
        def matches(self, given: Any) -> bool:
            seen.append(given["n"])
            return right(given)

    monkeypatch.setattr(known, "expression", Watched())
    assert await bodies(peer, "readers") == [b"2"]
    assert seen == ["2"]


async def test_another_expression_counts_for_messages_from_then_on(
    broker: Broker, peer: Peer
) -> None:
    await subscribe(peer, "readers", "n < 2")
    await send_numbers(broker, peer, 0, 4)
    await subscribe(peer, "readers", "n > 2", version=2)
    await send_numbers(broker, peer, 4, 5)
    assert await bodies(peer, "readers", 2) == [b"3", b"4"]


async def test_batches_and_delayed_messages_have_maps_too(broker: Broker, peer: Peer) -> None:
    await send_numbers(broker, peer, 0, 1)
    await subscribe(peer, "readers", "n = 7")
    known = broker.parts.tables.filters.get("T", "readers")
    assert known is not None
    born = broker.parts.now_ms()
    await until(lambda: broker.parts.now_ms() > born)
    item = b"".join(_batch_item(b"x", f"n\x01{number}") for number in (7, 8))
    answer = await peer.send("T", item, m=True, code=RequestCode.SEND_BATCH_MESSAGE)
    assert answer.code == ResponseCode.SUCCESS
    assert set_bits(map_of(broker, 1)) == {*known.bloom_positions}
    assert len(map_of(broker, 2)) * 8 == BITS
    assert set_bits(map_of(broker, 2)) == set()
    delayed = encode_properties({"n": "7", "DELAY": "1", "UNIQ_KEY": "U"})
    assert (await peer.send("T", b"late", properties=delayed)).code == ResponseCode.SUCCESS
    await until(lambda: broker.parts.store.queue_bounds("T", 0)[1] == 4)
    assert set_bits(map_of(broker, 3)) == {*known.bloom_positions}


def _batch_item(body: bytes, text: str) -> bytes:
    data = text.encode()
    rest = bytes(12) + len(body).to_bytes(4, "big") + body + len(data).to_bytes(2, "big") + data
    return (len(rest) + 4).to_bytes(4, "big") + rest


async def test_maps_are_calculated_again_after_a_restart(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, **SWITCHES)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await send_numbers(broker, peer, 0, 1)
        await subscribe(peer, "readers", "n = 2")
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await send_numbers(broker, peer, 1, 3)
        known = broker.parts.tables.filters.get("T", "readers")
        assert known is not None
        assert [set_bits(map_of(broker, n)) for n in (1, 2)] == [set(), {*known.bloom_positions}]
        await subscribe(peer, "readers", "n = 2")
        assert await bodies(peer, "readers") == [b"2"]


async def test_without_the_switch_units_have_no_maps(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, **{**SWITCHES, "enable_calc_filter_bit_map": False})
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await subscribe(peer, "readers", "n = 1")
        await send_numbers(broker, peer, 0, 2)
        assert map_of(broker, 0) == map_of(broker, 1) == b""
        assert await bodies(peer, "readers") == [b"1"]


async def test_operators_see_units_and_who_wants_their_messages(broker: Broker, peer: Peer) -> None:
    await subscribe(peer, "readers", "n = 1")
    await send_numbers(broker, peer, 0, 2)
    fields = {"topic": "T", "queueId": 0, "index": 0, "count": 2, "consumerGroup": "readers"}
    answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)
    first, second = json.loads(answer.body)["queueData"]
    assert (first["eval"], second["eval"]) == (False, True)
    known = broker.parts.tables.filters.get("T", "readers")
    assert known is not None
    shown = second["bitMap"].replace("\n", "")
    assert {BITS - 1 - at for at, bit in enumerate(shown) if bit == "1"} == {*known.bloom_positions}
    unit = json.loads(second["extendDataJson"])
    assert (unit["size"], unit["tagsCode"]) == (34, 0)
    assert base64.b64decode(unit["filterBitMap"]) == map_of(broker, 1)
