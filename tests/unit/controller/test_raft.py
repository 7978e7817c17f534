"""Rules of Raft one by one; :mod:`tests.controller` has all of them together, from seeds."""

from __future__ import annotations

from random import Random

import pytest

from kerolox.controller.raft import raft as raft_module
from kerolox.controller.raft.messages import (
    Entry,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kerolox.controller.raft.raft import (
    NotLeaderError,
    ProposalError,
    Raft,
    Ready,
    Role,
    Timing,
)

MEMBERS = {"n0": "a", "n1": "b", "n2": "c"}


def node(
    *entries: Entry,
    node_id: str = "n0",
    hard_state: HardState | None = None,
    members: dict[str, str] | None = None,
) -> Raft:
    return Raft(
        node_id,
        hard_state=hard_state or HardState(),
        snapshot=Snapshot(configuration=MEMBERS if members is None else members),
        entries=entries,
        random=Random(1),
        timing=Timing(election_ticks=10),
    )


def work(raft: Raft) -> Ready:
    ready = raft.ready()
    raft.advance(ready)
    return ready


def sent(raft: Raft, kind: MessageType) -> list[Message]:
    return [each for each in work(raft).messages if each.type is kind]


def message(kind: MessageType, *, term: int, sender: str = "n1", **members: object) -> Message:
    return Message(kind, sender, "n0", term, **members)  # type: ignore[arg-type]


def elect(raft: Raft) -> None:
    raft.campaign()
    work(raft)
    raft.step(message(MessageType.PRE_VOTE_RESPONSE, term=raft.term + 1))
    work(raft)
    raft.step(message(MessageType.VOTE_RESPONSE, term=raft.term))
    assert raft.role is Role.LEADER


def test_a_node_asks_before_it_raises_the_term() -> None:
    raft = node()
    for _ in range(20):
        raft.tick()
    assert (raft.role, raft.term) == (Role.PRE_CANDIDATE, 0)
    assert [each.term for each in sent(raft, MessageType.PRE_VOTE)] == [1, 1]


def test_it_votes_once_in_a_term_and_remembers_that() -> None:
    raft = node()
    raft.step(message(MessageType.VOTE, term=1))
    ready = work(raft)
    assert ready.hard_state == HardState(1, "n1", 0)
    again = node(hard_state=ready.hard_state)
    again.step(message(MessageType.VOTE, term=1, sender="n2"))
    assert [each.reject for each in sent(again, MessageType.VOTE_RESPONSE)] == [True]


def test_it_does_not_vote_for_a_shorter_log() -> None:
    raft = node(Entry(1, 1), Entry(2, 1), hard_state=HardState(1))
    for log_term, index, rejects in ((1, 1, True), (0, 9, True), (1, 2, False), (2, 1, False)):
        raft.step(message(MessageType.PRE_VOTE, term=2, index=index, log_term=log_term))
        assert [e.reject for e in sent(raft, MessageType.PRE_VOTE_RESPONSE)] == [rejects]


def test_who_hears_a_leader_does_not_vote_for_another_unless_the_leader_wants_it() -> None:
    raft = node(hard_state=HardState(1))
    raft.step(message(MessageType.HEARTBEAT, term=1))
    raft.step(message(MessageType.VOTE, term=5, sender="n2"))
    assert (raft.term, sent(raft, MessageType.VOTE_RESPONSE)) == (1, [])
    raft.step(message(MessageType.VOTE, term=5, sender="n2", is_transfer=True))
    assert [each.reject for each in sent(raft, MessageType.VOTE_RESPONSE)] == [False]


def test_copies_of_an_earlier_terms_entry_do_not_commit_it() -> None:
    """Figure 8 of the paper."""
    raft = node(Entry(1, 1), Entry(2, 2), hard_state=HardState(3, "", 1))
    elect(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=2))
    assert raft.log.committed == 1
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=3))
    assert raft.log.committed == 3


