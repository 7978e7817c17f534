"""What controllers agree on: the brokers of each name, their master and their sync state set.

RocketMQ's ``ReplicasInfoManager``. A change is a command in Raft's log and is judged when it is
applied, so all controllers judge alike: nothing here reads a clock. What the leader alone knows,
which brokers are alive and how far their logs reach, it puts into the command. Codes and remarks
are those of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.controller import (
    BROKERS_OF_SET_MAX,
    FIRST_BROKER_ID,
    NO_BROKER_ID,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdResponseHeader,
    BrokerMemberGroup,
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    GetReplicaInfoResponseHeader,
    MasterHeader,
    RegisterBrokerResponseHeader,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from kerolox.protocol.headers import Header

BROKER_SETS_MAX = 10_000
"""Broker names that controllers know."""


class Broker(msgspec.Struct, frozen=True):
    """One broker of a set."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, kw_only=True):
    """The brokers of one name."""

    cluster_name: str
    broker_name: str
    next_broker_id: int = FIRST_BROKER_ID
    brokers: dict[int, Broker] = {}
    master_broker_id: int | None = None
    master_epoch: int = 0
    """Counts changes of the master; 0: there never was one."""
    sync_state_set: list[int] = []
    sync_state_set_epoch: int = 0

    def address_of(self, broker_id: int | None) -> str | None:
        """Where a broker is; None: it is not known."""
        broker = None if broker_id is None else self.brokers.get(broker_id)
        return None if broker is None else broker.address

    def use_master(self, broker_id: int | None, newest_epoch: int = 0) -> None:
        """There is a new master, or none any more. Its epoch is above what brokers know."""
        self.master_broker_id = broker_id
        self.master_epoch = max(self.master_epoch, newest_epoch) + 1
        if broker_id is not None:
            self.use_sync_state_set([broker_id])

    def use_sync_state_set(self, broker_ids: Iterable[int]) -> None:
        """Others have all that was acknowledged."""
        self.sync_state_set = sorted(set(broker_ids))
        self.sync_state_set_epoch += 1

    @property
    def lacks_set(self) -> bool:
        """It was known once who is in sync, and is not any more."""
        return not self.sync_state_set and self.sync_state_set_epoch > 0

    @property
    def master(self) -> MasterHeader:
        """Who is the master."""
        return MasterHeader(
            master_broker_id=self.master_broker_id,
            master_address=self.address_of(self.master_broker_id),
            master_epoch=self.master_epoch,
            sync_state_set_epoch=self.sync_state_set_epoch,
        )

    @property
    def in_sync(self) -> SyncStateSet:
        """Its sync state set as it is sent."""
        return SyncStateSet(
            sync_state_set=self.sync_state_set, sync_state_set_epoch=self.sync_state_set_epoch
        )


