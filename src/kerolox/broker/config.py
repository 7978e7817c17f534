"""Settings of a broker: ``broker.conf`` of RocketMQ 4.9.8, as one frozen dataclass.

The file's keys are those of ``BrokerConfig``, ``MessageStoreConfig`` and ``NettyServerConfig``,
with their defaults. A key that RocketMQ knows and Kerolox does not use (:data:`UNUSED_KEYS`) is a
warning. A key that nobody knows is a :class:`ConfigError` that names the nearest one. So is a value
that would silently mean something else than it says (DLedger ...).

Keys of our own, which RocketMQ ignores: ``listenHost`` (addresses to listen on),
``advertisedAddress`` (what name servers tell clients), ``grpcAdvertisedAddress`` (the same of
gRPC), ``vipPortEnable`` (listen on ``listenPort - 2`` too, as RocketMQ always does),
``gatherTimeMicros`` (how long requests may come together while many small ones come in),
``maxConnections``, ``maxConnectionsPerAddress``,
``maxRequestsPerSecondPerAddress``, ``maxRequestsPerSecondPerAccount``, ``requestBurstMillis``,
``updateNamesrvAddrEnable`` (requests may change ``namesrvAddr``), ``aclFile`` (accounts; a system
property of RocketMQ), ``aclStrict`` (access control without the gaps of RocketMQ 4.9.8) and some of
:mod:`kerolox.broker.ha_settings`. Those of pops are in :mod:`kerolox.broker.pop_settings`,
those of messages for a moment in :mod:`kerolox.broker.timer_settings`, and those of a controller in
:mod:`kerolox.broker.controller_mode_settings`.

What requests may change is said by each field (:mod:`kerolox.role_settings`): switches, limits and
times. It is never what names a file, a folder, an address, a port or a topic, and nothing that the
files of a store or their meaning depend on.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import ClassVar

from kerolox.addresses import (
    ALL_HOSTS,
    is_host,
    join_address,
    own_host,
    split_address,
)
from kerolox.broker.retention import parse_hours
from kerolox.broker.timer_settings import TimerKeys
from kerolox.broker.unused_settings import UNUSED_KEYS, warn_of_other_places
from kerolox.config import setting_keys
from kerolox.errors import ConfigError
from kerolox.filter.bloom import BloomFilter
from kerolox.kernel.dedup import KEYS_MAX
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.kernel.settings import StoreSettings
from kerolox.observable import Observable
from kerolox.protocol.codes import MASTER_ID
from kerolox.protocol.names import (
    DEFAULT_REGION,
    NAME_CHARACTERS,
    TOPIC_CHARACTERS_MAX,
    TRACE_TOPIC,
)
from kerolox.remoting.limits.admission import CONNECTIONS_MAX
from kerolox.role_settings import DISABLED, LATER, LIVE
from kerolox.settings_class import settings_dataclass
from kerolox.store.layout import ENTRY_BYTES
from kerolox.store.log.folders import PATH_SPLITTER, split_folders
from kerolox.text import split_list

TRANSFER_BYTES_MAX = 15 << 20
"""Of messages in one answer to a pull, whatever the settings say: a frame has 16 MiB."""
NAMESRV_VARIABLE = "NAMESRV_ADDR"
HOME_VARIABLE = "ROCKETMQ_HOME"

_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_BROKER_NAME = re.compile(rf"(?!\.+\Z)[.{NAME_CHARACTERS}]+")
"""Of a topic's characters, and dots, since a host's full name is RocketMQ's default. Names of dots
alone would be other folders: a topic of the broker's name has one."""
_INT: dict[str, object] = {"max": (1 << 31) - 1}
"""What a Java int holds; so much the kernels take, too."""
_AMOUNT: dict[str, object] = {"min": 0, **_INT}
_COUNT: dict[str, object] = {"min": 1, **_INT}
_BYTES: dict[str, object] = {"min": 1}
_PORT = {"min": 0, "max": 65535}

