"""What the port of gRPC counts, and its metrics: names of RocketMQ 5 where it has them
(``RemotingMetricsConstant``, ``ProxyMetricsConstant``), else names of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kerolox.kernel.metrics import RPC_ENDS_MS, Latencies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.kernel.metrics import LatencyCounts
    from kerolox.metrics.families import Families
    from kerolox.remoting.grpc.counts import GrpcCounts

SUCCESS, CANCELLED = "success", "cancelled"
"""``result``."""

CallKey = tuple[str, str, str]
"""Request code, response code and result."""


class GrpcStats:
    """Counts since the start. What labels them is of this program, so there are few series."""

    def __init__(self) -> None:
        self.calls: dict[CallKey, Latencies] = {}
        self.waiting_receives = 0
        self.renewals = 0
        self.unread = 0
        """Messages that came again since their client has not read the answer."""

    def note(self, call: str, code: str, result: str, seconds: float) -> None:
        """A call of that name ended with that code."""
        key = call, code, result
        found = self.calls.get(key)
        if found is None:
            found = self.calls[key] = Latencies(RPC_ENDS_MS)
        found.note(round(seconds * 1_000_000))

    def all_calls(
        self, of_kernel: Iterable[tuple[CallKey, LatencyCounts]]
    ) -> dict[CallKey, Latencies]:
        """What was counted here, and by the kernel."""
        found: dict[CallKey, Latencies] = {}
        for key, counted in (*((key, each.get()) for key, each in self.calls.items()), *of_kernel):
            found.setdefault(key, Latencies(RPC_ENDS_MS)).add(*counted)
        return found


class OpenPort(Protocol):
    """The port, as its metrics need it."""

    stats: GrpcStats

    @property
    def counts(self) -> GrpcCounts:
        """What its connections count."""

    @property
    def connections(self) -> int:
        """Open ones."""

    @property
    def clients(self) -> int:
        """Those that have told their settings."""

    @property
    def renewed(self) -> int:
        """Messages whose invisible time is renewed."""

    def calls(self) -> dict[CallKey, Latencies]:
        """All that were answered."""


def measure(families: Families, port: OpenPort) -> None:
    """Add the metrics of the port."""
    families.gauge("rocketmq_proxy_up", "1: it serves gRPC", 1, {"proxy_mode": "local"})
    for (call, code, result), latencies in sorted(port.calls().items()):
        counts, total_us = latencies.get()
        families.histogram(
            "rocketmq_rpc_latency",
            "From a call's arrival to its answer, waits included, in milliseconds",
            RPC_ENDS_MS,
            counts,
            total_us / 1_000,
            {
                "protocol_type": "grpc",
                "request_code": call,
                "response_code": code,
                "result": result,
            },
        )
    for name, text, value in (
        ("connections", "Open connections of clients that speak gRPC", port.connections),
        ("streams", "Open calls", port.counts.streams),
        ("clients", "Clients that have told their settings", port.clients),
        ("waiting_receives", "Receives that wait for messages", port.stats.waiting_receives),
        ("renewed_messages", "Messages whose invisible time is renewed", port.renewed),
    ):
        families.gauge(f"kerolox_grpc_{name}", text, value)
    families.counter("kerolox_grpc_renewals_total", "Renewals", port.stats.renewals)
    families.counter(
        "kerolox_grpc_unread_messages_total",
        "Messages that came again since their client has not read the answer",
        port.stats.unread,
    )
    for name, text, counted in (
        ("calls_refused", "Calls that ended with a status of gRPC", port.counts.calls_refused),
        ("connections_closed", "Connections closed for an error", port.counts.connections_closed),
    ):
        for reason, count in sorted(counted.items()):
            families.counter(f"kerolox_grpc_{name}_total", text, count, {"reason": reason})
