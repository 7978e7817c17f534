"""Ending half messages by ``kerolox.admin``, with recorded answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Access, Admin, EndedHalves, HalfMessageSupport
from kerolox.errors import BrokerError, RemoteProtocolError
from kerolox.protocol.extensions.half_messages import HalfSelection

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

pytestmark = pytest.mark.asyncio


class Script:
    """Answers requests in their order; a number is the code of a refusal."""

    def __init__(self, *answers: EndedHalves | int) -> None:
        self.answers = list(answers)
        self.asked: list[RemotingCommand] = []

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_seconds: float, ahead: bool = False
    ) -> RemotingCommand:
        self.asked.append(command)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return command.response(answer, "refused")
        return command.response(0, None, answer.fields)

    @property
    def admin(self) -> Admin:
        return Admin.on(Access(self, ("n:1",)))  # type: ignore[arg-type]


async def test_it_goes_on_where_each_answer_stopped() -> None:
    script = Script(EndedHalves(20, 90, 7, 1), EndedHalves(50, 95, 3, 2))
    done = await script.admin.end_half_messages("b:1", "g", 5, 50, commit=True, attempts=["a"])
    assert done == EndedHalves(50, 95, 10, 3)
    assert [each.ext_fields["fromOffset"] for each in script.asked] == ["5", "20"]
    assert {each.ext_fields["commitOrRollback"] for each in script.asked} == {"8"}
    assert HalfSelection.decode(script.asked[1].body).attempts == ["a"]


async def test_without_an_end_it_goes_to_that_of_the_queue() -> None:
    script = Script(EndedHalves(20, 30, 1, 0), EndedHalves(30, 30, 1, 0))
    done = await script.admin.end_half_messages(
        "b:1", "g", 0, commit=False, query="q", last_batch=4, keep=["k"]
    )
    assert (done.next_offset, done.ended) == (30, 2)
    selection = HalfSelection.decode(script.asked[0].body)
    assert (selection.query, selection.last_batch, selection.keep) == ("q", 4, ["k"])


async def test_a_broker_that_comes_no_further_is_an_error() -> None:
    script = Script(EndedHalves(7, 30, 0, 0))
    with pytest.raises(RemoteProtocolError, match="beyond half message 7"):
        await script.admin.end_half_messages("b:1", "g", 0, commit=True, attempts=["a"])


async def test_a_refusal_is_told() -> None:
    with pytest.raises(BrokerError, match="refused"):
        await Script(13).admin.end_half_messages("b:1", "g", 0, commit=True, attempts=["a"])
    with pytest.raises(ValueError, match="rolled back only"):
        await Script(0).admin.end_half_messages("b:1", "g", 0, commit=True, query="q")


async def test_a_broker_says_what_it_can_do() -> None:
    for answer, ends, batches in (
        (EndedHalves(0, 0, 0, 0), True, False),
        (EndedHalves(0, 9, 0, 0, half_batches=True), True, True),
        (3, False, False),
    ):
        support = await Script(answer).admin.half_message_support("b:1")
        assert support == HalfMessageSupport(ends=ends, batches=batches)
    with pytest.raises(BrokerError):
        await Script(1).admin.half_message_support("b:1")
