"""How connections to name servers and brokers are made, with the account and TLS of a query."""

from __future__ import annotations

from kerolox.errors import ConnectionLostError
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.blocking import BlockingConnection
from kerolox.remoting.core.client_requests import ReadPull
from kerolox.security.contexts import TlsContexts
from kerolox.security.credentials import Credentials
from kerolox.security.tls import Tls

CONNECT_SECONDS_MAX = 3.0


class Connector:
    """Makes the connections of one query in one process; files of TLS are read
    once, and again when they change."""

    def __init__(
        self,
        credentials: Credentials | None = None,
        tls: Tls = False,
        read_pull: ReadPull | None = None,
    ) -> None:
        self._credentials = credentials
        self._read_pull = read_pull
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
            read_pull=self._read_pull,
        )

    def key(self, address: str) -> tuple[object, ...]:
        """What a connection to an address is known by in a pool: it speaks for one account."""
        return address, self._credentials, self._given


class Asker:
    """Asks servers, each on a connection that stays open. Belongs to one thread. ``seconds_max``:
    longest wait for a connection, and for a response.
    """

    def __init__(self, connector: Connector, seconds_max: float) -> None:
        self._connector = connector
        self._seconds_max = seconds_max
        self._connections: dict[str, BlockingConnection] = {}

    def ask(self, address: str, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        """The responses to requests, many of which are open at once. RemotingError: no connection,
        or one that ended, or no response in time.

        A server closes connections that are idle, which shows when one is used: then it is all
        asked once more on a new one.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            try:
                return connection.ask(commands, self._seconds_max)
            except ConnectionLostError:
                pass
        connection = self._connector.connect(address, seconds_max=self._seconds_max)
        self._connections[address] = connection
        return connection.ask(commands, self._seconds_max)

    def close(self) -> None:
        """Close the connections. Idempotent; they are opened again when they are needed."""
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
