"""What a controller answers, by request code (``ControllerRequestProcessor``).

The leader alone answers; others answer code 2007 and brokers ask the next one. Heartbeats go to
all, so that a new leader knows at once who is alive. Every read is confirmed by a majority, so a
leader that is cut off tells nothing that is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from kerolox.controller.config import ControllerConfig
from kerolox.controller.group import RaftGroup
from kerolox.controller.live_brokers import LiveBrokers
from kerolox.controller.raft.raft import NotLeaderError, ProposalError
from kerolox.controller.raft_wire import RaftMessageError, RaftMessageHeader, raft_message
from kerolox.controller.replicas_info import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    Command,
    ElectMaster,
    RegisterBroker,
    ReplicasInfoManager,
    Result,
    encode_command,
)
from kerolox.controller.trust import MemberHosts
from kerolox.properties import format_properties
from kerolox.protocol.bodies import decode_request, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoHeader,
    MasterHeader,
    RegisterBrokerHeader,
    SyncStateSet,
    decode_broker_names,
)
from kerolox.protocol.headers import EmptyHeader
from kerolox.remoting.audit import Audit
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.server import ServerConnection
from kerolox.remoting.unserved import UnservedCodes
from kerolox.text import printable

EPOCH_MAX = 1 << 30
"""The newest epoch that a broker may tell: one is left to elect above it, many times."""

COMPLAIN_MS = 1_000
"""Between two lines of the log about messages of Raft that are refused."""

_log = logging.getLogger(__name__)

router: Router[ControllerHandlers] = Router()


class ControllerHandlers:
    """Answers requests from the state machine and from who is alive."""

    def __init__(
        self,
        config: ControllerConfig,
        group: RaftGroup,
        replicas: ReplicasInfoManager,
        live: LiveBrokers,
        clock_ms: Callable[[], int],
        on_elected: Callable[[str, Result], None],
    ) -> None:
        """``on_elected``: called with a broker name and what an election that changed something
        gave."""
        self.config, self.group, self.replicas, self.live = config, group, replicas, live
        self._clock_ms, self._on_elected = clock_ms, on_elected
        self.hosts = MemberHosts(lambda: (config.members, group.raft.configuration))
        """From where messages of Raft come that nobody signs."""
        self.audit = Audit("controller")
        self.unserved = UnservedCodes("controller")
        self.refused_messages = 0
        """Messages of Raft that were not believed."""
        self._complained_ms = -COMPLAIN_MS

    async def handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        """Answer one request."""
        try:
            return await router.dispatch(self, command, connection)
        except NotLeaderError:
            code = ResponseCode.CONTROLLER_NOT_LEADER
            return command.response(code, "The controller is not in leader state")
        except ProposalError as error:
            return command.response(ResponseCode.SYSTEM_BUSY, str(error))
        except TimeoutError:
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                "no majority of the controllers answers; whether it is done is not known",
            )

    async def change(self, command: Command) -> Result:
        """Have all controllers do it."""
        result = await self.group.propose(encode_command(command))
        assert isinstance(result, Result)
        return result

    async def elect(self, command: ElectMaster) -> Result:
        """Have a master elected, and report it."""
        newest = self.newer_epoch(command.broker_name)
        result = await self.change(msgspec.structs.replace(command, newest_epoch=newest))
        name, header = printable(command.broker_name), result.header
        if result.code == ResponseCode.SUCCESS and isinstance(header, MasterHeader):
            _log.warning(
                "%s: broker %s at %s is master now, epoch %s",
                *(name, header.master_broker_id, header.master_address, header.master_epoch),
            )
        else:
            _log.warning("%s: no other master is elected: %s", name, result.remark)
        if result.code == ResponseCode.SUCCESS:
            self._on_elected(command.broker_name, result)
        return result

    def alive(self, broker_name: str) -> list[int]:
        """The brokers of a name that are alive, best first."""
        broker_set = self.replicas.broker_sets.get(broker_name)
        if broker_set is None:
            return []
        return self.live.best_first(broker_set.cluster_name, broker_name, self._clock_ms())

    def newer_epoch(self, broker_name: str) -> int:
        """The epoch that a broker of a name knows and the controllers do not; 0: none does. Their
        data was put back to an older state then, and nobody who is in sync by it need be so."""
        broker_set = self.replicas.broker_sets.get(broker_name)
        if broker_set is None:
            return 0
        known = self.live.newest_epoch(broker_set.cluster_name, broker_name, self._clock_ms())
        return known if known > broker_set.master_epoch else 0

    # -- brokers ------------------------------------------------------------------------------
    @router.on(RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatHeader.decode)
    async def _heartbeat(self, header: BrokerHeartbeatHeader, request: Request) -> Reply:
        if header.broker_id is None:
            code = ResponseCode.CONTROLLER_INVALID_REQUEST
            return Reply(code, "Heart beat with empty brokerId")
        connection_id = request.connection.connection_id
        if (header.epoch or 0) > EPOCH_MAX:
            return Reply(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"epoch {header.epoch}; none is above {EPOCH_MAX}",
            )
        if not self.live.renew(header, connection_id, self._clock_ms()):
            return Reply(ResponseCode.SYSTEM_BUSY, "too many brokers send heartbeats")
        return Reply(ResponseCode.SUCCESS, "Heart beat success")

    @router.on(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdHeader.decode)
    async def _next_broker_id(self, header: GetNextBrokerIdHeader, request: Request) -> Reply:
        await self.group.confirm_read()
        answer = GetNextBrokerIdResponseHeader(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            next_broker_id=self.replicas.next_broker_id(header.broker_name),
        )
        return Reply(fields=answer.encode())

    @router.on(RequestCode.CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdHeader.decode)
    async def _apply_broker_id(self, header: ApplyBrokerIdHeader, request: Request) -> Reply:
        command = ApplyBrokerId(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.applied_broker_id,
            check_code=header.register_check_code,
        )
        return _reply(await self.change(command))

    @router.on(RequestCode.CONTROLLER_REGISTER_BROKER, RegisterBrokerHeader.decode)
    async def _register_broker(self, header: RegisterBrokerHeader, request: Request) -> Reply:
        command = RegisterBroker(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            broker_address=header.broker_address,
            # Who the master is, is not told as long as the brokers know better.
            alive=[] if self.newer_epoch(header.broker_name) else self.alive(header.broker_name),
        )
        return _reply(await self.change(command))

    @router.on(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, AlterSyncStateSetHeader.decode)
    async def _alter_set(self, header: AlterSyncStateSetHeader, request: Request) -> Reply:
        body = decode_request(request.body, SyncStateSet)
        command = AlterSyncStateSet(
            broker_name=header.broker_name,
            master_broker_id=header.master_broker_id,
            master_epoch=header.master_epoch,
            sync_state_set=body.sync_state_set,
            sync_state_set_epoch=body.sync_state_set_epoch,
            alive=self.alive(header.broker_name),
        )
        return _reply(await self.change(command))

    @router.on(RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterHeader.decode, changes=True)
    async def _elect_master(self, header: ElectMasterHeader, request: Request) -> Reply:
        command = ElectMaster(
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            designate=header.designate_elect,
            alive=self.alive(header.broker_name),
            may_be_unclean=self.config.enable_elect_unclean_master,
        )
        return _reply(await self.elect(command))

    # -- operators ----------------------------------------------------------------------------
    @router.on(RequestCode.CONTROLLER_GET_METADATA_INFO, EmptyHeader.decode)
    async def _metadata(self, header: EmptyHeader, request: Request) -> Reply:
        raft = self.group.raft
        answer = GetMetaDataResponseHeader(
            group=self.config.controller_d_leger_group,
            controller_leader_id=raft.leader or None,
            controller_leader_address=raft.configuration.get(raft.leader),
            is_leader=self.group.is_leader,
            peers="".join(f"{node}:{address};" for node, address in raft.configuration.items()),
        )
        return Reply(fields=answer.encode())

    @router.on(RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoHeader.decode)
    async def _replica_info(self, header: GetReplicaInfoHeader, request: Request) -> Reply:
        await self.group.confirm_read()
        return _reply(self.replicas.replica_info(header.broker_name))

    @router.on(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, EmptyHeader.decode)
    async def _sync_state_data(self, header: EmptyHeader, request: Request) -> Reply:
        names: Iterable[str] = decode_broker_names(request.body)
        await self.group.confirm_read()
        data = self.replicas.sync_state_data({name: self.alive(name) for name in names})
        return Reply(body=encode_body(data))

    @router.on(RequestCode.CLEAN_BROKER_DATA, CleanBrokerDataHeader.decode, changes=True)
    async def _clean_broker_data(self, header: CleanBrokerDataHeader, request: Request) -> Reply:
        texts = (header.broker_controller_ids_to_clean or "").split(";")
        try:
            broker_ids = [int(text) for text in texts if text.strip()]
        except ValueError as error:
            return Reply(
                ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                "Please set the option <brokerControllerIdsToClean> according to the format, "
                f"exception: {printable(str(error))}",
            )
        command = CleanBrokerData(
            broker_name=header.broker_name,
            broker_ids=broker_ids,
            even_if_alive=header.is_clean_living_broker,
            alive=self.alive(header.broker_name),
        )
        result = await self.change(command)
        if result.code == ResponseCode.SUCCESS:
            gone = header.broker_controller_ids_to_clean or "all"
            self.audit.changed(request, "controllerBrokers", header.broker_name, gone)
        return _reply(result)

    @router.on(RequestCode.GET_CONTROLLER_CONFIG, EmptyHeader.decode)
    async def _get_config(self, header: EmptyHeader, request: Request) -> Reply:
        return Reply(body=format_properties(self.config.as_properties()).encode())

    # -- controllers --------------------------------------------------------------------------
    @router.on(RequestCode.RAFT_MESSAGE, RaftMessageHeader.decode)
    async def _raft_message(self, header: RaftMessageHeader, request: Request) -> Reply | None:
        config, peer = self.config, request.connection
        try:
            if not config.controller_secret and not self.hosts.has(peer.peer[0]):
                raise RaftMessageError(
                    "no controller is at that address; give all controllers the same"
                    " controllerSecret if that is wrong"
                )
            message = raft_message(
                header, request.body, config.controller_d_leger_group, config.controller_secret
            )
        except RaftMessageError as error:
            self._complain(peer.remote_address, str(error))
            return None
        self.group.step(message)
        return None

    def _complain(self, address: str, reason: str) -> None:
        """Log a message that was refused, not more often than ``COMPLAIN_MS``: they may be many."""
        self.refused_messages += 1
        now = self._clock_ms()
        if now - self._complained_ms >= COMPLAIN_MS:
            self._complained_ms = now
            _log.warning(
                "a message of Raft from %s is refused, the %d. in all: %s",
                *(address, self.refused_messages, printable(reason)),
            )


def _reply(result: Result) -> Reply:
    fields = None if result.header is None else result.header.encode()
    body = b"" if result.body is None else encode_body(result.body)
    return Reply(result.code, result.remark, fields, body)
