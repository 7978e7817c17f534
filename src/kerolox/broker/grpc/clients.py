"""Who is connected by gRPC: a client by its id, with what it said of itself.

A client is in the broker's tables as any other: its heartbeats are those of remoting, made of its
settings. In a connection's place stands :class:`GrpcClient`, since a client may have several
connections, or for a moment none. Java's proxy knows a restarted client only by its settings; here
calls of clients without settings are served, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import msgspec

from kerolox.broker.grpc.questions import Questions
from kerolox.broker.grpc.records import message_of
from kerolox.broker.tables.clients import EXPIRED_MS
from kerolox.clock import now_ms
from kerolox.errors import RemotingError
from kerolox.message import MessageExt
from kerolox.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from kerolox.protocol.codes import GRPC, LanguageCode, RequestCode, version_number
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.protocol.names import CONSUME_ACTIVELY, CONSUME_PASSIVELY
from kerolox.protocol.records import decode_record
from kerolox.remoting.grpc.connection import Call
from kerolox.remoting.server import ServerConnection, next_connection_id

if TYPE_CHECKING:
    from kerolox.filter.tags import Subscription

CLIENTS_MAX = 100_000
"""Clients that are known at the same time."""

EXPIRED_SECONDS = EXPIRED_MS / 1000
"""``channelExpiredTimeout``; a client of Rust sends a heartbeat in 30 s alone."""

SETTINGS_BYTES_MAX = 64 * 1024
"""Of one client's settings."""

REQUEST_TIMEOUT_MS = 3_000
"""Of a client that names none."""

CONSUMERS = frozenset((pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER))
SERVED = CONSUMERS | {pb.PRODUCER}

_AT = "@"

_LANGUAGES = {"DOT_NET": "DOTNET", "GOLANG": "GO", "NODE_JS": "HTTP"}

_log = logging.getLogger(__name__)


def language_of(name: str) -> LanguageCode:
    """``x-mq-language``; Node says HTTP, and names that nobody knows are OTHER."""
    return LanguageCode.__members__.get(_LANGUAGES.get(name, name), LanguageCode.OTHER)


