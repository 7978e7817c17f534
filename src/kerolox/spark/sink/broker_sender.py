"""Many open requests per broker, answered by each before a task ends: the shell of a task's sends.

A broker sender is one connection to one broker. What it refuses for now, and what was open when its
connection ended, goes out again after a pause, until ``sendTimeoutMs`` is over.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.client.core.sending.retry import NOT_STORED_CODES, is_passing
from kerolox.client.core.sending.send import STATUS_BY_CODE, OutgoingMessage
from kerolox.client.core.sending.tries import PAUSE_MS, PAUSE_MS_MAX
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
    """One broker as a task sees it; belongs to one thread.

    Args:
        broker_name: its name.
        connector: makes the connections.
        address: where it is now.
        header: of all requests.
        bytes_max: most bytes without an answer.
        requested: is given what the broker asks of us (frames that are no responses).
    """

    broker_name: str
    connector: Connector
    address: Callable[[str, bool], str]
    header: SendHeader
    bytes_max: int
    requested: Callable[[BlockingConnection, bytes], None]
    on_connect: Callable[[BlockingConnection], None]
    """Is called with each new connection."""
    outcome: BrokerResult = field(default_factory=BrokerResult)
    later: deque[RowBatch] = field(default_factory=deque)
    """What goes out again, in order."""
    _connection: BlockingConnection | None = None
    _open: dict[int, RowBatch] = field(default_factory=dict)
    _open_bytes: int = 0
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
        return (
            self._open_bytes + row_batch.size <= self.bytes_max and len(self._open) < REQUESTS_MAX
        )

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
            opaque = connection.next_opaque()
            frame = connection.encode(request, opaque)
        except (RemoteProtocolError, LocalProtocolError, ConfigError):
            raise
        except KeroloxError as error:
            self._again(row_batch, error)
            return
        self._open[opaque] = row_batch
        self._open_bytes += row_batch.size
        try:
            connection.send_and_keep_answers(frame, ANSWER_SECONDS_MAX)
        except RemotingError as error:
            self._lost(error)

    def take_answers(self, *, wait: bool) -> None:
        """Take the answers that have arrived; with ``wait`` at least one, or the connection's end.

        Raises:
            SinkError: rows are refused for good, or were refused for too long.
            RemoteProtocolError: the broker does not speak the protocol.
        """
        connection = self._connection
        if connection is None or not self._open:
            return
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        try:
            while self._open and (wait or not connection.is_quiet()):
                frame = connection.receive_frame(ANSWER_SECONDS_MAX)
                now = time.monotonic()
                if self._take(connection, frame):
                    wait, deadline = False, now + ANSWER_SECONDS_MAX
                elif now >= deadline:
                    # What nobody asked for does not make it wait on.
                    raise connection.late(ANSWER_SECONDS_MAX)
        except ValueError as error:
            raise RemoteProtocolError(
                f"{connection.address} answered a send without a number: {error}"
            ) from error
        except RemoteProtocolError:
            raise
        except RemotingError as error:
            self._lost(error)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> BlockingConnection:
        if self._connection is None or self._connection.closed:
            address = self.address(self.broker_name, self._failures > 0)
            self._connection = self.connector.connect(address)
            self.on_connect(self._connection)
        return self._connection

    def _take(self, connection: BlockingConnection, frame: bytes) -> bool:
        """Take a frame; whether it was an answer."""
        answer = RemotingCommand.decode(frame)
        if not answer.is_response:
            self.requested(connection, frame)
            return False
        row_batch = self._open.pop(answer.opaque, None)
        if row_batch is None:
            return False
        self._open_bytes -= row_batch.size
        if answer.code in STATUS_BY_CODE:
            self._failures = 0
            self._ordered.discard(row_batch.queue)
            self.outcome.add(int(answer.ext_fields.get("queueOffset", "-1")), row_batch.count)
            return True
        error = BrokerError.from_response(answer.code, answer.remark, connection.address)
        if not is_passing(error):
            raise refused(row_batch, error)
        self.outcome.unsure |= answer.code not in NOT_STORED_CODES
        self._again(row_batch, error)
        return True

    def _lost(self, error: RemotingError) -> None:
        """The connection is over; what was open goes out again, in its order."""
        self.close()
        row_batches = list(self._open.values())
        self._open.clear()
        self._open_bytes = 0
        self.outcome.unsure |= bool(row_batches)
        for row_batch in row_batches:
            self._again(row_batch, error)

    def _again(self, row_batch: RowBatch, error: KeroloxError) -> None:
        if not self._failures:
            _log.warning("%s; rows are sent again", error)
        self._failures += 1
        pause_ms = min(PAUSE_MS << min(row_batch.tries - 1, 10), PAUSE_MS_MAX)
        row_batch.due = time.monotonic() + pause_ms / 1000
        row_batch.error = error
        self.later.append(row_batch)


def refused(row_batch: RowBatch, error: KeroloxError) -> SinkError:
    """What is reported when rows can't be written."""
    first, last = row_batch.rows
    rows = f"row {first}" if first == last else f"rows {first} to {last}"
    where = (
        f"{row_batch.queue.topic} queue {row_batch.queue.queue_id} on {row_batch.queue.broker_name}"
    )
    return SinkError(f"{rows} can't be written to {where}: {error}")