_UNSUPPORTED_SWITCHES = {
    "enable_dleger_commit_log": "DLedger",
}


def _host_name() -> str:
    name = re.sub(rf"[^.{NAME_CHARACTERS}]", "-", socket.gethostname())[:TOPIC_CHARACTERS_MAX]
    return name if _BROKER_NAME.fullmatch(name) else "broker-a"


DERIVED_KEYS = frozenset(("haListenPort", "storePathCommitLog", "useTLS"))
"""Settings that follow from others where they are not set: a broker shows what is in force."""


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(TimerKeys):
    """Settings of one broker; each field is the same-named key of ``broker.conf``.

    Times are milliseconds unless the name says otherwise, sizes bytes, ratios per cent.
    """

    unused_keys: ClassVar[Mapping[str, str]] = UNUSED_KEYS
    file_field: ClassVar[str] = "broker_config_path"

    # -- who and where ----------------------------------------------------------------------
    broker_name: str = field(default_factory=_host_name)
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = field(default=0, metadata={"min": -1})
    """-1, as RocketMQ's examples have it under a controller: that gives one."""
    broker_ip1: str = field(default="", metadata={"key": "brokerIP1"})
    """The host that name servers and records have. Empty: the first of ``listen_host`` that others
    reach, or this machine's own address."""
    broker_ip2: str = field(default="", metadata={"key": "brokerIP2"})
    advertised_address: str = ""
    """``host:port`` in place of ``brokerIP1:listenPort``, where clients come another way (NAT)."""
    listen_host: str = ALL_HOSTS
    """Addresses to listen on, joined by ``;``; ``*``: all, of IPv4 and IPv6."""
    listen_port: int = field(default=10911, metadata=_PORT)
    """0: any free port; the VIP port stays closed then."""
    vip_port_enable: bool = True
    grpc_server_port: int = field(default=0, metadata=_PORT)
    """Where clients of RocketMQ 5 come in, by gRPC; 0: nowhere. Needs the extra ``grpc``."""
    grpc_advertised_address: str = ""
    """``host:port`` that routes name for clients by gRPC, where they come another way (NAT). Empty:
    the host of ``advertisedAddress`` or ``brokerIP1``, with ``grpcServerPort``."""
    gather_time_micros: int = field(default=250, metadata=LATER | {"min": 0, "max": 10_000})
    """Microseconds that the loop rests between turns while it is busy with small requests and loses
    none by it (see ``kerolox.remoting.coalescing``); 0: never."""
    namesrv_addr: str = field(
        default_factory=lambda: os.environ.get(NAMESRV_VARIABLE, ""),
        metadata={"live": True, "wire_if": "update_namesrv_addr_enable", "bytes": 4096},
    )
    """``ip:port``, several joined by ``;``. Empty: the broker registers nowhere."""
    update_namesrv_addr_enable: bool = False
    """Requests may change namesrvAddr: the broker then connects to any address that any client
    names, and leaves its cluster. A key of ours."""
    region_id: str = field(default=DEFAULT_REGION, metadata=LIVE | {"bytes": 255})
    broker_role: str = field(
        default="ASYNC_MASTER", metadata={"choices": ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")}
    )

    # -- policy -----------------------------------------------------------------------------
    broker_permission: int = field(default=6, metadata=LIVE | {"min": 0, "max": 7})
    default_topic_queue_nums: int = field(default=8, metadata=LATER | {"min": 1, "max": 65536})
    auto_create_topic_enable: bool = field(default=True, metadata=LIVE)
    auto_create_subscription_group: bool = field(default=True, metadata=LIVE)
    enable_mixed_message_type: bool = field(default=True, metadata=LIVE)
    """Topics may have the ``message.type`` MIXED; false, as in RocketMQ 5: code 29."""
    cluster_topic_enable: bool = field(default=True, metadata=LATER)
    broker_topic_enable: bool = field(default=True, metadata=LATER)
    msg_trace_topic_name: str = TRACE_TOPIC
    trace_topic_enable: bool = field(default=False, metadata=LATER)
    trace_on: bool = field(default=True, metadata=LIVE)
    reject_transaction_message: bool = field(default=False, metadata=LIVE)
    transaction_time_out: int = field(default=6000, metadata=LIVE | _BYTES)
    """How old a half message is when its producer is first asked."""
    transaction_check_max: int = field(default=15, metadata=LIVE | _AMOUNT)
    transaction_check_interval: int = field(default=60_000, metadata=LATER | {"min": 100})
    notify_consumer_ids_changed_enable: bool = field(default=True, metadata=LIVE)
    long_polling_enable: bool = field(default=True, metadata=LATER)
    short_polling_time_mills: int = field(default=1000, metadata=LATER | _BYTES)
    start_accept_send_request_time_stamp: int = field(default=0, metadata=LIVE)
    acl_enable: bool = False
    """Requests need an account that may do what they ask."""
    acl_strict: bool = True
    """With aclEnable: writes by any code need PUB, and what changes something for others needs an
    administrator; false: as RocketMQ 4.9.8, which checks some codes only. A key of ours."""
    rocketmq_home: str = field(default_factory=lambda: os.environ.get(HOME_VARIABLE, ""))
    """Folder of ``conf/plain_acl.yml`` and ``conf/acl``, of which the first counts only while
    ``acl_file`` names no other."""
    acl_file: str = ""
    """File of accounts, and beside it the folder ``acl`` with more of them
    (``rocketmq.acl.plain.file``); relative to ``rocketmq_home``."""
    enable_property_filter: bool = field(default=False, metadata=LIVE)
    """Groups may filter by SQL92."""
    filter_support_retry: bool = field(default=False, metadata=LIVE)
    """Retried messages are filtered again, by what the group wants of their first topic."""
    filter_data_clean_time_span: int = field(default=24 * 3600 * 1000, metadata=LATER | _BYTES)
    max_error_rate_of_bloom_filter: int = field(default=20, metadata={"min": 1, "max": 99})
    expect_consumer_num_use_filter: int = field(default=32, metadata={"min": 1, "max": 100_000})

    # -- intervals --------------------------------------------------------------------------
    flush_consumer_offset_interval: int = field(default=5000, metadata=LATER | {"min": 100} | _INT)
    flush_delay_offset_interval: int = field(default=10_000, metadata=LATER | {"min": 100})
    register_name_server_period: int = field(default=30_000, metadata=LATER | {"min": 1} | _INT)
    register_broker_timeout_mills: int = field(default=6000, metadata=LIVE | {"min": 100} | _INT)
    compressed_register: bool = field(default=False, metadata=LIVE)

    # -- remoting ---------------------------------------------------------------------------
    server_channel_max_idle_time_seconds: int = field(
        default=120, metadata=LATER | {"min": 1} | _INT
    )
    server_socket_backlog: int = field(default=1024, metadata=LATER | {"min": 1, "max": 65535})
    max_connections: int = field(default=CONNECTIONS_MAX, metadata=_COUNT)
    """Open connections of all, on each port; more are closed at once."""
    max_connections_per_address: int = field(default=0, metadata={"min": 0})
    """Of one address (IPv6: of one /64), on each port; 0: as many as are still free, so that one
    gets half of all at most. Name a number where most clients come through a proxy."""
    max_requests_per_second_per_address: int = field(default=0, metadata=LIVE | _AMOUNT)
    """Of one address (IPv6: of one /64), on all ports; further ones are answered as busy. 0: any
    number."""
    max_requests_per_second_per_account: int = field(default=0, metadata=LIVE | _AMOUNT)
    """The same of one account, with ``aclEnable``. No request takes the fast path then."""
    request_burst_millis: int = field(default=1000, metadata=LIVE | {"min": 1, "max": 600_000})
    """What comes in so long at these rates may come at once."""

    # -- store ------------------------------------------------------------------------------
    store_path_root_dir: Path = field(default_factory=lambda: Path.home() / "store")
    store_path_commit_log: str = ""
    """One folder, or several joined by ``,``; empty: ``commitlog`` below the root."""
    mapped_file_size_commit_log: int = field(default=1 << 30, metadata={"min": 4096})
    mapped_file_size_consume_queue: int = field(default=300_000 * 20, metadata={"min": 20})
    max_hash_slot_num: int = field(default=5_000_000, metadata=_BYTES)
    max_index_num: int = field(default=20_000_000, metadata={"min": 2})
    message_index_enable: bool = field(default=True, metadata=LATER)
    message_index_safe: bool = field(default=False, metadata=LATER)
    max_message_size: int = field(
        default=4 * 1024 * 1024, metadata=LIVE | {"min": 1, "max": 15 << 20}
    )
    flush_disk_type: str = field(
        default="ASYNC_FLUSH", metadata=LATER | {"choices": ("ASYNC_FLUSH", "SYNC_FLUSH")}
    )
    flush_interval_commit_log: int = field(default=500, metadata=LATER | _COUNT)
    flush_commit_log_least_pages: int = field(default=4, metadata=LATER | _AMOUNT)
    flush_commit_log_thorough_interval: int = field(default=10_000, metadata=LATER | _COUNT)
    flush_interval_consume_queue: int = field(default=1_000, metadata=LATER | _COUNT)
    flush_consume_queue_least_pages: int = field(default=2, metadata=LATER | _AMOUNT)
    flush_consume_queue_thorough_interval: int = field(default=60_000, metadata=LATER | _COUNT)
    sync_flush_timeout: int = field(default=5_000, metadata=LATER | _COUNT)
    check_crc_on_recover: bool = field(default=True, metadata=LATER | {"key": "checkCRCOnRecover"})
    max_transfer_bytes_on_message_in_memory: int = field(
        default=256 * 1024, metadata=LATER | _COUNT
    )
    max_transfer_count_on_message_in_memory: int = field(default=32, metadata=LATER | _COUNT)
    max_transfer_bytes_on_message_in_disk: int = field(default=64 * 1024, metadata=LATER | _COUNT)
    max_transfer_count_on_message_in_disk: int = field(default=8, metadata=LATER | _COUNT)
    access_message_in_memory_max_ratio: int = field(
        default=40, metadata=LATER | {"min": 0, "max": 100}
    )
    default_query_max_num: int = field(default=32, metadata=LIVE | _COUNT)
    max_msgs_num_batch: int = field(default=64, metadata=LATER | _COUNT)
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    enable_dleger_commit_log: bool = field(default=False, metadata={"key": "enableDLegerCommitLog"})

    dedup_max_keys: int = field(default=KEYS_MAX, metadata=LIVE | {"min": 1, "max": 100_000_000})
    """Keys that all topics with ``dedup.window.ms`` keep together, some 60 bytes each with the
    native kernel and 250 with the Python one. With more of them the windows become shorter."""

    # -- dispatch ---------------------------------------------------------------------------
    enable_multi_dispatch: bool = False
    """A message may name further queues (INNER_MULTI_DISPATCH) to appear in."""
    enable_lmq: bool = False
    """``%LMQ%`` names are light message queues: topics and groups that need no configuration."""
    max_lmq_consume_queue_num: int = field(default=20_000, metadata=LATER | _COUNT)
    disk_fall_recorded: bool = field(default=True, metadata=LATER)
    """Keep how far before the end of the log each group reads."""
    enable_consume_queue_ext: bool = False
    """Queue entries lead to units of tags code, store time and bit map beside them."""
    mapped_file_size_consume_queue_ext: int = field(default=48 << 20, metadata={"min": 64})
    bit_map_length_consume_queue_ext: int = field(default=64, metadata={"min": 0})
    """Means nothing: bit maps are as long as the Bloom filter, as in RocketMQ's broker."""
    enable_calc_filter_bit_map: bool = False
    """With enableConsumeQueueExt: each message to a topic with expressions gets a bit map of the
    groups that want it. Sends to such topics leave the fast path."""

    # -- files of the log -------------------------------------------------------------------
    read_only_commit_log_store_paths: str = ""
    """Folders whose files are read and beside which none is made; several joined by ``,``."""
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = field(default=4096, metadata=_BYTES)
    os_page_cache_busy_time_out_mills: int = field(default=1_000, metadata=LATER | _BYTES)
    use_reentrant_lock_when_put_message: bool = True
    """Means nothing: there is one writer, so there is no lock to choose."""

    # -- flush ------------------------------------------------------------------------------
    flush_commit_log_timed: bool = field(default=True, metadata=LATER)
    """The asynchronous flush sleeps its interval through; false: a put wakes it."""
    transient_store_pool_enable: bool = False
    """Records go to memory of the broker's own first, and to the files when they are committed;
    with ASYNC_FLUSH and not on a slave. Then no topic has a window of keys
    (``dedup.window.ms``)."""
    transient_store_pool_size: int = field(default=5, metadata={"min": 2})
    """Buffers, each as large as a file of the log. Sends are refused while none is free."""
    fast_fail_if_no_buffer_in_store_pool: bool = False
    """A file for which there is no buffer can't be begun; false: its records go to it directly."""
    commit_interval_commit_log: int = field(default=200, metadata=LATER | _COUNT)
    commit_commit_log_least_pages: int = field(default=4, metadata=LATER | _AMOUNT)
    """Pages of 4 KiB that have to wait for a commit before the thorough interval is over."""
    commit_commit_log_thorough_interval: int = field(default=200, metadata=LATER | _AMOUNT)

    # -- retention --------------------------------------------------------------------------
    delete_when: str = field(default="04", metadata=LIVE)
    """Hours of the day (local time, several joined by ``;``) in which expired files go."""
    file_reserved_time: int = field(default=72, metadata=LIVE | _AMOUNT)
    """Hours that a file of the log is kept after the last write to it."""
    disk_max_used_space_ratio: int = field(default=75, metadata=LIVE | {"min": 0, "max": 100})
    """Fuller than this, expired files go at any hour; taken as 10 to 95."""
    clean_file_forcibly_enable: bool = field(default=True, metadata=LIVE)
    """Whether files go before their time when the disk is nearly full."""
    clean_resource_interval: int = field(default=10_000, metadata=LATER | _COUNT)
    delete_commit_log_files_interval: int = field(default=100, metadata=LATER | _AMOUNT)
    delete_consume_queue_files_interval: int = field(default=100, metadata=LATER | _AMOUNT)
    redelete_hanged_file_interval: int = field(default=120_000, metadata=LATER | _AMOUNT)
    disk_space_warning_level_ratio: float = field(default=0.90, metadata=LIVE)
    """Of 1: fuller than this, writes are refused. A system property in RocketMQ."""
    disk_space_clean_forcibly_ratio: float = field(default=0.85, metadata=LIVE)
    """Of 1: fuller than this, age no longer matters. A system property in RocketMQ."""

    # -- request and reply ------------------------------------------------------------------
    store_reply_message_enable: bool = field(default=True, metadata=LIVE)
    """Replies are stored as well (``<cluster>_REPLY_TOPIC``), whether they arrived or not."""
    reply_thread_pool_queue_capacity: int = field(default=10_000, metadata=LATER | _COUNT)
    """Replies that may be on their way to the clients that asked; more are refused as busy."""

    # -- queues of RocketMQ's thread pools ----------------------------------------------------
    # They mean nothing here, but runtime info shows them, and tools divide by them.
    send_thread_pool_queue_capacity: int = field(default=10_000, metadata=_COUNT)
    pull_thread_pool_queue_capacity: int = field(default=100_000, metadata=_COUNT)
    query_thread_pool_queue_capacity: int = field(default=20_000, metadata=_COUNT)
    end_transaction_pool_queue_capacity: int = field(default=100_000, metadata=_COUNT)

    # -- statistics -------------------------------------------------------------------------
    enable_detail_stat: bool = field(default=True, metadata=LIVE)
    """How long gets took is kept by queue, not only by topic and group."""
    auto_delete_unused_stats: bool = field(default=False, metadata=LIVE)
    """The metrics of a topic or group go when it is deleted."""

    # -- changing settings ------------------------------------------------------------------
    config_black_list: str = field(
        default="configBlackList;brokerConfigPath", metadata={"bytes": 4096}
    )
    """Keys, joined by ``;``, that UPDATE_BROKER_CONFIG may not change."""
    broker_config_path: Path | None = field(default=None, compare=False)
    """Where it writes: the file that was loaded; without one ``config/broker.properties`` in the
    store's folder, which the next start without a file reads."""

    # -- order ------------------------------------------------------------------------------
    rebalance_lock_max_live_time: int = field(default=60_000, metadata=LATER | _COUNT)
    """How long a consumer owns a queue that it locked and did not renew. A system property in
    RocketMQ (rocketmq.broker.rebalance.lockMaxLiveTime)."""

    # -- consumers that are slow, and delayed messages ----------------------------------------
    disable_consume_if_consumer_read_slowly: bool = field(default=False, metadata=LIVE)
    """A group that reads further back than consumerFallbehindThreshold is switched off."""
    consumer_fallbehind_threshold: int = field(default=16 << 30, metadata=LIVE | {"min": 0})
    enable_schedule_message_stats: bool = field(default=True, metadata=LIVE)
    """Deliveries of delayed messages are counted, as gets of the group SCHEDULE_CONSUMER."""

    def __post_init__(self) -> None:
        if not isinstance(self.store_path_root_dir, Path):
            object.__setattr__(self, "store_path_root_dir", Path(self.store_path_root_dir))
        if not isinstance(self.store_path_commit_log, str):
            object.__setattr__(self, "store_path_commit_log", str(self.store_path_commit_log))
        for name in ("broker_ip1", "broker_ip2"):
            if not getattr(self, name).strip():
                object.__setattr__(self, name, _own_host(self.listen_host))
        for check in _CHECKS:
            check(self)
        self.delay_levels_ms  # noqa: B018 - a malformed list must stop the start

    def _warn_of(self, values: Mapping[str, str], where: str) -> None:
        warn_of_other_places(values, self.store_path_root_dir, where)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of ``namesrvAddr``."""
        return split_list(self.namesrv_addr)

    @property
    def config_folder(self) -> Path:
        """Where the JSON tables lie."""
        return self.store_path_root_dir / "config"

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """Where the commit log lies, read-only folders aside, by name; at least one."""
        folders = split_folders(self.store_path_commit_log)
        if not folders:
            return (self.store_path_root_dir / "commitlog",)
        read_only = split_folders(self.read_only_commit_log_store_paths)
        return tuple(Path(each).expanduser() for each in folders if each not in read_only)

    @property
    def bloom_filter(self) -> BloomFilter:
        """What gives each group with an expression its bits."""
        return BloomFilter.create(
            self.max_error_rate_of_bloom_filter, self.expect_consumer_num_use_filter
        )

    @property
    def transfer_bytes_max(self) -> tuple[int, int]:
        """Bytes of messages in one answer to a pull: from memory, from disk."""
        in_memory = self.max_transfer_bytes_on_message_in_memory
        on_disk = self.max_transfer_bytes_on_message_in_disk
        return min(in_memory, TRANSFER_BYTES_MAX), min(on_disk, TRANSFER_BYTES_MAX)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2 and so on; ConfigError: an item is not a number with a unit of s, m,
        h or d.
        """
        return delay_levels_ms(self.message_delay_level)

    def advertised(self, port: int) -> tuple[str, int]:
        """Host and port under which clients reach a broker that listens on ``port``."""
        if self.advertised_address:
            return split_address(self.advertised_address)
        return self.broker_ip1, port

    def grpc_advertised(self) -> str:
        """``host:port`` under which clients reach the port for gRPC; empty: there is none."""
        if not self.grpc_server_port:
            return ""
        return self.grpc_advertised_address or join_address(
            self.advertised(0)[0], self.grpc_server_port
        )

    def store_address(self) -> str:
        """The IP address that clients reach, for the records; ConfigError: a host name that nobody
        knows.
        """
        host, _ = self.advertised(0)
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            key = "advertisedAddress" if self.advertised_address else "brokerIP1"
            raise ConfigError(
                f"{key}: {host!r} can't be resolved ({error.strerror}); "
                "write an IP address that clients reach"
            ) from None
        # Old clients read IPv4 hosts only.
        best = min(found, key=lambda each: each[0] != socket.AF_INET)
        return str(best[4][0])

    def store_settings(self, *, is_slave: bool = False) -> StoreSettings:
        """The part that the store of a master or a slave needs."""
        shared = {each.name for each in dataclasses.fields(StoreSettings)}
        values = {name: getattr(self, name) for name in shared & set(self.__slots__)}
        is_calculated = self.enable_calc_filter_bit_map and self.enable_consume_queue_ext
        values["bit_map_length_consume_queue_ext"] = self.bloom_filter.bits if is_calculated else 0
        values["latency_recorded"] = self.measures
        values["transient_store_pool_enable"] = self.transient_store_pool_enable and not is_slave
        values["store_path_root_dir"] = str(self.store_path_root_dir)
        (
            values["max_transfer_bytes_on_message_in_memory"],
            values["max_transfer_bytes_on_message_in_disk"],
        ) = self.transfer_bytes_max
        read_only = split_folders(self.read_only_commit_log_store_paths)
        for name, folders in (
            ("store_path_commit_log", self.log_folders),
            (
                "read_only_commit_log_store_paths",
                [Path(folder).expanduser() for folder in read_only],
            ),
        ):
            values[name] = PATH_SPLITTER.join(str(folder) for folder in folders)
        return StoreSettings(**values)

    @property
    def settings_file(self) -> Path:
        """Where changed settings are written."""
        return self.broker_config_path or self.kept_file

    @property
    def kept_file(self) -> Path:
        """The same when no file was loaded."""
        return self.config_folder / "broker.properties"


BrokerSettings = Observable[BrokerConfig]
"""The settings in force of a broker that runs. A part that takes these reads some that
are live; one that takes a ``BrokerConfig`` reads only what stays until a restart."""


def _own_host(listen_host: str) -> str:
    try:
        return own_host(listen_host)
    except ValueError as error:
        raise ConfigError(f"listenHost: {error}") from None


def _check_role(config: BrokerConfig) -> None:
    is_slave = config.broker_role == "SLAVE"
    # A controller says which one it is.
    is_free = config.enable_controller_mode
    if is_slave and config.broker_id <= 0 and not is_free:
        raise ConfigError(
            f"brokerId={config.broker_id}: a slave (brokerRole=SLAVE) has an id above 0"
        )
    if not is_slave and config.broker_id != MASTER_ID and not is_free:
        raise ConfigError(
            f"brokerId={config.broker_id}: a master has id 0; brokerRole=SLAVE makes a slave"
        )
    if config.ha_acl_enable and not config.acl_enable:
        raise ConfigError("haAclEnable=true: the accounts are those of aclEnable, so set that, too")
    if config.ha_tls_mode != DISABLED and config.tls_server_mode == DISABLED:
        raise ConfigError(
            f"haTlsMode={config.ha_tls_mode}: the certificate is that of the main port, so "
            "tls.server.mode can't be disabled"
        )
    if config.enable_controller_mode:
        _check_controller_mode(config)
    for name, what in _UNSUPPORTED_SWITCHES.items():
        if getattr(config, name):
            key = {field: key for key, field in setting_keys(BrokerConfig).items()}[name]
            raise ConfigError(f"{key}=true: {what} is not supported yet; leave it false")


def _check_controller_mode(config: BrokerConfig) -> None:
    config.controllers  # noqa: B018 - malformed addresses must stop the start
    if config.ha_acl_enable:
        raise ConfigError(
            "haAclEnable=true: slaves under a controller (enableControllerMode) can't show an "
            "account; name their addresses (haAllowedSlaves)"
        )
    if config.transient_store_pool_enable:
        raise ConfigError(
            "transientStorePoolEnable=true: a broker under a controller (enableControllerMode) may "
            "become a slave, which has no such pool"
        )


def _check_names(config: BrokerConfig) -> None:
    for key, value in (
        ("brokerName", config.broker_name),
        ("brokerClusterName", config.broker_cluster_name),
    ):
        if not _BROKER_NAME.fullmatch(value) or len(value) > TOPIC_CHARACTERS_MAX:
            raise ConfigError(
                f"{key}={value!r}: a topic of that name is made, so only letters, digits and %|_-. "
                f"are allowed, at most {TOPIC_CHARACTERS_MAX}, and not dots alone"
            )


def _check_sizes(config: BrokerConfig) -> None:
    if config.mapped_file_size_consume_queue % ENTRY_BYTES:
        raise ConfigError(
            f"mappedFileSizeConsumeQueue={config.mapped_file_size_consume_queue}: "
            f"must be a multiple of {ENTRY_BYTES}"
        )
    if not config.log_folders:
        raise ConfigError(
            "readOnlyCommitLogStorePaths names every folder of storePathCommitLog; leave one that "
            "new files can be made in"
        )


def _check_addresses(config: BrokerConfig) -> None:
    for key, addresses in (
        ("namesrvAddr", config.name_servers),
        ("advertisedAddress", filter(None, (config.advertised_address,))),
        ("grpcAdvertisedAddress", filter(None, (config.grpc_advertised_address,))),
        ("haMasterAddress", filter(None, (config.ha_master_address,))),
    ):
        for address in addresses:
            try:
                split_address(address)
            except ValueError as error:
                raise ConfigError(f"{key}: {error}") from None
    config.ha_allowed  # noqa: B018 - a malformed list must stop the start
    for key, host in (("brokerIP1", config.broker_ip1), ("brokerIP2", config.broker_ip2)):
        if not _HOST.fullmatch(host) or not is_host(host):
            raise ConfigError(f"{key}: {host!r} is neither an IP address nor a host name")


def _check_retention(config: BrokerConfig) -> None:
    try:
        parse_hours(config.delete_when)
    except ValueError as error:
        raise ConfigError(f"deleteWhen: {error}") from None
    for key, ratio in (
        ("diskSpaceWarningLevelRatio", config.disk_space_warning_level_ratio),
        ("diskSpaceCleanForciblyRatio", config.disk_space_clean_forcibly_ratio),
    ):
        if not 0 < ratio <= 1:
            raise ConfigError(f"{key}={ratio:g}: write a part of 1, such as 0.90")


def _check_ports(config: BrokerConfig) -> None:
    if config.vip_port_enable and 0 < config.listen_port <= 2:
        raise ConfigError(
            f"listenPort={config.listen_port}: the VIP port would be listenPort-2; "
            "choose a greater port or vipPortEnable=false"
        )


_CHECKS = (
    _check_role,
    _check_names,
    _check_sizes,
    _check_addresses,
    _check_ports,
    _check_retention,
)
