"""Settings of a name server: the keys of ``NamesrvConfig`` and ``NettyServerConfig`` of RocketMQ.

A key of RocketMQ that Kerolox does not use is accepted with a warning; any other is an error.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kerolox.config import load_settings, read_properties, setting_keys, setting_text

__all__ = ["UNUSED_KEYS", "NamesrvConfig"]

UNUSED_KEYS = frozenset(
    """
    serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize
    serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark
    serverPooledByteBufAllocatorEnable useEpollNativeSelector rocketmqHome
    """.split()
)
"""Keys that RocketMQ knows and that have no effect here."""

_HOME = Path("~/namesrv")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """Settings of one name server; each field is the same-named key of namesrv.conf."""

    listen_port: int = field(default=9876, metadata={"min": 0, "max": 65535})
    """0: any free port."""
    listen_host: str = "0.0.0.0"
    """Address to listen on; a key of ours."""
    kv_config_path: Path = field(default_factory=lambda: (_HOME / "kvConfig.json").expanduser())
    config_store_path: Path = field(
        default_factory=lambda: (_HOME / "namesrv.properties").expanduser()
    )
    """Where UPDATE_NAMESRV_CONFIG writes; the file that was loaded, when there was one."""
    product_env_name: str = "center"
    cluster_test: bool = False
    order_message_enable: bool = False
    """Routes carry ORDER_TOPIC_CONFIG."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, joined by ``;``, that UPDATE_NAMESRV_CONFIG may not change, beside the fixed ones."""
    server_channel_max_idle_time_seconds: int = field(default=120, metadata={"min": 1})
    server_socket_backlog: int = field(default=1024, metadata={"min": 1, "max": 65535})
    max_connections_per_address: int = field(default=0, metadata={"min": 0})
    """Of one address (IPv6: of one /64); 0: as many as are still free. A key of ours."""

    @classmethod
    def load(cls, path: Path | None, **overrides: object) -> Self:
        """Settings from a file (None: the defaults), ``overrides`` being stronger.

        Raises:
            ConfigError: an unknown key, a value that does not fit, a file that can't be read.
        """
        values = {} if path is None else read_properties(path)
        if path is not None:
            overrides.setdefault("config_store_path", path)
        where = str(path) if path is not None else "name server settings"
        return load_settings(
            cls, values, where=where, known_unused=UNUSED_KEYS, overrides=overrides
        )

    def updated(self, values: dict[str, str], where: str) -> Self:
        """These settings with some keys changed.

        Raises:
            ConfigError: an unknown key, or a value that does not fit.
        """
        return load_settings(
            type(self), self.as_properties() | values, where=where, known_unused=UNUSED_KEYS
        )

    def as_properties(self) -> dict[str, str]:
        """Key → text of all settings."""
        names = setting_keys(type(self))
        given = dataclasses.asdict(self)
        return {key: setting_text(given[name]) for key, name in names.items()}
