"""What a listener may say of each of its messages, and what the broker hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from kerolox.admin import copy_of
from kerolox.client import AckIndex, ConsumeStatus, MessageModel, Outcome
from kerolox.client.core.consuming.outcome import Action, failed_outcomes
from kerolox.client.core.delays import DELAYS_SECONDS, level_of
from kerolox.client.core.sending.send import dead_letter_message, passed_on_message
from kerolox.errors import ConfigError
from kerolox.message import DEAD_LETTER_REASON, MessageExt, PropertyKey, decode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until
from tests.unit.client.test_push_consumer import RETRY, Consumer, QueueBroker

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


def test_the_delays_are_those_of_the_default_levels() -> None:
    assert DELAYS_SECONDS[:5] == (1, 5, 10, 30, 60)
    assert (len(DELAYS_SECONDS), DELAYS_SECONDS[-1]) == (18, 7_200)


@pytest.mark.parametrize(
    ("seconds", "level"), [(0, 1), (1, 1), (1.5, 2), (30, 4), (31, 5), (7_200, 18), (9e9, 18)]
)
def test_a_duration_becomes_the_level_that_is_long_enough(seconds: float, level: int) -> None:
    assert level_of(seconds) == level
    assert Outcome.nack(delay=timedelta(seconds=min(seconds, 8_000))).delay_level == level


@pytest.mark.parametrize(
    "arguments",
    [{"delay": 1, "delay_level": 1}, {"delay": -1}, {"delay": "1"}, {"delay_level": -1}],
)
def test_an_impossible_delay_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="delay"):
        Outcome.nack(**arguments)


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (Outcome.ack(), []),
        (Outcome.nack(), [0, 1, 2]),
        (ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, [0, 1, 2]),
        (AckIndex(-1), [0, 1, 2]),
        (AckIndex(0), [1, 2]),
        (AckIndex(2), []),
        (AckIndex(99), []),
        ([Outcome.ack(), Outcome.dead_letter("x"), None], [1]),
    ],
)
def test_outcomes_say_which_messages_are_not_done_with(result: object, failed: list[int]) -> None:
    outcomes = failed_outcomes(result, 3)
    assert outcomes is not None
    assert list(outcomes) == failed


async def test_each_message_of_a_batch_has_its_own_outcome(broker: QueueBroker) -> None:
    broker.count = 4
    consumer = Consumer(broker, consume_batch_max=4, delay_level_when_next_consume=2)

    async def listen(messages: list[MessageExt]) -> list[Outcome | None]:
        consumer.got.extend(messages)
        return [None, Outcome.nack(), Outcome.nack(delay=60), Outcome.dead_letter()]

    consumer.subscribe("T", "*", listen)
    async with consumer:
        await until(lambda: len(broker.seen[SEND_BACK]) == 3)
        levels = {
            c.ext_fields["offset"]: c.ext_fields["delayLevel"] for c in broker.seen[SEND_BACK]
        }
    assert levels == {"100": "2", "200": "5", "300": "-1"}
    assert broker.committed["T", 0] == 4


async def test_a_dead_letter_takes_its_reason_along(broker: QueueBroker) -> None:
    broker.count = 1
    consumer = Consumer(broker)

    async def listen(message: MessageExt) -> Outcome:
        message.properties["TRAN_MSG"] = "true"
        return Outcome.dead_letter("no such\x02customer" + "!" * 1_000)

    consumer.subscribe_each("T", "*", listen)
    async with consumer:
        await until(lambda: broker.seen[SEND])
    [sent] = broker.seen[SEND]
    properties = decode_properties(sent.ext_fields["i"])
    assert properties["DEAD_LETTER_REASON"].startswith("no such\\x02customer!!!")
    assert len(properties["DEAD_LETTER_REASON"]) < 550
    # As often tried as it may be, so that the broker makes it a dead letter, and at once.
    assert (sent.ext_fields["b"], sent.ext_fields["j"], sent.ext_fields["l"]) == (RETRY, "0", "0")
    assert not properties.keys() & {"DELAY", "TRAN_MSG"}
    assert broker.seen[SEND_BACK] == []
    assert broker.committed["T", 0] == 1


async def test_a_dead_letter_that_cannot_be_sent_goes_back_without_its_reason(
    broker: QueueBroker,
) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(2, "busy")

    broker.answers[SEND] = refuse
    broker.count = 1
    consumer = Consumer(broker)
    consumer.subscribe_each("T", "*", lambda _: Outcome.dead_letter("because"))
    async with consumer:
        await until(lambda: broker.seen[SEND_BACK])
    assert [c.ext_fields["delayLevel"] for c in broker.seen[SEND_BACK]] == ["-1"]
    assert broker.committed["T", 0] == 1


async def test_broadcasting_drops_what_is_not_done_with(broker: QueueBroker, tmp_path: Any) -> None:
    broker.count = 2
    consumer = Consumer(
        broker, message_model=MessageModel.BROADCASTING, local_offset_folder=tmp_path
    )
    results = [Outcome.nack(), Outcome.dead_letter("x")]
    consumer.subscribe_each("T", "*", lambda _: results.pop())
    async with consumer:
        await until(lambda: not results)
    assert (broker.seen[SEND], broker.seen[SEND_BACK]) == ([], [])


def test_actions_are_told_apart() -> None:
    actions = [Outcome.ack().action, Outcome.nack().action, Outcome.dead_letter().action]
    assert actions == [Action.ACK, Action.NACK, Action.DEAD_LETTER]


def test_a_dead_letter_that_is_sent_again_leaves_its_reason_behind() -> None:
    letter = MessageExt(
        topic="%DLQ%g",
        body=b"x",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        store_host=("127.0.0.1", 1),
        properties={DEAD_LETTER_REASON: "broken", PropertyKey.RETRY_TOPIC: "T", "own": "1"},
    )
    again = decode_properties(passed_on_message(letter, "g", delay_level=0, topic="T").properties)
    assert DEAD_LETTER_REASON not in again
    assert again["own"] == "1"
    assert copy_of(letter).properties == {"own": "1"}
    dead = dead_letter_message(letter, "g", properties={DEAD_LETTER_REASON: "once more"})
    assert decode_properties(dead.properties)[DEAD_LETTER_REASON] == "once more"
