"""What may be tried again after a failure: at another broker, or at the same one a little later."""

from __future__ import annotations

from collections.abc import Collection

from kerolox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientClosedError,
    ClientError,
    LocalProtocolError,
    RemoteProtocolError,
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

NOT_STORED_CODES: frozenset[int] = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
    )
)
"""Passing refusals after which the broker has certainly nothing of the request."""

PASSING_CODES: frozenset[int] = NOT_STORED_CODES | {ResponseCode.SYSTEM_ERROR}
"""Refusals that may be over when the broker has started, or the topic is made again."""

FILTER_REFUSED = "does not support consumer to filter message"
"""In the remark of a broker without ``enablePropertyFilter``, which answers SYSTEM_ERROR."""

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


def is_passing(error: Exception) -> bool:
    """True where the same broker may serve the request a little later: it does not answer, or
    refuses for now.

    A wrong account stays one, and so does a setting, and a peer that speaks another protocol.
    """
    if isinstance(error, BrokerError):
        if isinstance(error, AccessDeniedError) or FILTER_REFUSED in error.remark:
            return False
        return error.code in PASSING_CODES
    if isinstance(error, (LocalProtocolError, RemoteProtocolError)):
        return False
    return isinstance(error, RemotingError)
