"""``/metrics``, ``/health/live`` and ``/health/ready`` of one role."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox.metrics.http import HttpAnswer, HttpRequest, HttpServer
from kerolox.metrics.looks import Looks
from kerolox.metrics.text import encode

if TYPE_CHECKING:
    from kerolox.metrics.role import MeasuredRole
    from kerolox.role_settings import MetricsSettings

_log = logging.getLogger(__name__)


class FiguresServer:
    """Serves the figures of one role."""

    def __init__(self, settings: MetricsSettings, role: MeasuredRole) -> None:
        """Nothing is opened before :meth:`start`."""
        self._settings = settings
        self._role = role
        self._looks = Looks(settings, role)
        self._encoding = asyncio.Lock()
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
        # One at a time: what many ask for at once would be many times the memory.
        async with self._encoding:
            families = await self._looks.look()
            body, content_type = await asyncio.to_thread(encode, families.collect(), request.accept)
        return HttpAnswer(body, content_type)

    async def _live(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(b"live\n")

    async def _ready(self, request: HttpRequest) -> HttpAnswer:
        if reasons := self._role.unready():
            return HttpAnswer(("\n".join(("not ready", *reasons)) + "\n").encode(), status=503)
        return HttpAnswer(b"ready\n")
