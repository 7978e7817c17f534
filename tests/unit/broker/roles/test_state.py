"""What a broker may become: the rules, without a broker."""

from __future__ import annotations

import pytest

from kerolox.broker.roles.state import RoleError, RoleState
from kerolox.protocol.extensions.roles import PAUSE_MS_MAX, SLAVE, RoleAction, RoleChange

MASTER = "ASYNC_MASTER"


def master(epoch: int = 3) -> RoleState:
    return RoleState(MASTER, 0, epoch)


def slave(epoch: int = 3) -> RoleState:
    return RoleState(SLAVE, 1, epoch)


def pause(epoch: int = 3, token: str = "t", milliseconds: int = 1_000) -> RoleChange:
    return RoleChange(action=RoleAction.PAUSE, epoch=epoch, token=token, milliseconds=milliseconds)


def demote(epoch: int = 4, token: str = "t", broker_id: int = 1, **more: object) -> RoleChange:
    return RoleChange(
        action=RoleAction.DEMOTE, epoch=epoch, token=token, broker_id=broker_id, **more
    )


def promote(epoch: int = 4, role: str = "SYNC_MASTER") -> RoleChange:
    return RoleChange(action=RoleAction.PROMOTE, epoch=epoch, broker_role=role)


def follow(epoch: int) -> RoleChange:
    return RoleChange(action=RoleAction.FOLLOW, epoch=epoch, master_address="m:1")


def test_a_pause_ends_by_itself_and_its_token_demotes_nobody_then() -> None:
    state = master()
    state.pause(pause(), 100)
    assert state.is_paused(1_099)
    assert not state.takes_messages(1_099)
    assert state.takes_messages(1_100)
    with pytest.raises(RoleError, match="its pause is over"):
        state.demoted(demote(), 1_100)


def test_only_who_paused_a_master_resumes_or_demotes_it() -> None:
    state = master()
    state.pause(pause(), 0)
    for refused in (
        lambda: state.pause(pause(token="other"), 1),
        lambda: state.resume(RoleChange(action=RoleAction.RESUME, token="other"), 1),
        lambda: state.demoted(demote(token="other"), 1),
        lambda: state.demoted(demote(token=""), 1),
    ):
        with pytest.raises(RoleError):
            refused()
    assert not state.takes_messages(1)
    # The same change may take longer.
    state.pause(pause(), 900)
    assert not state.takes_messages(1_800)
    state.resume(RoleChange(action=RoleAction.RESUME, token="t"), 1_800)
    assert state.takes_messages(1_800)


@pytest.mark.parametrize("asked", [pause(token=""), pause(milliseconds=0), pause(epoch=2)])
def test_a_pause_names_its_change_its_time_and_the_masters_epoch(asked: RoleChange) -> None:
    state = master()
    with pytest.raises(RoleError):
        state.pause(asked, 0)
    with pytest.raises(RoleError):
        state.pause(pause(milliseconds=PAUSE_MS_MAX + 1), 0)
    assert state.takes_messages(0)


def test_a_slave_is_not_paused_and_is_demoted_once() -> None:
    state = slave(4)
    with pytest.raises(RoleError, match="it is a slave"):
        state.pause(pause(4), 0)
    assert state.demoted(demote(4), 0) is None


def test_a_demotion_needs_a_newer_epoch_and_an_id() -> None:
    state = master()
    state.pause(pause(), 0)
    for epoch in (2, 3):
        with pytest.raises(RoleError, match="comes too late"):
            state.demoted(demote(epoch), 0)
    with pytest.raises(RoleError, match="id above 0"):
        state.demoted(demote(broker_id=0), 0)
    record = state.demoted(demote(master_address="m:1", master_ha_address="m:2"), 0)
    assert record is not None
    assert (record.broker_role, record.broker_id, record.epoch) == (SLAVE, 1, 4)
    assert (record.master_address, record.master_ha_address) == ("m:1", "m:2")
    # Nothing is so before it is on the disk.
    assert state.is_master
    state.take(record)
    assert not state.is_master
    assert not state.takes_messages(0)


def test_a_forced_demotion_needs_no_pause() -> None:
    assert master().demoted(demote(token="", is_forced=True), 0) is not None


def test_a_promotion_that_comes_late_is_refused() -> None:
    state = slave(3)
    for epoch in (0, 3):
        with pytest.raises(RoleError, match="comes too late"):
            state.promoted(promote(epoch))
    state.take(state.following(follow(5)))
    with pytest.raises(RoleError, match="comes too late"):
        state.promoted(promote(4))
    record = state.promoted(promote(6))
    assert record is not None
    state.take(record)
    assert (state.role, state.broker_id, state.epoch) == ("SYNC_MASTER", 0, 6)
    assert state.takes_messages(0)
    assert state.promoted(promote(6)) is None
    with pytest.raises(RoleError, match="the master already"):
        state.promoted(promote(7))


def test_a_masters_role_is_one_of_a_masters() -> None:
    with pytest.raises(RoleError, match="ASYNC_MASTER or SYNC_MASTER"):
        slave().promoted(promote(role=""))


def test_a_slave_follows_no_older_master_and_a_master_nobody() -> None:
    with pytest.raises(RoleError, match="newer than 2"):
        slave(3).following(follow(2))
    with pytest.raises(RoleError, match="it is a master"):
        master().following(follow(9))
    record = slave(3).following(follow(3))
    assert (record.broker_id, record.master_address) == (1, "m:1")


def test_a_master_that_hears_of_a_newer_one_takes_no_messages_until_it_is_newer() -> None:
    state = master(3)
    assert not state.observe_epoch(3)
    assert state.observe_epoch(5)
    assert not state.observe_epoch(5)
    assert not state.takes_messages(0)
    with pytest.raises(RoleError, match="there is a master of epoch 5"):
        state.pause(pause(), 0)
    with pytest.raises(RoleError, match="it knows of epoch 5"):
        state.promoted(promote(5))
    # It may become the slave of that one.
    assert state.demoted(demote(5, is_forced=True), 0) is not None
    with pytest.raises(RoleError, match="comes too late"):
        state.demoted(demote(4, is_forced=True), 0)
    record = state.promoted(promote(6, MASTER))
    assert record is not None
    state.take(record)
    assert state.takes_messages(0)
    assert not slave(3).observe_epoch(5)
