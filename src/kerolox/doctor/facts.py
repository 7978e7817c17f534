"""What was seen of a cluster: values alone, which :mod:`kerolox.doctor.checks` check.

Times are milliseconds since the epoch unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kerolox.admin import (
    BrokerRole,
    BrokerRuntime,
    ClusterInfo,
    ConsumerStatus,
    ControllerState,
    GroupProgress,
    GroupState,
    PoppedQueue,
    ReplicationStatus,
    SyncStateSetInfo,
    TopicRoute,
)
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import KeroloxError
from kerolox.message import MessageQueue
from kerolox.security.certificate_faults import CertificateFault
from kerolox.security.tls import HandshakeFault


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """The way to one server: name, port, TLS."""

    address: str
    """``host:port`` as it was given or advertised."""
    reached: tuple[str, ...] = ()
    """IP addresses of the host whose port could be opened."""
    unreached: Mapping[str, str] = field(default_factory=dict)
    """IP address → why it could not."""
    name_fault: str = ""
    """Why the host has no IP address."""
    tls_fault: str = ""
    """Why TLS could not be spoken."""
    handshake_fault: HandshakeFault | None = None
    """Of what kind that is; None: the time limit was over."""
    certificate_fault: CertificateFault | None = None
    """What is wrong with the server's certificate, where that is why."""
    speaks_tls: bool | None = None
    """Whether the server does; None: nobody tried."""
    certificate_until_ms: int | None = None
    """When its certificate expires; None: it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerSnapshot:
    """What one name server says at one time."""

    info: ClusterInfo | None = None
    topics: tuple[str, ...] = ()
    routes: Mapping[str, TopicRoute | None] = field(default_factory=dict)
    """By topic, of the first so many."""
    orders: Mapping[str, str] = field(default_factory=dict)
    """Ordered topics (``ORDER_TOPIC_CONFIG``)."""
    fault: KeroloxError | None = None
    """Why it said nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerFacts:
    """A name server, examined twice."""

    path: PathFacts
    first: NameServerSnapshot
    second: NameServerSnapshot

    @property
    def address(self) -> str:
        """``host:port`` as it was given."""
        return self.path.address


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A broker as it is registered."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """It is the one that messages are sent to."""
        return self.broker_id == MASTER_ID

    def __str__(self) -> str:
        role = "master" if self.is_master else f"slave {self.broker_id}"
        return f"{self.broker_name} {role} {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The process of a broker on this machine, and the limits of both."""

    pid: int
    maps: int
    """Regions of memory that the process has mapped."""
    maps_max: int
    """``vm.max_map_count``."""
    files: int
    """Files and sockets that it has open."""
    files_max: int
    """Its limit of them (``ulimit -n``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFacts:
    """The timer of a master."""

    waiting: int
    """Messages that wait for their moment."""
    behind_ms: int
    """How far delivery is behind the broker's clock; negative: ahead of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """What was seen of one broker."""

    node: Node
    path: PathFacts
    is_registered: bool = True
    """False: it was named by who asked."""
    settings: Mapping[str, str] | None = None
    runtime: BrokerRuntime | None = None
    clock_ahead_ms: int | None = None
    """How far its clock is before ours, to a second or so."""
    replication: ReplicationStatus | None = None
    """Of masters that say it: Kerolox and RocketMQ 5."""
    role: BrokerRole | None = None
    """Of slaves of Kerolox."""
    timer: TimerFacts | None = None
    """Of masters that have one: Kerolox and RocketMQ 5."""
    dropping: tuple[str, ...] = ()
    """Groups without retry queues, of a master."""
    grpc_path: PathFacts | None = None
    """The way to its port for gRPC, as clients are told it (``grpcAdvertisedAddress``, else
    ``grpcServerPort`` of its host); None: it has none."""
    vip_path: PathFacts | None = None
    """The way to ``port - 2``; None: it was not tried."""
    vip_name: str | None = None
    """``brokerName`` of who answers there."""
    machine: MachineFacts | None = None
    """None: it is on another machine, or its process can't be examined."""
    faults: tuple[KeroloxError, ...] = ()
    """Why it did not say something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A consumer group, examined twice."""

    group: str
    first: GroupProgress | None
    second: GroupProgress | None
    """With the owners of queues."""
    status: ConsumerStatus | None
    """None: no member is online."""
    waits_ms: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """How long the next message of a queue has waited, by topic, broker and queue id; of queues
    that did not move between the two checks."""

    state: GroupState | None = None
    """Where it is paused; None: no broker said."""
    dead_letters: int = 0
    """Those that were neither sent again nor marked as done."""

    popped: tuple[PoppedQueue, ...] = ()
    """What it has out; only of brokers of Kerolox."""
    fifo_topics: frozenset[str] = frozenset()
    """FIFO topics (``message.type``) of which it has something out that was popped without
    order."""

    @property
    def stalled(self) -> list[MessageQueue]:
        """Queues with messages left in which the group is where it was before."""
        if self.first is None or self.second is None:
            return []
        before = {each.queue: each.consumer_offset for each in self.first.queues if each.lag > 0}
        return [
            each.queue
            for each in self.second.queues
            if each.lag > 0 and before.get(each.queue) == each.consumer_offset
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """All that was seen."""

    now_ms: int
    signs: bool
    """Requests were signed by an account."""
    encrypts: bool
    """Connections were to speak TLS."""
    stuck_after_ms: int
    name_servers: tuple[NameServerFacts, ...] = ()
    brokers: tuple[BrokerFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    controllers: Mapping[str, ControllerState | str] = field(default_factory=dict)
    """By address; a text: why it says nothing."""
    sync_state_sets: Mapping[str, SyncStateSetInfo] = field(default_factory=dict)
    """By broker name, as the leading controller has them."""
    left_out: tuple[str, ...] = ()
    """What was too much to examine."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """What could not be examined, and why."""

    def masters(self) -> list[BrokerFacts]:
        """The registered masters."""
        return [each for each in self.brokers if each.is_registered and each.node.is_master]
