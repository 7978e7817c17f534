"""What a controller answers, by request code (``ControllerRequestProcessor``).

The leader alone answers; others answer code 2007 and brokers ask the next one. Heartbeats go to
all, so that a new leader knows at once who is alive. Every read is confirmed by a majority, so a
leader that is cut off tells nothing that is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice

import msgspec

from kerolox.addresses import split_address
from kerolox.clock import now_ms
from kerolox.controller.config import MEMBERS_MAX, ControllerConfig
from kerolox.controller.group import RaftGroup
from kerolox.controller.live_brokers import LiveBrokers
from kerolox.controller.raft.progress import quorum
from kerolox.controller.raft.raft import NotLeaderError, ProposalError
from kerolox.controller.raft_wire import RaftMessageError, RaftMessageHeader, raft_message
from kerolox.controller.replicas_info import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    Command,
    ElectMaster,
    ForgetSyncStateSets,
    RegisterBroker,
    ReplicasInfoManager,
    Result,
    encode_command,
)
from kerolox.controller.request_counts import RequestCounts
from kerolox.controller.trust import MemberHosts
from kerolox.dynamic_config import DynamicConfig
from kerolox.errors import ConfigError
from kerolox.observable import Observable
from kerolox.protocol.bodies import decode_request, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    BROKER_NAMES_MAX,
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    ChangeControllersHeader,
    CleanBrokerDataHeader,
    ControllerStateHeader,
    ElectMasterHeader,
    GetNextBrokerIdHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoHeader,
    MasterHeader,
    RegisterBrokerHeader,
    SyncStateSet,
    decode_broker_names,
)
from kerolox.protocol.headers import EmptyHeader
from kerolox.release import __version__
from kerolox.remoting.audit import Audit
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.server import ServerConnection
from kerolox.remoting.settings_requests import change_settings, show_settings
from kerolox.remoting.unserved import UnservedCodes
from kerolox.text import printable

EPOCH_MAX = 1 << 30
"""The newest epoch that a broker may tell: one is left to elect above it, many times."""

_ELECTION_RESULTS: dict[int, str] = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
}

BEHIND_NAMES_MAX, BEHIND_MS = 10, 1_000
"""Names of sets with newer epochs that one answer has, and how old these may be."""

COMPLAIN_MS = 1_000
"""Between two lines of the log about messages of Raft that are refused."""

_log = logging.getLogger(__name__)

router: Router[ControllerHandlers] = Router()


class ControllerHandlers:
    """Answers requests from the state machine and from who is alive."""

    def __init__(
        self,
        settings: Observable[ControllerConfig],
        group: RaftGroup,
        replicas: ReplicasInfoManager,
        live: LiveBrokers,
        clock_ms: Callable[[], int],
        on_elected: Callable[[str, Result], None],
        probe: Callable[[str], Awaitable[ControllerStateHeader | str]],
    ) -> None:
        """Nothing is asked yet.

        Args:
            settings: those in force.
            group: the node of this controller.
            replicas: what the group agreed on.
            live: who is alive.
            clock_ms: a clock that nobody sets.
            on_elected: called with a broker name and what an election that changed something gave.
            probe: asks the controller at an address for its state; a text: why there is none.
        """
        self._probe = probe
        self._settings = settings
        self.dynamic_config = DynamicConfig(settings, now_ms)
        self.group, self.replicas, self.live = group, replicas, live
        self._clock_ms, self._on_elected = clock_ms, on_elected
        members = settings.current.members
        self.hosts = MemberHosts(lambda: (members, group.raft.configuration))
        """From where messages of Raft come that nobody signs."""
        self.audit = Audit("controller")
        self.unserved = UnservedCodes("controller")
        self.requests = RequestCounts()
        self.elections = Counter[str]()
        """How they ended, by names of RocketMQ's metric."""
        self.refused_messages = 0
        """Messages of Raft that were not believed."""
        self._complained_ms = -COMPLAIN_MS
        self._settling = asyncio.Lock()
        self._behind_ms = -BEHIND_MS
        self._behind_names: list[str] = []

    @property
    def config(self) -> ControllerConfig:
        """The settings in force."""
        return self._settings.current

    async def handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        """Answer one request."""
        begin, status = time.monotonic(), "failed"
        try:
            response = await router.dispatch(self, command, connection)
            status = "success"
            return response
        except NotLeaderError:
            code = ResponseCode.CONTROLLER_NOT_LEADER
            return command.response(code, "The controller is not in leader state")
        except ProposalError as error:
            return command.response(ResponseCode.SYSTEM_BUSY, str(error))
        except ConfigError as error:
            return command.response(ResponseCode.SYSTEM_ERROR, str(error))
        except TimeoutError:
            status = "timeout"
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                "no majority of the controllers answers; whether it is done is not known",
            )
        except OSError as error:
            _log.error("code %d: %s", command.code, error)
            return command.response(ResponseCode.SYSTEM_ERROR, f"can't be written: {error}")
        finally:
            self.requests.ended(command.code, status, time.monotonic() - begin)

    async def _settle(self) -> None:
        """Have nobody count as in sync by files that are a copy, before anything is told by them.
        Errors: :meth:`RaftGroup.propose`."""
        async with self._settling:
            if self.group.storage.is_copy:
                await self.group.propose(encode_command(ForgetSyncStateSets()))
                self.group.storage.make_own()

    async def _confirm_read(self) -> None:
        await self._settle()
        await self.group.confirm_read()

    async def change(self, command: Command) -> Result:
        """Have all controllers do it."""
        await self._settle()
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
        self.elections[_ELECTION_RESULTS.get(result.code, "no_master_elected")] += 1
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

    def _behind(self) -> list[str]:
        """The first names of which a broker knows a newer epoch. All brokers are examined, so it
        is found out anew once in ``BEHIND_MS`` at most, however often somebody asks."""
        if not self.group.is_leader:
            return []
        now = self._clock_ms()
        if now - self._behind_ms >= BEHIND_MS:
            self._behind_ms, sets = now, self.replicas.broker_sets
            told = self.live.newest_epochs(now)
            self._behind_names = [
                name
                for (cluster, name), epoch in told.items()
                if name in sets
                and sets[name].cluster_name == cluster
                and epoch > sets[name].master_epoch
            ][:BEHIND_NAMES_MAX]
        return self._behind_names

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
        await self._confirm_read()
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
        answer = ControllerStateHeader(
            group=self.config.controller_d_leger_group,
            controller_leader_id=raft.leader or None,
            controller_leader_address=raft.configuration.get(raft.leader),
            is_leader=self.group.is_leader,
            peers="".join(f"{node}:{address};" for node, address in raft.configuration.items()),
            node_id=raft.node_id,
            role="failed" if self.group.fault else raft.role.value,
            term=raft.term,
            commit_index=raft.log.committed,
            applied_index=raft.log.applied,
            learns=raft.learns,
            put_back=";".join(raft.put_back) or None,
            behind=";".join(self._behind()) or None,
            fault=self.group.fault,
            version=__version__,
            clock=now_ms(),
        )
        return Reply(fields=answer.encode())

    @router.on(RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoHeader.decode)
    async def _replica_info(self, header: GetReplicaInfoHeader, request: Request) -> Reply:
        await self._confirm_read()
        # As with a registration: a master that was told so before must not go on by this.
        is_known = not self.newer_epoch(header.broker_name)
        return _reply(self.replicas.replica_info(header.broker_name, tells_master=is_known))

    @router.on(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, EmptyHeader.decode)
    async def _sync_state_data(self, header: EmptyHeader, request: Request) -> Reply:
        """No names: all. RocketMQ answers nothing then."""
        names: Iterable[str] = decode_broker_names(request.body) if request.body else ()
        await self._confirm_read()
        names = names or islice(self.replicas.broker_sets, BROKER_NAMES_MAX)
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
        return show_settings(self.dynamic_config)

    @router.on(RequestCode.UPDATE_CONTROLLER_CONFIG, EmptyHeader.decode, changes=True)
    async def _update_config(self, header: EmptyHeader, request: Request) -> Reply:
        return await change_settings(self.dynamic_config, self.audit, request)

    @router.on(RequestCode.CHANGE_CONTROLLERS, ChangeControllersHeader.decode, changes=True)
    async def _change_controllers(self, header: ChangeControllersHeader, request: Request) -> Reply:
        own = self.config.controller_d_leger_group
        if header.group != own:
            return Reply(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"this is a controller of group {own}, not of {header.group}",
            )
        members = dict(self.group.raft.configuration)
        old = members.pop(header.node_id, None)
        if header.address:
            members[header.node_id] = _checked_member(header.node_id, header.address)
        elif old is None:
            return Reply(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"{header.node_id} is no controller; they are {', '.join(members)}",
            )
        if len(members) > MEMBERS_MAX:
            return Reply(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"at most {MEMBERS_MAX} controllers agree"
            )
        if old != (header.address or None):
            await self._check_members(members, header.node_id if header.address else "")
            await self.group.change_members(members)
            self.audit.changed(
                request, "controllers", header.node_id, old or "", header.address or "none"
            )
            await self.hosts.look_up()
        return Reply()

    async def _check_members(self, members: Mapping[str, str], new: str) -> None:
        """ConfigError: with these members, of which one is new, the group could not go on."""
        own = self.group.raft.node_id
        others = [each for each in members if each != own]
        states = await asyncio.gather(*(self._probe(members[each]) for each in others))
        answers = {own} & members.keys()
        for node_id, state in zip(others, states, strict=True):
            is_it = isinstance(state, ControllerStateHeader) and (
                (state.group, state.node_id) == (self.config.controller_d_leger_group, node_id)
            )
            if is_it:
                answers.add(node_id)
            elif node_id == new:
                what = state if isinstance(state, str) else "another controller is there"
                raise ConfigError(
                    f"{node_id} does not answer at {members[node_id]} ({what}): start it first, "
                    "with an empty folder and settings that name all controllers"
                )
        if not members:
            raise ConfigError("the last controller stays")
        if len(answers) < quorum(len(members)):
            raise ConfigError(
                f"only {', '.join(sorted(answers)) or 'none'} of {', '.join(members)} answer, which"
                " is no majority: the group could not go on"
            )

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


def _checked_member(node_id: str, address: str) -> str:
    """The address of a controller. ConfigError: it or the id can't be one."""
    try:
        split_address(address)
    except ValueError as error:
        raise ConfigError(f"{node_id}: {error}") from None
    if not node_id or "-" in node_id or ";" in node_id or ":" in node_id:
        raise ConfigError(f"{node_id!r} is no id of a controller: without '-', ':' and ';'")
    return address


def _reply(result: Result) -> Reply:
    fields = None if result.header is None else result.header.encode()
    body = b"" if result.body is None else encode_body(result.body)
    return Reply(result.code, result.remark, fields, body)
