"""What brokers, operators and controllers say to each other, with types (RIP-44).

Requests 1001 to 1013 and BROKER_HEARTBEAT (904) with their answers: headers first, then bodies.
Names are those of RocketMQ 5.3.3. Broker ids begin at :data:`FIRST_BROKER_ID` here: a master keeps
the id that it was given, and is told to others by it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from kerolox.protocol import fastjson
from kerolox.protocol.bodies import LENIENT_BODY_BYTES_MAX, REQUEST_BODY_BYTES_MAX, BodyError
from kerolox.protocol.headers import Header
from kerolox.protocol.java_numbers import INT_MAX
from kerolox.protocol.names import (
    Address,
    Int32,
    Int64,
    LongText,
    Name,
    Names,
    TextBound,
    text_fault,
)
from kerolox.text import printable

FIRST_BROKER_ID = 1
"""The first id that a controller gives to a broker of a set (``FIRST_BROKER_CONTROLLER_ID``)."""

NO_BROKER_ID = -1
"""``brokerId`` of an election that no broker asks for: a controller or an operator does."""

BROKERS_OF_SET_MAX = 1_024
"""Brokers of one name: those of a sync state set, or of a member group."""

BROKER_NAMES_MAX = 1_024
"""Broker names that one request asks for."""

EPOCHS_MAX = 65_536
"""Epochs of a broker's log that it tells."""

CHECK_CODE_BYTES_MAX = 1_024

HEARTBEAT_TIMEOUT_MS = 10_000
"""How long a broker counts as alive after a heartbeat that gives no time of its own
(``DEFAULT_BROKER_CHANNEL_EXPIRED_TIME``)."""

LOWEST_PRIORITY = INT_MAX
"""``electionPriority`` of a broker that gives none; a lower number is elected before it."""

CheckCode = Annotated[str, TextBound(CHECK_CODE_BYTES_MAX)]
"""``address;milliseconds``: proves that a broker id is asked for again by the same broker."""


# -- headers ----------------------------------------------------------------------------------
class BrokerHeartbeatHeader(Header, frozen=True, kw_only=True):
    """BROKER_HEARTBEAT (904)."""

    cluster_name: Name
    broker_addr: Address
    broker_name: Name
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    """That of its log's last record."""
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class AlterSyncStateSetHeader(Header, frozen=True, kw_only=True):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); the body is a :class:`SyncStateSet`."""

    broker_name: Name
    master_broker_id: Int64
    master_epoch: Int32
    invoke_time: Int64 | None = None


class AlterSyncStateSetResponseHeader(Header, frozen=True, kw_only=True):
    """Its answer; the body is the new :class:`SyncStateSet`."""

    new_sync_state_set_epoch: Int32


class ElectMasterHeader(Header, frozen=True, kw_only=True):
    """CONTROLLER_ELECT_MASTER (1002)."""

    cluster_name: Name = ""
    broker_name: Name = ""
    broker_id: Int64 = NO_BROKER_ID
    designate_elect: bool = False
    """An operator wants this broker and no other one."""
    invoke_time: Int64 | None = None


class MasterHeader(Header, frozen=True, kw_only=True):
    """Who is the master: the answer to 1002 (its body is an :class:`ElectMasterResponseBody`), and
    NOTIFY_BROKER_ROLE_CHANGED (1008, its body is a :class:`SyncStateSet`)."""

    master_broker_id: Int64 | None = None
    master_address: Address | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterBrokerHeader(Header, frozen=True, kw_only=True):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    cluster_name: Name
    broker_name: Name
    broker_id: Int64
    broker_address: Address
    invoke_time: Int64 | None = None


class RegisterBrokerResponseHeader(MasterHeader, frozen=True, kw_only=True):
    """Its answer; the body is a :class:`SyncStateSet`. No master: there is none that is alive."""

    cluster_name: Name | None = None
    broker_name: Name | None = None


class GetReplicaInfoHeader(Header, frozen=True, kw_only=True):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: Name


class GetReplicaInfoResponseHeader(Header, frozen=True, kw_only=True):
    """Its answer; the body is a :class:`SyncStateSet`."""

    master_broker_id: Int64 | None = None
    master_address: Address | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to CONTROLLER_GET_METADATA_INFO (1005), which has no header."""

    group: Name | None = None
    controller_leader_id: Name | None = None
    controller_leader_address: Address | None = None
    is_leader: bool = False
    """Whether who answers is the leader."""
    peers: LongText | None = None
    """``id:host:port;`` of each controller."""


class ControllerStateHeader(GetMetaDataResponseHeader, frozen=True, kw_only=True):
    """The same with what Kerolox adds; absent from RocketMQ's."""

    node_id: Name | None = None
    """Who answers."""
    role: Name | None = None
    """``leader``, ``follower``, ``candidate``, ``pre-candidate``, or ``failed``."""
    term: Int64 | None = None
    commit_index: Int64 | None = None
    applied_index: Int64 | None = None
    learns: bool | None = None
    """It began with an empty folder, and has not caught up yet."""
    put_back: LongText | None = None
    """Of the leader: ids, joined by ``;``, of those whose folders are older copies."""
    behind: LongText | None = None
    """Of the leader: names, joined by ``;``, of which a broker knows a newer epoch."""
    fault: LongText | None = None
    """Why it takes no part any more."""
    version: Name | None = None
    """That of Kerolox."""
    clock: Int64 | None = None
    """Its clock when it answered, milliseconds since the epoch."""


