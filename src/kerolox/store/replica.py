"""The log of a slave: bytes of its master's log, appended as they come.

A record says at which offset of its queue it stands. That is where the queue goes on, or its topic
was deleted and made anew (offset 0), or the queue is new here, since the slave began in the middle
of its master's log. Anything else is a log that is not the one this one is a part of. Of a topic
that was made anew each queue goes by itself: others may have entries of the new life already.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from kerolox.protocol.records import RECORD_BYTES_MIN, RecordView
from kerolox.store.appends import AfterAppend, Appender
from kerolox.store.layout import record_tags_code
from kerolox.store.queues.consume_queue import ConsumeQueue
from kerolox.store.queues.names import check_queue_name
from kerolox.store.recovery.queue_repair import Place, places_of, unit_time_of
from kerolox.store.store_files import StoreFiles


@dataclass(slots=True)
class _Run:
    """New entries of a queue that are not written yet."""

    codes: list[int] = field(default_factory=list)
    count: int = 0
    """Records of its own."""
    size: int = 0


class Replica:
    """Appends what a master sends."""

    def __init__(
        self,
        files: StoreFiles,
        appender: Appender,
        after_append: AfterAppend,
        delete_queue: Callable[[str, int], bool],
    ) -> None:
        """Nothing is written yet. ``delete_queue``: a queue, for all who know it."""
        self._files = files
        self._log = files.log
        self._appender = appender
        self._after_append = after_append
        self._delete_queue = delete_queue
        self._runs: dict[ConsumeQueue, _Run] = {}
        self._unqueued = [0, 0]
        """Records without an entry, and their bytes."""

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        """See ``RawLog.append_log``."""
        files, log = self._files, self._log
        if files.failure:
            raise OSError(errno.EIO, files.failure)
        if files.pool is not None:
            raise ValueError("a slave's log has no transient store pool")
        log.start_raw(offset)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[log.put_raw(rest) :]
                self._take_whole()
        except BaseException:
            # Where that fails, the next opening clears it.
            with contextlib.suppress(OSError):
                log.drop_partial()
            raise
        files.refusal = files.write_error = ""
        return log.max_offset

    def _take_whole(self) -> None:
        """Make the whole records among the bytes that came part of the log."""
        log = self._log
        at = log.end_offset
        latest = self._files.last_store_timestamp
        try:
            while (found := log.raw_at(at)) is not None:
                size, record = found
                if record is not None:
                    self._enter(at, record)
                    latest = max(latest, record.store_timestamp)
                at += size
        except ValueError:
            # Those before it are as good as any.
            self._commit(at, latest)
            raise
        except OSError:
            self._forget()
            raise
        self._commit(at, latest)

    def _forget(self) -> None:
        """Forget the entries that were noted: their records are not part of the log."""
        runs, self._runs, self._unqueued = self._runs, {}, [0, 0]
        self._appender.take_back(list(runs))

    def _enter(self, at: int, record: RecordView) -> None:
        """Note the entries of a record. Whatever can fail comes first."""
        places = places_of(self._files.dispatching, at, record)
        queues = [self._queue_for(place, at) for place in places]
        code = record_tags_code(
            record.topic, record.properties, record.store_timestamp, self._files.delays_ms
        )
        for number, queue in enumerate(queues):
            queue.pending += (at, record.size, code)
            queue.next_offset += 1
            unit_time = unit_time_of(queue, record)
            if queue.ext is not None and unit_time is not None:
                queue.extend(unit_time, (queue.ext.full_map,))
            run = self._runs.setdefault(queue, _Run())
            run.codes.append(code)
            if number == 0:
                run.count += 1
                run.size += record.size
        if not queues:
            self._unqueued[0] += 1
            self._unqueued[1] += record.size

    def _queue_for(self, place: Place, at: int) -> ConsumeQueue:
        """The queue of a place, where its entry comes next."""
        try:
            check_queue_name(place.topic)
            queue = self._files.queues.get(place.topic, place.queue_id)
        except ValueError as error:
            raise ValueError(f"the record at {at} names a queue that can't be: {error}") from None
        if place.queue_offset == 0 and queue.next_offset:
            # Its topic was made anew.
            self._commit(at, self._files.last_store_timestamp)
            self._delete_queue(place.topic, place.queue_id)
            queue = self._files.queues.get(place.topic, place.queue_id)
            queue.began_anew = True
        # Each entry before this one was of a record before this one.
        is_possible = 0 <= place.queue_offset <= at // RECORD_BYTES_MIN
        if is_possible and not queue.starts and not queue.pending:
            queue.begin_at(place.queue_offset)
        if place.queue_offset != queue.next_offset:
            raise ValueError(
                f"the record at {at} is entry {place.queue_offset} of the queue {place.queue_id} "
                f"of {place.topic}, where {queue.next_offset} comes next"
            )
        if queue.ext is not None and queue.pending:
            # Those have their units already.
            self._commit(at, self._files.last_store_timestamp)
        return queue

    def _commit(self, end: int, timestamp: int) -> None:
        """Write the entries that were noted, then let the log end behind their records."""
        files = self._files
        try:
            for queue in self._runs:
                queue.put_entries(queue.pending)
        except OSError:
            self._forget()
            raise
        runs, self._runs = self._runs, {}
        (count, size), self._unqueued = self._unqueued, [0, 0]
        self._log.take_raw(end)
        files.last_store_timestamp = timestamp
        files.written = (end, timestamp)
        self._appender.put_count += count
        self._appender.put_bytes += size
        assert files.queue_flusher is not None
        for queue, run in runs.items():
            first = queue.max_offset
            queue.count_entries(queue.pending)
            queue.pending = []
            self._appender.count(queue, run.count, run.size)
            files.queue_flusher.dirty[queue] = None
            self._after_append(queue, first, len(run.codes), run.codes)
        if files.note_put is not None:
            files.note_put()
