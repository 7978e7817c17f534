"""Health of a cluster at a glance: the findings of the doctor, and the dead letters that wait.

Both take seconds and many requests, so pages never wait for them: a check runs beside the pages,
one at a time, and only while somebody looks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kerolox.admin import Admin, BrokerRuntime, BrokerStatus, DeadLetterSummary
from kerolox.client import ClientSettings
from kerolox.client.core.routes import MASTER_ID
from kerolox.doctor import Finding, ProbeOptions, Severity, diagnose
from kerolox.doctor.checks.brokers import disk_findings
from kerolox.errors import KeroloxError
from kerolox.security.tls import context_of
from kerolox.tasks import end_tasks

__all__ = [
    *("CHECK_SECONDS", "TONES", "Health", "HealthChecks", "SlaveLag", "disk_severity", "disk_used"),
    *("disk_tone", "slave_lags"),
]

CHECK_SECONDS = 60.0
"""How old a check may be before somebody who reads it starts another one."""
CHECK_SECONDS_MAX = 180.0
"""For one check; the doctor has time limits of its own for each server."""

TONES = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.NOTE: ""}
"""Severity → the class of a badge."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """What one check found."""

    at: float
    """When it ended, in seconds since the epoch."""
    findings: tuple[Finding, ...] = ()
    """The worst first."""
    dead_letters: tuple[DeadLetterSummary, ...] = ()
    fault: str = ""
    """Why it found nothing."""

    @property
    def dead_letters_waiting(self) -> int:
        """Those that were neither sent again nor marked as done, of all groups."""
        return sum(each.waiting for each in self.dead_letters)

    def count(self, severity: Severity) -> int:
        """How many findings are of a severity."""
        return sum(each.severity is severity for each in self.findings)


class HealthChecks:
    """Has the newest check, and starts another one when it is asked for and too old."""

    def __init__(
        self,
        admin: Admin,
        settings: ClientSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``settings``: credentials and TLS of the ``Admin``."""
        self._admin = admin
        self._settings = settings or ClientSettings()
        self._clock = clock
        self._newest: Health | None = None
        self._is_stale = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """A check is under way."""
        return self._task is not None and not self._task.done()

    @property
    def errors(self) -> int:
        """How many the last check found, whenever it was; 0: none, or there was no check."""
        return 0 if self._newest is None else self._newest.count(Severity.ERROR)

    def newest(self) -> Health | None:
        """The last check; None: none has ended yet. Starts another one where that is too old."""
        health = self._newest
        is_old = (
            health is None or self._is_stale or not 0 <= self._clock() - health.at <= CHECK_SECONDS
        )
        if is_old and not self.is_running:
            self._is_stale = False
            self._task = asyncio.get_running_loop().create_task(self._check(), name="health")
        return health

    def expire(self) -> None:
        """Something was changed: the next page starts another check."""
        self._is_stale = True

    async def stop(self) -> None:
        """Give up the check that is under way."""
        await end_tasks(self._task)

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                options = ProbeOptions(
                    tls=context_of(self._settings.tls),
                    signs=self._settings.credentials is not None,
                )
                findings = await diagnose(self._admin, options)
                letters = await self._admin.dead_letter_summaries()
        except KeroloxError as error:
            self._newest = Health(self._clock(), fault=str(error))
        except TimeoutError:
            self._newest = Health(
                self._clock(), fault=f"it took longer than {CHECK_SECONDS_MAX:g} s"
            )
        except Exception as error:
            _log.exception("the health of the cluster could not be checked")
            self._newest = Health(self._clock(), fault=type(error).__name__)
        else:
            self._newest = Health(self._clock(), tuple(findings), tuple(letters))


@dataclass(frozen=True, slots=True)
class SlaveLag:
    """How far a slave is behind its master."""

    node: BrokerStatus
    behind_bytes: int | None
    """None: one of both does not answer, or the master is gone."""


def slave_lags(nodes: Iterable[BrokerStatus]) -> list[SlaveLag]:
    """Of all slaves. Both ends are of about the same moment, so what was just stored counts."""
    nodes = list(nodes)
    ends = {
        node.broker_name: node.runtime.log_max_offset
        for node in nodes
        if node.broker_id == MASTER_ID and node.runtime is not None
    }
    return [
        SlaveLag(
            node,
            max(ends[node.broker_name] - node.runtime.log_max_offset, 0)
            if node.runtime is not None and node.broker_name in ends
            else None,
        )
        for node in nodes
        if node.broker_id != MASTER_ID
    ]


def disk_used(runtime: BrokerRuntime | None) -> float | None:
    """The used part of the fuller one of a broker's disks, 0 to 1; None: it does not answer."""
    if runtime is None:
        return None
    return max(runtime.log_disk_ratio, runtime.queue_disk_ratio)


def disk_tone(runtime: BrokerRuntime | None) -> str:
    """The class of a page's text about it; empty: it is well, or not known."""
    severity = disk_severity(runtime)
    return "" if severity is None else TONES[severity]


def disk_severity(runtime: BrokerRuntime | None) -> Severity | None:
    """How bad that is, by the levels of the doctor; None: it is well, or not known."""
    if runtime is None:
        return None
    return max((each.severity for each in disk_findings("", runtime, {})), default=None)
