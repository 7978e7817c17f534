from __future__ import annotations

import re

import pytest

from kerolox import Producer
from kerolox.client.core.routes import (
    BrokerAddresses,
    QueueData,
    TopicRoute,
    publish_queues,
    route_from_template,
    subscribe_queues,
    why_not_writable,
)
from kerolox.errors import BrokerError, RemoteProtocolError, TopicRouteNotFoundError
from kerolox.message import Message, MessageQueue
from kerolox.testing import LocalBroker

BARE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.2:10911",1:"10.0.0.3:10911"},"brokerName":"b",'
    b'"cluster":"c"},{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"c"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":2,'
    b'"topicSynFlag":1,"writeQueueNums":1},{"brokerName":"a","perm":4,"readQueueNums":1,'
    b'"topicSysFlag":0,"writeQueueNums":3}]}'
)
STRICT = BARE.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":')


@pytest.mark.parametrize("body", [BARE, STRICT], ids=["bare keys", "standard JSON"])
def test_both_forms_of_a_route_are_read(body: bytes) -> None:
    route = TopicRoute.parse(body)
    assert route.brokers == (
        BrokerAddresses("a", "c", {0: "10.0.0.1:10911"}),
        BrokerAddresses("b", "c", {0: "10.0.0.2:10911", 1: "10.0.0.3:10911"}),
    )
    assert route.queues == (QueueData("a", 1, 3, 4, 0), QueueData("b", 2, 1, 6, 1))


def test_producers_get_the_writable_queues_and_consumers_the_readable_ones() -> None:
    route = TopicRoute.parse(BARE)
    assert publish_queues("T", route) == [MessageQueue("T", "b", 0)]
    assert subscribe_queues("T", route) == [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "b", 0),
        MessageQueue("T", "b", 1),
    ]


def test_a_broker_without_master_takes_no_messages() -> None:
    route = TopicRoute.parse(BARE.replace(b'{0:"10.0.0.2:10911",1:', b"{1:"))
    assert publish_queues("T", route) == []
    assert len(subscribe_queues("T", route)) == 3


def test_the_ordered_topic_setting_comes_first() -> None:
    route = TopicRoute.parse(BARE[:-1] + b',"orderTopicConf":"a:1;z:2"}')
    assert publish_queues("T", route) == [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "z", 0),
        MessageQueue("T", "z", 1),
    ]


def test_a_bad_ordered_topic_setting_is_an_error() -> None:
    route = TopicRoute(order_topic_conf="a:many")
    with pytest.raises(RemoteProtocolError, match="a:many"):
        publish_queues("T", route)


def test_a_new_topic_gets_the_queues_of_the_template_up_to_the_limit() -> None:
    template = TopicRoute(queues=(QueueData("a", 8, 16, 7), QueueData("b", 2, 2, 7)))
    assert route_from_template(template, queues=4).queues == (
        QueueData("a", 4, 4, 7),
        QueueData("b", 2, 2, 7),
    )


def test_the_master_is_the_first_choice_of_addresses() -> None:
    assert BrokerAddresses("a", "c", {1: "x", 0: "y"}).any_address() == "y"
    assert BrokerAddresses("a", "c", {1: "x"}).any_address() == "x"
    assert BrokerAddresses("a", "c", {}).any_address() is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"brokerDatas":[{}]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":[]}],"queueDatas":5}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"y"}}]}',
        b'{"queueDatas":[{"brokerName":"a","readQueueNums":"4"}]}',
        b'{"queueDatas":[{"brokerName":"a","readQueueNums":100000000}]}',
        b'{"queueDatas":[{"brokerName":"a","perm":-1}]}',
    ],
)
def test_what_is_no_route_is_an_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        TopicRoute.parse(body)


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (BARE.replace(b'"perm":6', b'"perm":0'), "permission is R on a, none on b, without W"),
        (BARE.replace(b'"perm":6', b'"perm":4'), "permission is R on a, R on b, .* T RW"),
        (BARE.replace(b'{0:"10.0.0.2:10911",1:', b"{1:"), "the master of b is away"),
        (BARE.replace(b'"writeQueueNums":1', b'"writeQueueNums":0'), "no queue to write to on b"),
        (BARE[:-1] + b',"orderTopicConf":"x"}', "ordered-topic setting is 'x'"),
    ],
)
def test_it_is_told_why_a_topic_that_is_there_takes_no_messages(route: bytes, text: str) -> None:
    parsed = TopicRoute.parse(route)
    assert publish_queues("T", parsed) == []
    assert re.search(text, why_not_writable("T", parsed))


async def test_a_send_to_a_topic_of_permission_r_names_the_permission() -> None:
    with LocalBroker() as broker:
        async with Producer("shop", broker.name_server) as producer:
            await producer.create_topic("Payments", queues=1, perm=4)
            with pytest.raises(TopicRouteNotFoundError) as raised:
                await producer.send(Message("Payments", b"x"))
            assert "its permission is R on" in str(raised.value)
            assert "kerolox topic permission Payments RW" in str(raised.value)
            assert "create the topic" not in str(raised.value)


def test_a_broker_that_forbids_it_is_told_with_what_to_do() -> None:
    error = BrokerError.from_response(16, "the broker[1.2.3.4] sending message is forbidden")
    assert "permission of the topic or the group, or brokerPermission of the broker" in str(error)
