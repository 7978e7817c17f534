"""``kerolox store rebuild``: queues and index made anew from the log, which is the truth.

The new ones are written beside the old ones (``consumequeue.new``, ``index.new``). When they are on
disk the old ones are set aside (``.old``), the new ones get their names, and the old ones are
removed. Whatever stops it before that leaves the store as it was, and a later
rebuild clears up.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kerolox.errors import StoreError
from kerolox.inspect.check_queues import TagCodes, further_entries
from kerolox.inspect.findings import Findings
from kerolox.inspect.index_layout import (
    DEFAULT_SHAPE,
    DEFAULTS,
    IndexShape,
    find_shape,
    read_header,
)
from kerolox.inspect.log_walk import LogWalk, Progress
from kerolox.inspect.places import StorePlaces, is_deleted_topic, offset_files
from kerolox.inspect.queue_writer import QueueWriter
from kerolox.protocol.codes import TRANSACTION_MASK
from kerolox.protocol.records import RecordView
from kerolox.store.appends import UNQUEUED
from kerolox.store.files.checkpoint import Checkpoint, StoreLock
from kerolox.store.files.inventory import Inventory
from kerolox.store.files.mapped_file import sync_path
from kerolox.store.index import Index
from kerolox.store.layout import ENTRY_BYTES
from kerolox.store.queues.multi_dispatch import is_multi_dispatch

if TYPE_CHECKING:
    from kerolox.store.log.commit_log import CommitLog

PENDING_BYTES_MAX = 8 << 20
"""Queue entries that wait in memory, over all queues."""
INDEX_RUN_RECORDS = 512
TRIES_MAX, TRY_SECONDS = 100, 0.01
"""At an index file that is written meanwhile."""


@dataclass
class RebuildReport:
    """What was made."""

    findings: Findings
    """Damage of the log: what it does not have can't be rebuilt."""
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_entries: int = 0
    skipped_topics: dict[str, int] = field(default_factory=dict)
    """Deleted topics, as topics.json and the old queues show, with their records."""
    seconds: float = 0.0


def rebuild_store(
    places: StorePlaces, *, all_topics: bool = False, progress: Progress | None = None
) -> RebuildReport:
    """Make queues and index anew; holds the store's lock meanwhile. After an OSError, something
    can't be read or written, the store is as before.

    ``all_topics``: queues for topics too that ``topics.json`` does not know. ``progress`` is told
    of the bytes of the log that were read. StoreError: a broker holds the store, or the shape of
    its index can't be told.
    """
    started = time.monotonic()
    lock = StoreLock(os.path.join(places.root, "lock"))
    try:
        lock.acquire()
    except BlockingIOError as error:
        raise StoreError(str(error)) from None
    try:
        # What was found before the lock was ours may have been a broker's last moment.
        places = StorePlaces.find(places.root, places.options)
        clear_up(places)
        report = _Rebuild(places, all_topics=all_topics).run(progress)
    finally:
        lock.release()
    report.seconds = time.monotonic() - started
    return report


