"""The native kernel of Kerolox; the interface is documented in ``kerolox.kernel``."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

from typing_extensions import Buffer

from kerolox.kernel.settings import StoreSettings

__all__ = [
    "Appended",
    "BatchAppended",
    "Connection",
    "QueueBounds",
    "Read",
    "RecoveryReport",
    "Store",
    "decode_columns",
]

class Appended(NamedTuple):
    status: int
    physical_offset: int
    queue_offset: int
    size: int
    store_timestamp: int

class BatchAppended(NamedTuple):
    status: int
    physical_offsets: list[int]
    queue_offset: int
    end_offset: int
    store_timestamp: int

class Read(NamedTuple):
    status: int
    next_offset: int
    min_offset: int
    max_offset: int
    suggest_slave: bool
    count: int  # type: ignore[assignment]
    records: bytes

class QueueBounds(NamedTuple):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int

class RecoveryReport(NamedTuple):
    clean: bool
    min_offset: int
    max_offset: int
    scanned_bytes: int
    truncated_bytes: int
    dispatched: int
    indexed: int
    queues: int
    notes: list[str]
    same_boot: bool
    begin_offset: int
    records: int
    cut_entries: int
    rebuilt_queues: int
    removed_index_files: int
    set_aside_files: int
    duration_ms: int

@final
class Store:
    def __new__(cls, settings: StoreSettings) -> Store: ...
    # life cycle
    def open(self) -> RecoveryReport: ...
    def close(self) -> None: ...
    def flush(self) -> int: ...
    @property
    def notify_fd(self) -> int: ...
    def set_clock(self, now_ms: int | None) -> None: ...
    # policy tables
    def set_identity(
        self, *, cluster: str, region: str, trace_on: bool, store_host: bytes, broker_id: int
    ) -> None: ...
    def set_topic(
        self, topic: str, read_queues: int, write_queues: int, perm: int, fast: bool
    ) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def set_group(self, group: str, fast: bool, slow_broker_id: int) -> None: ...
    def delete_group(self, group: str) -> None: ...
    def set_subscription(
        self, group: str, topic: str, version: int, tag_codes: Sequence[int] | None
    ) -> None: ...
    def delete_subscription(self, group: str, topic: str) -> None: ...
    @property
    def trouble(self) -> str: ...
    def set_writable(self, writable: bool) -> None: ...
    def set_full_log_paths(self, paths: Sequence[str]) -> None: ...
    def set_max_message_size(self, size: int) -> None: ...
    # write
    def append(
        self,
        topic: bytes,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        body: bytes,
        properties: bytes,
        tags_code: int | None = None,
        bit_map: bytes = b"",
    ) -> Appended: ...
    def append_batch(
        self,
        topic: bytes,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        items: Sequence[tuple[int, bytes, bytes]],
        bit_maps: Sequence[bytes] = (),
    ) -> BatchAppended: ...
    # read
    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        group: str | None = None,
        bits: tuple[int, int, Sequence[int]] | None = None,
    ) -> Read: ...
    def lookup(self, physical_offset: int) -> bytes | None: ...
    def query_key(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[int, int, bytes]: ...
    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def queues(self) -> list[QueueBounds]: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...
    def store_time(self, topic: str, queue_id: int, offset: int) -> int: ...
    def queue_entry(
        self, topic: str, queue_id: int, offset: int
    ) -> tuple[int, int, int] | None: ...
    def queue_unit(
        self, topic: str, queue_id: int, offset: int
    ) -> tuple[int, int, bytes] | None: ...
    def delete_queues(self, topic: str) -> int: ...
    def delete_queue(self, topic: str, queue_id: int) -> bool: ...
    def log_files(self) -> list[tuple[str, int, int]]: ...
    def drop_log_file(self) -> str | None: ...
    def expire_queue(self, topic: str, queue_id: int, most: int) -> int: ...
    def expire_index(self) -> list[str]: ...
    def queue_end(self, topic: str, queue_id: int) -> int: ...
    # positions and counters
    @property
    def min_physical_offset(self) -> int: ...
    @property
    def max_physical_offset(self) -> int: ...
    @property
    def transient_buffers(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def has_failed(self) -> bool: ...
    def request_flush(self, physical_offset: int) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def drain_put_times(self) -> list[tuple[int, int]]: ...
    def topic_stats(self) -> list[tuple[str, int, int]]: ...
    def group_stats(self) -> list[tuple[str, str, int, int, int, int, int]]: ...
    def lag(self) -> list[tuple[str, str, int, int]]: ...
    # answers that come later
    def hold(
        self,
        connection_id: int,
        serialize_type: int,
        opaque: int,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        deadline_ms: int,
    ) -> bool: ...
    def stop_holding(self) -> None: ...
    def tick(self, now_ms: int) -> bool: ...
    def drain_ready(self) -> list[tuple[int, bytes]]: ...
    def drain_commits(self) -> list[tuple[str, str, int, int]]: ...

@final
class Connection:
    def __new__(cls, store: Store, connection_id: int, born_host: bytes) -> Connection: ...
    def feed(
        self, data: Buffer, size: int
    ) -> tuple[bytes, list[bytes] | None, int, str | None]: ...
    @property
    def unfinished_bytes(self) -> int: ...
    def close(self) -> None: ...

def decode_columns(
    data: Buffer,
    columns: Sequence[str],
    *,
    start: int = 0,
    body_bytes_max: int = ...,
    odd_body: Callable[[bytes, int, int], bytes | None] | None = None,
) -> tuple[int, dict[str, bytes | tuple[bytes | None, ...]], int]: ...
