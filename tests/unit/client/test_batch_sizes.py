"""Batches cut to size, compressed bodies, and the second port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import lz4.frame
import pytest
import pytest_asyncio
import zstandard

from kerolox.client import CompressionType, Producer, ProducerSettings, split_batches
from kerolox.client.core.sending.send import outgoing_batch
from kerolox.errors import (
    ConfigError,
    MessageIllegalError,
    MessageRejectedError,
    PartlySentError,
)
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.compression import inflate_body
from kerolox.protocol.records import decode_batch
from tests.support.servers.fake_broker import FakeBroker, route_body

BATCH, SEND = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = route_body({"a": made.address}, queues=4)
        yield made


def bodies(command: RemotingCommand) -> list[bytes]:
    items, _ = decode_batch(command.body)
    return [body for _, body, _ in items]


async def test_a_long_list_goes_as_several_batches_in_order(broker: FakeBroker) -> None:
    messages = [Message("T", b"%04d" % index * 100) for index in range(50)]
    async with Producer("G", broker.address) as producer:
        results = await producer.send_batches(messages, bytes_max=5_000)
    requests = broker.seen[BATCH]
    assert len(results) == len(requests) > 3
    assert [body for request in requests for body in bodies(request)] == [m.body for m in messages]
    assert max(len(request.body) for request in requests) <= 5_000
    assert sum(len(result.message_id.split(",")) for result in results) == 50


async def test_no_batch_is_larger_than_a_message_may_be(broker: FakeBroker) -> None:
    messages = [Message("T", bytes(1_000), keys="\u20ac" * 200) for _ in range(10)]
    settings = ProducerSettings(message_bytes_max=4_000)
    async with Producer("G", broker.address, settings=settings) as producer:
        await producer.send_batches(messages)
    assert [len(bodies(request)) for request in broker.seen[BATCH]] == [2] * 5


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u20ac", "\U0001f600"])
def test_lists_are_cut_by_the_bytes_that_travel(character: str) -> None:
    messages = [
        Message("T", bytes(size), tags=character * 3, keys=[character] * 9, properties={"p": "v"})
        for size in range(1, 400)
    ]
    for batch in split_batches(messages, bytes_max=3_000):
        ids = ["F" * 56] * len(batch)  # those of a host of IPv6
        assert len(outgoing_batch(batch, ids).body) <= 3_000


async def test_a_failure_tells_how_many_are_stored(broker: FakeBroker) -> None:
    async def third_fails(command: RemotingCommand) -> RemotingCommand:
        if len(broker.seen[BATCH]) == 3:
            return command.response(13, "told to")
        return broker.stored(command)

    broker.answers[BATCH] = third_fails
    messages = [Message("T", bytes(1_000)) for _ in range(10)]
    async with Producer("G", broker.address) as producer:
        with pytest.raises(PartlySentError, match="4 of 10 messages are stored") as caught:
            await producer.send_batches(messages, bytes_max=2_500)
    assert caught.value.sent == 4
    assert isinstance(caught.value.__cause__, MessageIllegalError)
    assert len(broker.seen[BATCH]) == 3


async def test_nothing_is_sent_of_a_list_with_an_illegal_message(broker: FakeBroker) -> None:
    messages = [Message("T", b"x"), Message("T", b"")]
    async with Producer("G", broker.address) as producer:
        for illegal in (messages, [], [Message("T", b"x"), Message("U", b"x")]):
            with pytest.raises(MessageRejectedError):
                await producer.send_batches(illegal, bytes_max=1)
    assert not broker.seen[BATCH]


@pytest.mark.parametrize(
    ("kind", "flags", "inflate"),
    [
        ("lz4", 0x101, lz4.frame.decompress),
        (CompressionType.ZSTD, 0x201, lambda body: zstandard.ZstdDecompressor().decompress(body)),
        ("ZLIB", 0x301, None),
    ],
)
async def test_bodies_are_compressed_as_the_flags_say(
    broker: FakeBroker, kind: CompressionType | str, flags: int, inflate: object
) -> None:
    body = b"compress me " * 1_000
    async with Producer(
        "G", broker.address, settings=ProducerSettings(compress_type=kind)
    ) as producer:
        await producer.send(Message("T", body))
        await producer.send(Message("T", body * 50))  # in a thread
        await producer.send(Message("T", b"short"))
    packed, large, short = broker.seen[SEND]
    assert int(packed.ext_fields["f"]) == int(large.ext_fields["f"]) == flags
    assert len(packed.body) < len(body) // 10
    assert inflate_body(packed.body, flags) == body
    assert inflate_body(large.body, flags) == body * 50
    assert (int(short.ext_fields["f"]), short.body) == (0, b"short")
    if callable(inflate):
        assert inflate(packed.body) == body


def test_a_compression_that_is_none_or_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="compress_type is 'GZIP'"):
        ProducerSettings(compress_type="GZIP")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"LZ4 needs the package 'lz4' .*kerolox\[compression\]"):
        ProducerSettings(compress_type="LZ4")
    assert ProducerSettings().compression is CompressionType.ZLIB


async def test_sends_go_to_the_second_port_on_demand_only(broker: FakeBroker) -> None:
    second = broker.address
    host, port = second.split(":")
    first = f"{host}:{int(port) + 2}"
    async with FakeBroker() as names:
        names.routes["T"] = route_body({"a": first}, queues=1)
        settings = ProducerSettings(vip_channel=True)
        async with Producer("G", names.address, settings=settings) as producer:
            await producer.send(Message("T", b"x"))
            await producer.send(Message("T", b"y"))
            await producer.send_oneway(Message("T", b"z"))
    assert [command.body for command in broker.seen[SEND]] == [b"x", b"y", b"z"]
    assert not ProducerSettings().vip_channel
