"""The half queue of one broker: what it can do, which halves it has, and their ends.

A broker of Kerolox ends halves in bulk, each once whatever becomes of a request or of the broker. A
RocketMQ broker knows END_TRANSACTION alone: halves are pulled and ended one by one. It does not
remember which it ended, so after a request whose end is unknown the final message is looked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kerolox.client.core.sending.retry import is_passing
from kerolox.client.core.sending.transaction import Half, TransactionState, end_request
from kerolox.errors import (
    BrokerError,
    ConfigError,
    KeroloxError,
    RemoteProtocolError,
    RemotingError,
)
from kerolox.message import MessageExt, MessageQueue, PropertyKey
from kerolox.protocol.codes import PULL_COUNT_MAX, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.half_messages import (
    EndedHalves,
    HalfSelection,
    HalfSelector,
    end_half_messages_request,
)
from kerolox.protocol.names import HALF_TOPIC, TOOLS_GROUP, UNIQUE_KEY_QUERY_FIELD
from kerolox.protocol.records import decode_records
from kerolox.remoting.blocking import BlockingConnection
from kerolox.remoting.core.requests import Answer
from kerolox.spark.network.brokers import pull_header
from kerolox.spark.network.connecting import Connector
from kerolox.spark.sink.errors import SinkError

ANSWER_SECONDS_MAX = 30.0
"""Longest wait for an answer; a request in bulk takes a broker a second or so."""

RETRY_PAUSE_SECONDS = 0.2
STALLS_MAX = 20
"""Answers in a row that brought nothing on."""

ENDS_IN_FLIGHT = 256
"""Ends one by one that are open at once."""

COPIES_MAX = 32
"""Records of one key that are examined for an earlier final message."""

_log = logging.getLogger(__name__)


class Support(NamedTuple):
    """A broker's support for half messages, and the end of its half queue."""

    end: int
    in_bulk: bool
    in_batches: bool


