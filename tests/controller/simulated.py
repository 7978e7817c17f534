"""Nodes of Raft in one process, from a seed: their network, disks and clocks are of the test.

A node's disk is what is durable. What a ``Ready`` writes becomes durable some time after it was
taken, and a crash before that leaves a part of it: entries from the first one on, the hard state
last. The network loses, doubles, delays and reorders messages, and cuts links in one direction.
Each node has a clock of its own speed. All of it ends at ``HEAL``, and the nodes must come to rest.

The state machine is a list; clients append to it and read it. That makes linearizability easy to
check: see :mod:`tests.controller.history`.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Self

import msgspec

from kerolox.controller.raft.log import RaftLog
from kerolox.controller.raft.messages import (
    Configuration,
    Entry,
    EntryType,
    HardState,
    Message,
    Snapshot,
    decode_configuration,
)
from kerolox.controller.raft.raft import ProposalError, Raft, Ready, Role, Timing
from tests.controller.history import History

if TYPE_CHECKING:
    from collections.abc import Callable

HEAL, END = 4_000, 9_000
TICK = 10
"""Time units between two ticks of a clock that is right."""
WRITE_MAX = 12
"""Longest write of a disk."""
COMPACT_AFTER = 12
"""Entries after which a node makes a snapshot."""
CLIENTS = 3
TIMEOUT = 600


class InvariantError(AssertionError):
    """What must always hold did not."""


@dataclass
class Disk:
    """What survives a crash."""

    hard_state: HardState
    snapshot: Snapshot
    entries: list[Entry] = field(default_factory=list)

    def put_snapshot(self, snapshot: Snapshot, *, is_own: bool) -> None:
        self.entries = [e for e in self.entries if e.index > snapshot.index] if is_own else []
        self.snapshot = snapshot

    def put_entries(self, entries: tuple[Entry, ...]) -> None:
        if entries:
            self.entries = [e for e in self.entries if e.index < entries[0].index]
            self.entries += entries


class Node:
    """A process, which may be down."""

    def __init__(self, node_id: str, members: dict[str, str]) -> None:
        self.node_id = node_id
        self.members = members
        self.use_new_disk()
        self.raft: Raft | None = None
        self.writing: Ready | None = None
        self.life = 0
        """Counts starts: what was under way before one is gone."""
        self.state: Any = None
        """Of the state machine."""
        self.waiting: dict[int, Callable[[], None]] = {}
        """Value → called when it is applied."""
        self.speed = 1.0

    def use_new_disk(self) -> None:
        self.disk = Disk(HardState(learns=True), Snapshot(configuration=self.members))


class World:
    """A run of one seed; ``raft_type`` may have a deliberate bug."""

    append_bytes_max = 64

    def __init__(
        self, seed: int, *, size: int = 3, raft_type: type[Raft] = Raft, until: int = END
    ) -> None:
        self.random = Random(seed)
        self.raft_type, self.until = raft_type, until
        self.now = 0
        self.history = History()
        members = {f"n{number}": f"host:{number}" for number in range(size)}
        self.spare = {f"n{size}": f"host:{size}"}
        """A member that may be added and taken out."""
        self.nodes = {each: Node(each, members) for each in members}
        self.nodes |= {each: Node(each, {}) for each in self.spare}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.leaders: dict[int, str] = {}
        self.cut: set[tuple[str, str]] = set()
        self.loss, self.delay = 0.0, 3
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._values = itertools.count(), itertools.count()
        for node in self.nodes.values():
            self._start(node)
            self._at(self.random.randrange(TICK), lambda node=node: self._tick(node))
        for _ in range(CLIENTS):
            self._at(self.random.randrange(200), self._client)
        self._at(100, self._fault)
        self._at(HEAL, self._heal)

    # -- running ------------------------------------------------------------------------------
    def run(self) -> Self:
        """To the end; InvariantError: something does not hold, at rest or before."""
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            if self.now > self.until:
                break
            act()
        self._check_rest()
        return self

    def _at(self, after: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + max(1, round(after)), next(self._order), act))

    def _start(self, node: Node) -> None:
        node.life += 1
        disk = node.disk
        node.raft = self.raft_type(
            node.node_id,
            hard_state=disk.hard_state,
            snapshot=disk.snapshot,
            entries=disk.entries,
            random=Random(self.random.random()),
            timing=Timing(append_bytes_max=self.append_bytes_max),
        )
        node.state = self._decoded(disk.snapshot.data)
        node.writing, node.waiting = None, {}

    def _crash(self, node: Node) -> None:
        if node.raft is None:
            return
        if node.writing is not None:
            self._write(node, node.writing, part=self.random.random())
        node.raft = node.writing = None
        self._at(self.random.randrange(600), lambda: node.raft is None and self._start(node))

    def _replace_disk(self, node: Node) -> None:
        """It forgets all. A majority remembers: others that forgot have learned all anew before,
        and a leader that is cut off gives up before it is back."""
        if node.raft is None or self._some_learn() or self._smallest_group() < 3:
            return
        node.raft = node.writing = None
        node.use_new_disk()
        self._at(600, lambda: node.raft is None and self._start(node))

    def _groups(self) -> list[Configuration]:
        """Members, as nodes know them or will, if an entry is committed."""
        groups = [each.raft.configuration for each in self.nodes.values() if each.raft]
        entries = [entry for each in self.nodes.values() for entry in each.disk.entries]
        return [each for each in groups if each] + [
            decode_configuration(each.data)
            for each in entries
            if each.type is EntryType.CONFIGURATION
        ]

    def _smallest_group(self) -> int:
        return min(map(len, self._groups()), default=0)

    def _some_learn(self) -> bool:
        members = {name for group in self._groups() for name in group}
        return any(self.nodes[each].disk.hard_state.learns for each in members)

    def _tick(self, node: Node) -> None:
        self._at(TICK * node.speed, lambda: self._tick(node))
        if node.raft is not None:
            node.raft.tick()
            self._work(node)

    def _deliver(self, message: Message) -> None:
        node = self.nodes[message.to]
        if node.raft is not None:
            node.raft.step(message)
            self._work(node)

    def _send(self, message: Message) -> None:
        if (message.sender, message.to) in self.cut or self.random.random() < self.loss:
            return
        copies = 2 if self.random.random() < self.loss / 2 else 1
        for _ in range(copies):
            late = self.random.random() ** 4 * 40 if self.loss else 0
            self._at(self.random.randint(1, self.delay) + late, lambda: self._deliver(message))

    # -- a node's work ------------------------------------------------------------------------
    def _work(self, node: Node) -> None:
        """Take a ``Ready`` up, unless one is being written."""
        raft = node.raft
        assert raft is not None
        self._check_leader(node, raft)
        if node.writing is None and (ready := raft.ready()):
            node.writing = ready
            life = node.life
            self._at(self.random.randrange(WRITE_MAX), lambda: self._written(node, life))
        elif node.writing is None:
            raft.advance(ready)

    def _written(self, node: Node, life: int) -> None:
        if node.raft is None or node.life != life or node.writing is None:
            return
        ready, node.writing = node.writing, None
        self._write(node, ready)
        for message in ready.messages:
            self._send(message)
        if ready.snapshot is not None:
            node.state = self._decoded(ready.snapshot.data)
        for entry in ready.committed:
            self._apply(node, entry)
        for read in ready.reads:
            assert callable(read)
            read()
        node.raft.advance(ready)
        if node.raft.log.applied - node.raft.log.snapshot.index >= COMPACT_AFTER:
            snapshot = node.raft.make_snapshot(self._encoded(node.state))
            node.disk.put_snapshot(snapshot, is_own=True)
            node.raft.compact(snapshot)
        self._work(node)

    def _write(self, node: Node, ready: Ready, *, part: float = 1.0) -> None:
        """Make a ``Ready`` durable, or, at a crash, a part of it."""
        steps: list[Callable[[], None]] = []
        disk, snapshot, hard_state = node.disk, ready.snapshot, ready.hard_state
        if snapshot is not None:
            steps.append(lambda: disk.put_snapshot(snapshot, is_own=False))
        if ready.entries and part < 1.0:
            few = ready.entries[: self.random.randrange(len(ready.entries) + 1)]
            steps.append(lambda: disk.put_entries(few))
        steps.append(lambda: disk.put_entries(ready.entries))
        if hard_state is not None:
            steps.append(lambda: setattr(disk, "hard_state", hard_state))
        for step in steps[: round(part * len(steps))]:
            step()

    def _apply(self, node: Node, entry: Entry) -> None:
        known = self.committed.setdefault(entry.index, (entry.term, entry.data))
        if known != (entry.term, entry.data):
            raise InvariantError(f"{node.node_id} applies another entry {entry.index}")
        self._apply_entry(node, entry)

    # -- the state machine, of which there is another one ---------------------------------------
    def _decoded(self, data: bytes) -> Any:
        return msgspec.json.decode(data or b"[]", type=list[int])

    def _encoded(self, state: Any) -> bytes:
        return msgspec.json.encode(state)

    def _apply_entry(self, node: Node, entry: Entry) -> None:
        if entry.type is EntryType.NORMAL and entry.data:
            value = int(entry.data)
            node.state.append(value)
            done = node.waiting.pop(value, None)
            if done is not None:
                done()

    # -- clients ------------------------------------------------------------------------------
    def _client(self) -> None:
        """One operation at a node that takes itself for the leader; the next one follows."""
        again = lambda: self._at(self.random.randrange(60), self._client)  # noqa: E731
        leaders = [n for n in self.nodes.values() if n.raft and n.raft.role is Role.LEADER]
        if not leaders:
            again()
            return
        node = self.random.choice(leaders)
        operation = self.history.invoke(self.now, self._draw_operation())
        ended = False

        def end(result: list[int] | None) -> None:
            nonlocal ended
            if not ended:
                ended = True
                self.history.complete(operation, self.now, result)
                again()

        def give_up() -> None:
            nonlocal ended
            if not ended:
                ended = True
                again()

        assert node.raft is not None
        try:
            if operation.value is None:
                node.raft.read(lambda: end(list(node.state)))
            else:
                node.raft.propose(b"%d" % operation.value)
                node.waiting[operation.value] = lambda: end(None)
        except ProposalError:
            self.history.refuse(operation)
            ended = True
            again()
            return
        self._at(TIMEOUT, give_up)
        self._work(node)

    def _draw_operation(self) -> int | None:
        return None if self.random.random() < 0.4 else next(self._values)

    # -- faults -------------------------------------------------------------------------------
    def _fault(self) -> None:
        if self.now >= HEAL:
            return
        self._at(self.random.randrange(20, 300), self._fault)
        node = self.random.choice(list(self.nodes.values()))
        names = sorted(self.nodes)
        match self.random.randrange(9):
            case 0 | 1:
                self._crash(node)
            case 2:
                self.cut |= {(node.node_id, each) for each in names}
            case 3:
                self.cut |= {(each, node.node_id) for each in names}
            case 4:
                self.cut = {
                    pair for pair in itertools.permutations(names, 2) if self.random.random() < 0.3
                }
            case 5:
                self.cut = set()
            case 6:
                self._replace_disk(node)
            case 7:
                self.loss = self.random.choice((0.0, 0.1, 0.3))
                self.delay = self.random.choice((3, 20, 60))
                node.speed = self.random.choice((0.7, 1.0, 1.0, 1.5))
            case _:
                self._ask_leader()

    def _ask_leader(self) -> None:
        """Hand the leader's place over, or change the members."""
        for node in self.nodes.values():
            raft = node.raft
            if raft is None or raft.role is not Role.LEADER:
                continue
            try:
                if self.random.random() < 0.4 or self._some_learn():
                    raft.transfer_leadership(self.random.choice(sorted(self.nodes)))
                else:
                    raft.propose_configuration(self._other_members(dict(raft.configuration)))
            except ProposalError:
                continue
            self._work(node)

    def _other_members(self, members: dict[str, str]) -> dict[str, str]:
        missing = sorted(self.nodes.keys() - members.keys())
        if missing and (len(members) < 3 or self.random.random() < 0.5):
            name = self.random.choice(missing)
            return {**members, name: f"host:{name[1:]}"}
        members.pop(self.random.choice(sorted(members)))
        return members

    def _heal(self) -> None:
        self.cut, self.loss, self.delay = set(), 0.0, 3
        for node in self.nodes.values():
            node.speed = 1.0
            if node.raft is None:
                self._start(node)

    # -- what must hold -----------------------------------------------------------------------
    def _check_leader(self, node: Node, raft: Raft) -> None:
        if raft.role is not Role.LEADER or self.leaders.get(raft.term) == node.node_id:
            return
        other = self.leaders.setdefault(raft.term, node.node_id)
        if other != node.node_id:
            raise InvariantError(f"{other} and {node.node_id} lead in term {raft.term}")
        for index, (term, _) in self.committed.items():
            if index > raft.log.snapshot.index and raft.log.term_of(index) != term:
                raise InvariantError(f"leader {node.node_id} lacks the committed entry {index}")
        self._check_matching()

    def _check_matching(self) -> None:
        """Two logs with an entry of the same index and term are the same up to there."""
        logs = [node.raft.log for node in self.nodes.values() if node.raft]
        for one, two in itertools.combinations(logs, 2):
            first = max(one.snapshot.index, two.snapshot.index) + 1
            last = min(one.last_index, two.last_index)
            same = True
            for ours, theirs in zip(_down(one, first, last), _down(two, first, last), strict=True):
                if ours.term == theirs.term and ours != theirs:
                    raise InvariantError(f"two entries {ours.index} of term {ours.term}")
                if not same:
                    continue
                same = ours.term == theirs.term or not _agree_later(one, two, ours.index, last)
                if not same:
                    raise InvariantError(f"logs agree after {ours.index}, and not there")

    def _check_rest(self) -> None:
        self._check_matching()
        leaders = [n for n in self.nodes.values() if n.raft and n.raft.role is Role.LEADER]
        if len(leaders) != 1:
            raise InvariantError(f"{len(leaders)} leaders at rest")
        self._check_clients(leaders[0])

    def _check_clients(self, leader: Node) -> None:
        assert leader.raft is not None
        members = leader.raft.configuration
        behind = [each for each in members if len(self.nodes[each].state) == 0]
        if self.history.completed_after(HEAL + 2_000) == 0:
            raise InvariantError("nothing is committed after all was healed")
        if self.committed and behind:
            raise InvariantError(f"{behind} have nothing at rest")
        last = self.history.invoke(self.now + 1, None)
        self.history.complete(last, self.now + 1, leader.state)
        self.history.check()


def _down(log: RaftLog, first: int, last: int) -> tuple[Entry, ...]:
    return log.between(first - 1, last) if last >= first else ()


def _agree_later(one: RaftLog, two: RaftLog, index: int, last: int) -> bool:
    return any(one.term_of(each) == two.term_of(each) for each in range(index + 1, last + 1))
