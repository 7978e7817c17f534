"""Receives of a simple consumer: pops on their way, what they brought, and who waits for it.

Each receive that finds nothing has a pop on its way to each broker of each topic; several at once
have as many. What a pop brings goes to its own receive, or to the one that waits longest. A pop
whose receive was cancelled goes on: the next receive gets what it brings.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.core.consuming.popping import PopTerms
from kerolox.client.core.failures import note_failure, notify_failure
from kerolox.errors import ClientError, ConfigError, TopicRouteNotFoundError
from kerolox.protocol.codes import Perm
from kerolox.protocol.pop_names import POP_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.client.aio.consumer_settings import SimpleConsumerSettings
    from kerolox.client.aio.consumers.popping.pops import Pops
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.consuming.leases import Held
    from kerolox.client.core.consuming.popping import PoppedMessages
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt

_log = logging.getLogger(__name__)

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.05, 1.0
"""Between two requests to a broker that has nothing and does not hold them; the pause doubles."""

OVERDUE_SECONDS = 1.0
"""So much later than its time limit a pop has ended in any case."""


PACE_SECONDS = 0.1
"""A loop that receives by its pace has no more on hand than it takes in so long."""


class Place(NamedTuple):
    """A topic at a broker."""

    topic: str
    broker_name: str


class ReceiveLimits(NamedTuple):
    """What one receive is to bring, and until when."""

    max_messages: int
    invisible_ms: int
    deadline: float
    """By the event loop's clock."""


class _Batch:
    """Messages of one pop that were not returned yet."""

    __slots__ = ("ends_at", "messages", "next")

    def __init__(self, messages: list[MessageExt], ends_at: float) -> None:
        self.messages = messages
        self.ends_at = ends_at
        self.next = 0


class Pace:
    """How fast loops over a consumer take messages. While they wait for one, no time passes."""

    __slots__ = ("_count", "_last", "_seconds")

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0
        self._last: float | None = None

    def took(self, now: float) -> None:
        """One was taken."""
        self.waits(now)
        self._count += 1
        self._last = now

    def waits(self, now: float) -> None:
        """There is none to take."""
        if self._last is not None:
            self._seconds += now - self._last
            self._last = None

    def most(self, limit: int) -> int | None:
        """How many are taken in :data:`PACE_SECONDS`, up to a limit; None: nobody knows yet."""
        if not self._count:
            return None
        found = min(limit, int(PACE_SECONDS * self._count / max(self._seconds, 1e-9)))
        if self._count >= limit:  # what was counts less and less
            self._count, self._seconds = self._count // 2, self._seconds / 2
        return found


