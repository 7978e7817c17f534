"""What may be deleted, and when: the rules of ``CleanCommitLogService``, free of clock and disk.

A log file is deleted when it is old enough (``fileReservedTime``) and there is a reason to delete
now: the hour (``deleteWhen``), the disk (``diskMaxUsedSpaceRatio``), or an operator. Where the disk
is fuller than ``diskSpaceCleanForciblyRatio`` age no longer matters (``cleanFileForciblyEnable``),
and beyond ``diskSpaceWarningLevelRatio`` the store takes no writes until there is space again.

Ratios are of 1 here, as RocketMQ counts them: whole per cents, rounded up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kerolox.settings_class import settings_dataclass
from kerolox.text import split_list

DELETE_FILES_MAX = 10
"""Log files that one run deletes at most (``DELETE_FILES_BATCH_MAX``)."""
MANUAL_RUNS = 20
"""Runs that an operator's request is good for (``MAX_MANUAL_DELETE_FILE_TIMES``)."""
HOUR_MS = 3_600_000
HYSTERESIS_RATIO = 0.02
"""So far below a border a disk has to be before it counts as less full again."""
USED_RATIO_BOUNDS = (10, 95)
"""Per cents that ``diskMaxUsedSpaceRatio`` is brought into, as RocketMQ does."""


def used_ratio(path: str) -> float:
    """How full the file system of a path is, 0 to 1 in steps of a hundredth, rounded up; -1 when
    that can't be told (``getDiskPartitionSpaceUsedPercent``)."""
    try:
        found = os.statvfs(path)
    except OSError:
        return -1.0
    used = found.f_blocks - found.f_bfree
    # Blocks that only root may take count neither as used nor as free.
    entire = used + found.f_bavail
    return -(-used * 100 // entire) / 100 if entire > 0 else -1.0


def free_bytes(path: str, ratio: float) -> int:
    """What may be written to the file system of a path until it is so full; -1: that can't be
    told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return -1
    used = found.f_blocks - found.f_bfree
    return max(int(((used + found.f_bavail) * ratio - used) * found.f_frsize), 0)


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The settings of the same names."""

    delete_when: frozenset[int]
    """Hours of the day, local time."""
    file_reserved_ms: int
    disk_max_used_ratio: float
    warning_ratio: float
    forcible_ratio: float
    clean_forcibly: bool

    @classmethod
    def from_settings(
        cls,
        *,
        delete_when: str,
        file_reserved_hours: int,
        disk_max_used_percent: int,
        warning_ratio: float,
        forcible_ratio: float,
        clean_forcibly: bool,
    ) -> RetentionRules:
        """Rules of settings as they stand in ``broker.conf``; ValueError: ``delete_when`` is not
        hours (0 to 23) joined by ``;``.
        """
        least, most = USED_RATIO_BOUNDS
        return cls(
            delete_when=parse_hours(delete_when),
            file_reserved_ms=file_reserved_hours * HOUR_MS,
            disk_max_used_ratio=min(max(disk_max_used_percent, least), most) / 100,
            warning_ratio=warning_ratio,
            forcible_ratio=forcible_ratio,
            clean_forcibly=clean_forcibly,
        )


def parse_hours(text: str) -> frozenset[int]:
    """The hours of a ``deleteWhen``, such as ``04;16``."""
    hours = split_list(text)
    if not hours or not all(item.isascii() and item.isdigit() and int(item) < 24 for item in hours):
        raise ValueError(f"{text!r} is no list of hours; write 0 to 23, several joined by ';'")
    return frozenset(int(item) for item in hours)


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The work of one cleaning run."""

    reasons: tuple[str, ...]
    """Why log files are examined: ``time``, ``space``, ``manual``. Empty: they are not."""
    at_once: bool
    """Their age does not matter."""


class Retention:
    """The state of the rules: the disk as it was seen last, and what an operator asked for."""

    def __init__(self, rules: RetentionRules) -> None:
        self.rules = rules
        self.manual_runs = 0
        self.is_disk_full = False
        """The store must take no writes (``DISK_FULL_BIT``)."""
        self._log_ratio = self._queue_ratio = 0.0
        self.is_nearly_full = False
        """A disk is fuller than ``diskMaxUsedSpaceRatio``, or was and is not yet
        :data:`HYSTERESIS_RATIO` below: at the border it is one crossing, not many."""

    def delete_manually(self) -> None:
        """Let the next runs delete whatever the hour (code 329)."""
        self.manual_runs = MANUAL_RUNS

    def see_disk(self, log_ratios: Sequence[float], queue_ratio: float) -> bool:
        """Take note of how full the disks are: of each folder of the log, of which the emptiest
        counts, and of the queues. Whether ``is_disk_full`` changed."""
        self._log_ratio = min(log_ratios)
        self._queue_ratio = queue_ratio
        before = self.is_disk_full
        most = self.rules.disk_max_used_ratio - (HYSTERESIS_RATIO if self.is_nearly_full else 0)
        self.is_nearly_full = self._is_beyond(most)
        self.is_disk_full = self._is_beyond(self.rules.warning_ratio)
        return self.is_disk_full != before

    @property
    def fullest(self) -> float:
        """How full the disk is that counts: of the log, or of the queues if that is fuller."""
        return max(self._log_ratio, self._queue_ratio)

    def _is_beyond(self, ratio: float) -> bool:
        return self._log_ratio > ratio or self._queue_ratio > ratio

    @property
    def is_space_wanted(self) -> bool:
        """A disk is fuller than ``diskMaxUsedSpaceRatio``, or can't be examined."""
        is_unknown = self._log_ratio < 0 or self._queue_ratio < 0
        return is_unknown or self._is_beyond(self.rules.disk_max_used_ratio)

    @property
    def limit_ratio(self) -> float:
        """How full a disk is when messages go before their time, or sends are refused."""
        rules = self.rules
        forced = rules.forcible_ratio if rules.clean_forcibly else 1.0
        return min(forced, rules.warning_ratio)

    def plan(self, hour: int) -> CleanUp:
        """What the run at this hour of the day shall do; counts down the operator's runs."""
        reasons = []
        if hour in self.rules.delete_when:
            reasons.append("time")
        if self.is_space_wanted:
            reasons.append("space")
        if self.manual_runs > 0:
            self.manual_runs -= 1
            reasons.append("manual")
        is_urgent = self._is_beyond(min(self.rules.forcible_ratio, self.rules.warning_ratio))
        return CleanUp(tuple(reasons), self.rules.clean_forcibly and is_urgent)

    def is_expired(self, modified_ms: int, now_ms: int, *, at_once: bool) -> bool:
        """Whether a log file that was written last at a time may go."""
        return at_once or now_ms >= modified_ms + self.rules.file_reserved_ms
