"""What a broker asks the controllers, against the controllers' own state machine; all time is the
test's."""

from __future__ import annotations

import pytest

from kerolox.broker.roles.identity import BrokerIdentity
from kerolox.broker.roles.replicas_manager import (
    RETRY_MS,
    Ask,
    Follow,
    ForgetAsked,
    KeepAsked,
    KeepGot,
    Kind,
    Lead,
    Learn,
    LogState,
    ManagerSettings,
    Refused,
    ReplicasManager,
    Step,
)
from kerolox.controller.replicas_info import (
    AlterSyncStateSet,
    ApplyBrokerId,
    ElectMaster,
    RegisterBroker,
    ReplicasInfoManager,
    Result,
)
from kerolox.protocol.bodies import decode_body, encode_body
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    RegisterBrokerHeader,
    SyncStateSet,
)

CONTROLLERS = ("c0:1", "c1:1")
LOG = LogState(0, 0, 0)
TIMEOUT_MS = 3_000
HEARTBEAT_MS = 100


class Controllers:
    """Two of them, of which one leads; all brokers that ever asked are alive."""

    def __init__(self) -> None:
        self.replicas = ReplicasInfoManager()
        self.leader = "c1:1"
        self.alive: list[int] = []

    def answer(self, ask: Ask) -> RemotingCommand:
        """The answer of the controller that is asked."""
        fields = ask.command.ext_fields
        if ask.kind is Kind.METADATA:
            found = GetMetaDataResponseHeader(controller_leader_address=self.leader)
            return response(ask, Result(header=found))
        if ask.kind is Kind.HEARTBEAT:
            return response(ask, Result())
        if ask.address != self.leader:
            return response(ask, Result(ResponseCode.CONTROLLER_NOT_LEADER))
        return response(ask, self._result(ask.kind, fields, ask.command.body))

    def _result(self, kind: Kind, fields: dict[str, str], body: bytes) -> Result:
        if kind is Kind.NEXT_ID:
            number = self.replicas.next_broker_id("b")
            return Result(
                header=GetNextBrokerIdResponseHeader(
                    cluster_name="c", broker_name="b", next_broker_id=number
                )
            )
        if kind is Kind.APPLY_ID:
            applied = ApplyBrokerIdHeader.decode(fields)
            return self.replicas.apply(
                ApplyBrokerId(
                    cluster_name="c",
                    broker_name="b",
                    broker_id=applied.applied_broker_id,
                    check_code=applied.register_check_code,
                )
            )
        if kind is Kind.REGISTER:
            registered = RegisterBrokerHeader.decode(fields)
            return self.replicas.apply(
                RegisterBroker(
                    cluster_name="c",
                    broker_name="b",
                    broker_id=registered.broker_id,
                    broker_address=registered.broker_address,
                    alive=self.alive,
                )
            )
        if kind is Kind.ELECT:
            return self.elect(ElectMasterHeader.decode(fields).broker_id)
        if kind is Kind.REPLICA_INFO:
            return self.replicas.replica_info("b")
        wanted, altered = decode_body(body, SyncStateSet), AlterSyncStateSetHeader.decode(fields)
        return self.replicas.apply(
            AlterSyncStateSet(
                broker_name="b",
                master_broker_id=altered.master_broker_id,
                master_epoch=altered.master_epoch,
                sync_state_set=wanted.sync_state_set,
                sync_state_set_epoch=wanted.sync_state_set_epoch,
                alive=self.alive,
            )
        )

    def elect(self, broker_id: int = -1) -> Result:
        return self.replicas.apply(
            ElectMaster(broker_name="b", broker_id=broker_id, alive=self.alive)
        )


def response(ask: Ask, result: Result) -> RemotingCommand:
    fields = None if result.header is None else result.header.encode()
    answer = ask.command.response(result.code, result.remark)
    answer.ext_fields = {key: str(value) for key, value in (fields or {}).items()}
    answer.body = b"" if result.body is None else encode_body(result.body)
    return answer


class One:
    """A broker."""

    def __init__(
        self,
        controllers: Controllers,
        identity: BrokerIdentity | None = None,
        *,
        was_slave: bool = False,
        has_left: bool = False,
    ) -> None:
        settings = ManagerSettings(
            cluster_name="c",
            broker_name="b",
            controllers=CONTROLLERS,
            metadata_ms=10_000,
            replica_info_ms=1_000,
            heartbeat_ms=HEARTBEAT_MS,
            timeout_ms=TIMEOUT_MS,
            priority=1,
            was_slave=was_slave,
            has_left=has_left,
        )
        self.manager = ReplicasManager(settings, identity)
        self.controllers = controllers
        self.steps: list[Step] = []
        self.kinds: list[Kind] = []

    def turn(self, now_ms: int, log: LogState = LOG) -> None:
        """Send what is due, and take the answers."""
        for ask in self.manager.due(f"b{id(self)}:1", log, now_ms):
            self.take(ask, now_ms)

    def take(self, ask: Ask, now_ms: int) -> None:
        self.kinds.append(ask.kind)
        for step in self.manager.answered(ask, self.controllers.answer(ask), now_ms):
            self.steps.append(step)
            if isinstance(step, KeepAsked):
                self.manager.keeps(BrokerIdentity("c", "b", step.broker_id, step.check_code))
            elif isinstance(step, KeepGot):
                self.manager.keeps(step.identity._replace(check_code=""))
                self.controllers.alive.append(self.manager.broker_id)

    def until(self, kind: type[Step], now_ms: int) -> int:
        """Let time pass until there is such a step; when that is."""
        for now in range(now_ms, now_ms + 5_000, 50):
            self.turn(now)
            if any(isinstance(each, kind) for each in self.steps):
                return now
        raise AssertionError(self.kinds)


