"""Settings of a controller: the keys of RocketMQ's ``ControllerConfig``, and some of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import ClassVar

from kerolox.addresses import split_address
from kerolox.errors import ConfigError
from kerolox.remoting.limits.admission import CONNECTIONS_MAX
from kerolox.role_settings import LATER, LIVE
from kerolox.security.dialling import TlsDialSettings
from kerolox.settings_class import settings_dataclass
from kerolox.text import split_list

MEMBERS_MAX = 15

_REASONS = {
    "one event loop does the work of RocketMQ's thread pools": """
        controllerThreadPoolNums controllerRequestThreadPoolQueueCapacity
    """,
    "every read is confirmed by a majority of the controllers": """
        isProcessReadEvent processReadEvent
    """,
    "an election is tried at each scan until it succeeds": """
        electMasterMaxRetryCount scanInactiveMasterInterval
    """,
    "controllers speak Kerolox's own Raft to each other": "controllerType jraftConfig",
    "the log of the controllers is one small file": "mappedFileSize",
    "there is nothing that it could change": "rocketmqHome",
}

UNUSED_KEYS: Mapping[str, str] = {
    key: reason for reason, keys in _REASONS.items() for key in keys.split()
}
"""Keys that RocketMQ knows → why they have no effect here."""

_HOME = Path("~/controller")


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(TlsDialSettings):
    """Settings of one controller; each field is the same-named key."""

    unused_keys: ClassVar[Mapping[str, str]] = UNUSED_KEYS
    file_field: ClassVar[str] = "config_store_path"

    controller_d_leger_group: str = field(default="controllers", metadata={"bytes": 255})
    controller_d_leger_peers: str = field(default="n0-127.0.0.1:9878", metadata={"bytes": 4096})
    """``id-host:port`` of each of the first controllers, joined by ``;``. Brokers use the same
    addresses. Who is a member later stands in the log."""
    controller_d_leger_self_id: str = field(default="n0", metadata={"bytes": 255})
    controller_store_path: Path = field(default_factory=lambda: _HOME.expanduser() / "raft")
    controller_secret: str = field(default="", repr=False, metadata={"bytes": 1024, "secret": True})
    """What all controllers of the group share: messages between them are signed with it. Empty:
    those are believed that come from the addresses of controllers. A key of ours."""
    controller_accepts_copy: bool = False
    """Start with files that are a copy, as of a backup. Only the last controller of a group may;
    others begin with an empty folder, and learn all. A key of ours."""
    config_black_list: str = field(
        default="configBlackList;configStorePath", metadata={"bytes": 4096}
    )
    """Keys, joined by ``;``, that UPDATE_CONTROLLER_CONFIG may not change."""
    config_store_path: Path = field(
        default_factory=lambda: (_HOME / "controller.properties").expanduser()
    )
    enable_elect_unclean_master: bool = field(default=False, metadata=LIVE)
    """A broker outside of the sync state set may become master: acknowledged messages are lost."""
    notify_broker_role_changed: bool = field(default=True, metadata=LIVE)
    scan_not_active_broker_interval: int = field(
        default=500, metadata=LIVE | {"min": 10, "max": 600_000}
    )
    """Milliseconds between two scans for brokers that are silent. RocketMQ's is 5,000."""
    listen_host: str = "*"
    """Addresses to listen on; the port is that of the own id in ``controllerDLegerPeers``."""
    metrics_prom_exporter_port: int = field(default=5559, metadata={"min": 0, "max": 65535})
    """0: any free port. Another one than those of brokers and name servers."""
    server_channel_max_idle_time_seconds: int = field(
        default=120, metadata=LATER | {"min": 1, "max": (1 << 31) - 1}
    )
    server_socket_backlog: int = field(default=1024, metadata=LATER | {"min": 1, "max": 65535})
    max_connections: int = field(default=CONNECTIONS_MAX, metadata={"min": 1})
    max_connections_per_address: int = field(default=0, metadata={"min": 0})

    def __post_init__(self) -> None:
        if self.controller_d_leger_self_id not in self.members:
            raise ConfigError(
                f"controllerDLegerPeers has no {self.controller_d_leger_self_id}, which "
                "controllerDLegerSelfId names"
            )

    @property
    def members(self) -> dict[str, str]:
        """Address by id of the first controllers; ConfigError: the setting is malformed."""
        members: dict[str, str] = {}
        for part in split_list(self.controller_d_leger_peers):
            node_id, dash, address = part.partition("-")
            try:
                split_address(address)
            except ValueError as error:
                raise ConfigError(f"controllerDLegerPeers: {part!r}: {error}") from None
            if not (node_id and dash) or node_id in members:
                raise ConfigError(
                    f"controllerDLegerPeers: {part!r} is not id-host:port with an id of its own"
                )
            members[node_id] = address
        if not 1 <= len(members) <= MEMBERS_MAX:
            raise ConfigError(f"controllerDLegerPeers has to name 1 to {MEMBERS_MAX} controllers")
        return members

    @property
    def own_address(self) -> str:
        """Where brokers and the other controllers reach this one."""
        return self.members[self.controller_d_leger_self_id]

    @property
    def settings_file(self) -> Path:
        """Where changed settings are written."""
        return self.config_store_path
