"""Admin functions against a scripted cluster of two clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Access, Admin, TopicKind, is_internal_topic
from kerolox.errors import (
    BrokerSystemError,
    ClientError,
    ConfigError,
    ConnectError,
    MessageRejectedError,
    RemoteProtocolError,
    TopicExistsError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

CLUSTERS = (
    b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"a:1",1:"a:2"},"brokerName":"a","cluster":"C"},'
    b'"b":{"brokerAddrs":{0:"b:1"},"brokerName":"b","cluster":"C"},'
    b'"d":{"brokerAddrs":{1:"d:2"},"brokerName":"d","cluster":"D"}},'
    b'"clusterAddrTable":{"C":["b","a"],"D":["d"]}}'
)
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"b:1"},"brokerName":"b","cluster":"C"},'
    b'{"brokerAddrs":{"0":"a:1","1":"a:2"},"brokerName":"a","cluster":"C"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,'
    b'"topicSysFlag":0,"writeQueueNums":1}]}'
)

LOOKS = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_BROKER_ROLE,
)
ALL_OF_DELETE = (*LOOKS[:2], RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.DELETE_KV_CONFIG)


CREATES = RequestCode.UPDATE_AND_CREATE_TOPIC
HAS = RequestCode.GET_TOPIC_CONFIG


def has(read: int, write: int, *, order: bool = False, perm: int = 6) -> bytes:
    """What a broker says of a topic that it has."""
    return (
        b'{"order":%s,"perm":%d,"readQueueNums":%d,"topicFilterType":"MULTI_TAG","topicName":"T",'
        b'"topicSysFlag":4,"writeQueueNums":%d}'
    ) % (b"true" if order else b"false", perm, read, write)


def stats(broker: str, most: int) -> bytes:
    return (
        b'{"offsetTable":{{"brokerName":"%s","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":5,"maxOffset":%d,"minOffset":1}}}'
    ) % (broker.encode(), most)


_Answer = bytes | Exception | tuple[int, str]
NO_TOPIC: _Answer = (17, "No topic in this broker")


class FakeClient:
    """Answers by (address, code) and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, RequestCode, dict[str, str]]] = []
        self.answers: dict[object, _Answer | Callable[[], _Answer]] = {
            RequestCode.GET_BROKER_CLUSTER_INFO: CLUSTERS,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE,
            RequestCode.GET_TOPIC_CONFIG: NO_TOPIC,
            ("a:1", RequestCode.GET_TOPIC_STATS_INFO): stats("a", 3),
            ("b:1", RequestCode.GET_TOPIC_STATS_INFO): stats("b", 4),
        }

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_seconds: float, ahead: bool = False
    ) -> RemotingCommand:
        code = RequestCode(command.code)
        self.asked.append((address, code, command.ext_fields))
        answer = self.answers.get((address, code), self.answers.get(code, b""))
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, tuple):
            return command.response(answer[0], answer[1])
        return command.response(body=answer)

    def fields(self, code: RequestCode) -> list[dict[str, str]]:
        return [fields for _, asked, fields in self.asked if asked == code]

    def addresses(self, code: RequestCode) -> list[str]:
        return [address for address, asked, _ in self.asked if asked == code]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def admin(client: FakeClient) -> Admin:
    return Admin.on(Access(client, ("n:1", "n:2")))  # type: ignore[arg-type]


async def test_the_next_name_server_is_asked_when_one_is_down(
    client: FakeClient, admin: Admin
) -> None:
    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    client.answers["n:1", code] = ConnectError("down")
    client.answers["n:2", code] = b'{"topicList":["b","a"]}'
    assert await admin.list_topics() == ["a", "b"]
    client.answers["n:2", code] = ConnectError("down too")
    with pytest.raises(ConnectError, match="down too"):
        await admin.list_topics()


async def test_no_name_server_at_all_is_an_error(client: FakeClient) -> None:
    with pytest.raises(ClientError, match="no name server is given"):
        await Admin.on(Access(client, ())).list_topics()  # type: ignore[arg-type]


