"""What a store holds, written down plainly: records in a list, queues as lists of entries.

It knows no file but their sizes, writes nothing and recovers nothing. After a crash it is told how
much of the log is left, and forgets the rest.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from kerolox.message import java_hash
from tests.support.stores.bench import CLUSTER
from tests.support.stores.read_model import QueueReads

__all__ = [
    "BLANK_BYTES",
    "DELAYS_MS",
    "FILLER",
    "LOG_FILE",
    "SCHEDULE_TOPIC",
    "Draft",
    "Queue",
    "QueueKey",
]
__all__ += ["StoreModel", "Stored", "with_cluster"]

LOG_FILE = 16 * 1024
BLANK_BYTES = 8
"""What always remains for the blank that ends a file."""
BLANK_MAGIC = 0xCBD43194
MESSAGE_MAGIC = 0xDAA320A7
FIXED = struct.Struct(">IIIiiqqiq8sq8siqi")
PREPARED, ROLLBACK = 4, 12
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAYS_MS = (1_000, 5_000, 10_000, 30_000)
FILLER = (0, 0x7FFFFFFF, 0)

QueueKey = tuple[str, int]
Entry = tuple[int, int, int]
"""(physical offset, size, tags code)."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A message as it is given to the store."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int = 0
    prepared_offset: int = 0

    @property
    def is_queued(self) -> bool:
        return self.sys_flag & 12 not in (PREPARED, ROLLBACK)

    @property
    def further(self) -> list[QueueKey]:
        """The further queues that it names (multi dispatch)."""
        names = self.properties.get("INNER_MULTI_DISPATCH", "")
        each = names.split(",") if names else []
        return [(name, 0 if name.startswith("%LMQ%") else self.queue_id) for name in each]

    def text(self) -> str:
        return "\x02".join(f"{name}\x01{value}" for name, value in self.properties.items())

    def index_keys(self) -> list[tuple[str, str]]:
        """What it can be found by."""
        if self.sys_flag & 12 == ROLLBACK:
            return []
        unique = self.properties.get("UNIQ_KEY", "")
        words = self.properties.get("KEYS", "").split(" ")
        return [(self.topic, key) for key in (unique, *words) if key]

    def tags_code(self, store_ms: int) -> int:
        if self.topic == SCHEDULE_TOPIC and "DELAY" in self.properties:
            return store_ms + DELAYS_MS[int(self.properties["DELAY"]) - 1]
        return java_hash(self.properties["TAGS"]) if "TAGS" in self.properties else 0


@dataclass(frozen=True)
class Stored:
    """A record of the log."""

    physical: int
    data: bytes
    store_ms: int
    draft: Draft
    places: tuple[tuple[QueueKey, int], ...]
    """Its queues and its offset in each, its own first."""

    @property
    def end(self) -> int:
        return self.physical + len(self.data)

    @property
    def queue_offset(self) -> int:
        return self.places[0][1] if self.places else 0

    def entry(self) -> Entry:
        return self.physical, len(self.data), self.draft.tags_code(self.store_ms)


