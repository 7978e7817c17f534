"""The controller: a member of the group, requests of brokers and operators, and who is alive.

The leader looks twice a second for masters that are silent, and has others elected; it does so at
once when the connection of a master's heartbeats closes. Brokers are notified of each election.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import SystemRandom
from typing import TYPE_CHECKING, Self

from kerolox import clock
from kerolox.addresses import split_address
from kerolox.controller.config import ControllerConfig
from kerolox.controller.group import TICK_SECONDS, RaftGroup
from kerolox.controller.handlers import ControllerHandlers
from kerolox.controller.live_brokers import BrokerIdentity, LiveBrokers
from kerolox.controller.raft.messages import Message
from kerolox.controller.raft.raft import ProposalError, Raft
from kerolox.controller.raft_wire import raft_command
from kerolox.controller.replicas_info import (
    ElectMaster,
    ReplicasInfoManager,
    Result,
    decode_command,
)
from kerolox.controller.storage import RaftStorage
from kerolox.errors import ClientError, RemotingError
from kerolox.metrics.endpoint import MetricsEndpoint
from kerolox.observable import Observable
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    HEARTBEAT_TIMEOUT_MS,
    ControllerStateHeader,
    ElectMasterResponseBody,
    MasterHeader,
)
from kerolox.protocol.headers import HeaderFieldError
from kerolox.release import __version__
from kerolox.remoting.client import RemotingClient
from kerolox.remoting.server import ConnectionLimits, RemotingServer, ServerConnection
from kerolox.remoting.tls.server_tls import ServerTls
from kerolox.security.contexts import TlsContexts
from kerolox.tasks import end_tasks
from kerolox.text import printable

if TYPE_CHECKING:
    from kerolox.metrics.role import MeasuredRole

MESSAGES_MAX = 256
"""Messages to others that wait for a connection; further ones are lost, which Raft bears."""

SEND_SECONDS_MAX = 1.0
NOTIFY_SECONDS_MAX = 3.0
PROBE_SECONDS_MAX = 2.0

_log = logging.getLogger(__name__)


class ReplicasStateMachine:
    """The brokers' metadata, as the group applies commands to it."""

    def __init__(self, replicas: ReplicasInfoManager) -> None:
        self._replicas = replicas

    def apply(self, data: bytes) -> object:
        """Judge and do a command."""
        return self._replicas.apply(decode_command(data))

    def encode(self) -> bytes:
        """All of it."""
        return self._replicas.encode()

    def restore(self, data: bytes) -> None:
        """Become what ``encode`` gave."""
        self._replicas.restore(data)


