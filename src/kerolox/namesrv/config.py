"""Settings of a name server: the keys of ``NamesrvConfig`` and ``NettyServerConfig`` of RocketMQ.

A key of RocketMQ that Kerolox does not use is accepted with a warning; any other is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import ClassVar

from kerolox.addresses import ALL_HOSTS
from kerolox.errors import ConfigError
from kerolox.remoting.limits.admission import CONNECTIONS_MAX
from kerolox.role_settings import LATER, LIVE, RoleSettings
from kerolox.security.access.accounts import Addresses
from kerolox.security.access.addresses import parse_address_lists
from kerolox.settings_class import settings_dataclass
from kerolox.text import split_list

_REASONS = {
    "one event loop does the work of RocketMQ's thread pools": """
        serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    """,
    "no request waits in a queue": "serverOnewaySemaphoreValue serverAsyncSemaphoreValue",
    "sockets and buffers are set by themselves": """
        serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark
        writeBufferLowWaterMark serverPooledByteBufAllocatorEnable useEpollNativeSelector
    """,
    "there is nothing that it could change": "rocketmqHome",
}

UNUSED_KEYS: Mapping[str, str] = {
    key: reason for reason, keys in _REASONS.items() for key in keys.split()
}
"""Keys that RocketMQ knows → why they have no effect here."""

CONTROLLER_KEYS = frozenset(
    """
    controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId controllerStorePath
    controllerSecret controllerAcceptsCopy enableElectUncleanMaster notifyBrokerRoleChanged
    scanNotActiveBrokerInterval controllerThreadPoolNums controllerRequestThreadPoolQueueCapacity
    isProcessReadEvent processReadEvent electMasterMaxRetryCount scanInactiveMasterInterval
    controllerType jraftConfig mappedFileSize useTLS
    tls.enable tls.client.authServer tls.client.trustCertPath tls.client.checkHostName
    tls.client.certPath tls.client.keyPath tls.client.keyPassword
    """.split()
)
"""Keys of a controller, which a name server does not have itself."""

_HOME = Path("~/namesrv")


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(RoleSettings):
    """Settings of one name server; each field is the same-named key of namesrv.conf."""

    unused_keys: ClassVar[Mapping[str, str]] = UNUSED_KEYS
    keys_of_others: ClassVar[frozenset[str]] = CONTROLLER_KEYS
    file_field: ClassVar[str] = "config_store_path"

    listen_port: int = field(default=9876, metadata={"min": 0, "max": 65535})
    """0: any free port."""
    listen_host: str = ALL_HOSTS
    """Addresses to listen on, joined by ``;``; ``*``: all, of IPv4 and IPv6. A key of ours."""
    metrics_prom_exporter_port: int = field(default=5558, metadata={"min": 0, "max": 65535})
    """0: any free port. Another one than a broker's, which may be on the same machine."""
    kv_config_path: Path = field(default_factory=lambda: (_HOME / "kvConfig.json").expanduser())
    config_store_path: Path = field(
        default_factory=lambda: (_HOME / "namesrv.properties").expanduser()
    )
    """Where UPDATE_NAMESRV_CONFIG writes: the file that was loaded, when there was one. A start
    without a file reads it."""
    product_env_name: str = field(default="center", metadata=LIVE | {"bytes": 255})
    cluster_test: bool = field(default=False, metadata=LIVE)
    order_message_enable: bool = field(default=False, metadata=LIVE)
    """Routes carry ORDER_TOPIC_CONFIG."""
    enable_controller_in_namesrv: bool = False
    """A controller runs in this process, too; its settings stand in the same file."""
    config_black_list: str = field(
        default="configBlackList;configStorePath;kvConfigPath", metadata={"bytes": 4096}
    )
    """Keys, joined by ``;``, that UPDATE_NAMESRV_CONFIG may not change, whatever else allows it."""
    server_channel_max_idle_time_seconds: int = field(
        default=120, metadata=LATER | {"min": 1, "max": (1 << 31) - 1}
    )
    server_socket_backlog: int = field(default=1024, metadata=LATER | {"min": 1, "max": 65535})
    max_connections: int = field(default=CONNECTIONS_MAX, metadata={"min": 1})
    """Open connections of all; more are closed at once. A key of ours, as the next three."""
    max_connections_per_address: int = field(default=0, metadata={"min": 0})
    """Of one address (IPv6: of one /64); 0: as many as are still free."""
    max_requests_per_second_per_address: int = field(
        default=0, metadata=LIVE | {"min": 0, "max": (1 << 31) - 1}
    )
    """Of one address; further ones are answered as busy. 0: any number."""
    request_burst_millis: int = field(default=1000, metadata=LIVE | {"min": 1, "max": 600_000})
    """What comes in so long at that rate may come at once."""

    writer_addresses: str = field(default="", metadata={"bytes": 16 * 1024})
    """Who may change something: addresses as white lists of accounts have them, joined by ``;``.
    This and the next four are keys of ours."""
    writer_accounts: Path | None = None
    """A file of accounts as a broker's ``plain_acl.yml``: its administrators may."""
    writer_certificates: str = field(default="", metadata={"bytes": 16 * 1024})
    """Subjects of client certificates that may, joined by ``;``; ``*``: any that is good."""
    restrict_readers: bool = False
    """Others may not ask for anything either; of the accounts all may."""

    def __post_init__(self) -> None:
        self.writer_address_lists  # noqa: B018 - a malformed list must stop the start

    @property
    def writer_address_lists(self) -> tuple[Addresses, ...]:
        """The lists of ``writerAddresses``; ConfigError: one is malformed."""
        try:
            return parse_address_lists(self.writer_addresses)
        except ValueError as error:
            raise ConfigError(f"writerAddresses: {error}") from None

    @property
    def writer_subjects(self) -> frozenset[str]:
        """The subjects of ``writerCertificates``."""
        return frozenset(split_list(self.writer_certificates))

    @property
    def settings_file(self) -> Path:
        """Where changed settings are written."""
        return self.config_store_path