class Receiver:
    """The receives of one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        pops: Pops,
        settings: SimpleConsumerSettings,
        subscriptions: Mapping[str, Subscription],
        held: Held,
    ) -> None:
        """Nothing is asked yet. ``held``: what was received and is not settled, with bounds."""
        self._cluster = cluster
        self._pops = pops
        self._settings = settings
        self._subscriptions = subscriptions
        self._held = held
        self._loop = asyncio.get_running_loop()
        self.polls: dict[asyncio.Task[PoppedMessages], Place] = {}
        """Pops on their way."""
        self._ready: deque[_Batch] = deque()
        self._waiting: dict[asyncio.Future[None], None] = {}
        """Who waits for messages or for capacity, the longest first."""
        self._without_capacity = 0
        """How many of them wait for capacity."""
        self._turn = 0
        self._pace = Pace() if settings.receive_ahead is None else None
        self._ahead = settings.receive_ahead or 0
        self.batch_size: int = settings.receive_batch_size
        """Most messages of a pop for a loop."""
        self._unknown: set[str] = set()
        """Topics that no name server knew when they were looked up last."""
        self._is_closed = False

    # -- what came ------------------------------------------------------------------------------
    def take(self, count: int) -> list[MessageExt]:
        """Messages that came before, as far as their time is not over."""
        found: list[MessageExt] = []
        while len(found) < count and self._has_ready():
            batch = self._ready[0]
            start = batch.next
            batch.next = end = start + count - len(found)
            found += batch.messages[start:end]
            if end >= len(batch.messages):
                self._ready.popleft()
        if found and self._ready and self._waiting:
            self._wake()  # another one is to take the rest
        return found

    def take_one(self) -> MessageExt | None:
        """As :meth:`take`, one."""
        if not self._has_ready():
            return None
        if self._pace is not None:
            self._pace.took(self._loop.time())
        batch = self._ready[0]
        message = batch.messages[batch.next]
        batch.next += 1
        if batch.next == len(batch.messages):
            self._ready.popleft()
        if self._waiting and self._ready:
            self._wake()
        return message

    @property
    def ready_count(self) -> int:
        """Messages that came and were not returned."""
        return sum(len(batch.messages) - batch.next for batch in self._ready)

    def left(self) -> list[MessageExt]:
        """Take all that was not returned."""
        return self.take(self.ready_count)

    def capacity_freed(self) -> None:
        """Something was acknowledged or given back: who waits for capacity may go on."""
        if self._without_capacity:
            self._wake()

    def _wake(self) -> None:
        """Have the one that waits longest look again."""
        waiting = next(iter(self._waiting), None)
        if waiting is not None:
            self._end(waiting)

    def _end(self, waiting: asyncio.Future[None] | None) -> bool:
        if waiting is None or waiting.done():
            return False
        self._waiting.pop(waiting, None)
        waiting.set_result(None)
        return True

    # -- receives -------------------------------------------------------------------------------
    async def receive(self, limits: ReceiveLimits) -> list[MessageExt]:
        """The first messages that come; none in time. Errors as those of ``receive``."""
        while await self.arrived(limits):
            if found := self.take(limits.max_messages):
                if self.wants_more():
                    self.ask_ahead(limits)
                return found
        return []

    async def arrived(self, limits: ReceiveLimits) -> bool:
        """Wait until something came; False: not in time."""
        own = _OpenReceive()
        if self._pace is not None:
            self._pace.waits(self._loop.time())
        while not self._has_ready():
            now = self._loop.time()
            capacity, is_late = self._held.capacity(now), now >= limits.deadline
            if capacity and not (own.has_asked and is_late) and own.may_ask(now):
                await self._ask(limits, own, capacity)
            if not self._ready:
                if (own.tasks and own.has_failed()) or (is_late and not own.polls):
                    own.check()
                    return False
                await self._wait(limits, own, capacity)
        return True

    def _has_ready(self) -> bool:
        ready = self._ready
        while ready and ready[0].ends_at <= self._loop.time():
            ready.popleft()
        return bool(ready)

    async def _wait(self, limits: ReceiveLimits, own: _OpenReceive, capacity: int) -> None:
        """Until something comes, or there is reason to look again."""
        until = limits.deadline
        if own.polls:
            until += self._cluster.timeout_seconds + OVERDUE_SECONDS
            # After a pause of the process that may be over, and a pop still has to end.
            until = max(until, self._loop.time() + OVERDUE_SECONDS)
        elif own.again_at is not None:
            until = min(until, own.again_at)
        if not capacity and (end := self._held.next_end) is not None:
            until = min(until, end)
        waiting = own.waiting = self._loop.create_future()
        self._waiting[waiting] = None
        self._without_capacity += not capacity
        timer = self._loop.call_at(until, self._end, waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._wake()  # another one is to take what this one was woken for
            raise
        finally:
            timer.cancel()
            own.waiting = None
            self._without_capacity -= not capacity
            self._waiting.pop(waiting, None)

    async def _ask(self, limits: ReceiveLimits, own: _OpenReceive, capacity: int) -> None:
        """Have a pop on its way to each broker that did not fail, one for each receive."""
        places = await self._places()
        on_way: dict[Place, int] = {}
        for place in self.polls.values():
            on_way[place] = on_way.get(place, 0) + 1
        most = 1 if self._settings.is_ordered else len(self._waiting) + 1
        for place in places:
            if place not in own.failures and on_way.get(place, 0) < most:
                self._begin(place, limits, min(limits.max_messages, capacity), own)
        own.has_asked = True

    def wants_more(self, taking: int = 0) -> bool:
        """Fewer messages are there than are wanted ahead, and no pop is on its way; ``taking``: so
        many of those that are there are about to be taken."""
        if not self._ahead or self.polls or self._is_closed:
            return False
        return taking <= self.ready_count < self._ahead + taking

    def _keep_pace(self) -> None:
        """Have as many messages come as loops take soon, those on hand included."""
        most = None if self._pace is None else self._pace.most(POP_MESSAGES_MAX)
        if most is not None:
            self._ahead, self.batch_size = most, max(most, 1)

    def ask_ahead(self, limits: ReceiveLimits) -> None:
        """Have a pop on its way while the messages before are worked on."""
        capacity = min(self._held.capacity(self._loop.time()), self._ahead)
        if capacity:
            limits = limits._replace(deadline=self._loop.time() + self._settings.wait_ms / 1000)
            for place in self._known_places():
                self._begin(place, limits, min(limits.max_messages, capacity), None)

    def _begin(
        self, place: Place, limits: ReceiveLimits, count: int, own: _OpenReceive | None
    ) -> None:
        begun = self._loop.time()
        seconds = max(limits.deadline - begun, 0.0)
        pop = self._pops.pop(
            self._subscriptions[place.topic],
            place.broker_name,
            PopTerms(
                count, limits.invisible_ms, self._settings.from_first, self._settings.is_ordered
            ),
            seconds,
        )
        task = self._loop.create_task(pop)
        self.polls[task] = place
        if own is not None:
            own.tasks += 1
            own.polls += 1
        at_once = begun + min(PAUSE_SECONDS, seconds)
        task.add_done_callback(lambda task: self._ended(task, own, at_once))

    def _ended(
        self, task: asyncio.Task[PoppedMessages], own: _OpenReceive | None, at_once: float
    ) -> None:
        """A pop was answered, or has failed; ``at_once``: until when an answer comes without having
        been held."""
        place, now = self.polls.pop(task), self._loop.time()
        if own is not None:
            own.polls -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None and own is not None:
            own.failures[place] = error
        elif error is not None:
            what = f"pop of {place.topic} at {place.broker_name} failed"
            notify_failure(self._settings.on_failure, what, error)
        elif not task.cancelled():
            popped = task.result()
            self._keep_pace()
            self._held.add(popped.leases, now)
            if messages := popped.pulled.messages:
                self._ready.append(_Batch(messages, popped.leases[0].times.ends_at))
            elif own is not None and now < at_once:
                own.rest(now)
        if own is None or not self._end(own.waiting):
            self._wake()

    def _known_places(self) -> list[Place]:
        places: list[Place] = []
        for topic in self._subscriptions:
            route = self._cluster.routes.get(topic)
            if route is not None:
                names = (each.broker_name for each in route.queues if each.perm & Perm.READ)
                places += [Place(topic, name) for name in dict.fromkeys(names)]
        return places

    async def _places(self) -> list[Place]:
        """The topics and brokers to ask, from another one on each time."""
        if not self._subscriptions:
            raise ConfigError("no topic is subscribed; call subscribe before receive")
        unknown: dict[str, TopicRouteNotFoundError] = {}
        for topic in list(self._subscriptions):
            try:
                await self._cluster.route(topic)
            except TopicRouteNotFoundError as error:
                unknown[topic] = error
        places = [place for place in self._known_places() if place.topic not in unknown]
        if unknown and not places:
            raise next(iter(unknown.values()))
        for topic in unknown.keys() - self._unknown:
            what = f"nothing is received from topic {topic}, and from others as before"
            note_failure(self._settings.on_failure, _log, what, unknown[topic])
        self._unknown = set(unknown)
        if not places:
            raise ClientError(f"no broker lets {', '.join(self._subscriptions)} be read")
        self._turn += 1
        at = self._turn % len(places)
        return places[at:] + places[:at]

    def close(self) -> list[asyncio.Task[PoppedMessages]]:
        """Ask no more; the pops that are still on their way."""
        self._is_closed = True
        return list(self.polls)


class _OpenReceive:
    """What one receive has asked for."""

    def __init__(self) -> None:
        self.tasks = 0
        """Its pops."""
        self.polls = 0
        """Those of them that are on their way."""
        self.failures: dict[Place, BaseException] = {}
        self.has_asked = False
        self.waiting: asyncio.Future[None] | None = None
        self.again_at: float | None = None
        self._pause = PAUSE_SECONDS

    def rest(self, now: float) -> None:
        """A broker that is busy, or that holds no pops, answered at once."""
        self.again_at = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def may_ask(self, now: float) -> bool:
        """No pause goes on."""
        if self.again_at is not None and now >= self.again_at:
            self.again_at = None
        return self.again_at is None

    def has_failed(self) -> bool:
        """All its pops have failed."""
        return len(self.failures) == self.tasks

    def check(self) -> None:
        """Nothing came: because there is nothing, or, which is an error, since no broker answered
        well.
        """
        failed = next(iter(self.failures.values()), None)
        if failed is not None and self.has_failed():
            raise failed
