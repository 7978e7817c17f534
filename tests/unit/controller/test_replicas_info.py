"""What ReplicasInfoManager of RocketMQ 5.3.3 answers, and where ours differs."""

from __future__ import annotations

import pytest

from kerolox.controller import replicas_info
from kerolox.controller.replicas_info import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    ForgetSyncStateSets,
    RegisterBroker,
    ReplicasInfoManager,
    Result,
    decode_command,
    encode_command,
)
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.controller import (
    ElectMasterResponseBody,
    MasterHeader,
    RegisterBrokerResponseHeader,
    SyncStateSet,
)

HOST = "127.0.0.1"


class Manager(ReplicasInfoManager):
    """Every command goes through its bytes, and what it made through a snapshot."""

    def apply(self, command: replicas_info.Command) -> Result:
        result = super().apply(decode_command(encode_command(command)))
        self.restore(self.encode())
        return result


@pytest.fixture
def manager() -> Manager:
    """Three brokers of the name b, with an id each and no master."""
    made = Manager()
    for broker_id in (1, 2, 3):
        assert made.apply(apply_id(broker_id)).code == ResponseCode.SUCCESS
    return made


@pytest.fixture
def led(manager: Manager) -> Manager:
    """Their master is 1, and 1 and 2 are in sync."""
    assert elect(manager, 1, alive=[1, 2, 3]).code == ResponseCode.SUCCESS
    assert alter(manager, [1, 2]).code == ResponseCode.SUCCESS
    return manager


def apply_id(broker_id: int, code: str = "") -> ApplyBrokerId:
    return ApplyBrokerId(
        cluster_name="c",
        broker_name="b",
        broker_id=broker_id,
        check_code=code or f"{HOST}:{broker_id};17",
    )


def elect(manager: Manager, broker_id: int = -1, *, alive: list[int], **members: bool) -> Result:
    return manager.apply(ElectMaster(broker_name="b", broker_id=broker_id, alive=alive, **members))


def alter(
    manager: Manager,
    wanted: list[int],
    *,
    master: int = 1,
    epoch: int = 1,
    set_epoch: int = 1,
    alive: tuple[int, ...] = (1, 2, 3),
) -> Result:
    return manager.apply(
        AlterSyncStateSet(
            broker_name="b",
            master_broker_id=master,
            master_epoch=epoch,
            sync_state_set=wanted,
            sync_state_set_epoch=set_epoch,
            alive=list(alive),
        )
    )


def register(manager: Manager, broker_id: int, *, alive: list[int], port: int = 0) -> Result:
    return manager.apply(
        RegisterBroker(
            cluster_name="c",
            broker_name="b",
            broker_id=broker_id,
            broker_address=f"{HOST}:{port or broker_id}",
            alive=alive,
        )
    )


def clean(manager: Manager, *ids: int, alive: tuple[int, ...] = (), force: bool = False) -> Result:
    return manager.apply(
        CleanBrokerData(
            broker_name="b", broker_ids=list(ids), alive=list(alive), even_if_alive=force
        )
    )


def test_ids_are_given_one_after_the_other_to_who_proves_to_be_the_same(manager: Manager) -> None:
    assert (manager.next_broker_id("b"), manager.next_broker_id("new")) == (4, 1)
    assert manager.apply(apply_id(2)).code == ResponseCode.SUCCESS
    stolen = manager.apply(apply_id(2, f"{HOST}:9;99"))
    assert stolen.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert stolen.remark == "Fail to apply brokerId: 2 in broker-set: b"
    assert manager.next_broker_id("b") == 4
    for broker_id in (0, -1):
        invalid = manager.apply(apply_id(broker_id))
        assert invalid.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    first = Manager().apply(apply_id(2))
    assert first.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert "hasn't been registered in controller" in (first.remark or "")


def test_names_and_brokers_are_bounded(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_info, "BROKER_SETS_MAX", 1)
    monkeypatch.setattr(replicas_info, "BROKERS_OF_SET_MAX", 3)
    other = ApplyBrokerId(cluster_name="c", broker_name="d", broker_id=1, check_code="x")
    assert "clean one that is gone" in (manager.apply(other).remark or "")
    assert "has 3 brokers" in (manager.apply(apply_id(4)).remark or "")


