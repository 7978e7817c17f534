"""Takes the metrics of a cluster now and then: for the overview, and for the history."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.admin import Admin, BrokerStatus, GroupProgress
from kerolox.admin.asking import answers_of
from kerolox.admin.consumers.groups import group_states_told
from kerolox.client.core.routes import MASTER_ID
from kerolox.console.history.store import History
from kerolox.errors import KeroloxError
from kerolox.tasks import end_tasks, retrieve_error

__all__ = ["Sample", "Sampler", "TopicLag", "lag_series", "rate_series"]

GROUPS_KEPT_MAX = 1_500
"""Groups whose lag is kept; where there are more, those with the largest."""

TAKE_SECONDS_MAX = 20.0

_log = logging.getLogger(__name__)


def rate_series(way: str, broker: str = "") -> str:
    """The name of a series of messages a second; ``way``: ``in`` or ``out``; no broker: of all."""
    return f"{way}:{broker}"


def lag_series(group: str = "") -> str:
    """The name of a series of messages that wait for a group; empty: for all."""
    return f"lag:{group}"


def is_lag_series(name: str) -> bool:
    """Whether a series is of messages that wait."""
    return name.startswith(lag_series())


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far the groups of a topic are behind."""

    groups: int
    """That have consumed it."""
    lag: int
    """Messages that are left, of all these groups together."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of one moment."""

    at: float
    """Seconds since the epoch."""
    nodes: tuple[BrokerStatus, ...]
    groups: dict[str, GroupProgress]
    """By name, of all topics and brokers together."""
    errors: tuple[str, ...]
    """What could not be learnt, and why."""
    has_all_lags: bool = True
    """All masters told how far groups are."""

    @property
    def has_all_rates(self) -> bool:
        """All masters told their metrics."""
        return all(n.runtime is not None for n in self.nodes if n.broker_id == MASTER_ID)

    @property
    def lag(self) -> int:
        """Messages that wait for all groups, on the masters that told it."""
        return sum(max(each.lag, 0) for each in self.groups.values())

    def by_topic(self) -> dict[str, TopicLag]:
        """How far the groups of each topic are behind; topics without a group are not there."""
        groups: dict[str, set[str]] = {}
        lags: dict[str, int] = {}
        for name, progress in self.groups.items():
            for each in progress.queues:
                topic = each.queue.topic
                groups.setdefault(topic, set()).add(name)
                lags[topic] = lags.get(topic, 0) + max(each.lag, 0)
        return {topic: TopicLag(len(groups[topic]), lag) for topic, lag in lags.items()}

    def rate(self, way: str, broker: str = "") -> float:
        """Messages a second over the last ten seconds, of the masters."""
        return sum(
            (runtime.put_rate if way == "in" else runtime.transferred_rate).ten_seconds
            for node in self.nodes
            if (runtime := node.runtime) is not None
            and node.broker_id == MASTER_ID
            and broker in ("", node.broker_name)
        )


class Sampler:
    """Has the newest sample, and takes one every ``interval_seconds``."""

    def __init__(
        self,
        admin: Admin,
        history: History,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._admin = admin
        self._history = history
        self._interval = interval_seconds
        self._clock = clock
        self._taking: asyncio.Task[Sample] | None = None
        self._task: asyncio.Task[None] | None = None
        self._newest: Sample | None = None

    def start(self) -> None:
        """Begin, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="sampler")

    async def stop(self) -> None:
        """End it; what is under way is given up."""
        await end_tasks(self._task, self._taking)
        self._task = self._taking = None

    @property
    def known(self) -> Sample | None:
        """The last sample, however old; None: none could be taken yet."""
        return self._newest

    async def newest(self) -> Sample:
        """A sample that is not older than two intervals; one is taken where there is none.
        KeroloxError: the cluster does not answer.
        """
        sample = self._newest
        if sample is not None and self._clock() - sample.at <= 2 * self._interval:
            return sample
        return await self.take()

    async def take(self) -> Sample:
        """Take one now; who asks meanwhile gets the same. Errors: see :meth:`newest`."""
        if self._taking is None or self._taking.done():
            self._taking = asyncio.ensure_future(self._take())
            self._taking.add_done_callback(retrieve_error)
        # Who waits for it may be cancelled; the others still wait.
        return await asyncio.shield(self._taking)

    async def _run(self) -> None:
        while True:
            try:
                await self.take()
            except KeroloxError as error:
                _log.warning("no metrics of the cluster: %s", error)
            except TimeoutError:
                _log.warning("no metrics of the cluster within %g s", TAKE_SECONDS_MAX)
            except sqlite3.Error as error:
                _log.error("the history can't be written: %s", error)
            except Exception:
                _log.exception("no metrics of the cluster")
            await asyncio.sleep(self._interval)

    async def _take(self) -> Sample:
        async with asyncio.timeout(TAKE_SECONDS_MAX):
            nodes = tuple(await self._admin.cluster_status())
            errors = [f"{node.broker_name}: {node.error}" for node in nodes if node.error]
            masters = [n.address for n in nodes if n.broker_id == MASTER_ID and not n.error]
            has_all = all(not n.error for n in nodes if n.broker_id == MASTER_ID)
            groups: dict[str, GroupProgress] = {}
            for address in masters:
                try:
                    found = await self._admin.broker_progress(
                        address, timeout_seconds=TAKE_SECONDS_MAX
                    )
                except KeroloxError as error:
                    errors.append(f"the lag of groups on {address}: {error}")
                    has_all = False
                    continue
                for each in found.groups:
                    groups[each.group] = _together(groups.get(each.group), each)
            groups |= await self._without_settings()
        told = dict(sorted(groups.items()))
        sample = Sample(self._clock(), nodes, told, tuple(errors), has_all)
        self._newest = sample
        with contextlib.suppress(RuntimeError):  # the console is stopping
            await self._history.add(int(sample.at), _values(sample))
        return sample

    async def _without_settings(self) -> dict[str, GroupProgress]:
        """How far groups are that have offsets alone: brokers leave them out of all groups."""
        states, _ = await group_states_told(self._admin)
        names = [name for name, each in states.items() if not each.has_settings]
        found, _ = await answers_of(names[:GROUPS_KEPT_MAX], self._admin.group_progress)
        return found


def _together(one: GroupProgress | None, other: GroupProgress) -> GroupProgress:
    if one is None:
        return other
    return GroupProgress(
        one.group,
        tuple(sorted(one.queues + other.queues, key=lambda each: each.queue)),
        one.consumed_per_second + other.consumed_per_second,
    )


def _values(sample: Sample) -> dict[str, float]:
    """What the history keeps of a sample: no sum that lacks a master, which would look like
    messages that were consumed, or did not come."""
    values: dict[str, float] = {}
    for way in ("in", "out"):
        if sample.has_all_rates:
            values[rate_series(way)] = sample.rate(way)
        for node in sample.nodes:
            if node.broker_id == MASTER_ID and node.runtime is not None:
                values[rate_series(way, node.broker_name)] = sample.rate(way, node.broker_name)
    if not sample.has_all_lags:
        return values
    values[lag_series()] = float(sample.lag)
    by_lag = sorted(sample.groups.values(), key=lambda each: -each.lag)
    for group in by_lag[:GROUPS_KEPT_MAX]:
        values[lag_series(group.group)] = float(max(group.lag, 0))
    return values
