"""The name server's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kerolox.metrics.requests import measure_requests

if TYPE_CHECKING:
    from kerolox.metrics.families import Families
    from kerolox.namesrv.handlers import NameServerHandlers
    from kerolox.namesrv.route_table import RouteTable
    from kerolox.remoting.limits.memory_limiter import MemoryLimiter


class NameServerExposition:
    """What a name server tells a metrics endpoint."""

    shared_labels: Mapping[str, str] = {"node_type": "namesrv"}
    build_labels: Mapping[str, str] = {}

    def __init__(
        self, handlers: NameServerHandlers, routes: RouteTable, memory: MemoryLimiter
    ) -> None:
        self._handlers = handlers
        self._routes = routes
        self._memory = memory

    def unready(self) -> list[str]:
        """Nothing: a name server that answers is ready; brokers come when they come."""
        return []

    async def measure(self, families: Families) -> None:
        """See :class:`~kerolox.metrics.role.MeasuredRole`."""
        routes = self._routes
        families.gauge("kerolox_namesrv_brokers", "Brokers that are registered", len(routes.live))
        families.gauge("kerolox_namesrv_topics", "Topics that have a route", len(routes.topics))
        for cluster, names in list(routes.clusters.items()):
            families.gauge(
                "kerolox_namesrv_cluster_brokers",
                "Broker names of a cluster",
                len(names),
                {"cluster": cluster},
            )
        handlers = self._handlers
        measure_requests(families, handlers.limits.counts, handlers.audit, self._memory.kept)