def test_a_registration_tells_a_master_that_is_alive(led: Manager) -> None:
    there = register(led, 3, alive=[1])
    assert there.header == RegisterBrokerResponseHeader(
        cluster_name="c",
        broker_name="b",
        master_broker_id=1,
        master_address=f"{HOST}:1",
        master_epoch=1,
        sync_state_set_epoch=2,
    )
    assert there.body == SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=2)
    gone = register(led, 3, alive=[2])
    assert gone.header == RegisterBrokerResponseHeader(cluster_name="c", broker_name="b")
    unknown = register(led, 9, alive=[1])
    assert unknown.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert unknown.remark == "BrokerId: 9 hasn't been registered in broker-set: b"
    nothing = register(Manager(), 1, alive=[])
    assert nothing.remark == "Broker-set: b hasn't been registered in controller"


def test_a_registration_changes_the_address(led: Manager) -> None:
    register(led, 1, alive=[1], port=77)
    assert led.broker_sets["b"].master.master_address == f"{HOST}:77"


def test_the_first_master_is_who_asks_first(manager: Manager) -> None:
    result = elect(manager, 2, alive=[1, 2, 3])
    assert result.header == MasterHeader(
        master_broker_id=2,
        master_address=f"{HOST}:2",
        master_epoch=1,
        sync_state_set_epoch=1,
    )
    assert isinstance(result.body, ElectMasterResponseBody)
    assert result.body.sync_state_set == [2]
    assert result.body.broker_member_group is not None
    assert result.body.broker_member_group.broker_addrs == {i: f"{HOST}:{i}" for i in (1, 2, 3)}


def test_nobody_unknown_is_elected(manager: Manager) -> None:
    """RocketMQ makes an id that it never gave the first master."""
    unknown = elect(manager, 9, alive=[1])
    assert unknown.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    nothing = elect(Manager(), 1, alive=[1])
    assert nothing.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_a_master_that_is_alive_stays(led: Manager) -> None:
    result = elect(led, 2, alive=[2, 1])
    assert result.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert result.header == led.broker_sets["b"].master
    assert result.body == ElectMasterResponseBody(sync_state_set=[1, 2])


def test_the_next_master_is_the_best_of_the_sync_state_set(led: Manager) -> None:
    assert alter(led, [1, 2, 3], set_epoch=2).code == ResponseCode.SUCCESS
    result = elect(led, alive=[3, 2])
    assert result.header == MasterHeader(
        master_broker_id=3, master_address=f"{HOST}:3", master_epoch=2, sync_state_set_epoch=4
    )
    assert led.broker_sets["b"].sync_state_set == [3]


def test_one_out_of_the_set_is_elected_by_the_setting_alone(led: Manager) -> None:
    refused = elect(led, 3, alive=[3], designate=True)
    assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert led.broker_sets["b"].master_broker_id == 1
    elected = elect(led, 3, alive=[3], designate=True, may_be_unclean=True)
    assert elected.code == ResponseCode.SUCCESS


def test_when_nobody_can_follow_a_master_there_is_none_and_its_set_stays(led: Manager) -> None:
    result = elect(led, alive=[3])
    assert result.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    broker_set = led.broker_sets["b"]
    assert (broker_set.master_broker_id, broker_set.master_epoch) == (None, 2)
    assert broker_set.sync_state_set == [1, 2]
    assert elect(led, alive=[3]).code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert led.broker_sets["b"].master_epoch == 2
    assert elect(led, 2, alive=[2]).code == ResponseCode.SUCCESS


