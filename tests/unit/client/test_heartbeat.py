from __future__ import annotations

from kerolox.client.core.consuming.process_queue import ProcessQueue
from kerolox.client.core.consuming.stats import RateWindow, TopicStats
from kerolox.client.core.heartbeat import (
    ConsumerFacts,
    heartbeat_body,
    running_info_body,
    running_properties,
)
from kerolox.filter.tags import subscription_of
from kerolox.message import ConsumeFromWhere, MessageModel, MessageQueue
from kerolox.protocol.fastjson import loads
from kerolox.release import __version__


def test_a_consumers_heartbeat_has_its_subscriptions() -> None:
    facts = ConsumerFacts(
        "g",
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        (subscription_of("T", "a||b", version=5),),
    )
    assert loads(heartbeat_body("id", producer_groups=["p"], consumers=[facts])) == {
        "clientID": "id",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": "g",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [97, 98],
                        "expressionType": "TAG",
                        "subString": "a||b",
                        "subVersion": 5,
                        "tagsSet": ["a", "b"],
                        "topic": "T",
                    }
                ],
                "unitMode": False,
            }
        ],
        "producerDataSet": [{"groupName": "p"}],
    }


def test_running_info_tells_the_truth_about_each_queue() -> None:
    queue = MessageQueue("T", "b", 0)
    process_queue = ProcessQueue()
    process_queue.last_pull_ms = 123
    stats = TopicStats()
    stats.consumed.add(1_000_000, 30, 60)
    info = loads(
        running_info_body(
            properties={"p": "v"},
            subscriptions=[subscription_of("T", "*")],
            queues={queue: (process_queue, 7)},
            stats={"T": stats},
            now_ms=1_000_000,
        )
    )
    assert info["mqTable"][queue]["commitOffset"] == 7
    assert info["mqTable"][queue]["lastPullTimestamp"] == 123
    assert info["mqTable"][queue]["droped"] is False
    assert info["statusTable"]["T"]["consumeOKTPS"] == 0.5
    assert info["statusTable"]["T"]["consumeRT"] == 2.0


def test_a_consumer_tells_its_own_version_beside_that_of_rocketmq() -> None:
    properties = running_properties("CONSUME_PASSIVELY", 1, ["a:1", "b:1"], threads=20)
    assert properties["keroloxVersion"] == __version__
    assert properties["PROP_CLIENT_VERSION"] == "V4_9_8"
    assert properties["PROP_NAMESERVER_ADDR"] == "a:1;b:1"


def test_rates_cover_the_last_minute_only() -> None:
    window = RateWindow()
    window.add(0, 60)
    window.add(59_999, 60, 120)
    assert window.per_second(59_999) == 2.0
    assert window.per_second(60_000) == 1.0
    assert window.mean_ms(60_000) == 2.0
    assert window.per_second(200_000) == 0.0
    assert window.mean_ms(200_000) == 0.0
    assert window.total == 120
