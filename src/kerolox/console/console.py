"""``Console``: what all pages share, from its start to its stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kerolox.admin import (
    Admin,
    ClusterInfo,
    ConsumerConnections,
    GroupState,
    TopicConfig,
    TopicUsage,
    is_internal_topic,
)
from kerolox.admin.asking import answers_of
from kerolox.admin.consumers.groups import group_states_told
from kerolox.client import ClientSettings
from kerolox.console.cache import KEPT_SECONDS, Cache
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
    ClientError,
    ConfigError,
    ConsumerNotOnlineError,
    KeroloxError,
    NotFoundError,
)
from kerolox.protocol.names import is_system_group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.console.security.oidc import SignIn
    from kerolox.console.settings import ConsoleSettings

__all__ = ["Console", "Shared"]

_Answer = TypeVar("_Answer")


class _ClusterQuestions:
    """Questions with answers for all pages."""

    def __init__(self, admin: Admin, cache: Cache) -> None:
        self._admin = admin
        self._cache = cache

    async def info(self) -> ClusterInfo:
        """Brokers and clusters."""
        return await self._cache.get("info", KEPT_SECONDS, self._admin.cluster_info)

    async def topics(self, *, internal: bool = False) -> list[str]:
        """Names, sorted; ``internal``: RocketMQ's own too."""
        names = await self._cache.get("topics", KEPT_SECONDS, self._admin.list_topics)
        if internal:
            return names
        info = await self.info()
        return [name for name in names if not is_internal_topic(name, info)]

    async def group_states(self, *, internal: bool = False) -> dict[str, GroupState]:
        """By name, sorted, as far as masters answer; ``internal``: RocketMQ's own too."""
        return (await self.group_states_told(internal=internal))[0]

    async def group_states_told(
        self, *, internal: bool = False
    ) -> tuple[dict[str, GroupState], dict[str, KeroloxError]]:
        """The same, and why the other masters do not report, by broker's name."""
        states, silent = await self._cache.get(
            "groups", KEPT_SECONDS, lambda: group_states_told(self._admin, internal=True)
        )
        if not internal:
            states = {name: each for name, each in states.items() if not is_system_group(name)}
        return states, silent

    async def check_group(self, name: str) -> None:
        """Refuse a group that the cluster does not know.

        Raises:
            NotFoundError: it has no settings, no offsets and no topics.
        """
        if name in await self.group_states(internal=True):
            return
        if not await self._admin.group_exists(name):
            raise NotFoundError(f"there is no group {name!r}")

    async def masters(self) -> dict[str, str]:
        """Name → address of the masters of all clusters."""
        info = await self.info()
        return {
            broker.broker_name: broker.addresses[0]
            for broker in info.nodes()
            if 0 in broker.addresses
        }

    async def ask_masters(
        self, ask: Callable[[str], Awaitable[_Answer]]
    ) -> tuple[dict[str, _Answer], dict[str, KeroloxError]]:
        """Ask each of them, by its address: the answers, and the errors of those that gave none, by
        broker's name."""
        masters = await self.masters()
        return await answers_of(masters, lambda name: ask(masters[name]))

    async def topic_settings(self) -> dict[str, dict[str, TopicConfig]]:
        """Topic → broker's name → what the broker has of it; brokers that don't answer are left
        out."""
        return await self._cache.get("topic settings", KEPT_SECONDS, self._topic_settings)

    async def broker_addresses(self) -> set[str]:
        """``host:port`` of all brokers, masters and slaves."""
        info = await self.info()
        return {address for broker in info.nodes() for address in broker.addresses.values()}

    async def broker_address(self, address: str) -> str:
        """An address that a page was asked for, if a broker has it.

        Raises:
            ClientError: no broker of the cluster has it. Else the console would connect to
                wherever somebody likes.
        """
        if address in await self.broker_addresses():
            return address
        raise ClientError(f"no broker of the cluster has the address {address!r}")

    async def _topic_settings(self) -> dict[str, dict[str, TopicConfig]]:
        found, _ = await self.ask_masters(self._admin.all_topic_settings)
        topics: dict[str, dict[str, TopicConfig]] = {}
        for broker, settings in found.items():
            for topic, config in settings.items():
                topics.setdefault(topic, {})[broker] = config
        return topics


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


ASK_SECONDS = 5.0
"""Time limit of one question to the cluster."""


class Shared:
    """What the consoles of one process share: users, sessions, the audit log."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises ConfigError: see :class:`Console`."""
        self.users = Users(settings.users, may_be_empty=settings.oidc is not None)
        self.sign_in = _sign_in(settings)
        self.sessions = Sessions(self.users)
        self.attempts = Attempts()
        self.audit = Audit()
        self.templates = environment()
        self.schemas = read_schemas(settings.schemas) if settings.schemas else Schemas()
        self.consoles: dict[str, Console] = {}
        """By context; one that is alone has the empty name."""


class Console:
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
        self.context = context
        self.shared = shared or Shared(settings)
        self.users, self.sign_in = self.shared.users, self.shared.sign_in
        self.sessions, self.attempts = self.shared.sessions, self.shared.attempts
        self.audit, self.templates = self.shared.audit, self.shared.templates
        self.schemas = self.shared.schemas
        self.admin = Admin(
            settings.name_server, settings=client_settings, timeout_seconds=ASK_SECONDS
        )
        self.cache = Cache()
        self.cluster = _ClusterQuestions(self.admin, self.cache)
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
    def audit_members(self) -> dict[str, str]:
        """What audit lines say of the cluster, where there are several."""
        return {"context": self.context} if self.context else {}

    @property
    def all(self) -> list[Console]:
        """It, and those that share its users, as they were made."""
        return list(self.shared.consoles.values())

    def expire(self) -> None:
        """Forget what is known of the cluster: something was changed."""
        self.cache.clear()
        self.usages.clear()
        self.members.clear()
        self.health.expire()

    async def start(self) -> None:
        """Begin to take samples. Errors: see ``Admin.start``."""
        await self.admin.start()
        self.sampler.start()

    async def stop(self) -> None:
        """End it, in bounded time."""
        await self.sampler.stop()
        await self.health.stop()
        await self.usages.close()
        await self.members.close()
        await self.cache.close()
        await self.admin.close()
        await self.history.close()
        if self.sign_in is not None and self is self.all[0]:
            await self.sign_in.close()

    async def _members(self, group: str) -> ConsumerConnections | None:
        """Who of a group is online; None: nobody."""
        try:
            return await self.admin.consumer_connections(group)
        except ConsumerNotOnlineError:
            return None