def master_of(controllers: Controllers) -> tuple[One, int]:
    one = One(controllers)
    return one, one.until(Lead, 0)


def test_the_first_broker_gets_an_id_registers_and_is_elected() -> None:
    one, _ = master_of(Controllers())
    assert [type(each) for each in one.steps] == [KeepAsked, KeepGot, Lead]
    assert one.steps[-1] == Lead(1, frozenset({1}), 1)
    asked = [each for each in one.kinds if each not in (Kind.METADATA, Kind.HEARTBEAT)]
    assert asked == [Kind.NEXT_ID, Kind.APPLY_ID, Kind.REGISTER, Kind.ELECT]


def test_a_second_broker_follows_the_first() -> None:
    controllers = Controllers()
    master_of(controllers)
    other = One(controllers)
    other.until(Follow, 0)
    step = other.steps[-1]
    assert isinstance(step, Follow)
    assert (step.epoch, step.master_id) == (1, 1)
    assert not other.manager.is_master


@pytest.mark.parametrize("last_epoch", [-1, 3])
def test_a_former_slave_waits_for_its_master_unless_its_log_was_under_a_controller(
    last_epoch: int,
) -> None:
    one = One(Controllers(), was_slave=True)
    for now in range(0, 2_000, 100):
        one.turn(now, LOG._replace(last_epoch=last_epoch))
    assert one.manager.is_master == (last_epoch > 0)
    assert one.manager.broker_id == 1


@pytest.mark.parametrize("was_slave", [False, True])
def test_a_slave_that_left_the_controllers_is_not_the_master_that_they_knew(
    was_slave: bool,
) -> None:
    controllers = Controllers()
    _, now = master_of(controllers)
    one = One(controllers, BrokerIdentity("c", "b", 1), was_slave=was_slave, has_left=True)
    for at in range(now, now + 3_000, 100):
        one.turn(at, LOG._replace(last_epoch=1))
    assert one.manager.is_master == (not was_slave)
    # Without a heartbeat nobody takes it for alive, and elects it.
    assert (Kind.HEARTBEAT in one.kinds) == (not was_slave)
    assert Kind.ELECT not in one.kinds


def test_a_slave_that_left_the_controllers_follows_another_master() -> None:
    controllers = Controllers()
    _, now = master_of(controllers)
    one = One(controllers, BrokerIdentity("c", "b", 2, "x;1"), was_slave=True, has_left=True)
    now = one.until(Follow, now)
    # Its log is the master's by now.
    one.manager.has_left = False
    one.turn(now + HEARTBEAT_MS, LOG._replace(last_epoch=1))
    assert Kind.HEARTBEAT in one.kinds


def test_a_broker_that_is_forgotten_while_it_asks_for_an_election_registers_again() -> None:
    controllers = Controllers()
    _, now = master_of(controllers)
    one = One(controllers, BrokerIdentity("c", "b", 2, "x;1"))
    one.until(KeepGot, now)
    controllers.alive.clear()
    controllers.elect()
    for at in range(now, now + 2_000, 100):
        one.turn(at)
    assert Kind.ELECT in one.kinds
    assert not one.manager.is_master
    controllers.replicas.broker_sets.clear()
    one.until(KeepAsked, now + 2_000)


def test_another_ones_id_is_forgotten_and_the_next_one_asked_for() -> None:
    controllers = Controllers()
    master_of(controllers)
    other = One(controllers, BrokerIdentity("c", "b", 1, "elsewhere;7"))
    other.until(KeepGot, 0)
    assert [type(each) for each in other.steps] == [ForgetAsked, KeepAsked, KeepGot]
    assert other.manager.broker_id == 2