class ChangeControllersHeader(Header, frozen=True, kw_only=True):
    """CHANGE_CONTROLLERS (31043), a code of ours: one member is added, moved or taken out."""

    group: Name
    node_id: Name
    address: Address = ""
    """Empty: take it out."""


class CleanBrokerDataHeader(Header, frozen=True, kw_only=True):
    """CLEAN_BROKER_DATA (1011)."""

    cluster_name: Name | None = None
    broker_name: Name
    broker_controller_ids_to_clean: Names | None = None
    """Broker ids with semicolons; None: all."""
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class GetNextBrokerIdHeader(Header, frozen=True, kw_only=True):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: Name
    broker_name: Name


class GetNextBrokerIdResponseHeader(GetNextBrokerIdHeader, frozen=True, kw_only=True):
    """Its answer."""

    next_broker_id: Int64


class ApplyBrokerIdHeader(Header, frozen=True, kw_only=True):
    """CONTROLLER_APPLY_BROKER_ID (1013)."""

    cluster_name: Name
    broker_name: Name
    applied_broker_id: Int64
    register_check_code: CheckCode


class ApplyBrokerIdResponseHeader(Header, frozen=True, kw_only=True):
    """Its answer."""

    cluster_name: Name | None = None
    broker_name: Name | None = None


# -- bodies -----------------------------------------------------------------------------------
class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Members stand in alphabetical order, as RocketMQ writes them."""


BrokerIds = Annotated[list[Int64], msgspec.Meta(max_length=BROKERS_OF_SET_MAX)]


class SyncStateSet(_Body, frozen=True, kw_only=True):
    """The brokers that have all that was acknowledged, and how often that set was changed."""

    sync_state_set: BrokerIds
    sync_state_set_epoch: Int32


class BrokerMemberGroup(_Body, frozen=True, kw_only=True):
    """The brokers of one name."""

    broker_addrs: Annotated[dict[Int64, str], msgspec.Meta(max_length=BROKERS_OF_SET_MAX)] = {}
    """Address by broker id."""
    broker_name: Name
    cluster: Name


class ElectMasterResponseBody(_Body, frozen=True, kw_only=True):
    """The body of the answer to CONTROLLER_ELECT_MASTER."""

    broker_member_group: BrokerMemberGroup | None = None
    """None: nobody was elected, since the master is still there."""
    sync_state_set: BrokerIds | None = None


class ReplicaIdentity(_Body, frozen=True, kw_only=True):
    """One broker."""

    alive: bool | None = None
    broker_address: Address
    broker_id: Int64
    broker_name: Name


class ReplicasInfo(_Body, frozen=True, kw_only=True):
    """The brokers of one name: who is the master, who is in the sync state set, who is not."""

    in_sync_replicas: Annotated[
        list[ReplicaIdentity], msgspec.Meta(max_length=BROKERS_OF_SET_MAX)
    ] = []
    master_address: Address | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32
    not_in_sync_replicas: Annotated[
        list[ReplicaIdentity], msgspec.Meta(max_length=BROKERS_OF_SET_MAX)
    ] = []
    sync_state_set_epoch: Int32


class BrokerReplicasInfo(_Body, frozen=True, kw_only=True):
    """The body of the answer to CONTROLLER_GET_SYNC_STATE_DATA (1006)."""

    replicas_info_table: Annotated[
        dict[Name, ReplicasInfo], msgspec.Meta(max_length=BROKER_NAMES_MAX)
    ] = {}
    """By broker name."""


class EpochEntry(_Body, frozen=True, kw_only=True):
    """A part of the log that one master wrote: offsets from ``start_offset`` to ``end_offset``."""

    end_offset: Int64 = (1 << 63) - 1
    """The greatest number: it has no end yet."""
    epoch: Int32
    start_offset: Int64


class EpochEntryCache(_Body, frozen=True, kw_only=True):
    """The body of a broker's answer to GET_BROKER_EPOCH_CACHE (1007)."""

    broker_id: Int64
    broker_name: Name
    cluster_name: Name
    epoch_list: Annotated[list[EpochEntry], msgspec.Meta(max_length=EPOCHS_MAX)] = []
    max_offset: Int64


class _BrokerNames(msgspec.Struct, frozen=True, kw_only=True):
    names: Annotated[list[Name], msgspec.Meta(max_length=BROKER_NAMES_MAX)]


def decode_broker_names(body: bytes) -> list[str]:
    """The body of CONTROLLER_GET_SYNC_STATE_DATA, a list of texts. BodyError: it is none, or has
    too many."""
    if len(body) > REQUEST_BODY_BYTES_MAX:
        raise BodyError(
            f"the body has {len(body)} bytes; at most {REQUEST_BODY_BYTES_MAX} are taken"
        )
    try:
        listed = fastjson.items_of(fastjson.loads(body, lenient_bytes_max=LENIENT_BODY_BYTES_MAX))
        names = msgspec.convert({"names": listed}, _BrokerNames)
    except (fastjson.FastjsonError, msgspec.ValidationError) as error:
        raise BodyError(f"the body is no list of broker names: {printable(str(error))}") from None
    fault = text_fault(names)
    if fault is not None:
        raise BodyError(f"the body's {fault}")
    return names.names
