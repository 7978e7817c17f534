"""The store as the broker sees it: one folder with log, queues, index, checkpoint.

One thread owns a :class:`MessageStore`, the event loop's. It appends and reads; three threads of
the store flush and index (:mod:`kerolox.store.flush`). What makes an append cheap:

- the records of a whole chunk of frames are joined and written with one ``pwrite`` per log file,
  their entries with one ``pwrite`` per queue (:meth:`MessageStore.append_chunk`);
- a message can be read when its append returns, since queue entries are written with it;
- the index reads the log later, nothing is kept for it.

A store that can't be trusted any more (a flush failed) keeps answering reads,
refuses writes, says why in ``failure``, and leaves the abort file so that the next open recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from kerolox.kernel.status import AppendMessageStatus, PutMessageStatus
from kerolox.kernel.values import Appended, Batch, BatchAppended, Record
from kerolox.protocol.codes import (
    HOST_V6_MASK,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from kerolox.protocol.names import LMQ_PREFIX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from kerolox.protocol.records import CRC_MASK, MESSAGE_MAGIC, body_crc, head_packer
from kerolox.store.layout import record_tags_code
from kerolox.store.queues.consume_queue import ConsumeQueue
from kerolox.store.queues.multi_dispatch import (
    claims_offsets,
    is_multi_dispatch,
    multi_dispatch_queues,
    with_offsets,
)
from kerolox.store.queues.names import check_queue_name, check_topic_name
from kerolox.store.store_files import StoreFiles

UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
"""Transaction types whose records get no queue entry."""

AfterAppend = Callable[[ConsumeQueue, int, int, Sequence[int]], None]
"""(queue, first entry, how many, tags codes): these entries can be read."""

ChunkItem = tuple[ConsumeQueue, int, int, int, int, int, bytes, bytes]
"""(queue, tags code, flag, sys flag, born timestamp ms, reconsume times, body, properties).

