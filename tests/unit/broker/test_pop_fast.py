"""Common pops and acknowledgements are answered at once, as their handlers answer them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import RemotingServer, ServerConnection
from tests.support.clients.peer import Peer
from tests.support.clients.pops import Member, PoppedMessage
from tests.unit.broker.test_pops import filled, offset_of, popped_again, texts, turn

pytestmark = pytest.mark.asyncio


class Counted:
    """Answers at once, or leaves all to the handlers; counts."""

    def __init__(self, broker: Broker) -> None:
        server = broker._ports._main
        assert isinstance(server, RemotingServer)
        self._answer = server.fast_path.answer
        server.fast_path = replace(server.fast_path, answer=self.answer)
        self.is_on = True
        self.answered = 0

    def answer(self, frame: bytes, connection: ServerConnection) -> bytes | None:
        found = self._answer(frame, connection) if self.is_on else None
        self.answered += found is not None
        return found


@pytest.fixture
def counted(any_broker: Broker) -> Counted:
    return Counted(any_broker)


Asks = Callable[[Member], Awaitable[list[RemotingCommand]]]


async def pops_and_acknowledges(member: Member) -> list[RemotingCommand]:
    answers = [await member.ask(1, queueId=each) for each in (0, 1)]
    answers.append(await member.ask(2, queueId=0, exp="*", expType="TAG"))
    first, second = await member.pop(2, queueId=1), await member.pop(1, queueId=0)
    answers += [await member.ack(first[1]), await member.ack(first[1])]
    answers.append(await member.ack_together([*first, *second]))
    answers.append(await member.ack_together([*first, *second]))
    answers.append(await member.ask(32, queueId=0))
    return answers


async def asks_what_is_wrong(member: Member) -> list[RemotingCommand]:
    answers = [await member.ask(1, queueId=each) for each in (0, 1)]
    popped = await member.pop(2, queueId=0)
    for wrong in (
        {"maxMsgNums": 33},
        {"maxMsgNums": 0},
        {"maxMsgNums": "1x"},
        {"invisibleTime": -1},
        {"queueId": 7},
        {"topic": "T-2"},
        {"order": "perhaps"},
        {"exp": "a ||", "expType": "SQL92"},
        {"bornTime": 1},
    ):
        answers += [await member.ask(**{"count": 1, **wrong})]
    for more in (
        {"offset": 99},
        {"queueId": 1},
        {"topic": "T-2"},
        {"extraInfo": "1 2 3"},
        {"extraInfo": popped[0].receipt.text.replace(" ", "\u0661 ", 1)},
        {"consumerGroup": "nobody"},
    ):
        answers += [await member.ack(popped[0], **more)]
    for body in (b"", b"[]", b'{"acks":[{"c":"workers"}]}', b'{"acks":[]}', b"{"):
        answers += [await member.peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)]
    return answers


def plain(answer: RemotingCommand, group: str) -> tuple[object, ...]:
    """What has to be alike: all but the time and the group."""
    fields = {name: text for name, text in answer.ext_fields.items() if name != "popTime"}
    remark = (answer.remark or "").replace(group, "GROUP")
    return answer.code, remark, fields, answer.body, answer.flag, answer.language, answer.version


@pytest.mark.parametrize("asks", [pops_and_acknowledges, asks_what_is_wrong])
async def test_an_answer_at_once_is_the_one_of_the_handler(
    any_peer: Peer, any_broker: Broker, counted: Counted, asks: Asks
):
    await filled(any_peer, 12)
    found, offsets = [], []
    for group in ("at-once", "handled"):
        counted.is_on = group == "at-once"
        answers = await asks(Member(any_peer, group=group))
        found.append([plain(each, group) for each in answers])
        offsets.append([offset_of(any_broker, queue_id=each, group=group) for each in (0, 1)])
    assert found[0] == found[1]
    assert offsets[0] == offsets[1]
    assert counted.answered > 0


async def test_what_is_common_is_answered_at_once(any_peer: Peer, counted: Counted):
    member = await filled(any_peer, 12)
    for queue_id in (0, 1):
        await member.pop(1, queueId=queue_id)
    assert counted.answered == 0, "where a group begins is for the handler to say"
    popped = await member.pop(4)
    await member.ack(popped[0])
    await member.ack_together(popped[1:])
    assert counted.answered == 3


async def test_a_change_counts_with_the_next_pop(any_peer: Peer, counted: Counted):
    member = await filled(any_peer, 12)
    for queue_id in (0, 1):
        await member.pop(1, queueId=queue_id)
    assert await member.pop(1)
    for change, code in (
        ({"readQueueNums": 0}, ResponseCode.POLLING_TIMEOUT),
        ({"perm": 2}, ResponseCode.NO_PERMISSION),
    ):
        fields = {
            "topic": "T",
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            **change,
        }
        await any_peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert (await member.ask(1)).code == code


async def test_retries_are_delivered_among_common_pops(
    any_peer: Peer, any_broker: Broker, counted: Counted
):
    member = await filled(any_peer, 40)
    first: list[PoppedMessage] = await member.drain()
    turn(any_broker, member.invisible_ms + 1)
    again = await popped_again(member, len(first))
    assert texts(again) == texts(first)
    await member.ack_together(again)
    assert await member.pop() == []
