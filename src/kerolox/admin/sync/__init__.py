"""The blocking ``Admin``: the same methods as plain functions.

::

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("Orders", queues=8)
        for message in admin.read_messages("Orders"):
            print(message.body)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kerolox.admin.admin import Admin as _Admin
from kerolox.admin.sync._generated import AdminRequests
from kerolox.client.aio.network.access import TIMEOUT_SECONDS
from kerolox.client.sync._portal import Portal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.client.aio.settings import ClientSettings

__all__ = ["Admin"]


class Admin(AdminRequests):
    """Asks brokers and name servers what ``mqadmin`` asks; see :class:`kerolox.admin.Admin`.

    Any number of threads may use it at the same time.
    """

    def __init__(
        self,
        name_server: str | Iterable[str] = "",
        *,
        settings: ClientSettings | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Nothing is connected yet. Arguments and errors: see :class:`kerolox.admin.Admin`."""
        self._client = _Admin(name_server, settings=settings, timeout_seconds=timeout_seconds)
        self._portal = Portal("Admin")

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Make ready; nothing is connected before the first question.

        Raises:
            ClientClosedError: it was closed before; make a new one.
            ConfigError: a file of the TLS settings can't be used.
        """
        self._portal.open(self._client.start)

    def close(self) -> None:
        """Close all connections, within five seconds. Idempotent."""
        self._portal.shut(self._client.close)
