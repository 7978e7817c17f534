"""Deliberate bugs in Raft: each is a class in which one rule is broken. The simulation finds them.

``BUGS`` gives each with a seed that finds it. When a change of the source moves it, search again:
``python -m tests.controller.raft_bugs [NAME]``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kerolox.controller.raft.messages import NOBODY, MessageType
from kerolox.controller.raft.raft import Raft, Ready
from tests.controller.simulated import World

if TYPE_CHECKING:
    from kerolox.controller.raft.messages import Configuration, HardState, Message

SEEDS_MAX = 1_000


class VotesTwice(Raft):
    """It forgets whom it voted for when another one asks."""

    def _answer_vote(self, message: Message) -> None:
        self.vote = NOBODY
        super()._answer_vote(message)


class VotesForOlderLogs(Raft):
    """A candidate's log need not have all that may be committed."""

    def _answer_vote(self, message: Message) -> None:
        super()._answer_vote(replace(message, log_term=1 << 60))


class HalfIsAMajority(Raft):
    """Two of four, or one of three, commit."""

    def _commit(self) -> None:
        matches = sorted((p.match for p in self.progress.values()), reverse=True)
        index = matches[max(0, len(matches) // 2 - 1)]
        if index > self.log.committed and self.log.term_of(index) == self.term:
            self.log.commit_to(index)


class DoesNotCompareLogs(Raft):
    """A follower takes entries behind whatever it has."""

    def _answer_append(self, message: Message) -> None:
        if message.index > self.log.committed and message.index <= self.log.last_index:
            message = replace(message, log_term=self.log.term_of(message.index) or 0)
        super()._answer_append(message)


class TrustsTheLeadersCommit(Raft):
    """A follower commits what it has, whether the leader has that too or not."""

    def _answer_append(self, message: Message) -> None:
        self.log.commit_to(message.commit)
        super()._answer_append(message)


class HeartbeatCommitsAll(Raft):
    """The same, told by heartbeats."""

    def _broadcast_heartbeat(self) -> None:
        super()._broadcast_heartbeat()
        self._messages = [
            replace(each, commit=self.log.committed) if each.type is MessageType.HEARTBEAT else each
            for each in self._messages
        ]


class AnswersBeforeItWrites(Raft):
    """What is in memory counts as durable, for others too."""

    def ready(self) -> Ready:
        ready = super().ready()
        self._taken = replace(ready, entries=ready.entries[:-1])
        self.log.stable = self.log.last_index
        return self._taken


class ReadsWithoutAsking(Raft):
    """A leader answers reads without asking whether it is one still."""

    def _confirmed_reads(self) -> tuple[object, ...]:
        done, self._reads = self._reads, []
        return tuple(each.token for each in done)


class ReadsBeforeItsTerm(Raft):
    """A new leader answers reads before anything of its term is committed."""

    def _start_reads(self) -> None:
        for each in self._reads:
            if not each.round:
                self._round += 1
                each.index, each.round = self.log.committed, self._round
                self._broadcast_heartbeat()


class CutsWhatItHas(Raft):
    """An APPEND that is late cuts off what came after it."""

    def _answer_append(self, message: Message) -> None:
        if self.log.committed <= message.index < self.log.last_index and (
            self.log.term_of(message.index) == message.log_term
        ):
            del self.log._entries[message.index - self.log.snapshot.index :]
            self.log.stable = min(self.log.stable, message.index)
        super()._answer_append(message)


class TrustsAnEmptyFolder(Raft):
    """Who has lost its disk votes as before."""

    def __init__(self, node_id: str, *, hard_state: HardState, **rest: Any) -> None:
        super().__init__(node_id, hard_state=replace(hard_state, learns=False), **rest)


class ChangesManyMembers(Raft):
    """A change of members is taken while another one is under way, and counts at once."""

    def propose_configuration(self, configuration: Configuration) -> int:
        self._configuration_index = 0
        index = super().propose_configuration(configuration)
        self._use_configuration(configuration)
        return index


BUGS: dict[type[Raft], int] = {
    VotesTwice: 4,
    VotesForOlderLogs: 2,
    HalfIsAMajority: 2,
    DoesNotCompareLogs: 14,
    TrustsTheLeadersCommit: 14,
    HeartbeatCommitsAll: 5,
    AnswersBeforeItWrites: 0,
    ReadsWithoutAsking: 26,
    ReadsBeforeItsTerm: 24,
    CutsWhatItHas: 20,
    ChangesManyMembers: 87,
    TrustsAnEmptyFolder: 12,
}


def finds(bug: type[Raft], seed: int) -> bool:
    """Whether a run of that seed shows the bug; odd seeds have five nodes."""
    try:
        World(seed, size=5 if seed % 2 else 3, raft_type=bug).run()
    except Exception:
        return True
    return False


def search(names: list[str]) -> None:
    """Print the first seed that finds each bug."""
    for bug in BUGS:
        if not names or bug.__name__ in names:
            found = next((seed for seed in range(SEEDS_MAX) if finds(bug, seed)), None)
            print(f"{bug.__name__}: {found}", flush=True)


if __name__ == "__main__":
    search(sys.argv[1:])
