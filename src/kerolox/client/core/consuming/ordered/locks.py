"""The brokers' locks on queues: whether one is ours, and the bodies of requests for them."""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageQueue
from kerolox.protocol.fastjson import FastjsonError, dumps, items_of, loads, members_of

LOCK_LIVE_MS = 30_000
"""A lock that was not renewed for so long is taken for lost (``rebalanceLockMaxLiveTime``)."""


class QueueLock:
    """Whether a broker's lock on a queue is ours."""

    def __init__(self) -> None:
        self.granted_ms: int | None = None
        """When the request was sent that the broker last granted."""

    def grant(self, asked_ms: int) -> None:
        """The broker granted or renewed it, as asked for at that time."""
        if self.granted_ms is None or asked_ms > self.granted_ms:
            self.granted_ms = asked_ms

    def lose(self) -> None:
        """The broker refused it: another member has it."""
        self.granted_ms = None

    def is_valid(self, now_ms: int) -> bool:
        """No other member can have it."""
        return self.granted_ms is not None and now_ms - self.granted_ms <= LOCK_LIVE_MS


def lock_body(group: str, client_id: str, queues: Iterable[MessageQueue]) -> bytes:
    """``LockBatchRequestBody``, and ``UnlockBatchRequestBody``, which is the same."""
    members = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        for queue in sorted(queues)
    ]
    return dumps({"clientId": client_id, "consumerGroup": group, "mqSet": members})


def locked_queues(body: bytes) -> set[MessageQueue]:
    """The queues that a broker has locked for us (``LockBatchResponseBody``).

    Raises:
        RemoteProtocolError: it is unreadable.
    """
    try:
        locked = map(members_of, items_of(members_of(loads(body))["lockOKMQSet"]))
        return {
            MessageQueue(str(item["topic"]), str(item["brokerName"]), int(str(item["queueId"])))
            for item in locked
        }
    except (FastjsonError, KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the answer about locks is unreadable: {error!r}") from None