class Controller:
    """One controller. An async context manager: started inside, stopped outside."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        clock_ms: Callable[[], int] = clock.steady_ms,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """Nothing is opened before :meth:`start`. ``clock_ms``, ``tick_seconds``: tests have their
        own."""
        self._settings = Observable(config)
        self._clock_ms, self._tick_seconds = clock_ms, tick_seconds
        self._live, self.replicas = LiveBrokers(), ReplicasInfoManager()
        self._storage = RaftStorage(
            config.controller_store_path,
            group=config.controller_d_leger_group,
            node_id=config.controller_d_leger_self_id,
        )
        self._client = RemotingClient(
            connect_timeout_seconds=SEND_SECONDS_MAX, tls=TlsContexts(config.tls_or_plain)
        )
        self._tls = ServerTls.of(config)
        self._metrics = MetricsEndpoint(config, self._measured)
        self._sending: set[asyncio.Task[None]] = set()
        self._electing: set[str] = set()
        self._scanning: asyncio.Task[None] | None = None
        self._ending = asyncio.Lock()
        self._started_ms = 0
        self.group: RaftGroup
        self._handlers: ControllerHandlers
        self._server: RemotingServer

    def _measured(self) -> MeasuredRole:
        """Its metrics, for who asks for them."""
        from kerolox.controller.metrics import ControllerExposition

        return ControllerExposition(
            self._handlers, self._server, self.config, lambda: self._storage.size, self._clock_ms
        )

    @property
    def metrics_port(self) -> int:
        """Where its metrics are (after the start); 0: nowhere."""
        return self._metrics.port

    @property
    def config(self) -> ControllerConfig:
        """The settings in force."""
        return self._settings.current

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        """The addresses that it listens on (after the start)."""
        return self._server.addresses

    async def start(self) -> None:
        """Read the files, listen, take part. ConfigError: a file or the port can't be used."""
        config = self.config
        self._storage.open(config.members, may_be_copy=config.controller_accepts_copy)
        try:
            self._make_parts(config)
            if self._tls is not None:
                self._tls.start()
            await self._handlers.hosts.look_up()
            await self._server.start()
            await self._metrics.start()
        except BaseException:
            await self._server.stop()
            await self._stop_tls()
            self._storage.close()
            raise
        if not config.controller_secret and len(config.members) > 1:
            _log.warning(
                "controllerSecret is empty: whoever sends from the address of a controller is "
                "believed; give all controllers the same one"
            )
        self._started_ms = self._clock_ms()
        self.group.start()
        self._scanning = asyncio.get_running_loop().create_task(self._scan_always())
        _log.info(
            "controller %s of %s listens on %s, Kerolox %s",
            config.controller_d_leger_self_id,
            printable(config.controller_d_leger_group),
            ", ".join(self.listen_addresses),
            __version__,
        )

    def _make_parts(self, config: ControllerConfig) -> None:
        raft = Raft(
            config.controller_d_leger_self_id,
            hard_state=self._storage.hard_state,
            snapshot=self._storage.snapshot,
            entries=self._storage.entries,
            random=SystemRandom(),
        )
        self.group = RaftGroup(
            raft,
            self._storage,
            ReplicasStateMachine(self.replicas),
            self._send,
            tick_seconds=self._tick_seconds,
        )
        self._handlers = ControllerHandlers(
            self._settings,
            self.group,
            self.replicas,
            self._live,
            self._clock_ms,
            self._notify,
            self._probe,
        )
        self._server = RemotingServer(
            self._handlers.handle,
            host=config.listen_host,
            port=split_address(config.own_address)[1],
            on_close=self._on_close,
            connection_limits=ConnectionLimits.of(config),
            tls=self._tls,
        )

    async def stop(self) -> None:
        """Take no part any more, close all; bounded. Idempotent; whoever calls it meanwhile waits
        for the end, too."""
        async with self._ending:
            await self._stop()

    async def _stop(self) -> None:
        if self._scanning is None:
            return
        scanning, self._scanning = self._scanning, None
        await end_tasks(scanning)
        await self.group.stop()
        await self._metrics.stop()
        await self._server.stop()
        await self._handlers.hosts.stop()
        await self._handlers.dynamic_config.stop()
        await self._stop_tls()
        await end_tasks(*self._sending)
        await self._client.close()
        self._handlers.audit.close()
        self._storage.close()
        _log.info("controller stopped")

    async def _stop_tls(self) -> None:
        if self._tls is not None:
            await self._tls.stop()

    async def reload_settings(self) -> None:
        """Read the settings file again (what SIGHUP asks for). Raises nothing."""
        await self._handlers.dynamic_config.reload()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- masters that are silent --------------------------------------------------------------
    async def _scan_always(self) -> None:
        while True:
            await asyncio.sleep(self.config.scan_not_active_broker_interval / 1000)
            self._expired(self._live.expire(self._clock_ms()))

    def _on_close(self, connection: ServerConnection) -> None:
        self._expired(self._live.connection_closed(connection.connection_id))

    def _expired(self, gone: list[BrokerIdentity]) -> None:
        for identity in gone:
            _log.warning("broker %s is not alive any more", printable(str(tuple(identity))))
        if not self.group.is_leader:
            return
        names = {(each.broker_name, each.broker_id) for each in gone}
        # Who was never heard may have had no time yet to send a heartbeat to this process.
        has_waited = self._clock_ms() - self._started_ms > HEARTBEAT_TIMEOUT_MS
        for broker_set in self.replicas.broker_sets.values():
            master = broker_set.master_broker_id
            was_heard = (broker_set.broker_name, master) in names
            if master is None or not (was_heard or has_waited):
                continue
            identity = BrokerIdentity(broker_set.cluster_name, broker_set.broker_name, master)
            if not self._live.is_alive(identity, self._clock_ms()):
                self._elect_soon(broker_set.broker_name)

    def _elect_soon(self, broker_name: str) -> None:
        if broker_name not in self._electing and len(self._sending) < MESSAGES_MAX:
            self._electing.add(broker_name)
            self._run(self._elect(broker_name))

    async def _elect(self, broker_name: str) -> None:
        command = ElectMaster(
            broker_name=broker_name,
            alive=self._handlers.alive(broker_name),
            may_be_unclean=self.config.enable_elect_unclean_master,
        )
        try:
            await self._handlers.elect(command)
        except (ProposalError, TimeoutError) as error:
            _log.warning("no master of %s is elected now: %s", printable(broker_name), error)
        finally:
            self._electing.discard(broker_name)

    # -- what it sends ------------------------------------------------------------------------
    def _send(self, message: Message) -> None:
        address = self.group.raft.configuration.get(message.to)
        if address is None or len(self._sending) >= MESSAGES_MAX:
            return
        config = self.config
        command = raft_command(message, config.controller_d_leger_group, config.controller_secret)
        self._run(self._send_oneway(address, command, SEND_SECONDS_MAX))

    async def _probe(self, address: str) -> ControllerStateHeader | str:
        command = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        try:
            answer = await self._client.invoke(address, command, timeout_seconds=PROBE_SECONDS_MAX)
            return ControllerStateHeader.decode(answer.ext_fields)
        except (RemotingError, ClientError, OSError, ValueError, HeaderFieldError) as error:
            return str(error)

    def _notify(self, broker_name: str, result: Result) -> None:
        """Say to all brokers of a name that are alive who is their master now."""
        header, body = result.header, result.body
        if not self.config.notify_broker_role_changed:
            return
        assert isinstance(header, MasterHeader)
        assert isinstance(body, ElectMasterResponseBody)
        members = {} if body.broker_member_group is None else body.broker_member_group.broker_addrs
        in_sync = {
            "syncStateSet": body.sync_state_set,
            "syncStateSetEpoch": header.sync_state_set_epoch,
        }
        for broker_id in self._handlers.alive(broker_name):
            if broker_id in members and len(self._sending) < MESSAGES_MAX:
                command = RemotingCommand.request(
                    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
                    header.encode(),
                    body=encode_body(in_sync),
                )
                self._run(self._send_oneway(members[broker_id], command, NOTIFY_SECONDS_MAX))

    async def _send_oneway(self, address: str, command: RemotingCommand, seconds: float) -> None:
        try:
            await self._client.invoke_oneway(address, command, timeout_seconds=seconds)
        except (RemotingError, ClientError, OSError, ValueError) as error:
            _log.debug("code %d to %s is lost: %s", command.code, address, error)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