class ApplyBrokerId(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A broker wants an id."""

    cluster_name: str
    broker_name: str
    broker_id: int
    check_code: str


class RegisterBroker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A broker that has an id says where it is."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    alive: list[int]


class AlterSyncStateSet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A master says who has all that it acknowledged."""

    broker_name: str
    master_broker_id: int
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int
    alive: list[int]


class ElectMaster(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Somebody wants a master: a broker, an operator, or the controller itself."""

    broker_name: str
    broker_id: int = NO_BROKER_ID
    designate: bool = False
    alive: list[int]
    """Best first: by epoch, end of the log, priority."""
    may_be_unclean: bool = False
    """Others than those of the sync state set may be elected: acknowledged messages are lost."""
    newest_epoch: int = 0
    """The newest that brokers have told, where that is above the set's."""


class CleanBrokerData(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An operator takes brokers out."""

    broker_name: str
    broker_ids: list[int]
    """Empty: all."""
    even_if_alive: bool = False
    alive: list[int]


class ForgetSyncStateSets(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Controllers were put back to what they knew once: nobody is known to be in sync."""


Command = (
    ApplyBrokerId
    | RegisterBroker
    | AlterSyncStateSet
    | ElectMaster
    | CleanBrokerData
    | ForgetSyncStateSets
)


class Result(NamedTuple):
    """How a request ended; header and body of its answer."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    body: msgspec.Struct | None = None


encode_command = msgspec.json.Encoder().encode
decode_command = msgspec.json.Decoder(Command).decode

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[BrokerSet]).decode


class ReplicasInfoManager:
    """The state machine."""

    def __init__(self) -> None:
        self.broker_sets: dict[str, BrokerSet] = {}
        """By broker name."""

    def apply(self, command: Command) -> Result:
        """Judge a command and do what it asks for."""
        if isinstance(command, ApplyBrokerId):
            return self._apply_broker_id(command)
        if isinstance(command, ForgetSyncStateSets):
            return self._forget_sets()
        broker_set = self.broker_sets.get(command.broker_name)
        if isinstance(command, RegisterBroker):
            return self._register_broker(command, broker_set)
        if isinstance(command, AlterSyncStateSet):
            return self._alter_sync_state_set(command, broker_set)
        if isinstance(command, ElectMaster):
            return self._elect_master(command, broker_set)
        return self._clean_broker_data(command, broker_set)

    def encode(self) -> bytes:
        """All of it, for a snapshot."""
        return _encode(list(self.broker_sets.values()))

    def restore(self, snapshot: bytes) -> None:
        """Become what :meth:`encode` wrote; empty: nothing is known. msgspec.DecodeError: it is
        something else."""
        broker_sets = _decode(snapshot) if snapshot else []
        self.broker_sets = {each.broker_name: each for each in broker_sets}

    # -- reads --------------------------------------------------------------------------------
    def next_broker_id(self, broker_name: str) -> int:
        """The id that a new broker may apply for."""
        broker_set = self.broker_sets.get(broker_name)
        return FIRST_BROKER_ID if broker_set is None else broker_set.next_broker_id

    def replica_info(self, broker_name: str, *, tells_master: bool = True) -> Result:
        """Who is the master of a name, or that there is none to tell."""
        broker_set = self.broker_sets.get(broker_name)
        if broker_set is None:
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            return Result(code, "Broker metadata is not existed")
        master_id = broker_set.master_broker_id if tells_master else None
        header = GetReplicaInfoResponseHeader(
            master_broker_id=master_id,
            master_address=broker_set.address_of(master_id),
            master_epoch=broker_set.master_epoch,
        )
        return Result(header=header, body=broker_set.in_sync)

    def sync_state_data(self, alive: dict[str, Sequence[int]]) -> BrokerReplicasInfo:
        """All of some names. ``alive``: of each name that is asked for, who is."""
        known = {name: self.broker_sets[name] for name in alive if name in self.broker_sets}
        return BrokerReplicasInfo(
            replicas_info_table={name: _info_of(each, alive[name]) for name, each in known.items()}
        )

    # -- changes ------------------------------------------------------------------------------
    def _apply_broker_id(self, command: ApplyBrokerId) -> Result:
        name, broker_id = command.broker_name, command.broker_id
        header = ApplyBrokerIdResponseHeader(cluster_name=command.cluster_name, broker_name=name)
        broker_set = self.broker_sets.get(name)
        if broker_set is None:
            if broker_id != FIRST_BROKER_ID:
                return Result(
                    ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                    f"Broker-set: {name} hasn't been registered in controller, but broker try to "
                    f"apply brokerId: {broker_id}",
                    header,
                )
            if len(self.broker_sets) >= BROKER_SETS_MAX:
                full = f"{BROKER_SETS_MAX} broker names are known already; clean one that is gone"
                return Result(ResponseCode.CONTROLLER_BROKER_ID_INVALID, full, header)
            broker_set = BrokerSet(cluster_name=command.cluster_name, broker_name=name)
            self.broker_sets[name] = broker_set
        other_cluster = _refusal_of_cluster(command.cluster_name, broker_set)
        if other_cluster is not None:
            return Result(ResponseCode.CONTROLLER_BROKER_ID_INVALID, other_cluster, header)
        known = broker_set.brokers.get(broker_id)
        if known is not None and known.check_code == command.check_code:
            return Result(header=header)
        if known is not None or broker_id < FIRST_BROKER_ID:
            return Result(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Fail to apply brokerId: {broker_id} in broker-set: {name}",
                header,
            )
        if len(broker_set.brokers) >= BROKERS_OF_SET_MAX:
            full = f"broker-set {name} has {BROKERS_OF_SET_MAX} brokers; clean one that is gone"
            return Result(ResponseCode.CONTROLLER_BROKER_ID_INVALID, full, header)
        address = command.check_code.partition(";")[0]
        broker_set.brokers[broker_id] = Broker(address, command.check_code)
        broker_set.next_broker_id = max(broker_set.next_broker_id, broker_id) + 1
        return Result(header=header)

    def _register_broker(self, command: RegisterBroker, broker_set: BrokerSet | None) -> Result:
        name, broker_id = command.broker_name, command.broker_id
        header = RegisterBrokerResponseHeader(cluster_name=command.cluster_name, broker_name=name)
        if broker_set is None or broker_id not in broker_set.brokers:
            what = "Broker-set: {}" if broker_set is None else f"BrokerId: {broker_id}"
            where = "controller" if broker_set is None else f"broker-set: {name}"
            return Result(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"{what.format(name)} hasn't been registered in {where}",
                header,
            )
        other_cluster = _refusal_of_cluster(command.cluster_name, broker_set)
        if other_cluster is not None:
            code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            return Result(code, other_cluster, header)
        broker = broker_set.brokers[broker_id]
        broker_set.brokers[broker_id] = Broker(command.broker_address, broker.check_code)
        if broker_set.master_broker_id in command.alive:
            header = msgspec.structs.replace(header, **msgspec.structs.asdict(broker_set.master))
        return Result(header=header, body=broker_set.in_sync)

    def _alter_sync_state_set(
        self, command: AlterSyncStateSet, broker_set: BrokerSet | None
    ) -> Result:
        failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if broker_set is None:
            return Result(failed, "Broker metadata is not existed")
        wanted = set(command.sync_state_set)
        if wanted == set(broker_set.sync_state_set):
            return Result(
                failed,
                "The newSyncStateSet is equal with oldSyncStateSet, no needed to update "
                "syncStateSet",
            )
        refused = _refusal_of_master(command, broker_set) or _refusal_of_set(command, broker_set)
        if refused is not None:
            code, reason = refused
            return Result(code, f"Rejecting alter syncStateSet request because {reason}")
        broker_set.use_sync_state_set(wanted)
        header = AlterSyncStateSetResponseHeader(
            new_sync_state_set_epoch=broker_set.sync_state_set_epoch
        )
        return Result(header=header, body=broker_set.in_sync)

    def _elect_master(self, command: ElectMaster, broker_set: BrokerSet | None) -> Result:
        if broker_set is None:
            code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            return Result(code, "Broker hasn't been registered")
        if command.broker_id not in (NO_BROKER_ID, *broker_set.brokers):
            return Result(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"BrokerId: {command.broker_id} hasn't been registered in broker-set: "
                f"{command.broker_name}",
            )
        is_behind = command.newest_epoch > broker_set.master_epoch
        if is_behind and not command.designate:
            return Result(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"a broker of {command.broker_name} knows epoch {command.newest_epoch}, and the "
                f"controllers {broker_set.master_epoch}: their data is older than the brokers'. "
                "Elect the broker that has the newest messages by its id",
                MasterHeader(),
            )
        if broker_set.lacks_set and not (command.designate or command.may_be_unclean):
            return Result(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"no broker of {command.broker_name} is known to be in sync. Elect the one that "
                "has the newest messages by its id",
                MasterHeader(),
            )
        elected = _elected(command, broker_set)
        if elected is None:
            return self._elect_nobody(command, broker_set)
        if elected == broker_set.master_broker_id and not is_behind:
            return Result(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"The old master {elected} is still alive, not need to elect new master for broker "
                f"{command.broker_name}",
                broker_set.master,
                ElectMasterResponseBody(sync_state_set=broker_set.sync_state_set),
            )
        broker_set.use_master(elected, command.newest_epoch)
        members = BrokerMemberGroup(
            broker_addrs={each: broker.address for each, broker in broker_set.brokers.items()},
            broker_name=broker_set.broker_name,
            cluster=broker_set.cluster_name,
        )
        body = ElectMasterResponseBody(
            broker_member_group=members, sync_state_set=broker_set.sync_state_set
        )
        return Result(header=broker_set.master, body=body)

    def _elect_nobody(self, command: ElectMaster, broker_set: BrokerSet) -> Result:
        if command.broker_id != NO_BROKER_ID:
            code = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            return Result(code, "Failed to elect a new master", MasterHeader())
        # The controller asks when a master is gone: from now on there is none. Its set stays.
        if broker_set.master_broker_id is not None:
            broker_set.use_master(None)
        return Result(
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
            "Old master has down and failed to elect a new broker master",
            MasterHeader(),
        )

    def _forget_sets(self) -> Result:
        # The epochs stay: they tell whether brokers know later masters.
        for broker_set in self.broker_sets.values():
            broker_set.master_broker_id = None
            broker_set.use_sync_state_set([])
        return Result()

    def _clean_broker_data(self, command: CleanBrokerData, broker_set: BrokerSet | None) -> Result:
        code, name = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, command.broker_name
        if broker_set is None:
            return Result(code, f"Broker {name} is not existed,clean broker data failure.")
        if not command.even_if_alive:
            if not command.broker_ids and broker_set.master_broker_id is not None:
                return Result(code, f"Broker {name} is still alive, clean up failure")
            for broker_id in command.broker_ids:
                if broker_id in command.alive:
                    text = f"Broker [{name},  {broker_id}] is still alive, clean up failure"
                    return Result(code, text)
        gone = set(command.broker_ids or broker_set.brokers)
        broker_set.brokers = {i: b for i, b in broker_set.brokers.items() if i not in gone}
        if not broker_set.brokers:
            del self.broker_sets[name]
            return Result()
        if gone.intersection(broker_set.sync_state_set):
            broker_set.use_sync_state_set(set(broker_set.sync_state_set) - gone)
        if broker_set.master_broker_id in gone:
            broker_set.use_master(None)
        return Result()


def _refusal_of_cluster(cluster_name: str, broker_set: BrokerSet) -> str | None:
    """Why a broker of a cluster is none of a set. RocketMQ takes it, and never finds it alive."""
    if cluster_name == broker_set.cluster_name:
        return None
    return (
        f"broker-set {broker_set.broker_name} is of cluster {broker_set.cluster_name}, not of "
        f"{cluster_name}"
    )


def _refusal_of_master(command: AlterSyncStateSet, broker_set: BrokerSet) -> tuple[int, str] | None:
    """Why a set is not taken from who sends it."""
    if broker_set.master_broker_id != command.master_broker_id:
        return (
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"the current leader is:{{{broker_set.master_broker_id}}}, not "
            f"{{{command.master_broker_id}}}",
        )
    if broker_set.master_epoch != command.master_epoch:
        return (
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the current master epoch is:{{{broker_set.master_epoch}}}, not "
            f"{{{command.master_epoch}}}",
        )
    if broker_set.sync_state_set_epoch != command.sync_state_set_epoch:
        return (
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the current syncStateSet epoch is:{{{broker_set.sync_state_set_epoch}}}, not "
            f"{{{command.sync_state_set_epoch}}}",
        )
    return None


def _refusal_of_set(command: AlterSyncStateSet, broker_set: BrokerSet) -> tuple[int, str] | None:
    """Why a set is not taken for what is in it."""
    for replica in command.sync_state_set:
        if replica not in broker_set.brokers:
            code = ResponseCode.CONTROLLER_INVALID_REPLICAS
            return code, f"the replicas {{{replica}}} don't exist"
        if replica not in command.alive:
            code = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
            return code, f"the replicas {{{replica}}} don't alive"
    if broker_set.master_broker_id not in command.sync_state_set:
        return (
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the newSyncStateSet don't contains origin leader {{{broker_set.master_broker_id}}}",
        )
    return None


def _elected(command: ElectMaster, broker_set: BrokerSet) -> int | None:
    """Who is to be the master (``DefaultElectPolicy``); None: nobody can."""
    is_new = broker_set.master_epoch == 0 and not broker_set.lacks_set
    if is_new and command.broker_id != NO_BROKER_ID:
        return command.broker_id  # Nothing was acknowledged yet: who comes first may be it.
    alive = [each for each in command.alive if each in broker_set.brokers]
    in_sync = [each for each in alive if each in broker_set.sync_state_set]
    preferred = command.broker_id if command.designate else None
    # What is known to be in sync says nothing when the brokers know newer epochs, or if it is lost.
    is_old = command.newest_epoch > broker_set.master_epoch or broker_set.lacks_set
    for candidates in (in_sync, alive if command.may_be_unclean or is_old else []):
        old = broker_set.master_broker_id
        if old in candidates and preferred in (None, old):
            return old
        if preferred is None and candidates:
            return candidates[0]
        if preferred in candidates:
            return preferred
    return None


def _info_of(broker_set: BrokerSet, alive: Sequence[int]) -> ReplicasInfo:
    replicas = [
        ReplicaIdentity(
            alive=broker_id in alive,
            broker_address=broker.address,
            broker_id=broker_id,
            broker_name=broker_set.broker_name,
        )
        for broker_id, broker in broker_set.brokers.items()
    ]
    in_sync = broker_set.sync_state_set
    return ReplicasInfo(
        in_sync_replicas=[each for each in replicas if each.broker_id in in_sync],
        master_address=broker_set.address_of(broker_set.master_broker_id),
        master_broker_id=broker_set.master_broker_id,
        master_epoch=broker_set.master_epoch,
        not_in_sync_replicas=[each for each in replicas if each.broker_id not in in_sync],
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
    )
