"""What a Spark task does: rows in, requests out."""

from __future__ import annotations

import os
import random
import secrets
import time
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kerolox.addresses import local_address
from kerolox.client.core.namespaces import with_namespace
from kerolox.client.core.sending.send import BATCH_COUNT_MAX, OutgoingMessage, SendHeader
from kerolox.client.core.sending.unique_id import UniqueIdFactory
from kerolox.client.core.validate import check_send_topic
from kerolox.codec.python_rows import RowIds, check_row, flag_of, id_of, property_text
from kerolox.codec.rows import row_codec
from kerolox.errors import KeroloxError, MessageRejectedError
from kerolox.message import ITEM_END, PropertyKey, encode_properties
from kerolox.protocol.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from kerolox.spark.network.connecting import Connector
from kerolox.spark.sink.broker_sender import BrokerSender, RowBatch, refused
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.queues import NEW_TOPIC_QUEUES, PublishRoutes, by_topic, shares_of
from kerolox.spark.sink.rows import Rows, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow

    from kerolox.codec.python_rows import RowColumns
    from kerolox.message import MessageQueue
    from kerolox.spark.sink.options import SinkOptions
    from kerolox.spark.sink.queues import Share, TopicQueues
    from kerolox.spark.sink.transactions.halves import HalfWriter

IDLE_SECONDS = 0.01
"""Longest pause between checks of what is to go out again."""


class TaskSender:
    """The broker senders of one task. ``seconds_max``: longest time for a row batch and its tries
    together.
    """

    def __init__(
        self,
        make_sender: Callable[[str], BrokerSender],
        routes: PublishRoutes,
        *,
        seconds_max: float,
    ) -> None:
        self._make_sender = make_sender
        self._routes = routes
        self._seconds_max = seconds_max
        self.broker_senders: dict[str, BrokerSender] = {}

    def send(self, row_batch: RowBatch) -> None:
        """Send a row batch, once its broker has space for it; SinkError: these rows, or others
        before them, can't be written.
        """
        while True:
            broker_sender = self._broker_sender(row_batch.queue.broker_name)
            if broker_sender.later:
                self._send_again(broker_sender)
            if not broker_sender.later and broker_sender.has_capacity(row_batch):
                broker_sender.send(row_batch)
                broker_sender.take_answers(wait=False)
                return
            self._progress(broker_sender)

    def finish(self) -> None:
        """Wait until each row batch is stored."""
        while busy := [
            broker_sender
            for broker_sender in self.broker_senders.values()
            if not broker_sender.is_idle
        ]:
            for broker_sender in busy:
                self._send_again(broker_sender)
                self._progress(broker_sender)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for broker_sender in self.broker_senders.values():
            broker_sender.close()

    def _broker_sender(self, broker_name: str) -> BrokerSender:
        broker_sender = self.broker_senders.get(broker_name)
        if broker_sender is None:
            broker_sender = self.broker_senders[broker_name] = self._make_sender(broker_name)
        return broker_sender

    def _progress(self, broker_sender: BrokerSender) -> None:
        """Wait for an answer, or for the time of the next try."""
        if broker_sender.has_open:
            broker_sender.take_answers(wait=True)
        elif broker_sender.later:
            pause = broker_sender.later[0].due - time.monotonic()
            time.sleep(min(max(pause, 0.0), IDLE_SECONDS))

    def _send_again(self, broker_sender: BrokerSender) -> None:
        """Send what is due, in its order, as far as there is space."""
        now = time.monotonic()
        while broker_sender.later and broker_sender.later[0].due <= now:
            row_batch = broker_sender.later[0]
            if now - row_batch.first_sent >= self._seconds_max:
                raise refused(row_batch, self._too_late(row_batch)) from row_batch.error
            if not broker_sender.may_send_again(row_batch):
                return
            broker_sender.later.popleft()
            self._reroute(row_batch)
            self._broker_sender(row_batch.queue.broker_name).send(row_batch)

    def _reroute(self, row_batch: RowBatch) -> None:
        """Another broker may do better, where the rows leave the choice."""
        if row_batch.is_fixed:
            return
        queues = self._routes.queues(row_batch.queue.topic)
        others = [q for q in queues.queues if q.broker_name != row_batch.queue.broker_name]
        if others:
            row_batch.queue = others[row_batch.tries % len(others)]

    def _too_late(self, row_batch: RowBatch) -> KeroloxError:
        seconds = self._seconds_max
        return KeroloxError(
            f"{row_batch.tries} tries within {seconds:g} s (option sendTimeoutMs), the last one: "
            f"{row_batch.error}"
        )


