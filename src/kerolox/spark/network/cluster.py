"""The cluster as the planning side sees it: routes that are kept, and bounds of queues.

Routes are asked for in the background and kept: a name server that is away, empty or silent changes
nothing for brokers that answer. A broker that is away (stopped, killed, silent) holds up nobody
else: its queues are left out of :meth:`ClusterView.view` until it is back, and only when that takes
longer than ``wait_seconds`` (option ``pollTimeoutMs``) its error is raised. Only masters (broker id
0) and queues that may be read count. Nothing of this is pickled.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from operator import methodcaller
from typing import TypeVar

from kerolox.client.core.sending.retry import is_passing
from kerolox.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    KeroloxError,
    RemotingError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageQueue
from kerolox.spark.network.brokers import (
    Master,
    TopicBounds,
    afterwards,
    in_thread,
    is_done,
    pull_header,
)
from kerolox.spark.network.connecting import Connector
from kerolox.spark.network.routes import Lookup, Masters, RouteFinder, TopicNames
from kerolox.spark.positions.offsets import Bounds, Offsets
from kerolox.spark.selection import Selection

_Result = TypeVar("_Result")

QUEUES_MAX = 100_000

ROUTE_SECONDS = 30.0
"""Routes are asked for again after so long (pollNameServerInterval)."""

ROUTE_SECONDS_IN_TROUBLE = 1.0
"""The same while something is away: it may come back elsewhere."""

PATIENCE_SECONDS = 1.0
"""How long brokers that have answered so far may take before the others go on without them."""

UNKNOWN_SECONDS = 3.0
"""How long a topic that was never seen, and that no name server knows, is asked for."""

RETRY_PAUSE_SECONDS = 0.2

LIST_SECONDS = 10.0
"""New topics that a pattern means are looked for so often."""

_log = logging.getLogger(__name__)


class Topics:
    """The topics of one query: those of its options, or those that a pattern means. Belongs to one
    thread.

    Another one asks the name servers for all names in the background, and the answer is kept. So a
    name server that is away changes nothing for known topics.

    Args:
        finder: asks the name servers; nobody else uses it.
        wait_seconds: how long name servers may be away before their error is raised.
    """

    def __init__(self, selection: Selection, finder: RouteFinder, wait_seconds: float) -> None:
        self._selection = selection
        self._finder = finder
        self._wait_seconds = wait_seconds
        self._chosen: tuple[str, ...] | None = None
        self._asking: Future[TopicNames] | None = None
        self._asked_at = 0.0

    def now(self) -> tuple[str, ...]:
        """The topics that are known; waits for the name servers only the first time. Their error:
        none answers, for too long. ConfigError: the pattern means too many.
        """
        if self._selection.pattern is None:
            return self._selection.topics
        if self._chosen is None:
            return self.fresh()
        if self._asking is None and time.monotonic() >= self._asked_at + LIST_SECONDS:
            self._ask()
        if self._asking is not None and is_done(self._asking, 0.0):
            try:
                self._take()
            except KeroloxError as error:
                if not is_passing(error):
                    raise
                _log.info("new topics can't be looked for now: %s", error)
        return self._chosen

    def fresh(self) -> tuple[str, ...]:
        """The topics that there are now; errors as those of :meth:`now`."""
        if self._selection.pattern is None:
            return self._selection.topics
        deadline = time.monotonic() + self._wait_seconds
        while True:
            if self._asking is not None:
                # What was asked for earlier may lack a topic that the caller wants to see.
                wait([self._asking])
                self._asking = None
            self._ask()
            try:
                return self._take()
            except KeroloxError as error:
                if not is_passing(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connections, those that are in use when their answer has come. Idempotent."""
        if self._asking is None:
            self._finder.close()
        else:
            afterwards(self._asking, self._finder.close)

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        self._asking = in_thread(self._finder.topics)

    def _take(self) -> tuple[str, ...]:
        assert self._asking is not None
        asking, self._asking = self._asking, None
        names = asking.result()
        chosen = self._selection.choose(names.topics, names.system)
        before = set(self._chosen or ())
        if not names.topics and before:
            return self._chosen or ()  # name servers that have just started
        for topic in sorted(before - set(chosen)):
            _log.warning("topic %s is not listed any more; its queues keep their place", topic)
        if self._chosen is not None:
            for topic in sorted(set(chosen) - before):
                _log.info("topic %s is new, and is read from its start", topic)
        elif not chosen:
            _log.warning("no topic matches %s now", self._selection.pattern)
        self._chosen = chosen
        return chosen


class AwayError(ConnectError):
    """A broker that has answered before does not answer now; it may be back soon."""

    def __init__(self, broker_name: str, error: KeroloxError) -> None:
        super().__init__(str(error))
        self.broker_name = broker_name


