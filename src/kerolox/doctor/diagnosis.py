"""All that the doctor does: probe, then check. A check that fails hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kerolox.admin import Admin
from kerolox.doctor.checks.brokers import (
    check_clocks,
    check_dedup,
    check_disks,
    check_grpc,
    check_load,
    check_machines,
    check_replication,
    check_timers,
    check_versions,
)
from kerolox.doctor.checks.controllers import check_controllers, check_sync_state_sets
from kerolox.doctor.checks.groups import check_groups
from kerolox.doctor.checks.name_servers import check_brokers_known, check_name_servers
from kerolox.doctor.checks.paths import check_identities, check_paths
from kerolox.doctor.checks.queues import check_queues
from kerolox.doctor.checks.settings import check_broker_settings
from kerolox.doctor.facts import ClusterSnapshot
from kerolox.doctor.findings import Finding, worst_first
from kerolox.doctor.probe import ProbeOptions, probe_cluster
from kerolox.doctor.settings_file import check_settings

Check = Callable[[ClusterSnapshot], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    check_paths,
    check_identities,
    check_name_servers,
    check_brokers_known,
    check_versions,
    check_clocks,
    check_disks,
    check_load,
    check_dedup,
    check_grpc,
    check_timers,
    check_replication,
    check_controllers,
    check_sync_state_sets,
    check_machines,
    check_broker_settings,
    check_groups,
    check_queues,
)


async def diagnose(
    admin: Admin, options: ProbeOptions, settings_files: Iterable[Path] = ()
) -> list[Finding]:
    """What is wrong with a cluster, seen from here; the worst first, nothing where it is well.

    The time limit of ``admin`` is that of each question. ``settings_files``: of brokers to examine,
    too; those of brokers that run are compared with what is in force there.
    """
    seen = await probe_cluster(admin, options)
    findings = checked(seen)
    for path in settings_files:
        findings += check_settings(path, [each.settings for each in seen.brokers if each.settings])
    return worst_first(findings)


def checked(seen: ClusterSnapshot, checks: tuple[Check, ...] = CHECKS) -> list[Finding]:
    """What the facts mean."""
    findings = [
        Finding("not-looked-at", each, "there are too many", "examine them by themselves")
        for each in seen.left_out
    ]
    findings += [
        Finding("check-failed", where, why, "examine its log, and run the doctor again")
        for where, why in seen.unseen.items()
    ]
    for check in checks:
        try:
            findings += check(seen)
        except Exception as error:  # what one server says must not hide what others say
            findings.append(
                Finding(
                    "check-failed",
                    check.__name__,
                    f"it ended with {type(error).__name__}: {error}",
                    "this is a fault of the doctor: please report it",
                )
            )
    return worst_first(findings)
