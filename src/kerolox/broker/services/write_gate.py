"""Whether messages may be stored: what the disk and ``startAcceptSendRequestTimeStamp`` say."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.broker.config import BrokerConfig
from kerolox.kernel import FastPathTables


class WriteGate:
    """One switch for all who store messages: handlers, services and the kernel.

    Attributes:
        writable: False: every put ends with SERVICE_NOT_AVAILABLE, and what is delayed waits.
    """

    def __init__(
        self, config: BrokerConfig, store: FastPathTables, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self.writable = True
        self.refresh()

    def set_writable(self, writable: bool) -> None:
        """Open or close it for all."""
        self.writable = writable
        self.refresh()

    def refresh(self) -> None:
        """Let the kernel take sends when nothing speaks against all of them. The kernel does not
        know startAcceptSendRequestTimeStamp, which handlers answer with."""
        is_time = self._now_ms() >= self._config.start_accept_send_request_time_stamp
        self._store.set_writable(self.writable and is_time)
