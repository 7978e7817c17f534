"""Whether messages may be stored: what the disk, the broker's role and
``startAcceptSendRequestTimeStamp`` say."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.broker.config import BrokerSettings
from kerolox.broker.role import BrokerRole
from kerolox.kernel import StoreKernel


class WriteGate:
    """One switch for all who store messages: handlers, services and the kernel."""

    def __init__(
        self,
        settings: BrokerSettings,
        role: BrokerRole,
        store: StoreKernel,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._role = role
        self._is_slave = False
        self._store = store
        self._now_ms = now_ms
        self._has_space = True
        self._is_held = False
        self._is_closed = False
        settings.subscribe(lambda old, new: self.refresh())
        role.subscribe(lambda old, new: self.refresh())
        self.refresh()

    @property
    def writable(self) -> bool:
        """False: every put ends with SERVICE_NOT_AVAILABLE, and what is delayed waits. A slave
        never is."""
        is_shut = self._is_held or self._is_closed
        return self._has_space and not is_shut and not self._is_slave

    def set_writable(self, writable: bool) -> None:
        """Open or close it for all, as the disk says."""
        self._has_space = writable
        self.refresh()

    def hold(self, is_held: bool) -> None:
        """The same, as the broker's role says: it is about to change, or another broker has it."""
        self._is_held = is_held
        self.refresh()

    def close(self) -> None:
        """The same for good, whatever disk and role say later: the broker stops."""
        self._is_closed = True
        self.refresh()

    def refresh(self) -> None:
        """Let the kernel take sends when nothing speaks against all of them, and say what the role
        of the broker asks of it. The kernel does not know startAcceptSendRequestTimeStamp, which
        handlers answer with."""
        config, role, store = self._settings.current, self._role.current, self._store
        self._is_slave = role.is_slave
        is_time = self._now_ms() >= config.start_accept_send_request_time_stamp
        store.set_commits(not role.is_slave)
        store.set_slave_timeout(config.slave_timeout if role.is_sync_master else None)
        store.set_writable(self.writable and is_time)