class _Rebuild:
    def __init__(self, places: StorePlaces, *, all_topics: bool) -> None:
        self._places = places
        self._codes = TagCodes(places.options.delays_ms)
        self._known = None if all_topics else places.known_topics()
        if self._known is not None:
            self._known |= {folder.topic for folder in places.queue_folders()}
        self._over = {} if all_topics else places.deleted_topics()
        self._further = places.options.multi_dispatch is not False
        self._queues: dict[tuple[bytes, int], QueueWriter] = {}
        self._file_bytes = places.options.queue_file_bytes or queue_file_bytes(places)
        self._file_bytes = -(-self._file_bytes // ENTRY_BYTES) * ENTRY_BYTES
        self._pending = 0
        shape = index_shape(places) if places.options.has_index else None
        self._index = Index(new_folder(places.index_folder), *shape) if shape is not None else None
        self._run = _Run()
        self.report = RebuildReport(Findings())

    def run(self, progress: Progress | None) -> RebuildReport:
        places, report = self._places, self.report
        walk = LogWalk(
            [file for file in places.log_files if file.size],
            report.findings,
            is_closed_cleanly=places.is_closed_cleanly,
            progress=progress,
        )
        try:
            os.mkdir(new_folder(places.queue_root))
            for record in walk.records():
                self._queue(record)
                self._keys(record)
            for queue in self._queues.values():
                self._note(queue.finish())
                report.queue_entries += queue.count
            self._follow()
            if self._index is not None:
                os.makedirs(new_folder(places.index_folder), exist_ok=True)
                report.index_entries = sum(file.count - 1 for file in self._index.files)
                self._index.close()
            os.sync()
        except BaseException:
            if self._index is not None:
                self._index.close()
            for folder in (places.queue_root, places.index_folder):
                shutil.rmtree(new_folder(folder), ignore_errors=True)
            raise
        report.records, report.queues = walk.count, len(self._queues)
        has_index = self._index is not None
        swap(places, has_index=has_index)
        write_checkpoint(places.checkpoint_path, walk.last_timestamp, has_index=has_index)
        return report

    def _queue(self, record: RecordView) -> None:
        if record.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return
        topic, offset, size = record.topic, record.physical_offset, record.size
        code = self._codes.of(topic, record.properties, record.store_timestamp)
        if is_deleted_topic(topic, self._known) or offset < self._over.get(topic, 0):
            name = topic.decode("utf-8", "replace")
            self.report.skipped_topics[name] = self.report.skipped_topics.get(name, 0) + 1
        else:
            place = (topic, record.queue_id, record.queue_offset)
            self._put(*place, (offset, size, code, record.store_timestamp))
        if self._further and is_multi_dispatch(record.properties):
            lmq = self._places.options.lmq is not False
            further = further_entries(topic, record.queue_id, record.properties, lmq=lmq)
            for each, number, at in further:
                if offset >= self._over.get(each, 0) and self._is_further(each, number):
                    self._put(each, number, at, (offset, size, code, record.store_timestamp))

    def _is_further(self, topic: bytes, queue_id: int) -> bool:
        """Where the settings are not known, only further queues that are there count."""
        path = self._places.queue_path(topic, queue_id)
        return bool(self._places.options.multi_dispatch) or os.path.isdir(path)

    def _put(
        self, topic: bytes, queue_id: int, queue_offset: int, entry: tuple[int, int, int, int]
    ) -> None:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            name = os.fsdecode(topic)
            if "/" in name or "\0" in name or name in (".", "..") or queue_id < 0:
                text = f"{name!r}, queue {queue_id}, can't be a queue"
                self.report.findings.add(
                    "log", self._places.root, -1, f"record at {entry[0]}: {text}"
                )
                return
            folder = os.path.join(new_folder(self._places.queue_root), name, str(queue_id))
            queue = QueueWriter(folder, f"{name}, queue {queue_id}", self._file_bytes)
            self._queues[topic, queue_id] = queue
        before = queue.pending_bytes
        self._note(queue.put(queue_offset, *entry))
        self._pending += queue.pending_bytes - before
        if self._pending > PENDING_BYTES_MAX:
            for each in self._queues.values():
                each.flush()
            self._pending = 0

    def _note(self, odd: str) -> None:
        if odd:
            self.report.findings.note(odd.strip())

    def _keys(self, record: RecordView) -> None:
        if self._index is None:
            return
        self._run.add(record)
        if len(self._run.records) >= INDEX_RUN_RECORDS:
            self._follow()

    def _follow(self) -> None:
        if self._index is None or not self._run.records:
            return
        self._index.follow(cast("CommitLog", self._run), len(self._run.records) + 1)
        self._run.records.clear()
        if self._index.failure:
            raise StoreError(self._index.failure)


class _Run:
    """A run of records in the place of a log that an index follows."""

    def __init__(self) -> None:
        self.records: list[tuple[int, RecordView]] = []
        self.min_offset = 0
        self.max_offset = 0

    def add(self, record: RecordView) -> None:
        self.records.append((record.physical_offset, record))
        self.max_offset = record.physical_offset + record.size

    def records_from(self, _offset: int, _end: int) -> Iterator[tuple[int, RecordView]]:
        return iter(self.records)


def swap(places: StorePlaces, *, has_index: bool) -> None:
    """Give the new folders their names; the old ones are set aside first, and removed at the end.
    OSError: one can't be renamed; :func:`clear_up` finishes it or takes it back.
    """
    parts = [places.queue_root]
    if has_index:
        parts.append(places.index_folder)
    for folder in (*parts, places.extension_root):
        if os.path.isdir(folder):
            os.rename(folder, _old(folder))
        if folder in parts:
            os.rename(new_folder(folder), folder)
    # It names the index files that were.
    Inventory.remove(places.root)
    sync_path(places.root)
    for folder in (*parts, places.extension_root):
        shutil.rmtree(_old(folder), ignore_errors=True)


def write_checkpoint(path: str, last_timestamp: int, *, has_index: bool) -> None:
    """Note that queues and index are on disk up to the log's newest record."""
    checkpoint = Checkpoint(path)
    if not checkpoint.load():
        checkpoint.physic_timestamp = last_timestamp
    checkpoint.logics_timestamp = last_timestamp
    if has_index:
        checkpoint.index_timestamp = last_timestamp
    checkpoint.flush()


def new_folder(folder: str) -> str:
    """Where the new content of a folder of the store is made."""
    return folder + ".new"


def _old(folder: str) -> str:
    return folder + ".old"


def clear_up(places: StorePlaces) -> None:
    """Finish or take back what an earlier rebuild left when it was stopped."""
    for folder in (places.queue_root, places.index_folder, places.extension_root):
        if os.path.isdir(_old(folder)):
            if os.path.isdir(folder):
                shutil.rmtree(_old(folder))
            else:
                os.rename(_old(folder), folder)
        if os.path.isdir(new_folder(folder)):
            shutil.rmtree(new_folder(folder))


def queue_file_bytes(places: StorePlaces) -> int:
    """Size of the present queue files; RocketMQ's default when there are none."""
    for folder in places.queue_folders():
        for file in offset_files(folder.path)[0]:
            if file.size >= ENTRY_BYTES:
                return file.size
    return DEFAULTS.mapped_file_size_consume_queue


def _shape_of(path: str, hint: IndexShape) -> IndexShape | None:
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        header, size = read_header(descriptor), os.fstat(descriptor).st_size
        return find_shape(descriptor, size, header, hint) if header.entry_count > 1 else None


def index_shape(places: StorePlaces) -> IndexShape:
    """``maxHashSlotNum`` and ``maxIndexNum``: as told, as the present files have, or the defaults.
    StoreError: files are there and do not report.
    """
    options = places.options
    hint = IndexShape(options.index_slots, options.index_entries)
    if hint.slots and hint.entries:
        return hint
    paths = places.index_paths()
    for path in paths:
        # A broker that runs may be between two steps of a write.
        for attempt in range(TRIES_MAX if places.is_in_use else 1):
            time.sleep(TRY_SECONDS * (attempt > 0))
            if shape := _shape_of(path, hint):
                return shape
    if paths:
        raise StoreError(
            f"{paths[0]} does not report how many slots it has; give -c broker.conf with "
            "maxHashSlotNum and maxIndexNum"
        )
    return IndexShape(
        options.index_slots or DEFAULT_SHAPE.slots,
        options.index_entries or DEFAULT_SHAPE.entries,
    )
