from __future__ import annotations

import pytest

from kerolox.client.core.validate import (
    check_batch,
    check_body,
    check_consumer_group,
    check_producer_group,
    check_send_topic,
    check_topic,
)
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.message import Message
from kerolox.protocol.names import is_system_topic


@pytest.mark.parametrize("topic", ["T", "%RETRY%group", "a|b-c_9", "x" * 127, "TBW102"])
def test_legal_topics_pass(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("topic", ["", " ", "a b", "tópic", "a.b", "x" * 128, "a\n"])
def test_illegal_topics_are_refused(topic: str) -> None:
    with pytest.raises(MessageRejectedError):
        check_topic(topic)


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT"]
)
def test_topics_of_the_broker_take_no_messages(topic: str) -> None:
    check_topic(topic)
    with pytest.raises(MessageRejectedError, match="broker only"):
        check_send_topic(topic)


def test_system_topics_are_known_by_name_and_prefix() -> None:
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("Orders")


@pytest.mark.parametrize("group", ["", "a b", "g" * 256, "ü"])
def test_illegal_groups_are_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="producer group"):
        check_producer_group(group)
    with pytest.raises(ConfigError, match="consumer group"):
        check_consumer_group(group)


def test_the_default_groups_are_reserved() -> None:
    with pytest.raises(ConfigError, match="reserved"):
        check_producer_group("DEFAULT_PRODUCER")
    with pytest.raises(ConfigError, match="reserved"):
        check_consumer_group("DEFAULT_CONSUMER")
    check_consumer_group("DEFAULT_PRODUCER")
    check_producer_group("g" * 255)


def test_a_body_needs_a_byte_and_fits_the_limit() -> None:
    check_body(b"12345", bytes_max=5)
    with pytest.raises(MessageRejectedError, match="empty"):
        check_body(b"", bytes_max=5)
    with pytest.raises(MessageRejectedError, match="6 bytes; the limit is 5"):
        check_body(b"123456", bytes_max=5)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ([], "empty"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
        ([Message("a", b"x"), Message("a", b"x", delay_level=1)], "delayed"),
        ([Message("a", b"x"), Message("a", b"x", wait_store_ok=False)], "wait_store_ok"),
    ],
)
def test_messages_that_cannot_travel_together_are_refused(
    batch: list[Message], reason: str
) -> None:
    with pytest.raises(MessageRejectedError, match=reason):
        check_batch(batch)
