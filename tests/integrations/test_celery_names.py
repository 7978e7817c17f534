"""Names and bodies of the transport for Celery, without a broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox import ConfigError, Message, MessageExt
from kerolox.client.core.validate import check_new_topic
from kerolox.integrations.celery.envelope import (
    HOP_PROPERTY,
    is_expired,
    message_of,
    note_expiry,
    payload_of,
    timed,
)
from kerolox.integrations.celery.names import CHARACTERS_MAX, exchange_topic, name_of, queue_topic
from kerolox.integrations.celery.options import Options, client_settings

NOW = 1_700_000_000.0
DAY = 24 * 3600

names = st.text(min_size=1, max_size=4)


@given(names)
def test_a_queue_is_a_topic_that_tells_its_name(name: str) -> None:
    topic = queue_topic(name)
    check_new_topic(topic)
    assert name_of(topic) == name


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery"),
        ("mail.high", "mail%2Ehigh"),
        ("50%", "50%25"),
        ("TBW102", "%54BW102"),
        ("rmq_sys_x", "%72mq_sys_x"),
        ("TOOLS_CONSUMER", "%54OOLS_CONSUMER"),
        ("exchange_a", "%65xchange_a"),
        ("büro", "b%C3%BCro"),
    ],
)
def test_only_what_brokers_refuse_is_escaped(queue: str, topic: str) -> None:
    assert queue_topic(queue) == topic
    assert name_of(topic) == queue


def test_queues_and_exchanges_have_topics_of_their_own() -> None:
    assert exchange_topic("celery.pidbox") == "exchange_celery%2Epidbox"
    assert name_of("exchange_celery%2Epidbox") == "celery.pidbox"
    assert queue_topic("exchange_celery%2Epidbox") != exchange_topic("celery.pidbox")


@pytest.mark.parametrize("queue", ["", "q" * (CHARACTERS_MAX + 1), "." * (CHARACTERS_MAX // 3 + 1)])
def test_a_queue_whose_retries_could_have_no_topic_is_refused(queue: str) -> None:
    with pytest.raises(ConfigError, match="queue"):
        queue_topic(queue)


# -- options ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "wrong",
    [
        {"visibility_timeout": 0},
        {"visibility_timeout": "60"},
        {"topic_queues": 0},
        {"queue_name_prefix": 1},
        {"broadcast_exchanges": "celeryev"},
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Options.of(wrong)


def test_options_of_others_are_left_alone() -> None:
    assert Options.of({"max_retries": 3, "topic_queues": 4}) == Options(topic_queues=4)


def test_a_url_says_account_and_namespace() -> None:
    settings = client_settings(user="alice12", password="secret12", vhost="/shop", tls=True)
    assert settings.credentials is not None
    assert (settings.credentials.access_key, settings.namespace) == ("alice12", "shop")
    assert settings.tls is True
    assert client_settings(user=None, password=None, vhost="/", tls=None).namespace == ""
    with pytest.raises(ConfigError, match="broker_use_ssl"):
        client_settings(user=None, password=None, vhost=None, tls={"cert_reqs": 1})


# -- bodies ----------------------------------------------------------------------------------------
def received(message: Message, **more: object) -> MessageExt:
    place = {"queue_id": 0, "queue_offset": 0, "commit_log_offset": 0}
    properties = dict(message.properties)
    return MessageExt(
        topic=message.topic, body=message.body, properties=properties, **place, **more
    )


def payload(**headers: object) -> dict[str, object]:
    return {
        "body": "[[], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"delivery_info": {"exchange": "", "routing_key": "celery"}},
    }


def test_a_message_comes_back_as_it_was_and_is_found_by_its_task() -> None:
    sent = payload(id="abc-1", task="shop.tasks.pay")
    message = message_of("celery", sent)
    assert (message.keys, message.tags) == ("abc-1", "shop.tasks.pay")
    back = payload_of(received(message))
    assert back["properties"]["delivery_info"].pop("redelivered") is False
    assert back == sent
    again = payload_of(received(message, reconsume_times=1))
    assert again["properties"]["delivery_info"]["redelivered"] is True


@pytest.mark.parametrize("odd", ["a b", "a\x01", "", 7, "x" * 256, "a|b"])
def test_an_odd_name_of_a_task_is_no_tag(odd: object) -> None:
    assert message_of("celery", payload(task=odd)).tags == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain",
        b"\xff\xfe",
        b"[1]",
        b"[" * 100_000,
        b'{"body": 1, "properties": {}}',
        b'{"body": "x", "properties": 1}',
        b'{"body": "x", "properties": {"delivery_info": []}}',
        b'{"body": "x", "properties": {}, "headers": [1]}',
        b'{"__type__": "datetime", "__value__": "never"}',
        json.dumps({"body": "x", "properties": {"__type__": "decimal", "__value__": []}}).encode(),
    ],
)
def test_what_others_send_is_given_on_as_bytes(body: bytes) -> None:
    message = Message("celery", body, properties={"colour": "red"})
    given = payload_of(received(message))
    assert (given["body"], given["content-type"]) == (body, "application/data")
    assert given["headers"] == {"colour": "red"}


# -- times -----------------------------------------------------------------------------------------
def eta(seconds: float) -> str:
    return (datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=seconds)).isoformat()


def test_an_eta_is_the_moment_of_its_message() -> None:
    assert timed({"eta": eta(1.5)}, NOW, 3 * DAY) == (NOW + 1.5, True)
    assert timed({"eta": eta(10 * DAY)}, NOW, 3 * DAY) == (NOW + 3 * DAY, False)


@pytest.mark.parametrize(
    "given", [None, "", "soon", 5, eta(0), eta(-5), "2123-01-01T00:00:00", "9" * 99]
)
def test_what_names_no_moment_to_come_is_sent_at_once(given: object) -> None:
    assert timed({"eta": given}, NOW, 3 * DAY) is None


def test_a_step_on_the_way_to_a_moment_is_marked() -> None:
    assert message_of("celery", payload(), is_hop=True).properties == {HOP_PROPERTY: "1"}


def test_an_expiration_counts_from_the_first_send_on() -> None:
    sent = payload()
    sent["properties"]["expiration"] = "2000"
    note_expiry(sent, NOW)
    note_expiry(sent, NOW + 100)
    assert not is_expired(sent, NOW + 1.9)
    assert is_expired(sent, NOW + 2)
    assert not is_expired(payload(), NOW)
