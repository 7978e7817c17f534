"""What the planning side asks of one master: the bounds of its queues, and times of messages.

One request per topic (GET_TOPIC_STATS_INFO) gives the bounds and the last store time of all its
queues; an answer that has not changed is not read again. Each round runs in a thread of its own, so
that a master that is silent holds up nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import TypeVar

from kerolox.client.core.consuming.time_search import TimeSearch
from kerolox.client.core.sending.retry import FILTER_REFUSED
from kerolox.errors import BrokerError, ConfigError, RemoteProtocolError
from kerolox.message import ALL_TAGS, MessageQueue
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads, members_of
from kerolox.protocol.headers import PullMessageHeader
from kerolox.protocol.records import decode_records
from kerolox.spark.network.connecting import Asker, Connector
from kerolox.spark.positions.offsets import Bounds

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
    queue: MessageQueue,
    group: str,
    expression: str,
    *,
    kind: str = "TAG",
    offset: int = 0,
    count: int = 0,
) -> PullMessageHeader:
    """Asks for records at once, by an expression of a kind, and commits nothing.

    The expression is in the request (``PullSysFlag.SUBSCRIPTION``), so the broker needs no
    heartbeat of the group, and members of that group are not disturbed.
    """
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
        expression_type=kind,
    )


class Master:
    """One master; its connection stays open. One call at a time."""

    def __init__(self, name: str, address: str, connector: Connector) -> None:
        self.name = name
        self.address = address
        self._asker = Asker(connector, ANSWER_SECONDS_MAX)
        self._known: dict[str, tuple[bytes, TopicBounds]] = {}
        """The last answer about each topic, and what it says."""

    def bounds(self, topics: Mapping[str, int]) -> dict[str, TopicBounds | BrokerError]:
        """Of each topic the bounds of so many queues, or the refusal."""
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
                extra = {
                    queue_id: self._one(MessageQueue(topic, self.name, queue_id))
                    for queue_id in sorted(missing)
                }
                results[topic] = {**held, **extra}
        return results

    def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        """When a message was stored, ms; None when it is not there (any more)."""
        return self._store_times({queue: offset}, group)[queue]

    def check_filter(self, header: PullMessageHeader) -> None:
        """See whether the broker takes pulls with a filter; ConfigError: it does not
        (``enablePropertyFilter``).
        """
        answer = self._ask([RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())])[0]
        if FILTER_REFUSED in (answer.remark or ""):
            raise ConfigError(
                f"option subExpressionType=SQL92: broker {self.name} at {self.address} refuses "
                f"it ({answer.remark}); set enablePropertyFilter=true there, or filter rows instead"
            )
        if answer.code not in (ResponseCode.SUCCESS, *_NOT_THERE):
            raise BrokerError.from_response(answer.code, answer.remark, self.address)

    def first_since(
        self, times: Mapping[MessageQueue, int], held: Mapping[MessageQueue, Bounds], group: str
    ) -> dict[MessageQueue, int]:
        """The first offset of each queue that was stored at its time (ms) or later, else its end.

        Where that is the broker knows nearly (code 29); the messages around it tell exactly.
        """
        filled = [queue for queue in times if held[queue].maximum > held[queue].minimum]
        hints = self._numbers(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            [{**_queue_fields(queue), "timestamp": times[queue]} for queue in filled],
            "offset",
        )
        searches = {
            queue: TimeSearch(held[queue].minimum, held[queue].maximum, times[queue], hint or 0)
            for queue, hint in zip(filled, hints, strict=True)
        }
        while open_ones := {
            queue: probe
            for queue, search in searches.items()
            if (probe := search.probe()) is not None
        }:
            for queue, stored in self._store_times(open_ones, group).items():
                searches[queue].probed(stored)
        found = {queue: search.result for queue, search in searches.items()}
        return {queue: found.get(queue, held[queue].maximum) for queue in times}

    def lost(self, queues: Collection[MessageQueue], group: str) -> dict[MessageQueue, int]:
        """Where those of the queues end that the broker itself lets nobody read; a route may be
        older than that. Errors as above."""
        asked = list(queues)
        pulls = [pull_header(queue, group, ALL_TAGS, count=1).encode() for queue in asked]
        answers = self._ask([RemotingCommand(RequestCode.PULL_MESSAGE, pull) for pull in pulls])
        lost = [
            queue
            for queue, answer in zip(asked, answers, strict=True)
            if _NO_QUEUE in (answer.remark or "")
        ]
        fields = [_queue_fields(queue) for queue in lost]
        ends = self._numbers(RequestCode.GET_MAX_OFFSET, fields, "offset")
        return {queue: end or 0 for queue, end in zip(lost, ends, strict=True)}

    def committed(self, queues: Collection[MessageQueue], group: str) -> dict[MessageQueue, int]:
        """The offsets of a group; queues of which it has none are left out. Errors as above."""
        asked = list(queues)
        fields = [{"consumerGroup": group, **_queue_fields(queue)} for queue in asked]
        code = RequestCode.QUERY_CONSUMER_OFFSET
        offsets = self._numbers(code, fields, "offset", or_none=ResponseCode.QUERY_NOT_FOUND)
        return {
            queue: offset
            for queue, offset in zip(asked, offsets, strict=True)
            if offset is not None and offset >= 0
        }

    def commit(self, offsets: Mapping[MessageQueue, int], group: str) -> None:
        """Store offsets of a group. Errors as above."""
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        commands = [
            RemotingCommand.request(
                code, {"consumerGroup": group, **_queue_fields(queue), "commitOffset": offset}
            )
            for queue, offset in offsets.items()
        ]
        for answer in self._ask(commands):
            answer.raise_for_code(self.address)

    def close(self) -> None:
        """Close the connection. Idempotent; it is opened again when it is needed."""
        self._asker.close()

    def _ask(self, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        return self._asker.ask(self.address, commands)

    def _store_times(
        self, offsets: Mapping[MessageQueue, int], group: str
    ) -> dict[MessageQueue, int | None]:
        commands = []
        for queue, offset in offsets.items():
            header = pull_header(queue, group, ALL_TAGS, offset=offset, count=1)
            commands.append(RemotingCommand(RequestCode.PULL_MESSAGE, header.encode()))
        answers = self._ask(commands)
        return {
            queue: self._time_of(answer, offset)
            for (queue, offset), answer in zip(offsets.items(), answers, strict=True)
        }

    def _time_of(self, answer: RemotingCommand, offset: int) -> int | None:
        if answer.code in _NOT_THERE:
            return None
        answer.raise_for_code(self.address)
        record = next(iter(decode_records(answer.body)), None)
        if record is None or record.queue_offset != offset:
            return None
        return record.store_timestamp

    def _one(self, queue: MessageQueue) -> Bounds:
        low, high = (
            self._numbers(code, [_queue_fields(queue)], "offset")[0] or 0
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        )
        return Bounds(low, high)

    def _numbers(
        self,
        code: int,
        requests: list[dict[str, object]],
        member: str,
        *,
        or_none: int | None = None,
    ) -> list[int | None]:
        """A number of each answer; None where a broker answers with the code ``or_none``."""
        numbers: list[int | None] = []
        for answer in self._ask([RemotingCommand.request(code, fields) for fields in requests]):
            if answer.code == or_none:
                numbers.append(None)
                continue
            answer.raise_for_code(self.address)
            try:
                numbers.append(int(answer.ext_fields[member]))
            except (KeyError, ValueError) as error:
                raise RemoteProtocolError(
                    f"{self.address} answered code {code} without {member}: {error!r}"
                ) from error
        return numbers

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


def _queue_fields(queue: MessageQueue) -> dict[str, object]:
    return {"topic": queue.topic, "queueId": queue.queue_id}


_NO_QUEUE = "is illegal, topic:["
"""In the remark to a pull of a queue that the topic does not have (``PullMessageProcessor``)."""

_NOT_THERE = frozenset(
    [
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    ]
)