@dataclass(slots=True)
class _Trouble:
    since: float
    error: KeroloxError
    seconds_max: float


class ClusterView:
    """Routes and queue bounds. Belongs to one thread.

    Args:
        name_servers: all are asked, the one that answered last first.
        wait_seconds: how long something may be away before its error is raised.
        connector: makes the connections; None: they are neither signed nor encrypted.
        selection: of the query, for :attr:`topics`.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        *,
        wait_seconds: float,
        connector: Connector | None = None,
        selection: Selection | None = None,
    ) -> None:
        name_servers = tuple(name_servers)
        self._connector = connector or Connector()
        self._finder = RouteFinder(name_servers, self._connector)
        self._wait_seconds = wait_seconds
        self._routes: dict[str, Masters] = {}
        self.topics = Topics(
            selection or Selection(), RouteFinder(name_servers, self._connector), wait_seconds
        )
        self._skipped: frozenset[str] = frozenset()
        """Topics that a pattern means and that nobody can read now."""
        self._is_listing = selection is not None and selection.pattern is not None
        self._unlisted: set[tuple[str, str]] = set()
        """(topic, broker name) that the newest route lacks, kept as long as the broker answers."""
        self._finding: Future[Lookup] | None = None
        self._found_at = -ROUTE_SECONDS
        self._masters: dict[str, Master] = {}
        self._asking: dict[str, Future[dict[str, TopicBounds | BrokerError]]] = {}
        self._troubles: dict[tuple[str, str], _Trouble] = {}
        """By (topic or "", broker name or "")."""

    def __enter__(self) -> ClusterView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what callers need -------------------------------------------------------------------
    def view(self, topics: Collection[str]) -> dict[MessageQueue, Bounds]:
        """The bounds of the queues of all brokers that answer now.

        Raises:
            TopicRouteNotFoundError: a topic is not to be found, for too long.
            ConnectError: a name server or broker is away, for too long.
            BrokerError: a broker refuses.
            RemoteProtocolError: a server does not speak the protocol.
        """
        topics = [topic for topic in topics if topic not in self._skipped]
        self._find_routes(topics)
        held: dict[MessageQueue, Bounds] = {}
        wanted = self._wanted(topics)
        for name, by_topic in wanted.items():
            if name not in self._asking:
                master = self._master(name, by_topic)
                counts = {topic: queues for topic, (_, queues) in by_topic.items()}
                self._asking[name] = in_thread(functools.partial(master.bounds, counts))
        deadline = time.monotonic() + PATIENCE_SECONDS
        for name, by_topic in wanted.items():
            patience = 0.0 if ("", name) in self._troubles else deadline - time.monotonic()
            if is_done(self._asking[name], max(patience, 0.0)):
                self._take_bounds(name, by_topic, self._asking.pop(name), held)
            else:
                silent = f"broker {name} at {self._masters[name].address} does not answer"
                self._note("", name, ConnectError(silent))
        self._raise_what_lasts()
        if len(held) > QUEUES_MAX:
            raise ConfigError(f"the topics have {len(held)} queues, over {QUEUES_MAX}")
        return held

    def complete(
        self, topics: Collection[str], needed: Collection[MessageQueue] | None = None
    ) -> dict[MessageQueue, Bounds]:
        """As :meth:`view`, but waits for the ``needed`` queues, else for all that the routes have.

        Raises:
            ConnectError: a needed queue is not to be found on a master, for too long.
        """
        deadline = time.monotonic() + self._wait_seconds
        while True:
            held = self.view(topics)
            if needed is None:
                if not self._troubles and not self._asking:
                    return held
            else:
                missing = [queue for queue in needed if queue not in held]
                if not missing:
                    return held
                if time.monotonic() >= deadline:
                    first = min(missing)
                    raise ConnectError(
                        f"no master has queue {first.queue_id} of {first.topic} on "
                        f"{first.broker_name} and {len(missing) - 1} more that the batch needs; "
                        "start the broker, the query goes on from its checkpoint"
                    )
                self._found_at = min(
                    self._found_at, time.monotonic() - ROUTE_SECONDS + ROUTE_SECONDS_IN_TROUBLE
                )
            time.sleep(RETRY_PAUSE_SECONDS)

    def address(self, queue: MessageQueue) -> str:
        """The address of the master of a queue that :meth:`view` has given."""
        return self._routes[queue.topic][queue.broker_name][0]

    def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        """When a message was stored, ms; None when it is not there. AwayError: the broker does not
        answer now.
        """
        with self._noting(queue.broker_name):
            return self._masters[queue.broker_name].store_time(queue, offset, group)

    def first_after(self, queue: MessageQueue, held: Bounds, time_ms: int, group: str) -> int:
        """The offset of the first message that was stored later than a time; errors as above."""
        with self._noting(queue.broker_name):
            master = self._masters[queue.broker_name]
            return master.first_since({queue: time_ms + 1}, {queue: held}, group)[queue]

    def lost(self, queues: Collection[MessageQueue], group: str) -> Offsets:
        """Where those of the queues end that their topics have no more, by what brokers say that
        answer now.
        """
        found: Offsets = {}
        for name, asked in _by_broker(queues).items():
            if name not in self._masters or name in self._asking:
                continue
            with contextlib.suppress(AwayError), self._noting(name):
                found |= self._masters[name].lost(asked, group)
        return found

    def first_since(
        self, times: Mapping[MessageQueue, int], held: Mapping[MessageQueue, Bounds], group: str
    ) -> Offsets:
        """The first offset of each queue that was stored at its time (ms) or later, else its end.

        Waits for brokers that are away, at most ``wait_seconds``; AwayError: one is for longer.
        """
        found: Offsets = {}
        for name, queues in _by_broker(times).items():
            of_broker = {queue: times[queue] for queue in queues}
            ask = methodcaller("first_since", of_broker, held, group)
            found |= self._patiently(name, ask)
        return found

    def check_filter(
        self, held: Iterable[MessageQueue], group: str, expression: str, kind: str
    ) -> None:
        """See whether all brokers take pulls with a filter; errors as above."""
        for name, queues in _by_broker(held).items():
            header = pull_header(queues[0], group, expression, kind=kind, count=1)
            self._patiently(name, methodcaller("check_filter", header))

    def committed(self, queues: Iterable[MessageQueue], group: str) -> Offsets:
        """The offsets of a group, without queues of which it has none; errors as above."""
        found: Offsets = {}
        for name, asked in _by_broker(queues).items():
            found |= self._patiently(name, methodcaller("committed", asked, group))
        return found

    def commit(self, offsets: Mapping[MessageQueue, int], group: str) -> set[MessageQueue]:
        """Store offsets of a group, at brokers that answer now; the queues that it was done for."""
        done: set[MessageQueue] = set()
        for name, queues in _by_broker(offsets).items():
            if name not in self._masters or ("", name) in self._troubles or name in self._asking:
                continue
            try:
                with self._noting(name):
                    self._masters[name].commit({queue: offsets[queue] for queue in queues}, group)
            except AwayError:
                continue
            done.update(queues)
        return done

    def _patiently(self, name: str, ask: Callable[[Master], _Result]) -> _Result:
        deadline = time.monotonic() + self._wait_seconds
        while True:
            try:
                with self._noting(name):
                    return ask(self._masters[name])
            except AwayError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connections, those that are in use when their answer has come. Idempotent."""
        self.topics.close()
        if self._finding is None:
            self._finder.close()
        else:
            afterwards(self._finding, self._finder.close)
        for name, master in self._masters.items():
            if name in self._asking:
                afterwards(self._asking[name], master.close)
            else:
                master.close()

    # -- routes ------------------------------------------------------------------------------
    def _find_routes(self, topics: Collection[str]) -> None:
        if self._skipped and time.monotonic() >= self._found_at + ROUTE_SECONDS:
            self._skipped = frozenset()
        new = any(topic not in self._routes for topic in topics)
        in_trouble = new or self._troubles or self._unlisted
        seconds = ROUTE_SECONDS_IN_TROUBLE if in_trouble else ROUTE_SECONDS
        if self._finding is None and time.monotonic() >= self._found_at + seconds:
            asked = list(topics)
            self._finding = in_thread(lambda: self._finder.find(asked))
        if self._finding is None or not is_done(self._finding, PATIENCE_SECONDS if new else 0.0):
            if new and self._finding is not None:
                away = ConnectError(f"no name server of {self._servers()} answers")
                self._note_new(topics, away, certain=False)
            return
        finding, self._finding = self._finding, None
        self._found_at = time.monotonic()
        lookup = finding.result()
        for topic, masters in lookup.found.items():
            self._learn(topic, masters, lookup.unreadable[topic])
        unknown = [topic for topic in topics if topic not in self._routes]
        if self._is_listing and lookup.failure is None:
            # Written to only, or deleted meanwhile: a pattern means what can be read.
            self._skipped = frozenset(unknown)
            return
        for topic in unknown:
            if topic in lookup.found:
                error: KeroloxError = TopicRouteNotFoundError(
                    f"topic {topic} has no queue that can be read on a master now; "
                    "is its broker running, and may the topic be read (perm 4)?"
                )
            elif lookup.certain or lookup.failure is None:
                error = TopicRouteNotFoundError(
                    f"name server {self._servers()} knows no topic {topic}; "
                    "create it or correct option subscribe"
                )
            else:
                error = lookup.failure
            self._note_new([topic], error, certain=topic in lookup.found or lookup.certain)

    def _note_new(self, topics: Collection[str], error: KeroloxError, *, certain: bool) -> None:
        seconds = min(UNKNOWN_SECONDS, self._wait_seconds) if certain else self._wait_seconds
        for topic in topics:
            if topic not in self._routes:
                self._note(topic, "", error, seconds)

    def _learn(self, topic: str, masters: Masters, unreadable: set[str]) -> None:
        known = self._routes.get(topic, {})
        kept = {
            name: at for name, at in known.items() if name not in masters and name not in unreadable
        }
        self._unlisted = {each for each in self._unlisted if each[0] != topic}
        self._unlisted |= {(topic, name) for name in kept}
        if masters or kept:
            self._routes[topic] = {**masters, **kept}
            self._troubles.pop((topic, ""), None)
        for name in known.keys() - masters.keys() - kept.keys():
            self._troubles.pop((topic, name), None)

    def _drop(self, topic: str, broker_name: str) -> None:
        masters = self._routes[topic]
        _log.warning(
            "topic %s is not on broker %s any more; its queues keep their place",
            topic,
            broker_name,
        )
        del masters[broker_name]
        self._unlisted.discard((topic, broker_name))
        self._troubles.pop((topic, broker_name), None)

    def _servers(self) -> str:
        return ";".join(self._finder.name_servers.in_order())

    # -- brokers -----------------------------------------------------------------------------
    def _wanted(self, topics: Iterable[str]) -> dict[str, dict[str, tuple[str, int]]]:
        wanted: dict[str, dict[str, tuple[str, int]]] = {}
        for topic in topics:
            for name, at in self._routes.get(topic, {}).items():
                wanted.setdefault(name, {})[topic] = at
        return wanted

    def _master(self, name: str, by_topic: dict[str, tuple[str, int]]) -> Master:
        listed = [at for topic, at in by_topic.items() if (topic, name) not in self._unlisted]
        address = (listed or list(by_topic.values()))[0][0]
        master = self._masters.get(name)
        if master is None or master.address != address:
            if master is not None:
                master.close()
            master = self._masters[name] = Master(name, address, self._connector)
        return master

    def _take_bounds(
        self,
        name: str,
        by_topic: dict[str, tuple[str, int]],
        asked: Future[dict[str, TopicBounds | BrokerError]],
        held: dict[MessageQueue, Bounds],
    ) -> None:
        try:
            answers = asked.result()
        except RemotingError as error:
            if not is_passing(error):
                raise
            self._note("", name, error)
            return
        self._troubles.pop(("", name), None)
        for topic, answer in answers.items():
            if topic not in by_topic:
                continue
            if isinstance(answer, BrokerError):
                if not is_passing(answer):
                    raise answer
                self._note(topic, name, answer)
                continue
            self._troubles.pop((topic, name), None)
            for queue_id in range(by_topic[topic][1]):
                if queue_id in answer:
                    held[MessageQueue(topic, name, queue_id)] = answer[queue_id]

    @contextlib.contextmanager
    def _noting(self, broker_name: str) -> Iterator[None]:
        try:
            yield
        except (RemotingError, BrokerError) as error:
            if not is_passing(error):
                raise
            self._note("", broker_name, error)
            raise AwayError(broker_name, error) from error

    # -- troubles ----------------------------------------------------------------------------
    def _note(
        self, topic: str, broker_name: str, error: KeroloxError, seconds_max: float | None = None
    ) -> None:
        seconds = self._wait_seconds if seconds_max is None else seconds_max
        known = self._troubles.get((topic, broker_name))
        if known is not None:
            known.error, known.seconds_max = error, seconds
            return
        self._troubles[topic, broker_name] = _Trouble(time.monotonic(), error, seconds)
        _log.warning("%s; waiting for it, %g s at most", error, seconds)

    def _raise_what_lasts(self) -> None:
        now = time.monotonic()
        for (topic, name), trouble in list(self._troubles.items()):
            if now - trouble.since < trouble.seconds_max:
                continue
            if name and self._is_elsewhere(topic, name):
                continue
            raise trouble.error

    def _is_elsewhere(self, topic: str, name: str) -> bool:
        """Whether a broker that is away is not needed: its topics' routes lack it by now."""
        topics = [topic] if topic else [t for t, masters in self._routes.items() if name in masters]
        unlisted = [each for each in topics if (each, name) in self._unlisted]
        for each in unlisted:
            if len(self._routes[each]) > 1:
                self._drop(each, name)
        if any(name in self._routes[each] for each in topics):
            return False
        self._troubles.pop((topic, name), None)
        return True


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return by_broker