async def test_cluster_info_names_masters_in_the_order_of_brokers(admin: Admin) -> None:
    info = await admin.cluster_info()
    assert info.masters("C") == ["a:1", "b:1"]
    assert info.brokers["a"].addresses == {0: "a:1", 1: "a:2"}
    with pytest.raises(ClientError, match="no master of cluster 'D'"):
        info.masters("D")
    with pytest.raises(ClientError, match="there is no cluster 'X'; known: C, D"):
        info.masters("X")


async def test_internal_topics_are_told_from_the_users_own(admin: Admin) -> None:
    info = await admin.cluster_info()
    internal = ["TBW102", "%RETRY%g", "%DLQ%g", "C", "a", "C_REPLY_TOPIC", "SCHEDULE_TOPIC_XXXX"]
    assert all(is_internal_topic(topic, info) for topic in internal)
    assert not any(is_internal_topic(topic, info) for topic in ("T", "X_REPLY_TOPIC", "aa"))


async def test_a_topic_is_created_on_all_masters_of_its_cluster(
    client: FakeClient, admin: Admin
) -> None:
    assert await admin.create_topic("T", cluster="C", queues=3, perm=4) == ["a:1", "b:1"]
    assert client.addresses(RequestCode.UPDATE_AND_CREATE_TOPIC) == ["a:1", "b:1"]
    assert client.asked[-1][2] == {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "4",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def with_attributes(text: bytes) -> bytes:
    return has(3, 3).replace(b"{", b'{"attributes":{%s},' % text, 1)


def given(client: FakeClient) -> list[str | None]:
    """The attributes of each request that makes or changes a topic."""
    return [fields.get("attributes") for _, code, fields in client.asked if code == CREATES]


async def test_a_topic_is_created_with_attributes_and_they_are_examined(
    client: FakeClient, admin: Admin
) -> None:
    answers = iter([NO_TOPIC, with_attributes(b'"message.type":"FIFO"')])
    client.answers[HAS] = lambda: next(answers)
    await admin.create_topic("T", broker="a:1", attributes={"message.type": "FIFO"})
    assert given(client) == ["+message.type=FIFO"]


async def test_a_broker_that_keeps_no_attributes_is_named(client: FakeClient, admin: Admin) -> None:
    answers = iter([NO_TOPIC, has(3, 3)])
    client.answers[HAS] = lambda: next(answers)
    with pytest.raises(
        ClientError, match="topic 'T' is on a:1 without the attributes: a broker of"
    ):
        await admin.create_topic("T", broker="a:1", attributes={"message.type": "FIFO"})


async def test_attributes_that_can_t_be_sent_reach_no_broker(
    client: FakeClient, admin: Admin
) -> None:
    for attributes in ({"a": "1,+b=2"}, {"a": ""}):
        with pytest.raises(ConfigError, match=r"attribute 'a=.*' is illegal"):
            await admin.create_topic("T", cluster="C", attributes=attributes)
        with pytest.raises(ConfigError, match=r"attribute 'a=.*' is illegal"):
            await admin.update_topic("T", attributes=attributes)
    assert client.asked == []


async def test_attributes_that_are_not_named_or_as_wanted_are_not_sent(
    client: FakeClient, admin: Admin
) -> None:
    before = with_attributes(b'"message.type":"FIFO","reserve.time":"1"')
    answers = iter([before, with_attributes(b'"message.type":"FIFO"')])
    client.answers["a:1", HAS] = lambda: next(answers)
    wanted = {"message.type": "FIFO", "reserve.time": None, "b": None}
    [change] = await admin.update_topic("T", broker="a:1", attributes=wanted)
    assert given(client) == ["-reserve.time"]
    assert change.old.attributes == {"message.type": "FIFO", "reserve.time": "1"}
    assert change.new.attributes == {"message.type": "FIFO"}
    client.answers["a:1", HAS] = with_attributes(b"")
    [change] = await admin.update_topic("T", broker="a:1", attributes={"b": None})
    assert change.new == change.old
    assert given(client) == ["-reserve.time", None]


async def test_a_topic_has_its_attributes_by_broker(client: FakeClient, admin: Admin) -> None:
    client.answers["a:1", HAS] = with_attributes(b'"message.type":"FIFO"')
    client.answers["b:1", HAS] = with_attributes(b"")
    assert await admin.topic_attributes("T") == {"a": {"message.type": "FIFO"}}


async def test_topics_are_listed_by_their_type_and_one_without_takes_all(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = b'{"topicList":["F","N","M"]}'
    tables = {
        "a:1": b'"F":{"topicName":"F","attributes":{"message.type":"FIFO"}}',
        "b:1": b'"M":{"topicName":"M","attributes":{"message.type":"MIXED"}}',
        "d:2": b'"N":{"topicName":"N","attributes":{}}',
    }
    for address, table in tables.items():
        body = b'{"topicConfigTable":{%s}}' % table
        client.answers[address, RequestCode.GET_ALL_TOPIC_CONFIG] = body
    kinds = [TopicKind.NORMAL]
    found = await admin.topic_summaries(kinds)
    assert [(e.topic, e.message_types) for e in found] == [
        ("F", ("FIFO",)),
        ("M", ("MIXED",)),
        ("N", ()),
    ]
    for types, names in ((["MIXED"], ["M", "N"]), (["FIFO", "DELAY"], ["F"]), (["DELAY"], [])):
        found = await admin.topic_summaries(kinds, message_types=types)
        assert [each.topic for each in found] == names
    client.answers["b:1", RequestCode.GET_ALL_TOPIC_CONFIG] = ConnectError("b:1 is away")
    with pytest.raises(ConnectError, match="b:1"):
        await admin.topic_summaries(kinds, message_types=["FIFO"])
    found = await admin.topic_summaries(kinds)
    assert [each.topic for each in found] == ["F", "M", "N"]


async def test_an_ordered_topic_is_written_to_all_name_servers(
    client: FakeClient, admin: Admin
) -> None:
    await admin.create_topic("T", cluster="C", queues=3, order=True)
    assert client.addresses(RequestCode.PUT_KV_CONFIG) == ["n:1", "n:2"]
    values = [f["value"] for _, code, f in client.asked if code == RequestCode.PUT_KV_CONFIG]
    assert values == ["a:3;b:3"] * 2


async def test_no_topic_is_made_before_every_name_server_has_its_order(
    client: FakeClient, admin: Admin
) -> None:
    client.answers["n:1", RequestCode.PUT_KV_CONFIG] = ConnectError("can't connect to n:1")
    with pytest.raises(ClientError) as caught:
        await admin.create_topic("T", cluster="C", queues=3, order=True)
    told = str(caught.value)
    assert "not made on any broker" in told
    assert "name server n:1 (can't connect to n:1)" in told
    assert "it is at n:2" in told
    assert "run the command again" in told
    assert client.addresses(RequestCode.UPDATE_AND_CREATE_TOPIC) == []
    del client.answers["n:1", RequestCode.PUT_KV_CONFIG]
    assert await admin.create_topic("T", cluster="C", queues=3, order=True) == ["a:1", "b:1"]


async def test_a_topic_that_one_of_two_brokers_refuses_is_told_of_both(
    client: FakeClient, admin: Admin
) -> None:
    client.answers["a:1", RequestCode.UPDATE_AND_CREATE_TOPIC] = (1, "disk full")
    with pytest.raises(ClientError, match=r"on broker a:1 \(.*disk full.*\); it is on b:1; run"):
        await admin.create_topic("T", cluster="C")
    assert client.addresses(RequestCode.UPDATE_AND_CREATE_TOPIC) == ["a:1", "b:1"]


async def test_a_topic_is_created_on_one_broker(client: FakeClient, admin: Admin) -> None:
    assert await admin.create_topic("T", broker="b:1") == ["b:1"]
    assert client.addresses(RequestCode.UPDATE_AND_CREATE_TOPIC) == ["b:1"]


async def test_the_cluster_must_be_named_when_there_are_several(
    client: FakeClient, admin: Admin
) -> None:
    with pytest.raises(ClientError, match="several clusters, choose one: C, D"):
        await admin.create_topic("T")
    client.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = b'{"clusterAddrTable":{}}'
    with pytest.raises(ClientError, match="no broker is registered"):
        await admin.create_topic("T")


async def test_a_broker_that_refuses_is_an_error_with_its_remark(
    client: FakeClient, admin: Admin
) -> None:
    client.answers["b:1", RequestCode.UPDATE_AND_CREATE_TOPIC] = (1, "disk full")
    with pytest.raises(BrokerSystemError, match="code 1 from b:1: disk full"):
        await admin.create_topic("T", broker="b:1")


async def test_a_description_has_the_queues_of_all_brokers(admin: Admin) -> None:
    description = await admin.describe_topic("T")
    assert [(s.queue, s.min_offset, s.max_offset) for s in description.queues] == [
        (MessageQueue("T", "a", 0), 1, 3),
        (MessageQueue("T", "b", 0), 1, 4),
    ]
    assert description.queues[0].last_update_timestamp == 5


async def test_a_topic_is_deleted_on_brokers_first_and_then_on_name_servers(
    client: FakeClient, admin: Admin
) -> None:
    assert await admin.delete_topic("T") == ["a:1", "b:1"]
    assert [each[:2] for each in client.asked if each[1] not in LOOKS] == [
        ("a:1", RequestCode.DELETE_TOPIC_IN_BROKER),
        ("b:1", RequestCode.DELETE_TOPIC_IN_BROKER),
        ("n:1", RequestCode.DELETE_TOPIC_IN_NAMESRV),
        ("n:1", RequestCode.DELETE_KV_CONFIG),
        ("n:2", RequestCode.DELETE_TOPIC_IN_NAMESRV),
        ("n:2", RequestCode.DELETE_KV_CONFIG),
    ]


async def test_a_deletion_that_a_name_server_misses_is_told_and_finished_later(
    client: FakeClient, admin: Admin
) -> None:
    down = {("n:2", code): ConnectError("can't connect to n:2") for code in ALL_OF_DELETE}
    client.answers |= down
    with pytest.raises(ClientError) as caught:
        await admin.delete_topic("T")
    told = str(caught.value)
    assert "at name server n:2 (can't connect to n:2); it is deleted on a:1, b:1, n:1" in told
    assert "run the command again" in told
    # Now it is back, and only it still knows of the topic.
    for key in down:
        del client.answers[key]
    client.asked.clear()
    client.answers["n:1", RequestCode.GET_ROUTEINFO_BY_TOPIC] = (17, "No topic route info")
    client.answers["n:1", RequestCode.GET_KV_CONFIG] = (22, "No config item")
    assert await admin.delete_topic("T") == ["a:1", "b:1"]
    assert ("n:2", RequestCode.DELETE_TOPIC_IN_NAMESRV) in [each[:2] for each in client.asked]


async def test_an_order_that_a_deletion_left_behind_is_deleted_by_the_next(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (17, "No topic route info")
    client.answers["n:1", RequestCode.GET_KV_CONFIG] = (22, "No config item")
    assert await admin.delete_topic("T") == []
    assert client.addresses(RequestCode.DELETE_KV_CONFIG) == ["n:1", "n:2"]


async def test_a_topic_that_a_broker_keeps_stays_known_to_the_name_servers(
    client: FakeClient, admin: Admin
) -> None:
    client.answers["a:1", RequestCode.DELETE_TOPIC_IN_BROKER] = ConnectError("down")
    with pytest.raises(ClientError, match=r"on broker a:1 \(down\); it is deleted on b:1, and"):
        await admin.delete_topic("T")
    assert client.addresses(RequestCode.DELETE_TOPIC_IN_NAMESRV) == []


async def test_a_topic_of_a_broker_whose_master_is_away_is_not_deleted(
    client: FakeClient, admin: Admin
) -> None:
    """It would have the topic still when it is back, where nobody finds it."""
    route = ROUTE.replace(b'{"0":"b:1"}', b'{"1":"b:2"}')
    client.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route
    with pytest.raises(ClientError, match="was not deleted: the master of broker b is not reg"):
        await admin.delete_topic("T")
    codes = {each[1] for each in client.asked}
    assert not codes & {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV}


async def test_a_deletion_without_any_name_server_is_an_error_of_the_connection(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = ConnectError("down")
    with pytest.raises(ConnectError, match="down"):
        await admin.delete_topic("T")


async def test_a_topic_is_deleted_in_one_cluster_only(client: FakeClient, admin: Admin) -> None:
    assert await admin.delete_topic("T", cluster="C") == ["a:1", "b:1"]
    assert client.asked[-1][2] == {"topic": "T", "clusterName": "C"}
    assert client.addresses(RequestCode.DELETE_KV_CONFIG) == []
    with pytest.raises(ClientError, match="there is no cluster 'X'"):
        await admin.delete_topic("T", cluster="X")


async def test_a_topic_that_does_not_exist_is_named(client: FakeClient, admin: Admin) -> None:
    client.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (17, "No topic route info")
    client.answers[RequestCode.GET_KV_CONFIG] = (22, "No config item")
    for function in (admin.describe_topic, admin.delete_topic):
        with pytest.raises(TopicRouteNotFoundError, match="there is no topic 'T' at n:1; n:2"):
            await function("T")


@pytest.mark.parametrize("name", ["no/such", "", "x" * 128, "TBW102"])
async def test_an_illegal_name_is_refused_before_anything_is_asked(
    name: str, client: FakeClient, admin: Admin
) -> None:
    with pytest.raises(MessageRejectedError):
        await admin.create_topic(name)
    assert client.asked == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null"])
async def test_an_answer_of_another_shape_is_an_error_of_the_peer(
    body: bytes, client: FakeClient, admin: Admin
) -> None:
    code = RequestCode.GET_TOPIC_STATS_INFO
    client.answers["a:1", code] = body
    client.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = body
    client.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = body
    calls: list[Callable[[], object]] = [
        lambda: admin.list_topics(),
        lambda: admin.cluster_info(),
        lambda: admin.describe_topic("T"),
    ]
    for call in calls:
        with pytest.raises(RemoteProtocolError):
            await call()  # type: ignore[misc]


async def test_a_topic_that_is_there_is_not_created_again(client: FakeClient, admin: Admin) -> None:
    client.answers["a:1", HAS] = has(4, 4)
    client.answers["b:1", HAS] = has(8, 8)
    with pytest.raises(TopicExistsError) as caught:
        await admin.create_topic("T", cluster="C", queues=2)
    told = str(caught.value)
    assert "4 read, 4 write queues, perm 6 on a:1; 8 read, 8 write queues, perm 6 on b:1" in told
    assert "'kerolox topic update T' changes it" in told
    # Nor where one broker has it with other settings.
    client.answers["b:1", HAS] = (17, "No topic in this broker")
    with pytest.raises(TopicExistsError):
        await admin.create_topic("T", cluster="C", queues=2)
    with pytest.raises(TopicExistsError):
        await admin.create_topic("T", broker="a:1", queues=4)
    assert client.addresses(CREATES) == client.addresses(RequestCode.PUT_KV_CONFIG) == []


async def test_a_creation_that_was_cut_short_is_finished_by_the_next(
    client: FakeClient, admin: Admin
) -> None:
    client.answers["a:1", HAS] = b'{"perm":6,"readQueueNums":2,"topicName":"T","writeQueueNums":2}'
    assert await admin.create_topic("T", cluster="C", queues=2) == ["a:1", "b:1"]
    assert client.addresses(CREATES) == ["a:1", "b:1"]


async def test_a_broker_that_can_not_tell_of_one_topic_tells_of_all(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[HAS] = (3, "request type 351 not supported")
    client.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = (
        b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":%s}}' % has(4, 2)
    )
    found = await admin.topic_settings("a:1", "T")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums) == (4, 2)
    assert await admin.topic_settings("a:1", "U") is None
    client.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = b"[]"
    with pytest.raises(RemoteProtocolError, match="the topic of a:1 has an unknown shape"):
        await admin.topic_settings("a:1", "T")


async def test_an_update_changes_what_is_named_and_keeps_the_rest(
    client: FakeClient, admin: Admin
) -> None:
    client.answers["a:1", HAS] = has(4, 4, perm=4)
    client.answers["b:1", HAS] = has(8, 8)
    changes = await admin.update_topic("T", queues=8)
    assert [(c.broker_name, c.old == c.new, c.kept_read_queues) for c in changes] == [
        ("a", False, 0),
        ("b", True, 0),
    ]
    # A broker that has it may have it in memory alone: its answer says that it is in its file.
    assert client.addresses(CREATES) == ["a:1", "b:1"]
    assert client.fields(CREATES)[0] == {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "8",
        "writeQueueNums": "8",
        "perm": "4",
        "topicFilterType": "MULTI_TAG",
        "topicSysFlag": "4",
        "order": "false",
    }


async def test_read_queues_shrink_only_when_that_is_asked_for(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[HAS] = has(4, 4)
    [change] = await admin.update_topic("T", broker="a:1", queues=2)
    assert change.kept_read_queues == 4
    fields = client.fields(CREATES)[-1]
    assert (fields["readQueueNums"], fields["writeQueueNums"]) == ("4", "2")
    [change] = await admin.update_topic("T", broker="a:1", queues=2, shrink_read_queues=True)
    assert change.kept_read_queues == 0
    assert client.fields(CREATES)[-1]["readQueueNums"] == "2"


async def test_a_dry_run_asks_and_changes_nothing(client: FakeClient, admin: Admin) -> None:
    client.answers[HAS] = has(4, 4, order=True)
    changes = await admin.update_topic("T", queues=8, dry_run=True)
    assert [c.new.write_queue_nums for c in changes] == [8, 8]
    assert client.addresses(CREATES) == client.addresses(RequestCode.PUT_KV_CONFIG) == []


async def test_the_order_of_a_topic_follows_its_queues_and_its_end(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[HAS] = has(4, 4)
    client.answers[RequestCode.GET_KV_CONFIG] = (22, "No config item")
    await admin.update_topic("T", order=True, queues=6)
    values = [fields["value"] for fields in client.fields(RequestCode.PUT_KV_CONFIG)]
    assert values == ["a:6;b:6"] * 2
    client.answers[HAS] = has(6, 6, order=True)
    await admin.update_topic("T", perm=4)
    await admin.update_topic("T", order=False)
    assert client.addresses(RequestCode.DELETE_KV_CONFIG) == []  # the name servers had none


async def test_an_update_that_is_half_done_says_what_is_and_what_is_not(
    client: FakeClient, admin: Admin
) -> None:
    client.answers[HAS] = has(4, 4)
    client.answers["a:1", CREATES] = (1, "disk full")
    with pytest.raises(ClientError, match=r"on broker a:1 \(.*disk full.*\); it is changed on b:1"):
        await admin.update_topic("T", queues=8)
    client.answers["n:1", RequestCode.GET_ROUTEINFO_BY_TOPIC] = ConnectError("down")
    with pytest.raises(ClientError, match=r"name server n:1 \(down\) does not say where"):
        await admin.update_topic("T", queues=8)


async def test_a_topic_that_a_broker_lacks_is_not_updated_there(
    client: FakeClient, admin: Admin
) -> None:
    with pytest.raises(ClientError, match="topic 'T' is not on broker a:1; create it there"):
        await admin.update_topic("T", queues=8)
    with pytest.raises(ClientError, match="is not on cluster 'X'"):
        await admin.update_topic("T", cluster="X", queues=8)
    with pytest.raises(MessageRejectedError):
        await admin.update_topic("TBW102", queues=8)
    assert client.addresses(CREATES) == []
