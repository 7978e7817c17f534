"""The transport of kombu: one connection, and who drains it."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING

from kombu.exceptions import ConnectionError as KombuConnectionError
from kombu.transport import virtual
from kombu.utils.compat import detect_environment

from kerolox import owners
from kerolox.addresses import join_address
from kerolox.client.aio.consumers.popping.pops import NoMasterError
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConfigError,
    RemotingError,
)
from kerolox.integrations.celery.channel import Channel
from kerolox.integrations.celery.intakes import Intake
from kerolox.integrations.celery.options import Options, client_settings
from kerolox.integrations.celery.session import Session
from kerolox.release import __version__

if TYPE_CHECKING:
    from kombu import Connection
    from kombu.asynchronous.hub import Hub

EVENTS_AT_ONCE_MAX = 100
"""Messages that a hub gets before others have their turn."""

_CONNECTION_ERRORS = (RemotingError, NoMasterError, ClientClosedError, OSError)


class Transport(virtual.Transport):
    """Celery's way to RocketMQ."""

    Channel = Channel
    can_parse_url = False
    default_port = 9876
    driver_type = "rocketmq"
    driver_name = "kerolox"
    polling_interval = None

    connection_errors = (*virtual.Transport.connection_errors, *_CONNECTION_ERRORS)
    channel_errors = (*virtual.Transport.channel_errors, BrokerError, ClientError)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Connection, **kwargs: object) -> None:
        super().__init__(client, **kwargs)
        self.options = Options.of(client.transport_options)
        self._session: Session | None = None
        self._made_in = owners.generation()
        self._hub: Hub | None = None
        self._watched = -1

    def driver_version(self) -> str:
        """That of Kerolox."""
        return __version__

    @property
    def session(self) -> Session:
        """What is open. kombu's ConnectionError: nothing is, or it is a parent's."""
        if self._made_in != owners.generation():
            raise KombuConnectionError(owners.in_child("the connection"))
        if self._session is None:
            raise KombuConnectionError("the connection is closed")
        return self._session

    def establish_connection(self) -> Transport:
        """Connect to the first name server that answers."""
        environment = detect_environment()
        if environment != "default":
            raise ConfigError(
                f"rocketmq:// needs threads, which {environment} replaces; run the worker with "
                "--pool prefork, threads or solo"
            )
        client = self.client
        settings = client_settings(
            user=client.userid,
            password=client.password,
            vhost=client.virtual_host,
            tls=client.ssl,
        )
        address = join_address(client.hostname or "localhost", client.port or self.default_port)
        session = Session(address, settings, self.options)
        session.open()
        self._session = session
        super().establish_connection()
        return self

    def close_connection(self, connection: object) -> None:
        """Close channels, and the connection."""
        self._unwatch()
        session, is_ours = self._session, self._made_in == owners.generation()
        if is_ours:
            super().close_connection(connection)
            if session is not None:
                session.close()
        self._session = None

    def verify_connection(self, connection: object) -> bool:
        """Whether it can be used."""
        return self._session is not None and self._made_in == owners.generation()

    # -- draining ---------------------------------------------------------------------------------
    def drain_events(self, connection: object, timeout: float | None = None, **_: object) -> None:
        """Deliver a message.

        Args:
            connection: this.
            timeout: seconds to wait for it; None: without end.

        Raises:
            TimeoutError: none came.
            KeroloxError: a queue can't be read any more.
        """
        session = self.session
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else until - time.monotonic()
            try:
                item = session.inbox.take(left)
            except queue.Empty:
                raise TimeoutError from None
            if not isinstance(item, Intake):
                raise item
            try:
                delivery = item.arrived.popleft()
            except IndexError:
                continue  # it was cancelled meanwhile
            item.deliver(delivery)
            return

    def register_with_event_loop(self, connection: object, loop: Hub) -> None:
        """Have a hub of kombu drain."""
        self._unwatch()
        self._hub, self._watched = loop, self.session.inbox.descriptor()
        loop.add_reader(self._watched, self._on_readable)

    def unregister_from_event_loop(self, connection: object, loop: Hub) -> None:
        """Have it drain no more."""
        self._unwatch()

    def _unwatch(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.remove(self._watched)

    def _on_readable(self) -> None:
        session = self.session
        session.inbox.clear_signal()
        for _ in range(EVENTS_AT_ONCE_MAX):
            try:
                self.drain_events(self, timeout=0)
            except TimeoutError:
                return
        session.inbox.signal()
