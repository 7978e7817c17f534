import pytest

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark.selection import TOPICS_MAX, Selection

LISTED = [
    *("orders", "orders-eu", "orders-us", "payments"),
    *("%RETRY%orders", "%DLQ%orders", "%LMQ%orders", "SCHEDULE_TOPIC_XXXX", "TBW102"),
    *("RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "broker-a", "DefaultCluster"),
    *("DefaultCluster_REPLY_TOPIC", "A_REPLY_TOPIC"),
]
SYSTEM = ["broker-a", "DefaultCluster"]


def chosen(pattern: str) -> list[str]:
    return list(Selection(pattern=pattern).choose(LISTED, SYSTEM))


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", ["orders"]),
        ("orders-.*", ["orders-eu", "orders-us"]),
        ("order", []),
        ("rders.*", []),
        ("orders|payments", ["orders", "payments"]),
        (".*", ["A_REPLY_TOPIC", "orders", "orders-eu", "orders-us", "payments"]),
        ("%RETRY%.*", ["%RETRY%orders"]),
        ("%DLQ%.*", ["%DLQ%orders"]),
        ("%LMQ%.*", ["%LMQ%orders"]),
        (".*RETRY.*", []),
        ("broker-a", ["broker-a"]),
        ("broker.*", []),
        ("TBW102", ["TBW102"]),
        ("SCHEDULE_TOPIC_XXXX", ["SCHEDULE_TOPIC_XXXX"]),
        ("RMQ_SYS_.*", ["RMQ_SYS_TRANS_HALF_TOPIC"]),
        ("rmq_sys_.*", ["rmq_sys_wheel_timer"]),
        ("(?i)RMQ_SYS_.*", []),
    ],
)
def test_a_pattern_matches_whole_names_and_hides_what_is_not_the_users(pattern, topics):
    assert chosen(pattern) == topics


def test_a_pattern_sees_the_topics_of_its_namespace_without_their_prefix():
    listed = ["orders", "a%orders", "b%orders", "%RETRY%a%g", "%RETRY%g"]
    made = Selection(pattern="o.*", namespace="a")
    assert made.choose(listed, []) == ("a%orders",)
    made = Selection(pattern="%RETRY%.*", namespace="a")
    assert made.choose(listed, []) == ("%RETRY%a%g",)
    assert made.wire_topic("%RETRY%g") == "%RETRY%a%g"


def test_a_pattern_that_means_too_many_topics_is_an_error():
    with pytest.raises(
        ConfigError, match=f"subscribePattern='t.*' matches {TOPICS_MAX + 1} topics"
    ):
        Selection(pattern="t.*").choose([f"t{n}" for n in range(TOPICS_MAX + 1)], [])


def test_only_what_is_read_is_kept_of_what_is_held():
    q0, q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    held = {q0: 5, q1: 7}
    assert Selection(topics=("t",)).only(held) == held
    made = Selection(topics=("t",), queues=frozenset([q1]), option="assign")
    assert made.only(held) == {q1: 7}
    assert made.has(q1)
    assert not made.has(q0)
