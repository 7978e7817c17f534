"""What the planning side asks of one master: the bounds of its queues, and times of messages.

One request per topic (GET_TOPIC_STATS_INFO) gives the bounds and the last store time of all its
queues; an answer that has not changed is not read again. Each round runs in a thread of its own, so
that a master that is silent holds up nobody.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from kerolox.errors import BrokerError, RemoteProtocolError
from kerolox.message import ALL_TAGS, MessageQueue
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads, members_of
from kerolox.protocol.headers import PullMessageHeader
from kerolox.protocol.records import decode_records
from kerolox.spark.network.routes import ask_all
from kerolox.spark.positions.offsets import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kerolox.remoting.blocking import BlockingConnection
    from kerolox.spark.network.connecting import Connector

ANSWER_SECONDS_MAX = 5.0
"""Longest wait for an answer of a master."""

_Result = TypeVar("_Result")

TopicBounds = dict[int, Bounds]
"""Of one topic on one master, by queue id."""


def in_thread(work: Callable[[], _Result]) -> Future[_Result]:
    """A call in a thread of its own, which nobody has to wait for."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kerolox-spark", daemon=True).start()
    return future


def afterwards(future: Future[_Result], action: Callable[[], None]) -> None:
    """Do something when a call is done: now, or in its thread."""
    future.add_done_callback(lambda _: action())


def is_done(future: Future[_Result], seconds: float) -> bool:
    """Whether a call is done within so many seconds."""
    return bool(wait([future], seconds).done)


def pull_header(
    queue: MessageQueue, group: str, expression: str, *, offset: int = 0, count: int = 0
) -> PullMessageHeader:
    """Asks for records at once, by an expression of tags, and commits nothing."""
    return PullMessageHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=expression,
        expression_type="TAG",
    )


class Master:
    """One master; its connection stays open. One call at a time."""

    def __init__(self, name: str, address: str, connector: Connector) -> None:
        self.name = name
        self._connector = connector
        self.address = address
        self._connections: dict[str, BlockingConnection] = {}
        self._known: dict[str, tuple[bytes, TopicBounds]] = {}
        """The last answer about each topic, and what it says."""

    def bounds(self, topics: Mapping[str, int]) -> dict[str, TopicBounds | BrokerError]:
        """Of each topic the bounds of so many queues, or the refusal.

        Raises:
            RemotingError: no answer.
        """
        code = RequestCode.GET_TOPIC_STATS_INFO
        commands = [RemotingCommand.request(code, {"topic": topic}) for topic in topics]
        results: dict[str, TopicBounds | BrokerError] = {}
        for topic, answer in zip(topics, self._ask(commands), strict=True):
            if answer.code != ResponseCode.SUCCESS:
                results[topic] = BrokerError.from_response(answer.code, answer.remark, self.address)
                continue
            known = self._known.get(topic)
            if known is None or known[0] != answer.body:
                known = self._known[topic] = answer.body, self._parse(answer.body)
            results[topic] = known[1]
        for gone in self._known.keys() - topics.keys():
            del self._known[gone]
        # The answer has the queues that can be written to; there may be more to read.
        for topic, queues in topics.items():
            held = results[topic]
            if not isinstance(held, BrokerError):
                missing = range(queues) if not held else set(range(queues)) - held.keys()
                extra = {queue_id: self._one(topic, queue_id) for queue_id in sorted(missing)}
                results[topic] = {**held, **extra}
        return results

    def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        """When a message was stored, ms; None when it is not there (any more).

        Raises:
            RemotingError, BrokerError: no answer, or a refusal.
        """
        header = pull_header(queue, group, ALL_TAGS, offset=offset, count=1)
        request = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        answer = self._ask([request])[0]
        if answer.code in _NOT_THERE:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError.from_response(answer.code, answer.remark, self.address)
        record = next(iter(decode_records(answer.body)), None)
        if record is None or record.queue_offset != offset:
            return None
        return record.store_timestamp

    def first_after(self, queue: MessageQueue, held: Bounds, time: int, group: str) -> int:
        """The offset of the first message that was stored later than ``time`` (ms).

        Raises:
            RemotingError, BrokerError: no answer, or a refusal.
        """
        fields = {"topic": queue.topic, "queueId": queue.queue_id}
        earliest = self._number(RequestCode.GET_EARLIEST_MSG_STORETIME, fields, "timestamp")
        if held.minimum >= held.maximum or earliest > time:
            return held.minimum
        if held.last_time <= time:
            return held.maximum
        low, high = held.minimum, held.maximum
        while low < high:
            middle = (low + high) // 2
            stored = self.store_time(queue, middle, group)
            if stored is None or stored <= time:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        """Close the connection. Idempotent; it is opened again when it is needed."""
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    def _ask(self, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        return ask_all(
            self._connector, self._connections, self.address, commands, ANSWER_SECONDS_MAX
        )

    def _one(self, topic: str, queue_id: int) -> Bounds:
        fields = {"topic": topic, "queueId": queue_id}
        low, high = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        return Bounds(self._number(low, fields, "offset"), self._number(high, fields, "offset"))

    def _number(self, code: int, fields: Mapping[str, object], member: str) -> int:
        answer = self._ask([RemotingCommand.request(code, fields)])[0]
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError.from_response(answer.code, answer.remark, self.address)
        try:
            return int(answer.ext_fields[member])
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"{self.address} answered code {code} without {member}: {error!r}"
            ) from error

    def _parse(self, body: bytes) -> TopicBounds:
        try:
            table = members_of(members_of(loads(body))["offsetTable"])
            bounds: TopicBounds = {}
            for queue, value in table.items():
                if not isinstance(queue, MessageQueue):
                    raise ValueError(f"{queue!r:.100} is no queue")
                held = members_of(value)
                bounds[queue.queue_id] = Bounds(
                    int(str(held["minOffset"])),
                    int(str(held["maxOffset"])),
                    max(int(str(held["lastUpdateTimestamp"])), 0),
                )
            return bounds
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"{self.address} sent bounds that are not readable: {error!r}"
            ) from error


_NOT_THERE = frozenset(
    [
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    ]
)
