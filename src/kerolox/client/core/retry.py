"""Which failures of a send are worth another broker."""

from __future__ import annotations

from collections.abc import Collection

from kerolox.errors import BrokerError, LocalProtocolError, RemotingError
from kerolox.protocol.codes import ResponseCode

__all__ = ["RETRIED_CODES", "is_retried"]

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


def is_retried(error: Exception, codes: Collection[int] = RETRIED_CODES) -> bool:
    """True for trouble with the connection, and for the given response codes.

    A request that no frame can hold fails everywhere, so it is not tried again.
    """
    if isinstance(error, BrokerError):
        return error.code in codes
    return isinstance(error, RemotingError) and not isinstance(error, LocalProtocolError)
