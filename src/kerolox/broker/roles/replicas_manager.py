"""What one broker asks the controllers, and what it becomes by their answers (``ReplicasManager``).

Without I/O. The steps are RocketMQ's: find the controller that leads, get an id, register, send
heartbeats, have a master elected where there is none, and then ask now and then who is the master.
A notice of the controller (NOTIFY_BROKER_ROLE_CHANGED) makes it ask at once. It says nothing by
itself: anybody could have sent it.

A master asks with each heartbeat. Only an answer that names it renews its lease, and a majority of
the controllers stands behind each answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from kerolox.broker.roles.identity import BrokerIdentity
from kerolox.broker.roles.lease import MasterLease
from kerolox.protocol.bodies import BodyError, decode_body, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    ElectMasterHeader,
    ElectMasterResponseBody,
    GetMetaDataResponseHeader,
    GetNextBrokerIdHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoHeader,
    MasterHeader,
    RegisterBrokerHeader,
    SyncStateSet,
)
from kerolox.protocol.headers import Header, HeaderFieldError
from kerolox.store.layout import LEFT_FILE
from kerolox.text import printable

RETRY_MS = 200
"""After a step that failed."""

_log = logging.getLogger(__name__)


class Kind(Enum):
    """A request; of each kind but heartbeats one is under way at a time."""

    METADATA = auto()
    NEXT_ID = auto()
    APPLY_ID = auto()
    REGISTER = auto()
    ELECT = auto()
    REPLICA_INFO = auto()
    HAND_OVER = auto()
    ALTER_SET = auto()
    HEARTBEAT = auto()


_CODES = {
    Kind.METADATA: RequestCode.CONTROLLER_GET_METADATA_INFO,
    Kind.NEXT_ID: RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
    Kind.APPLY_ID: RequestCode.CONTROLLER_APPLY_BROKER_ID,
    Kind.REGISTER: RequestCode.CONTROLLER_REGISTER_BROKER,
    Kind.ELECT: RequestCode.CONTROLLER_ELECT_MASTER,
    Kind.HAND_OVER: RequestCode.CONTROLLER_ELECT_MASTER,
    Kind.REPLICA_INFO: RequestCode.CONTROLLER_GET_REPLICA_INFO,
    Kind.ALTER_SET: RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    Kind.HEARTBEAT: RequestCode.BROKER_HEARTBEAT,
}


class Ask(NamedTuple):
    """A request to a controller, sent at a time."""

    kind: Kind
    address: str
    command: RemotingCommand
    sent_ms: int


class KeepAsked(NamedTuple):
    """Write down what is asked for, then :meth:`ReplicasManager.keeps`."""

    broker_id: int
    check_code: str


class KeepGot(NamedTuple):
    """Write down that the controller gave it, then :meth:`ReplicasManager.keeps`."""

    identity: BrokerIdentity


class ForgetAsked(NamedTuple):
    """Another broker has that id."""


class Lead(NamedTuple):
    """Become the master."""

    epoch: int
    members: frozenset[int]
    set_epoch: int


class Follow(NamedTuple):
    """Become a slave of a master."""

    epoch: int
    master_id: int
    address: str


class Learn(NamedTuple):
    """The set of this master."""

    members: frozenset[int]
    set_epoch: int


class Refused(NamedTuple):
    """The controller has granted no set that it was asked for."""


Step = KeepAsked | KeepGot | ForgetAsked | Lead | Follow | Learn | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """Who the broker is, and how often it asks. Times are milliseconds."""

    cluster_name: str
    broker_name: str
    controllers: tuple[str, ...]
    metadata_ms: int
    replica_info_ms: int
    heartbeat_ms: int
    timeout_ms: int
    priority: int
    was_slave: bool = False
    """When it had no controller."""
    has_left: bool = False
    """It had none for a time since a controller gave it its id."""


class LogState(NamedTuple):
    """What a heartbeat says of the log."""

    last_epoch: int
    end: int
    confirmed: int


class ReplicasManager:
    """Times are milliseconds of a clock that nobody sets.

    Attributes:
        identity: the id of this broker, as far as it has one.
        lease: of a master.
        leader: the address of the controller that leads; empty: not known.
        epoch: of the master that is known; 0: none is.
        is_master: that master is this broker.
        has_left: it had no controller for a time, and they do not know yet what it stored then.
    """

    def __init__(self, settings: ManagerSettings, identity: BrokerIdentity | None) -> None:
        """Nothing is asked yet. ``identity``: what the files say."""
        self._settings = settings
        self.identity = identity
        self.lease = MasterLease(settings.timeout_ms)
        self.leader = ""
        self.epoch = 0
        self.is_master = False
        self.has_left = settings.has_left
        self._master = (0, 0, "")
        """Epoch, id and address."""
        self._address = ""
        """Of this broker."""
        self._next_controller = 0
        self._is_registered = self._wants_election = self._asks_again = False
        self._is_forgotten = False
        """By controllers that gave this broker its id."""
        self._refused_ms = -1
        """When a set was refused last; -1: what that means is known."""
        self._under_way: set[tuple[Kind, str]] = set()
        self._due: dict[Kind, int] = {}
        self._heard_ms = 0
        """When the last heartbeat was sent that the leader answered."""
        self._logged = ""

    @property
    def broker_id(self) -> int:
        """That the controller gave; 0: none yet."""
        identity = self.identity
        return 0 if identity is None or identity.check_code else identity.broker_id

    def takes_messages(self, now_ms: int) -> bool:
        """Whether it is the master, and nobody else can be."""
        return self.is_master and self.lease.holds(now_ms)

    @property
    def _is_behind(self) -> bool:
        """It was a slave when it had left the controllers: its master may have more."""
        return self.has_left and self._settings.was_slave

    @property
    def _is_hidden(self) -> bool:
        """The controllers may elect it by what they knew before, so it does not show that it is
        alive. Once they have forgotten it, they have to hear which epoch it knows."""
        return self._is_behind and not self._is_forgotten

    # -- what to ask ----------------------------------------------------------------------------
    def due(
        self, address: str, log: LogState, now_ms: int, *, is_cut_off: bool = False
    ) -> list[Ask]:
        """What is to be sent now. ``address``: of this broker. ``is_cut_off``: a slave has no
        connection to its master, so that another one may be elected at any moment.
        """
        self._address = address
        if is_cut_off and not self.is_master:
            retried = min(self._due.get(Kind.REPLICA_INFO, 0), now_ms + RETRY_MS)
            self._due[Kind.REPLICA_INFO] = retried
        is_shown = self.broker_id and not self._is_hidden
        asks = self._heartbeats(log, now_ms) if is_shown else []
        if not self.leader or self._is_due(Kind.METADATA, now_ms):
            asks += self._ask(Kind.METADATA, None, now_ms, self._settings.metadata_ms)
        if self.leader:
            asks += self._next_step(log, now_ms)
        return asks

    def _next_step(self, log: LogState, now_ms: int) -> list[Ask]:
        cluster, name = self._settings.cluster_name, self._settings.broker_name
        identity = self.identity
        if identity is None:
            return self._ask(
                Kind.NEXT_ID, GetNextBrokerIdHeader(cluster_name=cluster, broker_name=name), now_ms
            )
        if identity.check_code:
            apply = ApplyBrokerIdHeader(
                cluster_name=cluster,
                broker_name=name,
                applied_broker_id=identity.broker_id,
                register_check_code=identity.check_code,
            )
            return self._ask(Kind.APPLY_ID, apply, now_ms)
        if not self._is_registered:
            register = RegisterBrokerHeader(
                cluster_name=cluster,
                broker_name=name,
                broker_id=identity.broker_id,
                broker_address=self._address,
            )
            return self._ask(Kind.REGISTER, register, now_ms)
        if self._wants_election and not self._waits_for_its_master(log):
            elect = ElectMasterHeader(
                cluster_name=cluster, broker_name=name, broker_id=identity.broker_id
            )
            return self._ask(Kind.ELECT, elect, now_ms)
        info = GetReplicaInfoHeader(broker_name=name)
        period = self._settings.replica_info_ms
        if self.is_master:
            period = min(period, self._settings.heartbeat_ms)
        return self._ask(Kind.REPLICA_INFO, info, now_ms, period)

    def _waits_for_its_master(self, log: LogState) -> bool:
        """Whether another broker has to come under the controllers before this one: it was the
        slave of a pair, and its master may have more messages."""
        if self._is_behind:
            self._log_once(
                "this broker was a slave without a controller after it had one, so it waits until "
                "its master is under the controllers, too, and follows that; if that is lost for "
                f"ever, remove the file {LEFT_FILE} of this broker's store, start this broker again"
                f", and kerolox controller elect {self._settings.broker_name} {self.broker_id}"
            )
            return True
        if log.last_epoch > 0 or not self._settings.was_slave:
            return False
        self._log_once(
            "this broker was a slave before it had a controller, so it waits until its master has "
            "one, too; if that is lost, kerolox controller elect "
            f"{self._settings.broker_name} {self.broker_id} makes this one the master"
        )
        return True

    def alter(self, members: Iterable[int], set_epoch: int, now_ms: int) -> list[Ask]:
        """Ask for another set; nothing while this is under way, or no master."""
        if not self.is_master or not self.leader or self._refused_ms >= 0:
            return []
        header = AlterSyncStateSetHeader(
            broker_name=self._settings.broker_name,
            master_broker_id=self.broker_id,
            master_epoch=self.epoch,
        )
        body = SyncStateSet(sync_state_set=sorted(members), sync_state_set_epoch=set_epoch)
        self._due.pop(Kind.ALTER_SET, None)
        return self._ask(Kind.ALTER_SET, header, now_ms, body=encode_body(body))

    def hand_over(self, broker_id: int, now_ms: int) -> list[Ask]:
        """Ask for the election of another broker; nothing where this one is no master."""
        if not self.is_master or not self.leader:
            return []
        elect = ElectMasterHeader(
            cluster_name=self._settings.cluster_name,
            broker_name=self._settings.broker_name,
            broker_id=broker_id,
            designate_elect=True,
        )
        self._due.pop(Kind.HAND_OVER, None)
        return self._ask(Kind.HAND_OVER, elect, now_ms)

    def notified(self) -> None:
        """The controller says that roles have changed: ask at once."""
        self._due[Kind.REPLICA_INFO] = 0

    def _is_due(self, kind: Kind, now_ms: int) -> bool:
        return now_ms >= self._due.get(kind, 0)

    def _ask(
        self,
        kind: Kind,
        header: Header | None,
        now_ms: int,
        period_ms: int = RETRY_MS,
        body: bytes = b"",
    ) -> list[Ask]:
        address = self.leader
        if kind is Kind.METADATA:
            controllers = self._settings.controllers
            address = controllers[self._next_controller % len(controllers)]
        if not self._is_due(kind, now_ms) or any(each is kind for each, _ in self._under_way):
            return []
        self._due[kind] = now_ms + period_ms
        return [self._begin(kind, address, header, now_ms, body)]

    def _begin(
        self, kind: Kind, address: str, header: Header | None, now_ms: int, body: bytes = b""
    ) -> Ask:
        self._under_way.add((kind, address))
        fields = None if header is None else header.encode()
        command = RemotingCommand.request(_CODES[kind], fields, body=body)
        return Ask(kind, address, command, now_ms)

    def _heartbeats(self, log: LogState, now_ms: int) -> list[Ask]:
        if not self._is_due(Kind.HEARTBEAT, now_ms):
            return []
        self._due[Kind.HEARTBEAT] = now_ms + self._settings.heartbeat_ms
        header = BrokerHeartbeatHeader(
            cluster_name=self._settings.cluster_name,
            broker_addr=self._address,
            broker_name=self._settings.broker_name,
            broker_id=self.broker_id,
            epoch=log.last_epoch,
            max_offset=log.end,
            confirm_offset=log.confirmed,
            heartbeat_timeout_mills=self._settings.timeout_ms,
            election_priority=self._settings.priority,
        )
        controllers = dict.fromkeys((*self._settings.controllers, *filter(None, (self.leader,))))
        return [
            self._begin(Kind.HEARTBEAT, each, header, now_ms)
            for each in controllers
            if (Kind.HEARTBEAT, each) not in self._under_way
        ]

    # -- what is answered -----------------------------------------------------------------------
    def answered(self, ask: Ask, answer: RemotingCommand | None, now_ms: int) -> list[Step]:
        """What to do for an answer; None: none came."""
        self._under_way.discard((ask.kind, ask.address))
        if answer is None or answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._lost(ask, now_ms)
            return []
        try:
            return self._answered(ask, answer, now_ms)
        except (HeaderFieldError, BodyError) as error:
            self._log_once(f"controller {ask.address}: {ask.kind.name}: {printable(str(error))}")
            self._lost(ask, now_ms)
            return []

    def _lost(self, ask: Ask, now_ms: int) -> None:
        if ask.kind is Kind.METADATA:
            self._next_controller += 1
            self._due[Kind.METADATA] = now_ms + RETRY_MS
        elif ask.kind is not Kind.HEARTBEAT and ask.address == self.leader:
            self.leader = ""
            self._due[Kind.METADATA] = self._due[ask.kind] = 0

    def _answered(self, ask: Ask, answer: RemotingCommand, now_ms: int) -> list[Step]:
        is_done = answer.code == ResponseCode.SUCCESS
        fields = answer.ext_fields
        match ask.kind:
            case Kind.METADATA:
                self._found(ask, GetMetaDataResponseHeader.decode(fields), now_ms)
            case Kind.HEARTBEAT:
                if is_done and ask.address == self.leader:
                    self._heard_ms = max(self._heard_ms, ask.sent_ms)
            case Kind.NEXT_ID if is_done:
                found = GetNextBrokerIdResponseHeader.decode(fields)
                return [KeepAsked(found.next_broker_id, f"{self._address};{now_ms}")]
            case Kind.APPLY_ID if is_done and self.identity is not None:
                return [KeepGot(self.identity)]
            case Kind.APPLY_ID if (
                answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID and not self._asks_again
            ):
                self.identity = None
                return [ForgetAsked()]
            case Kind.REGISTER if is_done:
                self._is_registered, self._asks_again = True, False
                self._due[Kind.HEARTBEAT] = 0
                return self._named(ask, MasterHeader.decode(fields), _set_of(answer))
            case Kind.ELECT | Kind.HAND_OVER if (
                is_done or answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            ):
                header = MasterHeader.decode(fields)
                body = decode_body(answer.body, ElectMasterResponseBody)
                in_sync = SyncStateSet(
                    sync_state_set=body.sync_state_set or [],
                    sync_state_set_epoch=header.sync_state_set_epoch or 0,
                )
                return self._named(ask, header, in_sync)
            case Kind.REPLICA_INFO if is_done:
                return self._named(ask, MasterHeader.decode(fields), _set_of(answer))
            case Kind.ALTER_SET:
                return self._altered(answer, now_ms, is_done=is_done)
            case Kind.REGISTER if (
                answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            ):
                # Controllers that lost all, or were told to forget this broker. It asks for its own
                # id alone: another one may be that of a broker which does not know of it yet.
                self._refused(ask, answer)
                self._asks_again = self._is_forgotten = True
                return [KeepAsked(self.broker_id, f"{self._address};{now_ms}")]
            case _:
                self._refused(ask, answer)
        return []

    def _found(self, ask: Ask, header: GetMetaDataResponseHeader, now_ms: int) -> None:
        leader = header.controller_leader_address or ""
        if not leader:
            self._lost(ask, now_ms)
        elif leader != self.leader:
            self.leader = leader
            _log.info("controller %s leads", printable(leader))

    def _named(self, ask: Ask, header: MasterHeader, in_sync: SyncStateSet) -> list[Step]:
        """What the controller says of the master of this name."""
        epoch, master_id = header.master_epoch or 0, header.master_broker_id
        if self._is_hidden and master_id == self.broker_id:
            master_id = None  # So it was before; nobody elects it now.
        address = header.master_address or ""
        if master_id is None or not address:
            # RocketMQ's broker asks for an election as well.
            self._wants_election = self._wants_election or ask.kind is not Kind.ELECT
            if epoch > self.epoch:
                self.is_master = False
                self.lease.drop()
            return []
        self._wants_election = False
        self._logged = ""
        members = frozenset(in_sync.sync_state_set)
        named = (epoch, master_id, address)
        if epoch < self.epoch:
            return []
        if master_id != self.broker_id:
            if named == self._master:
                return []
            self._master, self.epoch, self.is_master = named, epoch, False
            self.lease.drop()
            return [Follow(epoch, master_id, address)]
        if named == self._master and self.is_master:
            self.lease.renew(min(ask.sent_ms, self._heard_ms))
            steps: list[Step] = [Learn(members, in_sync.sync_state_set_epoch)]
            if 0 <= self._refused_ms < ask.sent_ms:
                self._refused_ms = -1
                steps.append(Refused())
            return steps
        self._master, self.epoch, self.is_master = named, epoch, True
        self._due[Kind.HEARTBEAT] = self._due[Kind.REPLICA_INFO] = 0
        self._refused_ms = -1
        return [Lead(epoch, members, in_sync.sync_state_set_epoch)]

    def _altered(self, answer: RemotingCommand, now_ms: int, *, is_done: bool) -> list[Step]:
        if is_done:
            found = _set_of(answer)
            return [Learn(frozenset(found.sync_state_set), found.sync_state_set_epoch)]
        # It may have granted an earlier wish whose answer was lost: what counts is asked for.
        self._refused_ms = now_ms
        self._due[Kind.REPLICA_INFO] = 0
        _log.info("the controller does not change the set: %s", printable(answer.remark or ""))
        return []

    def _refused(self, ask: Ask, answer: RemotingCommand) -> None:
        is_unknown = answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        if ask.kind is Kind.REPLICA_INFO or is_unknown:
            # Controllers that lost what they knew, or were told to forget this broker.
            self._is_registered = False
        advice = ""
        if ask.kind is Kind.ELECT and self.has_left:
            name, broker_id = self._settings.broker_name, self.broker_id
            advice = (
                ". This broker had no controller for a time, and their sync state set is from "
                f"before: kerolox controller clean {name}; when kerolox controller describe {name} "
                f"shows all brokers alive, kerolox controller elect {name} {broker_id}, or who has "
                "more"
            )
        self._log_once(
            f"controller {ask.address} refuses {ask.kind.name}: code {answer.code}, "
            f"{printable(answer.remark or '')}{advice}; it is tried again"
        )

    def _log_once(self, text: str) -> None:
        if text != self._logged:
            self._logged = text
            _log.warning("%s", text)

    # -- what was done --------------------------------------------------------------------------
    def keeps(self, identity: BrokerIdentity) -> None:
        """The files say this now."""
        self.identity = identity
        self._due.clear()

    def failed(self) -> None:
        """It could not become what the controller says: the next answer has it tried again."""
        self._master, self.is_master = (self.epoch, 0, ""), False
        self.lease.drop()


def _set_of(answer: RemotingCommand) -> SyncStateSet:
    return decode_body(answer.body, SyncStateSet)