@dataclass(slots=True, eq=False)
class GrpcClient:
    """One client; stands where the tables have a connection."""

    protocol_type: ClassVar[str] = GRPC
    client_id: str
    peer: tuple[str, int]
    remote_address: str
    language: LanguageCode
    client_version: str
    """As it names it."""
    on_close: Callable[[GrpcClient], None]
    broker_name: str
    """Of the broker that it is connected to."""
    connection_id: int = field(default_factory=next_connection_id)
    closed: bool = False
    certificate_subject: str | None = None
    telemetry: Call | None = None
    """Its last stream; commands go there."""
    client_type: int = 0
    group: str = ""
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    seen_at: float = 0.0
    """By the loop's clock: its last heartbeat or settings."""
    heartbeat: RemotingCommand | None = None
    """What remoting would have of its settings; None: they are not known."""
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    said: int = 0
    """Hash of its last settings."""
    first_seen_ms: int = field(default_factory=now_ms)
    questions: Questions = field(default_factory=Questions)

    @property
    def audited(self) -> Mapping[str, str]:
        """See :class:`~kerolox.remoting.audit.Peer`."""
        return {"call": "Telemetry", "client": self.client_id}

    @property
    def consume_type(self) -> str:
        """CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY."""
        return CONSUME_PASSIVELY if self.client_type == pb.PUSH_CONSUMER else CONSUME_ACTIVELY

    @property
    def as_connection(self) -> ServerConnection:
        """As the tables take it: they use what stands here alone."""
        return cast("ServerConnection", self)

    def send_oneway(self, command: RemotingCommand) -> None:
        """Tell the client something. RemotingError: it has no stream."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._ask_for_end(command)

    def _ask_for_end(self, command: RemotingCommand) -> None:
        half: MessageExt = decode_record(command.body)[0]
        asked = pb.TelemetryCommand()
        recover = asked.recover_orphaned_transaction_command
        recover.message.CopyFrom(message_of(half, half.topic))
        fields = command.ext_fields
        recover.transaction_id = HalfPlace(
            int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"]), self.broker_name
        ).transaction_id
        self.command(asked)

    def command(self, command: pb.TelemetryCommand) -> None:
        """Send a command. RemotingError: it has no telemetry stream."""
        if self.telemetry is None or self.telemetry.is_over:
            raise RemotingError(f"{self.client_id} has no telemetry stream now")
        self.telemetry.send(command.SerializeToString())

    async def request(self, command: RemotingCommand, *, timeout_seconds: float) -> RemotingCommand:
        """See :meth:`~kerolox.broker.grpc.questions.Questions.answer`."""
        return await self.questions.answer(self, command, timeout_seconds)

    def send_command(self, command: RemotingCommand) -> None:
        """No answer of remoting goes to a client."""

    def close(self) -> None:
        """The client is silent for too long, or has said that it leaves."""
        if not self.closed:
            self.closed = True
            if self.telemetry is not None:
                self.telemetry.finish()
            self.on_close(self)


class HalfPlace(NamedTuple):
    """Where a half message is. A transaction's id says that alone, so its end finds the half from
    any broker, also after a restart."""

    physical_offset: int
    half_offset: int
    broker_name: str = ""
    """Empty: ids of earlier versions do not say it, and mean the broker that gets them."""

    @property
    def transaction_id(self) -> str:
        """The id."""
        return f"{self.physical_offset:016X}{self.half_offset:016X}{_AT}{self.broker_name}"


def half_of(text: str) -> HalfPlace | None:
    """The place that such an id names; None: it is none."""
    digits, at, broker_name = text.partition(_AT)
    if (
        len(digits) != 32
        or not digits.isascii()
        or not digits.isalnum()
        or bool(at) != bool(broker_name)
    ):
        return None
    try:
        found = HalfPlace(int(digits[:16], 16), int(digits[16:], 16), broker_name)
    except ValueError:
        return None
    return found if max(found.physical_offset, found.half_offset) <= LONG_MAX else None


class GrpcClients:
    """All of them."""

    def __init__(self, on_close: Callable[[GrpcClient], None], broker_name: str) -> None:
        """Nobody is here. ``on_close``: called with each client that leaves."""
        self._broker_name = broker_name
        self._clients: dict[str, GrpcClient] = {}
        self._on_close = on_close

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> GrpcClient | None:
        """A client that has told its settings."""
        return self._clients.get(client_id)

    def known(
        self, client_id: str, call: Call, language: LanguageCode, version: str
    ) -> GrpcClient | None:
        """A client, made where it is new; None: there are too many."""
        client = self._clients.get(client_id)
        connection = call.connection
        if client is not None:
            client.peer, client.remote_address = connection.peer, connection.remote_address
            return client
        if len(self._clients) >= CLIENTS_MAX:
            return None
        client = GrpcClient(
            client_id,
            connection.peer,
            connection.remote_address,
            language,
            version,
            self._closed,
            self._broker_name,
        )
        self._clients[client_id] = client
        return client

    def expire(self, now: float) -> None:
        """Those leave who are silent for too long. ``now``: by the loop's clock."""
        for client in list(self._clients.values()):
            if now - client.seen_at > EXPIRED_SECONDS:
                _log.info("gRPC client %.200s is silent, and leaves", client.client_id)
                client.close()

    def end_streams(self) -> None:
        """The broker stops: clients are to open their streams anew, elsewhere or here."""
        for client in self._clients.values():
            if client.telemetry is not None:
                client.telemetry.finish()

    def _closed(self, client: GrpcClient) -> None:
        # Its messages are known by its id.
        self._on_close(client)
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]


def heartbeat_of(client: GrpcClient, topics: list[str]) -> RemotingCommand:
    """What a client of remoting would say of itself. Producers are in a group for each topic, of
    its name."""
    consumers: list[ConsumerData] = []
    if client.client_type in CONSUMERS:
        consumers.append(
            ConsumerData(
                consume_type=client.consume_type,
                group_name=client.group,
                subscription_data_set=client.subscriptions,
            )
        )
    data = HeartbeatData(
        client_id=client.client_id,
        consumer_data_set=consumers,
        producer_data_set=[ProducerData(group_name=topic) for topic in topics],
    )
    # It comes back to this broker alone. Java's way to write JSON would take long.
    command = RemotingCommand.request(RequestCode.HEART_BEAT, body=msgspec.json.encode(data))
    command.version = version_number(client.client_version)
    return command


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """A subscription as heartbeats have it."""
    return SubscriptionData(
        code_set=list(subscription.codes),
        expression_type=subscription.expression_type,
        sub_string=subscription.expression,
        tags_set=list(subscription.tags),
        topic=subscription.topic,
    )
