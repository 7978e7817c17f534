"""Which brokers are alive: by their heartbeats, in the memory of the leading controller alone
(``BrokerHeartbeatManager``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kerolox.protocol.controller import (
    HEARTBEAT_TIMEOUT_MS,
    LOWEST_PRIORITY,
    BrokerHeartbeatHeader,
)

LIVE_BROKERS_MAX = 100_000
"""Brokers whose heartbeats are kept."""

TIMEOUT_MS_MAX = 600_000
"""Longest time that a broker may ask to count as alive."""

_UNKNOWN = -1


class BrokerIdentity(NamedTuple):
    """A broker, as a controller knows it (``BrokerIdentityInfo``)."""

    cluster_name: str
    broker_name: str
    broker_id: int


@dataclass(slots=True)
class BrokerLiveInfo:
    """What a broker's last heartbeats said."""

    address: str
    heartbeat_ms: int
    timeout_ms: int
    connection_id: int
    epoch: int
    max_offset: int
    confirm_offset: int
    election_priority: int


class LiveBrokers:
    """All that sent a heartbeat, until their time is over. Nobody sets the clock of these times."""

    def __init__(self) -> None:
        self.table: dict[BrokerIdentity, BrokerLiveInfo] = {}

    def renew(self, header: BrokerHeartbeatHeader, connection_id: int, now_ms: int) -> bool:
        """A heartbeat came; False: there are too many brokers to take one more. The end of a log
        never goes back within an epoch: heartbeats may overtake each other."""
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id or 0)
        epoch = _UNKNOWN if header.epoch is None else header.epoch
        max_offset = _UNKNOWN if header.max_offset is None else header.max_offset
        info = self.table.get(identity)
        if info is None:
            if len(self.table) >= LIVE_BROKERS_MAX:
                return False
            info = self.table[identity] = BrokerLiveInfo(
                header.broker_addr, now_ms, 0, connection_id, _UNKNOWN, _UNKNOWN, _UNKNOWN, 0
            )
        timeout_ms = header.heartbeat_timeout_mills
        info.timeout_ms = (
            HEARTBEAT_TIMEOUT_MS if timeout_ms is None else max(0, min(timeout_ms, TIMEOUT_MS_MAX))
        )
        priority = header.election_priority
        info.election_priority = LOWEST_PRIORITY if priority is None else priority
        info.address, info.heartbeat_ms = header.broker_addr, now_ms
        # What was sent before a cut of the network may come on the old connection after all, and
        # its end behind it: later connections have higher numbers, and the latest counts.
        info.connection_id = max(info.connection_id, connection_id)
        if (epoch, max_offset) > (info.epoch, info.max_offset):
            info.epoch, info.max_offset = epoch, max_offset
            info.confirm_offset = (
                _UNKNOWN if header.confirm_offset is None else header.confirm_offset
            )
        return True

    def is_alive(self, identity: BrokerIdentity, now_ms: int) -> bool:
        """Whether its time is not over; an unknown one is not alive."""
        info = self.table.get(identity)
        return info is not None and _is_alive(info, now_ms)

    def best_first(self, cluster_name: str, broker_name: str, now_ms: int) -> list[int]:
        """The brokers of a set that are alive: by epoch and end of the log downwards, then by
        priority and id upwards."""
        alive = [
            (-info.epoch, -info.max_offset, info.election_priority, identity.broker_id)
            for identity, info in self.table.items()
            if identity[:2] == (cluster_name, broker_name) and _is_alive(info, now_ms)
        ]
        return [broker_id for *_, broker_id in sorted(alive)]

    def newest_epoch(self, cluster_name: str, broker_name: str, now_ms: int) -> int:
        """The newest epoch that a broker of a set has told that is alive; 0: none has."""
        return max(
            (
                info.epoch
                for identity, info in self.table.items()
                if identity[:2] == (cluster_name, broker_name) and _is_alive(info, now_ms)
            ),
            default=0,
        )

    def newest_epochs(self, now_ms: int) -> dict[tuple[str, str], int]:
        """The same of all, by cluster and broker name."""
        newest: dict[tuple[str, str], int] = {}
        for identity, info in self.table.items():
            if _is_alive(info, now_ms):
                key = identity.cluster_name, identity.broker_name
                newest[key] = max(newest.get(key, 0), info.epoch)
        return newest

    def expire(self, now_ms: int) -> list[BrokerIdentity]:
        """Forget those whose time is over; who they were."""
        return self._drop([i for i, info in self.table.items() if not _is_alive(info, now_ms)])

    def connection_closed(self, connection_id: int) -> list[BrokerIdentity]:
        """Forget those whose heartbeats came by a connection; who they were."""
        return self._drop([i for i, b in self.table.items() if b.connection_id == connection_id])

    def _drop(self, gone: list[BrokerIdentity]) -> list[BrokerIdentity]:
        for identity in gone:
            del self.table[identity]
        return gone


def _is_alive(info: BrokerLiveInfo, now_ms: int) -> bool:
    return now_ms - info.heartbeat_ms <= info.timeout_ms
