"""Raw records of a range of one queue, pulled over the wire with many requests in flight.

A broker answers a pull with at most 32 messages or 256 KiB. A reader that waits for each answer is
as slow as the round trip. ``RangePuller`` cuts the range into slots as long as the answers turn out
to be. It asks for ``PULLS_IN_FLIGHT`` of them at once, and puts the answers into order:

- an answer that covers less than its slot: the rest is asked for again, later slots get shorter;
- one that covers more (the broker skipped messages by tag): what lies after the slot is cut off,
  since the next slot has it too;
- after many full answers longer slots are tried, and less often each time that they are in vain.

So a range is read exactly, from its start to before its end, whatever a filter leaves out. A lost
connection is made again, at another address if the name servers say so. Reading goes on after the
last record that was handed out, as long as something arrives within ``pollTimeoutMs``. With
``readFromSlaves`` that may be a slave. Offsets that
the broker does not have any more are a ``DataLossError``, and so are messages of a later life
of the topic; with ``failOnDataLoss`` false either is a warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.core.routes import MASTER_ID
from kerolox.client.core.sending.retry import is_passing
from kerolox.codec.pulling import message_codec
from kerolox.errors import BrokerError, RemoteProtocolError, RemotingError
from kerolox.protocol.codes import (
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import encode_frame
from kerolox.protocol.records import records_before, store_time_of
from kerolox.protocol.serialize import HeaderFields, encode_json_header
from kerolox.spark.network.brokers import Master, pull_header
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.routes import RouteFinder
from kerolox.spark.positions.offsets import Known, QueueRange, report_loss

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from kerolox.message import MessageQueue
    from kerolox.remoting.blocking import BlockingConnection
    from kerolox.remoting.core.client_requests import PulledFrame
    from kerolox.spark.options import SourceOptions

SUGGESTIONS_BEFORE_MOVE = 4
"""Answers in a row that name another node: pulls in flight are asked again at each move."""

REST_SECONDS = 30.0
"""So long no suggestion is followed after a node that failed: it may be the one suggested."""


class Node:
    """The node of one broker, with its master's ``address``, that is read from
    (``readFromSlaves``). Does no I/O.

    With each answer a broker suggests the node for the next (``suggestWhichBrokerId``). A slave may
    lack what the master has: after any failure there the reader asks the master again.
    """

    def __init__(self, address: str, *, allows_slaves: bool) -> None:
        self.address = address
        self.broker_id = MASTER_ID
        self._allows_slaves = allows_slaves
        self._suggested = MASTER_ID
        self._times = 0
        self._rests_until = 0.0

    @property
    def is_slave(self) -> bool:
        """Whether it is none but the master that has all."""
        return self.broker_id != MASTER_ID

    def suggested_node(self, suggested: int) -> int | None:
        """An answer has suggested a node; the broker id to move to, None: stay."""
        if not self._allows_slaves or suggested == self.broker_id:
            self._times = 0
            return None
        self._times = self._times + 1 if suggested == self._suggested else 1
        self._suggested = suggested
        if self._times < SUGGESTIONS_BEFORE_MOVE or time.monotonic() < self._rests_until:
            return None
        self._times = 0
        return suggested

    def move(self, broker_id: int, addresses: dict[int, str]) -> bool:
        """Read from a node of these; False: it is not one of them."""
        if broker_id not in addresses:
            return False
        self.broker_id, self.address = broker_id, addresses[broker_id]
        return True

    def failed(self, addresses: dict[int, str]) -> None:
        """The node does not answer, or does not have what it should: read from another one of
        these, which the broker's route has; empty: nobody knows.
        """
        master = addresses.get(MASTER_ID)
        slaves = sorted(each for each in addresses if each != MASTER_ID)
        self._rests_until = time.monotonic() + REST_SECONDS
        if self.is_slave:
            if master is not None:
                self.move(MASTER_ID, addresses)
        elif master is not None and master != self.address:
            self.address = master
        elif self._allows_slaves and slaves:
            self.move(slaves[0], addresses)


POOLED_MAX = 16
"""Most idle connections of a process."""

IDLE_SECONDS_MAX = 60.0
"""A server closes connections that are idle for 120 s."""


class ConnectionPool:
    """Idle connections by what they are for. Safe to use from several threads.

    Spark keeps its Python workers for further tasks, which saves them the time of making one, of
    TLS above all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[tuple[Hashable, float, BlockingConnection]] = []

    def take(self, key: Hashable) -> BlockingConnection | None:
        """A connection for ``key`` that nothing is open on; None: make one."""
        with self._lock:
            self._forget_old()
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] != key:
                    continue
                connection = self._idle.pop(place)[2]
                if connection.is_quiet():
                    return connection
                connection.close()
        return None

    def give(self, key: Hashable, connection: BlockingConnection) -> None:
        """Keep a connection whose answers have all been taken."""
        with self._lock:
            self._forget_old()
            if connection.closed:
                return
            self._idle.append((key, time.monotonic(), connection))
            while len(self._idle) > POOLED_MAX:
                self._idle.pop(0)[2].close()

    def close(self) -> None:
        """Close all; the pool can be used again."""
        with self._lock:
            for _, _, connection in self._idle:
                connection.close()
            self._idle.clear()

    def _forget_old(self) -> None:
        if self._process != os.getpid():
            # A forked process shares sockets with its parent, which goes on using them.
            self._process = os.getpid()
            for _, _, connection in self._idle:
                connection.close()
            self._idle.clear()
        oldest = time.monotonic() - IDLE_SECONDS_MAX
        while self._idle and self._idle[0][1] < oldest:
            self._idle.pop(0)[2].close()


