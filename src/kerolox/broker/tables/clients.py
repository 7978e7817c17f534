"""Who is connected: ``ProducerManager``, ``ConsumerManager`` and their notices.

Clients introduce themselves by heartbeats. A client that unregisters, closes its connection, or is
silent for :data:`EXPIRED_MS` leaves. When the members or the topics of a consumer group change, all
its members are notified (NOTIFY_CONSUMER_IDS_CHANGED), so that they share the queues anew.
Subscriptions go to the kernel, whose fast pulls use them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kerolox.broker.config import BrokerSettings
from kerolox.broker.errors import system_error
from kerolox.broker.tables.subscriptions import WANTED_MAX, Changes, GroupSubscriptions
from kerolox.errors import BrokerError, RemotingError
from kerolox.kernel.tables import FastPathTables
from kerolox.protocol.bodies import (
    HEARTBEAT_GROUPS_MAX,
    ConnectedClient,
    ConsumerData,
    SubscriptionData,
)
from kerolox.protocol.codes import REMOTING, LanguageCode, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.server import ServerConnection

EXPIRED_MS = 120_000
"""A client whose last heartbeat is older is dropped (CHANNEL_EXPIRED_TIMEOUT)."""

GROUPS_PER_CONNECTION_MAX = HEARTBEAT_GROUPS_MAX
"""Groups, of producers and of consumers, that the clients of one connection may be in."""

TOPICS_PER_GROUP_MAX = 2_048
"""Topics that one group may subscribe to."""

MEMBERS_MAX = 1_000_000
"""Clients in groups, each counted in each group."""

SUBSCRIPTIONS_MAX = 1_000_000
"""Topics that groups subscribe to, each counted in each group, and once for each way in which its
members want it."""

CLIENTS_BYTES_MAX = 256 * 1024 * 1024
"""What members, the names of their groups and all subscriptions take, estimated from above."""

MEMBER_BYTES = 600
"""What a member takes besides its texts: tables' entries."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Client:
    """One client, as its heartbeats describe it."""

    connection: ServerConnection
    client_id: str
    language: LanguageCode
    version: int
    last_heartbeat_ms: int

    def __str__(self) -> str:
        return f"client {self.client_id} at {self.connection.remote_address}"

    def describe(self) -> ConnectedClient:
        """As the answers of 203 and 204 hold it."""
        return ConnectedClient(
            client_addr=self.connection.remote_address,
            client_id=self.client_id,
            language=self.language.name,
            version=self.version,
            protocol_type=self.other_protocol,
            client_version=self.connection.client_version or None,
        )

    @property
    def other_protocol(self) -> str | None:
        """What it speaks; None: remoting."""
        protocol = self.connection.protocol_type
        return None if protocol == REMOTING else protocol


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a consumer group that are online, and what they subscribe to."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    wanted: GroupSubscriptions = field(default_factory=GroupSubscriptions)
    members: dict[ServerConnection, Client] = field(default_factory=dict)
    changes: int = 0
    """How often something other than the members changed."""

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """Topic → the subscription that counts."""
        return self.wanted.current

    def member(self, client_id: str) -> Client | None:
        """The member of that client id. One that came back over a new connection, before the old
        one was found dead, is meant as it is now."""
        found = [c for c in self.members.values() if c.client_id == client_id]
        return max(reversed(found), key=lambda c: c.last_heartbeat_ms, default=None)

    @property
    def client_ids(self) -> list[str]:
        """The members' ids, each once: who counts one twice shares the queues wrongly."""
        return list(dict.fromkeys(client.client_id for client in self.members.values()))


@dataclass(slots=True)
class _Joined:
    """The groups that clients of one connection are in."""

    producer_groups: set[str] = field(default_factory=set)
    consumer_groups: set[str] = field(default_factory=set)
    client: Client | None = None
    """Who sent the heartbeat that is remembered."""
    fingerprint: int = 0