def test_a_leader_that_no_majority_answers_steps_down() -> None:
    raft = node()
    elect(raft)
    for _ in range(2 * raft.timing.election_ticks):
        raft.tick()
    assert raft.role is Role.FOLLOWER
    with pytest.raises(NotLeaderError, match="n0 is no leader; that is unknown"):
        raft.propose(b"x")


def test_entries_of_a_term_that_is_over_are_not_taken() -> None:
    raft = node(hard_state=HardState(5))
    raft.step(message(MessageType.APPEND, term=4, entries=(Entry(1, 4),)))
    ready = work(raft)
    assert ready.entries == ()
    assert [(each.term, each.reject) for each in ready.messages] == [(5, True)]


def test_a_read_waits_for_a_majority_that_knows_no_other_leader() -> None:
    raft = node()
    elect(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=1))
    raft.read("token")
    (first, _) = [e for e in work(raft).messages if e.type is MessageType.HEARTBEAT]
    raft.step(message(MessageType.HEARTBEAT_RESPONSE, term=raft.term, round=first.round - 1))
    assert work(raft).reads == ()
    raft.step(message(MessageType.HEARTBEAT_RESPONSE, term=raft.term, round=first.round))
    assert work(raft).reads == ("token",)


def test_members_change_one_by_one() -> None:
    raft = node(members={"n0": "a"})
    raft.campaign()
    work(raft)
    work(raft)
    with pytest.raises(ProposalError, match="one by one"):
        raft.propose_configuration(MEMBERS)
    with pytest.raises(ProposalError, match="one stays"):
        raft.propose_configuration({})
    raft.propose_configuration({"n0": "a", "n1": "b"})
    with pytest.raises(ProposalError, match="another change of members is under way"):
        raft.propose_configuration({"n0": "a", "n2": "c"})
    work(raft)
    work(raft)
    assert raft.configuration == {"n0": "a", "n1": "b"}


def test_a_leader_that_hands_its_place_over_takes_no_proposal() -> None:
    raft = node()
    elect(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=1))
    raft.transfer_leadership("n1")
    assert [each.to for each in sent(raft, MessageType.TIMEOUT_NOW)] == ["n1"]
    with pytest.raises(ProposalError, match="handed over"):
        raft.propose(b"x")
    for _ in range(raft.timing.election_ticks):
        raft.tick()
    assert raft.propose(b"x") == 2


def test_proposals_and_reads_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    raft = node()
    elect(raft)
    monkeypatch.setattr(raft_module, "UNCOMMITTED_MAX", 3)
    monkeypatch.setattr(raft_module, "READS_MAX", 2)
    raft.propose(b"1")
    raft.propose(b"2")
    with pytest.raises(ProposalError, match="3 proposals wait already"):
        raft.propose(b"3")
    raft.read(1)
    raft.read(2)
    with pytest.raises(ProposalError, match="2 reads wait already"):
        raft.read(3)
    with pytest.raises(ProposalError, match="at most 1048576 are taken"):
        raft.propose(b"x" * (raft_module.ENTRY_BYTES_MAX + 1))


def test_one_append_of_bounded_size_is_in_flight_to_each_follower() -> None:
    raft = node()
    elect(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=1))
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=1))
    for _ in range(4):
        raft.propose(b"x" * 40_000)
    first = [each for each in work(raft).messages if each.to == "n1"]
    assert [len(each.entries) for each in first] == [1]
    raft.step(message(MessageType.APPEND_RESPONSE, term=raft.term, index=2))
    following = [each for each in work(raft).messages if each.to == "n1"]
    assert [each.index for each in following] == [2]
    assert sum(len(each.data) for each in following[0].entries) <= 64 * 1024