POOL = ConnectionPool()
"""That of this process."""


PULLS_IN_FLIGHT = 64
"""Open requests per queue; each answer has 256 KiB at most, unless one message is larger. Small
messages make answers of some 10 KiB, and a busy machine lets each round trip wait."""

IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024
"""About so many bytes are asked for at once, by the size of the last answers, and answers that wait
for an earlier one never hold more."""

SLOT_OFFSETS_MAX = 1024
"""Most messages asked for at once; brokers give fewer."""

FULL_ANSWERS_BEFORE_GROWTH = 64
"""So many full answers before longer slots are tried; twice as many each time after that was in
vain, since each such slot costs a request of its own for its rest."""

ANSWER_TIMEOUT_SECONDS = 15.0
RETRY_PAUSE_SECONDS = 0.2

_OFFSET_GONE = "MESSAGE_WAS_REMOVING"

_log = logging.getLogger(__name__)


class Pulled(NamedTuple):
    """What one answer gave."""

    records: memoryview
    """Raw records that follow each other; may be empty."""
    offsets: int
    """How many offsets of the range this covers; lost ones do not count."""


@dataclass(slots=True, eq=False)
class _Slot:
    """Part of a range that is asked for in one request; waits for the answer to it."""

    start: int
    end: int
    arrived: _Arrived
    response: PulledFrame | RemotingCommand | None = None

    def done(self) -> bool:
        """Nobody gives up a slot alone."""
        return False

    def set_result(self, response: PulledFrame | RemotingCommand, /) -> None:
        """The answer has come."""
        self.response = response
        self.arrived.bytes += self.size

    def set_exception(self, error: Exception, /) -> None:
        """It will not come: whoever waits raises that."""

    @property
    def size(self) -> int:
        """Bytes of the answer's records; 0: it is not here yet."""
        response = self.response
        if response is None:
            return 0
        if isinstance(response, tuple):
            return len(response[4]) - response[5]
        return len(response.body)


class _Arrived:
    """The answers that wait for their turn."""

    bytes = 0


class _Answer(NamedTuple):
    code: int
    remark: str
    records: memoryview
    next_offset: int
    suggested: int
    """The node to ask next, by broker id."""