A plain tuple, since the fast path makes one per message. ``tags code`` is what the queue entry
holds; ``body`` and ``properties`` are stored as given.
"""


class Appender:
    """Appends records to the files of a store. ``after_append`` is called with a queue, its first
    new entry, how many there are, and their tags codes, once per queue that an append wrote.
    """

    def __init__(self, files: StoreFiles, after_append: AfterAppend) -> None:
        self._files = files
        self._log = files.log
        self._after_append = after_append
        self.store_host = bytes(8)
        """8 or 20 bytes, goes into records of ``append_chunk``."""
        self.put_count = self.put_bytes = 0

    def append_chunk(self, items: Sequence[ChunkItem], born_host: bytes) -> list[tuple[int, int]]:
        """Fast path: store all items with one write per log file and one per queue.

        Gives (physical offset, queue offset) of each item, in order. Shorter than ``items``:
        the store refused the rest, nothing of which was stored (``failure`` says why, when it is
        not that a record does not fit a file). The caller has checked limits: properties <= 32767
        bytes, body <= ``max_message_size``, no transaction bits. Host bits of the sys flag are
        set here. ``log.end_offset`` is the end of the last record afterwards.
        Calls ``after_append`` once per queue.
        """
        results: list[tuple[int, int]] = []
        if self._files.failure or (self._files.pool is not None and self._files.pool.problem):
            return results
        store_host = self.store_host
        pack, host_bits, fixed_bytes = head_packer(born_host, store_host)
        fixed_bytes -= 1
        now = self._files.now_ms()
        log = self._log
        position = log.end_offset
        limit = log.limit
        parts: list[bytes] = []
        touched: list[ConsumeQueue] = []
        kept = 0
        for queue, code, flag, sys_flag, born, reconsume_times, body, properties in items:
            topic_field = queue.topic_field
            body_bytes = len(body)
            properties_bytes = len(properties)
            size = fixed_bytes + body_bytes + len(topic_field) + properties_bytes
            if position + size > limit:
                if parts:
                    if not self._commit(parts, touched, now):
                        return results[:kept]
                    kept = len(results)
                    parts, touched = [], []
                if self._roll(size):
                    return results
                position = log.end_offset
                limit = log.limit
            queue_offset = queue.next_offset
            queue.next_offset = queue_offset + 1
            pending = queue.pending
            if not pending:
                touched.append(queue)
            pending += (position, size, code)
            parts += (
                pack(size, MESSAGE_MAGIC, crc32(body) & CRC_MASK, queue.queue_id, flag,
                     queue_offset, position, sys_flag | host_bits, born, born_host, now, store_host,
                     reconsume_times, 0, body_bytes),
                body, topic_field, properties_bytes.to_bytes(2, "big"), properties,
            )  # fmt: skip
            results.append((position, queue_offset))
            position += size
        if parts and not self._commit(parts, touched, now):
            return results[:kept]
        return results

    def _ensure_space(self, size: int) -> PutMessageStatus:
        """See to it that ``size`` bytes fit the last file of the log; else see ``refusal``."""
        if self._log.space_for(size) == AppendMessageStatus.PUT_OK:
            return PutMessageStatus.PUT_OK
        return self._roll(size)

    def _roll(self, size: int) -> PutMessageStatus:
        """Go on in the next file of the log; what is not PUT_OK has its ``refusal``."""
        log = self._log
        if log.space_for(size) == AppendMessageStatus.MESSAGE_SIZE_EXCEEDED:
            self._files.refusal = (
                f"record of {size} bytes, a file of the commit log takes "
                f"{log.record_bytes_max}; raise mappedFileSizeCommitLog"
            )
            self._files.write_error = self._files.refusal
            return PutMessageStatus.MESSAGE_ILLEGAL
        if log.allocator is not None and log.allocator.is_busy(log.next_start):
            return PutMessageStatus.OS_PAGECACHE_BUSY
        try:
            log.roll()
        except (OSError, ValueError) as error:
            self._files.refusal = self._files.write_error = f"no new file in {log.folders}: {error}"
            return PutMessageStatus.CREATE_MAPEDFILE_FAILED
        return PutMessageStatus.PUT_OK

    def _commit(
        self,
        parts: list[bytes],
        touched: list[ConsumeQueue],
        now: int,
        others: Sequence[ConsumeQueue] = (),
        bit_maps: Sequence[bytes] = (),
    ) -> bool:
        """Write the queue entries that wait in ``touched`` and ``others``, then the records.

        In this order nothing is ever stored that lacks an entry: where a queue can't be written
        nothing is stored, and the next write tries again. (A kill between the two leaves entries
        that point behind the log, which recovery cuts.) Messages count for ``touched`` only.
        """
        log, files = self._log, self._files
        queues = [*touched, *others] if others else touched
        where: object = log.folders
        codes: list[list[int]] = []
        if files.settings.enable_consume_queue_ext:
            # Whoever waits for tags goes by the codes, not by the addresses of the units.
            codes = [queue.pending[2::3] for queue in queues]
            for queue in touched:
                queue.extend(now, bit_maps)
        try:
            for queue in queues:
                where = queue.folder
                queue.put_entries(queue.pending)
            where = log.folders
            log.write(b"".join(parts))
        except OSError as error:
            files.refusal = f"{where} can't be written: {error}; nothing was stored"
            files.write_error = files.refusal
            self._take_back_records(sum(map(len, parts)))
            self.take_back(queues)
            return False
        files.last_store_timestamp = now
        assert files.queue_flusher is not None
        dirty = files.queue_flusher.dirty
        for at, queue in enumerate(queues):
            entries = queue.pending
            first = queue.max_offset
            queue.count_entries(entries)
            queue.pending = []
            count = len(entries) // 3
            if at < len(touched):
                self.count(queue, count, sum(entries[1::3]))
            dirty[queue] = None
            self._after_append(queue, first, count, codes[at] if codes else entries[2::3])
        files.written = (log.end_offset, now)
        files.refusal = files.write_error = ""
        if files.note_put is not None:
            files.note_put()
        return True

    def _take_back_records(self, size: int) -> None:
        try:
            self._log.take_back(size)
        except OSError as error:
            self._files.fail(
                f"{self._log.folders} can't be repaired: {error}; the store takes no more writes, "
                "repair the disk and restart"
            )

    def take_back(self, queues: Sequence[ConsumeQueue]) -> None:
        """Undo what was done for records that were not stored."""
        for queue in queues:
            queue.pending.clear()
            queue.next_offset = queue.max_offset
            try:
                queue.take_back()
            except OSError as error:
                # Behind the queue's end stands an entry of nothing: only recovery can judge it.
                self._files.fail(
                    f"consume queue {queue.folder} can't be repaired: {error}; the store takes no "
                    "more writes, repair the disk and restart"
                )

    def append(self, record: Record) -> Appended:
        """See ``RecordAppender.append``."""
        topic, properties = record.topic, record.properties
        status = self._check(len(record.body), len(properties))
        if status:
            return Appended(status, 0, 0, 0, 0)
        status, properties, queues = self._queues_of(topic, record.queue_id, properties)
        if status:
            return Appended(status, 0, 0, 0, 0)
        queue = queues[0]
        pack, host_bits, fixed_bytes = head_packer(record.born_host, record.store_host)
        size = fixed_bytes + len(record.body) + len(topic) + len(properties)
        if status := self._ensure_space(size):
            return Appended(status, 0, 0, 0, 0)
        now = self._files.now_ms()
        position = self._log.end_offset
        is_queued = record.sys_flag & TRANSACTION_MASK not in UNQUEUED
        queue_offset = queue.next_offset if is_queued else 0
        touched = queues if is_queued else []
        if is_queued:
            code = record.tags_code
            if code is None:
                code = record_tags_code(topic, properties, now, self._files.delays_ms)
            for each in queues:
                each.next_offset += 1
                each.pending += (position, size, code)
        head = pack(
            size, MESSAGE_MAGIC, body_crc(record.body), record.queue_id,
            record.flag, queue_offset, position, record.sys_flag & ~HOST_V6_MASK | host_bits,
            record.born_timestamp, record.born_host, now, record.store_host,
            record.reconsume_times, record.prepared_transaction_offset, len(record.body),
        )  # fmt: skip
        length = len(properties).to_bytes(2, "big")
        parts = [head, record.body, queue.topic_field, length, properties]
        if not self._commit(parts, touched[:1], now, touched[1:], [record.bit_map]):
            return Appended(PutMessageStatus.SERVICE_NOT_AVAILABLE, 0, 0, 0, 0)
        if not is_queued:
            self.count(queue, 1, size)
        return Appended(PutMessageStatus.PUT_OK, position, queue_offset, size, now)

    def append_batch(self, batch: Batch) -> BatchAppended:
        """See ``RecordAppender.append_batch``: all in one file, as RocketMQ stores batches."""
        topic, items = batch.topic, batch.items
        if status := self._check_batch(batch):
            return BatchAppended(status, [], 0, 0, 0)
        try:
            check_topic_name(topic.decode())
            queue = self._files.queues.get(topic.decode(), batch.queue_id)
        except ValueError as error:
            self._files.refusal = str(error)
            return BatchAppended(PutMessageStatus.MESSAGE_ILLEGAL, [], 0, 0, 0)
        pack, host_bits, fixed_bytes = head_packer(batch.born_host, batch.store_host)
        fixed_bytes += len(topic)
        total = sum(fixed_bytes + len(body) + len(text) for _, body, text in items)
        if status := self._ensure_space(total):
            return BatchAppended(status, [], 0, 0, 0)
        now = self._files.now_ms()
        position = self._log.end_offset
        first = queue_offset = queue.next_offset
        sys_flag = batch.sys_flag & ~HOST_V6_MASK | host_bits
        parts: list[bytes] = []
        positions: list[int] = []
        for flag, body, properties in items:
            size = fixed_bytes + len(body) + len(properties)
            code = record_tags_code(topic, properties, now, self._files.delays_ms)
            queue.pending += (position, size, code)
            parts += (
                pack(size, MESSAGE_MAGIC, crc32(body) & CRC_MASK, batch.queue_id, flag,
                     queue_offset, position, sys_flag, batch.born_timestamp, batch.born_host, now,
                     batch.store_host, batch.reconsume_times, 0, len(body)),
                body, queue.topic_field, len(properties).to_bytes(2, "big"), properties,
            )  # fmt: skip
            positions.append(position)
            position += size
            queue_offset += 1
        queue.next_offset = queue_offset
        if not self._commit(parts, [queue], now, bit_maps=batch.bit_maps):
            return BatchAppended(PutMessageStatus.SERVICE_NOT_AVAILABLE, [], 0, 0, 0)
        return BatchAppended(PutMessageStatus.PUT_OK, positions, first, position, now)

    def _check_batch(self, batch: Batch) -> PutMessageStatus:
        items = batch.items
        body_bytes = sum(len(body) for _, body, _text in items)
        status = self._check(body_bytes, max((len(text) for _, _, text in items), default=0))
        if not items or (not status and batch.sys_flag & TRANSACTION_MASK):
            status = PutMessageStatus.MESSAGE_ILLEGAL
        if self._files.settings.enable_multi_dispatch and not status:
            # Batches go to one queue; recovery must not take a client's word for more.
            if any(claims_offsets(text) for _flag, _body, text in items):
                self._files.refusal = "INNER_MULTI_QUEUE_OFFSET is for the store to say"
                status = PutMessageStatus.MESSAGE_ILLEGAL
            elif self._is_over_lmq(((batch.topic.decode(errors="replace"), batch.queue_id),)):
                status = PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        return status

    def count(self, queue: ConsumeQueue, count: int, size: int) -> None:
        """Count records that were stored."""
        queue.put_count += count
        queue.put_bytes += size
        self.put_count += count
        self.put_bytes += size

    def _queues_of(
        self, topic: bytes, queue_id: int, properties: bytes
    ) -> tuple[PutMessageStatus, bytes, list[ConsumeQueue]]:
        """(status, property text to store, queues that get an entry, the record's own first)."""
        try:
            own = (topic.decode(), queue_id)
            if len(topic) > TOPIC_BYTES_MAX:
                check_topic_name(own[0])
            named: list[tuple[str, int]] = []
            settings = self._files.settings
            if settings.enable_multi_dispatch and is_multi_dispatch(properties):
                named = multi_dispatch_queues(properties, queue_id, lmq=settings.enable_lmq)
                for name, _named_id in named:
                    check_queue_name(name)
            if self._is_over_lmq((own, *named)):
                return PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, properties, []
            queues = dict.fromkeys(self._files.queues.get(*each) for each in (own, *named))
        except ValueError as error:
            self._files.refusal = str(error)
            return PutMessageStatus.MESSAGE_ILLEGAL, properties, []
        if named:
            offsets = [self._files.queues.get(*each).next_offset for each in named]
            properties = with_offsets(properties, offsets)
            if len(properties) > PROPERTIES_BYTES_MAX:
                self._files.refusal = (
                    f"properties of {len(properties)} bytes, most is {PROPERTIES_BYTES_MAX}"
                )
                return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, properties, []
        return PutMessageStatus.PUT_OK, properties, list(queues)

    def _is_over_lmq(self, queues: Iterable[tuple[str, int]]) -> bool:
        """These queues would make more light message queues than maxLmqConsumeQueueNum."""
        settings = self._files.settings
        if not (settings.enable_lmq and settings.enable_multi_dispatch):
            return False
        fresh = {
            each
            for each in queues
            if each[0].startswith(LMQ_PREFIX) and each not in self._files.queues.by_key
        }
        if (
            not fresh
            or self._files.queues.lmq_count + len(fresh) <= settings.max_lmq_consume_queue_num
        ):
            return False
        self._files.refusal = (
            f"{self._files.queues.lmq_count} light message queues, maxLmqConsumeQueueNum is "
            f"{settings.max_lmq_consume_queue_num}"
        )
        return True

    def _check(self, body_bytes: int, properties_bytes: int) -> PutMessageStatus:
        if self._files.failure:
            self._files.refusal = self._files.failure
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if self._files.pool is not None and self._files.pool.problem:
            self._files.refusal = self._files.pool.problem
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        if body_bytes > self._files.settings.max_message_size:
            self._files.refusal = f"body of {body_bytes} bytes, maxMessageSize is " + str(
                self._files.settings.max_message_size
            )
            return PutMessageStatus.MESSAGE_ILLEGAL
        if properties_bytes > PROPERTIES_BYTES_MAX:
            self._files.refusal = (
                f"properties of {properties_bytes} bytes, most is {PROPERTIES_BYTES_MAX}"
            )
            return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        return PutMessageStatus.PUT_OK
