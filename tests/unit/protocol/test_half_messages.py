"""The names of attempts, what a selection means, and the answer to END_HALF_MESSAGES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand, wire_fields
from kerolox.protocol.extensions.half_messages import (
    ATTEMPTS_MAX,
    Attempt,
    EndedHalves,
    HalfSelection,
    HalfSelector,
    end_half_messages_request,
)
from kerolox.protocol.headers import EndHalfMessagesHeader

NUMBERS = st.integers(0, 10**19 - 1)
QUERIES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_ ä", min_size=1, max_size=60)


@given(QUERIES, NUMBERS, NUMBERS, NUMBERS)
def test_an_attempt_is_read_as_it_was_written(query: str, batch: int, part: int, n: int) -> None:
    attempt = Attempt(query, batch, part, n)
    assert Attempt.parse(attempt.text) == attempt


@pytest.mark.parametrize(
    "text", ["", "q", "q/1/2", "q/1/2/3/4", "/1/2/3", "q/-1/2/3", "q/1/2/x", "q/1/2/٣", "q\n/1/2/3"]
)
def test_what_names_no_attempt_is_none(text: str) -> None:
    assert Attempt.parse(text) is None


@pytest.mark.parametrize("query", ["", "a/b", "a\x01", "q" * 250])
def test_a_query_that_no_property_can_hold_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match="names no attempt"):
        _ = Attempt(query, 1, 2, 3).text


def test_a_selection_means_its_attempts_alone() -> None:
    selector = HalfSelector(HalfSelection(attempts=["q/1/0/0"]))
    assert selector.chooses("q/1/0/0")
    assert not selector.chooses("q/1/0/1")
    assert not HalfSelector(HalfSelection()).chooses("")


def test_a_query_means_its_batches_up_to_one_but_for_what_is_kept() -> None:
    selector = HalfSelector(HalfSelection(query="q", last_batch=9, keep=["q/9/0/1"]))
    chosen = ["q/0/0/0", "q/9/0/0", "q/9/1/1"]
    left = ["q/10/0/0", "q/9/0/1", "qq/1/0/0", "q/x/0/0", "q", ""]
    assert [text for text in chosen + left if selector.chooses(text)] == chosen


def test_what_was_decided_takes_room_for_so_many_texts() -> None:
    selector = HalfSelector(HalfSelection(query="q", last_batch=1))
    for number in range(2 * ATTEMPTS_MAX + 5):
        assert selector.chooses(f"q/1/0/{number}")
    assert len(selector._decided) <= ATTEMPTS_MAX


def test_a_request_carries_what_the_broker_reads() -> None:
    selection = HalfSelection(query="q", last_batch=7, keep=["q/7/0/1"])
    request = end_half_messages_request("g", 3, 9, selection, commit=False)
    assert request.code == RequestCode.END_HALF_MESSAGES
    header = EndHalfMessagesHeader.decode(request.ext_fields)
    assert (header.producer_group, header.from_offset, header.to_offset) == ("g", 3, 9)
    assert header.commit_or_rollback == 12
    assert HalfSelection.decode(request.body) == selection
    with pytest.raises(ValueError, match="rolled back only"):
        end_half_messages_request("g", 3, 9, selection, commit=True)


def test_an_answer_is_read_as_it_was_written() -> None:
    done = EndedHalves(5, 9, 3, 1, half_batches=True)
    answer = RemotingCommand(0, wire_fields(done.fields))
    assert EndedHalves.of(answer) == done
    for name in done.fields.keys() - {"halfBatches"}:
        for value in (None, "x", "-1"):
            members = {**answer.ext_fields, name: value}
            broken = {key: text for key, text in members.items() if text is not None}
            with pytest.raises(RemoteProtocolError, match="END_HALF_MESSAGES"):
                EndedHalves.of(RemotingCommand(0, broken))
