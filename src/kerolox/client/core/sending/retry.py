"""Which failures of a send are worth another broker."""

from __future__ import annotations

from collections.abc import Collection

from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    LocalProtocolError,
    RemotingError,
)
from kerolox.protocol.codes import ResponseCode

RETRIED_CODES: frozenset[int] = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Response codes after which another broker may do better (``retryResponseCodes``)."""


_NO_QUEUE = "request queueId["
"""Begins the remark to a send to a queue that the topic does not have (``msgCheck``)."""


def is_queue_gone(error: Exception | None) -> bool:
    """The topic has fewer queues than the route that was used."""
    return isinstance(error, BrokerError) and error.remark.startswith(_NO_QUEUE)


def is_retried(error: Exception, codes: Collection[int] = RETRIED_CODES) -> bool:
    """True for trouble with the connection or with finding the broker, and for the given codes.

    A request that no frame can hold fails everywhere, so it is not tried again.
    """
    if isinstance(error, BrokerError):
        return error.code in codes
    if isinstance(error, (LocalProtocolError, ClientClosedError)):
        return False
    return isinstance(error, (RemotingError, ClientError))
