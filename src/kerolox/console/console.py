"""``Console``: what all pages share, from its start to its stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kerolox.admin import (
    ConsumerConnections,
    TopicUsage,
)
from kerolox.client import ClientSettings
from kerolox.console.cluster import ClusterContext
from kerolox.console.gathered import Gathered
from kerolox.console.health import HealthChecks
from kerolox.console.history.sampler import Sampler
from kerolox.console.history.store import History
from kerolox.console.rendering import environment
from kerolox.console.schemas import Schemas, read_schemas
from kerolox.console.security.attempts import Attempts
from kerolox.console.security.audit import Audit
from kerolox.console.security.guard import CONTEXT_PATH
from kerolox.console.security.sessions import Sessions
from kerolox.console.security.users import Users
from kerolox.errors import (
    ConfigError,
    ConsumerNotOnlineError,
)

if TYPE_CHECKING:
    from kerolox.console.security.oidc import SignIn
    from kerolox.console.settings import ConsoleSettings

__all__ = ["Console", "Shared"]

_Answer = TypeVar("_Answer")


def _sign_in(settings: ConsoleSettings) -> SignIn | None:
    if settings.oidc is None:
        return None
    try:
        # It is slow to import, and most consoles do without it.
        from kerolox.console.security.oidc import SignIn
    except ImportError as error:
        raise ConfigError(
            f"{error}; OpenID Connect needs an extra: pip install 'kerolox[console,oidc]'"
        ) from None
    return SignIn(settings.oidc)


class Shared:
    """What the consoles of one process share: users, sessions, the audit log."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises ConfigError: see :class:`Console`."""
        self.users = Users(settings.users, may_be_empty=settings.oidc is not None)
        self.sign_in = _sign_in(settings)
        self.sessions = Sessions(self.users)
        self.attempts = Attempts()
        self.audit = Audit("console")
        self.templates = environment()
        self.schemas = read_schemas(settings.schemas) if settings.schemas else Schemas()
        self.consoles: dict[str, Console] = {}
        """By context; one that is alone has the empty name."""


class Console(ClusterContext):
    """Settings, users, sessions, history, and the way to one cluster."""

    def __init__(
        self,
        settings: ConsoleSettings,
        client_settings: ClientSettings | None = None,
        *,
        context: str = "",
        shared: Shared | None = None,
    ) -> None:
        """One of them is served, and with it those that share its users.

        Args:
            settings: of it.
            client_settings: credentials and TLS towards the cluster.
            context: what paths call the cluster; empty: the console has one alone.
            shared: what it shares with others; None: it is alone.

        Raises:
            ConfigError: the users, the history or the schemas can't be read; an address is illegal;
                OpenID Connect lacks its extra, or the secret of its client.
        """
        self.settings = settings
        self.shared = shared or Shared(settings)
        super().__init__(
            settings.name_server,
            client_settings,
            audit=self.shared.audit,
            schemas=self.shared.schemas,
            actions=settings.actions,
            context=context,
        )
        self.users, self.sign_in = self.shared.users, self.shared.sign_in
        self.sessions, self.attempts = self.shared.sessions, self.shared.attempts
        self.templates = self.shared.templates
        self.usages: Gathered[TopicUsage] = Gathered(self.admin.topic_usage)
        self.members: Gathered[ConsumerConnections | None] = Gathered(self._members)
        self.health = HealthChecks(self.admin, client_settings)
        self.history = History(settings.history)
        self.sampler = Sampler(self.admin, self.history, interval_seconds=settings.sample_seconds)

        self.shared.consoles[context] = self

    @property
    def title(self) -> str:
        """What pages call the cluster."""
        return self.settings.title or self.context or self.settings.name_server

    @property
    def prefix(self) -> str:
        """How paths of its pages begin."""
        return f"{CONTEXT_PATH}{self.context}" if self.context else ""

    @property
    def all(self) -> list[Console]:
        """It, and those that share its users, as they were made."""
        return list(self.shared.consoles.values())

    def expire(self) -> None:
        """Forget what is known of the cluster: something was changed."""
        super().expire()
        self.usages.clear()
        self.members.clear()
        self.health.expire()

    async def start(self) -> None:
        """Begin to take samples. Errors: see ``Admin.start``."""
        await super().start()
        self.sampler.start()

    async def stop(self) -> None:
        """End it, in bounded time."""
        await self.sampler.stop()
        await self.health.stop()
        await self.usages.close()
        await self.members.close()
        await super().stop()
        await self.history.close()
        if self.sign_in is not None and self is self.all[0]:
            await self.sign_in.close()

    async def _members(self, group: str) -> ConsumerConnections | None:
        """Who of a group is online; None: nobody."""
        try:
            return await self.admin.consumer_connections(group)
        except ConsumerNotOnlineError:
            return None
