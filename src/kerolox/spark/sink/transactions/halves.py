"""A task's rows as half messages: their marks, their brokers, and which of them count."""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import TYPE_CHECKING

from kerolox.addresses import local_address
from kerolox.client.aio.network.identity import client_id_of
from kerolox.client.core.heartbeat import heartbeat_body
from kerolox.client.core.sending.transaction import Half, TransactionState, end_request
from kerolox.errors import KeroloxError
from kerolox.message import PropertyKey
from kerolox.protocol.codes import MessageSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.half_messages import Attempt
from kerolox.protocol.records import decode_record
from kerolox.spark.sink.transactions.half_queue import HalfQueue, Support, is_copy
from kerolox.spark.sink.transactions.messages import HalfRange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kerolox.remoting.blocking import BlockingConnection
    from kerolox.spark.sink.broker_sender import BrokerResult
    from kerolox.spark.sink.transactions.decisions import Decision

ATTEMPT_STEP = 10**16
"""An attempt's number is Spark's number of it times this, plus a random one: after a driver was
killed Spark counts from 0 again, while tasks of the old one may still write."""

HEARTBEAT_SECONDS_MAX = 3.0

_log = logging.getLogger(__name__)


def new_attempt(query: str, batch: int, partition: int, number: int) -> Attempt:
    """The attempt of a task, unlike any other. ``query``: the id of the query, or the name of a
    batch write, whose ``batch`` is 0. ``number``: Spark's of the attempt, from 0 on.
    """
    return Attempt(query, batch, partition, number % 100 * ATTEMPT_STEP + secrets.randbits(53))


class HalfWriter:
    """Marks the rows of one attempt, and keeps what is known of their brokers. ``queue_of`` makes
    the half queue of a broker, by its name.
    """

    def __init__(
        self,
        attempt: Attempt,
        group: str,
        queue_of: Callable[[str], HalfQueue],
        checks: Checks,
    ) -> None:
        self.attempt = attempt.text
        self.group = group
        self.properties = {
            PropertyKey.TRANSACTION_PREPARED: "true",
            PropertyKey.PRODUCER_GROUP: group,
            PropertyKey.SINK: self.attempt,
        }
        self.sys_flag = int(MessageSysFlag.TRANSACTION_PREPARED)
        self._queue_of = queue_of
        self._queues: dict[str, HalfQueue] = {}
        self._support: dict[str, Support] = {}
        self._checks = checks

    def takes_batches(self, broker_name: str) -> bool:
        """Whether a broker takes halves in batches; notes first where its half queue ends."""
        known = self._support.get(broker_name)
        if known is None:
            queue = self._queues[broker_name] = self._queue_of(broker_name)
            known = self._support[broker_name] = queue.support()
        return known.in_batches

    def send_heartbeat(self, connection: BlockingConnection) -> None:
        """Tell a broker that somebody of the group is here to be asked."""
        self._checks.send_heartbeat(connection)

    def requested(
        self, broker_name: str, connection: BlockingConnection, request: RemotingCommand
    ) -> None:
        """Answer what a broker asks."""
        known = self._support.get(broker_name)
        remembers = known is not None and known.in_bulk
        self._checks.answer(connection, request, broker_name, remembers=remembers)

    def range_of(self, broker_name: str, topic: str, outcome: BrokerResult) -> HalfRange:
        """Where the halves of this attempt lie on a broker, once all are stored."""
        excluded: tuple[int, ...] = ()
        if outcome.unsure:
            excluded = self._doubles(broker_name, outcome)
        begin = self._support[broker_name].end
        low, high, rows = outcome.low, outcome.high, outcome.rows
        return HalfRange(broker_name, topic, min(begin, low), low, high, rows, excluded)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for queue in self._queues.values():
            queue.close()

    def _doubles(self, broker_name: str, outcome: BrokerResult) -> tuple[int, ...]:
        """Halves that hold a row a second time, since their request was sent again."""
        seen: set[str] = set()
        doubles = []
        for half in self._queues[broker_name].halves(outcome.low, outcome.high):
            if half.properties.get(PropertyKey.SINK) != self.attempt or is_copy(half):
                continue
            if half.unique_key in seen:
                doubles.append(half.queue_offset)
            seen.add(half.unique_key)
        if doubles:
            _log.warning(
                "%d rows are stored twice as half messages; each counts once", len(doubles)
            )
        return tuple(doubles)


class Checks:
    """Answers what brokers ask about open halves (CHECK_TRANSACTION_STATE), from the decisions.

    A half of another query, or of a batch that is not decided, gets no answer; then the broker asks
    again, 15 times, and sets the half aside, where the driver still finds it.

    Args:
        query: whose halves are known here.
        decision_of: what was decided of a batch; None: nothing, or it can't be read here.
    """

    def __init__(
        self, group: str, query: str, decision_of: Callable[[int], Decision | None]
    ) -> None:
        self._group = group
        self._query = query
        self._decision_of = decision_of
        instance = f"{os.getpid()}#{time.perf_counter_ns()}"
        self._client_id = client_id_of(local_address(), instance, keep_default=True)

    def send_heartbeat(self, connection: BlockingConnection) -> None:
        """Register as a member of the group; a broker that does not take it asks nobody."""
        body = heartbeat_body(self._client_id, producer_groups=[self._group])
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
        connection.invoke(request, HEARTBEAT_SECONDS_MAX)

    def answer(
        self,
        connection: BlockingConnection,
        request: RemotingCommand,
        broker_name: str,
        *,
        remembers: bool,
    ) -> None:
        """Answer a request of a broker; what is none of these is ignored.

        ``remembers``: the broker ends a half once, whoever says so. Of others only the driver ends
        halves that count: a broker that asks names a copy, and forgets what it ended.
        """
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        try:
            half = decode_record(request.body, inflate=False)[0]
            state = self._state_of(half.properties, broker_name)
            named = Half(
                int(request.ext_fields["tranStateTableOffset"]),
                int(request.ext_fields["commitLogOffset"]),
                half.unique_key,
            )
        except (KeroloxError, KeyError, ValueError) as error:
            _log.warning("%s asks what can't be read: %s", connection.address, error)
            return
        if state is TransactionState.UNKNOWN or (
            state is TransactionState.COMMIT and not remembers
        ):
            return
        connection.send(end_request(named, self._group, state, from_check=True))

    def _state_of(self, properties: Mapping[str, str], broker_name: str) -> TransactionState:
        text = properties.get(PropertyKey.SINK, "")
        attempt = Attempt.parse(text)
        if attempt is None or attempt.query != self._query:
            return TransactionState.UNKNOWN
        decision = self._decision_of(attempt.batch)
        if decision is None:
            return TransactionState.UNKNOWN
        # Of a copy this is the offset of the original, which ranges speak of.
        offset = properties.get(PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET)
        counts = decision.counts(text, broker_name, None if offset is None else int(offset))
        if counts is None:
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if counts else TransactionState.ROLLBACK
