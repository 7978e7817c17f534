"""Who may come in, and how often: accounts, TLS and the limits of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.access.gate import AccessGate
from kerolox.broker.config import BrokerSettings
from kerolox.kernel.store import StoreKernel
from kerolox.remoting.audit import Audit
from kerolox.remoting.limits.requests import RequestLimits
from kerolox.remoting.tls.server_tls import ServerTls

if TYPE_CHECKING:
    from kerolox.security.access.watching import AccountsWatch


class Guards:
    """The checks before all handlers."""

    def __init__(self, settings: BrokerSettings, audit: Audit, store: StoreKernel) -> None:
        """No file is read; ConfigError: the settings do not say where the files of accounts are."""
        config = settings.current
        self.limits = RequestLimits()
        self.limits.use(config)
        settings.subscribe(lambda old, new: self.limits.use(new))
        self.tls = ServerTls.of(config)
        """None: disabled."""
        self.access = AccessGate(config, audit, store)
        self.accounts: AccountsWatch | None = None
        """The files of accounts; None without ``aclEnable``."""
        if config.acl_enable:
            from kerolox.security.access.files import AclFiles, Places
            from kerolox.security.access.watching import AccountsWatch

            places = Places.of(config.rocketmq_home, config.acl_file)
            self.accounts = AccountsWatch(AclFiles(places), self.access.use)
