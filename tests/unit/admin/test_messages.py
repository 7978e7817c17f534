"""Messages by ``kerolox.admin``: found, read, followed and sent, with recorded answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.admin.test_topics import FakeClient

from kerolox.admin import Access, Admin, TrackType
from kerolox.errors import ClientError, ConnectError, MessageRejectedError
from kerolox.message import Message, MessageExt, encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import HALF_TOPIC
from kerolox.protocol.records import encode_record

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:7"},"brokerName":"a","cluster":"C"}],'
    b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2,"topicSysFlag":0,'
    b'"writeQueueNums":2}]}'
)
ONLINE = (
    b'{"connectionSet":[{"clientAddr":"1.2.3.4:5","clientId":"c","language":"JAVA","version":401}],'
    b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"%s","messageModel":"CLUSTERING",'
    b'"subscriptionTable":{"T":{"classFilterMode":false,"codeSet":[%s],"expressionType":"TAG",'
    b'"subString":"*","subVersion":1,"tagsSet":[%s],"topic":"T"}}}'
)
PROGRESS = (
    b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:'
    b'{"brokerOffset":9,"consumerOffset":%d,"lastTimestamp":5}}}'
)


def stored(offset: int = 0, topic: str = "T") -> MessageExt:
    """A message of the first queue."""
    return MessageExt(
        topic=topic,
        body=b"%d" % offset,
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=100 * offset,
        properties={"TAGS": "red"},
        broker_name="a",
        store_host=("127.0.0.1", 7),
        born_host=("127.0.0.1", 8),
        store_timestamp=1_000 + offset,
    )


def record(message: MessageExt) -> bytes:
    return encode_record(message, encode_properties(message.properties))


class Broker(FakeClient):
    """Has ten messages in queue 0 of T; each pull gives at most two."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: b'{"groupList":["g"]}',
            RequestCode.GET_CONSUMER_CONNECTION_LIST: ONLINE % (b"CONSUME_PASSIVELY", b"", b""),
            RequestCode.GET_CONSUME_STATS: PROGRESS % 9,
        }
        self.ends = 10
        self.goes_on = True

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_seconds: float, ahead: bool = False
    ) -> RemotingCommand:
        code, fields = command.code, command.ext_fields
        if code == RequestCode.PULL_MESSAGE:
            return self._pull(command, int(fields["queueOffset"]), fields["queueId"])
        if code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            ends = self.ends if fields["queueId"] == "0" else 0
            offset = ends if code == RequestCode.GET_MAX_OFFSET else 0
            return command.response(0, None, {"offset": offset})
        return await super().invoke(address, command, timeout_seconds=timeout_seconds)

    def _pull(self, command: RemotingCommand, offset: int, queue_id: str) -> RemotingCommand:
        self.asked.append(("", RequestCode.PULL_MESSAGE, command.ext_fields))
        follows = offset + 2 if self.goes_on else offset
        fields = {"nextBeginOffset": follows, "suggestWhichBrokerId": 0}
        fields |= {"minOffset": 0, "maxOffset": self.ends}
        if offset >= self.ends or queue_id != "0":
            return command.response(19, "PULL_NOT_FOUND", fields)
        body = b"".join(record(stored(each)) for each in range(offset, min(offset + 2, self.ends)))
        return command.response(0, "FOUND", fields, body=body)


@pytest.fixture
def client() -> Broker:
    return Broker()


@pytest.fixture
def admin(client: Broker) -> Admin:
    return Admin.on(Access(client, ("n:1",)))  # type: ignore[arg-type]


async def offsets(admin: Admin, **limits: int) -> list[int]:
    return [each.queue_offset async for each in admin.read_messages("T", **limits)]


async def test_reading_follows_the_offsets_that_the_broker_gives(admin: Admin) -> None:
    assert await offsets(admin) == list(range(10))
    assert await offsets(admin, offset=7) == [7, 8, 9]
    assert await offsets(admin, max_messages=3) == [0, 1, 2]
    assert await offsets(admin, max_messages=0) == []


async def test_reading_ends_where_the_queue_ended_at_its_start(
    client: Broker, admin: Admin
) -> None:
    found = []
    async for message in admin.read_messages("T", queue_id=0):
        found.append(message.queue_offset)
        client.ends += 1  # messages come faster than they are read
    assert found == list(range(10))


async def test_reading_ends_at_a_broker_that_goes_nowhere(client: Broker, admin: Admin) -> None:
    client.goes_on = False
    assert await offsets(admin, queue_id=0) == [0, 1]
    assert len(client.fields(RequestCode.PULL_MESSAGE)) == 1