class Queue:
    """The entries of a queue from offset 0 on; those below ``low`` may be fillers."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.low = 0

    @property
    def high(self) -> int:
        return len(self.entries)

    def first_alive(self, log_min: int) -> int:
        """The offset of the first entry whose record the log has."""
        for offset, entry in enumerate(self.entries):
            if entry != FILLER and entry[0] >= log_min:
                return offset
        return self.high

    def has_alive(self, log_min: int) -> bool:
        return self.first_alive(log_min) < self.high


class _Reads(QueueReads):
    """``getMessage`` over the records of this model."""

    records: dict[int, Stored]

    def record(self, offset: int, size: int) -> bytes | None:
        found = self.records.get(offset) if offset >= self.log_min and size > 0 else None
        return None if found is None else found.data


@dataclass
class StoreModel:
    """The whole store."""

    log_min: int = 0
    end: int = 0
    last_ms: int = 0
    """Store timestamp of the last record: the next one's is not below it."""
    records: dict[int, Stored] = field(default_factory=dict)
    """By physical offset, in the order of the log."""
    queues: dict[QueueKey, Queue] = field(default_factory=dict)

    # -- write ------------------------------------------------------------------------------
    def file_left(self) -> int:
        """Bytes until the end of the log's file."""
        return LOG_FILE - self.end % LOG_FILE

    def add(self, drafts: list[Draft], clock_ms: int) -> list[Stored]:
        """Store messages behind each other in one file; none when no file can hold them."""
        now = max(clock_ms, self.last_ms)
        start = self.end
        for _ in range(2):
            made = self._made(drafts, start, now)
            if start % LOG_FILE + sum(len(each.data) for each in made) + BLANK_BYTES <= LOG_FILE:
                break
            start += LOG_FILE - start % LOG_FILE
        else:
            return []
        self.last_ms = now
        self.end = made[-1].end
        for each in made:
            self._keep(each)
        return made

    def _made(self, drafts: list[Draft], start: int, now: int) -> list[Stored]:
        made: list[Stored] = []
        nexts = {key: queue.high for key, queue in self.queues.items()}
        for draft in drafts:
            text = draft.text()
            places: list[tuple[QueueKey, int]] = []
            if draft.is_queued:
                keys = dict.fromkeys([(draft.topic, draft.queue_id), *draft.further])
                places = [(key, nexts.get(key, 0)) for key in keys]
                nexts |= {key: offset + 1 for key, offset in places}
            if draft.further:
                offsets = ",".join(str(dict(places)[key]) for key in draft.further)
                text += f"\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}"
            data = record_bytes(draft, text.encode(), places[0][1] if places else 0, start, now)
            made.append(Stored(start, data, now, draft, tuple(places)))
            start += len(data)
        return made

    def _keep(self, record: Stored) -> None:
        self.records[record.physical] = record
        for key, offset in record.places:
            queue = self.queues.setdefault(key, Queue())
            assert queue.high == offset
            queue.entries.append(record.entry())

    # -- delete -----------------------------------------------------------------------------
    def delete_topic(self, topic: str) -> int:
        """The topic's queues are gone; how many of them had entries."""
        gone = [key for key in self.queues if key[0] == topic]
        return sum(self.queues.pop(key).high > 0 for key in gone)

    def drop_file(self) -> None:
        """The log now begins with its next file."""
        self.log_min = self.log_min - self.log_min % LOG_FILE + LOG_FILE
        self.records = {at: each for at, each in self.records.items() if at >= self.log_min}

    def correct(self, key: QueueKey) -> None:
        """A queue begins with the first entry whose record is there."""
        queue = self.queues[key]
        queue.low = queue.first_alive(self.log_min)

    # -- crash ------------------------------------------------------------------------------
    def left_of(self, bytes_at: bytes, start: int) -> int:
        """The end of the log when its bytes from ``start`` on are these: that of the last record
        before the first that differs."""
        at = self.log_min
        while at < self.end:
            record = self.records.get(at)
            data = blank(at) if record is None else record.data
            if at + len(data) > start and bytes_at[at - start :][: len(data)] != data:
                return at
            at = at + LOG_FILE - at % LOG_FILE if record is None else record.end
        return at

    def cut(self, end: int) -> None:
        """Forget what was behind ``end``."""
        self.end = end
        self.records = {at: each for at, each in self.records.items() if at < end}
        for queue in self.queues.values():
            while queue.entries and queue.entries[-1][0] >= end:
                queue.entries.pop()
        last = next(reversed(self.records.values()), None)
        self.last_ms = 0 if last is None else last.store_ms

    def reopen(self) -> None:
        """Recovery corrects where each queue begins."""
        for key in self.queues:
            self.correct(key)

    # -- read -------------------------------------------------------------------------------
    def read(self, key: QueueKey, offset: int, wanted: int, codes: set[int] | None) -> object:
        queue = self.queues.get(key) or Queue()
        reads = _Reads(b"", self.log_min, self.end, queue.low, True, queue.entries)
        reads.records = self.records
        return reads.read(offset, wanted, codes)

    def query(self, key: tuple[str, str], begin_ms: int, end_ms: int) -> list[Stored]:
        """Records with a key, stored at a time between, in the order of the log."""
        return [
            each
            for each in self.records.values()
            if key in each.draft.index_keys() and begin_ms <= each.store_ms <= end_ms
        ]

    def live_records(self, key: QueueKey) -> list[Stored]:
        """The records of a queue's entries that the log has."""
        queue = self.queues[key]
        alive = queue.entries[queue.first_alive(self.log_min) :]
        return [self.records[physical] for physical, _size, _code in alive]


def record_bytes(draft: Draft, text: bytes, queue_offset: int, physical: int, now: int) -> bytes:
    """The record of a message; hosts are IPv4."""
    topic = draft.topic.encode()
    size = FIXED.size + len(draft.body) + 1 + len(topic) + 2 + len(text)
    head = FIXED.pack(
        size,
        MESSAGE_MAGIC,
        zlib.crc32(draft.body) & 0x7FFFFFFF,
        draft.queue_id,
        draft.flag,
        queue_offset,
        physical,
        draft.sys_flag,
        draft.born_timestamp,
        draft.born_host,
        now,
        draft.store_host,
        draft.reconsume_times,
        draft.prepared_offset,
        len(draft.body),
    )
    tail = bytes([len(topic)]) + topic + len(text).to_bytes(2, "big") + text
    return head + draft.body + tail


def blank(at: int) -> bytes:
    """What ends a file at ``at``."""
    return struct.pack(">II", LOG_FILE - at % LOG_FILE, BLANK_MAGIC)


def with_cluster(draft: Draft) -> Draft:
    """A message as the hot path stores it."""
    values = {**draft.__dict__, "properties": {**draft.properties, "CLUSTER": CLUSTER}}
    return Draft(**values)