def test_without_a_set_an_operator_alone_names_the_next_master(led: Manager) -> None:
    assert led.apply(ForgetSyncStateSets()).code == ResponseCode.SUCCESS
    info = led.broker_sets["b"]
    assert (info.master_broker_id, info.master_epoch) == (None, 1)
    assert (info.sync_state_set, info.sync_state_set_epoch) == ([], 3)
    for broker_id in (1, 2, -1):
        refused = elect(led, broker_id, alive=[1, 2, 3])
        assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert "no broker of b is known to be in sync" in (refused.remark or "")
    assert elect(led, 3, alive=[1, 2], designate=True).code != ResponseCode.SUCCESS
    assert elect(led, 3, alive=[1, 2, 3], designate=True).code == ResponseCode.SUCCESS
    assert led.broker_sets["b"].sync_state_set == [3]


def test_without_a_set_nobody_is_the_first_master_of_new_brokers(manager: Manager) -> None:
    manager.apply(ForgetSyncStateSets())
    refused = elect(manager, 1, alive=[1])
    assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert elect(manager, 1, alive=[1], designate=True).code == ResponseCode.SUCCESS


def test_an_operator_names_the_next_master(led: Manager) -> None:
    assert elect(led, 2, alive=[1, 2], designate=True).code == ResponseCode.SUCCESS
    assert led.broker_sets["b"].master_broker_id == 2
    again = elect(led, 2, alive=[1, 2], designate=True)
    assert again.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


@pytest.mark.parametrize(
    ("wanted", "members", "code"),
    [
        ([2, 1], {}, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        ([1], {"master": 2}, ResponseCode.CONTROLLER_INVALID_MASTER),
        ([1], {"epoch": 2}, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        ([1], {"set_epoch": 1}, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        ([1, 9], {}, ResponseCode.CONTROLLER_INVALID_REPLICAS),
        ([1, 3], {"alive": (1, 2)}, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
        ([2, 3], {}, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        ([1], {}, ResponseCode.SUCCESS),
        ([1, 2, 3], {}, ResponseCode.SUCCESS),
    ],
)
def test_a_set_is_taken_from_the_master_of_this_epoch(
    led: Manager, wanted: list[int], members: dict[str, int], code: int
) -> None:
    before = led.encode()
    result = alter(led, wanted, **{"set_epoch": 2, **members})  # type: ignore[arg-type]
    assert result.code == code
    assert (led.encode() == before) == (code != ResponseCode.SUCCESS)
    unknown = alter(Manager(), [1])
    assert unknown.code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED


def test_two_slaves_that_leave_at_once_make_one_change(led: Manager) -> None:
    """Both changes name the epoch that they saw; the later one has to look again."""
    alter(led, [1, 2, 3], set_epoch=2)
    assert alter(led, [1, 2], set_epoch=3).code == ResponseCode.SUCCESS
    late = alter(led, [1, 3], set_epoch=3)
    assert late.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert led.broker_sets["b"].sync_state_set == [1, 2]


def test_brokers_that_are_gone_are_cleaned(led: Manager) -> None:
    assert clean(led).code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    alive = clean(led, 2, alive=(2,))
    assert alive.remark == "Broker [b,  2] is still alive, clean up failure"
    assert clean(led, 2).code == ResponseCode.SUCCESS
    broker_set = led.broker_sets["b"]
    assert (sorted(broker_set.brokers), broker_set.sync_state_set) == ([1, 3], [1])
    assert clean(led, 1, alive=(1,), force=True).code == ResponseCode.SUCCESS
    broker_set = led.broker_sets["b"]
    assert (broker_set.master_broker_id, broker_set.master_epoch) == (None, 2)
    assert clean(led).code == ResponseCode.SUCCESS
    missing = clean(led)
    assert missing.remark == "Broker b is not existed,clean broker data failure."


def test_reads_tell_all_that_is_known(led: Manager) -> None:
    info = led.replica_info("b")
    assert info.body == SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=2)
    unknown = led.replica_info("new")
    assert unknown.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    table = led.sync_state_data({"b": [1, 3], "new": []}).replicas_info_table
    assert list(table) == ["b"]
    assert [(e.broker_id, e.alive) for e in table["b"].in_sync_replicas] == [(1, True), (2, False)]
    assert [(e.broker_id, e.alive) for e in table["b"].not_in_sync_replicas] == [(3, True)]
