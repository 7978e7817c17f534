"""How connections to name servers and brokers are made, with the account and TLS of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.remoting.blocking import BlockingConnection
from kerolox.security.contexts import TlsContexts
from kerolox.security.tls import Tls

if TYPE_CHECKING:
    from kerolox.security.credentials import Credentials

CONNECT_SECONDS_MAX = 3.0


class Connector:
    """Makes the connections of one query in one process; files of TLS are read
    once, and again when they change."""

    def __init__(self, credentials: Credentials | None = None, tls: Tls = False) -> None:
        self._credentials = credentials
        self._given = tls
        self._contexts: TlsContexts | None = None

    def connect(
        self, address: str, *, seconds_max: float = CONNECT_SECONDS_MAX
    ) -> BlockingConnection:
        """A new connection; errors as those of :class:`BlockingConnection`."""
        if self._contexts is None:
            self._contexts = TlsContexts(self._given)
        return BlockingConnection(
            address,
            connect_timeout_seconds=seconds_max,
            credentials=self._credentials,
            tls=self._contexts.current() or False,
        )

    def key(self, address: str) -> tuple[object, ...]:
        """What a connection to an address is known by in a pool: it speaks for one account."""
        return address, self._credentials, self._given
