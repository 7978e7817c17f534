"""``/metrics``, ``/health/live`` and ``/health/ready`` of one role."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from kerolox.metrics.http import HttpAnswer, HttpRequest, HttpServer
from kerolox.metrics.snapshots import Snapshots
from kerolox.metrics.text import TextEncoder, content_type_of
from kerolox.remoting.time_slices import TimeSlices

if TYPE_CHECKING:
    from kerolox.metrics.role import MeasuredRole
    from kerolox.role_settings import MetricsSettings

SERIES_ALWAYS_FRESH = 20_000
"""A snapshot that finds no more is made for each scrape; a larger one is told again for a while."""
SERIES_PER_MS = 8
"""How long: a hundred times the CPU that it takes, some 1.2 us for each series. However many series
there are, and whoever asks how often, metrics take no more than a hundredth of a core then."""

_log = logging.getLogger(__name__)


class _Exposition(NamedTuple):
    parts: list[bytes]
    until: float
    """By the loop's time."""


class MetricsServer:
    """Serves the metrics of one role."""

    def __init__(self, settings: MetricsSettings, role: MeasuredRole) -> None:
        """Nothing is opened before :meth:`start`."""
        self._settings = settings
        self._role = role
        self._snapshots = Snapshots(settings, role)
        self._encoder = TextEncoder()
        self._encoding = asyncio.Lock()
        self._rendered: dict[bool, _Exposition] = {}
        """By whether it is OpenMetrics."""
        self._server = HttpServer(
            {
                "/metrics": self._metrics,
                "/health/live": self._live,
                "/health/ready": self._ready,
            }
        )

    @property
    def port(self) -> int:
        """Where it listens; 0: nowhere."""
        return self._server.port

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the port can't be opened.
        """
        settings = self._settings
        await self._server.open(
            settings.metrics_prom_exporter_host,
            settings.metrics_prom_exporter_port,
            "metricsPromExporterPort",
        )
        self._snapshots.start()
        _log.info("metrics are at port %d (/metrics, /health/live, /health/ready)", self.port)

    async def stop(self) -> None:
        """Close the port. Idempotent."""
        await self._snapshots.stop()
        await self._server.close()

    async def _metrics(self, request: HttpRequest) -> HttpAnswer:
        content_type, is_open = content_type_of(request.accept)
        # One at a time: what many ask for at once would be many times the memory.
        async with self._encoding:
            rendered = self._rendered.pop(is_open, None)
            if rendered is None or asyncio.get_running_loop().time() >= rendered.until:
                del rendered  # its memory, before there is more
                rendered = await self._render(is_open=is_open)
            if rendered.until:
                self._rendered[is_open] = rendered
        return HttpAnswer(rendered.parts, content_type)

    async def _render(self, *, is_open: bool) -> _Exposition:
        families = await self._snapshots.take()
        parts, slices = [], TimeSlices()
        for part in self._encoder.parts(families, is_open=is_open):
            parts.append(part)
            await slices.checkpoint()
        if (series := families.series) <= SERIES_ALWAYS_FRESH:
            return _Exposition(parts, 0.0)
        return _Exposition(parts, asyncio.get_running_loop().time() + series / SERIES_PER_MS / 1000)

    async def _live(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(b"live\n")

    async def _ready(self, request: HttpRequest) -> HttpAnswer:
        if reasons := self._role.unready():
            return HttpAnswer(("\n".join(("not ready", *reasons)) + "\n").encode(), status=503)
        return HttpAnswer(b"ready\n")
