"""``/metrics``, ``/health/live`` and ``/health/ready`` of one role."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from kerolox.metrics.http import HttpAnswer, HttpRequest, HttpServer
from kerolox.metrics.looks import Looks
from kerolox.metrics.text import TextEncoder, content_type_of
from kerolox.remoting.turns import Turns

if TYPE_CHECKING:
    from kerolox.metrics.role import MeasuredRole
    from kerolox.role_settings import MetricsSettings

SERIES_ALWAYS_FRESH = 20_000
"""A look that finds no more is made for each scrape; a larger one is told again for a while."""
SERIES_PER_MS = 8
"""How long: a hundred times the CPU that it takes, some 1.2 us for each series. However many series
there are, and whoever asks how often, figures take no more than a hundredth of a core then."""

_log = logging.getLogger(__name__)


class _Told(NamedTuple):
    parts: list[bytes]
    until: float
    """By the loop's time."""


class FiguresServer:
    """Serves the figures of one role."""

    def __init__(self, settings: MetricsSettings, role: MeasuredRole) -> None:
        """Nothing is opened before :meth:`start`."""
        self._settings = settings
        self._role = role
        self._looks = Looks(settings, role)
        self._encoder = TextEncoder()
        self._encoding = asyncio.Lock()
        self._told: dict[bool, _Told] = {}
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
        self._looks.start()
        _log.info("figures are at port %d (/metrics, /health/live, /health/ready)", self.port)

    async def stop(self) -> None:
        """Close the port. Idempotent."""
        await self._looks.stop()
        await self._server.close()

    async def _metrics(self, request: HttpRequest) -> HttpAnswer:
        content_type, is_open = content_type_of(request.accept)
        # One at a time: what many ask for at once would be many times the memory.
        async with self._encoding:
            told = self._told.pop(is_open, None)
            if told is None or asyncio.get_running_loop().time() >= told.until:
                del told  # its memory, before there is more
                told = await self._tell(is_open=is_open)
            if told.until:
                self._told[is_open] = told
        return HttpAnswer(told.parts, content_type)

    async def _tell(self, *, is_open: bool) -> _Told:
        families = await self._looks.look()
        parts, turns = [], Turns()
        for part in self._encoder.parts(families, is_open=is_open):
            parts.append(part)
            await turns.give()
        if (series := families.series) <= SERIES_ALWAYS_FRESH:
            return _Told(parts, 0.0)
        return _Told(parts, asyncio.get_running_loop().time() + series / SERIES_PER_MS / 1000)

    async def _live(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(b"live\n")

    async def _ready(self, request: HttpRequest) -> HttpAnswer:
        if reasons := self._role.unready():
            return HttpAnswer(("\n".join(("not ready", *reasons)) + "\n").encode(), status=503)
        return HttpAnswer(b"ready\n")
