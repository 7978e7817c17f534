"""What an operator asks of a cluster in a run: offsets reset, topics deleted and made again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from kerolox.admin.admin import Admin
from kerolox.client.aio.settings import ClientSettings
from kerolox.errors import ConnectError, KeroloxError, TopicExistsError, TopicRouteNotFoundError
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import MASTER_ID
from kerolox.protocol.pop_names import pop_retry_topic
from tests.simulation.cluster import BROKER_PORT, DiedError
from tests.simulation.history import PROMOTED, Event, Narrowed, Reset, Rewind
from tests.simulation.scenario import ONCE

if TYPE_CHECKING:
    from tests.simulation.cluster import Node
    from tests.simulation.run import Run


def is_slave(node: Node) -> bool:
    """Whether the broker of a node is a slave now; not before it has started."""
    return hasattr(node.broker, "parts") and node.broker.parts.role.current.is_slave


Command = Callable[[Admin], Awaitable[object]]

TIMEOUT_SECONDS = 2.0
TRIES_MAX = 40
"""An operator whose command fails runs it again, as its error says."""
LOST_TRIES_MAX = 20
RETRY_SECONDS = 0.5
REGISTERED_LOOKS_MAX = 240
"""A name server forgets a connection that is silent within that time."""


def _brokers_of(changed: object) -> set[str]:
    """Which brokers a command says that it changed: one that is being started may be left out."""
    return {each.broker_name for each in changed} if isinstance(changed, list) else set()


class Operator:
    """Runs commands, each as a process of its own, and notes what they change."""

    def __init__(self, run: Run, node: Node) -> None:
        """Nothing is asked yet."""
        self._run = run
        self._widened: Counter[str] = Counter()
        """Of each topic: how many changes that may give it queues began."""
        self._widening: Counter[str] = Counter()
        """How many of them have not ended."""
        self._taken: set[str] = set()
        """Topics whose read queues were taken away, and not given back yet."""
        self._cluster = run.cluster
        self._history = run.history
        self._node = node
        self._lock = asyncio.Lock()
        self._has_failed = False
        """The last command, each time."""

    async def reset_offsets(self, group: str, *, forward: bool) -> None:
        """Have a group go on at the end of its queues, or at their begin."""
        told = self._history.groups[group]
        for topic in told.topics:
            if not forward:
                told.is_rewound = True
            began, log_ends = self._cluster.loop.time(), self._log_ends()
            done = await self._run_command(
                lambda admin, topic=topic: (  # type: ignore[misc]
                    admin.skip_backlog(group, topic)
                    if forward
                    else admin.reset_offsets(group, topic, 0)
                ),
                tries=1,
            )
            if forward:
                self._note_skipped(group, topic)
                is_at_once = isinstance(done, list) and all(each.is_online for each in done)
                told.resets.append(Reset(began, self._cluster.loop.time(), is_at_once))
            for each in done if isinstance(done, list) and not forward else ():
                name, queue_id = each.queue.broker_name, each.queue.queue_id
                told.rewinds[topic, name, queue_id] = Rewind(began, log_ends.get(name, 0))

    def _note_skipped(self, group: str, topic: str) -> None:
        """It need not get what is there now: where the command failed, it may have worked. What a
        broker does later is noted when it does it (``given.py``)."""
        ends: dict[tuple[str, int], int] = {}
        for sent in self._history.sent:
            place = sent.broker or "broker-0", sent.queue_id
            if sent.topic == topic and sent.queue_id >= 0:
                ends[place] = max(ends.get(place, 0), sent.queue_offset + 1)
        started = [each for each in self._cluster.brokers.values() if hasattr(each, "parts")]
        for broker in started:
            for queue_id in range(self._run.scenario.topics[topic]):
                place = broker.config.broker_name, queue_id
                _, end = broker.parts.store.queue_bounds(topic, queue_id)
                ends[place] = max(ends.get(place, 0), end)
        for (name, queue_id), end in ends.items():
            self._history.groups[group].skip((topic, name, queue_id), end)

    async def delete_topic(self, topic: str, *, again: bool) -> None:
        """Delete a topic, and make it again or not."""
        now = self._cluster.loop.time
        self._deleted(topic, now())
        # A broker that has the topic no more takes what waits for any queue of it.
        with self._widens(topic):
            await self._run_command(lambda admin: admin.delete_topic(topic))
            # Commands run one after the other, and another one may make it again.
            if not self._has_failed:
                self._history.gone_topics.add(topic)
            self._deleted(topic, now())
            if again:
                queues = self._run.scenario.topics[topic]
                attributes = ONCE if self._run.scenario.stores_once else None
                await self._run_command(
                    lambda admin: admin.create_topic(topic, queues=queues, attributes=attributes)
                )
                self._history.gone_topics.discard(topic)
                self._deleted(topic, now())

    @contextlib.contextmanager
    def _widens(self, topic: str) -> Iterator[None]:
        """What runs in it may give a topic queues, at any time until it ends."""
        self._widened[topic] += 1
        self._widening[topic] += 1
        try:
            yield
        finally:
            self._widening[topic] -= 1

    def _deleted(self, topic: str, at: float) -> None:
        """A topic is gone, with the retries of groups that pop from it."""
        for name in (topic, *(pop_retry_topic(topic, each) for each in self._history.groups)):
            self._history.deleted_topics[name] = at

    async def change_queues(self, topic: str, queues: int) -> None:
        """Give a topic so many write queues; those that it had are read all the same."""
        known = self._run.scenario.topics
        known[topic] = max(known[topic], queues)
        with self._widens(topic):
            changed = await self._run_command(
                lambda admin: admin.update_topic(topic, queues=queues), tries=LOST_TRIES_MAX
            )
        if changed is not None:
            self._history.gone_topics.discard(topic)
            if queues >= known[topic] and self._masters() <= _brokers_of(changed):
                self._taken.discard(topic)

    async def take_queues(self, topic: str, queues: int, seconds: float) -> None:
        """Take read queues away, too: what they hold is delivered when they are there again. What
        waits for one of them meanwhile comes to the others."""
        self._taken.add(topic)
        changed = await self._run_command(
            lambda admin: admin.update_topic(topic, queues=queues, shrink_read_queues=True),
            tries=LOST_TRIES_MAX,
        )
        # An earlier command may have given queues back while this one waited for its turn.
        self._taken.add(topic)
        narrowed = _brokers_of(changed)
        begins, widened = self._log_ends(), self._widened[topic]
        is_widening = self._widening[topic] > 0
        await asyncio.sleep(seconds)
        # Another change, or the topic deleted or made again, may have given it queues meanwhile.
        if self._widened[topic] == widened and not is_widening:
            self._history.narrowed.extend(
                Narrowed(name, topic, queues, begins[name], end)
                for name, end in self._log_ends().items()
                if name in begins and name in narrowed
            )
        await self.change_queues(topic, self._run.scenario.topics[topic])

    async def give_back_queues(self) -> None:
        """Do what a command could not, since a broker was not there, or not registered yet."""
        for _ in range(LOST_TRIES_MAX):
            for topic in sorted(self._taken - self._history.gone_topics):
                await self.change_queues(topic, self._run.scenario.topics[topic])
            if self._taken <= self._history.gone_topics:
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _masters(self) -> set[str]:
        return {f"broker-{number}" for number in range(self._run.scenario.masters)}

    def _log_ends(self) -> dict[str, int]:
        """Of the masters that run."""
        return {
            broker.config.broker_name: broker.parts.store.max_physical_offset
            for broker in self._cluster.brokers.values()
            if hasattr(broker, "parts") and not broker.parts.role.current.is_slave
        }

    async def change_retry_queues(self, group: str, queues: int) -> None:
        """Give a group so many retry queues."""
        await self._run_command(
            lambda admin: admin.update_group(group, retry_queue_nums=queues), tries=LOST_TRIES_MAX
        )

    async def promote(self, *, planned: bool) -> None:
        """Have the slave with the longest log change places with its master; or take the place of
        one that is killed, which comes back afterwards."""
        cluster = self._cluster
        nodes = [node for node in cluster.nodes.values() if node.name.startswith("broker-0")]
        slaves = [node for node in nodes if node.name in cluster.brokers and is_slave(node)]
        masters = [node for node in nodes if node not in slaves and node.name in cluster.brokers]
        if not slaves or len(masters) != 1:
            return
        longest = max(slaves, key=lambda node: node.broker.parts.store.max_physical_offset)
        if not planned:
            cluster.kill(masters[0])
        await self.promote_node(longest, is_loss=not planned)
        await self._until_registered(longest)
        if not masters[0].is_running:
            # Where it can't, it is started when all is healed.
            with contextlib.suppress(DiedError, KeroloxError, OSError):
                await cluster.start(masters[0])

    async def _until_registered(self, node: Node) -> None:
        """A name server does not let a broker have another id while a connection of its life before
        may be open. An old master that is started meanwhile gets its place again."""
        for _ in range(REGISTERED_LOOKS_MAX):
            if self._is_registered(node):
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _is_registered(self, node: Node) -> bool:
        """All name servers that run, if any does, name it as the master."""
        servers = [
            each.server
            for each in self._cluster.nodes.values()
            if isinstance(each.server, NameServer) and each.is_running
        ]
        known = [server.routes.brokers.get("broker-0") for server in servers]
        address = f"{node.host}:{BROKER_PORT}"
        return bool(known) and all(
            each is not None and each.addresses.get(MASTER_ID) == address for each in known
        )

    async def ensure_master(self) -> None:
        """A change that was cut short may leave no master: then one is named."""
        cluster = self._cluster
        nodes = [cluster.nodes[name] for name in cluster.brokers if name.startswith("broker-0")]
        if nodes and all(is_slave(node) for node in nodes):
            longest = max(nodes, key=lambda node: node.broker.parts.store.max_physical_offset)
            await self.promote_node(longest, is_loss=True)

    async def promote_node(self, node: Node, *, is_loss: bool) -> None:
        """Make a slave the master; ``is_loss``: what it lacks is lost."""
        self._history.role_changes += 1

        def note(end: int) -> None:
            now = self._cluster.loop.time()
            self._history.event(Event(now, PROMOTED, "broker-0", node.name, end, end))

        async def promote(admin: Admin) -> object:
            changed = await admin.promote_broker(
                f"{node.host}:{BROKER_PORT}", accept_loss=is_loss, timeout_seconds=10.0
            )
            if is_loss:
                # Its machine may have crashed since the command was first tried.
                note(changed.log_end)
            return changed

        if is_loss:
            # A try may do it without an answer.
            note(node.broker.parts.store.max_physical_offset)
        await self._run_command(promote, tries=TRIES_MAX if is_loss else 1)

    async def _run_command(self, command: Command, *, tries: int = TRIES_MAX) -> object:
        """As a process of its own; what fails is run again. What it gave; None: nothing."""
        async with self._lock:
            process = self._cluster.new_process(self._node)
            self._has_failed = False
            result = await self._cluster.spawn(process, self._ask(command, tries))
            process.kill()
        return result

    async def _ask(self, command: Command, tries: int) -> object:
        settings = ClientSettings(client_ip=self._node.host)
        may_be_done = False
        for _ in range(tries):
            admin = Admin(
                self._cluster.name_servers, settings=settings, timeout_seconds=TIMEOUT_SECONDS
            )
            async with admin:
                try:
                    result = await command(admin)
                except (TopicRouteNotFoundError, TopicExistsError) as error:
                    if may_be_done:
                        return None  # by an earlier try
                    self._cluster.trace.add(f"command fails: {type(error).__name__}: {error}")
                except KeroloxError as error:
                    may_be_done = may_be_done or not isinstance(error, ConnectError)
                    self._cluster.trace.add(f"command fails: {type(error).__name__}: {error}")
                else:
                    self._cluster.trace.add(f"command: {result}")
                    return result
            await asyncio.sleep(RETRY_SECONDS)
        self._has_failed = True
        return None
