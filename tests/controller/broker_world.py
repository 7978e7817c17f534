"""Controllers and brokers in one draw: elections, sync state sets, and messages that survive them.

Raft, the state machine and the table of heartbeats are the real ones. A broker is a model: a log of
values, each with the epoch of the master that wrote it; slaves cut back to what both have, and
copy. A master acknowledges what each broker has that may be in the set. Links between all of them
are cut in one direction, clocks run at other rates, disks of controllers are slow or forget, and
members change, as in :mod:`tests.controller.simulated`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from kerolox.controller.live_brokers import BrokerIdentity, LiveBrokers
from kerolox.controller.raft.messages import Entry, EntryType
from kerolox.controller.raft.raft import ProposalError, Role
from kerolox.controller.replicas_info import (
    AlterSyncStateSet,
    ApplyBrokerId,
    ElectMaster,
    RegisterBroker,
    ReplicasInfoManager,
    Result,
    decode_command,
    encode_command,
)
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.controller import BrokerHeartbeatHeader, MasterHeader, SyncStateSet
from tests.controller.simulated import HEAL, InvariantError, Node, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.controller.replicas_info import Command

END = 7_000
CLUSTER, NAME = "c", "b"
BROKERS = 3
STEP = 40
"""Between two steps of a broker whose clock is right."""
TIMEOUT = 300
"""How long a broker counts as alive after a heartbeat."""
LEASE = TIMEOUT * 2 // 3
SLOW = 250
"""A slave that has not had all for so long leaves the set."""


@dataclass
class Broker:
    """A process, which may be down; ``log`` is on its disk, and so is ``epoch``."""

    broker_id: int
    rate: float
    log: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and value."""
    is_up: bool = True
    epoch: int = 0
    master: int | None = None
    members: frozenset[int] = frozenset()
    set_epoch: int = 0
    wished: frozenset[int] = frozenset()
    have: dict[int, int] = field(default_factory=dict)
    """Of a master: how much of its log each slave has."""
    caught_up: dict[int, float] = field(default_factory=dict)
    lease_until: float = -1.0
    confirmed: int = 0
    """How much of its log was acknowledged, or could have been."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Position in the log → value, of messages that are not acknowledged."""

    @property
    def name(self) -> str:
        return f"b{self.broker_id}"

    @property
    def is_master(self) -> bool:
        return self.is_up and self.master == self.broker_id

    def counted(self) -> frozenset[int]:
        """Whom an acknowledgement waits for."""
        return self.members | self.wished

    def follow(self, master: int | None, epoch: int) -> None:
        """Another master is elected, or this one."""
        self.epoch, self.master = epoch, master
        self.members = self.wished = frozenset()
        self.have, self.caught_up, self.waiting, self.confirmed = {}, {}, {}, 0


@dataclass(frozen=True)
class Told:
    """What a controller said about the name, and when it was asked."""

    invoked: int
    completed: int
    epoch: int
    set_epoch: int
    master: int | None
    in_sync: tuple[int, ...] | None


