"""What may be tried again after a failure: at another broker, or at the same one a little later."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kerolox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientClosedError,
    ClientError,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from kerolox.client.core.sending.send import SendResult
    from kerolox.errors import KeroloxError


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


PAUSE_MS, PAUSE_MS_MAX = 50, 1_000
"""Before a broker is asked again, and the most after many times; each time twice as long."""


def pause_ms(tried: Sequence[str], broker_name: str) -> int:
    """The pause before a try: none before a broker that is not among those ``tried``; 50 ms before
    one that is, 100 ms the next time, and so on up to 1 s."""
    times = tried.count(broker_name)
    return min(PAUSE_MS << min(times - 1, 10), PAUSE_MS_MAX) if times else 0


class Tries:
    """The tries of one send, and their results.

    A send goes to another broker at once. Before it asks one again that it asked before, it pauses
    (:func:`pause_ms`), so that tries are not spent while a broker is away for an instant.
    RocketMQ's clients do not pause.
    """

    __slots__ = (
        "_codes",
        "_count_max",
        "_failure",
        "_is_over",
        "_retries_not_ok",
        "_stored",
        "brokers",
    )

    def __init__(
        self, count_max: int, retried_codes: Collection[int], *, retry_when_not_stored_ok: bool
    ) -> None:
        """Nothing is tried yet. ``retried_codes``: answers of brokers after which another may do
        better. ``retry_when_not_stored_ok``: try another broker after a status that is not SEND_OK
        too.
        """
        self.brokers: list[str] = []
        """Whom it asked, in order."""
        self._count_max = count_max
        self._codes = retried_codes
        self._retries_not_ok = retry_when_not_stored_ok
        self._is_over = False
        self._stored: SendResult | None = None
        self._failure: KeroloxError | None = None

    @property
    def is_over(self) -> bool:
        """No further try is of use, or allowed."""
        return self._is_over or len(self.brokers) >= self._count_max

    @property
    def is_stored(self) -> bool:
        """A try stored the message, however safely."""
        return self._stored is not None

    @property
    def needs_route(self) -> bool:
        """The last try failed since its topic has fewer queues now."""
        return is_queue_gone(self._failure)

    def answered(self, result: SendResult) -> None:
        """The last try stored the message."""
        self._stored = result
        self._is_over = result.is_ok or not self._retries_not_ok

    def failed(self, error: KeroloxError) -> bool:
        """The last try failed; whether another broker may do better."""
        self._failure = error
        self._is_over = not is_retried(error, self._codes)
        return not self._is_over

    def end(self, limit_ms: int) -> SendResult:
        """Where the message was stored, however safely: no failure of a later try undoes that. Else
        the failure of the last try is raised.
        """
        if self._stored is not None:
            return self._stored
        if self._failure is None:
            raise RequestTimeoutError(f"no time to send within {limit_ms} ms; nothing was sent")
        if not self._is_over:
            count, names = len(self.brokers), ", ".join(self.brokers)
            self._failure.add_note(f"tried {count} times within {limit_ms} ms: {names}")
        raise self._failure