class RangePuller:
    """Pulls the ranges of one Spark partition from one broker.

    Args:
        options: of the query; group, tags, ``pollTimeoutMs`` and ``failOnDataLoss`` count here.
        known: what was known of the queues when the ranges were planned.
    """

    def __init__(
        self,
        address: str,
        options: SourceOptions,
        known: Mapping[MessageQueue, Known] | None = None,
    ) -> None:
        self._node = Node(address, allows_slaves=options.read_from_slaves)
        self._options = options
        self._known = dict(known or {})
        self._connector = Connector(options.credentials, options.tls, message_codec().pull_answer)
        self._names = RouteFinder(options.name_servers, self._connector, answer_seconds_max=1.0)
        self._connection: BlockingConnection | None = None
        self._stride = SLOT_OFFSETS_MAX
        self._learned = False
        self._full_answers = 0
        self._growth_after = FULL_ANSWERS_BEFORE_GROWTH
        self._grown_from = 0
        """The stride before longer slots were tried; 0: they are not."""
        self._failing_since: float | None = None
        self._slots: deque[_Slot] = deque()
        self._arrived = _Arrived()
        self._answer_bytes = 0
        """The size of an answer, by those that came last."""

    def close(self) -> None:
        """Close the connections, or leave the idle one to the next task. Idempotent."""
        self._names.close()
        connection = self._connection
        if connection is not None and not self._slots and not connection.closed:
            self._connection = None
            POOL.give(self._connector.key(connection.address), connection)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def pull(self, queue_range: QueueRange) -> Iterator[Pulled]:
        """The records of a range, in order.

        Raises:
            DataLossError: part of the range is gone, and ``failOnDataLoss`` is set.
            RemotingError: the broker could not be reached for ``pollTimeoutMs``.
            BrokerError: it refuses (topic without read permission, group not allowed ...).
        """
        template = _Requests(queue_range, self._options)
        position = queue_range.start
        self._forget_requests()
        while position < queue_range.end:
            try:
                self._prefetch(template, position, queue_range.end)
                answer = self._answer_of(self._slots[0])
                if answer is None:
                    self._drop_requests()
                    continue
                pulled, position = self._take(answer, template, queue_range)
            except RemotingError as error:
                if not is_passing(error) or not self._wait(error):
                    raise
                self._drop_requests()
                self._go_elsewhere(queue_range.queue)
                continue
            if pulled is not None:
                yield pulled

    def _forget_requests(self) -> None:
        self._slots.clear()
        self._arrived = _Arrived()

    def _prefetch(self, template: _Requests, position: int, end: int) -> None:
        if self._connection is None:
            address = self._node.address
            pooled = POOL.take(self._connector.key(address))
            self._connection = pooled or self._connector.connect(address)
        slots = self._slots
        # The first answer tells how much this broker gives at once.
        window = 1
        if self._learned:
            window = min(PULLS_IN_FLIGHT, IN_FLIGHT_BYTES_MAX // max(self._answer_bytes, 1) or 1)
        # Several requests in one write: a write costs as much as all the rest of a pull.
        if len(slots) > window // 2:
            return
        planned = slots[-1].end if slots else position
        wanted: list[_Slot] = []
        while len(slots) + len(wanted) < window and planned < end:
            wanted.append(_Slot(planned, min(planned + self._stride, end), self._arrived))
            planned = wanted[-1].end
        if wanted:
            slots.extend(wanted)
            self._ask(wanted, template)

    def _ask(self, slots: list[_Slot], template: _Requests) -> None:
        """Ask for slots, all in one write."""
        connection = self._connection
        assert connection is not None
        frames = []
        for slot in slots:
            opaque = connection.next_opaque()
            frames.append(template.frame(slot, opaque, connection))
            connection.requests.pulls.wait(slot, opaque, inf, "")
        connection.send_frames(b"".join(frames), ANSWER_TIMEOUT_SECONDS)

    def _answer_of(self, slot: _Slot) -> _Answer | None:
        """The answer to the first slot; None: too much waits for it, so all is asked for again."""
        connection = self._connection
        assert connection is not None
        while (response := slot.response) is None:
            if self._arrived.bytes > IN_FLIGHT_BYTES_MAX:
                # Messages are larger than before: fewer are open from now on.
                self._answer_bytes = max(each.size for each in self._slots)
                return None
            connection.wait(ANSWER_TIMEOUT_SECONDS)
        self._arrived.bytes -= slot.size
        self._answer_bytes = max(slot.size, self._answer_bytes // 2)
        if isinstance(response, tuple):
            code, next_offset, suggested, _, frame, start = response
            if code == ResponseCode.SUCCESS:
                return _Answer(code, "", memoryview(frame)[start:], next_offset, suggested)
            # Its remark says more.
            response = RemotingCommand.decode(frame)
        return _slow_answer(response, self._node.address)

    def _take(
        self, answer: _Answer, template: _Requests, queue_range: QueueRange
    ) -> tuple[Pulled | None, int]:
        """What an answer to the first slot means: (records, position after it)."""
        slot = self._slots.popleft()
        code, remark, records, next_offset, suggested = answer
        moved = next_offset > slot.start
        if code == ResponseCode.SUCCESS or (
            code == ResponseCode.PULL_RETRY_IMMEDIATELY and remark != _OFFSET_GONE
        ):
            if not moved:
                raise RemoteProtocolError(
                    f"{self._node.address} answers with code {code} for offset {slot.start} of "
                    f"{queue_range.queue} but says to go on at {next_offset}"
                )
            if records and self._is_replaced(records, queue_range):
                self._drop_requests()
                if self._node.is_slave:
                    self._go_elsewhere(queue_range.queue)
                    return None, slot.start
                what = "the topic was deleted and created again"
                return None, self._lose(queue_range, slot.start, queue_range.end, what)
            self._failing_since = None
            self._adapt(slot, next_offset)
            self._ask_rest(slot, next_offset, template)
            if next_offset > slot.end:
                records = records_before(records, slot.end)
            stop = min(next_offset, slot.end)
            self._follow(suggested, queue_range.queue)
            return Pulled(records, stop - slot.start), stop
        error = BrokerError.from_response(code, remark or None, self._node.address)
        if self._node.is_slave:
            # It may be behind its master, which has the last word.
            self._drop_requests()
            if not self._wait(error):
                raise error
            self._go_elsewhere(queue_range.queue)
            return None, slot.start
        if is_passing(error) or (code == ResponseCode.PULL_NOT_FOUND and not moved):
            # Nothing there yet: the broker is busy, or its queues are still being rebuilt.
            self._drop_requests()
            if self._wait(error):
                return None, slot.start
            if code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
                raise error
            return None, self._lose(queue_range, slot.start, queue_range.end, remark)
        if code in _GONE:
            self._drop_requests()
            lost_to = min(next_offset, queue_range.end) if moved else queue_range.end
            known = self._known.get(queue_range.queue)
            if moved and slot.start == queue_range.start and known and known.from_minimum:
                return None, lost_to
            return None, self._lose(queue_range, slot.start, lost_to, remark)
        raise error

    def _ask_rest(self, slot: _Slot, next_offset: int, template: _Requests) -> None:
        # With nothing else open, the next round plans on from there by itself.
        if next_offset >= slot.end or not self._slots:
            return
        rest: list[_Slot] = []
        start = next_offset
        while start < slot.end:
            last = len(rest) + 1 == PULLS_IN_FLIGHT
            end = slot.end if last else min(start + self._stride, slot.end)
            rest.append(_Slot(start, end, self._arrived))
            start = end
        self._slots.extendleft(reversed(rest))
        # The wait for the first answer meets the closed connection and makes a new one.
        with contextlib.suppress(RemotingError):
            self._ask(rest, template)

    def _adapt(self, slot: _Slot, next_offset: int) -> None:
        """Learn from an answer how long the next slots should be."""
        covered, length = next_offset - slot.start, slot.end - slot.start
        self._learned = True
        if covered < length:
            if 0 < covered <= self._grown_from:
                self._growth_after *= 2
                self._grown_from = 0
            self._stride = covered
            self._full_answers = 0
        elif length >= self._stride:
            self._full_answers += 1
            if covered > length or self._full_answers >= self._growth_after:
                if self._grown_from:
                    self._growth_after = FULL_ANSWERS_BEFORE_GROWTH
                self._full_answers, self._grown_from = 0, self._stride
                self._stride = min(max(self._stride * 2, covered), SLOT_OFFSETS_MAX)

    def _drop_requests(self) -> None:
        """Answers to what is in flight must not be taken for answers to new requests."""
        self._disconnect()
        self._forget_requests()

    def _lose(self, queue_range: QueueRange, start: int, end: int, remark: str) -> int:
        topic, broker_name, queue_id = queue_range.queue
        what = (
            f"offsets {start} to {end - 1} of {topic} queue {queue_id} on {broker_name} "
            f"({self._node.address}) are not there any more ({remark or 'no remark'})"
        )
        is_error = self._options.fail_on_data_loss
        report_loss(what, fail_on_data_loss=is_error, going_on=" behind it")
        return end

    def _wait(self, error: Exception) -> bool:
        """Pause before a new try; False when ``pollTimeoutMs`` have passed without a record."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            _log.info("%s; trying again", error)
        if now - self._failing_since >= self._options.poll_timeout_ms / 1000:
            self._failing_since = None
            return False
        time.sleep(RETRY_PAUSE_SECONDS)
        return True

    def _go_elsewhere(self, queue: MessageQueue) -> None:
        """Look where the broker is now: it may be back elsewhere, or have a slave."""
        before = self._node.address
        try:
            self._node.failed(self._names.addresses(queue.topic, queue.broker_name))
        except RemoteProtocolError:
            return
        if self._node.address != before:
            _log.info("broker %s is read at %s now", queue.broker_name, self._node.address)

    def _follow(self, suggested: int, queue: MessageQueue) -> None:
        """Go to the node that the broker suggests; what is in flight is asked again there."""
        wanted = self._node.suggested_node(suggested)
        if wanted is None:
            return
        try:
            addresses = self._names.addresses(queue.topic, queue.broker_name)
        except RemoteProtocolError:
            return
        if self._node.move(wanted, addresses):
            _log.info("broker %s suggests node %d", queue.broker_name, wanted)
            self._drop_requests()

    def _is_replaced(self, records: memoryview, queue_range: QueueRange) -> bool:
        """Whether the records are of another life of the topic than the range.

        Those that were there when the range was planned are not newer than the last of them was,
        unless the broker's clock was set; so a newer one is a reason to examine that last one.
        """
        known = self._known.get(queue_range.queue)
        mark = known.mark if known else None
        if mark is None or mark.end < queue_range.end or store_time_of(records) <= mark.time:
            return False
        queue = queue_range.queue
        master = Master(queue.broker_name, self._node.address, self._connector)
        try:
            stored = master.store_time(queue, mark.end - 1, self._options.consumer_group)
        finally:
            master.close()
        if stored == mark.time:
            del self._known[queue]
        return stored != mark.time


_GONE = frozenset(
    [
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    ]
)


class _Requests:
    """Makes the pull requests of one range.

    The members that a reader of this queue never changes are encoded once: a million rows take
    some 30,000 requests. Signed requests are made one by one.
    """

    def __init__(self, queue_range: QueueRange, options: SourceOptions) -> None:
        kind = options.expression_type.value
        expression = options.sub_expression
        header = pull_header(queue_range.queue, options.consumer_group, expression, kind=kind)
        self._fields = header.encode()
        self._offset, self._count = (
            header.wire_name(place) for place in ("queue_offset", "max_msg_nums")
        )
        fields = {name: value.replace("%", "%%") for name, value in self._fields.items()}
        fields |= {self._offset: "%d", self._count: "%d"}
        code = RequestCode.PULL_MESSAGE
        whole = HeaderFields(code, LanguageCode.PYTHON, VERSION, 0, 0, None, fields)
        self._template = encode_json_header(whole).replace(b'"opaque":0', b'"opaque":%d')

    def frame(self, slot: _Slot, opaque: int, connection: BlockingConnection) -> bytes:
        """The request for one slot."""
        count = slot.end - slot.start
        if not connection.signs:
            return encode_frame(self._template % (slot.start, count, opaque))
        fields = {**self._fields, self._offset: str(slot.start), self._count: str(count)}
        command = RemotingCommand(RequestCode.PULL_MESSAGE, fields)
        return connection.encode(command, opaque)


def _slow_answer(answer: RemotingCommand, address: str) -> _Answer:
    """What any answer says."""
    try:
        next_offset = int(answer.ext_fields.get("nextBeginOffset", -1))
        suggested = int(answer.ext_fields.get("suggestWhichBrokerId", MASTER_ID))
    except ValueError as error:
        raise RemoteProtocolError(f"{address} sent a header that is not readable: {error}") from (
            error
        )
    records = memoryview(answer.body)
    return _Answer(answer.code, answer.remark or "", records, next_offset, suggested)