def test_a_follower_far_behind_gets_a_snapshot() -> None:
    raft = node(members={"n0": "a"})
    raft.campaign()
    for _ in range(3):
        work(raft)
    raft.propose(b"x")
    work(raft)
    work(raft)
    raft.compact(raft.make_snapshot(b"state"))
    raft.propose_configuration({"n0": "a", "n1": "b"})
    work(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=1, index=3, reject=True, hint=0))
    (first,) = sent(raft, MessageType.SNAPSHOT)
    assert first.snapshot is not None
    assert first.snapshot.data == b"state"
    empty = Raft("n1", hard_state=HardState(), snapshot=Snapshot(), entries=(), random=Random(2))
    empty.step(first)
    ready = work(empty)
    assert ready.snapshot == first.snapshot
    assert [(each.index, each.reject) for each in ready.messages] == [(2, False)]


def test_a_vote_that_comes_twice_counts_once_and_a_strangers_never() -> None:
    raft = node(members={f"n{number}": "a" for number in range(5)})
    raft.campaign()
    for _ in range(3):
        raft.step(message(MessageType.PRE_VOTE_RESPONSE, term=1))
        raft.step(message(MessageType.PRE_VOTE_RESPONSE, term=1, sender="n9"))
    assert raft.role is Role.PRE_CANDIDATE
    raft.step(message(MessageType.PRE_VOTE_RESPONSE, term=1, sender="n2"))
    for _ in range(3):
        raft.step(message(MessageType.VOTE_RESPONSE, term=1))
        raft.step(message(MessageType.VOTE_RESPONSE, term=1, sender="n9"))
    assert raft.role is Role.CANDIDATE
    # Who said yes can't say no for another one, nor the other way round.
    raft.step(message(MessageType.VOTE_RESPONSE, term=1, sender="n2", reject=True))
    raft.step(message(MessageType.VOTE_RESPONSE, term=1, sender="n2"))
    assert raft.role is Role.CANDIDATE


def test_who_begins_with_an_empty_folder_votes_for_no_log_before_it_has_caught_up() -> None:
    raft = node(hard_state=HardState(learns=True))
    raft.step(message(MessageType.VOTE, term=1, index=4, log_term=1))
    assert sent(raft, MessageType.VOTE_RESPONSE)[0].reject
    entries = (Entry(1, 1), Entry(2, 2))
    raft.step(message(MessageType.APPEND, term=3, entries=entries, commit=3))
    assert raft.learns, "the leader has committed more, and nothing of its term is here"
    raft.campaign()
    assert raft.role is Role.FOLLOWER, "what it has may be less than it acknowledged"
    raft.step(message(MessageType.APPEND, term=3, index=2, log_term=2, entries=(Entry(3, 3),)))
    ready = raft.ready()
    assert ready.hard_state is not None
    assert not ready.hard_state.learns
    raft.advance(ready)
    raft.step(message(MessageType.VOTE, term=4, index=3, log_term=3, is_transfer=True))
    assert not sent(raft, MessageType.VOTE_RESPONSE)[0].reject


def test_a_group_of_empty_folders_begins() -> None:
    raft = node(hard_state=HardState(learns=True))
    raft.step(message(MessageType.VOTE, term=1))
    assert not sent(raft, MessageType.VOTE_RESPONSE)[0].reject


def test_a_follower_that_lost_its_folder_is_sent_all_anew() -> None:
    raft = node()
    elect(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=1, index=1))
    work(raft)
    refused = message(MessageType.APPEND_RESPONSE, term=1, index=1, reject=True, learns=True)
    raft.step(refused)
    assert raft.progress["n1"].match == 0
    assert [each.index for each in sent(raft, MessageType.APPEND)] == [0]


def test_a_follower_that_was_put_back_is_known_and_counts_no_more() -> None:
    raft = node()
    elect(raft)
    work(raft)
    raft.step(message(MessageType.APPEND_RESPONSE, term=1, index=1))
    refused = message(MessageType.APPEND_RESPONSE, term=1, index=1, reject=True)
    for _ in range(raft_module.REFUSALS_MAX - 1):
        raft.step(refused)
    assert raft.put_back == []
    raft.step(refused)
    assert raft.put_back == ["n1"]
    raft.step(message(MessageType.APPEND_RESPONSE, term=1, index=1))
    assert raft.put_back == []
