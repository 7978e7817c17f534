"""A store of one folder: its files, and who appends to them and reads from them."""

from __future__ import annotations

from collections.abc import Sequence

from kerolox.kernel.metrics import Latencies, LatencyCounts
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Appended, Batch, BatchAppended, Read, Record
from kerolox.store.appends import AfterAppend, Appender
from kerolox.store.queues.consume_queue import ConsumeQueue
from kerolox.store.reads import StoreReader
from kerolox.store.replica import Replica
from kerolox.store.store_files import StoreFiles


class MessageStore:
    """The parts of a store, and what ``StoreKernel`` says of files and records. ``after_append``:
    as :class:`Appender` has it; None: nobody wants to know.
    """

    def __init__(self, settings: StoreSettings, after_append: AfterAppend | None = None) -> None:
        self.files = files = StoreFiles(settings)
        self.reader = reader = StoreReader(files)
        self.appender = appender = Appender(files, after_append or _ignore)
        self._replica = Replica(files, appender, after_append or _ignore, self.delete_queue)
        # What a part offers as it is costs no call more here.
        self.open = files.open
        self.flush = files.flush
        self.set_clock = files.set_clock
        self.set_full_log_paths = files.set_full_log_paths
        self.set_max_message_size = files.set_max_message_size
        self.request_flush = files.request_flush
        self.notify = files.notify
        self.queue_bounds = files.queues.bounds
        self.queues = files.queues.all
        self.queue_end = files.queues.end
        self.log_files = files.log_files
        self.drop_log_file = files.drop_log_file
        self.expire_queue = files.queues.expire
        self.expire_index = files.expire_index
        self.append_chunk = appender.append_chunk
        self.read_log = files.log.read_raw
        self.lookup = reader.lookup
        self.query_key = reader.query_key
        self.queue_entry = reader.queue_entry
        self.queue_unit = reader.queue_unit
        self.store_time = reader.store_time
        self.offset_by_time = reader.offset_by_time

    def close(self) -> None:
        self.files.close()

    @property
    def notify_fd(self) -> int:
        return self.files.notify_fd

    @property
    def trouble(self) -> str:
        return self.files.trouble

    @property
    def transient_buffers(self) -> int:
        return self.files.transient_buffers

    @property
    def flushed_offset(self) -> int:
        return self.files.flushed_offset

    @property
    def has_failed(self) -> bool:
        return self.files.has_failed

    @property
    def min_physical_offset(self) -> int:
        return self.files.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        return self.files.log.max_offset

    def append(self, record: Record) -> Appended:
        return self.appender.append(record)

    def append_batch(self, batch: Batch) -> BatchAppended:
        return self.appender.append_batch(batch)

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        return self._replica.append_log(offset, data)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        group: str | None = None,
        bits: tuple[int, int, Sequence[int]] | None = None,
    ) -> Read:
        return self.reader.read(topic, queue_id, offset, max_count, tag_codes, bits)

    def delete_queues(self, topic: str) -> int:
        return self.files.delete_queues(topic)

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        return self.files.delete_queue(topic, queue_id)

    def stats(self) -> dict[str, int]:
        files, reader, log = self.files, self.reader, self.files.log
        is_indexed = files.settings.message_index_enable
        behind = log.max_offset - files.index.followed_offset if is_indexed else 0
        puts = self.appender.put_count
        return {
            "put_count": puts,
            "put_bytes": self.appender.put_bytes,
            "get_found": reader.found,
            "get_miss": reader.miss,
            "get_count": reader.count,
            "get_bytes": reader.bytes,
            "get_time_max_ms": reader.time_max_ms,
            "flush_count": 0 if files.log_flusher is None else files.log_flusher.flush_count,
            "held_pulls": 0,
            # At least one: what was indexed again at the opening is counted as well.
            "index_pending": max(1, puts - files.index.followed_count) if behind else 0,
            "dispatch_behind_bytes": max(0, behind),
            "uncommitted_bytes": log.end_offset - log.max_offset,
            "file_wait_ms": 0 if files.allocator is None else files.allocator.waiting_ms,
        }

    def flush_times(self) -> LatencyCounts:
        flusher = self.files.log_flusher
        return (Latencies() if flusher is None else flusher.flush_times).get()

    def topic_stats(self) -> list[tuple[str, int, int]]:
        totals: dict[str, tuple[int, int]] = {}
        for queue in self.files.queues.by_key.values():
            if queue.put_count:
                count, size = totals.get(queue.topic, (0, 0))
                totals[queue.topic] = (count + queue.put_count, size + queue.put_bytes)
        return [(topic, count, size) for topic, (count, size) in totals.items()]


def _ignore(_queue: ConsumeQueue, _first: int, _count: int, _codes: Sequence[int]) -> None:
    """Nobody wants to know."""