class HalfQueue:
    """The half queue of one broker. Belongs to one thread. ``address``: where it is; asked again
    after each failure. ``seconds_max``: how long the broker may be away.
    """

    def __init__(
        self,
        broker_name: str,
        address: Callable[[bool], str],
        connector: Connector,
        group: str,
        *,
        seconds_max: float,
    ) -> None:
        self._name = broker_name
        self._address = address
        self._connector = connector
        self._group = group
        self._seconds_max = seconds_max
        self._connection: BlockingConnection | None = None
        self._support: Support | None = None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def support(self) -> Support:
        """What the broker can do, and where its half queue ends now; SinkError: it is away for too
        long, or refuses.
        """
        request = end_half_messages_request(self._group, 0, 0, HalfSelection(), commit=False)
        answer = self._ask(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if answer.code == ResponseCode.SUCCESS:
            known = EndedHalves.of(answer)
            self._support = Support(known.max_offset, True, known.half_batches)
        else:
            fields = {"topic": HALF_TOPIC, "queueId": 0}
            answer = self._ask(RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields))
            self._support = Support(self._number(answer, "offset"), False, False)
        return self._support

    def end(
        self, start: int, stop: int, selection: HalfSelection, *, commit: bool, careful: bool
    ) -> EndedHalves:
        """End the selected halves of ``[start, stop)``, each once. ``commit``: store their
        messages; else drop them. SinkError: the broker is away for too long, or refuses.

        ``careful``: some may have been ended before, so it first searches each one's final message
        at a broker that does not remember.
        """
        support = self._support or self.support()
        if start >= stop:
            return EndedHalves(stop, stop, 0, 0)
        if support.in_bulk:
            return self._end_in_bulk(start, stop, selection, commit=commit)
        return self._end_singly(start, stop, selection, commit=commit, careful=careful)

    def halves(self, start: int, stop: int) -> Iterator[MessageExt]:
        """The halves of ``[start, stop)`` that are still in the log, copies included."""
        position = start
        while position < stop:
            count = min(stop - position, PULL_COUNT_MAX)
            queue = MessageQueue(HALF_TOPIC, self._name, 0)
            header = pull_header(queue, TOOLS_GROUP, "*", offset=position, count=count)
            request = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
            answer = self._ask(
                request,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            )
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            for half in decode_records(answer.body, inflate=False):
                if position <= half.queue_offset < stop:
                    yield half
            onward = self._number(answer, "nextBeginOffset")
            if onward <= position:
                return
            position = onward

    # -- in bulk -------------------------------------------------------------------------------
    def _end_in_bulk(
        self, start: int, stop: int, selection: HalfSelection, *, commit: bool
    ) -> EndedHalves:
        position = start
        ended = before = stalls = 0
        while True:
            request = end_half_messages_request(
                self._group, position, stop, selection, commit=commit
            )
            answer = EndedHalves.of(self._ask(request))
            ended += answer.ended
            before += answer.ended_before
            if answer.next_offset >= min(stop, answer.max_offset):
                return answer._replace(ended=ended, ended_before=before)
            stalls = stalls + 1 if answer.next_offset <= position else 0
            if stalls > STALLS_MAX:
                raise SinkError(
                    f"broker {self._name} does not come beyond half message {position}; see its log"
                )
            position = max(position, answer.next_offset)

    # -- one by one ----------------------------------------------------------------------------
    def _end_singly(
        self, start: int, stop: int, selection: HalfSelection, *, commit: bool, careful: bool
    ) -> EndedHalves:
        selector = HalfSelector(selection)
        ended = before = 0
        some: list[MessageExt] = []
        for half in self.halves(start, stop):
            if not selector.chooses(half.properties.get(PropertyKey.SINK, "")):
                continue
            if commit and is_copy(half):
                continue
            some.append(half)
            if len(some) == ENDS_IN_FLIGHT:
                done = self._end_some(some, commit=commit, careful=careful)
                ended, before, some = ended + done, before + len(some) - done, []
        done = self._end_some(some, commit=commit, careful=careful)
        return EndedHalves(stop, stop, ended + done, before + len(some) - done)

    def _end_some(self, halves: list[MessageExt], *, commit: bool, careful: bool) -> int:
        """End these halves; how many were open."""
        open_halves = halves
        deadline = time.monotonic() + self._seconds_max
        ended = 0
        while open_halves:
            if commit and careful:
                open_halves = [half for half in open_halves if not self._was_committed(half)]
            left = self._try_to_end(open_halves, commit=commit)
            ended += len(open_halves) - len(left)
            if left and time.monotonic() >= deadline:
                raise SinkError(
                    f"broker {self._name} has not ended {len(left)} half messages within "
                    f"{self._seconds_max:g} s, the first at offset {left[0].queue_offset}"
                )
            # Whether these were ended is unknown.
            open_halves, careful = left, True
        return ended

    def _try_to_end(self, halves: list[MessageExt], *, commit: bool) -> list[MessageExt]:
        """End halves with all requests open at once; those of which the broker did not say it."""
        state = TransactionState.COMMIT if commit else TransactionState.ROLLBACK
        answers: list[Answer[RemotingCommand]] = [Answer() for _ in halves]
        failure: RemotingError | None = None
        try:
            connection = self._connected()
            requests = []
            for half in halves:
                named = Half(half.queue_offset, half.commit_log_offset, half.unique_key)
                requests.append(end_request(named, self._group, state, from_check=False))
                requests[-1].flag = 0
            connection.post(requests, answers, ANSWER_SECONDS_MAX)
            while connection.requests.calls:
                connection.wait(ANSWER_SECONDS_MAX)
        except RemotingError as error:
            if not is_passing(error):
                raise
            failure = error
        left = []
        for half, answer in zip(halves, answers, strict=True):
            if not answer.done() or answer.error is not None:
                left.append(half)
            elif (response := answer.get()).code != ResponseCode.SUCCESS:
                refusal = BrokerError.from_response(response.code, response.remark, self._name)
                if not is_passing(refusal):
                    raise SinkError(f"a half message can't be ended: {refusal}") from refusal
                left.append(half)
        if failure is not None:
            _log.warning("%s; half messages are ended again", failure)
            self.close()
        if left:
            time.sleep(RETRY_PAUSE_SECONDS)
        return left

    def _was_committed(self, half: MessageExt) -> bool:
        """Whether the final message of a half is in the index."""
        fields = {
            "topic": half.properties.get(PropertyKey.REAL_TOPIC, ""),
            "key": half.unique_key,
            "maxNum": COPIES_MAX,
            "beginTimestamp": max(half.born_timestamp - 1000, 0),
            "endTimestamp": 2**62,
            UNIQUE_KEY_QUERY_FIELD: "true",
        }
        answer = self._ask(
            RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields), ResponseCode.QUERY_NOT_FOUND
        )
        if answer.code != ResponseCode.SUCCESS:
            return False
        return any(
            found.prepared_transaction_offset == half.commit_log_offset
            and found.unique_key == half.unique_key
            for found in decode_records(answer.body, inflate=False)
        )

    # -- requests ------------------------------------------------------------------------------
    def _connected(self) -> BlockingConnection:
        if self._connection is None or self._connection.closed:
            again = self._connection is not None
            self._connection = None
            self._connection = self._connector.connect(self._address(again))
        return self._connection

    def _ask(self, request: RemotingCommand, *further: ResponseCode) -> RemotingCommand:
        """The answer to a request, which is SUCCESS or one of the further codes."""
        deadline = time.monotonic() + self._seconds_max
        while True:
            try:
                answer = self._connected().invoke(request, ANSWER_SECONDS_MAX)
                if answer.code == ResponseCode.SUCCESS or answer.code in further:
                    return answer
                refusal = BrokerError.from_response(answer.code, answer.remark, self._name)
                if not is_passing(refusal) and answer.code != ResponseCode.FLUSH_DISK_TIMEOUT:
                    raise SinkError(f"broker {self._name} refuses: {refusal}") from refusal
                failure: KeroloxError = refusal
            except (RemoteProtocolError, ConfigError, SinkError):
                raise
            except KeroloxError as error:
                failure = error
            if time.monotonic() >= deadline:
                raise SinkError(
                    f"broker {self._name} is away for {self._seconds_max:g} s (option "
                    f"sendTimeoutMs): {failure}"
                ) from failure
            time.sleep(RETRY_PAUSE_SECONDS)

    def _number(self, answer: RemotingCommand, member: str) -> int:
        try:
            return int(answer.ext_fields[member])
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"broker {self._name} answered without {member}: {error!r}"
            ) from error


def is_copy(half: MessageExt) -> bool:
    """The check of a broker put it at the end of the queue again; its original lies before it."""
    properties = half.properties
    return (
        PropertyKey.TRANSACTION_CHECK_TIMES in properties
        or PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET in properties
    )
