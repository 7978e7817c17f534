"""Controllers: that they agree and would go on without one, and that masters could be replaced."""

from __future__ import annotations

from collections.abc import Iterator

from kerolox.admin import ControllerState, SyncStateSetInfo
from kerolox.doctor.checks.brokers import CLOCK_OFF_MS
from kerolox.doctor.facts import ClusterSnapshot
from kerolox.doctor.findings import Finding
from kerolox.text import counted, duration_text


def check_controllers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Controllers that are silent, ill, alone, or of another time or version."""
    states = snapshot.controllers
    if not states:
        return
    answering = [each for each in states.values() if isinstance(each, ControllerState)]
    for address, state in states.items():
        if isinstance(state, str):
            yield Finding(
                "controller-silent",
                address,
                f"the controller does not answer: {state}",
                "start it, or take it out of the group (kerolox controller members remove)",
            )
        else:
            yield from _of_one(state)
    where = next(iter(states))
    if answering and not any(each.role == "leader" for each in answering):
        yield Finding(
            "controller-no-leader",
            where,
            "no controller leads: no master is replaced",
            "see in their logs why a majority of them can't agree",
        )
    members = max((len(each.members) for each in answering), default=0)
    if members in (1, 2):
        yield Finding(
            "controller-alone",
            where,
            f"the group has {counted(members, 'controller')}: none may be lost",
            "have three on machines of their own (kerolox controller members add)",
        )
    versions = {each.version for each in answering if each.version}
    if len(versions) > 1:
        yield Finding(
            "versions-differ",
            where,
            f"controllers are of versions {', '.join(sorted(versions))}",
            "update the older, one after the other",
        )


def _of_one(state: ControllerState) -> Iterator[Finding]:
    if state.fault:
        yield Finding(
            "controller-failed",
            state.address,
            f"the controller takes no part: {state.fault}",
            "mend that, and start it again",
        )
    if state.learns:
        yield Finding(
            "controller-learning",
            state.address,
            "the controller began with an empty folder, and has not caught up: it does not vote",
            "see that it and the leader reach each other",
        )
    for node_id in state.put_back:
        yield Finding(
            "controller-put-back",
            state.members.get(node_id, node_id),
            f"the folder of controller {node_id} is older than what it acknowledged",
            "stop it, empty its folder, and start it: it learns all from the others",
        )
    for name in state.behind:
        yield Finding(
            "controller-behind",
            name,
            "a broker knows a newer epoch than the controllers: their data was put back",
            "elect the broker with the newest messages (kerolox controller elect)",
        )
    difference = state.clock_difference_ms or 0
    if abs(difference) > CLOCK_OFF_MS:
        side = "ahead of" if difference > 0 else "behind"
        yield Finding(
            "clock-off",
            state.address,
            f"its clock is {duration_text(abs(difference))} {side} ours",
            "have chrony or ntpd run on both machines",
        )


def check_sync_state_sets(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Names without a master, and masters that nobody could follow."""
    for name, info in snapshot.sync_state_sets.items():
        if info.master_id is None and not info.in_sync:
            yield Finding(
                "set-without-master",
                name,
                "the controllers have no master of it, and know of no broker that is in sync",
                "elect the broker with the newest messages (kerolox controller elect)",
            )
        elif info.master_id is None:
            yield Finding(
                "set-without-master",
                name,
                "the controllers have no master of it",
                "start a broker that is in sync; of a pair that had no controller for a time, its"
                " master; or, if those are lost, set enableElectUncleanMaster for one election",
            )
        elif len(info.in_sync) == 1:
            others = _others(info)
            yield Finding(
                "set-of-one",
                name,
                f"its master is in sync alone{others}: nobody could replace it",
                "see in the log of its slaves why they do not follow"
                if others
                else "add a broker of this name",
            )


def _others(info: SyncStateSetInfo) -> str:
    count = len(info.replicas) - 1
    return f", of {counted(count + 1, 'broker')}" if count else ""
