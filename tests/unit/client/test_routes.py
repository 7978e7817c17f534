from __future__ import annotations

import pytest

from kerolox.client.core.routes import (
    BrokerAddresses,
    QueueData,
    TopicRoute,
    publish_queues,
    route_from_template,
    subscribe_queues,
)
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageQueue

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
