"""Many open requests per broker, answered by each before a task ends: the shell of a task's sends.

A broker sender is one connection to one broker. What it refuses for now, and what was open when its
connection ended, goes out again after a pause, until ``sendTimeoutMs`` is over.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kerolox.client.core.sending.retry import NOT_STORED_CODES, PAUSE_MS, PAUSE_MS_MAX, is_passing
from kerolox.client.core.sending.send import STATUS_BY_CODE, OutgoingMessage
from kerolox.errors import (
    BrokerError,
    ConfigError,
    KeroloxError,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.spark.sink.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.core.sending.send import SendHeader
    from kerolox.message import MessageQueue
    from kerolox.remoting.blocking import BlockingConnection
    from kerolox.spark.network.connecting import Connector

ANSWER_SECONDS_MAX = 15.0
"""A connection that brings no answer for so long while requests are open has ended."""

REQUESTS_MAX = 4096
"""Most requests that a broker sender has open."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RowBatch:
    """Rows that travel in one request."""

    message: OutgoingMessage
    queue: MessageQueue
    rows: tuple[int, int]
    """The numbers of the first and last one in the partition."""
    count: int
    is_fixed: bool
    """No other queue may take them."""
    is_ordered: bool = False
    """Their queue has no other request open meanwhile."""
    tries: int = 0
    first_sent: float = 0.0
    due: float = 0.0
    """When it may be sent again."""
    error: KeroloxError | None = None
    """Of its last try."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.message.body) + len(self.message.properties)


@dataclass(slots=True)
class BrokerResult:
    """What became of the row batches of one broker."""

    rows: int = 0
    low: int = -1
    """The lowest offset that an answer named; -1: none yet."""
    high: int = -1
    """Behind the highest."""
    unsure: bool = False
    """A request that was sent again may have been stored before."""

    def add(self, offset: int, count: int) -> None:
        """Rows were stored from an offset on."""
        self.rows += count
        if offset >= 0:
            self.low = offset if self.low < 0 else min(self.low, offset)
            self.high = max(self.high, offset + count)


@dataclass(slots=True)
class BrokerSender:
    """One broker, at an address, as a task sees it; belongs to one thread. ``bytes_max``: most
    bytes without an answer. ``requested`` is given what the broker asks of us.
    """

    broker_name: str
    connector: Connector
    address: Callable[[str, bool], str]
    header: SendHeader
    bytes_max: int
    requested: Callable[[BlockingConnection, RemotingCommand], None]
    on_connect: Callable[[BlockingConnection], None]
    """Is called with each new connection."""
    outcome: BrokerResult = field(default_factory=BrokerResult)
    later: deque[RowBatch] = field(default_factory=deque)
    """What goes out again, in order."""
    _connection: BlockingConnection | None = None
    _open: int = 0
    _open_bytes: int = 0
    _ended: list[tuple[RowBatch, RemotingCommand | Exception]] = field(default_factory=list)
    """Requests that have their answer, or will have none."""
    _ordered: set[MessageQueue] = field(default_factory=set)
    _failures: int = 0

    @property
    def is_idle(self) -> bool:
        """Everything is answered."""
        return not self._open and not self.later

    def has_capacity(self, row_batch: RowBatch) -> bool:
        """The row batch may be sent now."""
        if row_batch.is_ordered and row_batch.queue in self._ordered:
            return False
        if not self._open:
            return True
        return self._open_bytes + row_batch.size <= self.bytes_max and self._open < REQUESTS_MAX

    @property
    def has_open(self) -> bool:
        """An answer is on its way."""
        return bool(self._open)

    def may_send_again(self, row_batch: RowBatch) -> bool:
        """There is space for a row batch that was sent before."""
        return not self._open or self._open_bytes + row_batch.size <= self.bytes_max

    def send(self, row_batch: RowBatch) -> None:
        """Send a row batch; a failure puts it among those that go out again."""
        now = time.monotonic()
        row_batch.first_sent = row_batch.first_sent or now
        row_batch.tries += 1
        if row_batch.is_ordered:
            self._ordered.add(row_batch.queue)
        try:
            connection = self._connected()
            request = self.header.request(
                row_batch.message, row_batch.queue.queue_id, time.time_ns() // 1_000_000
            )
        except (RemoteProtocolError, ConfigError):
            raise
        except KeroloxError as error:
            self._again(row_batch, error)
            return
        self._open += 1
        self._open_bytes += row_batch.size
        try:
            waiter = _SentBatch(row_batch, self._ended)
            connection.post([request], [waiter], ANSWER_SECONDS_MAX)
        except LocalProtocolError:
            raise
        except RemotingError:
            # It is handed to each request that was open.
            self._take_ended()

    def take_answers(self, *, wait: bool) -> None:
        """Take the answers that have arrived; with ``wait`` at least one, or the connection's end.
        SinkError: rows are refused for good, or were refused for too long.
        """
        connection = self._connection
        if connection is None or not self._open:
            return
        try:
            if wait:
                connection.wait(ANSWER_SECONDS_MAX)
            else:
                connection.take_arrived()
        except RemotingError:
            # It is handed to each request that was open.
            self._take_ended()
        else:
            if self._ended:
                self._take_ended()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> BlockingConnection:
        if self._connection is None or self._connection.closed:
            address = self.address(self.broker_name, self._failures > 0)
            connection = self._connection = self.connector.connect(address)
            connection.on_request = partial(self.requested, connection)
            self.on_connect(connection)
        return self._connection

    def _take_ended(self) -> None:
        """Count what is stored; what is refused for now, or open no more, goes out again in its
        order."""
        ended = self._ended[:]
        self._ended.clear()
        for row_batch, answer in ended:
            self._open -= 1
            self._open_bytes -= row_batch.size
            if isinstance(answer, RemotingCommand):
                self._take(row_batch, answer)
            elif isinstance(answer, RemotingError) and is_passing(answer):
                self.outcome.unsure = True
                self._again(row_batch, answer)
            else:
                raise answer

    def _take(self, row_batch: RowBatch, answer: RemotingCommand) -> None:
        where = self._connection.address if self._connection else ""
        if answer.code in STATUS_BY_CODE:
            self._failures = 0
            self._ordered.discard(row_batch.queue)
            try:
                offset = int(answer.ext_fields.get("queueOffset", "-1"))
            except ValueError as error:
                raise RemoteProtocolError(
                    f"{where} answered a send without a number: {error}"
                ) from error
            self.outcome.add(offset, row_batch.count)
            return
        refusal = BrokerError.from_response(answer.code, answer.remark, where)
        if not is_passing(refusal):
            raise refused(row_batch, refusal)
        self.outcome.unsure |= answer.code not in NOT_STORED_CODES
        self._again(row_batch, refusal)

    def _again(self, row_batch: RowBatch, error: KeroloxError) -> None:
        if not self._failures:
            _log.warning("%s; rows are sent again", error)
        self._failures += 1
        pause_ms = min(PAUSE_MS << min(row_batch.tries - 1, 10), PAUSE_MS_MAX)
        row_batch.due = time.monotonic() + pause_ms / 1000
        row_batch.error = error
        self.later.append(row_batch)


@dataclass(slots=True, eq=False)
class _SentBatch:
    """Waits for the answer to a row batch."""

    row_batch: RowBatch
    ended: list[tuple[RowBatch, RemotingCommand | Exception]]

    def done(self) -> bool:
        """Nobody gives up a row batch."""
        return False

    def set_result(self, answer: RemotingCommand, /) -> None:
        """The answer has come."""
        self.ended.append((self.row_batch, answer))

    def set_exception(self, error: Exception, /) -> None:
        """It will not come."""
        self.ended.append((self.row_batch, error))


def refused(row_batch: RowBatch, error: KeroloxError) -> SinkError:
    """What is reported when rows can't be written."""
    first, last = row_batch.rows
    rows = f"row {first}" if first == last else f"rows {first} to {last}"
    where = (
        f"{row_batch.queue.topic} queue {row_batch.queue.queue_id} on {row_batch.queue.broker_name}"
    )
    return SinkError(f"{rows} can't be written to {where}: {error}")
