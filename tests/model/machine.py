"""The steps: each is taken by a store and by the model, which must agree."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kerolox.inspect.check import check_store
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Batch, Record
from kerolox.message import java_hash
from tests.model.crashes import (
    Tree,
    Wreck,
    kill,
    lose_power,
    read_tree,
    without_dropped_index,
    write_tree,
)
from tests.model.model import (
    BLANK_BYTES,
    DELAYS_MS,
    FILLER,
    LOG_FILE,
    SCHEDULE_TOPIC,
    Draft,
    Queue,
    QueueKey,
    Stored,
    StoreModel,
    with_cluster,
)
from tests.support.stores.bench import BORN_HOST, NOW, STORE_HOST, Bench, Wire, properties, send
from tests.support.stores.read_model import LIMITS, QUEUE_FILE

__all__ = ["StoreMachine", "machine_of"]

TOPICS = ("T", "Other", "Further", "%LMQ%one")
NEVER_MS = 3_600_000
"""What is flushed is what a step flushes."""
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_FILE,
    "mapped_file_size_consume_queue": QUEUE_FILE,
    "max_hash_slot_num": 32,
    "max_index_num": 64,
    "enable_multi_dispatch": True,
    "enable_lmq": True,
    "message_delay_level": "1s 5s 10s 30s",
    "flush_interval_commit_log": NEVER_MS,
    "flush_commit_log_thorough_interval": NEVER_MS,
    "flush_interval_consume_queue": NEVER_MS,
    "flush_consume_queue_thorough_interval": NEVER_MS,
    **LIMITS,
}
QUERY_MAX = 64
LOG_BYTES_MAX = 14 * LOG_FILE
TAGS = ("a", "b", "größe")
CODES = (None, {java_hash("a")}, {java_hash("b"), java_hash("größe")}, {0}, {5})
"""What reads ask for; 0 are messages without a tag."""

queue_ids = st.integers(0, 2)
topics = st.sampled_from(TOPICS)
varieties = st.integers(0, (1 << 16) - 1)
"""What seeds the parts of a message that matter little."""


class StoreMachine(RuleBasedStateMachine):
    """A store of the first kernel; each time it is opened it may be another one's turn."""

    kernels: tuple[Any, ...]
    folder: Path
    steps = 0
    """Taken by all machines of this class."""

    def __init__(self) -> None:
        super().__init__()
        self.model = StoreModel()
        self.clock = NOW
        self.count = 0
        self.turn = 0
        self.last_append = 0
        """Physical offset of the first record of the last call that appended."""
        self.flushed: Tree = {}
        self.earlier_index: Tree = {}
        """As it was once since the store was opened."""
        self.flushed_end = 0
        self.flushed_ms = 0
        """The clock stays at or behind it."""
        self.flushed_highs: dict[QueueKey, int] = {}
        self.bench: Bench
        self.wire: Wire
        shutil.rmtree(self.folder, ignore_errors=True)
        self._open(clean=True)

    # -- life -------------------------------------------------------------------------------
    @property
    def store(self) -> Any:
        return self.bench.store

    def _open(self, *, clean: bool) -> None:
        self.turn += 1
        kernel = self.kernels[self.turn % len(self.kernels)]
        self.bench = Bench(kernel, self.folder / str(self.turn))
        report = self.bench.open(now=self.clock, **SETTINGS)
        self.wire = self.bench.connect()
        note(f"# {kernel.__name__} {report}")
        assert report.clean == clean
        assert (report.min_offset, report.max_offset) == (self.model.log_min, self.model.end)
        self.model.reopen()
        self._note_index()

    def _note_index(self) -> None:
        self.bench.wait_indexed()
        tree = read_tree(self.bench.path)
        self.earlier_index = {name: each for name, each in tree.items() if "index/" in name}

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remember(self, files: Tree | None = None) -> None:
        """All is on the disk now.

        Time passes: what is stored in the same millisecond can't be told from what was flushed,
        and of that the index may lack keys after a loss of power (so RocketMQ's).
        """
        self.clock = self.flushed_ms = max(self.clock, self.model.last_ms) + 1
        self.store.set_clock(self.clock)
        self.flushed = read_tree(self.bench.path) if files is None else files
        self.flushed_end = self.model.end
        # What recovery wrote is not sure.
        sure = (
            self.flushed_highs if files is not None else dict.fromkeys(self.model.queues, 1 << 62)
        )
        self.flushed_highs = {
            key: min(sure[key], queue.high)
            for key, queue in self.model.queues.items()
            if key in sure
        }

    def _move(self, wreck: Tree) -> None:
        """End the store as it is, and make another folder of what is left of it."""
        self.store.close()
        shutil.rmtree(self.bench.path)
        write_tree(self.folder / str(self.turn + 1), wreck)

    # -- puts -------------------------------------------------------------------------------
    def _draft(self, topic: str, queue_id: int, size: int, variety: int) -> Draft:
        source = random.Random(variety)
        self.count += 1
        values: dict[str, str] = {}
        if source.random() < 0.7:
            values["KEYS"] = f"k{self.count % 7} u{self.count}"
        if source.random() < 0.5:
            values["UNIQ_KEY"] = f"U{self.count:06d}"
        if source.random() < 0.8:
            values["TAGS"] = source.choice(TAGS)
        return Draft(
            topic=topic,
            queue_id=0 if topic.startswith("%LMQ%") else queue_id,
            body=bytes(source.choices(range(97, 123), k=size)),
            properties=values,
            flag=source.randrange(-5, 5),
            born_timestamp=NOW - source.randrange(1_000),
            born_host=BORN_HOST,
            store_host=STORE_HOST,
            reconsume_times=source.randrange(3),
        )

    def _append(self, draft: Draft, topic: bytes | None = None) -> Any:
        return self.store.append(
            Record(
                topic or draft.topic.encode(),
                draft.queue_id,
                draft.flag,
                draft.sys_flag,
                draft.born_timestamp,
                draft.born_host,
                draft.store_host,
                draft.reconsume_times,
                draft.prepared_offset,
                draft.body,
                draft.text().encode(),
            )
        )

    def _put(self, draft: Draft) -> None:
        got = tuple(self._append(draft))
        stored = self.model.add([draft], self.clock)
        assert stored, "too large for a file, and the store took it"
        [record] = stored
        size = len(record.data)
        assert got == (0, record.physical, record.queue_offset, size, record.store_ms)
        self.last_append = record.physical

    @rule(
        topic=topics,
        queue_id=queue_ids,
        size=st.sampled_from((0, 1, 50, 50, 400, 3_000)),
        variety=varieties,
    )
    def put(self, topic: str, queue_id: int, size: int, variety: int) -> None:
        """A message."""
        self._put(self._draft(topic, queue_id, size, variety))

    @rule(queue_id=queue_ids, count=st.integers(1, 120), variety=varieties)
    def put_many(self, queue_id: int, count: int, variety: int) -> None:
        """Many small ones, for queues of several files."""
        for number in range(count):
            self._put(self._draft("T", queue_id, 3, variety + number))

    @rule(queue_id=queue_ids, names=st.sampled_from(("Further", "%LMQ%one", "%LMQ%one,Further")))
    def put_further(self, queue_id: int, names: str) -> None:
        """A message of several queues."""
        draft = self._draft("T", queue_id, 20, queue_id)
        draft.properties["INNER_MULTI_DISPATCH"] = names
        self._put(draft)

    @rule(kind=st.sampled_from((4, 8, 12)), variety=varieties)
    def put_transaction(self, kind: int, variety: int) -> None:
        """A half message, a committed one, a rollback."""
        draft = self._draft("T", 1, 30, variety)
        changes = {"sys_flag": kind, "prepared_offset": 0 if kind == 4 else 17}
        self._put(Draft(**{**draft.__dict__, **changes}))

    @rule(level=st.integers(1, 4))
    def put_delayed(self, level: int) -> None:
        """A message that waits for its time."""
        draft = self._draft(SCHEDULE_TOPIC, level - 1, 10, level)
        draft.properties.update(REAL_TOPIC="T", REAL_QID="0", DELAY=str(level))
        self._put(draft)

    @rule(topic=topics, queue_id=queue_ids, count=st.integers(1, 30), variety=varieties)
    def put_batch(self, topic: str, queue_id: int, count: int, variety: int) -> None:
        """A batch, all in one file."""
        first = self._draft(topic, queue_id, 5, variety)
        sizes = random.Random(variety).choices((0, 5, 400), k=count)
        drafts = [self._draft(topic, queue_id, size, variety) for size in sizes]
        same = {"born_timestamp": first.born_timestamp, "reconsume_times": first.reconsume_times}
        drafts = [Draft(**{**each.__dict__, **same}) for each in drafts]
        got = self.store.append_batch(
            Batch(
                topic.encode(),
                first.queue_id,
                0,
                first.born_timestamp,
                first.born_host,
                first.store_host,
                first.reconsume_times,
                [(each.flag, each.body, each.text().encode()) for each in drafts],
            )
        )
        stored = self.model.add(drafts, self.clock)
        if not stored:
            assert got[0] == PutMessageStatus.MESSAGE_ILLEGAL
            return
        assert got[:2] == (0, [each.physical for each in stored])
        assert got[2:] == (stored[0].queue_offset, stored[-1].end, stored[0].store_ms)
        self.last_append = stored[0].physical

    @rule(sizes=st.lists(st.sampled_from((1, 3, 700)), min_size=1, max_size=20), variety=varieties)
    def send(self, sizes: list[int], variety: int) -> None:
        """Requests of one chunk, by the hot path."""
        drafts = []
        for number, size in enumerate(sizes):
            draft = self._draft("T", number % 4, size, variety + number)
            values = {**draft.__dict__, "flag": 0, "reconsume_times": 0, "born_timestamp": NOW - 5}
            drafts.append(Draft(**values))
        answers = self.wire.ask(
            *(send(each.body, e=each.queue_id, i=properties(**each.properties)) for each in drafts)
        )
        stored: list[Stored] = []
        for each in drafts:
            stored += self.model.add([with_cluster(each)], self.clock)
        told = [int(answer.ext_fields["queueOffset"]) for answer in answers]
        assert told == [each.queue_offset for each in stored]
        self.last_append = stored[0].physical

    @rule(left=st.integers(-3, 130), variety=varieties)
    def fill_up(self, left: int, variety: int) -> None:
        """A message that leaves so many bytes of the log's file behind the blank's."""
        draft = self._draft("T", 0, 0, variety)
        [empty] = StoreModel().add([draft], 0)
        size = self.model.file_left() - BLANK_BYTES - left - len(empty.data)
        if 0 <= size < LOG_FILE - BLANK_BYTES - len(empty.data):
            self._put(Draft(**{**draft.__dict__, "body": b"f" * size}))

    @rule(kind=st.sampled_from(("body", "file", "properties", "topic")))
    def put_what_can_not_be(self, kind: str) -> None:
        """Refused, and nothing changes."""
        draft = self._draft("T", 0, LOG_FILE if kind == "file" else 10, 1)
        changes: dict[str, Any] = {}
        if kind == "body":
            changes = {"body": bytes(4 * 1024 * 1024 + 1)}
        if kind == "properties":
            changes = {"properties": {"TAGS": "x" * 32_767}}
        got = self._append(
            Draft(**{**draft.__dict__, **changes}), b"a/b" if kind == "topic" else None
        )
        is_long = kind == "properties"
        status = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED if is_long else 0
        assert tuple(got) == (status or PutMessageStatus.MESSAGE_ILLEGAL, 0, 0, 0, 0)

    @rule(step_ms=st.sampled_from((1, 700, 1_000, 5_000, 60_000, -2_000)))
    def pass_time(self, step_ms: int) -> None:
        """The clock moves, and at times back, but not to the millisecond of what was flushed."""
        self.clock = max(self.clock + step_ms, self.flushed_ms)
        self.store.set_clock(self.clock)

    # -- flush, stop, crash -----------------------------------------------------------------
    @rule()
    def flush(self) -> None:
        """All is brought to the disk."""
        assert self.store.flush() == self.model.end
        assert self.store.flushed_offset == self.model.end
        self._note_index()
        self._remember()

    @rule()
    def stop(self) -> None:
        """A clean stop; ``kerolox store check`` finds nothing; the store is opened again."""
        self.store.close()
        self._check()
        self.bench.path.rename(self.folder / str(self.turn + 1))
        self._open(clean=True)
        self._remember()
        self.read_everything()

    def _check(self) -> None:
        # Of few entries the shape of an index can't be told.
        options = StoreOptions(
            multi_dispatch=True,
            lmq=True,
            delays_ms=DELAYS_MS,
            index_slots=SETTINGS["max_hash_slot_num"],
            index_entries=SETTINGS["max_index_num"],
        )
        report = check_store(StorePlaces.find(str(self.bench.path), options))
        assert list(map(str, report.findings.kept)) == []
        assert report.records == len(self.model.records)

    @rule(lost=st.integers(0, 400), late_index=st.booleans())
    def kill(self, lost: int, late_index: bool) -> None:
        """The process dies, perhaps in its last append, of which the last bytes lack."""
        self.bench.wait_indexed()
        now = read_tree(self.bench.path)
        first = max(self.last_append, self.flushed_end)
        cut = max(first, self.model.end - lost) if first < self.model.end else self.model.end
        wreck = kill(now, cut, self.earlier_index if late_index else None)
        self._lose(wreck)

    @rule(variety=varieties, is_sent_again=st.booleans())
    def lose_power(self, variety: int, is_sent_again: bool) -> None:
        """The machine dies: of what was not flushed anything may be left. Messages of the same size
        may come in the place of those that were lost, with other tags and times."""
        self.bench.wait_indexed()
        now = read_tree(self.bench.path)
        wreck = lose_power(now, self.flushed, self.flushed_end, variety)
        before = list(self.model.records.values())
        self._lose(wreck, is_power_lost=True)
        if is_sent_again:
            for each in [each for each in before if each.physical >= self.model.end]:
                self._put(with_other_code(each.draft))

    def _lose(self, wreck: Wreck, *, is_power_lost: bool = False) -> None:
        model = self.model
        end = model.left_of(wreck.log, wreck.start)
        assert end >= self.flushed_end
        if end < model.end:
            model.cut(end)
        self._move(wreck.files)
        if not model.records:
            # Nothing says what time it was.
            self.clock += 100_000
        self._open(clean=False)
        if is_power_lost:
            self._adopt_empty_queues(self.flushed_highs)
            # What is left is on the disk; what recovery wrote may be lost again.
            self._remember(without_dropped_index(wreck.files, self.earlier_index))
        self.read_everything()

    def _adopt_empty_queues(self, sure: dict[QueueKey, int]) -> None:
        """A queue without a record in the log may have lost its place with its files, and one
        that was deleted for that may be back."""
        model = self.model
        found = {(each[0], each[1]): (each[2], each[3]) for each in self.store.queues()}
        for key in found.keys() | model.queues.keys():
            queue = model.queues.setdefault(key, Queue())
            if queue.has_alive(model.log_min):
                continue
            low, high = found.get(key, (0, 0))
            assert low == high, f"{key} has entries, and the log no record of it"
            # More: entries that were cut after the loss of power before, and came back.
            assert high >= min(sure.get(key, 0), queue.high), key
            queue.entries, queue.low = [FILLER] * high, high

    # -- delete -----------------------------------------------------------------------------
    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        """A topic's queues go, and stay away."""
        for key in [key for key in self.flushed_highs if key[0] == topic]:
            del self.flushed_highs[key]
        assert self.store.delete_queues(topic) >= self.model.delete_topic(topic)

    @precondition(lambda self: self.model.end - self.model.log_min > LOG_FILE)
    @rule(expire=st.booleans())
    def drop_log_file(self, expire: bool) -> None:
        """The oldest file of the log goes, which was flushed long before."""
        if self.model.log_min - self.model.log_min % LOG_FILE + LOG_FILE > self.flushed_end:
            self.flush()
        path = self.store.drop_log_file()
        assert int(Path(path).name) == self.model.log_min - self.model.log_min % LOG_FILE
        Path(path).unlink()
        self.model.drop_file()
        if expire:
            self.expire(8)

    @precondition(lambda self: self.model.end - self.model.log_min > LOG_BYTES_MAX)
    @rule()
    def drop_many(self) -> None:
        """The disk is full."""
        while self.model.end - self.model.log_min > 3 * LOG_FILE:
            self.drop_log_file(expire=False)
        self.expire(100)

    @rule(most=st.integers(0, 3))
    def expire(self, most: int) -> None:
        """What queues and index know of files that are gone goes."""
        for topic, queue_id in self.model.queues:
            assert self.store.expire_queue(topic, queue_id, most) <= most
            self.model.correct((topic, queue_id))
        for path in self.store.expire_index():
            Path(path).unlink()

    @rule()
    def delete_unused_queues(self) -> None:
        """Queues of which the log has nothing go (``cleanExpiredConsumerQueue``)."""
        for key, queue in list(self.model.queues.items()):
            if queue.high and not queue.has_alive(self.model.log_min):
                assert self.store.delete_queue(*key)
                del self.model.queues[key]
                self.flushed_highs.pop(key, None)

    # -- read -------------------------------------------------------------------------------
    @rule(
        topic=topics,
        queue_id=queue_ids,
        at=st.integers(-2, 40),
        wanted=st.sampled_from((1, 7, 32, 900)),
        codes=st.sampled_from(CODES),
    )
    def read(self, topic: str, queue_id: int, at: int, wanted: int, codes: set[int] | None) -> None:
        """``getMessage`` anywhere."""
        queue = self.model.queues.get((topic, queue_id))
        low, high = (0, 0) if queue is None else (queue.low, queue.high)
        offset = high + 2 - at if at > 20 else low + at
        given = None if codes is None else sorted(codes)
        got = tuple(self.store.read(topic, queue_id, offset, wanted, given))
        assert got == self.model.read((topic, queue_id), offset, wanted, codes)

    @rule(at=st.integers(0, 1 << 20))
    def look_up(self, at: int) -> None:
        """Records by physical offset; between them there is none."""
        model = self.model
        if model.records:
            record = list(model.records.values())[at % len(model.records)]
            assert self.store.lookup(record.physical) == record.data
            assert self.store.lookup(record.physical + 1) is None
        assert self.store.lookup(model.log_min - 1 - at % 100) is None
        assert self.store.lookup(model.end + at % 10) is None

    @rule(topic=topics, key=st.integers(0, 8), at=st.integers(1, 1 << 20))
    def query(self, topic: str, key: int, at: int) -> None:
        """Records by key, of all times and of some."""
        name = f"k{key}" if key < 7 else f"u{self.count - at % 50}"
        name = f"U{self.count - at % 50:06d}" if key == 8 else name
        wanted = self.model.query((topic, name), 0, self.clock * 2)[-QUERY_MAX:]
        most = at % 70 + 1
        found = self.store.query_key(topic, name, most, 0, self.clock * 2)[2]
        assert found == b"".join(each.data for each in wanted[-most:])
        begin = NOW + at % max(self.clock - NOW, 1)
        end = begin + 10_000
        # The index knows seconds since the first record of its file.
        sure = self.model.query((topic, name), begin + 999, end)
        possible = self.model.query((topic, name), begin, end + 999)
        found = self.store.query_key(topic, name, QUERY_MAX, begin, end)[2]
        if len(possible) <= QUERY_MAX:
            assert all(each.data in found for each in sure)
        rest = found
        for each in possible:
            rest = rest.replace(each.data, b"", 1)
        assert rest == b""

    @rule(topic=topics, queue_id=queue_ids, at=st.integers(0, 1 << 16))
    def search_by_time(self, topic: str, queue_id: int, at: int) -> None:
        """``getOffsetInQueueByTime``."""
        queue = self.model.queues.get((topic, queue_id))
        when = NOW - 1_000 + at * 37 % max(self.clock - NOW + 2_000, 1)
        found = self.store.offset_by_time(topic, queue_id, when)
        if queue is None or queue.low >= queue.high:
            assert found == 0
            return
        if queue.low != queue.first_alive(self.model.log_min):
            return
        self._check_time(queue, when, found)

    def _check_time(self, queue: Any, when: int, found: int) -> None:
        """The same time, else the nearest of the two beside it, in the file of the later one."""
        records = self.model.records
        times = {
            offset: records[queue.entries[offset][0]].store_ms
            for offset in range(queue.low, queue.high)
        }
        per_file = QUEUE_FILE // 20
        later = next((offset for offset, time in times.items() if time >= when), None)
        first = (queue.high - 1 if later is None else later) // per_file * per_file
        if later is not None and times[later] == when:
            assert times[found] == when
            return
        before = (later if later is not None else queue.high) - 1
        if later is None or before < max(first, queue.low):
            assert found == (before if later is None else later)
            return
        is_later_nearer = when - times[before] > times[later] - when
        assert found == (later if is_later_nearer else before)

    @rule()
    def read_everything(self) -> None:
        """Every queue, from its first message to its last: entries and records."""
        for (topic, queue_id), queue in self.model.queues.items():
            offset, parts = queue.first_alive(self.model.log_min), []
            for number in range(offset, queue.high):
                entry = self.store.queue_entry(topic, queue_id, number)
                assert entry == queue.entries[number], (topic, queue_id, number)
            while offset < queue.high:
                read = self.store.read(topic, queue_id, offset, 32, None)
                assert read[0] == 0
                parts.append(read[6])
                offset = read[1]
            wanted = b"".join(each.data for each in self.model.live_records((topic, queue_id)))
            assert b"".join(parts) == wanted

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        """Where log and queues begin and end."""
        StoreMachine.steps += 1
        store, model = self.store, self.model
        assert (store.min_physical_offset, store.max_physical_offset) == (model.log_min, model.end)
        for key, queue in model.queues.items():
            assert store.queue_bounds(*key) == (queue.low, queue.high), key
            if queue.has_alive(model.log_min):
                last = queue.entries[-1]
                assert store.queue_end(*key) == last[0] + last[1]
                assert store.queue_entry(*key, queue.high - 1) == last
        listed = {(each[0], each[1]) for each in store.queues() if each[3] > 0}
        assert listed == {key for key, queue in model.queues.items() if queue.high > 0}


def with_other_code(draft: Draft) -> Draft:
    """The message with another tag and delay, of its size."""
    values = {**draft.__dict__, "properties": dict(draft.properties)}
    for name, others in (("TAGS", {"a": "b", "b": "a"}), ("DELAY", {"1": "2", "2": "1"})):
        value = draft.properties.get(name, "")
        if value in others:
            values["properties"][name] = others[value]
    return Draft(**values)


def machine_of(kernels: tuple[Any, ...], folder: Path) -> type[StoreMachine]:
    """The class of machines for these kernels, taken in turn."""
    return type("Machine", (StoreMachine,), {"kernels": kernels, "folder": folder})
