"""One cluster, as pages and tools ask it: questions with answers for all of them, and what an
action leaves behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kerolox.admin import (
    Admin,
    BrokerStatus,
    ClusterInfo,
    ControllerState,
    GroupState,
    SyncStateSetInfo,
    TopicConfig,
    is_internal_topic,
)
from kerolox.admin.asking import answers_of
from kerolox.admin.consumers.groups import group_states_told
from kerolox.admin.controllers import controllers_named
from kerolox.console.cache import KEPT_SECONDS, Cache
from kerolox.errors import ClientError, KeroloxError, NotFoundError
from kerolox.protocol.names import is_system_group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kerolox.client import ClientSettings
    from kerolox.console.schemas import Schemas
    from kerolox.console.security.audit import Audit

__all__ = ["ClusterContext", "ClusterQuestions", "ControllersSeen"]

_Answer = TypeVar("_Answer")

ASK_SECONDS = 5.0
"""Time limit of one question to the cluster."""


CONTROLLERS_MAX = 15
"""Controllers that brokers may name."""


@dataclass(frozen=True, slots=True)
class ControllersSeen:
    """The controllers of a cluster, and what they keep."""

    states: dict[str, ControllerState | str]
    """By address: how each sees itself, or why it does not answer."""
    sets: dict[str, SyncStateSetInfo]
    """By broker's name; empty: no controller leads."""


class ClusterQuestions:
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

    async def controllers(self, nodes: Iterable[BrokerStatus]) -> ControllersSeen | None:
        """The controllers that settings of brokers name; None: no broker has one. Of each name one
        is asked that has just answered.
        """
        answering = {each.broker_name: each.address for each in nodes if each.runtime is not None}
        settings, _ = await answers_of(answering.values(), self._admin.broker_settings)
        named = [a for each in settings.values() for a in controllers_named(each)]
        addresses = list(dict.fromkeys(named))[:CONTROLLERS_MAX]
        if not addresses:
            return None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                states = await self._admin.controller_states(addresses)
                told = [each for each in states.values() if isinstance(each, ControllerState)]
                # Those of RocketMQ tell no names.
                is_ours = any(each.version for each in told)
                names = () if is_ours else tuple(answering)
                return ControllersSeen(
                    states, await self._admin.sync_state_sets(addresses, names) if told else {}
                )
        except (KeroloxError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            return ControllersSeen(dict.fromkeys(addresses, reason), {})

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


class ClusterContext:
    """The way to one cluster, for whoever asks it and acts in it."""

    def __init__(
        self,
        name_server: str,
        client_settings: ClientSettings | None,
        *,
        audit: Audit,
        schemas: Schemas,
        actions: bool,
        context: str = "",
    ) -> None:
        """Nothing is asked yet.

        Args:
            name_server: ``host:port`` of name servers, joined by ``;``.
            client_settings: credentials and TLS towards the cluster.
            audit: where actions leave a line.
            schemas: by which bodies are shown.
            actions: whether anything can be changed at all.
            context: what audit lines call the cluster; empty: there is one alone.
        """
        self.audit, self.schemas, self.actions, self.context = audit, schemas, actions, context
        self.admin = Admin(name_server, settings=client_settings, timeout_seconds=ASK_SECONDS)
        self.cache = Cache()
        self.cluster = ClusterQuestions(self.admin, self.cache)

    @property
    def audit_members(self) -> dict[str, str]:
        """What audit lines say of the cluster, where there are several."""
        return {"context": self.context} if self.context else {}

    def expire(self) -> None:
        """Forget what is known of the cluster: something was changed."""
        self.cache.clear()

    async def start(self) -> None:
        """Connect. Errors: see ``Admin.start``."""
        await self.admin.start()

    async def stop(self) -> None:
        """End it, in bounded time."""
        await self.cache.close()
        await self.admin.close()
