"""Settings of the store: the keys of RocketMQ's ``MessageStoreConfig`` that the files depend on."""

from __future__ import annotations

from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS
from kerolox.settings_class import settings_dataclass


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Each field is the same-named key of ``broker.conf`` in snake case, with its default.

    Sizes are bytes, intervals milliseconds, ratios per cent.
    """

    store_path_root_dir: str
    store_path_commit_log: str = ""
    """One folder, or several joined by ``,``; empty: ``commitlog`` below the root."""
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * 20
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    message_index_safe: bool = False
    max_message_size: int = 4 * 1024 * 1024
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5_000
    check_crc_on_recover: bool = True
    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    default_query_max_num: int = 32
    max_msgs_num_batch: int = 64
    long_polling_enable: bool = True
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    """Recovery computes deliver times of delayed records from it."""
    # -- dispatch ---------------------------------------------------------------------------
    enable_multi_dispatch: bool = False
    enable_lmq: bool = False
    max_lmq_consume_queue_num: int = 20_000
    disk_fall_recorded: bool = True
    latency_recorded: bool = False
    """Flushes and deliveries are timed, for metrics."""
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 << 20
    bit_map_length_consume_queue_ext: int = 0
    """Bits of the maps of units that recovery writes, all set, so that they rule nothing out (a
    missing map would not do: RocketMQ takes that of the unit before it then). 0: none."""

    # -- files of the log -------------------------------------------------------------------
    read_only_commit_log_store_paths: str = ""
    """Folders whose files are read and beside which none is made; several joined by ``,``."""
    warm_maped_file_enable: bool = False
    """Every page of a new file is backed before it is needed, and in memory until it is full."""
    flush_least_pages_when_warm_maped_file: int = 4096
    """Pages brought to the disk at a time while a file is warmed up (SYNC_FLUSH only)."""
    os_page_cache_busy_time_out_mills: int = 1_000
    """So long may an append have waited for a file before others are refused."""

    # -- flush ------------------------------------------------------------------------------
    flush_commit_log_timed: bool = True
    """Whether the asynchronous flush sleeps its interval through; else a put wakes it."""
    transient_store_pool_enable: bool = False
    """Records are first written to memory of our own (ASYNC_FLUSH only, and not on a slave)."""
    transient_store_pool_size: int = 5
    """How many buffers, each as large as a file of the log."""
    fast_fail_if_no_buffer_in_store_pool: bool = False
    """A file for which there is no buffer is refused; else its records go to it directly."""
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
