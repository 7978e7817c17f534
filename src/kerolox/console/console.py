"""``Console``: what all pages share, from its start to its stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.admin import Admin
from kerolox.client import ClientSettings
from kerolox.console.cache import Cache
from kerolox.console.cluster import ClusterQuestions
from kerolox.console.history.sampler import Sampler
from kerolox.console.history.store import History
from kerolox.console.rendering import environment
from kerolox.console.security.attempts import Attempts
from kerolox.console.security.audit import Audit
from kerolox.console.security.sessions import Sessions
from kerolox.console.security.users import Users

if TYPE_CHECKING:
    from kerolox.console.settings import ConsoleSettings

__all__ = ["Console"]

ASK_SECONDS = 5.0
"""Time limit of one question to the cluster."""


class Console:
    """Settings, users, sessions, history, and the way to the cluster."""

    def __init__(
        self, settings: ConsoleSettings, client_settings: ClientSettings | None = None
    ) -> None:
        """``client_settings``: credentials and TLS towards the cluster.

        Raises:
            ConfigError: the users or the history can't be read; an address is illegal.
        """
        self.settings = settings
        self.users = Users(settings.users)
        self.sessions = Sessions(self.users)
        self.attempts = Attempts()
        self.audit = Audit()
        self.templates = environment()
        self.admin = Admin(
            settings.name_server, settings=client_settings, timeout_seconds=ASK_SECONDS
        )
        self.cache = Cache()
        self.cluster = ClusterQuestions(self.admin, self.cache)
        self.history = History(settings.history)
        self.sampler = Sampler(self.admin, self.history, interval_seconds=settings.sample_seconds)

    @property
    def title(self) -> str:
        """What pages call the cluster."""
        return self.settings.title or self.settings.name_server

    async def start(self) -> None:
        """Begin to take samples. Errors: see ``Admin.start``."""
        await self.admin.start()
        self.sampler.start()

    async def stop(self) -> None:
        """End it, in bounded time."""
        await self.sampler.stop()
        await self.cache.close()
        await self.admin.close()
        await self.history.close()
