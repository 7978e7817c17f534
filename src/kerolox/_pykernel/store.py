"""The pure-Python kernel's store: the files of :class:`MessageStore` plus what the fast path needs.

Here live the tables that the broker pushes, the pulls that wait for records, and the send answers
that wait for disk or slave. Answers that become ready elsewhere than in the feed of their own
connection are collected for ``drain_ready``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kerolox._pykernel import copies as copying
from kerolox._pykernel import halves
from kerolox._pykernel.access import Accounts, accounts_of
from kerolox._pykernel.answers import (
    JSON,
    Identity,
    binary_pull_header,
    json_pull_header,
)
from kerolox._pykernel.holds import (
    ENDED_MS,
    Ended,
    HeldPull,
    HeldPulls,
    OffsetWaits,
    QueueKey,
    Wait,
)
from kerolox._pykernel.lent import NothingLent
from kerolox._pykernel.pending import PendingAnswers
from kerolox._pykernel.properties import TimerRule
from kerolox._pykernel.tables import Tables
from kerolox.kernel.dedup import NO_RECORD, KeyWindow
from kerolox.kernel.held_pulls import PASSED_OVER_MS
from kerolox.kernel.metrics import (
    GROUP_READS_MAX,
    CallCounts,
    Latencies,
    LatencyCounts,
    PutDurations,
)
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.status import GetMessageStatus, pull_code
from kerolox.kernel.values import (
    AccountRules,
    Appended,
    Batch,
    BatchAppended,
    Copied,
    Copies,
    HalfRun,
    HalvesEnded,
    Read,
    Record,
    StreamPosition,
)
from kerolox.protocol.codes import Perm, ResponseCode
from kerolox.protocol.framing import encode_frame
from kerolox.protocol.records import store_time_of
from kerolox.store.message_store import MessageStore
from kerolox.store.queues.consume_queue import ConsumeQueue

ReadResult = tuple[int, int, int, int, bool, int, bytes]
"""The members of ``kernel.Read``."""

ANSWERED_AT_ONCE_MAX = 250
"""Held pulls that are woken, or expire, in one go: some ten milliseconds."""

_NOBODY = -1

_OVERFLOW_ONE = int(GetMessageStatus.OFFSET_OVERFLOW_ONE)
_NO_QUEUE: ReadResult = (int(GetMessageStatus.NO_MESSAGE_IN_QUEUE), 0, 0, 0, False, 0, b"")


class Store(NothingLent, MessageStore):
    """See :class:`kerolox.kernel.store.StoreKernel`."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings, self._after_append)
        self.tables = Tables(self.files.queues.get, long_polling=settings.long_polling_enable)
        self.appender.store_host = self.tables.identity.store_host
        self.writable = True
        self.pending = PendingAnswers(settings)
        self.takes_commits = True
        self.commits: dict[tuple[str, str, int], int] = {}
        self._waking: deque[HeldPull] = deque()
        """Pulls that what arrived may satisfy, and that have not been examined."""
        self.arrived: dict[QueueKey, set[int]] = {}
        """Tags codes of new records in queues with held pulls, until ``wake``."""
        self.held = HeldPulls()
        self._waits = OffsetWaits()
        self.ended = Ended()
        self.accounts: Accounts | None = None
        self._ticked_ms = -1
        self._checked_ms = 0
        """When pulls that were passed over were looked for."""
        self._staged: deque[tuple[int, QueueKey, Sequence[int]]] = deque()
        """(end of the log, queue, tags codes) of what waits in a transient pool."""
        self._ready: list[tuple[int, bytes]] = []
        self.answered_puts = 0
        """Sends that are answered at the end of the current feed."""
        self._put_durations = PutDurations()
        self._delivery_times = Latencies()
        self._group_counts: dict[tuple[str, str, int], list[int]] = {}
        self._fall_behind: dict[tuple[str, str, int], int] = {}

    def close(self) -> None:
        """See ``StoreKernel``. Held pulls are dropped, and every request is slow from now on;
        answers that waited for the last flush are left to ``drain_ready``, others to ``tick``."""
        super().close()
        self.tables.forget()
        self.held = HeldPulls()
        self._waits = OffsetWaits()
        self._staged.clear()
        self.arrived.clear()
        self._waking.clear()

    # -- policy tables ------------------------------------------------------------------------
    def set_identity(
        self, *, cluster: str, region: str, trace_on: bool, store_host: bytes, broker_id: int
    ) -> None:
        if len(store_host) not in (8, 20):
            raise ValueError(f"store_host has {len(store_host)} bytes; a host has 8 or 20")
        identity = Identity(
            cluster=cluster,
            region=region,
            trace_on=trace_on,
            store_host=store_host,
            broker_id=broker_id,
        )
        self.tables.set_identity(identity)
        self.appender.store_host = store_host

    def set_topic(
        self, topic: str, read_queues: int, write_queues: int, perm: int, fast: bool
    ) -> None:
        self.tables.set_topic(topic, (read_queues, write_queues, perm) if fast else None)
        self.tables.set_read_queues(topic, read_queues)
        if not perm & Perm.READ:
            self.ended.topics.add(topic)

    def set_fast_calls(self, topic: str, *, normal: bool, fifo: bool) -> None:
        """No call of gRPC is fast here."""

    def delete_topic(self, topic: str) -> None:
        self.tables.set_topic(topic, None)
        self.tables.set_dedup(topic, 0, by_keys=False)
        self.tables.set_read_queues(topic, 0)
        self.ended.topics.add(topic)
        self._forget_reads(1, topic)

    def set_halves(self, fast: bool) -> None:
        self.tables.set_halves(fast)

    def set_timer(self, precision_ms: int, max_delay_ms: int, broker_name: str) -> None:
        rule = TimerRule(precision_ms, max_delay_ms, broker_name)
        self.tables.set_timer(rule if precision_ms > 0 else None)

    def set_dedup(self, topic: str, window_ms: int, by_keys: bool) -> None:
        self.tables.set_dedup(topic, window_ms, by_keys=by_keys)

    def set_dedup_limit(self, keys: int) -> None:
        self.tables.windows.keys_max = keys

    def find_key(self, topic: str, key: bytes) -> int:
        window = self.tables.windows.get(topic)
        first = None if window is None else window.find(key)
        data = None if first is None else self.lookup(first)
        if window is None or first is None or data is None:
            return NO_RECORD
        is_over = store_time_of(data) <= self.files.now_ms() - window.window_ms
        return NO_RECORD if is_over else first

    def note_keys(self, topic: str, keys: Sequence[tuple[bytes, int]]) -> None:
        window = self.tables.windows.get(topic)
        if window is None:
            return
        for key, offset in keys:
            data = self.lookup(offset)
            if data is not None and self.find_key(topic, key) == NO_RECORD:
                self.tables.windows.note(window, key, offset, store_time_of(data))

    def forget_key(self, topic: str, key: bytes) -> None:
        window = self.tables.windows.get(topic)
        if window is not None:
            window.forget(key)

    def dedup_windows(self) -> list[KeyWindow]:
        return self.tables.windows.all(self.files.now_ms())

    def half_runs(
        self, group: str, start: int, end: int, max_bytes: int
    ) -> tuple[int, list[HalfRun]]:
        return halves.half_runs(self, group, start, end, max_bytes)

    def half_ops(self, start: int, end: int) -> list[int]:
        return halves.half_ops(self, start, end)

    def end_halves(
        self, first: int, count: int, commit: bool, now_ms: int, host: bytes
    ) -> HalvesEnded:
        has_queue = self.tables.may_end_halves
        return halves.end_halves(self, first, count, commit, now_ms, host, has_queue)

    def queue_properties(
        self, topic: str, queue_id: int, offset: int, count: int, names: Sequence[bytes]
    ) -> list[tuple[int, int, int, tuple[bytes | None, ...] | None]]:
        return copying.queue_properties(self, topic, queue_id, offset, count, names)

    def copy_records(self, copies: Copies) -> Copied:
        return copying.copy_records(self, copies, self.tables.has_read_queue)

    def moments(self, offsets: Sequence[int]) -> list[int | None]:
        return copying.moments(self, offsets)

    def set_group(self, group: str, fast: bool, slow_broker_id: int) -> None:
        self.tables.set_group(group, fast, slow_broker_id)
        if not fast:
            self.ended.groups.add(group)

    def delete_group(self, group: str) -> None:
        self.tables.delete_group(group)
        self.ended.groups.add(group)
        self._forget_reads(0, group)

    def set_subscription(
        self, group: str, topic: str, version: int, tag_codes: Sequence[int] | None
    ) -> None:
        tags = None if tag_codes is None else frozenset(tag_codes)
        if self.tables.set_subscription(group, topic, version, tags):
            self.ended.subscriptions.add((group, topic))

    def delete_subscription(self, group: str, topic: str) -> None:
        if self.tables.delete_subscription(group, topic):
            self.ended.subscriptions.add((group, topic))

    def set_slow_pulls(self, group: str, topic: str, slow: bool) -> None:
        self.tables.set_slow_pulls(group, topic, slow)
        if slow:
            self.ended.subscriptions.add((group, topic))

    def readers_of(self, topic: str) -> list[str]:
        counted = {key[0] for key in (*self._group_counts, *self._fall_behind) if key[1] == topic}
        return sorted(counted | self.held.groups_of(topic) | self._waits.groups_of(topic))

    def set_writable(self, writable: bool) -> None:
        self.writable = writable

    def set_commits(self, takes_commits: bool) -> None:
        self.takes_commits = takes_commits

    def set_slave_timeout(self, timeout_ms: int | None) -> None:
        self.pending.slave_timeout_ms = timeout_ms

    def set_replicated(self, offset: int, available_below: int) -> bool:
        self.pending.replicated, self.pending.available_below = offset, available_below
        self._release_safe()
        return self.has_ready

    def set_confirmed(self, offset: int | None) -> bool:
        self.files.queues.confirmed = offset
        self._release_committed()
        return self.has_ready

    def set_accounts(self, accounts: Sequence[AccountRules] | None) -> None:
        self.accounts = accounts_of(accounts) if accounts is not None else None
        self.ended.everyone = True

    def delete_queues(self, topic: str) -> int:
        self.tables.forget_shapes()
        return super().delete_queues(topic)

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        self.tables.forget_shapes()
        return super().delete_queue(topic, queue_id)

    # -- write --------------------------------------------------------------------------------
    def append(self, record: Record) -> Appended:
        appended = super().append(record)
        if self.arrived:
            self._wake_and_notify()
        return appended

    def append_batch(self, batch: Batch) -> BatchAppended:
        appended = super().append_batch(batch)
        if self.arrived:
            self._wake_and_notify()
        return appended

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        try:
            return super().append_log(offset, data)
        finally:
            if self.arrived:
                self._wake_and_notify()

    def read_master(
        self, descriptor: int, stream_position: StreamPosition, frame_bytes: int, read_bytes: int
    ) -> None:
        """See ``RawLog``. Whoever asks goes on reading: that does the same, and is the oracle."""

    def _after_append(
        self, queue: ConsumeQueue, first_offset: int, count: int, tag_codes: Sequence[int]
    ) -> None:
        """Remember what arrived in queues that somebody waits for."""
        key = (queue.topic, queue.queue_id)
        if self.files.pool is not None or self.files.queues.confirmed is not None:
            self._staged.append((self.files.log.end_offset, key, tag_codes))
        elif key in self.held.queues or key in self._waits.queues:
            self.arrived.setdefault(key, set()).update(tag_codes)

    # -- read ---------------------------------------------------------------------------------
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
        result = super().read(topic, queue_id, offset, max_count, tag_codes, bits=bits)
        if group is not None:
            self._count_read(group, (topic, queue_id), result.count, result.records)
        return result

    def read_key(
        self, key: QueueKey, offset: int, max_count: int, tags: frozenset[int] | None
    ) -> ReadResult:
        """``read`` as the fast path does it: a queue that does not exist is empty."""
        queue = self.files.queues.by_key.get(key)
        if queue is None:
            self.reader.last_behind = -1
            return _NO_QUEUE
        return self.reader.read_queue(queue, offset, max_count, tags)

    def pull_answer(
        self,
        group: str,
        key: QueueKey,
        serialize_type: int,
        opaque: int,
        offset: int,
        result: ReadResult,
    ) -> bytes:
        """The whole answer to a pull at ``offset``, counted for ``group_stats`` when it found."""
        status, next_offset, min_offset, max_offset, slow, count, records = result
        self._count_read(group, key, count, records)
        render = json_pull_header if serialize_type == JSON else binary_pull_header
        header = render(
            pull_code(status, offset),
            (max_offset, min_offset, next_offset),
            self.tables.suggested_broker(group, slow),
            opaque,
            status,
        )
        return encode_frame(header, records, serialize_type)

    def _count_read(self, group: str, key: QueueKey, count: int, records: bytes) -> None:
        """Count the read that was just done for a group."""
        last_behind = self.reader.last_behind
        if last_behind < 0:
            return
        if count:
            if self.files.settings.latency_recorded:
                waited_ms = max(self.files.clock_ms() - store_time_of(records), 0)
                self._delivery_times.note(waited_ms * 1_000)
            counts = self._group_counts.get((group, *key))
            if counts is None:
                if len(self._group_counts) >= GROUP_READS_MAX:
                    return
                counts = self._group_counts[group, *key] = [0, 0, 0, 0]
            counts[0] += 1
            counts[1] += count
            counts[2] += len(records)
            counts[3] += self.reader.last_read_ms
        if self.files.settings.disk_fall_recorded and (
            len(self._fall_behind) < GROUP_READS_MAX or (group, *key) in self._fall_behind
        ):
            self._fall_behind[group, *key] = last_behind

    def _forget_reads(self, place: int, name: str) -> None:
        """Forget what was counted for a group (place 0 of the keys) or a topic (1)."""
        for counted in (self._group_counts, self._fall_behind):
            for key in [key for key in counted if key[place] == name]:
                del counted[key]

    def lag(self) -> list[tuple[str, str, int, int]]:
        return [(*key, size) for key, size in self._fall_behind.items()]

    def stats(self) -> dict[str, int]:
        return super().stats() | {"held_pulls": len(self.held) + self._waits.of_groups}

    def drain_put_times(self) -> list[tuple[int, int]]:
        return self._put_durations.drain()

    def delivery_times(self) -> LatencyCounts:
        return self._delivery_times.get()

    def call_times(self) -> list[CallCounts]:
        """This kernel answers no calls."""
        return []

    def note_answered(self, milliseconds: int) -> None:
        """Note how long a feed took, for the sends that it answered."""
        self._put_durations.note(milliseconds, self.answered_puts)
        self.answered_puts = 0

    def group_stats(self) -> list[tuple[str, str, int, int, int, int, int]]:
        return [
            (*key, reads, messages, size, milliseconds)
            for key, (reads, messages, size, milliseconds) in self._group_counts.items()
        ]

    # -- answers that come later --------------------------------------------------------------
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
    ) -> bool:
        tags = None if tag_codes is None else frozenset(tag_codes)
        key = (topic, queue_id)
        return self.held.add(
            HeldPull(
                connection_id,
                serialize_type,
                opaque,
                group,
                key,
                offset,
                max_count,
                tags,
                deadline_ms,
            )
        )

    def wait_for_offset(
        self, wait_id: int, group: str, topic: str, queue_id: int, offset: int, deadline_ms: int
    ) -> bool:
        key = (topic, queue_id)
        end = self.queue_bounds(*key)[1]
        is_added = self._waits.add(wait_id, Wait(group, key, offset, deadline_ms), end)
        if self._waits.over:
            self.notify()
        return is_added

    def cancel_wait(self, wait_id: int) -> None:
        self._waits.cancel(wait_id)

    def drain_arrived(self) -> list[int]:
        arrived = self._waits.take()
        if self._waits.over:
            self.notify()
        return arrived

    def wake(self, connection_id: int) -> bytes:
        """Answer the held pulls that what arrived can satisfy.

        Those of ``connection_id`` are returned, the others wait for ``drain_ready``. A pull whose
        read finds nothing new stays held. At most ``ANSWERED_AT_ONCE_MAX`` are examined; the rest
        follows in ``drain_ready``, once for each of its turns.
        """
        while self.arrived:
            key = next(iter(self.arrived))
            if key in self._waits.queues:
                self._waits.end_below(key, self.queue_bounds(*key)[1])
            for pull in self.held.matching(key, self.arrived.pop(key)):
                if not pull.is_waking:
                    pull.is_waking = True
                    self._waking.append(pull)
        own: list[bytes] = []
        for _ in range(min(len(self._waking), ANSWERED_AT_ONCE_MAX)):
            pull = self._waking.popleft()
            pull.is_waking = False
            if not pull.live or pull.deadline_ms == ENDED_MS or self._is_ended(pull):
                continue
            result = self.read_key(pull.key, pull.offset, pull.max_count, pull.tags)
            if pull_code(result[0], pull.offset) == ResponseCode.PULL_NOT_FOUND:
                continue
            self.held.remove(pull)
            answer = self._held_answer(pull, result)
            if pull.connection_id == connection_id:
                own.append(answer)
            else:
                self._ready.append((pull.connection_id, answer))
        if self._waking:
            self.notify()
        return b"".join(own)

    @property
    def has_ready(self) -> bool:
        """Whether ``drain_ready`` has answers, those of finished flushes aside."""
        return bool(self._ready or self._waits.over)

    def stop_holding(self) -> None:
        self.tables.stop_holding()
        self.held.end_where(lambda _pull: True)
        self._waits.end_where(lambda _wait: True)

    def tick(self, now_ms: int) -> bool:
        self._release_committed()
        self._end_holds()
        self._end_passed_over(now_ms)
        self._waits.end_where(lambda wait: wait.deadline_ms <= now_ms)
        self._ticked_ms = now_ms
        self._expire_some()
        self._release_safe()
        self.pending.expire(now_ms, bool(self.files.failure))
        self._release_safe(now_ms)
        return self.has_ready

    def _expire_some(self) -> None:
        """Answer some of the pulls whose time was over at the last tick; the rest follows in
        ``drain_ready``, once for each of its turns."""
        free = max(ANSWERED_AT_ONCE_MAX - len(self._ready), 0)
        for pull in self.held.expired(self._ticked_ms, free):
            result = (
                self._nothing_for(pull)
                if pull.deadline_ms == ENDED_MS
                else self.read_key(pull.key, pull.offset, pull.max_count, pull.tags)
            )
            self._ready.append((pull.connection_id, self._held_answer(pull, result)))
        if self.held.has_expired(self._ticked_ms):
            self.notify()

    def _end_holds(self) -> None:
        """The pulls of those who may not read any more, or want other tags now, have waited long
        enough."""
        if self.ended:
            self.held.end_where(self._is_ended)
            self._waits.end_where(lambda wait: self.ended.has(wait.group, wait.key[0]))
            self.ended = Ended()

    def _end_passed_over(self, now_ms: int) -> None:
        """The pulls whose tags none of the messages had that came meanwhile, now and then."""
        last_ms = self._checked_ms
        if last_ms <= now_ms < last_ms + PASSED_OVER_MS:
            return
        self._checked_ms = now_ms
        if last_ms:
            self.held.end_where(
                lambda pull: (
                    pull.tags is not None
                    and pull.deadline_ms > now_ms
                    and self.queue_bounds(*pull.key)[1] > pull.offset
                ),
                now_ms,
            )

    def _is_ended(self, pull: HeldPull) -> bool:
        return self.ended.has(pull.group, pull.key[0], pull.connection_id)

    def _nothing_for(self, pull: HeldPull) -> ReadResult:
        """What an ended pull is told: that it found nothing, at the offset that it asked for."""
        low, high = self.queue_bounds(*pull.key)
        # It examined no entry: what the last read was behind is none of its own.
        self.reader.last_behind = -1
        return _OVERFLOW_ONE, pull.offset, low, high, False, 0, b""

    def drain_ready(self) -> list[tuple[int, bytes]]:
        self._release_safe()
        self._release_committed()
        self._expire_some()
        ready, self._ready = self._ready, []
        return ready

    def drain_commits(self) -> list[tuple[str, str, int, int]]:
        commits, self.commits = self.commits, {}
        return [(*key, offset) for key, offset in commits.items()]

    def forget_connection(self, connection_id: int) -> None:
        """Drop everything that waits for a connection that is gone."""
        self.held.remove_connection(connection_id)
        self._ready = [entry for entry in self._ready if entry[0] != connection_id]
        self.pending.forget(connection_id)

    def _wake_and_notify(self) -> None:
        self.wake(_NOBODY)
        if self.has_ready:
            self.notify()

    def _held_answer(self, pull: HeldPull, result: ReadResult) -> bytes:
        return self.pull_answer(
            pull.group, pull.key, pull.serialize_type, pull.opaque, pull.offset, result
        )

    def _release_committed(self) -> None:
        """Wake the pulls that were held for what a transient pool committed, or the sync state set
        confirmed."""
        visible = self.files.queues.visible
        while self._staged and self._staged[0][0] <= visible:
            _end, key, tag_codes = self._staged.popleft()
            if key in self.held.queues or key in self._waits.queues:
                self.arrived.setdefault(key, set()).update(tag_codes)
        if self.arrived or self._waking:
            self.wake(_NOBODY)

    def _release_safe(self, now_ms: int | None = None) -> None:
        """Answer the sends whose records are safe."""
        if not self.pending.count:
            return
        now = self.files.clock_ms() if now_ms is None else now_ms
        self._ready += self.pending.release(
            self.flushed_offset, lambda begin_ms: self._put_durations.note(now - begin_ms)
        )
