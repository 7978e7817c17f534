"""Brokers: versions, clocks, disks, load, replication, and the limits of their machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from kerolox.admin import BrokerRuntime
from kerolox.doctor.facts import BrokerFacts, ClusterSnapshot
from kerolox.doctor.findings import Finding
from kerolox.protocol.codes import DEDUP_KEYS_CUT, DEDUP_WINDOWS_OFF, GRPC_DENIED, GRPC_DENIED_MS
from kerolox.text import counted, duration_text

CLOCK_OFF_MS = 5_000
"""A clock may be off by so much."""

TIMER_OFF_MS = 10_000
"""A timer may be off its clock by so much: a step, a flush, and what a busy machine adds."""

TOPICS_NAMED_MAX = 10
"""Topics that one finding names."""

DENIED_MS_MAX = 600_000
"""A denial that is older may be over."""

DISK_WARNING_RATIO, DISK_CLEAN_RATIO, DISK_USED_PERCENT = 0.90, 0.85, 75.0
"""Of RocketMQ (``DefaultMessageStore``), where the settings don't say others: takes no messages
(``diskSpaceWarningLevelRatio``), deletes before the time (``diskSpaceCleanForciblyRatio``), deletes
whatever is old at any hour (``diskMaxUsedSpaceRatio``)."""

DISK_FULL_SOON_MS = 7 * 24 * 3_600_000
"""A disk that will be full within so long is told of."""

DISPATCH_BEHIND_BYTES = 64 << 20
SEND_WAITS_MS = 1_000
FALL_BEHIND_BYTES = 256 << 20
"""``haSlaveFallbehindMax``, where the settings don't say another."""

FILES_MIN, FILES_WANTED = 10_000, 655_350
FILES_PART_MAX, MAPS_PART_MAX = 0.8, 0.6
MAPS_MIN, MAPS_WANTED = 65_530, 655_360
"""The default of Linux, and what RocketMQ's ``os.sh`` sets, as it does ``FILES_WANTED``."""

SAFE_VERSIONS = {4: (4, 9, 6), 5: (5, 1, 1)}
"""Since these a broker does not run what strangers send (CVE-2023-33246)."""

_VERSION = re.compile(r"V(\d+)_(\d+)_(\d+)")


