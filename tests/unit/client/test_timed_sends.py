"""Messages for a moment: what a producer sends, gets and takes back, with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kerolox.client import Producer, sync
from kerolox.errors import BrokerError, MessageRejectedError, TopicRouteNotFoundError
from kerolox.message import Message, MessageExt
from kerolox.protocol.recall_handles import RecallHandle, decode_handle
from kerolox.testing import LocalBroker
from tests.support.eventually import until

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as made:
        yield made


def waiting(broker: LocalBroker, topic: str) -> list[MessageExt]:
    """Messages that wait for a topic, with their properties."""
    found = broker.messages("rmq_sys_wheel_timer")
    return [each for each in found if each.properties["REAL_TOPIC"] == topic]


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"deliver_after": 0.25}, "TIMER_DELAY_MS", "250"),
        ({"deliver_after": timedelta(hours=3, milliseconds=7)}, "TIMER_DELAY_MS", "10800007"),
        ({"deliver_after": 3_600}, "TIMER_DELAY_MS", "3600000"),
        ({"deliver_after": 1, "round_up": True}, "TIMER_DELAY_MS", "1000"),
    ],
)
async def test_a_delay_travels_as_it_is_to_a_broker_with_a_timer(
    broker: LocalBroker, given: dict[str, Any], name: str, value: str
) -> None:
    topic = broker.create_topic()
    async with Producer("p", broker.name_server) as producer:
        result = await producer.send(Message(topic, b"x"), **given)
        assert result.is_ok
        handle = decode_handle(result.recall_handle)
        assert (handle.topic, handle.unique_key) == (topic, result.message_id)
        again = await producer.submit(Message(topic, b"y"), **given)
        assert again.recall_handle
        await producer.send_oneway(Message(topic, b"z"), **given)
        await until(lambda: len(waiting(broker, topic)) == 3)
    for message in waiting(broker, topic):
        assert message.properties[name] == value
        assert "DELAY" not in message.properties


async def test_a_moment_is_that_of_its_zone(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    at = datetime.now(UTC) + HOUR
    async with Producer("p", broker.name_server) as producer:
        for zone in (UTC, timezone(timedelta(hours=-7))):
            await producer.send(Message(topic, b"x"), deliver_at=at.astimezone(zone))
        now = await producer.send(Message(topic, b"now"), deliver_at=at - 2 * HOUR)
    assert now.recall_handle == ""
    expected = str(round(at.timestamp() * 1_000))
    assert [each.properties["TIMER_DELIVER_MS"] for each in waiting(broker, topic)] == [
        expected,
        expected,
    ]
    assert [each.body for each in broker.messages(topic, count=1)] == [b"now"]


async def test_a_message_that_waits_is_taken_back_and_others_come(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    async with Producer("p", broker.name_server) as producer:
        taken = await producer.send(Message(topic, b"taken"), deliver_after=HOUR)
        await producer.send(Message(topic, b"kept"), deliver_after=HOUR)
        assert await producer.recall(taken.recall_handle) == taken.message_id
        await asyncio.to_thread(broker.advance, hours=2)
        found = await asyncio.to_thread(broker.messages, topic, count=1)
        assert [each.body for each in found] == [b"kept"]
        with pytest.raises(BrokerError, match="its moment is over") as caught:
            await producer.recall(taken.recall_handle)
        assert caught.value.code == 604


async def test_what_is_no_handle_or_of_nobody_is_refused(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    async with Producer("p", broker.name_server) as producer:
        result = await producer.send(Message(topic, b"x"), deliver_after=HOUR)
        for handle in ("", "?", result.recall_handle[:20]):
            with pytest.raises(MessageRejectedError, match="recall handle is invalid"):
                await producer.recall(handle)
        found = decode_handle(result.recall_handle)
        with pytest.raises(BrokerError, match="no message of this handle"):
            await producer.recall(found._replace(unique_key="z").encode())
        with pytest.raises(TopicRouteNotFoundError, match="which the handle names"):
            await producer.recall(found._replace(broker_name="gone").encode())
        with pytest.raises(TopicRouteNotFoundError):
            await producer.recall(RecallHandle("none", "gone", 1, "k").encode())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"deliver_at": datetime(2100, 1, 1)}, "a datetime with a zone"),
        ({"deliver_at": 5}, "a datetime with a zone"),
        ({"deliver_after": -1}, "seconds from 0 on"),
        ({"deliver_after": float("nan")}, "seconds from 0 on"),
        ({"deliver_after": 1, "deliver_at": datetime.now(UTC)}, "one of deliver_after and"),
    ],
)
async def test_moments_that_are_none_are_refused(
    broker: LocalBroker, given: dict[str, Any], words: str
) -> None:
    async with Producer("p", broker.name_server) as producer:
        with pytest.raises(MessageRejectedError, match=words):
            await producer.send(Message(broker.create_topic(), b"x"), **given)


async def test_a_message_with_two_moments_is_refused(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    async with Producer("p", broker.name_server) as producer:
        for message in (
            Message(topic, b"x", delay_level=1),
            Message(topic, b"x", properties={"TIMER_DELAY_MS": "5"}),
        ):
            with pytest.raises(MessageRejectedError, match="leave one of them out"):
                await producer.send(message, deliver_after=1)
        with pytest.raises(BrokerError, match="bigger than the max delay") as caught:
            await producer.send(Message(topic, b"x"), deliver_after=timedelta(days=9))
        assert caught.value.code == 13


def test_the_blocking_producer_does_the_same(broker: LocalBroker) -> None:
    topic = broker.create_topic()
    with sync.Producer("p", broker.name_server) as producer:
        at = datetime.now(UTC) + 5 * HOUR
        result = producer.send(Message(topic, b"x"), deliver_at=at)
        assert producer.recall(result.recall_handle) == result.message_id
