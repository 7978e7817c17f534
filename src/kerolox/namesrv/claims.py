"""Who may say that it is a broker: what a live one has is not given to others.

A name server knows nobody, so anybody may register any broker. Two rules keep a live broker where
it is, whoever else claims its place (another machine with the same ``brokerName``, or an attacker):

- ``brokerName`` + ``brokerId`` belong to the address that registered them, and an address to the
  name that it registered, as long as that broker is alive. It is alive while its connection is open
  and it was seen within ``TAKEOVER_MS``. A claim over another connection is refused.
- The same broker at the same address may come on another connection, since clients reconnect. It
  may come from the same host at any time, from another one when the old connection is closed or
  silent. It is there as long as one of its connections is. Until the others are closed or silent,
  none of them alone gives it another address, id or cluster, or takes it out.

A live master may give its place away: it names the address that gets it, as brokers of Kerolox do
when roles change. Masters with an epoch, the number of their promotion, come after each other. The
name server refuses an older one as long as it knows the name, whether the newer one is alive or
not.

So a restarted broker, whose old connection is closed, is taken at once, whatever its address is
now. One whose machine vanished without a word is replaced ``TAKEOVER_MS`` later, or earlier where
it said so itself (``heartbeatTimeoutMillis``, of RocketMQ 5): brokers under a controller do, since
that elects another master meanwhile. The elected one, with a later epoch, need not wait for all of
that time: a master whose lease is over sends no heartbeats in its last third.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kerolox.errors import KeroloxError
from kerolox.protocol.bodies import DataVersion
from kerolox.protocol.codes import MASTER_ID
from kerolox.text import printable

TAKEOVER_MS = 90_000
"""A broker that was silent for so long loses its place to who claims it. Brokers register every 10
to 60 s (``registerNameServerPeriod``)."""

TAKEOVER_MS_MIN = 100
"""No broker is gone earlier, whatever it says."""

ELECTED_PART = 3
"""A master under a controller that was silent for this part of its time gives way to an elected
one. Its lease is the rest (``broker/roles/lease.py``); it sends four heartbeats in the whole."""

CONNECTIONS_MAX = 4
"""Connections of one broker that are remembered."""


class ContradictionError(KeroloxError):
    """The claim contradicts a live broker; the text names both."""

    def __init__(self, text: str, holder: str = "", newest_epoch: int = 0) -> None:
        super().__init__(text)
        self.holder = holder
        """The address of the live broker."""
        self.newest_epoch = newest_epoch
        """Of the newest master of the name, where the claim is older."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A registration's sender: which broker it says it is."""

    cluster: str
    broker_name: str
    broker_id: int
    """0 for a master."""
    address: str
    """``ip:port`` that clients connect to."""
    ha_address: str
    """``ip:port`` for replication."""
    connection: int
    host: str
    """Where the connection comes from, without its port."""
    epoch: int | None = None
    """Of its promotion; None: it says none."""
    successor: str = ""
    """The address that it gives its place to."""
    timeout_ms: int | None = None
    """It sends heartbeats, and is gone when it was silent for so long; None: it says nothing."""

    @property
    def text(self) -> str:
        """Name, id, cluster and address, for the log."""
        return _text(self.broker_name, self.broker_id, self.cluster, self.address)


