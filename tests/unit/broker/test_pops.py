"""Pops over a real socket: delivery, acknowledgement, coming again, waiting, order."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.broker.broker import Broker
from kerolox.message import PropertyKey
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.pop import PopReceipt
from kerolox.protocol.pop_names import PopInitMode
from kerolox.testing import Clock
from tests.support.clients.peer import Peer, peer_of
from tests.support.clients.pops import GROUP, INVISIBLE_MS, Member, PoppedMessage
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

RETRY_TOPIC = f"%RETRY%{GROUP}_T"


async def filled(peer: Peer, count: int = 6, queues: int = 2) -> Member:
    """A member of a group at a topic with messages."""
    await peer.create_topic("T", queues)
    for number in range(count):
        await peer.send("T", b"%d" % number, queue_id=number % queues)
    return Member(peer)


def texts(popped: list[PoppedMessage]) -> list[str]:
    return sorted(each.text for each in popped)


def offset_of(broker: Broker, topic: str = "T", queue_id: int = 0, group: str = GROUP) -> int:
    return broker.parts.tables.offsets.query(group, topic, queue_id)


def turn(broker: Broker, milliseconds: int) -> None:
    """Let time pass."""
    clock = broker._now_ms
    assert isinstance(clock, Clock)
    clock.ahead_ms += milliseconds


async def popped_again(member: Member, count: int) -> list[PoppedMessage]:
    """Messages whose time is over, as soon as they are copied."""
    found: list[PoppedMessage] = []

    async def come() -> bool:
        found.extend(await member.pop())
        return len(found) >= count

    await until(come)
    return found


# -- pops and acknowledgements ------------------------------------------------------------------
async def test_a_pop_takes_messages_of_all_queues_once(any_peer: Peer):
    member = await filled(any_peer)
    first = await member.pop(4)
    second = await member.pop(4)
    assert len(first) == 4
    assert texts(first + second) == ["0", "1", "2", "3", "4", "5"]
    assert await member.pop() == []


async def test_a_pop_of_one_queue_takes_its_messages_alone(any_peer: Peer):
    member = await filled(any_peer)
    assert texts(await member.pop(queueId=1)) == ["1", "3", "5"]


async def test_an_offset_goes_on_to_the_lowest_that_is_not_done(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 3, queues=1)
    popped = await member.pop()
    assert offset_of(any_broker) == 0
    await member.ack_all(popped[1:])
    assert offset_of(any_broker) == 0
    await member.ack_all(popped[:1])
    assert offset_of(any_broker) == 3


async def test_acknowledgements_of_a_batch_count_for_each_queue(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer)
    answer = await member.ack_together(await member.drain())
    assert answer.code == ResponseCode.SUCCESS
    assert [offset_of(any_broker, queue_id=each) for each in (0, 1)] == [3, 3]


async def test_an_empty_batch_of_acknowledgements_is_code_208(any_peer: Peer):
    answer = await any_peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=b'{"acks":[]}')
    assert answer.code == ResponseCode.NO_MESSAGE


async def test_messages_that_are_not_acknowledged_come_again(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 2, queues=1)
    popped = await member.pop()
    await member.ack_all(popped[:1])
    turn(any_broker, INVISIBLE_MS + 1)
    again = await popped_again(member, 1)
    assert texts(again) == [popped[1].text]
    assert again[0].message.topic == "T"
    assert again[0].message.reconsume_times == 1
    first_pop = again[0].message.properties[PropertyKey.FIRST_POP_TIME]
    assert first_pop == str(popped[1].receipt.pop_time)
    assert (
        PopReceipt.parse(again[0].message.properties[PropertyKey.POP_RECEIPT]) == again[0].receipt
    )
    assert again[0].topic == RETRY_TOPIC
    await until(lambda: offset_of(any_broker) == 2)
    await member.ack_all(again)
    assert offset_of(any_broker, RETRY_TOPIC) == 1
    turn(any_broker, INVISIBLE_MS + 1)
    await any_broker.parts.popping.revival.run()
    assert await member.pop() == []


@pytest.mark.parametrize("retries_max", [16, 0])
async def test_a_slave_gets_no_offset_behind_a_message_whose_copy_it_lacks(
    any_peer: Peer, any_broker: Broker, retries_max: int
):
    member = await filled(any_peer, 4, queues=1)
    group = fastjson.dumps({"groupName": GROUP, "retryMaxTimes": retries_max})
    await any_peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    popped = await member.pop()
    await member.ack_all([popped[0], popped[3]])
    log_end = any_broker.parts.store.max_physical_offset
    turn(any_broker, INVISIBLE_MS + 1)
    await any_broker.parts.popping.revival.run()
    await until(lambda: offset_of(any_broker) == 4)

    async def told(**fields: object) -> int:
        answer = await any_peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {"pops": True, **fields})
        offset: int = fastjson.loads(answer.body)["offsetTable"][f"T@{GROUP}"][0]
        return offset

    end = any_broker.parts.store.max_physical_offset
    assert [await told(logEnd=each) for each in (0, log_end, end - 1, end)] == [1, 1, 2, 4]
    assert await told() == offset_of(any_broker) == 4


async def test_a_message_goes_to_the_dead_letters_at_the_maximum(
    any_peer: Peer, any_broker: Broker
):
    member = await filled(any_peer, 1, queues=1)
    group = fastjson.dumps({"groupName": GROUP, "retryMaxTimes": 1})
    await any_peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    await member.pop()
    turn(any_broker, INVISIBLE_MS + 1)
    await popped_again(member, 1)
    turn(any_broker, INVISIBLE_MS + 1)
    dead = f"%DLQ%{GROUP}"

    async def is_dead() -> bool:
        return any_broker.parts.store.queue_bounds(dead, 0)[1] == 1

    await until(is_dead)
    message = (await any_peer.messages(dead))[0]
    assert message.body == b"0"
    assert message.reconsume_times == 2
    assert message.properties[PropertyKey.RETRY_TOPIC] == "T"
    assert await member.pop() == []


async def test_a_change_lets_a_message_come_again_at_once(any_peer: Peer):
    member = await filled(any_peer, 1, queues=1)
    popped = await member.pop()
    answer = await member.change(popped[0], 0)
    assert answer.code == ResponseCode.SUCCESS
    assert texts(await popped_again(member, 1)) == ["0"]


async def test_a_change_keeps_a_message_for_longer(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 1, queues=1)
    popped = await member.pop()
    answer = await member.change(popped[0], 3 * INVISIBLE_MS)
    assert int(answer.ext_fields["invisibleTime"]) == 3 * INVISIBLE_MS
    turn(any_broker, 2 * INVISIBLE_MS)
    await any_broker.parts.popping.revival.run()
    assert await member.pop() == []
    await member.ack_all(popped)
    assert offset_of(any_broker) == 1


async def test_a_change_of_a_message_that_is_done_is_code_208(any_peer: Peer):
    member = await filled(any_peer, 2, queues=1)
    popped = await member.pop()
    await member.ack_all(popped[:1])
    assert (await member.change(popped[0], 1_000)).code == ResponseCode.NO_MESSAGE


async def test_a_late_acknowledgement_leaves_the_next_delivery_alone(
    any_peer: Peer, any_broker: Broker
):
    member = await filled(any_peer, 1, queues=1)
    late = await member.pop()
    turn(any_broker, INVISIBLE_MS + 1)
    again = await popped_again(member, 1)
    assert (await member.ack(late[0])).code == ResponseCode.SUCCESS
    turn(any_broker, INVISIBLE_MS + 1)
    assert texts(await popped_again(member, 1)) == texts(again)


# -- where a group begins -----------------------------------------------------------------------
async def test_a_new_group_gets_all_of_a_young_queue(any_peer: Peer):
    member = await filled(any_peer, 4, queues=1)
    member.init_mode = PopInitMode.MAX
    assert len(await member.pop()) == 4


async def test_a_new_group_at_the_end_gets_the_last_message(any_peer: Peer):
    member = await filled(any_peer, 4, queues=1)
    config = b"initPopOffsetByCheckMsgInMem=false"
    await any_peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=config)
    member.init_mode = PopInitMode.MAX
    assert texts(await member.pop()) == ["3"]


# -- filters ------------------------------------------------------------------------------------
async def test_a_pop_by_tags_passes_over_other_messages(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0, queues=1)
    for tag in ("a", "b", "a", "b"):
        await any_peer.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
    popped = await member.pop(exp="a")
    assert texts(popped) == ["a", "a"]
    await member.ack_all(popped)
    assert await member.pop(exp="a") == []
    assert offset_of(any_broker) == 4


async def test_a_pop_by_sql92_passes_over_other_messages(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0, queues=1)
    for number in range(6):
        await any_peer.send("T", b"%d" % number, properties=f"n\x01{number}")
    popped = await member.pop(exp="n > 3", expType="SQL92")
    assert texts(popped) == ["4", "5"]
    await member.ack_all(popped)
    assert offset_of(any_broker) == 6


async def test_an_expression_that_does_not_parse_is_code_23(any_peer: Peer):
    member = await filled(any_peer, 1)
    answer = await member.ask(exp="n >", expType="SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


# -- waiting ------------------------------------------------------------------------------------
async def test_a_pop_waits_for_a_message(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0)
    waiting = asyncio.create_task(member.pop(poll_ms=60_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    async with peer_of(any_broker) as sender:
        await sender.send("T", b"late", queue_id=1)
    assert texts(await waiting) == ["late"]
    assert len(any_broker.parts.popping.held) == 0


async def test_a_pop_that_waits_gets_what_comes_again(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 1, queues=1)
    await member.pop()
    waiting = asyncio.create_task(member.pop(poll_ms=600_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    turn(any_broker, INVISIBLE_MS + 1)
    assert texts(await waiting) == ["0"]


async def test_one_message_answers_one_of_those_who_wait(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0, queues=1)
    waiting = [asyncio.create_task(member.pop(poll_ms=60_000)) for _ in range(3)]
    held = any_broker.parts.popping.held
    await until(lambda: len(held) == 3)
    info = {"consumerGroup": GROUP, "topic": "T", "queueId": -1}
    answer = await any_peer.ask(RequestCode.POLLING_INFO, info)
    assert answer.ext_fields["pollingNum"] == "3"
    for number in range(3):
        async with peer_of(any_broker) as sender:
            await sender.send("T", b"%d" % number)
        await until(lambda number=number: len(held) == 2 - number)
    assert texts([each for done in waiting for each in await done]) == ["0", "1", "2"]


async def test_a_pop_that_waited_in_vain_is_code_210(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0)
    waiting = asyncio.create_task(member.ask(poll_ms=30_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    turn(any_broker, 30_001)
    answer = await waiting
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.remark == "NO_MESSAGE_IN_QUEUE"


async def test_more_pops_than_may_wait_are_code_209(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0)
    await any_peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"popPollingSize=1")
    waiting = asyncio.create_task(member.ask(poll_ms=60_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    assert (await member.ask(poll_ms=60_000)).code == ResponseCode.POLLING_FULL
    turn(any_broker, 60_001)
    await waiting


async def test_pops_of_a_closed_connection_wait_no_more(any_peer: Peer, any_broker: Broker):
    await filled(any_peer, 0)
    async with peer_of(any_broker) as other:
        waiting = asyncio.create_task(Member(other).ask(poll_ms=60_000))
        await until(lambda: len(any_broker.parts.popping.held) == 1)
    await until(lambda: len(any_broker.parts.popping.held) == 0)
    await asyncio.gather(waiting, return_exceptions=True)


async def test_pops_that_wait_hear_that_their_topic_is_gone(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0)
    waiting = asyncio.create_task(member.ask(poll_ms=60_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    async with peer_of(any_broker) as operator:
        await operator.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_notification_tells_of_messages_and_takes_none(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 0)
    assert (await member.notified()).ext_fields["hasMsg"] == "false"
    waiting = asyncio.create_task(member.notified(poll_ms=60_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    async with peer_of(any_broker) as sender:
        await sender.send("T", b"0")
    assert (await waiting).ext_fields["hasMsg"] == "true"
    assert texts(await member.pop()) == ["0"]


async def test_a_peek_takes_nothing(any_peer: Peer):
    member = await filled(any_peer, 2, queues=1)
    fields = {"consumerGroup": GROUP, "topic": "T", "queueId": -1, "maxMsgNums": 32}
    assert (await any_peer.ask(RequestCode.PEEK_MESSAGE, fields)).code == ResponseCode.SUCCESS
    assert texts(await member.pop()) == ["0", "1"]
    answer = await any_peer.ask(RequestCode.PEEK_MESSAGE, fields)
    assert answer.code == ResponseCode.PULL_NOT_FOUND


# -- order --------------------------------------------------------------------------------------
async def test_an_ordered_pop_blocks_its_queue_until_all_is_done(any_peer: Peer):
    member = await filled(any_peer, 3, queues=1)
    member.is_order = True
    popped = await member.pop(2)
    assert [each.text for each in popped] == ["0", "1"]
    assert popped[0].receipt.revive_queue_id == 999
    assert await member.pop() == []
    await member.ack_all(popped[:1])
    assert await member.pop() == []
    await member.ack_all(popped[1:])
    assert texts(await member.pop()) == ["2"]


async def test_an_ordered_queue_goes_on_at_what_was_not_done(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 3, queues=1)
    member.is_order = True
    popped = await member.pop()
    await member.ack_all(popped[1:2])
    turn(any_broker, INVISIBLE_MS + 1)
    assert [each.text for each in await member.pop()] == ["0", "2"]


async def test_the_same_attempt_gets_the_same_messages(any_peer: Peer):
    member = await filled(any_peer, 2, queues=1)
    member.is_order = True
    first = await member.pop(attemptId="a")
    assert [each.text for each in await member.pop(attemptId="a")] == [each.text for each in first]
    assert await member.pop(attemptId="b") == []


async def test_an_ordered_pop_that_waits_gets_a_queue_when_it_is_free(
    any_peer: Peer, any_broker: Broker
):
    member = await filled(any_peer, 2, queues=1)
    member.is_order = True
    popped = await member.pop(1)
    waiting = asyncio.create_task(member.pop(poll_ms=600_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    async with peer_of(any_broker) as other:
        second = Member(other)
        await second.ack_all(popped)
    assert texts(await waiting) == ["1"]
    waiting = asyncio.create_task(member.pop(poll_ms=600_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    turn(any_broker, INVISIBLE_MS + 1)
    assert texts(await waiting) == ["1"]


# -- refusals -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 10**12}, ResponseCode.INVALID_PARAMETER),
        ({"bornTime": 1, "pollTime": 1}, ResponseCode.POLLING_TIMEOUT),
        ({"consumerGroup": "g" * 120}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "%LMQ%t"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_pop_that_can_not_be_is_refused(
    any_peer: Peer, fields: dict[str, object], code: ResponseCode
):
    member = await filled(any_peer, 1)
    answer = await member.ask(**fields)
    assert answer.code == code
    assert answer.remark
    assert len(await member.drain()) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"extraInfo": "nonsense"}, ResponseCode.INVALID_PARAMETER),
        ({"extraInfo": "1 2 3 4 5 b 0 0"}, ResponseCode.INVALID_PARAMETER),
        ({"extraInfo": f"0 1 1 0 0 {'b' * 600} 0 0"}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 1}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 99}, ResponseCode.NO_MESSAGE),
        ({"offset": -1}, ResponseCode.NO_MESSAGE),
        ({"queueId": 77}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_a_receipt_that_is_none_has_no_effect(
    any_peer: Peer, any_broker: Broker, fields: dict[str, object], code: ResponseCode
):
    member = await filled(any_peer, 2, queues=1)
    popped = await member.pop()
    assert (await member.ack(popped[0], **fields)).code == code
    assert (await member.change(popped[0], 5_000, **fields)).code == code
    assert any_broker.parts.tables.pops.state.queues.out == 2


async def test_a_forged_receipt_of_another_time_has_no_effect(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 1, queues=1)
    popped = await member.pop()
    receipt = popped[0].receipt
    for pop_time in (0, receipt.pop_time - 1, receipt.pop_time + 1, 2**63 - 1):
        forged = f"0 {pop_time} 1 0 0 broker-t 0 0"
        assert (await member.ack(popped[0], extraInfo=forged)).code == ResponseCode.SUCCESS
    other = Member(any_peer, group="others")
    assert (await other.ack(popped[0])).code == ResponseCode.SUCCESS
    assert any_broker.parts.tables.pops.state.queues.out == 1


async def test_a_group_can_not_have_more_out_than_a_bound(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 6, queues=1)
    pops = any_broker.parts.tables.pops
    pops.state.queues.limits = type(pops.state.queues.limits)(of_queue=4)
    popped = await member.pop()
    assert len(popped) == 4
    waiting = asyncio.create_task(member.pop(poll_ms=60_000))
    await until(lambda: len(any_broker.parts.popping.held) == 1)
    async with peer_of(any_broker) as other:
        await Member(other).ack_all(popped[:1])
    assert texts(await waiting) == ["4"]


async def test_operators_see_what_is_out(any_peer: Peer, any_broker: Broker):
    member = await filled(any_peer, 4, queues=1)
    await member.pop(3)
    turn(any_broker, 5_000)
    answer = await any_peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP})
    [progress] = fastjson.loads(answer.body)["offsetTable"].values()
    assert (progress["inFlight"], progress["pullOffset"], progress["consumerOffset"]) == (3, 3, 0)
    assert progress["inFlightMillis"] >= 5_000
