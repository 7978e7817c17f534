"""Ending half messages in bulk: a request of our own, which a RocketMQ broker does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.errors import BrokerError, RemoteProtocolError
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.extensions.half_messages import (
    EndedHalves,
    HalfSelection,
    end_half_messages_request,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


TO_THE_END = (1 << 63) - 1
"""As the end of a range: up to the last half message that the broker has."""

STALLS_MAX = 20
"""Answers in a row that brought nothing on; each may have taken the broker a second."""

_PROBE_GROUP = "TOOLS_PRODUCER"


@dataclass(frozen=True, slots=True)
class HalfMessageSupport:
    """The requests about half messages that a broker supports beyond RocketMQ's."""

    ends: bool
    """It takes END_HALF_MESSAGES."""
    batches: bool
    """It takes half messages in batches (SEND_BATCH_MESSAGE)."""


@checked()
class HalfMessageRequests(ClusterRequests):
    """Ends half messages."""

    async def half_message_support(self, broker: str) -> HalfMessageSupport:
        """What a broker can do with half messages beyond RocketMQ; a RocketMQ broker: nothing.

        Args:
            broker: ``host:port`` of one broker.

        Raises:
            BrokerError, RemotingError: it did not say.
        """
        request = end_half_messages_request(_PROBE_GROUP, 0, 0, HalfSelection(), commit=False)
        try:
            answer = await self.access.ask(
                broker, request.code, request.ext_fields, body=request.body
            )
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return HalfMessageSupport(ends=False, batches=False)
        return HalfMessageSupport(ends=True, batches=EndedHalves.of(answer).half_batches)

    async def end_half_messages(
        self,
        broker: str,
        group: str,
        start: int,
        end: int = TO_THE_END,
        *,
        commit: bool,
        attempts: Iterable[str] = (),
        query: str = "",
        last_batch: int = -1,
        keep: Iterable[str] = (),
    ) -> EndedHalves:
        """Commit or roll back half messages of a range of the half queue, each once (code 31037).

        A half that was ended before, by whomever and however, stays as it is. The call may be made
        again, whatever became of it.

        Args:
            broker: ``host:port`` of the master that has them.
            group: their producer group (``PGROUP``).
            start: first offset of the half queue.
            end: offset behind the last one.
            commit: store the messages under their topics; else drop them.
            attempts: those whose property ``KEROLOX_SINK`` is one of these.
            query: instead of attempts: all of this query, up to ``last_batch``; only to roll back.
            last_batch: see ``query``.
            keep: attempts of the query that are left alone.

        Returns:
            How many were ended now and before; ``next_offset`` is behind the last one.

        Raises:
            ValueError: attempts and query do not go together so, or there are too many.
            BrokerError: a message could not be stored, or the flush was late: call it again. Code
                3: the broker does not know the request (:meth:`half_message_support`).
            RemotingError: no answer; some may be ended.
        """
        selection = HalfSelection(
            attempts=list(attempts), keep=list(keep), last_batch=last_batch, query=query
        )
        position = start
        ended = ended_before = stalls = 0
        while True:
            request = end_half_messages_request(group, position, end, selection, commit=commit)
            answer = EndedHalves.of(
                await self.access.ask(broker, request.code, request.ext_fields, body=request.body)
            )
            ended += answer.ended
            ended_before += answer.ended_before
            if answer.next_offset >= min(end, answer.max_offset):
                return answer._replace(ended=ended, ended_before=ended_before)
            stalls = stalls + 1 if answer.next_offset <= position else 0
            if stalls > STALLS_MAX:
                raise RemoteProtocolError(
                    f"{broker} does not come beyond half message {position}, after {stalls} "
                    "requests; see its log"
                )
            position = max(position, answer.next_offset)
