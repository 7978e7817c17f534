"""One snapshot of a role and its process: what scrapes and exports tell."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector

from kerolox.metrics.families import Families
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from kerolox.metrics.role import MeasuredRole
    from kerolox.role_settings import MetricsSettings


_RESIDENT_PARTS = {"RssAnon": "anonymous", "RssFile": "files", "RssShmem": "shared"}

_process = ProcessCollector(registry=None)


def _measure_process(families: Families, build_labels: Mapping[str, str]) -> None:
    """Add CPU, memory, descriptors, the start, and the version with those labels. Where there is no
    ``/proc`` only the version is there."""
    for metric in _process.collect():
        for sample in metric.samples:
            add = families.counter if metric.type == "counter" else families.gauge
            add(sample.name, metric.documentation, sample.value)
    for part, size in _resident_parts():
        families.gauge(
            "kerolox_resident_memory_bytes",
            "Memory in use by what is behind it; files: mapped parts of the store",
            size,
            {"part": part},
        )
    python = ".".join(map(str, sys.version_info[:3]))
    labels = {"version": _version(), "python_version": python, **build_labels}
    families.gauge("kerolox_build_info", "1", 1, labels)


def _resident_parts() -> Iterator[tuple[str, int]]:
    """(part, bytes) of ``/proc/self/status``; nothing where that is not."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if part := _RESIDENT_PARTS.get(name):
            yield part, int(value.split()[0]) * 1024


@cache
def _version() -> str:
    return version("kerolox")


LAG_SECONDS = 0.5
"""How often the event loop's lag is measured."""
LAG_ENDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class LoopLag:
    """How late the event loop calls what is due."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_ENDS) + 1)
        self.total = 0.0

    def note(self, seconds: float) -> None:
        """Count one measurement."""
        index = next((n for n, end in enumerate(LAG_ENDS) if seconds <= end), len(LAG_ENDS))
        self.counts[index] += 1
        self.total += seconds

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.note(max(loop.time() - due, 0.0))


class Snapshots:
    """Examines one role, one at a time, however many ask."""

    def __init__(self, settings: MetricsSettings, role: MeasuredRole) -> None:
        """Nothing is measured before :meth:`start`."""
        self._limit = settings.metrics_otel_cardinality_limit
        self._role = role
        self._lag = LoopLag()
        self._measuring: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._seconds = 0.0
        """How long the last check took."""

    def start(self) -> None:
        """Begin to measure the event loop's lag. Only within a loop."""
        self._measuring = asyncio.get_running_loop().create_task(self._lag.run())

    async def stop(self) -> None:
        """End that. Idempotent."""
        await end_tasks(self._measuring)
        self._measuring = None

    async def take(self) -> Families:
        """All metrics as they are now, in time slices with other work of the loop."""
        async with self._lock:
            begin = time.perf_counter()
            families = Families(self._role.shared_labels, self._limit)
            await self._role.measure(families)
            self._measure_self(families)
            self._seconds = time.perf_counter() - begin
        return families

    def _measure_self(self, families: Families) -> None:
        _measure_process(families, self._role.build_labels)
        families.gauge(
            "kerolox_ready", "1 where /health/ready says so, else 0", int(not self._role.unready())
        )
        families.histogram(
            "kerolox_event_loop_lag_seconds",
            "How late the event loop calls what is due",
            LAG_ENDS,
            self._lag.counts,
            self._lag.total,
        )
        families.gauge(
            "kerolox_metrics_last_look_seconds",
            "How long the check before this one took",
            self._seconds,
        )
        families.gauge(
            "kerolox_metrics_left_out_series",
            "Series beyond metricsOtelCardinalityLimit, which are not here",
            families.left_out,
        )
