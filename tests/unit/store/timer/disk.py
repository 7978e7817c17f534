"""A store in memory that the timer's steps read and write: it can crash at each write, and lose
what was not flushed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kerolox.message import PropertyKey
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.store.timer.checkpoint import decode_checkpoint
from kerolox.store.timer.log import TimerUnit, unit_at
from kerolox.store.timer.machine import Timer
from kerolox.store.timer.puts import (
    ODD_NAMES,
    AsItIs,
    ForTimer,
    TimerSettings,
    decide_put,
    notes,
    out_ms,
    real_place,
)
from kerolox.store.timer.recovery import Recovered, TimerFiles, recover
from kerolox.store.timer.steps import (
    ENTRY_PROPERTIES,
    Append,
    Deliver,
    Delivered,
    Entry,
    Hold,
    Pause,
    Put,
    PutResult,
    ReadChain,
    ReadCopied,
    ReadCopies,
    ReadDeletes,
    ReadEntries,
    ReadFile,
    ReadMessage,
    ReadMoments,
    ReadQueueOffset,
    ReadUnits,
    Request,
    Step,
    Truncate,
)
from kerolox.store.timer.wheel import TimerWheel, wheel_bytes

SETTINGS = TimerSettings(
    max_delay_sec=60, roll_window_slots=9, log_file_bytes=5 * 52 + 20, slots=80
)
"""A wheel of 160 seconds, and files of 5 units."""
RECORD_BYTES = 100
NOW = 1_700_000_000_000


class Crash(Exception):
    """The process is killed."""


class Record(NamedTuple):
    topic: str
    queue_offset: int
    properties: dict[str, str]
    stored_ms: int
    source: int = -1
    """Offset of the record that it is a copy of."""


@dataclass
class Disk:
    """Files, and the process that has them."""

    settings: TimerSettings = SETTINGS
    now_ms: int = NOW
    records: list[Record] = field(default_factory=list)
    """The commit log; the offset of one is its index times :data:`RECORD_BYTES`."""
    log: dict[int, bytearray] = field(default_factory=dict)
    wheel: bytearray = field(default_factory=bytearray)
    checkpoint: bytes | None = None
    flushed: tuple[int, dict[int, bytes], bytes] = (0, {}, b"")
    """Records, timer log and wheel as the disk has them."""
    crash_in: int = -1
    """Writes until the process is killed; negative: never."""
    puts: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    """When which record of a real topic was stored by the timer."""
    put_results: list[PutResult] = field(default_factory=list)
    """How the next puts end, the last one first; then all are done. What is delivered at once stops
    before them."""
    at_once: int = 3
    """Entries and units that one answer gives."""
    retained: int = 0
    """Records before this one are deleted."""

    # -- the process ----------------------------------------------------------------------------
    def start(self, *, is_active: bool = True, is_clean: bool = False) -> Recovered:
        """``is_clean``: after :meth:`stop`."""
        has_wheel = len(self.wheel) == wheel_bytes(self.settings.slots)
        if not has_wheel:
            self.wheel = bytearray(wheel_bytes(self.settings.slots))
        wheel = TimerWheel(self.wheel, self.settings.precision_ms, slots=self.settings.slots)
        checkpoint = None
        if self.checkpoint is not None:
            checkpoint = decode_checkpoint(self.checkpoint)
        files = TimerFiles(
            checkpoint,
            min(self.log, default=0),
            len(self.records) * RECORD_BYTES,
            has_wheel,
            is_clean=is_clean,
        )
        steps = recover(wheel, self.settings, files, now_ms=self.now_ms, is_active=is_active)
        recovered: Recovered = self.run(steps)
        if recovered.why:
            self._keep(recovered.timer)
        return recovered

    def _keep(self, timer: Timer) -> None:
        """Bring what was built again to the disk, as the service does."""
        timer.prepare(0)
        self._write(lambda: self._flush(log=True))
        self._write(lambda: self._flush(wheel=True))
        found = timer.ready(0)
        assert found is not None
        self._write(lambda: setattr(self, "checkpoint", found.file()))

    def run(self, steps: Step[Any], requests: int = 100_000) -> Any:
        answer: object = None
        for _ in range(requests):
            try:
                answer = self.answer(steps.send(answer))  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
        raise AssertionError("the step does not end")

    def work(self, timer: Timer) -> None:
        """All that there is to do now."""
        timer.move(self.now_ms)
        is_busy = True
        while is_busy:
            while self.run(timer.enqueue()):
                pass
            is_busy = self.run(timer.dequeue())
            timer.move(self.now_ms)

    def stop(self, timer: Timer) -> None:
        """End the step, as the service does."""
        timer.move(self.now_ms)
        while self.run(timer.enqueue()):
            pass
        if not timer.end_step():
            self.now_ms = max(self.now_ms, timer.end_ms)
            timer.move(self.now_ms)
            self.run(timer.dequeue(is_exact=False))
        self.flush(timer)

    def flush(self, timer: Timer) -> None:
        timer.prepare(len(self.records) * RECORD_BYTES)
        self._write(lambda: self._flush(log=True))
        self._write(lambda: self._flush(wheel=True))
        self._write(lambda: self._flush(records=True))
        found = timer.ready(self.flushed[0] * RECORD_BYTES)
        assert found is not None
        self._write(lambda: setattr(self, "checkpoint", found.file()))

    def sync(self) -> None:
        """Bring the commit log to the disk."""
        self._flush(records=True)

    def _flush(self, *, log: bool = False, wheel: bool = False, records: bool = False) -> None:
        old_records, old_log, old_wheel = self.flushed
        self.flushed = (
            len(self.records) if records else old_records,
            {at: bytes(data) for at, data in self.log.items()} if log else old_log,
            bytes(self.wheel) if wheel else old_wheel,
        )

    def lose_power(self, units_kept: int, slots_kept: int) -> None:
        """What was not flushed is gone, but for some bytes of the timer log and slots of the
        wheel (bit masks)."""
        records, log, wheel = self.flushed
        del self.records[records:]
        for at, data in self.log.items():
            old = log.get(at, bytes(len(data)))
            for index in range(0, len(data), 26):
                if not units_kept >> ((at + index) // 26 % 61) & 1:
                    data[index : index + 26] = old[index : index + 26]
        old_wheel = wheel or bytes(len(self.wheel))
        for index in range(0, len(self.wheel), 32):
            if not slots_kept >> (index // 32 % 61) & 1:
                self.wheel[index : index + 32] = old_wheel[index : index + 32]

    # -- producers ------------------------------------------------------------------------------
    def send(self, properties: dict[str, str], topic: str = "T") -> AsItIs | ForTimer:
        found = decide_put(properties, self.settings, topic=topic, queue_id=0, now_ms=self.now_ms)
        assert not isinstance(found, tuple) or isinstance(found, AsItIs | ForTimer), found
        if isinstance(found, ForTimer):
            self.store(TIMER_TOPIC, {**properties, **found.properties})
        else:
            self.puts.append((self.now_ms, topic, properties))
        return found

    def store(self, topic: str, properties: dict[str, str], source: int = -1) -> None:
        queue_offset = sum(record.topic == topic for record in self.records)
        self.records.append(Record(topic, queue_offset, properties, self.now_ms, source))

    # -- requests -------------------------------------------------------------------------------
    def _write(self, write: Callable[[], object]) -> None:
        if self.crash_in == 0:
            raise Crash
        self.crash_in -= 1
        write()
        if self.crash_in == 0:
            raise Crash
        self.crash_in -= 1

    def answer(self, request: Request) -> object:
        match request:
            case ReadEntries(queue_offset, count):
                return self._entries(queue_offset)[: min(count, self.at_once)]
            case ReadMessage(offset, _):
                record = self._record(offset)
                return None if record is None else record.properties
            case ReadQueueOffset(offset, _):
                record = self._record(offset)
                is_timer = record is not None and record.topic == TIMER_TOPIC
                return record.queue_offset if record is not None and is_timer else None
            case ReadUnits(positions):
                return [*map(self._unit, positions)]
            case ReadChain(position, begin, count):
                return self._chain(position, begin, min(count, self.at_once))
            case ReadMoments(offsets):
                return [*map(self._moment, offsets)]
            case ReadFile(position):
                return self.log.get(position)
            case Append(position, data):
                self._write(lambda: self._append(position, data))
            case Truncate(end):
                self._write(lambda: self._truncate(end))
            case Deliver():
                return self._deliver(request)
            case Put():
                return self._put(request)
            case ReadCopies(topic, unique_key):
                return {each.source for each in self._indexed(topic, unique_key)}
            case ReadCopied(offsets):
                return {offset for offset in offsets if self._is_copied(offset)}
            case ReadDeletes(unique_key):
                found = self._indexed(TIMER_TOPIC, unique_key)
                return {each.properties.get(PropertyKey.TIMER_DELETES) for each in found}
            case Hold() | Pause():
                pass
        return None

    def _is_copied(self, offset: int) -> bool:
        record = self._record(offset)
        real = None if record is None else real_place(record.properties)
        if record is None or real is None:
            return False
        key = record.properties.get(PropertyKey.UNIQUE_KEY, "")
        copies = [*self._indexed(real.topic, key), *self._indexed(TIMER_TOPIC, key)]
        return any(each.source == offset for each in copies)

    def _record(self, offset: int) -> Record | None:
        index = offset // RECORD_BYTES
        return self.records[index] if self.retained <= index < len(self.records) else None

    def _indexed(self, topic: str, unique_key: str) -> list[Record]:
        return [
            each
            for each in self.records
            if each.topic == topic and each.properties.get(PropertyKey.UNIQUE_KEY) == unique_key
        ]

    def _entries(self, queue_offset: int) -> list[Entry]:
        return [
            Entry(
                record.queue_offset,
                index * RECORD_BYTES,
                RECORD_BYTES,
                {k: v for k, v in record.properties.items() if k in ENTRY_PROPERTIES},
            )
            for index, record in enumerate(self.records)
            if record.topic == TIMER_TOPIC
            and index >= self.retained
            and record.queue_offset >= queue_offset
        ]

    def _moment(self, offset: int) -> int | None:
        record = self._record(offset)
        if record is None:
            return None
        if found := record.properties.get(PropertyKey.TIMER_DELIVER):
            return int(found)
        found = record.properties.get(PropertyKey.TIMER_DELAY)
        # One that was stored again does not tell when its delay began.
        if PropertyKey.TIMER_ROLL_TIMES in record.properties:
            return None
        return None if found is None else record.stored_ms + int(found)

    def _unit(self, position: int) -> TimerUnit | None:
        at = position % self.settings.log_file_bytes
        data = self.log.get(position - at)
        return None if data is None else unit_at(data, at, position)

    def _chain(self, position: int, begin: int, count: int) -> list[tuple[int, TimerUnit | None]]:
        found: list[tuple[int, TimerUnit | None]] = []
        while position >= begin and len(found) < count:
            unit = self._unit(position)
            found.append((position, unit))
            position = -1 if unit is None else unit.previous
        return found

    def _deliver(self, request: Deliver) -> Delivered:
        """As the kernel copies records: up to one that is not plain."""
        topics: Counter[str] = Counter()
        if self._entries(request.queue_end):
            return Delivered(0, topics, has_news=True)
        for offset, enqueued_ms in zip(request.offsets, request.enqueued_ms, strict=True):
            record = self._record(offset)
            if record is None or not set(ODD_NAMES).isdisjoint(record.properties):
                break
            moment, real = out_ms(record.properties), real_place(record.properties)
            is_odd = record.properties.get(PropertyKey.UNIQUE_KEY) in request.odd_keys
            if moment is None or real is None or moment >= request.before_ms or is_odd:
                break
            if self.put_results:
                break
            noted = {**record.properties, **notes(enqueued_ms, request.now_ms)}
            put = Put(ReadMessage(offset, RECORD_BYTES), real.topic, real.queue_id, noted)
            self._put(put)
            topics[real.topic] += 1
        return Delivered(topics.total(), topics)

    def _append(self, position: int, data: bytes) -> None:
        file_bytes = self.settings.log_file_bytes
        at = position % file_bytes
        file = self.log.setdefault(position - at, bytearray(file_bytes))
        assert at + len(data) <= file_bytes
        assert not any(file[at:]), "a unit is written over another one"
        file[at : at + len(data)] = data

    def _truncate(self, end: int) -> None:
        for start, data in list(self.log.items()):
            if start >= end:
                del self.log[start]
            elif end < start + len(data):
                data[end - start :] = bytes(start + len(data) - end)

    def _put(self, put: Put) -> PutResult:
        result = self.put_results.pop() if self.put_results else PutResult.DONE
        if result is PutResult.DONE:
            self._write(lambda: self._store(put))
        return result

    def _store(self, put: Put) -> None:
        properties = dict(put.properties)
        self.store(put.topic, properties, put.message.offset)
        if put.topic != TIMER_TOPIC:
            assert properties[PropertyKey.REAL_TOPIC] == put.topic
            self.puts.append((self.now_ms, put.topic, properties))
