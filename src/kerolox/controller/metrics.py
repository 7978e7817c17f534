"""The controller's metrics: those of RocketMQ 5.3.3 by their names, and ours (``kerolox_``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kerolox.controller.live_brokers import BrokerIdentity
from kerolox.controller.raft.raft import Role
from kerolox.controller.request_counts import LATENCY_ENDS_US
from kerolox.metrics.requests import measure_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kerolox.controller.config import ControllerConfig
    from kerolox.controller.handlers import ControllerHandlers
    from kerolox.controller.replicas_info import BrokerSet
    from kerolox.metrics.families import Families
    from kerolox.remoting.server import RemotingServer

_ROLES = {Role.PRE_CANDIDATE: 1, Role.CANDIDATE: 1, Role.FOLLOWER: 2, Role.LEADER: 3}
"""RocketMQ's numbers; 0: unknown."""


class ControllerExposition:
    """What a controller tells a metrics endpoint."""

    build_labels: Mapping[str, str] = {}

    def __init__(
        self,
        handlers: ControllerHandlers,
        server: RemotingServer,
        config: ControllerConfig,
        log_bytes: Callable[[], int],
        clock_ms: Callable[[], int],
    ) -> None:
        """``log_bytes``: the size of its file."""
        self._handlers, self._server = handlers, server
        self._log_bytes, self._clock_ms = log_bytes, clock_ms
        self.shared_labels: Mapping[str, str] = {
            "address": config.own_address,
            "group": config.controller_d_leger_group,
            "peer_id": config.controller_d_leger_self_id,
        }

    def unready(self) -> list[str]:
        """It takes no part, has not caught up, or knows no leader."""
        group = self._handlers.group
        if group.fault:
            return [group.fault]
        if group.raft.learns:
            return ["it began with an empty folder, and has not caught up yet"]
        return [] if group.raft.leader else ["it knows no leader"]

    async def measure(self, families: Families) -> None:
        """See :class:`~kerolox.metrics.role.MeasuredRole`."""
        self._measure_raft(families)
        self._measure_brokers(families)
        handlers = self._handlers
        for (kind, status), count in handlers.requests.totals.items():
            labels = {"request_type": kind, "request_handle_status": status}
            families.counter("request_total", "Requests that ended", count, labels)
        for kind, buckets in handlers.requests.buckets.items():
            families.histogram(
                "request_latency",
                "How long requests took, microseconds",
                LATENCY_ENDS_US,
                buckets,
                handlers.requests.microseconds[kind],
                {"request_type": kind},
            )
        for result, count in handlers.elections.items():
            families.counter(
                "election_total", "Elections of masters", count, {"election_result": result}
            )
        for status, count in handlers.group.proposals.items():
            labels = {"dledger_operation": "append", "dLedger_operation_status": status}
            families.counter("dledger_op_total", "Proposals to the log", count, labels)
        families.counter(
            "kerolox_controller_refused_messages_total",
            "Messages of Raft that were not believed",
            handlers.refused_messages,
        )
        counts, kept = self._server.limits.counts, self._server.memory_limiter.kept
        measure_requests(families, counts, handlers.audit, kept)

    def _measure_raft(self, families: Families) -> None:
        group = self._handlers.group
        raft = group.raft
        role = 0 if group.fault else _ROLES[raft.role]
        families.gauge("role", "0 unknown, 1 candidate, 2 follower, 3 leader", role)
        families.gauge("dledger_disk_usage_bytes", "Size of the log's file", self._log_bytes())
        for name, text, value in (
            ("term", "Term of Raft", raft.term),
            ("commit_index", "Last entry that is committed", raft.log.committed),
            ("applied_index", "Last entry that is applied", raft.log.applied),
            ("members", "Controllers of the group", len(raft.configuration)),
            ("learning", "1: it began anew and has not caught up", int(raft.learns)),
            ("put_back_members", "Members whose folders are older copies", len(raft.put_back)),
        ):
            families.gauge(f"kerolox_controller_{name}", text, value)

    def _measure_brokers(self, families: Families) -> None:
        handlers, now = self._handlers, self._clock_ms()
        alive = Counter[tuple[str, str]]()
        for identity, info in list(handlers.live.table.items()):
            if not handlers.live.is_alive(identity, now):
                continue
            alive[identity[:2]] += 1
            families.gauge(
                "kerolox_controller_heartbeat_age_seconds",
                "Since the last heartbeat of a broker that is alive",
                (now - info.heartbeat_ms) / 1000,
                {
                    "cluster": identity.cluster_name,
                    "broker_set": identity.broker_name,
                    "broker_id": str(identity.broker_id),
                },
            )
        for (cluster, name), count in alive.items():
            families.gauge(
                "active_broker_num",
                "Brokers that are alive",
                count,
                {"cluster": cluster, "broker_set": name},
            )
        for broker_set in list(handlers.replicas.broker_sets.values()):
            labels = {"cluster": broker_set.cluster_name, "broker_set": broker_set.broker_name}
            for name, text, value in _of_set(broker_set, handlers.live.is_alive, now):
                families.gauge(f"kerolox_controller_{name}", text, value, labels)


def _of_set(
    broker_set: BrokerSet, is_alive: Callable[[BrokerIdentity, int], bool], now: int
) -> Iterator[tuple[str, str, int]]:
    master = broker_set.master_broker_id
    identity = BrokerIdentity(broker_set.cluster_name, broker_set.broker_name, master or 0)
    yield "set_brokers", "Brokers of a name", len(broker_set.brokers)
    yield "sync_state_set_size", "Brokers that are in sync", len(broker_set.sync_state_set)
    yield "master_epoch", "Changes of the master", broker_set.master_epoch
    has_master = master is not None and is_alive(identity, now)
    yield "has_master", "1: there is a master, and it is alive", int(has_master)
