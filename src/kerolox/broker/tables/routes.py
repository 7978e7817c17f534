"""What name servers say of topics, kept for a moment: many clients ask for the same ones together.

A broker answers its own clients with it: those that leave the sharing of queues to it
(:mod:`kerolox.broker.tables.assignments`), and those of RocketMQ 5 (``broker/grpc/routes.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerSettings
    from kerolox.protocol.routing.routes import TopicRoute

FRESH_SECONDS = 5.0
"""How long a route is taken from memory."""

ASKED_SECONDS_MAX = 2.0
"""How long name servers may take to answer, all of them together: clients wait 3 s."""

TOPICS_MAX = 4_096
"""Topics whose routes are remembered; beyond it the memory starts anew."""

LOG_SECONDS = 10.0
"""Between two lines that say that none answers."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Snapshot:
    """The route of a topic as it was last."""

    route: TopicRoute | None = None
    fresh_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who waits for it finds the answer of who asked."""


class TopicRoutes:
    """Routes of all brokers, as name servers know them."""

    def __init__(
        self, settings: BrokerSettings, route: Callable[[str], Awaitable[TopicRoute | None]]
    ) -> None:
        """Nobody was asked yet. ``route`` asks the name servers; None: they know no such topic."""
        self._settings = settings
        self._route = route
        self._snapshots: dict[str, _Snapshot] = {}
        self._logged_at = -LOG_SECONDS

    @property
    def has_name_server(self) -> bool:
        """Without one this broker knows no other."""
        return bool(self._settings.current.name_servers)

    async def of(self, topic: str) -> TopicRoute | None:
        """The route of a topic, the same object while it is fresh; None: no name server knows the
        topic, or none ever answered. A route that was known before outlives their silence."""
        if not self.has_name_server:
            return None
        loop = asyncio.get_running_loop()
        snapshot = self._snapshots.get(topic)
        if snapshot is None:
            if len(self._snapshots) >= TOPICS_MAX:
                self._snapshots.clear()
            snapshot = self._snapshots[topic] = _Snapshot()
        async with snapshot.lock:
            if loop.time() >= snapshot.fresh_until:
                snapshot.route = await self._asked(topic, snapshot.route)
                snapshot.fresh_until = loop.time() + FRESH_SECONDS
            return snapshot.route

    async def _asked(self, topic: str, known: TopicRoute | None) -> TopicRoute | None:
        # A handler is no task before its first wait, and only a task may have a timeout.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(ASKED_SECONDS_MAX):
                return await self._route(topic)
        except KeroloxError as error:
            self._log_silence(topic, str(error))
        except TimeoutError:
            self._log_silence(topic, f"no name server answered in {ASKED_SECONDS_MAX:g} s")
        return known

    def _log_silence(self, topic: str, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            _log.warning("the route of %s, and of others, stays as it was known: %s", topic, why)
