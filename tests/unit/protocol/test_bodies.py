from __future__ import annotations

import contextlib

import pytest
from tests.support.lines import lines_executed

from kerolox.message import MessageQueue, java_hash
from kerolox.protocol.bodies import (
    BodyError,
    ConsumerData,
    DataVersion,
    HeartbeatData,
    LockBatchBody,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    decode_request,
    encode_body,
    permission_text,
    wire_value,
)
from kerolox.protocol.extensions.roles import RoleChange


def test_members_stand_in_alphabetical_order_as_fastjson_writes_them() -> None:
    table = TopicConfigTable(
        data_version=DataVersion(counter=1, timestamp=2),
        topic_config_table={"T": TopicConfig(topic_name="T")},
    )
    assert encode_body(table) == (
        b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":{"order":false,'
        b'"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        b'"topicSysFlag":0,"writeQueueNums":16}}}'
    )
    members = wire_value(SubscriptionGroupConfig(group_name="g"))
    assert isinstance(members, dict)
    assert list(members) == sorted(members)


def test_a_heartbeat_is_read_as_a_client_writes_it() -> None:
    body = (
        b'{"clientID":"10.0.0.1@1#2","consumerDataSet":[{"consumeFromWhere":'
        b'"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"g",'
        b'"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,'
        b'"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":7,'
        b'"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"producerDataSet":'
        b'[{"groupName":"p"}]}'
    )
    heartbeat = decode_body(body, HeartbeatData)
    assert heartbeat == HeartbeatData(
        client_id="10.0.0.1@1#2",
        consumer_data_set=[
            ConsumerData(
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                group_name="g",
                subscription_data_set=[
                    SubscriptionData(
                        code_set=[2598919],
                        sub_string="TagA",
                        sub_version=7,
                        tags_set=["TagA"],
                        topic="T",
                    )
                ],
            )
        ],
        producer_data_set=[ProducerData(group_name="p")],
    )
    assert encode_body(heartbeat) == body


@pytest.mark.parametrize(
    ("subscription", "codes"),
    [
        (SubscriptionData(topic="T"), None),
        (SubscriptionData(topic="T", sub_string=None), None),
        (SubscriptionData(topic="T", sub_string="a", code_set=[java_hash("a")]), (97,)),
        (SubscriptionData(topic="T", sub_string="a", class_filter_mode=True), None),
    ],
)
def test_a_subscription_matches_all_or_its_codes(
    subscription: SubscriptionData, codes: tuple[int, ...] | None
) -> None:
    assert subscription.tag_codes == codes
    assert subscription.is_tag_type
    assert not SubscriptionData(topic="T", expression_type="SQL92").is_tag_type


def test_queues_to_lock_are_queues() -> None:
    body = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":3,"topic":"T"}]}'
    )
    assert decode_body(body, LockBatchBody).queues == [MessageQueue("T", "b", 3)]


def test_members_of_newer_peers_are_ignored_and_numbers_may_be_text() -> None:
    body = b'{"counter":"5","stateVersion":0,"timestamp":7}'
    assert decode_body(body, DataVersion) == DataVersion(counter=5, timestamp=7)


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"3", b'{"counter":"x"}', b"\xff\xfe{}"])
def test_a_body_of_another_shape_is_an_error_that_names_it(body: bytes) -> None:
    with pytest.raises(BodyError, match="the body is no DataVersion"):
        decode_body(body, DataVersion)


def test_members_that_are_none_are_left_out_and_queues_may_be_keys() -> None:
    queue = MessageQueue("T", "b", 0)
    value = {queue: {"a": None, "b": {1}}, "c": None}
    assert encode_body(value) == b'{{"brokerName":"b","queueId":0,"topic":"T"}:{"b":[1]}}'


def test_a_version_counts_its_changes() -> None:
    assert DataVersion(counter=1, timestamp=2).next(9) == DataVersion(counter=2, timestamp=9)


@pytest.mark.parametrize(("perm", "text"), [(0, "---"), (2, "-W-"), (4, "R--"), (7, "RWX")])
def test_permissions_have_letters(perm: int, text: str) -> None:
    assert permission_text(perm) == text
    assert f"perm={text}" in str(TopicConfig(topic_name="T", perm=perm))


@pytest.mark.parametrize(
    ("body", "body_type"),
    [
        (b'{"topic":"T","subVersion":99999999999999999999}', SubscriptionData),
        (b'{"topic":"T","codeSet":[4294967296]}', SubscriptionData),
        (b'{"groupName":"g","retryMaxTimes":99999999999}', SubscriptionGroupConfig),
    ],
)
def test_a_number_wider_than_java_s_is_refused(body: bytes, body_type: type) -> None:
    with pytest.raises(BodyError):
        decode_body(body, body_type)


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b",".join(b"k%d:0" % number for number in range(10_000)) + b"}",
        b"{" + b",".join(b'{"a":%d}:0' % number for number in range(5_000)) + b"}",
        b'{"clientID":"c","consumerDataSet":[' + b"1," * 60_000 + b"1]}",
        b"{a:[" + b"1," * 4_000 + b"1]}",
        b"{a:" * 30_000 + b"1" + b"}" * 30_000,
        b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"g"},' * 50_000 + b"{}]}",
        b'{"clientID":"c","producerDataSet":[' + b",".join([b'{"groupName":"g"}'] * 50_000) + b"]}",
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T",'
        b'"tagsSet":[' + b",".join([b'"x"'] * 200_000) + b"]}]}]}",
    ],
    ids=[
        "bare keys",
        "objects as keys",
        "a long list",
        "a long list that is bare",
        "deep",
        "producers and one without a name",
        "producers",
        "tags",
    ],
)
def test_no_body_of_a_request_is_much_work(body: bytes) -> None:
    def read() -> None:
        with contextlib.suppress(BodyError):
            decode_request(body, HeartbeatData)

    assert lines_executed(read, at_most=200_000) <= 200_000


def test_a_heartbeat_of_a_thousand_subscriptions_with_numbers_as_enums_is_read() -> None:
    subscriptions = [{"topic": f"T{number}", "subVersion": 1} for number in range(1_000)]
    consumer = {"groupName": "g", "consumeType": 1, "subscriptionDataSet": subscriptions}
    body = encode_body({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": None})
    read = decode_request(body, HeartbeatData)
    assert read.consumer_data_set[0].consume_type == "CONSUME_PASSIVELY"
    assert len(read.consumer_data_set[0].subscription_data_set) == 1_000


def test_what_is_wrong_with_a_body_is_told_in_few_characters() -> None:
    body = b'{"action": "%s"}' % (b"x" * 65_536)
    with pytest.raises(BodyError) as told:
        decode_request(body, RoleChange)
    assert len(str(told.value)) < 1_000