def check_versions(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Different ones in a cluster, and those with a known hole."""
    by_cluster: dict[str, list[BrokerRuntime]] = defaultdict(list)
    for each in snapshot.brokers:
        if each.runtime is None or not each.runtime.version:
            continue
        version, where = each.runtime.version, each.node.address
        by_cluster[each.node.cluster].append(each.runtime)
        numbers = _numbers(version)
        if numbers is not None and numbers < SAFE_VERSIONS.get(numbers[0], (0, 0, 0)):
            yield Finding(
                "version-unsafe",
                where,
                f"the broker is of {version}, with which strangers can run commands on its machine"
                " (CVE-2023-33246)",
                "update it to 4.9.6 or 5.1.1 at least, and let only clients reach its port",
            )
    for cluster, runtimes in by_cluster.items():
        ours = {each.kerolox_version for each in runtimes if each.kerolox_version}
        of_protocol = {each.version for each in runtimes}
        if len(ours) > 1 or len(of_protocol) > 1:
            named: dict[str, list[str]] = defaultdict(list)
            for runtime in runtimes:
                says_both = runtime.kerolox_version and len(of_protocol) > 1
                more = f" ({runtime.version})" if says_both else ""
                named[runtime.software + more].append(runtime.address)
            text = "; ".join(f"{what}: {', '.join(where)}" for what, where in named.items())
            yield Finding(
                "versions-differ",
                cluster,
                f"the brokers of the cluster are of different versions ({text})",
                "update the older ones; a mixture is for the time of an update",
            )


def _numbers(version: str) -> tuple[int, int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def check_clocks(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """A broker's clock against ours."""
    for each in snapshot.brokers:
        ahead = each.clock_ahead_ms
        if ahead is not None and abs(ahead) > CLOCK_OFF_MS:
            way = "ahead of" if ahead > 0 else "behind"
            yield Finding(
                "clock-off",
                each.node.address,
                f"its clock is {duration_text(abs(ahead))} {way} that of this machine",
                "have both synchronised (chrony, systemd-timesyncd): delays, retention and searches"
                " by time go by the broker's",
            )


def check_grpc(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """The port for clients of RocketMQ 5, and whether accounts let them in."""
    for each in snapshot.brokers:
        path = each.grpc_path
        if path is not None and not path.reached:
            tried = path.name_fault or "; ".join(
                f"{ip}: {fault}" for ip, fault in path.unreached.items()
            )
            yield Finding(
                "grpc-unreachable",
                path.address,
                f"its port for gRPC (grpcServerPort) can't be reached from here ({tried})",
                "open it in firewalls and port mappings, or name the address that clients reach"
                " (grpcAdvertisedAddress)",
            )
        values = {} if each.runtime is None else each.runtime.values
        denied_ms = int(values.get(GRPC_DENIED_MS, "0"))
        age_ms = snapshot.now_ms + (each.clock_ahead_ms or 0) - denied_ms
        if denied_ms and age_ms < DENIED_MS_MAX:
            yield Finding(
                "grpc-clients-denied",
                each.node.address,
                f"{duration_text(max(age_ms, 0))} ago access control denied a client by gRPC:"
                f" {values.get(GRPC_DENIED, '')}",
                "give the client the account's keys (Credentials), or let the account do it"
                " (kerolox acl); the audit log has each denial",
            )


def check_dedup(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Windows of keys that are shorter than their topics want, or not there."""
    for each in snapshot.brokers:
        values = {} if each.runtime is None else each.runtime.values
        off = values.get(DEDUP_WINDOWS_OFF, "").split()
        if off:
            yield Finding(
                "dedup-window-off",
                each.node.address,
                "with transientStorePoolEnable=true there are no windows, so messages that come"
                f" again are stored again though dedup.window.ms is set: of {_some(off)}",
                "set transientStorePoolEnable=false and start the broker anew",
            )
        cut = values.get(DEDUP_KEYS_CUT, "")
        if cut:
            topics = _some([part.partition(":")[0] for part in cut.split()])
            yield Finding(
                "dedup-window-cut",
                each.node.address,
                f"more keys came than dedupMaxKeys, so windows are shorter than dedup.window.ms: of"
                f" {topics}",
                "raise dedupMaxKeys, or give the topics shorter windows",
            )


def _some(names: Sequence[str]) -> str:
    more = len(names) - TOPICS_NAMED_MAX
    text = ", ".join(names[:TOPICS_NAMED_MAX])
    return f"{text} and {more} more" if more > 0 else text


def check_timers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Messages for a moment that come late, or wait for a clock that was set back."""
    for each in snapshot.brokers:
        if each.timer is None or not each.timer.waiting:
            continue
        where, behind_ms = each.node.address, each.timer.behind_ms
        waiting = f"{counted(each.timer.waiting, 'message')} for a moment"
        if behind_ms > TIMER_OFF_MS:
            is_stopped = (each.settings or {}).get("timerStopDequeue") == "true"
            yield Finding(
                "timer-behind",
                where,
                f"its timer is {duration_text(behind_ms)} behind its clock, with {waiting}: those"
                " that are due have not come",
                "timerStopDequeue is true: set it to false"
                if is_stopped
                else "after a long stop, or a jump of its clock, it catches up; else examine its"
                " disk, its load and its log",
            )
        elif behind_ms < -TIMER_OFF_MS:
            yield Finding(
                "timer-ahead",
                where,
                f"its timer is {duration_text(-behind_ms)} ahead of its clock, with {waiting}: the"
                " clock was set back",
                "have the clock synchronised (chrony, systemd-timesyncd); until it is where it was,"
                " a broker of RocketMQ delivers what was sent before it was set back late, and what"
                " is sent now at once",
            )


def check_disks(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """How full the disk is, against the levels of the broker's settings."""
    for each in snapshot.brokers:
        if each.runtime is not None:
            yield from disk_findings(each.node.address, each.runtime, each.settings or {})
            now_ms = snapshot.now_ms + (each.clock_ahead_ms or 0)
            yield from forecast_findings(each.node.address, each.runtime, now_ms)


def disk_findings(
    where: str, runtime: BrokerRuntime, settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Of one broker."""
    ratio = max(runtime.log_disk_ratio, runtime.queue_disk_ratio)
    full = _number(settings, "diskSpaceWarningLevelRatio", DISK_WARNING_RATIO)
    clean = _number(settings, "diskSpaceCleanForciblyRatio", DISK_CLEAN_RATIO)
    used = _number(settings, "diskMaxUsedSpaceRatio", DISK_USED_PERCENT) / 100
    text = f"the disk of the store is {ratio:.0%} full"
    room = "make space or give it a larger disk, or keep messages for less long (fileReservedTime)"
    if ratio >= full:
        yield Finding(
            "disk-full",
            where,
            f"{text}: from {full:.0%} on the broker takes no messages (diskSpaceWarningLevelRatio)",
            f"{room}; kerolox store info shows what the store has",
        )
    elif ratio >= clean and settings.get("cleanFileForciblyEnable", "true") == "true":
        yield Finding(
            "disk-cleaning",
            where,
            f"{text}: from {clean:.0%} on the broker deletes messages before their time"
            " (diskSpaceCleanForciblyRatio)",
            room,
        )
    elif ratio >= used:
        yield Finding(
            "disk-filling",
            where,
            f"{text}: from {used:.0%} on the broker deletes what is older than fileReservedTime at"
            " any hour (diskMaxUsedSpaceRatio)",
            room,
        )


def forecast_findings(where: str, runtime: BrokerRuntime, now_ms: int) -> Iterator[Finding]:
    """Of one broker, whose disk is not that full yet; ``now_ms``: by its own clock."""
    full_ms = runtime.disk_full_ms
    if full_ms is None or full_ms < 0 or full_ms - now_ms > DISK_FULL_SOON_MS:
        return
    rate = (runtime.growth_per_second or 0) / (1 << 20)
    yield Finding(
        "disk-full-soon",
        where,
        f"the log grows by {rate:.1f} MiB a second: its disk will be full in"
        f" {duration_text(full_ms - now_ms)}, before what is old goes",
        "make space or give it a larger disk, or keep messages for less long (fileReservedTime)",
    )


def check_load(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Queues that fill up inside a broker."""
    for each in snapshot.brokers:
        if each.runtime is None:
            continue
        where = each.node.address
        if each.runtime.dispatch_behind_bytes > DISPATCH_BEHIND_BYTES:
            yield Finding(
                "dispatch-behind",
                where,
                f"{each.runtime.dispatch_behind_bytes} bytes of the log are in no queue yet:"
                " consumers don't see these messages",
                "examine the load of its disk and its processors, and its log",
            )
        if each.runtime.send_queue.head_wait_ms > SEND_WAITS_MS:
            yield Finding(
                "sends-wait",
                where,
                f"sends wait for {duration_text(each.runtime.send_queue.head_wait_ms)} before the"
                " broker takes them up",
                "examine the load of its disk; spread topics over more brokers",
            )


def check_replication(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Masters without the slave that they need, slaves that are far behind."""
    for master in snapshot.masters():
        settings = master.settings or {}
        slaves = [
            each
            for each in snapshot.brokers
            if each.node.broker_name == master.node.broker_name and not each.node.is_master
        ]
        status = master.replication
        has_slave = bool(status.replicas) if status is not None else bool(slaves)
        if settings.get("brokerRole") == "SYNC_MASTER" and not has_slave:
            yield Finding(
                "no-slave",
                master.node.address,
                f"{master.node} is a SYNC_MASTER and has no slave: senders get SLAVE_NOT_AVAILABLE",
                "start its slave, see in the slave's log why it does not reach brokerIP2 and"
                " haListenPort, or set brokerRole=ASYNC_MASTER",
            )
        for slave in slaves:
            if slave.role is None or slave.role.is_following or not master.path.reached:
                continue
            has_never = not slave.role.log_end
            copied = "has copied nothing of it" if has_never else "does not copy it now"
            yield Finding(
                "slave-not-following",
                slave.node.address,
                f"the slave of {master.node} {copied}: if that fails, what only it has is lost",
                "see in the slave's log why it does not reach the master's brokerIP2 and"
                " haListenPort; one that has just started follows within a few seconds",
            )
        behind_max = int(_number(settings, "haSlaveFallbehindMax", FALL_BEHIND_BYTES))
        for where, behind in _behind(master, slaves):
            if behind > behind_max:
                yield Finding(
                    "slave-behind",
                    where,
                    f"the slave of {master.node} is {behind} bytes behind it"
                    f" (haSlaveFallbehindMax is {behind_max})",
                    "examine the network between both, the disk of the slave, and its log",
                )


def _behind(master: BrokerFacts, slaves: list[BrokerFacts]) -> Iterator[tuple[str, int]]:
    if master.replication is not None:
        for each in master.replication.replicas:
            yield each.address, each.behind_bytes
    elif master.runtime is not None:
        for slave in slaves:
            if slave.runtime is not None:
                yield (
                    slave.node.address,
                    master.runtime.log_max_offset - slave.runtime.log_max_offset,
                )


def check_machines(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Limits of the processes that run on this machine."""
    for each in snapshot.brokers:
        machine, where = each.machine, each.node.address
        if machine is None:
            continue
        if machine.files >= machine.files_max * FILES_PART_MAX:
            yield Finding(
                "open-files-exhausted",
                where,
                f"process {machine.pid} has {machine.files} files and sockets open, and may have"
                f" {machine.files_max}",
                f"raise the limit (ulimit -n, LimitNOFILE) to {FILES_WANTED}, or look who opens so"
                " many connections",
            )
        elif machine.files_max < FILES_MIN:
            yield Finding(
                "open-files-low",
                where,
                f"process {machine.pid} may have {machine.files_max} files and sockets open",
                f"raise the limit (ulimit -n, LimitNOFILE) to {FILES_WANTED}: each connection and"
                " each file of the store is one",
            )
        if machine.maps >= machine.maps_max * MAPS_PART_MAX or machine.maps_max < MAPS_MIN:
            yield Finding(
                "map-limit-low",
                where,
                f"process {machine.pid} has {machine.maps} regions of memory mapped, and may have"
                f" {machine.maps_max}",
                f"sysctl -w vm.max_map_count={MAPS_WANTED}, and the same in /etc/sysctl.d (kerolox"
                " tune): each file of the store is a region",
            )


def _number(settings: Mapping[str, str], key: str, default: float) -> float:
    text = settings.get(key, "")
    try:
        return float(text) if text else default
    except ValueError:
        return default
