"""What operators see of messages that are out, and their release, over a real socket."""

from __future__ import annotations

import logging

import msgspec
import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.popped import PoppedAnswer
from kerolox.remoting import AUDIT_LOGGER
from kerolox.testing import Clock
from tests.support.clients.peer import Peer, peer_of
from tests.support.clients.pops import GROUP, INVISIBLE_MS, Member, PoppedMessage
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

GET, RELEASE = RequestCode.GET_POPPED_MESSAGES, RequestCode.RELEASE_POPPED_MESSAGES


async def asked(peer: Peer, code: int = GET, **selection: object) -> PoppedAnswer:
    body = msgspec.json.encode({"group": GROUP, **selection})
    answer = await peer.ask(code, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return msgspec.json.decode(answer.body, type=PoppedAnswer)


async def filled(peer: Peer, count: int = 6, queues: int = 2) -> Member:
    await peer.create_topic("T", queues)
    for number in range(count):
        await peer.send("T", b"%d" % number, queue_id=number % queues)
    return Member(peer)


def wait(broker: Broker, milliseconds: int) -> None:
    clock = broker._now_ms
    assert isinstance(clock, Clock)
    clock.ahead_ms += milliseconds


async def again(member: Member, count: int) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []

    async def come() -> bool:
        found.extend(await member.pop())
        return len(found) >= count

    await until(come)
    return found


async def test_operators_see_who_has_what_for_how_long(any_broker: Broker, any_peer: Peer):
    member = await filled(any_peer)
    await any_peer.heartbeat("c-1", GROUP, {"T": "*"})
    await member.pop(2, queueId=0)
    wait(any_broker, 5_000)
    async with peer_of(any_broker) as other:
        await Member(other).drain()
        found = await asked(any_peer)
    assert found.messages == 6
    assert [(q.topic, q.queue_id, q.messages) for q in found.queues] == [("T", 0, 3), ("T", 1, 3)]
    assert found.queues[0].oldest_ms >= 5_000 > found.queues[1].oldest_ms
    [stranger, known] = found.owners
    assert (stranger.messages, known.messages, known.owner) == (4, 2, "c-1")
    assert stranger.owner.startswith("127.0.0.1:")
    first = found.listed[0]
    assert (first.topic, first.queue_id, first.offset, first.owner) == ("T", 0, 0, "c-1")
    assert 0 < first.left_ms <= INVISIBLE_MS - 5_000
    assert not first.is_order


async def test_members_are_named_whoever_answered_their_pops(broker: Broker, peer: Peer):
    """The kernel answers pops of a queue that is popped again and again."""
    member = await filled(peer, 8, queues=1)
    await peer.heartbeat("c-1", GROUP, {"T": "*"})
    for _ in range(8):
        assert len(await member.pop(1)) == 1
    [owner] = (await asked(peer)).owners
    assert (owner.owner, owner.messages) == ("c-1", 8)
    assert (await asked(peer, RELEASE, owner="c-1", offset=5)).messages == 1


async def test_a_selection_narrows_by_each_of_its_members(any_broker: Broker, any_peer: Peer):
    member = await filled(any_peer)
    await any_peer.heartbeat("c-1", GROUP, {"T": "*"})
    await member.pop(1, queueId=0)
    early = (await asked(any_peer)).now
    wait(any_broker, 5_000)
    await member.pop(queueId=1)
    for selection, count in (
        ({"topic": "T"}, 4),
        ({"topic": "U"}, 0),
        ({"queueId": 1}, 3),
        ({"queueId": 1, "offset": 2}, 1),
        ({"owner": "c-1"}, 4),
        ({"owner": "c-2"}, 0),
        ({"heldMs": 5_000}, 1),
        ({"poppedUntil": early}, 1),
        ({"group": "other"}, 0),
    ):
        assert (await asked(any_peer, **selection)).messages == count, selection
    few = await asked(any_peer, listed=2)
    assert (few.messages, len(few.listed)) == (4, 2)


async def test_a_released_message_comes_again_and_its_receipt_counts_no_more(
    any_broker: Broker, any_peer: Peer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    member = await filled(any_peer, 3, queues=1)
    popped = await member.pop()
    done = await asked(any_peer, RELEASE, offset=1)
    assert (done.messages, [each.offset for each in done.listed]) == (1, [1])
    [line] = [r.getMessage() for r in caplog.records if r.name == AUDIT_LOGGER][-1:]
    assert '"popped":"workers"' in line.replace(" ", "")
    assert '"released":1' in line.replace(" ", "")
    [came] = await again(member, 1)
    assert came.text == popped[1].text
    await member.ack(popped[1])
    assert (await member.change(popped[1], 1_000)).code == ResponseCode.NO_MESSAGE
    assert (await asked(any_peer, topic="T")).messages == 3
    await member.ack_all([popped[0], popped[2], came])
    assert (await asked(any_peer)).messages == 0


async def test_a_release_leaves_what_was_popped_after_the_plan(any_broker: Broker, any_peer: Peer):
    member = await filled(any_peer, 4, queues=1)
    await member.pop(2)
    plan = await asked(any_peer)
    wait(any_broker, 1_000)
    later = await member.pop(2)
    assert (await asked(any_peer, RELEASE, poppedUntil=plan.now)).messages == 2
    await member.ack_all(later)
    assert len(await again(member, 2)) == 2


async def test_a_release_of_an_ordered_message_frees_its_queue(any_peer: Peer):
    member = await filled(any_peer, 3, queues=1)
    await any_peer.heartbeat("c-1", GROUP, {"T": "*"})
    member.is_order = True
    popped = await member.pop()
    await member.ack(popped[0])
    assert await member.pop() == []
    [queue] = (found := await asked(any_peer)).queues
    assert (found.messages, queue.is_order, found.owners[0].owner) == (2, True, "c-1")
    assert (await asked(any_peer, RELEASE, offset=0)).messages == 0
    assert (await asked(any_peer, RELEASE, offset=2)).messages == 2
    # What is done stays done, the others come in their order.
    assert [each.text for each in await member.pop()] == ["1", "2"]
    assert (await member.ack(popped[1])).code == ResponseCode.SUCCESS
    assert (await asked(any_peer)).messages == 2


async def test_messages_with_a_pop_time_ahead_of_the_clock_are_seen_and_released(
    any_broker: Broker, any_peer: Peer
):
    """As after a release, or a start with a clock that was set back."""
    member = await filled(any_peer, 2, queues=1)
    pops = any_broker.parts.tables.pops
    pops.state.queues.begin(pops.now().wall_ms + 5_000, pops.now())
    await member.pop()
    plan = await asked(any_peer)
    assert (plan.messages, plan.listed[0].held_ms) == (2, 0)
    assert (await asked(any_peer, RELEASE, poppedUntil=plan.now)).messages == 2


async def test_a_selection_that_is_none_is_refused(any_peer: Peer):
    for body in (b"", b"{}", b'{"group":1}', b'{"group":"g","listed":1001}', b"[]"):
        for code in (GET, RELEASE):
            assert (await any_peer.ask(code, body=body)).code != ResponseCode.SUCCESS
