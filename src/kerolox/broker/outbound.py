"""Connections that a broker opens by itself: to name servers, its master and other masters."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from kerolox.broker.config import BrokerSettings
from kerolox.errors import ConfigError
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from kerolox.security.contexts import TlsContexts
from kerolox.security.credentials import Signer

_log = logging.getLogger(__name__)


def outbound_client(
    settings: BrokerSettings,
    *,
    signs: bool = True,
    on_disconnect: Callable[[str], None] | None = None,
) -> RemotingClient:
    """A client whose connections are as the settings say when each is opened. ``signs``: requests
    have the broker's own account, if it has one. ConfigError: a file of TLS or of the account can't
    be used.
    """
    return RemotingClient(
        on_disconnect=on_disconnect,
        rpc_hook=AccountHook(settings) if signs else None,
        tls=TlsContexts(lambda: settings.current.tls_to_name_servers()),
    )


class AccountHook:
    """Signs what the broker asks name servers, as its settings say (``RpcHook``)."""

    def __init__(self, settings: BrokerSettings) -> None:
        """The file is read now."""
        self._settings = settings
        self._read()

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """Sign it. A file that changed is read; one that can't be is a warning, and the account
        that was read before stays."""
        if self._read_stamp() != self._seen:
            try:
                self._read()
            except ConfigError as error:
                _log.warning("%s; the account that was read before stays", error)
        if self._signer is not None:
            self._signer.sign(request)

    def after_response(
        self, address: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        """Nothing."""

    def _read(self) -> None:
        self._seen = self._read_stamp()
        account = self._settings.current.account_of_broker()
        self._signer = None if account is None else Signer(account)

    def _read_stamp(self) -> tuple[str, tuple[int, ...]]:
        """The file, and what is different when it was written or replaced."""
        path = self._settings.current.namesrv_credentials_file
        try:
            found = os.stat(Path(path).expanduser()) if path else None
        except OSError:
            found = None
        return path, () if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
