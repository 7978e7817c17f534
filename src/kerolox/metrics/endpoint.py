"""Metrics of one role: on when ``metricsExporterType`` asks for them.

What serves them is imported then alone: the libraries for it take longer to load than the rest of a
name server, and most servers run without metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.metrics.otlp import MetricsExporter
    from kerolox.metrics.role import MeasuredRole
    from kerolox.metrics.serving import MetricsServer
    from kerolox.role_settings import MetricsSettings


class MetricsEndpoint:
    """The metrics of one role; with ``metricsExporterType=DISABLE`` it does nothing."""

    def __init__(self, settings: MetricsSettings, role: Callable[[], MeasuredRole]) -> None:
        """Nothing is opened before :meth:`start`. ``role``: makes what is measured, if it is."""
        self._settings = settings
        self._role = role
        self._started: MetricsServer | MetricsExporter | None = None

    @property
    def port(self) -> int:
        """Where it listens; 0: nowhere."""
        return getattr(self._started, "port", 0)

    async def start(self) -> None:
        """Serve or send metrics, if they are asked for. ConfigError: the port can't be opened, a
        setting of the collector is wrong, or the extra ``otel`` is not installed.
        """
        if not self._settings.measures:
            return
        kind = _server() if self._settings.serves_metrics else _exporter()
        started = kind(self._settings, self._role())
        await started.start()
        self._started = started

    async def stop(self) -> None:
        """Close the port, send no more. Idempotent."""
        if self._started is not None:
            await self._started.stop()
            self._started = None


# Not at the top: 50 ms of each start, and nobody without metrics needs them.
def _server() -> type[MetricsServer]:
    from kerolox.metrics.serving import MetricsServer

    return MetricsServer


def _exporter() -> type[MetricsExporter]:
    try:
        from kerolox.metrics.otlp import MetricsExporter
    except ImportError as error:
        raise ConfigError(
            f"metricsExporterType: OpenTelemetry is not installed ({error.name}); "
            "pip install 'kerolox[otel]'"
        ) from error
    return MetricsExporter
