"""Telling the name servers what this broker has.

:class:`Registration` registers with every name server at the start, every
``registerNameServerPeriod``, and at once after a change. Changes made while a registration is in
flight become the next one. It follows after a rest as long as that one took (at most
:data:`REST_SECONDS_MAX`), so that a thousand new topics are not a thousand registrations.

A registration after a change names what changed, as ``registerIncrementBrokerData`` does: a name
server keeps the topics that a registration leaves out. All topics go to one that did not hear of
them on the connection that is open now, and to all at each period.

A name server that does not answer is logged and tried again, first after :data:`RETRY_SECONDS_MIN`.
One whose connection closes was perhaps restarted and has forgotten us: it hears of us again after
the same time. At the stop the broker unregisters.

A name server refuses us while another broker that is alive has our name or our address. Clients do
not find us there, so each attempt logs an error. It also tells us when another broker claims our
place and was refused: a warning. A master looks for a newer one before each registration
(:mod:`kerolox.broker.roles`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from kerolox.broker.dialling import DIAL_FIELDS
from kerolox.broker.outbound import outbound_client
from kerolox.errors import BrokerError, ConnectionLostError, KeroloxError, RequestTimeoutError
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.grpc_addresses import grpc_entry
from kerolox.protocol.extensions.roles import NEWEST_EPOCH, ROLE_EPOCH, SUCCESSOR
from kerolox.protocol.namesrv import CHALLENGED_BY, CONFLICTS_WITH
from kerolox.protocol.records import body_crc
from kerolox.protocol.registration import RegisterBody, encode_registration
from kerolox.protocol.routing.routes import TopicRoute, route_of, route_request
from kerolox.tasks import end_tasks
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.broker.base import Base
    from kerolox.broker.config import BrokerConfig
    from kerolox.broker.tables.tables import Tables
    from kerolox.protocol.bodies import TopicConfigTable
    from kerolox.remoting.client import ClientConnection

__all__ = ["ANSWER_SECONDS_MAX", "OPERATOR_SECONDS_MAX", "Registration"]

REST_SECONDS_MAX = 0.5
"""Longest rest between two registrations, of which each may have ten thousand topics."""

ON_THE_SPOT_TOPICS_MAX = 256
"""A table of more topics is encoded in a thread: ten thousand take 40 ms. A smaller table always
goes whole, and so does a larger one with more changes."""

RETRY_SECONDS_MIN = 1.0
CLAIM_SECONDS = 0.2
"""The same of a broker under a controller whose place is to be had: clients look for it
meanwhile."""
PERIOD_SECONDS_MIN, PERIOD_SECONDS_MAX = 10.0, 60.0
UNREGISTER_SECONDS_MAX = 1.0

LOG_SECONDS = 10.0
"""Time between two lines about what a name server refuses, or why none is reached."""

UNCOMPRESSED_BYTES_MAX = 8 * 1024 * 1024
"""A larger registration is compressed, whatever ``compressedRegister`` says: no frame might hold
it. The order and the system flags of topics are lost on that way."""

REASON_CHARACTERS_MAX = 2_000
"""Characters of a name server's reason that are shown."""

EPOCH_DIGITS_MAX = 18
"""Of an epoch that a name server says."""

ANSWER_SECONDS_MAX = 1.0
"""How long the answer to a client may wait for the registration of a topic that it made."""

OPERATOR_SECONDS_MAX = 3.0
"""The same of the answer to an operator."""

_log = logging.getLogger(__name__)


