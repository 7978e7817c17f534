"""Bytes that are no frames, and frames that make no sense: at most their own connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from typing import TYPE_CHECKING

import msgspec
import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.requests import ROUTER
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import (
    MessageSysFlag,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import SEND_LONG_NAMES, EndTransactionHeader, HeaderFieldError
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from pathlib import Path


def frame(header: bytes, *, kind: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


WELL = b'{"code":105,"flag":0,"language":"JAVA","opaque":1,"version":401,"extFields":{"topic":"T"}}'

BROKEN = {
    "too long": struct.pack(">iI", (16 << 20) + 1, 10),
    "far too long": struct.pack(">iI", 0x7FFFFFFF, 10),
    "negative": struct.pack(">iI", -1, 10),
    "most negative": struct.pack(">iI", -(1 << 31), 10),
    "zero": struct.pack(">iI", 0, 0),
    "shorter than its header length": struct.pack(">iI", 3, 0) + b"abc",
    "header longer than the frame": struct.pack(">iI", 16, 13) + bytes(12),
    "header of more than 4 MiB": struct.pack(">iI", 15_000_000, (4 << 20) + 1),
    "header of 16 MiB": struct.pack(">iI", 16, 0xFFFFFF) + bytes(12),
    "no JSON": frame(b"{not json"),
    "JSON that is no object": frame(b"[1, 2]"),
    "JSON cut off": frame(WELL[:-5]),
    "JSON of the wrong types": frame(b'{"code":"x","opaque":{},"extFields":[]}'),
    "not UTF-8": frame(WELL.replace(b'"T"', b"\xff\xfe")),
    "deep nesting": frame(b'{"extFields":' + b"[" * 50_000),
    "unknown serialize type": frame(WELL, kind=7),
    "binary header cut off": frame(b"\x00\x0a\x03\x01", kind=1),
    "binary lengths that lie": frame(
        struct.pack(">hBhiiii", 105, 0, 401, 1, 0, 0x7FFFFFFF, -5), kind=1
    ),
    "noise": bytes(random.Random(4).randbytes(4096)),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000" + "1fc0303") + bytes(500),
}


async def closed_by_peer(port: int, data: bytes) -> bytes:
    """Send bytes; what comes back until the peer closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_broken_frame_ends_its_connection_only(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for name, data in BROKEN.items():
        caplog.clear()
        assert await closed_by_peer(broker.port, data) == b"", name
        told = [record.getMessage() for record in caplog.records]
        assert any("closing 127.0.0.1" in line for line in told), (name, told)
        assert not [record for record in caplog.records if record.levelname == "ERROR"], name


async def test_requests_before_a_broken_frame_are_answered(broker: Broker) -> None:
    answered = await closed_by_peer(broker.port, frame(WELL) + BROKEN["negative"])
    answer = RemotingCommand.decode(answered[4:])
    assert (answer.opaque, answer.code) == (1, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def test_truncated_frames_disturb_nobody_and_store_nothing(
    broker: Broker, peer: Peer
) -> None:
    await peer.create_topic("T")
    header = {**dict.fromkeys("adefghjk", "0"), "b": "T", "c": "TBW102", "k": "false", "i": ""}
    send = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header, b"x" * 5000).encode()
    writers = []
    for size in (1, 3, 4, 7, 8, 50, len(send) - 1):
        _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(send[:size])
        writers.append(writer)
    # They stay open, half-sent, while another one is served; then they are cut.
    assert (await peer.send("T", b"whole")).code == ResponseCode.SUCCESS
    for writer in writers:
        writer.transport.abort()
    assert (await peer.send("T", b"too")).code == ResponseCode.SUCCESS
    assert [message.body for message in await peer.messages("T")] == [b"whole", b"too"]


async def test_a_name_server_goes_on_after_a_broken_frame(tmp_path: Path) -> None:
    async with NameServer(name_server_config(tmp_path)) as server, RemotingClient() as client:
        for name, data in BROKEN.items():
            assert await closed_by_peer(server.port, data) == b"", name
            request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await client.invoke(f"127.0.0.1:{server.port}", request)
            assert answer.code == ResponseCode.SUCCESS, name


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("code", [0, 99, 105, 32_000, 32_767])
async def test_an_unknown_code_is_code_3_with_its_number(
    peer: Peer, code: int, serialize_type: SerializeType
) -> None:
    answer = await peer.ask(code, {"a": "b"}, b"body", serialize_type=serialize_type)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported"


async def test_a_name_server_answers_an_unknown_code_with_code_3(tmp_path: Path) -> None:
    async with NameServer(name_server_config(tmp_path)) as server, RemotingClient() as client:
        address = f"127.0.0.1:{server.port}"
        answer = await client.invoke(address, RemotingCommand.request(RequestCode.PULL_MESSAGE))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "not supported" in (answer.remark or "")


# -- wrong types --------------------------------------------------------------------------------
TEXTS = [
    *("", " ", "x", "-1", "0", "1", "5", "1.5", "1e3", "NaN", "true", "null", "a@b", "../../x"),
    *("99999999999", "-2147483648", "2147483647", "9223372036854775807", "-9223372036854775809"),
    *("\0", "日本", "١", "x" * 300, "%RETRY%", "%DLQ%", "TBW102", "SCHEDULE_TOPIC_XXXX", "T"),
]
BODIES = [
    *(b"", b"x", b"{}", b"[]", b"null", b'"x"', b"1", b"[" * 5000, b'{"a":' * 3000, b"\xff\xfe"),
    b'{"clientID":5}',
    b'{"clientID":null,"consumerDataSet":[{}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
    b'[{"topic":"T","subVersion":99999999999999999999}]}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"\\ud800","subscriptionDataSet":'
    b'[{"topic":"\\ud800","codeSet":[1e30,-5]}]}]}',
    b'{"groupName":"g2","retryQueueNums":-5,"retryMaxTimes":99999999999}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":1e99}]}',
    b"\x00\x00\x00\x10" * 20,
]
TRIES_PER_CODE = 40


def request_members(code: int) -> dict[str, str]:
    """The wire names of a request's members, each with a value that fits."""
    decode = ROUTER._routes[code][0]
    fields = msgspec.structs.fields(decode.__self__)  # type: ignore[attr-defined]
    short = {long: name for name, long in SEND_LONG_NAMES.items()}
    is_short = decode.__name__ == "decode_short"
    members = {}
    for each in fields:
        name = short.get(each.encode_name, each.encode_name) if is_short else each.encode_name
        kind = str(each.type)
        members[name] = "0" if "int" in kind else "false" if "bool" in kind else "T"
    return members


def is_silent(code: int, members: dict[str, str]) -> bool:
    """Whether RocketMQ answers nothing: a producer that has not decided about its transaction."""
    if code != RequestCode.END_TRANSACTION:
        return False
    try:
        header = EndTransactionHeader.decode(members)
    except HeaderFieldError:
        return False
    decisions = (MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK)
    return header.commit_or_rollback not in decisions


async def answer_to(
    peer: Peer, code: int, members: dict[str, str], body: bytes, kind: SerializeType
) -> RemotingCommand | None:
    """The answer to a request; None to one that gets none, behind which the next is answered."""
    if not is_silent(code, members):
        return await peer.ask(code, members, body, serialize_type=kind)
    request = RemotingCommand.request(code, members, body=body)
    request.serialize_type = kind
    await peer.client.invoke_oneway(peer.address, request)
    assert (await peer.ask(RequestCode.GET_BROKER_CONFIG)).code == ResponseCode.SUCCESS
    return None


async def test_wrong_types_are_answered_and_logged_as_no_fault_of_the_broker(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(1)
    await peer.create_topic("T")
    await peer.send("T")
    for code in sorted(ROUTER.codes):
        for _ in range(TRIES_PER_CODE):
            members = request_members(code)
            for name in chance.sample(sorted(members), min(chance.randint(0, 2), len(members))):
                members[name] = chance.choice(TEXTS)
            if members and chance.random() < 0.1:
                del members[chance.choice(sorted(members))]
            body, kind = chance.choice(BODIES), chance.choice(list(SerializeType))
            answer = await answer_to(peer, code, members, body, kind)
            if answer is not None and answer.code != ResponseCode.SUCCESS:
                assert answer.remark, (code, members)
    faults = [record for record in caplog.records if record.exc_info]
    assert not faults, faults[0].getMessage()
    # Some were right, and may have left it without queues.
    await peer.create_topic("T")
    assert (await peer.send("T", b"after")).code == ResponseCode.SUCCESS


async def test_what_wrong_types_left_behind_is_no_hindrance_to_a_restart(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    chance = random.Random(3)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.send("T", b"before")
        for code in sorted(ROUTER.codes):
            members = request_members(code)
            for name in members:
                members[name] = chance.choice([members[name], chance.choice(TEXTS)])
            for body in BODIES[:12]:
                await answer_to(peer, code, members, body, SerializeType.JSON)
    async with Broker(config) as broker, peer_of(broker) as peer:
        assert (await peer.send("T", b"after")).code == ResponseCode.SUCCESS


async def test_a_name_server_answers_wrong_types(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(2)
    names = ("topic", "namespace", "key", "value", "brokerName", "brokerAddr", "clusterName")
    names += ("brokerId", "haServerAddr", "bodyCrc32", "compressed", "cluster")
    codes = [code for code in RequestCode if 100 <= code <= 118 or 200 <= code <= 360]
    async with NameServer(name_server_config(tmp_path)) as server, RemotingClient() as client:
        address = f"127.0.0.1:{server.port}"
        for code in codes:
            for _ in range(TRIES_PER_CODE):
                members = {n: chance.choice(TEXTS) for n in names if chance.random() < 0.8}
                request = RemotingCommand(code, members, chance.choice(BODIES))
                answer = await client.invoke(address, request)
                if answer.code != ResponseCode.SUCCESS:
                    assert answer.remark, (code, members)
    faults = [record for record in caplog.records if record.exc_info]
    assert not faults, faults[0].getMessage()
    async with NameServer(name_server_config(tmp_path)):
        pass


def name_server_config(folder: Path) -> NamesrvConfig:
    return NamesrvConfig.load(
        None,
        listen_port=0,
        kv_config_path=folder / "kv.json",
        config_store_path=folder / "namesrv.properties",
        tls_server_handshake_timeout_millis=1_000,
    )