SLICES_A_SECOND = 10


def slices(
    batches: Iterator[pyarrow.RecordBatch],
    rate: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pyarrow.RecordBatch]:
    """The batches in slices, each not before its rows are due; ``rate``: most rows a second.
    ``clock``: seconds that pass evenly; ``sleep`` waits so many.
    """
    size = max(1, int(rate / SLICES_A_SECOND))
    started, given = clock(), 0
    for batch in batches:
        for first in range(0, batch.num_rows, size):
            part = batch.slice(first, size)
            early = started + given / rate - clock()
            if early > 0:
                sleep(early)
            given += part.num_rows
            yield part


ROWS_AT_ONCE = 8192

BYTES_AT_ONCE = 4 * 1024 * 1024
"""Bodies that are encoded at once, about; a larger one alone."""

_WAIT = encode_properties({PropertyKey.WAIT: "true"})


class TaskWriter:
    """Writes the rows of one partition; all of them are stored when :meth:`write` returns.

    Args:
        partition: its number, for errors.
        halves: makes the rows half messages; None: they are plain messages.
        broker_topics: is filled with a topic for each broker, whose route has its address.
    """

    def __init__(
        self,
        options: SinkOptions,
        partition: int,
        halves: HalfWriter | None = None,
        broker_topics: dict[str, str] | None = None,
    ) -> None:
        self._options = options
        self._partition = partition
        self._halves = halves
        tail = {PropertyKey.INSTANCE_ID: options.namespace} if options.namespace else {}
        self._rules = rules_of(options, tail)
        self._codec = row_codec()
        self._ids = UniqueIdFactory(local_address(), os.getpid(), secrets.randbits(32))
        self._id_count = 0
        self._connector = Connector(options.credentials, options.tls)
        seconds = options.send_timeout_ms / 1000
        self._routes = PublishRoutes(
            options.name_servers,
            self._connector,
            wait_seconds=seconds,
            first=random.randrange(1 << 16),
        )
        self._marks = encode_properties(halves.properties) if halves else ""
        """What makes a message a half, for one alone or for a batch of them. It goes behind the
        properties of each item, so it names none of those again: a broker is slow with such."""
        group = halves.group if halves else options.group_of("")
        self._header = SendHeader(group, AUTO_CREATE_TOPIC, NEW_TOPIC_QUEUES)
        self.sender = TaskSender(self._broker_sender, self._routes, seconds_max=seconds)
        self._topics: dict[str, str] = {}
        """Legal topics, by the names that rows give, as brokers know them."""
        self._address_topics = {} if broker_topics is None else broker_topics
        self.rows = 0

    def write(
        self, batches: Iterable[pyarrow.RecordBatch], rows_per_second: float | None = None
    ) -> None:
        """Write all rows, so many a second at most; None: as fast as brokers take them.

        SinkError: a row is illegal, and nothing of its record batch was sent; or rows can't be
        stored. The text has the partition and the number of the row in it.
        """
        if rows_per_second is not None:
            batches = slices(iter(batches), rows_per_second, sleep=self._rest)
        try:
            for batch in batches:
                if batch.num_rows:
                    self._write_batch(Rows(batch, self._options, self.rows))
                    self.rows += batch.num_rows
            self.sender.finish()
        except SinkError as error:
            raise SinkError(f"partition {self._partition}: {error}") from error

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.sender.close()
        self._routes.close()

    def _rest(self, seconds: float) -> None:
        """Pause while nothing is open, so that what fails goes out again before and not behind."""
        end = time.monotonic() + seconds
        self.sender.finish()
        time.sleep(max(0.0, end - time.monotonic()))

    # -- checks --------------------------------------------------------------------------------
    def _write_batch(self, rows: Rows) -> None:
        fault = self._codec.first_fault(rows.columns, 0, rows.count, self._rules)
        if fault >= 0:
            self._refuse(rows, fault)
        planned: list[tuple[Share, TopicQueues]] = []
        for name, indices in by_topic(rows, self._options.topic):
            try:
                topic = self._legal_topic(name)
                queues = self._routes.queues(topic)
                for share in shares_of(rows, topic, indices, len(queues.queues)):
                    indices = share.indices
                    share.queue(queues)
                    planned.append((share, queues))
            except MessageRejectedError as error:
                first = 0 if indices is None else indices[0].as_py()
                raise SinkError(f"row {rows.first_row + first}: {error}") from None
        for share, queues in planned:
            self._send(rows, share, queues)

    def _refuse(self, rows: Rows, row: int) -> None:
        try:
            check_row(rows.columns, row, self._rules)
        except MessageRejectedError as error:
            raise SinkError(f"row {rows.first_row + row}: {error}") from None
        raise SinkError(f"row {rows.first_row + row} can't be encoded")

    def _legal_topic(self, name: str) -> str:
        topic = self._topics.get(name)
        if topic is None:
            topic = with_namespace(self._options.namespace, name)
            check_send_topic(topic)
            self._topics[name] = topic
        return topic

    # -- sends ---------------------------------------------------------------------------------
    def _broker_sender(self, broker_name: str) -> BrokerSender:
        halves = self._halves
        return BrokerSender(
            broker_name,
            self._connector,
            self._address,
            self._header,
            self._options.in_flight_bytes,
            partial(halves.requested, broker_name) if halves else _ignore,
            halves.send_heartbeat if halves else _ignore,
        )

    def _address(self, broker_name: str, fresh: bool) -> str:
        topic = self._address_topics[broker_name]
        found = self._routes.queues(topic, fresh=fresh).addresses.get(broker_name)
        if found is None:
            raise SinkError(f"broker {broker_name} is not in the route of topic {topic} any more")
        return found

    def _send(self, rows: Rows, share: Share, queues: TopicQueues) -> None:
        columns = rows.columns if share.indices is None else rows.taken(share.indices)
        count = rows.count if share.indices is None else len(share.indices)
        is_single = share.is_delayed or share.topic.startswith(RETRY_PREFIX)
        delays = self._delays(rows, share) if share.is_delayed else None
        offsets = memoryview(columns.body.offsets).cast("B").cast("i")
        start = 0
        while start < count:
            most = min(start + ROWS_AT_ONCE, count)
            stop = bisect_right(offsets, offsets[start] + BYTES_AT_ONCE, start + 1, most + 1) - 1
            stop = max(stop, start + 1)
            row_slice = _RowSlice(rows, share, queues, columns, start, stop)
            if is_single:
                for row in range(start, stop):
                    self._send_single(row_slice, row, delays)
            else:
                self._send_batches(row_slice)
            start = stop

    def _send_batches(self, row_slice: _RowSlice) -> None:
        columns, start, stop = row_slice.columns, row_slice.start, row_slice.stop
        ids = self._next_ids(stop - start)
        items, ends_data = self._codec.encode_rows(columns, start, stop, self._rules, ids)
        ends = memoryview(ends_data).cast("B").cast("I")
        view = memoryview(items)
        first = base = 0
        while first < stop - start:
            queue = row_slice.share.queue(row_slice.queues)
            self._address_topics.setdefault(queue.broker_name, queue.topic)
            most = min(first + BATCH_COUNT_MAX, stop - start)
            behind = bisect_right(ends, base + self._options.batch_bytes, first, most)
            if behind == first or (
                self._halves and not self._halves.takes_batches(queue.broker_name)
            ):
                self._send_single(row_slice, start + first, None, queue)
                behind = first + 1
            else:
                message = OutgoingMessage(
                    row_slice.share.topic,
                    bytes(view[base : ends[behind - 1]]),
                    self._marks or _WAIT,
                    0,
                    self._halves.sys_flag if self._halves else 0,
                    "",
                    is_batch=True,
                )
                numbers = row_slice.number(start + first), row_slice.number(start + behind - 1)
                self._dispatch(row_slice.share, message, queue, numbers, behind - first)
            first, base = behind, ends[behind - 1]

    def _send_single(
        self,
        row_slice: _RowSlice,
        row: int,
        delays: _Delays | None,
        queue: MessageQueue | None = None,
    ) -> None:
        """One row in a request of its own."""
        if queue is None:
            queue = row_slice.share.queue(row_slice.queues)
            self._address_topics.setdefault(queue.broker_name, queue.topic)
        message_id = id_of(self._next_ids(1), 0)
        text = property_text(row_slice.columns, row, self._rules, message_id).decode()
        if self._marks:
            text = f"{text}{ITEM_END}{self._marks}"
        if delays is not None:
            text = f"{text}{ITEM_END}{encode_properties(delays.of(row))}"
        message = OutgoingMessage(
            row_slice.share.topic,
            row_slice.columns.body.value(row) or b"",
            text,
            flag_of(row_slice.columns, row),
            self._halves.sys_flag if self._halves else 0,
            message_id.decode(),
        )
        number = row_slice.number(row)
        self._dispatch(row_slice.share, message, queue, (number, number), 1)

    def _dispatch(
        self,
        share: Share,
        message: OutgoingMessage,
        queue: MessageQueue,
        numbers: tuple[int, int],
        count: int,
    ) -> None:
        is_fixed = share.is_fixed or self._halves is not None
        row_batch = RowBatch(message, queue, numbers, count, is_fixed, share.is_ordered)
        self.sender.send(row_batch)

    def _next_ids(self, count: int) -> RowIds:
        first = self._id_count
        self._id_count = (first + count) & 0xFFFF
        return RowIds(self._ids.head(time.time_ns() // 1_000_000), first)

    @staticmethod
    def _delays(rows: Rows, share: Share) -> _Delays:
        levels, times = rows.delay_levels, rows.deliver_times
        if share.indices is not None:
            levels = None if levels is None else levels.take(share.indices)
            times = None if times is None else times.take(share.indices)
        return _Delays(levels, times)


class _RowSlice(NamedTuple):
    """Rows of a share that are encoded at once."""

    rows: Rows
    share: Share
    queues: TopicQueues
    columns: RowColumns
    start: int
    stop: int

    def number(self, row: int) -> int:
        """The number in the partition of a row of the share."""
        indices = self.share.indices
        return self.rows.first_row + int(row if indices is None else indices[row].as_py())


class _Delays(NamedTuple):
    """How the rows of a share are delayed."""

    levels: pyarrow.Array | None
    times: pyarrow.Array | None

    def of(self, row: int) -> dict[str, str]:
        """The properties that delay a row."""
        found = {}
        for name, values in (
            (PropertyKey.DELAY, self.levels),
            # Brokers of RocketMQ 5 and Kerolox know the one, those of Aliyun the other.
            (PropertyKey.TIMER_DELIVER, self.times),
            (PropertyKey.START_DELIVER_TIME, self.times),
        ):
            value = 0 if values is None else values[row].as_py()
            if value > 0:
                found[name] = str(value)
        return found


def _ignore(*_args: object) -> None:
    """Nothing is to be done."""
