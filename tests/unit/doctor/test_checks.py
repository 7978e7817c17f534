"""What the doctor makes of facts that no server of ours shows at will."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerolox.admin import (
    BrokerRuntime,
    ControllerState,
    DayTotals,
    GroupProgress,
    GroupState,
    PoolQueue,
    PoppedQueue,
    QueueProgress,
    Rates,
    ReplicaOfSet,
    SyncStateSetInfo,
)
from kerolox.doctor.checks.groups import group_findings
from kerolox.doctor.diagnosis import CHECKS, checked
from kerolox.doctor.facts import (
    BrokerFacts,
    ClusterSnapshot,
    GroupFacts,
    MachineFacts,
    Node,
    PathFacts,
    TimerFacts,
)
from kerolox.doctor.findings import CODES, Finding, Severity, worst_first
from kerolox.doctor.machine import machine_facts
from kerolox.doctor.probe import clock_ahead_ms
from kerolox.message import MessageQueue

ADDRESS = "10.0.0.1:10911"
NODE = Node("c", "broker-a", 0, ADDRESS)
RUNTIME = BrokerRuntime(
    address=ADDRESS,
    version="V4_9_8",
    boot_ms=1_000_000,
    **dict.fromkeys(
        ("put_rate", "found_rate", "missed_rate", "get_rate", "transferred_rate"), Rates()
    ),
    **dict.fromkeys(("put_totals", "get_totals"), DayTotals()),
    **dict.fromkeys(
        ("stored_messages", "stored_bytes", "put_ms_max", "get_ms_max", "log_min_offset"), 0
    ),
    **dict.fromkeys(("log_max_offset", "dispatch_behind_bytes", "page_cache_lock_ms"), 0),
    **dict.fromkeys(("message_bytes_mean", "log_disk_ratio", "queue_disk_ratio"), 0.0),
    **dict.fromkeys(("send_queue", "pull_queue", "query_queue"), PoolQueue()),
    earliest_message_ms=-1,
    values={"runtime": "[ 0 days, 1 hours, 2 minutes, 3 seconds ]"},
)
"""Of a broker that is well, and started 3,723 s before it was asked."""
MACHINE = MachineFacts(pid=7, maps=100, maps_max=65_530, files=50, files_max=20_000)


def snapshot_of(*brokers: BrokerFacts) -> ClusterSnapshot:
    return ClusterSnapshot(
        now_ms=0, signs=False, encrypts=False, stuck_after_ms=60_000, brokers=brokers
    )


def broker(**facts: object) -> BrokerFacts:
    given: dict[str, object] = {
        "node": NODE,
        "path": PathFacts(address=ADDRESS, reached=("10.0.0.1",)),
        "runtime": RUNTIME,
        **facts,
    }
    return BrokerFacts(**given)  # type: ignore[arg-type]


def codes(*brokers: BrokerFacts) -> list[str]:
    return [each.code for each in checked(snapshot_of(*brokers))]


def test_a_broker_that_is_well_gets_no_finding() -> None:
    assert codes(broker(machine=MACHINE, clock_ahead_ms=5_000)) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"log_disk_ratio": 0.74}, None),
        ({"log_disk_ratio": 0.75}, "disk-filling"),
        ({"queue_disk_ratio": 0.80}, "disk-filling"),
        ({"log_disk_ratio": 0.85}, "disk-cleaning"),
        ({"log_disk_ratio": 0.90}, "disk-full"),
        ({"log_disk_ratio": 0.95}, "disk-full"),
        ({"growth_per_second": 5.0}, None),
        ({"growth_per_second": 5.0, "disk_full_ms": -1}, None),
        ({"growth_per_second": 5.0, "disk_full_ms": 7 * 24 * 3_600_000 + 1}, None),
        ({"growth_per_second": 5.0, "disk_full_ms": 7 * 24 * 3_600_000}, "disk-full-soon"),
        ({"growth_per_second": 5.0, "disk_full_ms": 0}, "disk-full-soon"),
        ({"dispatch_behind_bytes": 64 << 20}, None),
        ({"dispatch_behind_bytes": (64 << 20) + 1}, "dispatch-behind"),
        ({"send_queue": PoolQueue(9, 10, 1_001)}, "sends-wait"),
        ({"version": "V4_9_5"}, "version-unsafe"),
        ({"version": "V5_1_0"}, "version-unsafe"),
        ({"version": "V5_1_1"}, None),
        ({"version": "no version"}, None),
    ],
)
def test_figures_are_judged_by_their_levels(change: dict[str, object], code: str | None) -> None:
    ill = broker(runtime=replace(RUNTIME, **change))  # type: ignore[arg-type]
    assert codes(ill) == ([code] if code else [])


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (("V4_9_8", "0.1.0"), ("V4_9_8", "0.1.0"), ""),
        # A broker of RocketMQ beside ours is no mixture that an update leaves.
        (("V4_9_8", ""), ("V4_9_8", "0.1.0"), ""),
        (("V4_9_8", "0.1.0"), ("V4_9_8", "0.2.0"), "(Kerolox 0.1.0: a:1; Kerolox 0.2.0: b:1)"),
        (("V4_9_7", ""), ("V4_9_8", "0.1.0"), "(V4_9_7: a:1; Kerolox 0.1.0 (V4_9_8): b:1)"),
        (("V4_9_7", ""), ("V4_9_8", ""), "(V4_9_7: a:1; V4_9_8: b:1)"),
    ],
)
def test_brokers_of_a_cluster_differ_by_the_version_of_their_software(
    one: tuple[str, str], other: tuple[str, str], told: str
) -> None:
    brokers = []
    for name, (version, kerolox_version) in (("a", one), ("b", other)):
        values = {"keroloxVersion": kerolox_version} if kerolox_version else {}
        runtime = replace(RUNTIME, address=f"{name}:1", version=version, values=values)
        brokers.append(broker(runtime=runtime))
    found = [each for each in checked(snapshot_of(*brokers)) if each.code == "versions-differ"]
    assert [told in each.what for each in found] == ([True] if told else [])


def test_the_levels_of_a_disk_are_those_of_the_settings() -> None:
    fuller = replace(RUNTIME, log_disk_ratio=0.93)
    settings = {"diskMaxUsedSpaceRatio": "95", "diskSpaceWarningLevelRatio": "0.96"}
    kept = {**settings, "cleanFileForciblyEnable": "false"}
    assert codes(broker(runtime=fuller, settings=settings)) == ["disk-cleaning"]
    assert codes(broker(runtime=fuller, settings=kept)) == []
    assert codes(broker(runtime=fuller, settings={"diskMaxUsedSpaceRatio": "x"})) == ["disk-full"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"files": 15_999}, None),
        ({"files": 16_000}, "open-files-exhausted"),
        ({"files_max": 9_999}, "open-files-low"),
        ({"maps": 39_318}, "map-limit-low"),
        ({"maps_max": 65_529}, "map-limit-low"),
    ],
)
def test_limits_of_the_machine_are_judged(change: dict[str, int], code: str | None) -> None:
    machine = replace(MACHINE, **change)
    assert codes(broker(machine=machine)) == ([code] if code else [])


def test_a_clock_is_off_only_as_far_as_seconds_and_the_way_leave_no_doubt() -> None:
    said_ms = 1_000_000 + 3_723_000
    assert clock_ahead_ms(RUNTIME, said_ms, said_ms + 10) == 0
    assert clock_ahead_ms(RUNTIME, said_ms + 900, said_ms + 910) == 0
    assert clock_ahead_ms(RUNTIME, said_ms - 8_000, said_ms - 7_000) == 7_000
    assert clock_ahead_ms(RUNTIME, said_ms + 9_000, said_ms + 9_500) == -8_000
    assert clock_ahead_ms(replace(RUNTIME, values={}), 0, 0) is None
    assert codes(broker(clock_ahead_ms=-5_001)) == ["clock-off"]


@pytest.mark.parametrize(
    ("waiting", "behind_ms", "found"),
    [
        (1, 9_000, []),
        (1, -9_000, []),
        (0, 99_000, []),
        (3, 99_000, ["timer-behind"]),
        (3, -3_600_000, ["timer-ahead"]),
    ],
)
def test_a_timer_that_is_off_its_clock_is_told_while_messages_wait(
    waiting: int, behind_ms: int, found: list[str]
) -> None:
    timer = TimerFacts(waiting=waiting, behind_ms=behind_ms)
    assert codes(broker(timer=timer)) == found


def test_a_port_for_grpc_that_leads_nowhere_is_told() -> None:
    closed = PathFacts(address="10.0.0.1:8081", unreached={"10.0.0.1": "Connection refused"})
    [finding] = checked(snapshot_of(replace(broker(), grpc_path=closed)))
    assert (finding.code, finding.where) == ("grpc-unreachable", "10.0.0.1:8081")
    assert "Connection refused" in finding.what
    reached = PathFacts(address="10.0.0.1:8081", reached=("10.0.0.1",))
    assert not checked(snapshot_of(replace(broker(), grpc_path=reached)))


def test_a_window_of_keys_that_is_cut_is_told() -> None:
    ill = broker(runtime=replace(RUNTIME, values={"dedupKeysCut": "Orders:7 Paid:1"}))
    [finding] = checked(snapshot_of(ill))
    assert finding.code == "dedup-window-cut"
    assert finding.what.endswith("of Orders, Paid")


def test_windows_of_keys_that_a_transient_pool_forbids_are_told() -> None:
    topics = " ".join(f"T{number}" for number in range(12))
    ill = broker(runtime=replace(RUNTIME, values={"dedupWindowsOff": topics}))
    [finding] = checked(snapshot_of(ill))
    assert finding.code == "dedup-window-off"
    assert finding.what.endswith("of " + ", ".join(topics.split()[:10]) + " and 2 more")


@pytest.mark.parametrize(("ago_ms", "is_told"), [(1_000, True), (700_000, False)])
def test_a_client_by_grpc_that_was_denied_lately_is_told(ago_ms: int, is_told: bool) -> None:
    values = {
        "grpcDeniedTimestamp": "1000000",
        "grpcDenied": "worker at 10.0.0.7:4: No default permission for Orders",
    }
    ill = broker(runtime=replace(RUNTIME, values=values))
    found = checked(replace(snapshot_of(ill), now_ms=1_000_000 + ago_ms))
    assert [each.code for each in found] == ["grpc-clients-denied"] * is_told
    assert all("worker at 10.0.0.7:4" in each.what for each in found)


def test_a_timer_that_is_stopped_by_its_settings_is_told_so() -> None:
    facts = broker(timer=TimerFacts(waiting=3, behind_ms=99_000))
    [finding] = checked(snapshot_of(replace(facts, settings={"timerStopDequeue": "true"})))
    assert "1 min 39 s behind its clock, with 3 messages for a moment" in finding.what
    assert finding.advice == "timerStopDequeue is true: set it to false"


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, []),
        ({"state": GroupState("g", delivering=("a", "b"))}, []),
        ({"state": GroupState("g")}, []),
        ({"state": GroupState("g", paused=("a", "b"))}, [("group-paused", "it is paused:")]),
        (
            {"state": GroupState("g", delivering=("a",), paused=("b", "c"))},
            [("group-paused", "it is paused on b, c:")],
        ),
        ({"dead_letters": 7}, [("dead-letters", "7 messages that it gave up")]),
    ],
)
def test_paused_groups_and_dead_letters_that_wait_are_told(
    facts: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    seen = GroupFacts(group="g", first=None, second=None, status=None, **facts)
    told = list(group_findings(seen, 1, {}))
    assert [(each.code, each.where) for each in told] == [(code, "group g") for code, _ in found]
    for finding, (_, text) in zip(told, found, strict=True):
        assert text in finding.what
        assert "kerolox" in finding.advice


def test_a_check_that_fails_hides_no_other() -> None:
    def fails(snapshot: ClusterSnapshot) -> Iterator[Finding]:
        raise KeyError("a server's answer")

    ill = snapshot_of(broker(clock_ahead_ms=60_000))
    found = checked(ill, (fails, *CHECKS))
    assert [each.code for each in found] == ["clock-off", "check-failed"]
    assert "fails" in found[1].where
    assert "KeyError" in found[1].what


def test_what_could_not_be_examined_is_told() -> None:
    unseen = {"group slow": "not all was said within 60 s"}
    told = replace(snapshot_of(), unseen=unseen, left_out=("5 of 205 groups",))
    assert [(each.code, each.where) for each in checked(told)] == [
        ("check-failed", "group slow"),
        ("not-looked-at", "5 of 205 groups"),
    ]


def test_findings_come_once_and_the_worst_first() -> None:
    first, second = Finding("disk-full", "b", "w", "a"), Finding("clock-off", "a", "w", "a")
    assert worst_first([second, first, second]) == [first, second]
    assert {each.severity for each in (first, second)} == {Severity.ERROR, Severity.WARNING}
    with pytest.raises(ValueError, match="no kind of finding"):
        Finding("no-such-code", "", "", "")
    assert len(CODES) > 50


def test_a_process_is_found_by_its_port_in_proc(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st\n"
    line = "   0: 0100007F:{:04X} 00000000:0000 {} 0:0 0:0 0 0 0 {} 1 0 100\n"
    (tmp_path / "net").mkdir()
    listening, connected = line.format(10911, "0A", 77), line.format(10912, "01", 78)
    (tmp_path / "net" / "tcp").write_text(head + listening + connected)
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "sys" / "vm" / "max_map_count").write_text("65530\n")
    process = tmp_path / "42"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[77]")
    (process / "fd" / "4").symlink_to("socket:[78]")
    (process / "maps").write_text("a\nb\nc\n")
    (process / "limits").write_text("Limit  Soft\nMax open files            1024  4096  files\n")
    assert machine_facts(10911, tmp_path) == MachineFacts(
        pid=42, maps=3, maps_max=65_530, files=2, files_max=1024
    )
    assert machine_facts(10912, tmp_path) is None
    (process / "limits").write_text("Max open files   unlimited  unlimited  files\n")
    assert machine_facts(10911, tmp_path).files_max > 1 << 60  # type: ignore[union-attr]
    (process / "maps").unlink()
    assert machine_facts(10911, tmp_path) is None


def popped(in_flight: int, in_flight_ms: int) -> list[str]:
    """What is said of a group without members online that has ten messages left."""
    queue = QueueProgress(
        MessageQueue("T", "b", 0), 10, 0, 0, in_flight=in_flight, in_flight_ms=in_flight_ms
    )
    progress = GroupProgress("g", (queue,), 0.0)
    seen = GroupFacts(group="g", first=progress, second=progress, status=None)
    return [each.code for each in group_findings(seen, 1, {})]


def test_a_group_that_pops_is_not_offline() -> None:
    assert popped(0, 0) == ["group-offline"]
    assert popped(3, 5_000) == []


def test_messages_that_are_out_for_long_are_told() -> None:
    assert popped(3, 3_600_000) == ["popped-for-long"]


def popped_queue(**given: object) -> list[Finding]:
    """What is said of a group that has three messages out, of ten, and does not move."""
    queue = MessageQueue("T", "b", 0)
    stands = QueueProgress(queue, 10, 0, 0, in_flight=3, in_flight_ms=0)
    progress = GroupProgress("g", (stands,), 0.0)
    out = PoppedQueue(queue, messages=3, **{"oldest_ms": 0, "oldest_owner": "c", **given})  # type: ignore[arg-type]
    seen = GroupFacts(
        group="g",
        first=progress,
        second=progress,
        status=None,
        waits_ms={("T", "b", 0): 120_000},
        popped=(out,),
        fifo_topics=frozenset({"T"}),
    )
    return [each for each in group_findings(seen, 60_000, {}) if each.code != "fifo-not-in-order"]


def test_an_ordered_queue_that_stands_still_is_told_with_who_holds_it_up() -> None:
    assert popped_queue(is_order=True, oldest_ms=59_000) == []
    assert popped_queue(oldest_ms=60_000) == []
    [found] = popped_queue(is_order=True, oldest_ms=60_000)
    assert found.code == "ordered-queue-stuck"
    assert "c has 3 messages for 1 min, and all behind them wait" in found.what
    assert "kerolox group release g --topic T --queue b/0" in found.advice
    [found] = popped_queue(is_order=True, tries=3)
    assert "delivered 4 times" in found.what


def test_messages_that_do_not_come_again_are_told() -> None:
    assert popped_queue(overdue_ms=59_000) == []
    [found] = popped_queue(overdue_ms=60_000)
    assert (found.code, "one 1 min overdue" in found.what) == ("pops-behind", True)
    [found] = popped_queue(tries=2)
    assert (found.code, "whose copy failed 2 times" in found.what) == ("pops-behind", True)


@pytest.mark.parametrize(
    ("topics", "is_order", "codes_of"),
    [({"T"}, False, ["fifo-not-in-order"]), ({"T"}, True, []), (set(), False, [])],
)
def test_a_fifo_topic_that_is_popped_without_order_is_told(
    topics: set[str], is_order: bool, codes_of: list[str]
) -> None:
    out = PoppedQueue(MessageQueue("T", "b", 0), 1, 0, "c", is_order)
    progress = GroupProgress("g", (QueueProgress(out.queue, 1, 0, 0, in_flight=1),), 0.0)
    seen = GroupFacts(
        group="g",
        first=progress,
        second=progress,
        status=None,
        popped=(out,),
        fifo_topics=frozenset(topics),
    )
    assert [each.code for each in group_findings(seen, 60_000, {})] == codes_of


def controller_of(**members: Any) -> ControllerState:
    names = {f"n{number}": f"10.0.0.{number}:9878" for number in range(3)}
    given: dict[str, Any] = {
        "address": "10.0.0.0:9878",
        "group": "g",
        "node_id": "n0",
        "role": "leader",
        "leader_id": "n0",
        "leader_address": "10.0.0.0:9878",
        "members": names,
        "version": "1.0",
    }
    return ControllerState(**{**given, **members})


def set_of(*in_sync: int, master: int | None = 1, brokers: int = 2) -> SyncStateSetInfo:
    return SyncStateSetInfo(
        broker_name="b",
        master_id=master,
        master_address="",
        master_epoch=1,
        sync_state_set_epoch=1,
        replicas=tuple(
            ReplicaOfSet(broker_id=each, address="", is_alive=True, is_in_sync=each in in_sync)
            for each in range(1, brokers + 1)
        ),
    )


def codes_of(**facts: Any) -> set[str]:
    seen = ClusterSnapshot(now_ms=0, signs=False, encrypts=False, stuck_after_ms=60_000, **facts)
    return {each.code for each in checked(seen)}


def test_controllers_that_are_well_are_no_finding() -> None:
    well = {"controllers": {"a": controller_of()}, "sync_state_sets": {"b": set_of(1, 2)}}
    assert codes_of(**well) == codes_of()


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"fault": "its disk failed"}, "controller-failed"),
        ({"learns": True}, "controller-learning"),
        ({"put_back": ("n1",)}, "controller-put-back"),
        ({"behind": ("b",)}, "controller-behind"),
        ({"role": "follower"}, "controller-no-leader"),
        ({"members": {"n0": "10.0.0.0:9878"}}, "controller-alone"),
        ({"clock_difference_ms": -6_000}, "clock-off"),
    ],
)
def test_a_controller_that_is_ill_is_a_finding(members: dict[str, Any], code: str) -> None:
    assert codes_of(controllers={"a": controller_of(**members)}) == {*codes_of(), code}


def test_controllers_that_differ_or_are_silent_are_findings() -> None:
    states = {"a": controller_of(), "b": controller_of(version="2.0"), "c": "no connection"}
    assert codes_of(controllers=states) == {*codes_of(), "versions-differ", "controller-silent"}


def test_a_master_that_nobody_could_follow_is_a_finding() -> None:
    for info, code in (
        (set_of(1), "set-of-one"),
        (set_of(1, brokers=1), "set-of-one"),
        (set_of(1, 2, master=None), "set-without-master"),
        (set_of(master=None), "set-without-master"),
    ):
        assert codes_of(sync_state_sets={"b": info}) == {*codes_of(), code}