async def test_reading_commits_nothing_and_holds_nothing(client: Broker, admin: Admin) -> None:
    await offsets(admin)
    for fields in client.fields(RequestCode.PULL_MESSAGE):
        assert (fields["sysFlag"], fields["suspendTimeoutMillis"]) == ("4", "0")
        assert fields["consumerGroup"] == "TOOLS_CONSUMER"


@pytest.mark.parametrize(
    ("online", "consumed", "track"),
    [
        ((b"CONSUME_PASSIVELY", b"", b""), 9, TrackType.CONSUMED),
        ((b"CONSUME_PASSIVELY", b"1", b'"red"'), 9, TrackType.CONSUMED),
        ((b"CONSUME_PASSIVELY", b"1", b'"blue"'), 9, TrackType.CONSUMED_BUT_FILTERED),
        ((b"CONSUME_PASSIVELY", b"", b""), 3, TrackType.NOT_CONSUME_YET),
        ((b"CONSUME_ACTIVELY", b"", b""), 9, TrackType.PULL),
    ],
)
async def test_a_track_says_what_a_group_did_with_a_message(
    client: Broker, admin: Admin, online: tuple[bytes, ...], consumed: int, track: TrackType
) -> None:
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = ONLINE % online
    client.answers[RequestCode.GET_CONSUME_STATS] = PROGRESS % consumed
    [found] = await admin.message_tracks(stored(3))
    assert (found.group, found.type, found.error) == ("g", track, "")


async def test_a_track_of_a_group_that_can_not_be_asked_says_why(
    client: Broker, admin: Admin
) -> None:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    client.answers[code] = (206, "not online")
    client.answers[RequestCode.GET_CONSUME_STATS] = (206, "no offsets")
    [found] = await admin.message_tracks(stored())
    assert (found.type, found.is_online) == (TrackType.NOT_ONLINE, False)
    for consumed, done in ((9, TrackType.CONSUMED), (3, TrackType.NOT_CONSUME_YET)):
        client.answers[RequestCode.GET_CONSUME_STATS] = PROGRESS % consumed
        [found] = await admin.message_tracks(stored(3))
        assert (found.type, found.is_online, found.error) == (done, False, "")
    client.answers[code] = ConnectError("down")
    [found] = await admin.message_tracks(stored())
    assert (found.type, found.error) == (TrackType.UNKNOWN, "down")


async def test_an_id_without_a_topic_is_asked_of_the_broker_that_it_names(
    client: Broker, admin: Admin
) -> None:
    client.answers[RequestCode.VIEW_MESSAGE_BY_ID] = record(stored(4))
    found = await admin.message_by_id(stored(4).offset_message_id)
    assert (found.queue_offset, client.asked[-1][0]) == (4, "127.0.0.1:7")
    for message_id in ("", "zz", "7F0000010000000000000000000000FF"):
        with pytest.raises(ClientError, match="say in which topic it is"):
            await admin.message_by_id(message_id)


async def test_only_half_messages_are_asked_about_again(client: Broker, admin: Admin) -> None:
    client.answers[RequestCode.VIEW_MESSAGE_BY_ID] = record(stored(4))
    with pytest.raises(ClientError, match="is no half message"):
        await admin.resume_check(stored(4).offset_message_id)
    half = stored(4, HALF_TOPIC)
    client.answers[RequestCode.VIEW_MESSAGE_BY_ID] = record(half)
    await admin.resume_check(half.offset_message_id)
    [fields] = client.fields(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    assert fields == {"msgId": half.offset_message_id}


async def test_sends_that_fail_are_counted_and_do_not_end_the_others(
    client: Broker, admin: Admin
) -> None:
    client.answers[RequestCode.SEND_MESSAGE_V2] = ConnectError("down")
    found = await admin.time_sends("T", count=3)
    assert (found.failed, {send.error for send in found.sends}) == (3, {"down"})
    assert [send.queue.queue_id for send in found.sends] == [0, 1, 0]
    for count in (0, -1, 200_000):
        with pytest.raises(ClientError, match="count is"):
            await admin.time_sends("T", count=count)
    with pytest.raises(MessageRejectedError, match="is empty"):
        await admin.time_sends("T", body_bytes=0)


async def test_a_message_is_sent_once_and_to_the_queue_that_is_named(
    client: Broker, admin: Admin
) -> None:
    client.answers[RequestCode.SEND_MESSAGE_V2] = (2, "busy")
    with pytest.raises(Exception, match="busy"):
        await admin.send_message(Message("T", b"x"), broker_name="a", queue_id=1)
    [fields] = client.fields(RequestCode.SEND_MESSAGE_V2)
    assert (fields["b"], fields["e"]) == ("T", "1")
    for where in ({"broker_name": "b"}, {"queue_id": 5}):
        with pytest.raises(ClientError, match="that may be written"):
            await admin.send_message(Message("T", b"x"), **where)  # type: ignore[arg-type]
