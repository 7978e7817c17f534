"""Replies, over the wire: who gets them, what is answered, what is stored."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.services import replies
from kerolox.message import decode_properties, encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.remoting.client import RemotingClient
from kerolox.remoting.server import IN_FLIGHT_MAX
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

pytestmark = pytest.mark.asyncio

TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def reply_properties(client_id: str = "asker", **more: str) -> str:
    marks = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "TTL": "3000"}
    return encode_properties({**marks, "REPLY_TO_CLIENT": client_id, **more})


async def reply_to(peer: Peer, body: bytes = b"yes", **more: object) -> RemotingCommand:
    fields: dict[str, object] = {"properties": reply_properties(), **more}
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    return await peer.send(TOPIC, body, code=code, **fields)  # type: ignore[arg-type]


def pushed(peer: Peer) -> list[RemotingCommand]:
    return [notice for notice in peer.notices if notice.code == PUSH]


async def test_the_client_that_asked_gets_the_reply_and_then_the_sender_its_answer(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.heartbeat("asker", group="", producers=["askers"])
    async with peer_of(any_broker) as other:
        await other.heartbeat("somebody", group="", producers=["askers"])
        answer = await reply_to(other, h=7, j=2)
        [push] = pushed(any_peer)
        assert pushed(other) == []
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert push.body == b"yes"
    fields = dict(push.ext_fields)
    properties = decode_properties(fields.pop("properties"))
    pushed_ms = int(properties.pop("PUSH_REPLY_TIME"))
    assert encode_properties(properties) == reply_properties()
    assert int(fields.pop("storeTimestamp")) == pushed_ms
    assert fields.pop("bornHost").startswith("127.0.0.1:")
    assert fields == {
        "producerGroup": "producers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "reconsumeTimes": "2",
        "unitMode": "false",
        "storeHost": f"127.0.0.1:{any_broker.port}",
    }


async def test_a_reply_is_stored_as_it_came(broker: Broker, peer: Peer):
    await peer.heartbeat("asker", group="", producers=["askers"])
    body = zlib.compress(b"long " * 1_000)
    text = reply_properties(WAIT="true", TAGS="t")
    answer = await reply_to(peer, body, properties=text, f=1, h=7)
    [stored] = await peer.messages(TOPIC)
    assert answer.ext_fields["msgId"] == stored.offset_message_id
    assert answer.ext_fields["queueOffset"] == "0"
    assert stored.body == b"long " * 1_000
    assert encode_properties(stored.properties) == text
    assert (stored.flag, stored.sys_flag, stored.born_timestamp) == (7, 1, 1_700_000_000_000)


async def test_the_long_header_does_the_same(broker: Broker, peer: Peer):
    await peer.heartbeat("asker", group="", producers=["askers"])
    fields = {
        "producerGroup": "p",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": -1,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "properties": reply_properties(),
    }
    answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"yes")
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext_fields["queueId"] == "0"
    assert [push.body for push in pushed(peer)] == [b"yes"]


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        (reply_properties("nobody"), "push reply message fail, channel of <nobody> not found."),
        ("MSG_TYPE\x01reply", "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
async def test_a_reply_that_reaches_nobody_is_code_1_and_stored_all_the_same(
    broker: Broker, peer: Peer, properties: str, remark: str
):
    answer = await reply_to(peer, properties=properties)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    [stored] = await peer.messages(TOPIC)
    assert answer.ext_fields["msgId"] == stored.offset_message_id


async def test_a_client_that_refuses_or_says_nothing_is_code_1(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replies, "PUSH_SECONDS_MAX", 0.2)

    async def refuse(command: RemotingCommand, connection: object) -> RemotingCommand | None:
        return None if command.body == b"silence" else command.response(1, "no")

    async with RemotingClient(on_request=refuse) as client:
        asker = Peer(peer.address, client)
        await asker.heartbeat("asker", group="", producers=["askers"])
        for body in (b"no", b"silence"):
            answer = await reply_to(peer, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == "push reply message to askerfail."
    assert len(await peer.messages(TOPIC)) == 2


async def test_replies_are_not_stored_when_that_is_switched_off(tmp_path: Path):
    config = small_config(tmp_path, store_reply_message_enable=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.heartbeat("asker", group="", producers=["askers"])
        answer = await reply_to(peer, e=0)
        assert answer.code == ResponseCode.SUCCESS
        # Clients read these of every answer.
        for name in ("msgId", "queueId", "queueOffset"):
            assert answer.ext_fields[name] == "0"
        refused = await reply_to(peer, properties=reply_properties("nobody"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "msgId" not in refused.ext_fields
        assert len(pushed(peer)) == 1
        assert broker.parts.store.queue_bounds(TOPIC, 0) == (0, 0)


async def test_what_no_send_may_do_no_reply_may(broker: Broker, peer: Peer):
    await peer.heartbeat("asker", group="", producers=["askers"])
    answer = await reply_to(peer, e=99)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "queueId[99] is illegal" in answer.remark
    answer = await reply_to(peer, b"x" * (64 * 1024 + 1))
    assert answer.code == ResponseCode.SUCCESS  # it arrived; that it is too long to keep is logged
    answer = await reply_to(peer, properties=reply_properties(long="x" * 33_000))
    assert answer.code == ResponseCode.SUCCESS
    assert await peer.messages(TOPIC) == []


async def test_a_producer_is_found_where_it_was_heard_of_last(broker: Broker, peer: Peer):
    async with peer_of(broker) as old:
        await old.heartbeat("asker", group="", producers=["askers", "others"])
        await peer.heartbeat("asker", group="", producers=["askers"])
        await reply_to(peer)
        assert (len(pushed(old)), len(pushed(peer))) == (0, 1)
    await until(lambda: broker.parts.tables.clients.producers("others") is None)
    assert (await reply_to(peer)).code == ResponseCode.SUCCESS
    fields = {"clientID": "asker", "producerGroup": "askers"}
    await peer.ask(RequestCode.UNREGISTER_CLIENT, fields)
    assert (await reply_to(peer)).code == ResponseCode.SYSTEM_ERROR


async def test_a_producer_of_two_groups_is_found_until_it_has_left_both(broker: Broker, peer: Peer):
    await peer.heartbeat("asker", group="", producers=["one", "two"])
    for group, code in (("one", ResponseCode.SUCCESS), ("two", ResponseCode.SYSTEM_ERROR)):
        fields = {"clientID": "asker", "producerGroup": group}
        await peer.ask(RequestCode.UNREGISTER_CLIENT, fields)
        assert (await reply_to(peer)).code == code


async def test_a_client_with_a_new_id_on_its_connection_has_that_one_only(
    broker: Broker, peer: Peer
):
    for name in ("first", "second"):
        await peer.heartbeat(name, group="", producers=["askers"])
    assert broker.parts.tables.clients.producer("first") is None
    assert broker.parts.tables.clients.producer("second") is not None


async def test_thousands_of_replies_to_oneself_do_not_wait_for_each_other(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    """What a client says to the pushes comes over the connection on which it replies."""
    monkeypatch.setattr(replies, "PUSH_SECONDS_MAX", 60.0)
    await peer.heartbeat("asker", group="", producers=["askers"])
    answers = await asyncio.gather(*(reply_to(peer) for _ in range(IN_FLIGHT_MAX + 500)))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert len(pushed(peer)) == IN_FLIGHT_MAX + 500
    assert not len(broker.parts.replies)


async def test_replies_beyond_the_bound_are_refused_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = small_config(tmp_path, reply_thread_pool_queue_capacity=2)
    may_answer = asyncio.Event()

    async def slow(command: RemotingCommand, connection: object) -> RemotingCommand:
        await may_answer.wait()
        return command.response()

    async with Broker(config) as broker, RemotingClient(on_request=slow) as client:
        asker = Peer(f"127.0.0.1:{broker.port}", client)
        await asker.heartbeat("asker", group="", producers=["askers"])
        first = [asyncio.ensure_future(reply_to(asker)) for _ in range(2)]
        await until(lambda: len(broker.parts.replies) == 2)
        refused = await reply_to(asker)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == "[OVERLOAD]system busy, start flow control for a while"
        may_answer.set()
        assert [answer.code for answer in await asyncio.gather(*first)] == [0, 0]
        # As many again: those before were counted out, by number and by bytes.
        assert (await reply_to(asker)).code == ResponseCode.SUCCESS
        monkeypatch.setattr(replies, "REPLY_BYTES_MAX", 0)
        assert (await reply_to(asker)).code == ResponseCode.SYSTEM_BUSY
