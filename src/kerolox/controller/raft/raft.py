"""One node of Raft (Ongaro and Ousterhout, 2014), in the shape of etcd's library.

Who runs it gives it time (``tick``), messages (``step``) and proposals. It takes out what is to be
done (``ready``), does it in the order that :class:`Ready` says, and reports that (``advance``).
Messages may be stepped while a ``Ready`` is worked on, another ``ready`` may not be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from kerolox.controller.raft.log import RaftLog
from kerolox.controller.raft.messages import (
    NOBODY,
    Configuration,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    Snapshot,
    decode_configuration,
    encode_configuration,
)
from kerolox.controller.raft.progress import Progress, agreed, outcome, quorum

ENTRY_BYTES_MAX = 1024 * 1024
"""Most data of one proposal."""

UNCOMMITTED_MAX = 1_024
"""Most proposals that wait to be committed."""

READS_MAX = 1_024
"""Most reads that wait to be confirmed."""

REFUSALS_MAX = 20
"""So many refusals of what was acknowledged are no accident any more."""

_FROM_LEADER = (MessageType.APPEND, MessageType.HEARTBEAT, MessageType.SNAPSHOT)


class ProposalError(Exception):
    """A proposal or a read is not taken; the text says why, and nothing of it will happen."""


class NotLeaderError(ProposalError):
    """Another node has to be asked."""


class Role(Enum):
    """What a node is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in ticks, bounds in bytes."""

    election_ticks: int = 10
    """A follower that hears nothing for so long, up to twice as long by chance, wants an election.
    A leader that a majority does not answer in that time steps down."""
    heartbeat_ticks: int = 2
    append_bytes_max: int = 64 * 1024
    """Data of one APPEND."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What is to be done, in this order."""

    snapshot: Snapshot | None
    """1. Make it durable in place of snapshot and log; the state machine becomes it."""
    entries: tuple[Entry, ...]
    """2. Make them durable. They replace all from the first one's index on."""
    hard_state: HardState | None
    """3. Make it durable, not before the entries; None: it is as it was."""
    messages: tuple[Message, ...]
    """4. Send them. Each may be lost, doubled or late."""
    committed: tuple[Entry, ...]
    """5. Apply them to the state machine."""
    reads: tuple[object, ...]
    """6. Reads of the state machine that are linearizable now."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(
            self.snapshot
            or self.entries
            or self.hard_state
            or self.messages
            or self.committed
            or self.reads
        )


@dataclass(slots=True)
class _Read:
    token: object
    index: int = 0
    round: int = 0
    """0: no heartbeat asks for it yet."""


class Raft:
    """One node."""

    def __init__(
        self,
        node_id: str,
        *,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: Sequence[Entry],
        random: Random,
        timing: Timing | None = None,
    ) -> None:
        """``hard_state``, ``snapshot``, ``entries``: what the disk has. Each first member has
        a snapshot of index 0 that names all of them, a member that is added later has nothing."""
        self.node_id, self.timing = node_id, timing or Timing()
        self.log = RaftLog(snapshot, entries)
        self.log.commit_to(hard_state.commit)
        self.term, self.vote = hard_state.term, hard_state.vote
        self.learns = hard_state.learns
        """It votes for no log that has anything, until it has caught up with a leader. A group of
        empty folders begins nevertheless; one that lost its folder elects nobody who lacks what it
        acknowledged before."""
        self.configuration: Configuration = dict(snapshot.configuration)
        self.role, self.leader = Role.FOLLOWER, NOBODY
        self.progress: dict[str, Progress] = {}
        self._random = random
        self._saved = self._hard_state()
        self._unsaved_snapshot: Snapshot | None = None
        self._taken: Ready | None = None
        self._messages: list[Message] = []
        self._votes: dict[str, bool] = {}
        self._elapsed = self._heartbeat_elapsed = 0
        self._timeout = 0
        self._reads: list[_Read] = []
        self._round = 0
        self._transferee = NOBODY
        self._configuration_index = 0
        """No other change of members is taken until this index is applied."""
        self._reset_timeout()

    # -- what goes in -------------------------------------------------------------------------
    def tick(self) -> None:
        """Time passed."""
        self._elapsed += 1
        if self.role is not Role.LEADER:
            if self._elapsed >= self._timeout:
                self.campaign()
            return
        for progress in self.progress.values():
            if progress.snapshot_ticks:
                progress.snapshot_ticks -= 1
                progress.is_waiting = progress.snapshot_ticks > 0
        if self._elapsed >= self.timing.election_ticks:
            self._elapsed, self._transferee = 0, NOBODY
            self._check_quorum()
        self._heartbeat_elapsed += 1
        if self.role is Role.LEADER and self._heartbeat_elapsed >= self.timing.heartbeat_ticks:
            self._broadcast_heartbeat()

    def step(self, message: Message) -> None:
        """A message came in. One that is not for this node, or not from another one, is ignored."""
        if message.to != self.node_id or message.sender == self.node_id:
            return
        if message.term > self.term and not self._enters_term_of(message):
            return
        if message.term < self.term:
            self._answer_older(message)
            return
        if message.type in (MessageType.PRE_VOTE, MessageType.VOTE):
            self._answer_vote(message)
        elif message.type in _FROM_LEADER:
            self._step_from_leader(message)
        elif message.type is MessageType.TIMEOUT_NOW:
            self._campaign(is_transfer=True)
        elif message.type in (MessageType.PRE_VOTE_RESPONSE, MessageType.VOTE_RESPONSE):
            self._count_vote(message)
        elif self.role is Role.LEADER and message.sender in self.progress:
            self._step_from_follower(message, self.progress[message.sender])

    def propose(self, data: bytes) -> int:
        """Have data committed; its index, at which it may be found replaced by another term's.
        NotLeaderError, ProposalError: it is not taken."""
        if len(data) > ENTRY_BYTES_MAX:
            raise ProposalError(f"{len(data)} bytes; at most {ENTRY_BYTES_MAX} are taken")
        return self._propose(EntryType.NORMAL, data)

    def propose_configuration(self, configuration: Configuration) -> int:
        """Have one member added, taken out, or given another address. NotLeaderError;
        ProposalError: it differs by more, or another such change is under way."""
        if len(configuration.keys() ^ self.configuration.keys()) > 1 or not configuration:
            raise ProposalError("members are added and taken out one by one, and one stays")
        if self._configuration_index > self.log.applied:
            raise ProposalError("another change of members is under way; try again")
        index = self._propose(EntryType.CONFIGURATION, encode_configuration(configuration))
        self._configuration_index = index
        return index

    def read(self, token: object) -> None:
        """Ask for a linearizable read; ``Ready.reads`` has its token when the state machine may be
        read. A leader that loses its place forgets it."""
        self._require_leader()
        if len(self._reads) >= READS_MAX:
            raise ProposalError(f"{READS_MAX} reads wait already; try again")
        self._reads.append(_Read(token))

    def transfer_leadership(self, to: str) -> None:
        """Have a member that has the whole log begin an election at once. Until then, or until an
        election's time is over, no proposal is taken."""
        self._require_leader()
        if to not in self.progress or to == self.node_id:
            raise ProposalError(f"{to!r} is no other member")
        self._transferee, self._elapsed = to, 0
        if self.progress[to].match == self.log.last_index:
            self._send(MessageType.TIMEOUT_NOW, to)
        else:
            self._send_append(to)

    def campaign(self) -> None:
        """Ask the others whether they would vote; an election follows if they would."""
        self._elapsed = 0
        self._reset_timeout()
        if self.role is Role.LEADER or not self._is_promotable():
            return
        self.role, self.leader = Role.PRE_CANDIDATE, NOBODY
        self._ask_for_votes(MessageType.PRE_VOTE, self.term + 1, is_transfer=False)

    def compact(self, snapshot: Snapshot) -> None:
        """Forget the log that a durable snapshot of :meth:`make_snapshot` has."""
        if snapshot.index > self.log.snapshot.index:
            self.log.compact(snapshot)

    @property
    def put_back(self) -> list[str]:
        """Of a leader: the members that lack what they acknowledged, though they did not begin
        anew: their folders are older copies. They take no part until they do."""
        return [m for m, p in self.progress.items() if p.refusals >= REFUSALS_MAX]

    # -- what comes out -----------------------------------------------------------------------
    def ready(self) -> Ready:
        """What is to be done now; call ``advance`` with it when it is done."""
        assert self._taken is None, "the last Ready was not reported"
        self._start_reads()
        hard_state = self._hard_state()
        ready = Ready(
            snapshot=self._unsaved_snapshot,
            entries=self.log.after(self.log.stable),
            hard_state=hard_state if hard_state != self._saved else None,
            messages=tuple(self._messages),
            committed=self.log.between(self.log.applied, self.log.committed),
            reads=self._confirmed_reads(),
        )
        self._taken, self._saved = ready, hard_state
        self._messages, self._unsaved_snapshot = [], None
        return ready

    def advance(self, ready: Ready) -> None:
        """All of it is done."""
        assert self._taken is ready, "another Ready was taken"
        self._taken = None
        for entry in reversed(ready.entries):
            if self.log.term_of(entry.index) == entry.term:
                self.log.stable = max(self.log.stable, entry.index)
                break
        for entry in ready.committed:
            if entry.index != self.log.applied + 1:
                break  # A leader's snapshot came meanwhile.
            self.log.applied = entry.index
            if entry.type is EntryType.CONFIGURATION:
                self._use_configuration(decode_configuration(entry.data))
        own = self.progress.get(self.node_id)
        if own is not None and self.role is Role.LEADER:
            own.acknowledge(self.log.stable)
            self._commit()

    def make_snapshot(self, data: bytes) -> Snapshot:
        """One of the state machine as it is: with all that ``advance`` reported as applied."""
        term = self.log.term_of(self.log.applied)
        assert term is not None
        return Snapshot(self.log.applied, term, dict(self.configuration), data)

    # -- terms and votes ----------------------------------------------------------------------
    def _enters_term_of(self, message: Message) -> bool:
        """Take the higher term of a message over, if it is one to do so for; False: ignore it."""
        if message.type in (MessageType.PRE_VOTE, MessageType.VOTE):
            hears_leader = self.leader != NOBODY and self._elapsed < self.timing.election_ticks
            if hears_leader and not message.is_transfer:
                return False
        if message.type is MessageType.PRE_VOTE or (
            message.type is MessageType.PRE_VOTE_RESPONSE and not message.reject
        ):
            return True
        is_leader = message.type in _FROM_LEADER
        self._become_follower(message.term, message.sender if is_leader else NOBODY)
        return True

    def _answer_older(self, message: Message) -> None:
        """Tell a leader or candidate of an older term that there is a newer one."""
        if message.type in _FROM_LEADER:
            self._send(MessageType.APPEND_RESPONSE, message.sender, reject=True)
        elif message.type is MessageType.PRE_VOTE:
            self._send(MessageType.PRE_VOTE_RESPONSE, message.sender, reject=True)

    def _answer_vote(self, message: Message) -> None:
        is_pre_vote = message.type is MessageType.PRE_VOTE
        may_vote = (
            (is_pre_vote and message.term > self.term)
            or self.vote == message.sender
            or (self.vote == NOBODY and self.leader == NOBODY)
        )
        grants = may_vote and self.log.is_up_to_date(message.index, message.log_term)
        grants = grants and not (self.learns and message.index > 0)
        kind = MessageType.PRE_VOTE_RESPONSE if is_pre_vote else MessageType.VOTE_RESPONSE
        term = message.term if grants else self.term
        self._send(kind, message.sender, term=term, reject=not grants)
        if grants and not is_pre_vote:
            self.vote, self._elapsed = message.sender, 0

    def _campaign(self, *, is_transfer: bool = False) -> None:
        if self.role is Role.LEADER or not self._is_promotable():
            return
        self._become_follower(self.term + 1, NOBODY)
        self.role, self.vote = Role.CANDIDATE, self.node_id
        self._ask_for_votes(MessageType.VOTE, self.term, is_transfer=is_transfer)

    def _is_promotable(self) -> bool:
        """It is a member that remembers its votes, and no change of members is committed that it
        has not applied."""
        if self.node_id not in self.configuration or (self.learns and self.log.last_index):
            return False
        waiting = self.log.between(self.log.applied, self.log.committed)
        return not any(entry.type is EntryType.CONFIGURATION for entry in waiting)

    def _ask_for_votes(self, kind: MessageType, term: int, *, is_transfer: bool) -> None:
        self._votes = {self.node_id: True}
        for member in self.configuration:
            if member != self.node_id:
                self._send(
                    kind,
                    member,
                    term=term,
                    index=self.log.last_index,
                    log_term=self.log.last_term,
                    is_transfer=is_transfer,
                )
        self._decide_election()

    def _count_vote(self, message: Message) -> None:
        is_pre_vote = message.type is MessageType.PRE_VOTE_RESPONSE
        asked = Role.PRE_CANDIDATE if is_pre_vote else Role.CANDIDATE
        if self.role is asked and message.sender in self.configuration:
            self._votes.setdefault(message.sender, not message.reject)
            self._decide_election()

    def _decide_election(self) -> None:
        is_won = outcome(self._votes, self.configuration)
        if is_won is False:
            self._become_follower(self.term, NOBODY)
        elif is_won and self.role is Role.PRE_CANDIDATE:
            self._campaign()
        elif is_won:
            self._become_leader()

    def _become_follower(self, term: int, leader: str) -> None:
        if term != self.term:
            self.term, self.vote = term, NOBODY
        self.role, self.leader = Role.FOLLOWER, leader
        self.progress, self._reads, self._transferee = {}, [], NOBODY
        self._elapsed = 0
        self._reset_timeout()

    def _become_leader(self) -> None:
        self.role, self.leader = Role.LEADER, self.node_id
        self._elapsed, self._round, self.learns = 0, 0, False
        following = self.log.last_index + 1
        self.progress = {member: Progress(following) for member in self.configuration}
        # Whatever change of members is in the log may be committed by this term's first entry.
        self._configuration_index = self.log.last_index
        self._append(EntryType.NORMAL, b"")

    def _check_quorum(self) -> None:
        active = [m for m, p in self.progress.items() if p.is_active or m == self.node_id]
        if len(active) < quorum(len(self.progress)):
            self._become_follower(self.term, NOBODY)
        for progress in self.progress.values():
            progress.is_active = False

    def _reset_timeout(self) -> None:
        ticks = self.timing.election_ticks
        self._timeout = ticks + self._random.randrange(ticks)

    # -- following ----------------------------------------------------------------------------
    def _step_from_leader(self, message: Message) -> None:
        if self.role is Role.LEADER:
            return  # A term has one leader: this is no message of our members.
        if self.role is not Role.FOLLOWER or self.leader != message.sender:
            self._become_follower(message.term, message.sender)
        self._elapsed = 0
        if message.type is MessageType.APPEND:
            self._answer_append(message)
        elif message.type is MessageType.SNAPSHOT:
            self._answer_snapshot(message)
        else:
            self.log.commit_to(message.commit)
            self._send(MessageType.HEARTBEAT_RESPONSE, message.sender, round=message.round)

    def _answer_append(self, message: Message) -> None:
        log = self.log
        if message.index < log.committed:
            self._send(MessageType.APPEND_RESPONSE, message.sender, index=log.committed)
            return
        if log.term_of(message.index) != message.log_term:
            hint = log.agreement_before(message.index, message.log_term)
            self._send(
                MessageType.APPEND_RESPONSE,
                message.sender,
                index=message.index,
                reject=True,
                hint=hint,
                learns=self.learns,
            )
            return
        log.merge(message.entries)
        last = message.index + len(message.entries)
        log.commit_to(min(message.commit, last))
        # An entry of this term stands behind all that was committed before it.
        if log.last_term == self.term and message.commit <= last:
            self.learns = False
        self._send(MessageType.APPEND_RESPONSE, message.sender, index=last)

    def _answer_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        if snapshot is None:
            return
        if snapshot.index > self.log.committed:
            if self.log.term_of(snapshot.index) == snapshot.term:
                self.log.commit_to(snapshot.index)  # All of it is here already.
            else:
                self.log.restore(snapshot)
                self.configuration = dict(snapshot.configuration)
                self._unsaved_snapshot = snapshot
        self._send(MessageType.APPEND_RESPONSE, message.sender, index=self.log.committed)

    # -- leading ------------------------------------------------------------------------------
    def _require_leader(self) -> None:
        if self.role is not Role.LEADER:
            raise NotLeaderError(f"{self.node_id} is no leader; that is {self.leader or 'unknown'}")
        if self._transferee:
            raise ProposalError("the leader's place is being handed over; try again")

    def _propose(self, kind: EntryType, data: bytes) -> int:
        self._require_leader()
        if self.log.last_index - self.log.committed >= UNCOMMITTED_MAX:
            raise ProposalError(f"{UNCOMMITTED_MAX} proposals wait already; try again")
        return self._append(kind, data)

    def _append(self, kind: EntryType, data: bytes) -> int:
        index = self.log.last_index + 1
        self.log.append(Entry(index, self.term, data, kind))
        self._broadcast_append()
        return index

    def _step_from_follower(self, message: Message, progress: Progress) -> None:
        progress.is_active = True
        if message.type is MessageType.HEARTBEAT_RESPONSE:
            progress.round = max(progress.round, message.round)
            # What was in flight may be lost.
            progress.is_waiting = progress.snapshot_ticks > 0
        elif message.reject and message.learns:
            progress.forget(message.hint)
        elif message.reject:
            progress.refuse(message.index, message.hint)
        else:
            progress.acknowledge(message.index)
            self._commit()
        # To commit may have changed what we are.
        if self.role is Role.LEADER and progress.match < self.log.last_index:
            self._send_append(message.sender)
        elif self._transferee == message.sender and progress.match == self.log.last_index:
            self._send(MessageType.TIMEOUT_NOW, message.sender)

    def _commit(self) -> None:
        """Commit what a majority has, if it ends with an entry of this term (paper, 5.4.2)."""
        index = agreed(progress.match for progress in self.progress.values())
        if index > self.log.committed and self.log.term_of(index) == self.term:
            self.log.commit_to(index)
            self._broadcast_append(even_if_empty=True)

    def _broadcast_append(self, *, even_if_empty: bool = False) -> None:
        for member, progress in self.progress.items():
            if even_if_empty or progress.next <= self.log.last_index:
                self._send_append(member)

    def _send_append(self, to: str) -> None:
        progress = self.progress[to]
        if to == self.node_id or progress.is_waiting:
            return
        log, previous = self.log, progress.next - 1
        term = log.term_of(previous)
        progress.is_waiting = True
        if term is None or previous < log.snapshot.index:
            progress.snapshot_ticks = 2 * self.timing.election_ticks
            self._send(MessageType.SNAPSHOT, to, snapshot=log.snapshot)
            return
        self._send(
            MessageType.APPEND,
            to,
            index=previous,
            log_term=term,
            entries=log.after(previous, self.timing.append_bytes_max),
            commit=log.committed,
        )

    def _broadcast_heartbeat(self) -> None:
        self._heartbeat_elapsed = 0
        for member, progress in self.progress.items():
            if member != self.node_id:
                commit = min(progress.match, self.log.committed)
                self._send(MessageType.HEARTBEAT, member, commit=commit, round=self._round)

    # -- reads --------------------------------------------------------------------------------
    def _start_reads(self) -> None:
        """Ask all members, for all reads that came since, whether this is the leader still."""
        if self.log.term_of(self.log.committed) != self.term:
            return  # What earlier terms committed is not known yet (paper, 8).
        new = [each for each in self._reads if not each.round]
        if new:
            self._round += 1
            for each in new:
                each.index, each.round = self.log.committed, self._round
            self._broadcast_heartbeat()

    def _confirmed_reads(self) -> tuple[object, ...]:
        rounds = {member: progress.round for member, progress in self.progress.items()}
        if self.node_id in rounds:
            rounds[self.node_id] = self._round
        confirmed = agreed(rounds.values())
        done = [each for each in self._reads if each.round and each.round <= confirmed]
        self._reads = [each for each in self._reads if not each.round or each.round > confirmed]
        return tuple(each.token for each in done)

    # -- members ------------------------------------------------------------------------------
    def _use_configuration(self, configuration: Configuration) -> None:
        self.configuration = dict(configuration)
        if self.role is not Role.LEADER:
            return
        if self.node_id not in configuration:
            self._become_follower(self.term, NOBODY)
            return
        following = self.log.last_index + 1
        old = self.progress
        self.progress = {m: old.get(m) or Progress(following) for m in configuration}
        self._broadcast_append(even_if_empty=True)

    # -- helpers ------------------------------------------------------------------------------
    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed, self.learns)

    def _send(
        self, kind: MessageType, to: str, *, term: int | None = None, **members: object
    ) -> None:
        message = Message(kind, self.node_id, to, self.term if term is None else term)
        self._messages.append(replace(message, **members))  # type: ignore[arg-type]
