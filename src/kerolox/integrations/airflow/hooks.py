"""A connection of Airflow, and the clients that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client import ClientSettings, SendResult, sync
from kerolox.errors import ConfigError, KeroloxError
from kerolox.integrations.airflow import CONNECTION_TYPE, HOOK_NAME
from kerolox.message import Message
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings

try:
    from airflow.sdk import BaseHook, Connection
except ImportError as error:
    raise ConfigError(f"Airflow 3 can't be imported ({error}); install kerolox[airflow]") from error

if TYPE_CHECKING:
    from kerolox.client.core.delays import Duration

__all__ = ["KeroloxHook"]

PRODUCER_GROUP = "airflow"


class KeroloxHook(BaseHook):
    """Clients by a connection of type ``kerolox``: its host has the name servers (several joined by
    ``;``), login and password an account of the brokers, the extra namespace and TLS."""

    conn_name_attr = "kerolox_conn_id"
    default_conn_name = "kerolox_default"
    conn_type = CONNECTION_TYPE
    hook_name = HOOK_NAME

    def __init__(self, kerolox_conn_id: str = default_conn_name) -> None:
        """``kerolox_conn_id``: the connection's name in Airflow. Nothing is connected yet."""
        super().__init__()
        self.kerolox_conn_id = kerolox_conn_id

    def get_conn(self) -> sync.Connection:
        """A blocking connection, started; use it in a ``with`` statement.

        Raises:
            ConfigError: the connection of Airflow has no name server, or a setting is wrong.
        """
        name_servers, settings = client_of(self.get_connection(self.kerolox_conn_id))
        return sync.connect(name_servers, settings=settings)

    def send(
        self,
        topic: str,
        body: str | bytes,
        *,
        tags: str = "",
        keys: str = "",
        deliver_after: Duration | None = None,
    ) -> SendResult:
        """Send one message.

        Raises:
            KeroloxError: it is not stored.
        """
        data = body.encode() if isinstance(body, str) else body
        with self.get_conn() as connection, connection.producer(PRODUCER_GROUP) as producer:
            message = Message(topic, data, tags=tags, keys=keys)
            return producer.send(message, deliver_after=deliver_after)

    def test_connection(self) -> tuple[bool, str]:
        """Whether a name server answers; for the button of Airflow's form."""
        from kerolox.admin.sync import Admin

        try:
            name_servers, settings = client_of(self.get_connection(self.kerolox_conn_id))
            with Admin(name_servers, settings=settings) as admin:
                return True, f"{len(admin.list_topics())} topics"
        except KeroloxError as error:
            return False, str(error)


def client_of(connection: Connection) -> tuple[str, ClientSettings]:
    """Name servers and settings by a connection of Airflow.

    Raises:
        ConfigError: it has no name server, or a setting is wrong.
    """
    host = connection.host or ""
    if not host:
        raise ConfigError(
            f"connection {connection.conn_id!r} has no host; give it the name servers, host:port"
            " each, joined by ;"
        )
    if connection.port and ";" not in host and ":" not in host:
        host = f"{host}:{connection.port}"
    extra = connection.extra_dejson
    credentials = None
    if connection.login:
        credentials = Credentials(connection.login, connection.password or "")
    tls: bool | TlsSettings = False
    if extra.get("tls"):
        tls = TlsSettings(
            ca=extra.get("tls_ca") or None,
            certificate=extra.get("tls_certificate") or None,
            key=extra.get("tls_key") or None,
            check_host_name=extra.get("tls_check_host_name") is not False,
        )
    return host, ClientSettings(
        namespace=extra.get("namespace") or "", credentials=credentials, tls=tls
    )
