"""Ready-made choices of queues, ordering keys, and delays given as durations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import (
    Producer,
    ProducerSettings,
    select_by_hash,
    select_by_machine_room,
    select_by_random,
)
from kerolox.client.core.delays import delay_level
from kerolox.client.core.sending.queue_choice import key_hash
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.message import Message, MessageQueue, decode_properties
from kerolox.protocol.codes import RequestCode
from tests.support.servers.fake_broker import FakeBroker, route_body

QUEUES = [MessageQueue("T", broker, i) for broker in ("a", "b") for i in range(3)]
MESSAGE = Message("T", b"x")
LEVELS = delay_levels_ms(DEFAULT_DELAY_LEVELS)
SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("key", "code"),
    [
        # String.hashCode, Integer.hashCode and Long.hashCode of Java
        ("", 0),
        ("order-1", -1207111310),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
        (0, 0),
        (42, 42),
        (-7, -7),
        (2**31, -(2**31)),
        (2**32 + 5, 4),
        (-(2**40), -256),
    ],
)
def test_keys_have_javas_hash_codes(key: str | int, code: int) -> None:
    assert key_hash(key) == code


@pytest.mark.parametrize("key", [None, 1.5, True, b"x", 2**63])
def test_what_has_no_hash_code_in_java_is_refused(key: Any) -> None:
    with pytest.raises(MessageRejectedError, match="neither a text nor a number"):
        select_by_hash(key)


@pytest.mark.parametrize(
    ("key", "index"), [(0, 0), (7, 1), (-7, 1), ("polygenelubricants", 2), ("order-1", 2)]
)
def test_a_key_takes_the_absolute_remainder(key: str | int, index: int) -> None:
    assert select_by_hash(key)(QUEUES, MESSAGE) == QUEUES[index]


def test_random_choices_reach_every_queue() -> None:
    select = select_by_random()
    assert {select(QUEUES, MESSAGE) for _ in range(1000)} == set(QUEUES)


def test_a_machine_room_has_the_brokers_that_it_begins() -> None:
    queues = [MessageQueue("T", name, 0) for name in ("r1@a", "r1@b", "r2@a", "r10@a", "c")]
    select = select_by_machine_room("r1")
    assert {select(queues, MESSAGE).broker_name for _ in range(200)} == {"r1@a", "r1@b"}
    both = select_by_machine_room("r2", "r10")
    assert {both(queues, MESSAGE).broker_name for _ in range(200)} == {"r2@a", "r10@a"}
    with pytest.raises(
        MessageRejectedError, match="in machine room r3; its brokers are c, r10@a, r1@a"
    ):
        select_by_machine_room("r3")(queues, MESSAGE)


@pytest.mark.parametrize(
    ("after", "level"),
    [(0, 0), (1, 1), (1.0, 1), (30, 4), (timedelta(minutes=1), 5), (7200, 18), (0.0004, 0)],
)
def test_a_duration_has_the_level_that_is_equal(after: float | timedelta, level: int) -> None:
    assert delay_level(after, LEVELS) == level
    assert delay_level(after, LEVELS, round_up=True) == level


def test_between_levels_the_longer_one_is_taken_on_demand_only() -> None:
    with pytest.raises(MessageRejectedError, match="45 s, which no delay level has; the nearest"):
        delay_level(45, LEVELS)
    with pytest.raises(MessageRejectedError, match=r"are 30 s and 60 s\. Give one of them"):
        delay_level(45, LEVELS)
    assert delay_level(45, LEVELS, round_up=True) == 5
    with pytest.raises(MessageRejectedError, match=r"the nearest are 1 s\."):
        delay_level(0.5, LEVELS)
    assert delay_level(0.5, LEVELS, round_up=True) == 1


def test_levels_need_not_be_in_order() -> None:
    levels = delay_levels_ms("1h 5s 1m")
    assert [delay_level(each, levels) for each in (5, 60, 3600)] == [2, 3, 1]
    assert delay_level(6, levels, round_up=True) == 3


@pytest.mark.parametrize("after", [-1, float("nan"), True, "30", timedelta(seconds=-1)])
def test_what_is_no_duration_is_refused(after: Any) -> None:
    with pytest.raises(MessageRejectedError, match="must be seconds from 0 on, or a timedelta"):
        delay_level(after, LEVELS)


@pytest.mark.parametrize("after", [7200.001, float("inf"), timedelta(days=1)])
def test_beyond_the_longest_level_is_an_error_even_rounded(after: Any) -> None:
    with pytest.raises(MessageRejectedError, match="the longest delay level is 7200 s"):
        delay_level(after, LEVELS, round_up=True)


# -- through a producer ---------------------------------------------------------------------------
@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = route_body({"a": made.address}, queues=6)
        yield made


def queue_ids(broker: FakeBroker) -> list[int]:
    return [int(command.ext_fields["e"]) for command in broker.seen[SEND]]


@pytest.mark.parametrize("namespace", ["", "tenant"])
async def test_a_key_keeps_its_queue_first_send_or_not(broker: FakeBroker, namespace: str) -> None:
    broker.routes["tenant%T"] = broker.routes["T"]
    settings = ProducerSettings(namespace=namespace)
    async with Producer("G", broker.address, settings=settings) as producer:
        sent = [await producer.send(MESSAGE, ordering_key="order-1") for _ in range(3)]
        await producer.send_oneway(MESSAGE, ordering_key="order-1")
        await producer.send(MESSAGE, ordering_key=7)
        await producer.send(MESSAGE, selector=select_by_hash("order-1"))
    assert {result.queue for result in sent} == {MessageQueue("T", "a", 2)}
    assert queue_ids(broker) == [2, 2, 2, 2, 1, 2]


async def test_an_ordered_topic_keeps_its_queues_where_a_broker_is_away(
    broker: FakeBroker,
) -> None:
    from kerolox.protocol.fastjson import dumps, loads

    route = loads(broker.routes["T"])
    route["orderTopicConf"] = "a:2;gone:2"
    broker.routes["T"] = dumps(route)
    async with Producer("G", broker.address) as producer:
        await producer.send(MESSAGE, ordering_key=0)
        await producer.send(MESSAGE, ordering_key=1)
        assert (await producer.queues("T"))[-1] == MessageQueue("T", "gone", 1)
    assert queue_ids(broker) == [0, 1]


async def test_a_send_with_a_key_is_not_tried_elsewhere(broker: FakeBroker) -> None:
    async def refuse(command: Any) -> Any:
        return command.response(14, "told to")

    broker.answers[SEND] = refuse
    async with Producer("G", broker.address) as producer:
        for _ in range(2):  # the second has a plan
            with pytest.raises(Exception, match="told to"):
                await producer.send(MESSAGE, ordering_key="order-1")
    assert len(broker.seen[SEND]) == 2


async def test_only_one_thing_chooses_the_queue(broker: FakeBroker) -> None:
    async with Producer("G", broker.address) as producer:
        for more in ({"queue": QUEUES[0]}, {"selector": select_by_random()}):
            with pytest.raises(MessageRejectedError, match="one of queue, selector and ordering"):
                await producer.send(MESSAGE, ordering_key="k", **more)
    assert not broker.seen[SEND]


async def test_a_delay_travels_as_its_level_to_brokers_without_a_timer(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ProducerSettings(delay_levels="10s 1m")
    async with Producer("G", broker.address, settings=settings) as producer:
        await producer.send(MESSAGE, deliver_after=60)
        await producer.send(MESSAGE, deliver_after=timedelta(seconds=11), round_up=True)
        await producer.send_oneway(MESSAGE, deliver_after=10)
        await producer.send(MESSAGE, deliver_after=0)
        assert caplog.text.count("has no timer") == 1
        with pytest.raises(MessageRejectedError, match="which no delay level has"):
            await producer.send(MESSAGE, deliver_after=30)
        with pytest.raises(MessageRejectedError, match="leave one of them out"):
            await producer.send(Message("T", b"x", delay_level=1), deliver_after=10)
    sent = [decode_properties(c.ext_fields["i"]).get("DELAY", "") for c in broker.seen[SEND]]
    assert sorted(sent) == ["", "1", "2", "2"]
    assert MESSAGE.delay_level == 0


def test_delay_levels_are_checked_at_once() -> None:
    with pytest.raises(ConfigError, match="delay_levels: '5x' is no delay"):
        ProducerSettings(delay_levels="1s 5x")