@dataclass(slots=True)
class LiveBroker:
    """When and how a broker address was last seen."""

    address: str
    counted_at: str = ""
    """The host whose share of the tables it counts to."""
    cluster: str = ""
    broker_name: str = ""
    broker_id: int = MASTER_ID
    ha_address: str = ""
    host: str = ""
    last_update_ms: int = 0
    data_version: DataVersion | None = None
    """None until all topics of a registration were taken in."""
    connections: dict[int, int] = field(default_factory=dict)
    """Those that it registered on → when, the newest last."""
    challenger: str | None = None
    """Who claimed its place since it was last told."""
    successor: str = ""
    """The address that it gives its place to."""
    takeover_ms: int = TAKEOVER_MS
    """Silent for so long it loses its place."""
    has_lease: bool = False
    """It is under a controller, and said how long it may be silent."""

    @property
    def text(self) -> str:
        """Name, id, cluster and address, for the log."""
        return _text(self.broker_name, self.broker_id, self.cluster, self.address)

    @property
    def connection(self) -> int:
        """The newest of its connections."""
        return next(reversed(self.connections))

    def renew(self, claim: Claim, now_ms: int) -> list[int]:
        """It registered; the connections that are not remembered any more."""
        self.cluster, self.ha_address = claim.cluster, claim.ha_address
        self.broker_name, self.broker_id = claim.broker_name, claim.broker_id
        self.host, self.last_update_ms = claim.host, now_ms
        self.successor = claim.successor
        timeout_ms = TAKEOVER_MS if claim.timeout_ms is None else claim.timeout_ms
        self.takeover_ms = max(TAKEOVER_MS_MIN, min(timeout_ms, TAKEOVER_MS))
        self.has_lease = claim.timeout_ms is not None
        self.connections.pop(claim.connection, None)
        self.connections[claim.connection] = now_ms
        old = sorted(self.connections, key=self.connections.__getitem__)[:-CONNECTIONS_MAX]
        for connection in old:
            del self.connections[connection]
        return old

    def closed(self, connection: int) -> bool:
        """A connection of it closed; whether it is gone with that."""
        self.connections.pop(connection, None)
        lately = self.last_update_ms - self.takeover_ms
        return not any(renewed_ms >= lately for renewed_ms in self.connections.values())

    def others(self, connection: int, now_ms: int, takeover_ms: int | None = None) -> int:
        """On how many other connections than this one it is alive."""
        lately = now_ms - (self.takeover_ms if takeover_ms is None else takeover_ms)
        renew = (ms for other, ms in self.connections.items() if other != connection)
        return sum(renewed_ms >= lately for renewed_ms in renew)

    def is_claimed_by(self, claim: Claim) -> bool:
        """The claim is of this very broker, and comes from where it is."""
        own = (self.broker_name, self.broker_id, self.cluster, self.host)
        return own == (claim.broker_name, claim.broker_id, claim.cluster, claim.host)

    def silence(self, connection: int, now_ms: int) -> str:
        """Why it lost its place to that connection."""
        if self.successor:
            return "gave it away"
        if connection in self.connections:
            return "came on the same connection"
        return f"was silent for {(now_ms - self.last_update_ms) // 1000} s"


def check_address(live: LiveBroker | None, claim: Claim, now_ms: int) -> None:
    """The claim's address may be its own: nobody lives there, or it is that broker itself.
    ContradictionError: another broker does, or the same one on a connection from elsewhere.
    """
    others = 0 if live is None else live.others(claim.connection, now_ms)
    # One connection too many would push the broker's own out of those that are remembered.
    if live is None or not others or (live.is_claimed_by(claim) and others < CONNECTIONS_MAX):
        return
    live.challenger = f"{claim.text}, which comes from {claim.host}"
    raise ContradictionError(
        f"{claim.text} comes from {claim.host}, but that address is the one of {live.text}, which "
        f"comes from {live.host} and is alive; give each broker an address of its own "
        "(brokerIP1, listenPort)",
        live.address,
    )


def check_holder(holder: LiveBroker | None, newest: int, claim: Claim, now_ms: int) -> None:
    """The claim's name and id may be its own: no other address has them, or that is dead, or gave
    them to this one. ContradictionError: a live broker has them. ``newest``: as in
    :func:`check_epoch`.
    """
    if holder is None or claim.address in (holder.address, holder.successor):
        return
    is_elected = claim.timeout_ms is not None and claim.epoch is not None and claim.epoch > newest
    takeover_ms = holder.takeover_ms
    if is_elected and claim.broker_id == MASTER_ID and holder.has_lease:
        takeover_ms = takeover_ms // ELECTED_PART
    if not holder.others(claim.connection, now_ms, takeover_ms):
        return
    holder.challenger = f"{claim.text}, which comes from {claim.host}"
    raise ContradictionError(
        f"{claim.text} comes from {claim.host}, but its name and id are those of {holder.text}, "
        f"which comes from {holder.host} and is alive; give one of them another brokerName, or a "
        "slave another brokerId, or stop the other one",
        holder.address,
    )


def check_epoch(newest: int, holder: str, claim: Claim) -> None:
    """A master is not older than one that had its place before; ContradictionError: it is.
    ``newest``: the highest epoch of those; ``holder``: the address of the last one.
    """
    if claim.broker_id == MASTER_ID and claim.epoch is not None and claim.epoch < newest:
        raise ContradictionError(
            f"{claim.text} has epoch {claim.epoch}, and there was a master of epoch {newest} under "
            f"its name, at {printable(holder) or 'an address that is gone'}: it may lack what that "
            "one acknowledged; have it become a slave (kerolox broker demote), or the master again "
            "(kerolox broker promote)",
            holder,
            newest,
        )


def _text(broker_name: str, broker_id: int, cluster: str, address: str) -> str:
    return (
        f"{printable(broker_name)} (id {broker_id}, cluster {printable(cluster)}) at "
        f"{printable(address)}"
    )
