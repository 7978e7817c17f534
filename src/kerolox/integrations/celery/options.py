"""What ``broker_transport_options`` say, and who is asked."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Mapping
from typing import Self

from kerolox.client import ClientSettings, Credentials, TlsSettings
from kerolox.errors import ConfigError
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX
from kerolox.security.tls import Tls

QUEUES_MAX = 1_024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the transport; others there are kombu's."""

    visibility_timeout: float = 60.0
    """Seconds until a message comes again whose worker is gone. While a worker has it, waiting or
    running, it renews that time by itself, so a task may take longer."""
    queue_name_prefix: str = ""
    """Put before the names of all queues and exchanges: of applications that share a cluster."""
    topic_queues: int = 8
    """Queues that the topic of a new queue gets on each broker. More workers than these share
    them all the same."""
    broadcast_exchanges: tuple[str, ...] = ("celeryev",)
    """Exchanges whose messages go to all that are bound at that time, as those of the type fanout
    and those of remote control do; by default that of Celery's events."""

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Those of a connection. ConfigError: one is out of range."""
        names = [field.name for field in dataclasses.fields(cls)]
        own = cls(**{name: given[name] for name in names if name in given})  # type: ignore[arg-type]
        seconds_max = INVISIBLE_MS_MAX / 1000
        _check_number("visibility_timeout", own.visibility_timeout, 1, seconds_max)
        _check_number("topic_queues", own.topic_queues, 1, QUEUES_MAX)
        if not isinstance(own.queue_name_prefix, str):
            raise ConfigError(f"queue_name_prefix is {own.queue_name_prefix!r}; it must be a text")
        names = own.broadcast_exchanges  # type: ignore[assignment]
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"broadcast_exchanges is {names!r}; it must be a list of names")
        return own

    def is_broadcast(self, exchange: str) -> bool:
        """Whether the name alone says so: Celery's events, and the two of its remote control."""
        return exchange in self.broadcast_exchanges or exchange.endswith(".pidbox")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}; it must be from {least:g} to {most:g}")


def client_settings(
    *, user: str | None, password: str | None, vhost: str | None, tls: object
) -> ClientSettings:
    """The settings of what a URL, and ``broker_use_ssl``, say.

    Args:
        user: access key.
        password: secret key.
        vhost: namespace.
        tls: True, the arguments of ``TlsSettings``, or an ``ssl.SSLContext``.

    Raises:
        ConfigError: one is wrong.
    """
    credentials = Credentials(user, password or "") if user else None
    namespace = (vhost or "").strip("/")
    return ClientSettings(credentials=credentials, namespace=namespace, tls=_tls(tls))


def _tls(given: object) -> Tls:
    if not given:
        return False
    if given is True or isinstance(given, TlsSettings | ssl.SSLContext):
        return given
    if isinstance(given, Mapping):
        try:
            return TlsSettings(**given)
        except TypeError as error:
            raise ConfigError(f"broker_use_ssl: {error}") from None
    raise ConfigError(
        f"broker_use_ssl is {given!r}; give True, or a dictionary with fields of TlsSettings"
    )