def test_a_master_holds_its_lease_only_while_the_controller_names_it() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    assert not one.manager.takes_messages(now)
    one.turn(now + 50)
    one.turn(now + 200)
    assert one.manager.takes_messages(now + 200)
    # Heartbeats alone are answered from here on.
    for later in range(now + 250, now + 2_500, 50):
        for ask in one.manager.due("b:1", LOG, later):
            answer = controllers.answer(ask) if ask.kind is Kind.HEARTBEAT else None
            one.manager.answered(ask, answer, later)
    assert not one.manager.takes_messages(now + 200 + TIMEOUT_MS * 2 // 3)


def test_a_lease_counts_from_a_heartbeat_that_the_leader_answered() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    for later in range(now + 50, now + 3_000, 50):
        for ask in one.manager.due("b:1", LOG, later):
            answer = None if ask.kind is Kind.HEARTBEAT else controllers.answer(ask)
            one.manager.answered(ask, answer, later)
    assert not one.manager.takes_messages(now + 3_000)


def test_a_master_that_is_replaced_takes_no_messages_once_it_asks() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    other = One(controllers)
    now = other.until(Follow, now)
    one.turn(now)
    one.turn(now + HEARTBEAT_MS)
    controllers.replicas.broker_sets["b"].use_sync_state_set({1, 2})
    controllers.alive.remove(1)
    controllers.elect()
    assert one.manager.takes_messages(now + HEARTBEAT_MS)
    one.manager.notified()
    one.turn(now + HEARTBEAT_MS + 1)
    assert not one.manager.takes_messages(now + HEARTBEAT_MS + 1)
    assert isinstance(one.steps[-1], Follow)
    other.turn(now + 5_000)
    assert isinstance(other.steps[-1], Lead)
    assert other.steps[-1].epoch == 2


def test_a_controller_that_does_not_lead_any_more_is_left_for_the_next_one() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    controllers.leader = "c0:1"
    one.manager.notified()
    one.turn(now + 1)
    assert not one.manager.leader
    one.turn(now + 2)
    assert one.manager.leader == "c0:1"


def test_a_silent_controller_is_left_for_the_next_one() -> None:
    one = One(Controllers())
    [ask] = one.manager.due("b:1", LOG, 0)
    assert ask.address == CONTROLLERS[0]
    one.manager.answered(ask, None, 10)
    assert not one.manager.due("b:1", LOG, 11)
    [ask] = one.manager.due("b:1", LOG, 10 + RETRY_MS)
    assert ask.address == CONTROLLERS[1]


def test_a_refused_set_ends_a_wish_only_when_the_controller_was_asked_again() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    one.turn(now + 1)
    [ask] = one.manager.alter({1, 2}, 1, now + 2)
    one.take(ask, now + 3)
    assert not isinstance(one.steps[-1], Refused)
    assert not one.manager.alter({1, 2}, 1, now + 4)
    one.turn(now + 5)
    assert one.steps[-2:] == [Learn(frozenset({1}), 1), Refused()]


def test_a_granted_set_is_learned() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    other = One(controllers)
    other.until(Follow, now)
    [ask] = one.manager.alter({1, 2}, 1, now)
    one.take(ask, now)
    assert one.steps[-1] == Learn(frozenset({1, 2}), 2)


def test_an_answer_that_is_none_is_as_no_answer() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    one.manager.notified()
    [ask, *_] = [
        each for each in one.manager.due("b:1", LOG, now) if each.kind is Kind.REPLICA_INFO
    ]
    answer = controllers.answer(ask)
    answer.body = b"{"
    assert one.manager.answered(ask, answer, now) == []
    assert not one.manager.leader


def test_a_slave_without_its_master_asks_often() -> None:
    controllers = Controllers()
    _, now = master_of(controllers)
    other = One(controllers)
    now = other.until(Follow, now)
    other.turn(now + 50)

    def asks(at: int, *, is_cut_off: bool) -> int:
        found = other.manager.due("b:1", LOG, at, is_cut_off=is_cut_off)
        for each in found:
            other.manager.answered(each, controllers.answer(each), at)
        return sum(each.kind is Kind.REPLICA_INFO for each in found)

    quiet = sum(asks(now + 100 + at, is_cut_off=False) for at in range(0, 900, 50))
    cut_off = sum(asks(now + 1_000 + at, is_cut_off=True) for at in range(0, 1_000, 50))
    assert quiet <= 1
    assert cut_off >= 4


def test_a_broker_that_the_controllers_forgot_asks_for_its_id_again() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    controllers.replicas.broker_sets.clear()
    one.steps.clear()
    one.manager.notified()
    now = one.until(KeepGot, now + 1)
    assert [type(each) for each in one.steps] == [KeepAsked, KeepGot]
    assert one.manager.broker_id == 1
    assert 1 in controllers.replicas.broker_sets["b"].brokers


def test_of_two_forgotten_brokers_each_gets_the_id_that_it_had() -> None:
    controllers = Controllers()
    one, now = master_of(controllers)
    other = One(controllers)
    now = other.until(Follow, now)
    controllers.replicas.broker_sets.clear()
    for each in (one, other):
        each.steps.clear()
        each.manager.notified()
    # The second one asks first, and waits: the first id may be of a broker that has not asked yet.
    for later in range(now + 1, now + 2_000, 50):
        other.turn(later)
    assert not any(isinstance(each, KeepGot | ForgetAsked) for each in other.steps)
    now = one.until(KeepGot, now + 2_000)
    other.until(KeepGot, now)
    assert (one.manager.broker_id, other.manager.broker_id) == (1, 2)
