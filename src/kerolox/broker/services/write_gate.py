"""Whether messages may be stored: what the disk and ``startAcceptSendRequestTimeStamp`` say."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.broker.config import BrokerConfig
from kerolox.kernel import FastPathTables


class WriteGate:
    """One switch for all who store messages: handlers, services and the kernel.

    Attributes:
        writable: False: every put ends with SERVICE_NOT_AVAILABLE, and what is delayed waits. A
            slave never is.
    """

    def __init__(
        self, config: BrokerConfig, store: FastPathTables, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self.writable = not config.is_slave
        self.refresh()

    def set_writable(self, writable: bool) -> None:
        """Open or close it for all."""
        self.writable = writable and not self._config.is_slave
        self.refresh()

    def refresh(self) -> None:
        """Let the kernel take sends when nothing speaks against all of them. The kernel does not
        know startAcceptSendRequestTimeStamp, which handlers answer with, nor slaves to wait for."""
        is_time = self._now_ms() >= self._config.start_accept_send_request_time_stamp
        waits = self._config.is_sync_master
        self._store.set_writable(self.writable and is_time and not waits)
