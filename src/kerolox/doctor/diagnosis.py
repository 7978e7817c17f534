"""All that the doctor does: look, then judge. A judgment that fails hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kerolox.admin import Access
from kerolox.doctor.facts import Survey
from kerolox.doctor.findings import Finding, worst_first
from kerolox.doctor.judgments.brokers import (
    judge_clocks,
    judge_disks,
    judge_load,
    judge_machines,
    judge_replication,
    judge_versions,
)
from kerolox.doctor.judgments.groups import judge_groups
from kerolox.doctor.judgments.name_servers import judge_brokers_known, judge_name_servers
from kerolox.doctor.judgments.paths import judge_identities, judge_paths
from kerolox.doctor.judgments.queues import judge_queues
from kerolox.doctor.judgments.settings import judge_settings
from kerolox.doctor.settings_file import check_settings
from kerolox.doctor.survey import Look, survey

Judgment = Callable[[Survey], Iterator[Finding]]

JUDGMENTS: tuple[Judgment, ...] = (
    judge_paths,
    judge_identities,
    judge_name_servers,
    judge_brokers_known,
    judge_versions,
    judge_clocks,
    judge_disks,
    judge_load,
    judge_replication,
    judge_machines,
    judge_settings,
    judge_groups,
    judge_queues,
)


async def diagnose(
    access: Access, look: Look, settings_files: Iterable[Path] = ()
) -> list[Finding]:
    """What is wrong with a cluster, seen from here; the worst first, nothing where it is well.

    Args:
        access: the cluster; its time limit is that of each question.
        look: how to look.
        settings_files: files of brokers to look at, too; those of brokers that run are compared
            with what is in force there.
    """
    seen = await survey(access, look)
    findings = judged(seen)
    for path in settings_files:
        findings += check_settings(path, [each.settings for each in seen.brokers if each.settings])
    return worst_first(findings)


def judged(seen: Survey, judgments: tuple[Judgment, ...] = JUDGMENTS) -> list[Finding]:
    """What the facts mean."""
    findings = [
        Finding("not-looked-at", each, "there are too many", "look at them by themselves")
        for each in seen.left_out
    ]
    findings += [
        Finding("check-failed", where, why, "look at its log, and run the doctor again")
        for where, why in seen.unseen.items()
    ]
    for judgment in judgments:
        try:
            findings += judgment(seen)
        except Exception as error:  # what one server says must not hide what others say
            findings.append(
                Finding(
                    "check-failed",
                    judgment.__name__,
                    f"it ended with {type(error).__name__}: {error}",
                    "this is a fault of the doctor: please report it",
                )
            )
    return worst_first(findings)