class ClientTable:
    """All clients of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: FastPathTables,
        now_ms: Callable[[], int],
        *,
        on_group_gone: Callable[[str], None] = lambda group: None,
    ) -> None:
        """Without clients. ``now_ms``: of a clock that nobody sets: who lives is told by it.
        ``on_group_gone`` is called when the last member of a consumer group left.
        """
        self._settings = settings
        self._store = store
        self.now_ms = now_ms
        self._no_broadcast: set[str] = set()
        """Consumer groups whose consumeBroadcastEnable is false."""
        self._on_group_gone = on_group_gone
        self._groups: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[ServerConnection, Client]] = {}
        self._producer_ids: dict[str, Client] = {}
        self._joined: dict[ServerConnection, _Joined] = {}
        self._members = 0
        self._subscriptions = 0
        self._bytes = 0
        self._operations = 0
        self.large_heartbeats = asyncio.Lock()
        """Held while a heartbeat of more than a step's topics is taken: see :meth:`joining`."""
        settings.subscribe(lambda old, new: self.take_heartbeats_anew())
        """Counts what operators change: see :meth:`take_heartbeats_anew`."""

    # -- heartbeats ---------------------------------------------------------------------------
    def fingerprint(self, connection: ServerConnection, *heartbeat: object) -> int:
        """Of a heartbeat, and of what else decides what it does: the state of the connection's
        groups, and what operators changed."""
        joined = self._joined.get(connection)
        if joined is None:
            return 0
        changes = sum(self._groups[name].changes for name in joined.consumer_groups)
        return hash((changes, self._operations, *heartbeat))

    def knows(self, connection: ServerConnection, fingerprint: int) -> bool:
        """Whether this is the connection's last heartbeat once more, and nothing changed that it
        depends on. All that it tells then is its time, which is noted."""
        joined = self._joined.get(connection)
        if joined is None or joined.client is None or joined.fingerprint != fingerprint:
            return False
        client = joined.client
        if joined.producer_groups and self._producer_ids.get(client.client_id) is not client:
            return False
        client.last_heartbeat_ms = self.now_ms()
        return True

    def remember(self, client: Client, fingerprint: int) -> None:
        """A heartbeat was taken, and changed nothing: see :meth:`knows`."""
        joined = self._joined.get(client.connection)
        if joined is not None:
            joined.client, joined.fingerprint = client, fingerprint

    def take_heartbeats_anew(self) -> None:
        """An operator changed or deleted something that heartbeats make, or the settings."""
        self._operations += 1

    def add_producer(self, group: str, client: Client) -> None:
        """A producer's heartbeat; BrokerError, code 1: its connection, or the broker, has too many
        clients already.
        """
        self._check_capacity(group, self._producers.get(group, {}), client)
        members = self._producers.setdefault(group, {})
        known = members.get(client.connection)
        self._count_member(group, known, -1)
        self._count_member(group, client, 1)
        members[client.connection] = client
        if known is None:
            _log.debug("%s joined producers %s, %d members", client, group, len(members))
        self._joined.setdefault(client.connection, _Joined()).producer_groups.add(group)
        self._producer_ids[client.client_id] = client
        if known is not None and known.client_id != client.client_id:
            self._forget_producer(known)

    def joining(self, data: ConsumerData, client: Client, *, notify: bool) -> Iterator[None]:
        """A consumer's heartbeat, ``TOPICS_PER_STEP`` topics at each step. ``notify`` is the
        group's own notifyConsumerIdsChangedEnable. BrokerError, code 1: its connection, or the
        broker, has too many clients or subscriptions already.

        Others may be served between two steps. A later heartbeat of the connection, or its end,
        ends this one. Whether there is space is known at the first step, so one of several steps
        is to be taken at a time.
        """
        self._check_consumer(data, client)
        group = self._groups.setdefault(data.group_name, ConsumerGroup(data.group_name))
        model_changed = group.message_model not in ("", data.message_model)
        how = (data.consume_type, data.message_model, data.consume_from_where)
        group.changes += how != (group.consume_type, group.message_model, group.consume_from_where)
        group.consume_type, group.message_model, group.consume_from_where = how
        known = group.members.get(client.connection)
        is_new = known is None
        self._count_member(group.name, known, -1)
        self._count_member(group.name, client, 1)
        group.members[client.connection] = client
        self._joined.setdefault(client.connection, _Joined()).consumer_groups.add(group.name)
        if model_changed:
            self._refresh(group.name)
        wanted, connection = group.wanted, client.connection
        if known is not None and known.client_id != client.client_id:
            for _ in self._took(group, wanted.leave(connection, known.client_id)):
                yield
            if group.members.get(connection) is not client:
                return
        changed = is_new
        named = data.subscription_data_set
        declaring = wanted.declare(connection, client.client_id, named, self.now_ms())
        for changes in self._took(group, declaring):
            changed |= changes.is_other_topics
            yield
        if is_new:
            _log.debug("%s joined group %s, %d members", client, group.name, len(group.members))
        elif changed:
            _log.debug("%s changed what group %s subscribes to", client, group.name)
        if changed and notify:
            self._notify(group)

    def remove_producer(self, group: str, connection: ServerConnection) -> None:
        """A producer unregistered."""
        members = self._producers.get(group)
        if members is None:
            return
        left = members.pop(connection, None)
        if not members:
            del self._producers[group]
        if left is not None:
            _log.debug("%s left producers %s, %d members", left, group, len(members))
            self._count_member(group, left, -1)
            self._joined[connection].producer_groups.discard(group)
            self._forget_producer(left)
            self._left_one(connection)

    def leaving_group(
        self, group: str, connection: ServerConnection, *, notify: bool
    ) -> Iterator[None]:
        """A consumer unregistered; its subscriptions go ``TOPICS_PER_STEP`` topics at each step.
        All steps have to be taken."""
        found = self._groups.get(group)
        if found is None:
            return
        left = found.members.pop(connection, None)
        if left is not None:
            _log.debug("%s left group %s, %d members", left, group, len(found.members))
            self._count_member(group, left, -1)
            self._joined[connection].consumer_groups.discard(group)
            self._left_one(connection)
            for _ in self._took(found, found.wanted.leave(connection, left.client_id)):
                yield
        self._left(found)
        if notify:
            self._notify(found)

    def connection_closed(self, connection: ServerConnection) -> None:
        """Forget all clients of a connection."""
        for _ in self.leaving(connection):
            pass

    def leaving(self, connection: ServerConnection) -> Iterator[None]:
        """As :meth:`connection_closed`, a group at each step, or ``TOPICS_PER_STEP`` topics. Others
        may be served between two. All steps have to be taken."""
        joined = self._joined.get(connection)
        if joined is None:
            return
        # A broker that loses ten thousand clients at once can't look through all groups for each.
        for name in list(joined.producer_groups):
            self.remove_producer(name, connection)
            yield
        for name in list(joined.consumer_groups):
            yield from self.leaving_group(name, connection, notify=True)
            yield

    def _members_of_all(self) -> list[Client]:
        members = [m for members in self._producers.values() for m in members.values()]
        return members + [m for group in self._groups.values() for m in group.members.values()]

    def turned(self, ms: int) -> None:
        """The clock was turned ahead by so much; nobody was silent for longer than before."""
        for client in {id(client): client for client in self._members_of_all()}.values():
            client.last_heartbeat_ms += ms

    def expire(self) -> None:
        """Drop clients that are silent for too long, and close their connections."""
        oldest = self.now_ms() - EXPIRED_MS
        members = self._members_of_all()
        expired = {m.connection: m for m in members if m.last_heartbeat_ms < oldest}
        for client in expired.values():
            _log.warning(
                "client %s at %s sent no heartbeat for %d s; it is dropped",
                client.client_id,
                client.connection.remote_address,
                EXPIRED_MS // 1000,
            )
            self.connection_closed(client.connection)
            client.connection.close()

    def set_may_broadcast(self, group: str, may_broadcast: bool) -> None:
        """A group's consumeBroadcastEnable, which its fast pulls depend on."""
        (self._no_broadcast.discard if may_broadcast else self._no_broadcast.add)(group)
        self._refresh(group)

    def _refresh(self, group: str) -> None:
        found = self._groups.get(group)
        if found is not None:
            for subscription in found.subscriptions.values():
                self._push(found, subscription)

    # -- questions ----------------------------------------------------------------------------
    def groups(self) -> list[ConsumerGroup]:
        """The consumer groups that are online."""
        return [group for group in self._groups.values() if group.members]

    def group(self, name: str) -> ConsumerGroup | None:
        """A consumer group that has members online."""
        found = self._groups.get(name)
        return found if found is not None and found.members else None

    def is_member(self, group: str, connection: ServerConnection) -> bool:
        """Whether a client of a connection is in a consumer group."""
        found = self._groups.get(group)
        return found is not None and connection in found.members

    def readers_of(self, topic: str) -> dict[str, list[int]]:
        """The groups online that subscribe to a topic; with the ids of their members' connections
        where each reads everything by itself."""
        return {group: self.readers_in(group) for group in self.groups_of(topic)}

    def readers_in(self, group: str) -> list[int]:
        """The ids of the connections of a broadcasting group's members; none of another group."""
        found = self._groups.get(group)
        if found is None or found.message_model != "BROADCASTING":
            return []
        return [connection.connection_id for connection in found.members]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What a group subscribes to of a topic."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def named(self, group: str, connection: ServerConnection) -> str:
        """Who asks, as operators see it: a member by its client id, anybody else by the address."""
        found = self._groups.get(group)
        member = None if found is None else found.members.get(connection)
        return connection.remote_address if member is None else member.client_id

    def groups_of(self, topic: str) -> list[str]:
        """The groups online that subscribe to a topic."""
        return [g.name for g in self.groups() if topic in g.subscriptions]

    def producers(self, group: str) -> list[Client] | None:
        """The producers of a group; None when there are none."""
        members = self._producers.get(group)
        return None if members is None else list(members.values())

    def producer(self, client_id: str) -> Client | None:
        """The producer of a client id, over the connection that it was seen last."""
        return self._producer_ids.get(client_id)

    @property
    def producer_groups(self) -> dict[str, list[Client]]:
        """All producers."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    # -- inside -------------------------------------------------------------------------------
    def _check_consumer(self, data: ConsumerData, client: Client) -> None:
        known = self._groups.get(data.group_name)
        members = {} if known is None else known.members
        self._check_capacity(data.group_name, members, client)
        named = data.subscription_data_set
        if (
            self._subscriptions + len(named) <= SUBSCRIPTIONS_MAX
            and self._bytes + GroupSubscriptions.size_max(named) <= CLIENTS_BYTES_MAX
            and len(members) < WANTED_MAX
        ):
            return  # As nearly always; to know exactly takes long.
        wanted = GroupSubscriptions() if known is None else known.wanted
        more = wanted.growth(client.connection, named)
        if more.subscriptions > 0 and self._subscriptions + more.subscriptions > SUBSCRIPTIONS_MAX:
            raise _too_many(client, f"{self._subscriptions} subscriptions in this broker")
        if more.size > 0 and self._bytes + more.size > CLIENTS_BYTES_MAX:
            raise _too_many(client, f"clients that take {self._bytes} bytes in this broker")
        if more.fullest > WANTED_MAX:
            raise _too_many(client, f"{WANTED_MAX} ways in which its group wants a topic")

    def _check_capacity(
        self, group: str, members: Mapping[ServerConnection, Client], client: Client
    ) -> None:
        """Whether a client may join a group with these members."""
        known = members.get(client.connection)
        more = _member_bytes(group, client)
        if known is not None:
            more -= _member_bytes(group, known)
        if more > 0 and self._bytes + more > CLIENTS_BYTES_MAX:
            raise _too_many(client, f"clients that take {self._bytes} bytes in this broker")
        if known is not None:
            return
        if self._members >= MEMBERS_MAX:
            raise _too_many(client, f"{self._members} members of groups in this broker")
        joined = self._joined.get(client.connection)
        if joined is None:
            return
        count = len(joined.producer_groups) + len(joined.consumer_groups)
        if count >= GROUPS_PER_CONNECTION_MAX:
            raise _too_many(client, f"{count} groups on its connection")

    def _count_member(self, group: str, member: Client | None, sign: int) -> None:
        if member is not None:
            self._members += sign
            self._bytes += sign * _member_bytes(group, member)

    def _forget_producer(self, left: Client) -> None:
        """It left a group: nobody finds it by its id, unless it is in another one too."""
        known = self._producer_ids.get(left.client_id)
        if known is None or known.connection is not left.connection:
            return
        others = (
            self._producers[group][left.connection]
            for group in self._joined[left.connection].producer_groups
        )
        if all(other.client_id != left.client_id for other in others):
            del self._producer_ids[left.client_id]

    def _left_one(self, connection: ServerConnection) -> None:
        joined = self._joined[connection]
        # Its next heartbeat may bring it back.
        joined.client = None
        if not joined.producer_groups and not joined.consumer_groups:
            del self._joined[connection]

    def _took(self, group: ConsumerGroup, steps: Iterator[Changes]) -> Iterator[Changes]:
        """Let members want something else; count each step, and tell the kernel."""
        wanted = group.wanted
        while True:
            count, size = wanted.count, wanted.size
            changes = next(steps, None)
            self._subscriptions += wanted.count - count
            self._bytes += wanted.size - size
            if changes is None:
                return
            # The others' heartbeats are examined anew: what is kept of the group follows.
            group.changes += changes.is_other
            for topic in changes.updated:
                subscription = wanted.current.get(topic)
                if subscription is None:
                    self._store.delete_subscription(group.name, topic)
                else:
                    self._push(group, subscription)
            yield changes

    def _push(self, group: ConsumerGroup, subscription: SubscriptionData) -> None:
        refused = group.message_model == "BROADCASTING" and group.name in self._no_broadcast
        if refused or not subscription.is_tag_type:
            # Its pulls must come to Python, which refuses them.
            self._store.delete_subscription(group.name, subscription.topic)
            return
        version = group.wanted.newest[subscription.topic]
        self._store.set_subscription(
            group.name, subscription.topic, version, subscription.tag_codes
        )

    def _left(self, group: ConsumerGroup) -> None:
        # What the last ones wanted may be on its way out: it leaves with them.
        if group.members or not group.wanted.is_empty:
            return
        self._groups.pop(group.name, None)
        self._on_group_gone(group.name)

    def _notify(self, group: ConsumerGroup) -> None:
        if not self._settings.current.notify_consumer_ids_changed_enable:
            return
        if group.members:
            _log.debug("group %s: %d members are told to share", group.name, len(group.members))
        for member in group.members.values():
            notice = RemotingCommand.request(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}
            )
            try:
                member.connection.send_oneway(notice)
            except RemotingError as error:
                _log.warning("notice to %s failed: %s", member.connection.remote_address, error)


def _member_bytes(group: str, member: Client) -> int:
    return MEMBER_BYTES + len(group) + len(member.client_id)


def _too_many(client: Client, what: str) -> BrokerError:
    return system_error(
        f"client {client.client_id[:80]} is refused: there are {what} already, and no more are "
        "taken"
    )