class BrokerWorld(World):
    """A run of one seed. What may have a deliberate bug is a member or a method."""

    append_bytes_max = 4_096
    manager_type: type[ReplicasInfoManager] = ReplicasInfoManager
    broker_type: type[Broker] = Broker

    def __init__(self, seed: int, *, size: int = 3) -> None:
        self.told: list[Told] = []
        self.acknowledged: list[int] = []
        self.acknowledging: dict[int, int] = {}
        """Broker by the epoch in which it acknowledged."""
        self.states: dict[int, bytes] = {}
        """State after each entry; all controllers must have the same."""
        self.live: dict[str, LiveBrokers] = {}
        self.rates: dict[str, float] = {}
        self.results: dict[tuple[str, int], tuple[int, Callable[[Result], None]]] = {}
        self.values = itertools.count()
        random = Random(f"brokers {seed}")
        self.brokers = {
            number: self.broker_type(number, random.choice((0.9, 1.0, 1.0, 1.1)))
            for number in range(1, BROKERS + 1)
        }
        super().__init__(seed, size=size, until=END)
        for broker in self.brokers.values():
            self._at(50 + self.random.randrange(STEP), lambda b=broker: self._step_broker(b))
        for node in self.nodes.values():
            self.rates[node.node_id] = random.choice((0.9, 1.0, 1.1))
            self._at(STEP, lambda node=node: self._scan(node))
        self._at(150, self._broker_fault)

    # -- the state machine ----------------------------------------------------------------------
    def _decoded(self, data: bytes) -> ReplicasInfoManager:
        manager = self.manager_type()
        manager.restore(data)
        return manager

    def _encoded(self, state: ReplicasInfoManager) -> bytes:
        return state.encode()

    def _start(self, node: Node) -> None:
        super()._start(node)
        self.live[node.node_id] = LiveBrokers()

    def _apply_entry(self, node: Node, entry: Entry) -> None:
        result = None
        if entry.type is EntryType.NORMAL and entry.data:
            result = node.state.apply(self._command(node, entry.data))
        state = node.state.encode()
        if self.states.setdefault(entry.index, state) != state:
            raise InvariantError(f"{node.node_id} has another state after {entry.index}")
        term, answer = self.results.pop((node.node_id, entry.index), (0, None))
        if answer is not None and term == entry.term and result is not None:
            answer(result)

    def _command(self, node: Node, data: bytes) -> Command:
        return decode_command(data)

    def _alive(self, node: Node) -> list[int]:
        return self.live[node.node_id].best_first(CLUSTER, NAME, self._clock(node))

    def _clock(self, node: Node) -> int:
        return round(self.now * self.rates.get(node.node_id, 1.0))

    def _propose(self, node: Node, command: Command, answer: Callable[[Result], None]) -> None:
        raft = node.raft
        if raft is None or raft.role is not Role.LEADER:
            return
        try:
            index = raft.propose(encode_command(command))
        except ProposalError:
            return
        self.results[node.node_id, index] = raft.term, answer
        self._work(node)

    # -- a controller looks for silent masters --------------------------------------------------
    def _scan(self, node: Node) -> None:
        self._at(STEP / self.rates[node.node_id], lambda: self._scan(node))
        if node.raft is None:
            return
        gone = self.live[node.node_id].expire(self._clock(node))
        broker_set = node.state.broker_sets.get(NAME)
        if broker_set is None or broker_set.master_broker_id is None:
            return
        identity = BrokerIdentity(CLUSTER, NAME, broker_set.master_broker_id)
        if self._must_elect(gone, identity) and node.raft.role is Role.LEADER:
            self._elect(node, -1, lambda _: None)

    def _must_elect(self, gone: list[BrokerIdentity], master: BrokerIdentity) -> bool:
        """Whether some that are silent have another master elected."""
        return master in gone

    def _elect(self, node: Node, broker_id: int, answer: Callable[[Result], None]) -> None:
        alive = self._alive(node)
        before = node.state.broker_sets.get(NAME)
        old = None if before is None else before.master_broker_id

        def elected(result: Result) -> None:
            header = result.header
            if result.code == ResponseCode.SUCCESS and isinstance(header, MasterHeader):
                if old in alive and header.master_broker_id != old and before is not None:
                    raise InvariantError(f"{old} is alive, and {header.master_broker_id} elected")
                for broker in self.brokers.values():
                    self._pass(node.node_id, broker.name, lambda b=broker: self._hear(b, header))
            answer(result)

        command = ElectMaster(broker_name=NAME, broker_id=broker_id, alive=alive)
        self._propose(node, command, elected)

    # -- brokers --------------------------------------------------------------------------------
    def _pass(self, sender: str, to: str, act: Callable[[], None]) -> None:
        """A message between any two."""
        if (sender, to) not in self.cut and self.random.random() >= self.loss:
            self._at(self.random.randint(1, self.delay), act)

    def _step_broker(self, broker: Broker) -> None:
        self._at(STEP / broker.rate, lambda: self._step_broker(broker))
        if not broker.is_up:
            return
        for node in self.nodes.values():
            self._pass(broker.name, node.node_id, self._heartbeat_of(broker, node))
        leaders = [n for n in self.nodes.values() if n.raft and n.raft.role is Role.LEADER]
        if leaders:
            node = self.random.choice(leaders)
            self._pass(broker.name, node.node_id, lambda: self._ask(broker, node))
        if broker.is_master:
            self._lead(broker)
        elif broker.master is not None and broker.master != broker.broker_id:
            master, have = self.brokers[broker.master], tuple(each for each, _ in broker.log)
            epoch = broker.epoch
            self._pass(broker.name, master.name, lambda: self._serve(master, broker, have, epoch))

    def _heartbeat_of(self, broker: Broker, node: Node) -> Callable[[], None]:
        header = BrokerHeartbeatHeader(
            cluster_name=CLUSTER,
            broker_addr="a:1",
            broker_name=NAME,
            broker_id=broker.broker_id,
            epoch=broker.log[-1][0] if broker.log else 0,
            max_offset=len(broker.log),
            heartbeat_timeout_mills=TIMEOUT,
        )
        sent = self._clock_of(broker)

        def came() -> None:
            if node.raft is None:
                return
            self.live[node.node_id].renew(header, broker.broker_id, self._clock(node))
            if node.raft.role is Role.LEADER:
                self._pass(node.node_id, broker.name, renew)

        def renew() -> None:
            broker.lease_until = max(broker.lease_until, sent + LEASE)

        return came

    def _clock_of(self, broker: Broker) -> float:
        return self.now * broker.rate

    def _ask(self, broker: Broker, node: Node) -> None:
        """Enter, or learn who is the master."""
        raft = node.raft
        if raft is None or raft.role is not Role.LEADER:
            return
        broker_set = node.state.broker_sets.get(NAME)
        if broker_set is None or broker.broker_id not in broker_set.brokers:
            command = ApplyBrokerId(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=broker.broker_id,
                check_code=broker.name,
            )
            self._propose(node, command, lambda _: None)
            return
        if self.random.random() < 0.1:
            register = RegisterBroker(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=broker.broker_id,
                broker_address=broker.name,
                alive=self._alive(node),
            )
            self._propose(node, register, lambda _: None)
        invoked = self.now

        def read() -> None:
            result = node.state.replica_info(NAME)
            header, body = result.header, result.body
            self._pass(
                node.node_id, broker.name, lambda: self._learn(broker, invoked, header, body)
            )

        self._read(node, read)
        if broker_set.master_broker_id is None:
            self._elect(node, broker.broker_id, lambda _: None)

    def _read(self, node: Node, read: Callable[[], None]) -> None:
        assert node.raft is not None
        try:
            node.raft.read(read)
        except ProposalError:
            return
        self._work(node)

    def _learn(self, broker: Broker, invoked: int, header: object, body: object) -> None:
        assert isinstance(body, SyncStateSet)
        epoch = getattr(header, "master_epoch")  # noqa: B009 - of two types
        master = getattr(header, "master_broker_id")  # noqa: B009
        in_sync = tuple(body.sync_state_set)
        self.told.append(Told(invoked, self.now, epoch, body.sync_state_set_epoch, master, in_sync))
        if broker.is_up and epoch >= broker.epoch:
            self._use(broker, master, epoch, body)

    def _hear(self, broker: Broker, header: MasterHeader) -> None:
        """Of an election."""
        epoch = header.master_epoch or 0
        if broker.is_up and epoch > broker.epoch and header.master_broker_id != broker.broker_id:
            broker.follow(header.master_broker_id, epoch)

    def _use(self, broker: Broker, master: int | None, epoch: int, body: SyncStateSet) -> None:
        if epoch > broker.epoch or master != broker.master:
            broker.follow(master, epoch)
        if broker.is_master and body.sync_state_set_epoch > broker.set_epoch:
            broker.set_epoch = body.sync_state_set_epoch
            broker.members = frozenset(body.sync_state_set)
            broker.wished = frozenset()
        elif broker.is_master and not broker.members:
            broker.set_epoch = body.sync_state_set_epoch
            broker.members = frozenset(body.sync_state_set)

    # -- a master -------------------------------------------------------------------------------
    def _lead(self, broker: Broker) -> None:
        now = self._clock_of(broker)
        if broker.members and now < broker.lease_until and self.random.random() < 0.7:
            broker.log.append((broker.epoch, next(self.values)))
            broker.waiting[len(broker.log)] = broker.log[-1][1]
        self._acknowledge(broker)
        wanted = frozenset({broker.broker_id, *filter(self._may_enter(broker), broker.caught_up)})
        if broker.members and wanted != broker.members and not broker.wished:
            self._wish(broker, wanted)

    def _may_enter(self, broker: Broker) -> Callable[[int], bool]:
        """Whether a slave may be in the set, or stay there: it has all that is confirmed."""
        now = self._clock_of(broker)
        return lambda each: (
            now - broker.caught_up[each] <= SLOW
            and (each in broker.members or broker.have.get(each, 0) >= broker.confirmed)
        )

    def _wish(self, broker: Broker, wanted: frozenset[int]) -> None:
        leaders = [n for n in self.nodes.values() if n.raft and n.raft.role is Role.LEADER]
        if not leaders:
            return
        broker.wished = wanted
        node, set_epoch, epoch = self.random.choice(leaders), broker.set_epoch, broker.epoch

        def answer(result: Result) -> None:
            if isinstance(result.body, SyncStateSet):
                body = result.body
                self._pass(node.node_id, broker.name, lambda: self._changed(broker, epoch, body))

        def came() -> None:
            command = AlterSyncStateSet(
                broker_name=NAME,
                master_broker_id=broker.broker_id,
                master_epoch=epoch,
                sync_state_set=sorted(wanted),
                sync_state_set_epoch=set_epoch,
                alive=self._alive(node),
            )
            self._propose(node, command, answer)

        self._pass(broker.name, node.node_id, came)
        # An answer that is lost leaves both sets: a later read says which it is.
        self._at(TIMEOUT, lambda: self._wish_again(broker, epoch, wanted))

    def _wish_again(self, broker: Broker, epoch: int, wanted: frozenset[int]) -> None:
        if broker.is_master and broker.epoch == epoch and broker.wished == wanted:
            self._wish(broker, wanted)

    def _changed(self, broker: Broker, epoch: int, body: SyncStateSet) -> None:
        if broker.is_master and broker.epoch == epoch:
            self._use(broker, broker.broker_id, epoch, body)
            self._acknowledge(broker)

    def _acknowledge(self, broker: Broker) -> None:
        counted = broker.counted()
        if not broker.members or self._clock_of(broker) >= broker.lease_until:
            return
        confirmed = min(
            len(broker.log) if each == broker.broker_id else broker.have.get(each, 0)
            for each in counted
        )
        broker.confirmed = max(broker.confirmed, confirmed)
        for position in sorted(broker.waiting):
            if position <= confirmed:
                self.acknowledged.append(broker.waiting.pop(position))
                other = self.acknowledging.setdefault(broker.epoch, broker.broker_id)
                if other != broker.broker_id:
                    raise InvariantError(f"two masters acknowledge in epoch {broker.epoch}")

    def _serve(self, master: Broker, slave: Broker, have: tuple[int, ...], epoch: int) -> None:
        """A slave says what it has; it gets what follows."""
        if not master.is_master or master.epoch < epoch:
            return
        common = 0
        for ours, theirs in zip(master.log, have, strict=False):
            if ours[0] != theirs:
                break
            common += 1
        if master.epoch == epoch and common == len(have):
            master.have[slave.broker_id] = max(master.have.get(slave.broker_id, 0), common)
            if common >= len(master.log) - 1:
                master.caught_up[slave.broker_id] = self._clock_of(master)
            self._acknowledge(master)
        rest, of_epoch = master.log[common : common + 20], master.epoch
        self._pass(
            master.name, slave.name, lambda: self._copy(slave, master, of_epoch, common, rest, have)
        )

    def _copy(
        self,
        slave: Broker,
        master: Broker,
        epoch: int,
        common: int,
        rest: list[tuple[int, int]],
        have: tuple[int, ...],
    ) -> None:
        is_late = tuple(each for each, _ in slave.log) != have
        if not slave.is_up or epoch != slave.epoch or slave.master != master.broker_id or is_late:
            return
        slave.log[common:] = rest

    # -- faults ---------------------------------------------------------------------------------
    def _broker_fault(self) -> None:
        if self.now >= HEAL:
            return
        self._at(self.random.randrange(60, 300), self._broker_fault)
        masters = [each for each in self.brokers.values() if each.is_master]
        broker = self.random.choice([*self.brokers.values(), *masters])
        names = [*self.nodes, *(each.name for each in self.brokers.values())]
        match self.random.randrange(5):
            case 0:
                self._stop_broker(broker)
            case 1:
                self.cut |= {(broker.name, each) for each in names}
            case 2:
                self.cut |= {(each, broker.name) for each in names}
            case 3:
                self.cut |= {
                    pair for pair in itertools.permutations(names, 2) if self.random.random() < 0.15
                }
            case _:
                self.cut = {pair for pair in sorted(self.cut) if self.random.random() < 0.3}

    def _stop_broker(self, broker: Broker) -> None:
        broker.is_up, broker.lease_until = False, -1.0
        broker.follow(None, broker.epoch)

        def start() -> None:
            broker.is_up = True

        self._at(self.random.choice((100, 800, 1_600)), start)

    def _client(self) -> None:
        """Masters write by themselves."""

    # -- what must hold -------------------------------------------------------------------------
    def _check_clients(self, leader: Node) -> None:
        masters = [each for each in self.brokers.values() if each.is_master and each.members]
        if len(masters) != 1:
            raise InvariantError(f"{len(masters)} masters at rest")
        (master,) = masters
        values = [value for _, value in master.log]
        lost = [each for each in self.acknowledged if each not in set(values)]
        if lost:
            raise InvariantError(f"{lost} were acknowledged and are lost")
        whole = max(0, len(master.log) - 60)
        for each in self.brokers.values():
            if each.log[:whole] != master.log[:whole]:
                raise InvariantError(f"{each.name} has another log than the master at rest")
        if not self.acknowledged:
            raise InvariantError("nothing was acknowledged")
        check_told(self.told)


def check_told(told: list[Told]) -> None:
    """Whether answers are of one order: each change raises an epoch, so that the pair of both names
    a state. InvariantError: two answers of one pair differ, an epoch has two masters, or an answer
    is older than one that came before it was asked for."""
    states: dict[tuple[int, int], tuple[int | None, tuple[int, ...] | None]] = {}
    masters: dict[int, int | None] = {}
    for each in told:
        pair, state = (each.epoch, each.set_epoch), (each.master, each.in_sync)
        if states.setdefault(pair, state) != state:
            raise InvariantError(f"two states of epochs {pair}: {states[pair]} and {state}")
        if masters.setdefault(each.epoch, each.master) != each.master:
            raise InvariantError(f"two masters of epoch {each.epoch}")
    newest = (0, 0)
    ended = sorted(told, key=lambda each: each.completed)
    position = 0
    for each in sorted(told, key=lambda each: each.invoked):
        while position < len(ended) and ended[position].completed < each.invoked:
            newest = max(newest, (ended[position].epoch, ended[position].set_epoch))
            position += 1
        if (each.epoch, each.set_epoch) < newest:
            raise InvariantError(f"at {each.completed} an answer is older than {newest}")