class Registration:
    """Keeps all name servers of one broker informed."""

    def __init__(self, base: Base, tables: Tables) -> None:
        """Nobody is notified before :meth:`start`. ``tables`` has the topics to register, and hears
        which ones a name server orders.
        """
        self._settings = base.settings
        self._identity = base.identity
        self._topics = tables.topics
        self._role = base.role
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._on_master: list[Callable[[str, str], None]] = []
        self._on_refused: list[Callable[[str, int], None]] = []
        self.successor = ""
        """The address of the slave that a master gives its place to."""
        self.is_isolated = False
        """No name server is to hear of this broker yet: its controller has not said what it is."""
        self._client = outbound_client(base.settings, on_disconnect=self._disconnected)
        self._wanted = tables.topics_changed
        self._task: asyncio.Task[None] | None = None
        self._failures: dict[str, int] = {}
        self._refusals: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        """Name server → why the last registration with it failed."""
        self._registered: set[str] = set()
        self._known: dict[str, tuple[ClientConnection, TopicConfigTable]] = {}
        """Name server → where it heard of all topics last, and these topics."""
        self._logged_at: dict[str, float] = {}
        self._is_urgent = False
        """The next registration rests for nothing: the role has changed."""
        self._rounds = 0
        self._in_round = False
        self._rest_until = 0.0
        """No other registration before: the time of the loop."""
        self._round_done = asyncio.Condition()
        base.settings.subscribe(self._settings_changed)

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> Awaitable[None] | None:
        dials_anew = any(getattr(old, name) != getattr(new, name) for name in DIAL_FIELDS)
        if dials_anew:
            # The next connections are made as settings say now.
            for server in self._servers:
                self._client.disconnect(server)
        registers = (new.broker_permission, new.namesrv_addr)
        if dials_anew or registers != (old.broker_permission, old.namesrv_addr):
            return self.now(timeout_seconds=OPERATOR_SECONDS_MAX)
        return None

    def subscribe(
        self,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        on_master: Callable[[str, str], None] | None = None,
        on_refused: Callable[[str, int], None] | None = None,
    ) -> None:
        """Hear of registrations.

        Args:
            before: awaited before each one; it may change what this broker is.
            on_master: called with what a name server says of a slave's master, ``haServerAddr`` and
                address; empty: it knows none.
            on_refused: called with the address of the live broker that has our place, and the epoch
                of the newest master, as far as a name server says them.
        """
        self._before += [before] if before else []
        self._on_master += [on_master] if on_master else []
        self._on_refused += [on_refused] if on_refused else []

    def _fields(self) -> dict[str, object]:
        """How a broker names itself in the header of a request."""
        return {
            "brokerAddr": self._identity.address,
            "brokerId": self._role.current.broker_id,
            "brokerName": self._settings.current.broker_name,
            "clusterName": self._settings.current.broker_cluster_name,
        }

    @property
    def _servers(self) -> tuple[str, ...]:
        """The name servers as they are now; one that was taken out forgets us by itself."""
        return self._settings.current.name_servers

    @property
    def failing(self) -> list[str]:
        """The name servers whose last registration failed."""
        return sorted(self._failures)

    @property
    def registered(self) -> list[str]:
        """The name servers whose last registration succeeded, in the order of ``namesrvAddr``."""
        return [server for server in self._servers if server in self._registered]

    @property
    def reasons(self) -> dict[str, str]:
        """The name servers that do not know the broker, and why."""
        return {
            each: self._reasons.get(each, "not asked yet")
            for each in self._servers
            if each not in self._registered
        }

    @property
    def refusals(self) -> dict[str, str]:
        """The name servers that answered the last registration with an error, and that error."""
        return dict(self._refusals)

    async def start(self) -> None:
        """Register with all name servers once, then keep on doing it."""
        self._wanted.clear()
        await self._register_all()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def now(self, *, timeout_seconds: float) -> None:
        """Something changed: register, and wait until it was tried, at most ``timeout_seconds``."""
        if self._task is None or not self._servers or self.is_isolated:
            return
        self._wanted.set()
        # A turn in flight may have taken the table before the change.
        wanted = self._rounds + (2 if self._in_round else 1)
        # A handler is no task before its first wait, and only a task may have a timeout.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(timeout_seconds), self._round_done:
                await self._round_done.wait_for(lambda: self._rounds >= wanted)
        except TimeoutError:
            _log.warning("registration takes long; it goes on in the background")

    async def route(self, topic: str) -> TopicRoute | None:
        """What the first name server that answers says of a topic; None: it knows no such topic.
        KeroloxError: none answers, or with no route; the error of the last one.
        """
        failed: KeroloxError = ConnectionLostError("this broker has no name server")
        for server in self._servers:
            try:
                answer = await self._client.invoke(
                    server, route_request(topic), timeout_seconds=ANSWER_SECONDS_MAX
                )
                return route_of(answer, server)
            except KeroloxError as error:
                failed = error
        raise failed

    @property
    def _timeout_ms(self) -> int | None:
        """A silent broker under a controller is gone so soon for name servers, too."""
        config = self._settings.current
        return config.controller_heart_beat_timeout_mills if config.enable_controller_mode else None

    async def heartbeat(self) -> None:
        """Have the name servers that know this broker see it (BROKER_HEARTBEAT, of RocketMQ 5). The
        connection to one that does not answer is closed: behind a cut of the network a new one is
        there seconds before the old one goes on, and an elected master registers by it.
        """
        await asyncio.gather(*map(self._show_up, self.registered))

    async def _show_up(self, server: str) -> None:
        if self._client.connection(server) is None:
            return
        request = RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, self._fields())
        seconds = self._settings.current.send_heartbeat_timeout_millis / 1000
        try:
            await self._client.invoke(server, request, timeout_seconds=seconds)
        except RequestTimeoutError:
            self._client.disconnect(server)
            self.retry(CLAIM_SECONDS)
        except KeroloxError as error:
            _log.debug("name server %s: no heartbeat: %s", server, error)

    def begin_anew(self) -> None:
        """What this broker is has changed: have all name servers hear of all of it, without a
        rest."""
        self._known.clear()
        self._is_urgent = True
        self._wanted.set()

    def soon(self) -> None:
        """Register at the next turn: a name server may say something new."""
        if self._task is not None:
            self._wanted.set()

    def retry(self, after_seconds: float = RETRY_SECONDS_MIN) -> None:
        """Register again soon, however often it failed."""
        if self._task is not None:
            asyncio.get_running_loop().call_later(after_seconds, self._wanted.set)

    async def stop(self) -> None:
        """Unregister everywhere, at most ``UNREGISTER_SECONDS_MAX``, and close the connections."""
        if self._task is not None:
            await end_tasks(self._task)
            self._task = None
            await asyncio.gather(*(self._unregister(server) for server in self._servers))
        await self._client.close()

    def _disconnected(self, server: str) -> None:
        if server not in self._failures:
            self.retry()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            period = self._settings.current.register_name_server_period / 1000
            seconds = period = min(max(period, PERIOD_SECONDS_MIN), PERIOD_SECONDS_MAX)
            if self._failures:
                attempts = min(min(self._failures.values()), 6)
                seconds = min(period, RETRY_SECONDS_MIN * 2 ** (attempts - 1))
            try:
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()
            except TimeoutError:
                self._known.clear()
            start = loop.time()
            if start < self._rest_until and not self._is_urgent:
                await asyncio.sleep(self._rest_until - start)
                start = loop.time()
            self._wanted.clear()
            self._is_urgent = False
            await self._register_all()
            end = loop.time()
            self._rest_until = end + min(end - start, REST_SECONDS_MAX)

    async def _register_all(self) -> None:
        servers = self._servers
        if not servers or self.is_isolated:
            return
        self._in_round = True
        for before in self._before:
            try:
                await before()
            except KeroloxError as error:
                _log.warning("no look for another master: %s", error)
        topics = self._topics.registration()
        requests = {each: self._changes(each, topics) for each in servers}
        whole: RemotingCommand | None = None
        if None in requests.values():
            if len(topics.topic_config_table) <= ON_THE_SPOT_TOPICS_MAX:
                whole = self._request(topics)
            else:
                whole = await asyncio.to_thread(self._request, topics)
        self._registered.intersection_update(servers)
        for kept in (self._failures, self._refusals, self._reasons, self._logged_at, self._known):
            for gone in kept.keys() - set(servers):
                del kept[gone]
        answers = await asyncio.gather(
            *(self._register(each, topics, requests[each], whole) for each in servers)
        )
        order = next((answer for answer in answers if answer is not None), None)
        if order is not None:
            self._topics.set_ordered(order)
        self._rounds += 1
        self._in_round = False
        async with self._round_done:
            self._round_done.notify_all()

    def _changes(self, server: str, topics: TopicConfigTable) -> RemotingCommand | None:
        """The registration of what a name server has not heard of; None when it must hear of all
        topics."""
        table = topics.topic_config_table
        if len(table) <= ON_THE_SPOT_TOPICS_MAX or not self._is_known(server):
            return None
        before = self._known[server][1].topic_config_table
        # A topic that did not change is the same object.
        changed = {name: topic for name, topic in table.items() if before.get(name) is not topic}
        if len(changed) > ON_THE_SPOT_TOPICS_MAX:
            return None
        return self._request(msgspec.structs.replace(topics, topic_config_table=changed))

    def _is_known(self, server: str) -> bool:
        """The name server heard of all topics on the connection that is open now."""
        known = self._known.get(server)
        return known is not None and known[0] is self._client.connection(server)

    def _request(self, topics: TopicConfigTable) -> RemotingCommand:
        grpc = self._identity.grpc_address
        body, is_compressed = _encoded(
            RegisterBody(
                topic_config_serialize_wrapper=topics,
                filter_server_list=[grpc_entry(grpc)] if grpc else [],
            ),
            self._settings.current.compressed_register,
        )
        header = {
            **self._fields(),
            "bodyCrc32": body_crc(body),
            "compressed": is_compressed,
            "haServerAddr": self._identity.ha_address,
            ROLE_EPOCH: self._role.current.epoch,
            SUCCESSOR: self.successor or None,
            "heartbeatTimeoutMillis": self._timeout_ms,
        }
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body=body)

    async def _register(
        self,
        server: str,
        topics: TopicConfigTable,
        changes: RemotingCommand | None,
        whole: RemotingCommand | None,
    ) -> list[str] | None:
        """The ordered topics that the name server names; None when it failed."""
        seconds = self._settings.current.register_broker_timeout_mills / 1000
        # No wait lies between this check of the connection and the request on it.
        request = changes if self._is_known(server) and changes is not None else whole
        self._known.pop(server, None)
        try:
            if request is None:
                raise ConnectionLostError(f"the connection to {server} closed")
            response = await self._client.invoke(server, request, timeout_seconds=seconds)
            if response.code != ResponseCode.SUCCESS:
                self._note_refusal(response.ext_fields)
            response.raise_for_code(server)
        except KeroloxError as error:
            self._failed(server, error)
            return None
        fields = response.ext_fields
        for on_master in self._on_master:
            on_master(fields.get("haServerAddr") or "", fields.get("masterAddr") or "")
        connection = self._client.connection(server)
        if connection is not None:
            self._known[server] = connection, topics
        self._refusals.pop(server, None)
        challenger = response.ext_fields.get(CHALLENGED_BY)
        if challenger is not None:
            _log.warning(
                "name server %s: another broker claims this one's place, and was refused: %s; give "
                "one of them another brokerName or brokerId, or stop it",
                server,
                printable(challenger, characters_max=REASON_CHARACTERS_MAX),
            )
        self._failures.pop(server, None)
        self._reasons.pop(server, None)
        what = "all" if request is whole else "what changed of"
        count = len(topics.topic_config_table)
        _log.debug("name server %s heard of %s %d topics", server, what, count)
        if server not in self._registered:
            self._registered.add(server)
            _log.info("name server %s: registered as %s", server, self._identity.address)
        return _order_topics(response.body)

    def _note_refusal(self, fields: Mapping[str, str]) -> None:
        epoch = fields.get(NEWEST_EPOCH) or ""
        newest = int(epoch) if epoch.isdecimal() and len(epoch) <= EPOCH_DIGITS_MAX else 0
        if newest or CONFLICTS_WITH in fields:
            for on_refused in self._on_refused:
                on_refused(fields.get(CONFLICTS_WITH) or "", newest)

    def _failed(self, server: str, error: KeroloxError) -> None:
        count = self._failures.get(server, 0)
        self._failures[server] = count + 1
        self._registered.discard(server)
        known = self._reasons.get(server)
        reason = self._reasons[server] = printable(str(error), characters_max=REASON_CHARACTERS_MAX)
        is_refused = isinstance(error, BrokerError)
        if is_refused:
            self._refusals[server] = reason
        else:
            self._refusals.pop(server, None)
        now = asyncio.get_running_loop().time()
        is_due = now - self._logged_at.get(server, -LOG_SECONDS) >= LOG_SECONDS
        if is_refused and is_due:
            self._logged_at[server] = now
            _log.error(
                "name server %s refuses this broker, so that clients do not find it there; it is "
                "tried again: %s",
                server,
                reason,
            )
        elif not is_refused and (not count or (is_due and reason != known)):
            self._logged_at[server] = now
            _log.warning("name server %s: registration failed, tried again: %s", server, reason)

    async def _unregister(self, server: str) -> None:
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, self._fields())
        try:
            await self._client.invoke(server, request, timeout_seconds=UNREGISTER_SECONDS_MAX)
        except KeroloxError as error:
            _log.warning("name server %s: not unregistered: %s", server, error)


def _encoded(body: RegisterBody, compressed: bool) -> tuple[bytes, bool]:
    """The body, and whether it is compressed."""
    data = encode_registration(body, compressed=compressed)
    if compressed or len(data) <= UNCOMPRESSED_BYTES_MAX:
        return data, compressed
    return encode_registration(body, compressed=True), True


def _order_topics(body: bytes) -> list[str] | None:
    if not body:
        return None
    try:
        table = fastjson.loads(body)
    except fastjson.FastjsonError as error:
        _log.warning("the name server's order table is unreadable: %s", error)
        return None
    topics = table.get("table") if isinstance(table, dict) else None
    return list(topics) if isinstance(topics, dict) else None
