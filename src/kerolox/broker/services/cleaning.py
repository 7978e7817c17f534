"""Deleting what expired, beside the requests: ``cleanFilesPeriodically`` and the disk check.

:mod:`kerolox.broker.retention` says what may go. Here it goes, in steps that are short for the
event loop. A log file is taken out of the store by a call and unlinked by a thread, one after the
other, so that a crash in between leaves a log without a gap. A file that can't be unlinked
(*hanged*) is tried again every ``redeleteHangedFileInterval``. Until then no further log file goes.

Queues and index follow the minimum of the log. ``destroyMapedFileIntervalForcibly`` has nothing to
force here: nobody can hold a file that the store let go of.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import time
from collections.abc import Callable, Collection

from kerolox.broker.config import BrokerConfig, BrokerSettings
from kerolox.broker.disk_forecast import Forecast, Mark, forecast, marks_of
from kerolox.broker.retention import (
    DELETE_FILES_MAX,
    CleanUp,
    Retention,
    RetentionRules,
    free_bytes,
    used_ratio,
)
from kerolox.kernel.store import CleanedStore
from kerolox.protocol.names import (
    HALF_TOPIC,
    LMQ_PREFIX,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)

FIRST_CLEAN_SECONDS = 60.0
FIRST_CHECK_SECONDS = 1.0
CHECK_SECONDS = 10.0
QUEUE_FILES_PER_STEP = 4
"""Queue files that one step deletes; a file of 6 MB takes well under a millisecond."""
QUEUES_PER_STEP = 64
"""Queues that are examined before others run."""

_KEPT_TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, OP_HALF_TOPIC))
"""Queues that stay when unused topics are cleaned."""

_POSITIONED_TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC))
"""Queues that stay when they are expired: the broker remembers its own positions in them. What came
into a new queue before these would never be examined."""

_log = logging.getLogger(__name__)


def _ignore(_what: str) -> None:
    pass


def _forget_nothing(_topic: str, _queue_ids: Collection[int]) -> None:
    pass


def retention_rules(config: BrokerConfig) -> RetentionRules:
    """The rules that the settings make."""
    return RetentionRules.from_settings(
        delete_when=config.delete_when,
        file_reserved_hours=config.file_reserved_time,
        disk_max_used_percent=config.disk_max_used_space_ratio,
        warning_ratio=config.disk_space_warning_level_ratio,
        forcible_ratio=config.disk_space_clean_forcibly_ratio,
        clean_forcibly=config.clean_file_forcibly_enable,
    )


class Cleaner:
    """Keeps the store within its disk.

    Args:
        set_writable: told False when the disk is too full for writes, True when it no longer is.
        ratio: how full the file system of a path is; tests give their own.
        free: what may be written to it until it is so full.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: CleanedStore,
        now_ms: Callable[[], int],
        set_writable: Callable[[bool], None],
        ratio: Callable[[str], float] = used_ratio,
        free: Callable[[str, float], int] = free_bytes,
    ) -> None:
        self._settings = settings
        self._store = store
        self._now_ms = now_ms
        self._set_writable = set_writable
        self._ratio = ratio
        self._free = free
        self.retention = Retention(retention_rules(settings.current))
        settings.subscribe(self._settings_changed)
        self._hanged: list[str] = []
        """Files that are out of the store and could not be unlinked; the first is of the log."""
        self._retried_ms = 0
        self._followed_offset = 0
        self._logged = ""
        self._is_stuck_logged = False
        """It was said that the disk fills up and no file may go."""

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        self.retention.rules = retention_rules(new)

    # -- the disk -----------------------------------------------------------------------------
    def log_ratios(self) -> dict[str, float]:
        """How full the file system of each folder of the log is."""
        return {
            str(folder): self._ratio(str(folder)) for folder in self._settings.current.log_folders
        }

    def queue_ratio(self) -> float:
        """How full the file system of the queues is."""
        root = self._settings.current.store_path_root_dir
        folder = root / "consumequeue"
        return self._ratio(str(folder if folder.exists() else root))

    def log_trouble(self) -> None:
        """What is wrong with the store goes to the log, once."""
        trouble = self._store.trouble
        if trouble != self._logged:
            self._logged = trouble
            if trouble:
                _log.error("store %s: %s", self._settings.current.store_path_root_dir, trouble)
            else:
                _log.warning(
                    "store %s can be written again", self._settings.current.store_path_root_dir
                )

    async def check_disk(self) -> None:
        """Examine the disks; refuse writes while one is too full (``isSpaceFull``)."""
        ratios = self.log_ratios()
        queue_ratio = self.queue_ratio()
        if len(ratios) > 1:
            most = self.retention.rules.forcible_ratio
            full = [folder for folder, ratio in ratios.items() if ratio > most]
            self._store.set_full_log_paths(full)
        was_nearly_full = self.retention.is_nearly_full
        changed = self.retention.see_disk(list(ratios.values()), queue_ratio)
        used = ", ".join(f"{folder} {ratio:.0%}" for folder, ratio in ratios.items())
        if self.retention.is_nearly_full != was_nearly_full:
            self._log_crossing(used, queue_ratio)
        if not changed:
            return
        is_full = self.retention.is_disk_full
        self._set_writable(not is_full)
        if is_full:
            _log.error(
                "the disk is too full for writes (log: %s; queues: %.0f%%; most is %.0f%%, "
                "diskSpaceWarningLevelRatio); sends are refused with code 14 until there is space",
                used,
                queue_ratio * 100,
                self.retention.rules.warning_ratio * 100,
            )
        else:
            _log.warning("the disk has space again (log: %s), writes go on", used)

    def _log_crossing(self, used: str, queue_ratio: float) -> None:
        """Say that a disk is fuller than ``diskMaxUsedSpaceRatio`` now and what comes next, or that
        none is any more."""
        rules = self.retention.rules
        self._is_stuck_logged = False
        if not self.retention.is_nearly_full:
            _log.info("the disk is below diskMaxUsedSpaceRatio again (log: %s)", used)
            return
        forced = (
            f"above {rules.forcible_ratio:.0%} (diskSpaceCleanForciblyRatio) younger ones go too, "
            "with what consumers have not read; "
        )
        _log.warning(
            "the disk fills up (log: %s; queues: %.0f%%): more than %.0f%% are used "
            "(diskMaxUsedSpaceRatio). Files older than fileReservedTime go now, whatever the hour; "
            "%sabove %.0f%% (diskSpaceWarningLevelRatio) sends are refused. Give the store more "
            "space, or keep less (fileReservedTime)",
            used,
            queue_ratio * 100,
            rules.disk_max_used_ratio * 100,
            forced if rules.clean_forcibly else "",
            rules.warning_ratio * 100,
        )

    def forecast(self, earliest_ms: int) -> Forecast:
        """When the disks of the log will be full.

        Args:
            earliest_ms: when the first message of the log was stored; -1: there is none.
        """
        now = self._now_ms()
        devices: dict[int, int] = {}
        for folder in map(str, self._settings.current.log_folders):
            free = self._free(folder, self.retention.limit_ratio)
            if free < 0:
                return Forecast()
            devices[_device(folder)] = free
        end = self._store.max_physical_offset
        files = self._store.log_files()
        marks = [Mark(earliest_ms, self._store.min_physical_offset)]
        # The last file is written still.
        marks += [Mark(_modified_ms(path), start + size) for path, start, size in files[:-1]]
        return forecast(
            marks_of(marks, end, now),
            end,
            now,
            free_bytes=sum(devices.values()),
            reserved_ms=self.retention.rules.file_reserved_ms,
        )

    # -- the periodic run ---------------------------------------------------------------------
    async def clean(self) -> None:
        """One run of ``cleanFilesPeriodically``."""
        await self.check_disk()
        now = self._now_ms()
        plan = self.retention.plan(time.localtime(now / 1000).tm_hour)
        if plan.reasons:
            await self._delete_log_files(plan)
        await self._retry_hanged()
        await self._follow_minimum()

    async def _delete_log_files(self, plan: CleanUp) -> None:
        count = young = 0
        start, written_ms = self._store.min_physical_offset, 0
        pause = self._settings.current.delete_commit_log_files_interval / 1000
        while count < DELETE_FILES_MAX and not self._hanged:
            files = self._store.log_files()
            if len(files) < 2 or not self._is_expired(files[0][0], plan):
                break
            if count and pause:
                await asyncio.sleep(pause)
            modified_ms = _modified_ms(files[0][0])
            path = self._store.drop_log_file()
            if path is None:
                break
            await self._unlink(path)
            count += 1
            if not self.retention.is_expired(modified_ms, self._now_ms(), at_once=False):
                young += 1
                written_ms = modified_ms
        if young:
            self._log_loss(young, start, written_ms)
        if count > young:
            _log.info(
                "deleted %d commit log files (%s), the log begins at %d",
                count - young,
                "+".join(plan.reasons),
                self._store.min_physical_offset,
            )
        if count:
            self._is_stuck_logged = False
        elif "space" in plan.reasons and not self._is_stuck_logged:
            self._is_stuck_logged = True
            _log.warning(
                "the disk is fuller than diskMaxUsedSpaceRatio and no commit log file may go: none "
                "is older than fileReservedTime; give the store more space or keep less"
            )

    def _log_loss(self, count: int, start: int, written_ms: int) -> None:
        """Say what went before its time: whoever did not consume it has lost it."""
        end = self._store.min_physical_offset
        when = datetime.datetime.fromtimestamp(written_ms / 1000).isoformat(" ", "seconds")
        _log.warning(
            "deleted %d commit log files before their time (fileReservedTime=%d hours), since the "
            "disk is %.0f%% full, more than %.0f%% (diskSpaceCleanForciblyRatio): messages stored "
            "until %s are lost, offsets %d to %d (%d bytes), read or not. Give the store more "
            "space or keep less; with cleanFileForciblyEnable=false sends are refused instead",
            count,
            self._settings.current.file_reserved_time,
            self.retention.fullest * 100,
            self.retention.rules.forcible_ratio * 100,
            when,
            start,
            end,
            end - start,
        )

    def _is_expired(self, path: str, plan: CleanUp) -> bool:
        modified_ms = _modified_ms(path)
        return self.retention.is_expired(modified_ms, self._now_ms(), at_once=plan.at_once)

    async def _unlink(self, path: str) -> None:
        """Remove a file that is out of the store; one of 1 GiB takes a while."""
        try:
            await asyncio.to_thread(os.unlink, path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.error(
                "%s expired and can't be deleted: %s; tried again every %d ms "
                "(redeleteHangedFileInterval)",
                path,
                error,
                self._settings.current.redelete_hanged_file_interval,
            )
            self._hanged.append(path)
            self._retried_ms = self._now_ms()

    async def _retry_hanged(self) -> None:
        now = self._now_ms()
        if (
            not self._hanged
            or now - self._retried_ms <= self._settings.current.redelete_hanged_file_interval
        ):
            return
        self._retried_ms = now
        hanged, self._hanged = self._hanged, []
        for path in hanged:
            await self._unlink(path)

    async def _follow_minimum(self) -> None:
        """Delete queue and index files that only know records which the log lost."""
        store = self._store
        minimum = store.min_physical_offset
        if minimum <= self._followed_offset:
            return
        pause = self._settings.current.delete_consume_queue_files_interval / 1000
        for number, (topic, queue_id, *_) in enumerate(store.queues()):
            if number % QUEUES_PER_STEP == 0:
                await asyncio.sleep(0)
            while store.expire_queue(topic, queue_id, QUEUE_FILES_PER_STEP):  # noqa: ASYNC110
                await asyncio.sleep(pause)
        for path in store.expire_index():
            await self._unlink(path)
        self._followed_offset = minimum

    # -- what operators ask for ---------------------------------------------------------------
    async def delete_expired_queues(
        self,
        on_deleted: Callable[[str], object] = _ignore,
        forget: Callable[[str, Collection[int]], object] = _forget_nothing,
    ) -> int:
        """Delete the queues all of whose messages the log lost (``cleanExpiredConsumerQueue``); how
        many. They start anew at offset 0, so ``forget`` is called with the topic and the queue of
        each at once. ``on_deleted`` hears of each as ``topic:queue``."""
        store = self._store
        count = 0
        for number, (topic, queue_id, *_) in enumerate(store.queues()):
            if number % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
                await asyncio.sleep(0)
            end = store.queue_end(topic, queue_id)
            if topic not in _POSITIONED_TOPICS and 0 <= end < store.min_physical_offset:
                store.delete_queue(topic, queue_id)
                forget(topic, (queue_id,))
                _log.info("deleted the expired queue %d of %s", queue_id, topic)
                on_deleted(f"{topic}:{queue_id}")
                count += 1
        return count

    async def delete_unused_topics(
        self,
        is_used: Callable[[str], bool],
        on_deleted: Callable[[str], object] = _ignore,
        forget: Callable[[str, Collection[int]], object] = _forget_nothing,
    ) -> list[str]:
        """Delete the queues of topics that are in no table (``cleanUnusedTopic``): their names.

        ``is_used`` is asked right before each deletion: a topic that is made meanwhile stays.
        ``forget`` is called right after it with the topic and its queues, and ``on_deleted`` hears
        of each.
        """
        store = self._store
        queues: dict[str, list[int]] = {}
        for topic, queue_id, *_ in store.queues():
            queues.setdefault(topic, []).append(queue_id)
        stored = sorted(queues.keys() - _KEPT_TOPICS)
        deleted = []
        for topic in stored:
            if not is_used(topic) and not topic.startswith(LMQ_PREFIX):
                store.delete_queues(topic)
                forget(topic, queues[topic])
                _log.info("deleted the queues of the unused topic %s", topic)
                deleted.append(topic)
                on_deleted(topic)
                await asyncio.sleep(0)
        return deleted


def _device(path: str) -> int:
    """The file system of a path; 0: that can't be told."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return 0


def _modified_ms(path: str) -> int:
    """When a log file was written last; 0 when somebody took it away: then it must leave the store,
    too."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 0
