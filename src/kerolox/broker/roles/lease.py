"""How long a master may take itself for one without its controller.

The controller elects another master when it has heard nothing of this one for a time that
heartbeats tell it (``controllerHeartBeatTimeoutMills``). A master that is cut off must have ended
by then, so its lease is two thirds of that time.

The lease begins when a heartbeat is sent: the controller counts from a later moment, when that
comes. The last third is for clocks that run at other rates, and for answers on their way. Masters
of RocketMQ have no lease.
"""

from __future__ import annotations


class MasterLease:
    """Without I/O. Times are milliseconds of a clock that nobody sets and that goes on in a sleep
    of the machine.

    To be checked before a message is taken, and again before it is acknowledged: the process may
    have been stopped between.
    """

    def __init__(self, timeout_ms: int) -> None:
        """Nothing is held before :meth:`renew`. ``timeout_ms``: what heartbeats tell the
        controller, controllerHeartBeatTimeoutMills.
        """
        self._lease_ms = timeout_ms * 2 // 3
        self._until_ms: int | None = None

    def renew(self, sent_ms: int) -> None:
        """The controller that leads answered a heartbeat that was sent then. Answers may come in
        any order."""
        until = sent_ms + self._lease_ms
        self._until_ms = until if self._until_ms is None else max(self._until_ms, until)

    def drop(self) -> None:
        """Another master is elected, or this broker is no master any more."""
        self._until_ms = None

    def holds(self, now_ms: int) -> bool:
        """Whether nobody else can have been elected."""
        return self._until_ms is not None and now_ms < self._until_ms
