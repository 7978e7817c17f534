"""What a name server answers, by request code (``DefaultRequestProcessor``).

A request with a malformed header or body is answered with code 1 and a remark that names the fault.
A code that a name server does not know gets code 3, as from a broker. RocketMQ's name server says
nothing there and lets the client run into its time limit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

import msgspec

from kerolox.clock import now_ms
from kerolox.dynamic_config import DynamicConfig
from kerolox.errors import ConfigError
from kerolox.namesrv import topic_lists
from kerolox.namesrv.claims import Claim, ContradictionError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.gate import Gate
from kerolox.namesrv.key_values import KeyValues
from kerolox.namesrv.memory_limiter import TablesFullError
from kerolox.namesrv.route_table import BrokerData, QueueData, RouteTable
from kerolox.observable import Observable
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import BodyError, DataVersion, decode_body, encode_body
from kerolox.protocol.codes import (
    FRAME_BYTES_MAX,
    KEROLOX_VERSION,
    SEE_FAQ,
    RequestCode,
    ResponseCode,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.roles import NEWEST_EPOCH
from kerolox.protocol.headers import EmptyHeader
from kerolox.protocol.namesrv import (
    CHALLENGED_BY,
    CONFLICTS_WITH,
    ORDER_TOPIC_CONFIG,
    BrokerAddressHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicHeader,
    HeartbeatHeader,
    KeyHeader,
    KeyValueHeader,
    NamespaceHeader,
    RegisterHeader,
    RouteHeader,
)
from kerolox.protocol.registration import RegistrationReader
from kerolox.release import __version__
from kerolox.remoting.audit import Audit
from kerolox.remoting.limits.requests import RequestLimits
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.server import ServerConnection
from kerolox.remoting.time_slices import TimeSlices
from kerolox.remoting.unserved import UnservedCodes

VERSION_OF_REGISTER_BODY = 37
"""V3_0_11: older brokers send only the topics, without filter servers."""

VERSION_OF_STANDARD_JSON = 401
"""V4_9_4: from here on clients get routes as standard JSON."""

DATA_VERSION_BYTES_MAX = 4 * 1024
"""Longest body of QUERY_DATA_VERSION."""

CRC_STEP_BYTES = 256 * 1024
SMALL = 64
"""An answer of so many brokers, or queues of a topic, is made at once."""


_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

router: Router[NameServerHandlers] = Router()


class NameServerHandlers:
    """Answers requests from a route table and key-values."""

    def __init__(
        self,
        config: NamesrvConfig,
        routes: RouteTable,
        key_values: KeyValues,
        clock_ms: Callable[[], int],
    ) -> None:
        self._settings = Observable(config)
        self.limits = RequestLimits()
        self.limits.use(config)
        self._settings.subscribe(lambda _, new: self.limits.use(new))
        self.dynamic_config = DynamicConfig(self._settings, now_ms)
        self._routes = routes
        self._key_values = key_values
        self._clock_ms = clock_ms
        self.unserved = UnservedCodes("name server")
        self.audit = Audit("name server")
        self.gate = Gate(config, self.audit)
        # Of each kind one large answer is made at a time: it may have megabytes, and thousands may
        # ask for it.
        self._list_lock = asyncio.Lock()
        self._route_lock = asyncio.Lock()
        self._order_lock = asyncio.Lock()
        self._order_body = (-1, b"")
        """ORDER_TOPIC_CONFIG as each registration is answered with, and its version."""
        self._registering: dict[int, asyncio.Lock] = {}
        """Registrations of one connection come one after the other, in its order."""

    @property
    def config(self) -> NamesrvConfig:
        """The settings in force."""
        return self._settings.current

    async def handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        """Answer one request."""
        route = router.routes.get(command.code)
        changes = route is not None and route.changes
        denied, account = self.gate.judged(command, connection, changes=changes)
        if denied is not None:
            return denied
        try:
            return await router.dispatch(self, command, connection, account)
        except ConfigError as error:
            return command.response(ResponseCode.SYSTEM_ERROR, str(error))
        except OSError as error:
            _log.error("code %d: %s", command.code, error)
            return command.response(ResponseCode.SYSTEM_ERROR, f"can't be written: {error}")

    def connection_closed(self, connection_id: int) -> None:
        """The brokers that registered on that connection are gone."""
        self._registering.pop(connection_id, None)
        self._routes.connection_closed(connection_id)

    async def sweep(self) -> None:
        """Take what gone brokers left out of memory, in time slices."""
        await TimeSlices().run(self._routes.sweep(), _pass)

    # -- key-values ---------------------------------------------------------------------------
    @router.on(RequestCode.PUT_KV_CONFIG, KeyValueHeader.decode, changes=True)
    async def _put_key_value(self, header: KeyValueHeader, request: Request) -> Reply:
        old = self._key_values.get(header.namespace, header.key)
        name = f"{header.namespace}:{header.key}"
        on_change = partial(self.audit.changed, request, "keyValue", name, old, header.value)
        await self._key_values.put(header.namespace, header.key, header.value, on_change)
        return Reply()

    @router.on(RequestCode.GET_KV_CONFIG, KeyHeader.decode)
    async def _get_key_value(self, header: KeyHeader, request: Request) -> Reply:
        value = self._key_values.get(header.namespace, header.key)
        if value is None:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Reply(fields={"value": value})

    @router.on(RequestCode.DELETE_KV_CONFIG, KeyHeader.decode, changes=True)
    async def _delete_key_value(self, header: KeyHeader, request: Request) -> Reply:
        old = self._key_values.get(header.namespace, header.key)
        name = f"{header.namespace}:{header.key}"
        on_change = partial(self.audit.changed, request, "keyValue", name, old)
        await self._key_values.delete(header.namespace, header.key, on_change)
        return Reply()

    @router.on(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader.decode)
    async def _get_namespace(self, header: NamespaceHeader, request: Request) -> Reply:
        async with self._list_lock:
            table = await self._namespace_body(header.namespace)
        if not table:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return Reply(body=table)

    # -- brokers ------------------------------------------------------------------------------
    @router.on(RequestCode.REGISTER_BROKER, RegisterHeader.decode, changes=True)
    async def _register_broker(self, header: RegisterHeader, request: Request) -> Reply:
        claim = Claim(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            connection=request.connection.connection_id,
            host=request.connection.peer[0],
            epoch=header.role_epoch,
            successor=header.successor,
            timeout_ms=header.heartbeat_timeout_millis,
        )
        lock = self._registering.setdefault(request.connection.connection_id, asyncio.Lock())
        try:
            async with lock:
                return await self._register(header, claim, request)
        except ContradictionError as error:
            _log.warning("registration refused: %s", error)
            fields = {CONFLICTS_WITH: error.holder, NEWEST_EPOCH: error.newest_epoch or None}
            return Reply(ResponseCode.SYSTEM_ERROR, str(error), fields)
        except TablesFullError as error:
            _log.warning("registration of %s not taken as a whole: %s", claim.text, error)
            return Reply(ResponseCode.SYSTEM_ERROR, str(error))

    async def _register(self, header: RegisterHeader, claim: Claim, request: Request) -> Reply:
        if header.body_crc32 and await self._crc(request.body) != header.body_crc32:
            _log.warning("registration of %s: crc32 does not match", claim.text)
            return Reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        reader = RegistrationReader(
            request.body,
            compressed=header.compressed,
            is_wrapped=request.command.version >= VERSION_OF_REGISTER_BODY,
        )
        # All of it is examined before any of it counts.
        await TimeSlices().run(reader.pieces(), _pass)
        if request.connection.closed:
            return Reply(ResponseCode.SYSTEM_ERROR, "the connection is closed")
        routes = self._routes
        before = routes.place(claim.broker_name, claim.broker_id)
        live = routes.start_registration(claim, self._clock_ms())
        after = routes.place(claim.broker_name, claim.broker_id)
        name = f"{claim.broker_name}:{claim.broker_id}"
        self.audit.changed(request, "broker", name, before, after)
        if routes.wants_topics(live, reader.data_version):
            put = (routes.put_topics(live, piece) for piece in reader.pieces())
            await TimeSlices().run(itertools.takewhile(bool, put), _pass)
        result = routes.finish_registration(live, reader.data_version, reader.filter_servers)
        if result.challenger is not None:
            _log.warning("%s is claimed by %s, which is refused", claim.text, result.challenger)
        return Reply(
            fields={
                "haServerAddr": result.ha_address,
                "masterAddr": result.master_address,
                CHALLENGED_BY: result.challenger,
            },
            body=await self._order_table(),
        )

    async def _crc(self, body: bytes) -> int:
        crc = 0

        def add(start: int) -> None:
            nonlocal crc
            crc = zlib.crc32(memoryview(body)[start : start + CRC_STEP_BYTES], crc)

        await TimeSlices().run(range(0, len(body), CRC_STEP_BYTES), add)
        return crc & 0x7FFFFFFF

    @router.on(RequestCode.UNREGISTER_BROKER, BrokerAddressHeader.decode, changes=True)
    async def _unregister_broker(self, header: BrokerAddressHeader, request: Request) -> Reply:
        before = self._routes.place(header.broker_name, header.broker_id)
        try:
            self._routes.unregister(
                address=header.broker_addr,
                broker_name=header.broker_name,
                broker_id=header.broker_id,
                connection=request.connection.connection_id,
                now_ms=self._clock_ms(),
            )
        except ContradictionError as error:
            _log.warning("%s may not unregister: %s", request.connection.remote_address, error)
            return Reply(ResponseCode.SYSTEM_ERROR, str(error))
        if before is not None:
            after = self._routes.place(header.broker_name, header.broker_id)
            name = f"{header.broker_name}:{header.broker_id}"
            self.audit.changed(request, "broker", name, before, after)
        return Reply()

    @router.on(RequestCode.BROKER_HEARTBEAT, HeartbeatHeader.decode)
    async def _heartbeat(self, header: HeartbeatHeader, request: Request) -> Reply:
        connection_id = request.connection.connection_id
        self._routes.touch(header.broker_addr, connection_id, self._clock_ms())
        return Reply()

    @router.on(RequestCode.QUERY_DATA_VERSION, BrokerAddressHeader.decode)
    async def _query_data_version(self, header: BrokerAddressHeader, request: Request) -> Reply:
        if len(request.body) > DATA_VERSION_BYTES_MAX:
            raise BodyError(f"a data version of {len(request.body)} bytes is none")
        asked = decode_body(request.body, DataVersion, lenient_bytes_max=DATA_VERSION_BYTES_MAX)
        changed = self._routes.is_changed(header.broker_addr, asked)
        if not changed:
            # On another connection than it registered on it has to register, to say that it moved.
            address, connection_id = header.broker_addr, request.connection.connection_id
            changed = not self._routes.touch(address, connection_id, self._clock_ms())
        known = self._routes.data_version(header.broker_addr)
        return Reply(fields={"changed": changed}, body=b"" if known is None else encode_body(known))

    @router.on(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader.decode, changes=True)
    async def _wipe_write_permission(self, header: BrokerNameHeader, request: Request) -> Reply:
        count = await self._counted(self._routes.wipe_write_permission(header.broker_name))
        if count:
            new = {"topics without write permission": count}
            self.audit.changed(request, "broker", header.broker_name, None, new)
        return Reply(fields={"wipeTopicCount": count})

    @router.on(RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader.decode, changes=True)
    async def _add_write_permission(self, header: BrokerNameHeader, request: Request) -> Reply:
        count = await self._counted(self._routes.add_write_permission(header.broker_name))
        if count:
            new = {"topics with all permissions": count}
            self.audit.changed(request, "broker", header.broker_name, None, new)
        return Reply(fields={"addTopicCount": count})

    @router.on(RequestCode.GET_BROKER_CLUSTER_INFO, EmptyHeader.decode)
    async def _cluster_info(self, header: EmptyHeader, request: Request) -> Reply:
        routes = self._routes
        brokers = [{name: _broker(broker)} for name, broker in routes.brokers.items()]
        clusters = [{name: sorted(names)} for name, names in routes.clusters.items()]
        table = await self._joined(brokers, fastjson.dumps)
        cluster_table = await self._joined(clusters, fastjson.dumps)
        body = b'{"brokerAddrTable":{%s},"clusterAddrTable":{%s}}' % (table, cluster_table)
        return Reply(body=body)

    async def _counted(self, steps: Iterable[int]) -> int:
        total = 0

        def add(count: int) -> None:
            nonlocal total
            total += count

        await TimeSlices().run(steps, add)
        return total

    # -- topics -------------------------------------------------------------------------------
    @router.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader.decode)
    async def _route_of_topic(self, header: RouteHeader, request: Request) -> Reply:
        route = self._routes.route(header.topic)
        if route is None:
            return Reply(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{SEE_FAQ}",
            )
        standard = (
            request.command.version >= VERSION_OF_STANDARD_JSON or header.accept_standard_json_only
        ) and not self.config.cluster_test
        order: str | None = None
        if self.config.order_message_enable or self.config.cluster_test:
            order = self._key_values.get(ORDER_TOPIC_CONFIG, header.topic)
        dumps = fastjson.dumps_strict if standard else fastjson.dumps
        brokers = await self._joined([[_broker(each)] for each in route.brokers], dumps)
        queues = [[_queues(each, standard=standard)] for each in route.queues]
        return Reply(
            body=b'{"brokerDatas":[%s],"filterServerTable":%s,%s"queueDatas":[%s]}'
            % (
                brokers,
                dumps(route.filter_servers),
                b"" if order is None else b'"orderTopicConf":%s,' % dumps(order),
                await self._joined(queues, dumps),
            )
        )

    async def _joined(self, values: Collection[object], dumps: Callable[[object], bytes]) -> bytes:
        """What is inside the brackets of these maps or lists, as the inside of one."""
        if len(values) <= SMALL:
            return b",".join([dumps(value)[1:-1] for value in values])
        parts: list[bytes] = []
        async with self._route_lock:
            await TimeSlices().run(values, lambda value: parts.append(dumps(value)[1:-1]))
            return b",".join(parts)

    @router.on(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, EmptyHeader.decode)
    async def _all_topics(self, header: EmptyHeader, request: Request) -> Reply:
        return await self._topic_list(self._routes.topic_names())

    @router.on(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader.decode, changes=True)
    async def _delete_topic(self, header: DeleteTopicHeader, request: Request) -> Reply:
        brokers = self._routes.delete_topic(header.topic, header.cluster_name)
        if brokers:
            self.audit.changed(request, "topic", header.topic, {"brokers": brokers})
        return Reply()

    @router.on(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader.decode)
    async def _topics_of_cluster(self, header: ClusterHeader, request: Request) -> Reply:
        return await self._topic_list(topic_lists.topics_of_cluster(self._routes, header.cluster))

    @router.on(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, EmptyHeader.decode)
    async def _system_topics(self, header: EmptyHeader, request: Request) -> Reply:
        topics, address = topic_lists.system_topics(self._routes)
        return await self._topic_list(iter([topics]), address)

    @router.on(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, EmptyHeader.decode)
    @router.on(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, EmptyHeader.decode)
    @router.on(RequestCode.GET_UNIT_TOPIC_LIST, EmptyHeader.decode)
    async def _unit_topics(self, header: EmptyHeader, request: Request) -> Reply:
        return await self._topic_list(topic_lists.unit_topics(self._routes, request.command.code))

    # -- settings -----------------------------------------------------------------------------
    @router.on(RequestCode.UPDATE_NAMESRV_CONFIG, EmptyHeader.decode, changes=True)
    async def _update_config(self, header: EmptyHeader, request: Request) -> Reply:
        from kerolox.remoting.settings_requests import change_settings

        return await change_settings(self.dynamic_config, self.audit, request)

    @router.on(RequestCode.GET_NAMESRV_CONFIG, EmptyHeader.decode)
    async def _get_config(self, header: EmptyHeader, request: Request) -> Reply:
        from kerolox.remoting.settings_requests import show_settings

        return show_settings(self.dynamic_config)

    @router.on(RequestCode.GET_BROKER_RUNTIME_INFO, EmptyHeader.decode)
    async def _counts(self, header: EmptyHeader, request: Request) -> Reply:
        """What ``mqadmin brokerStatus -b`` shows of a name server, which no other one answers."""
        counts: dict[str, object] = {KEROLOX_VERSION: __version__}
        counts |= {"brokers": len(self._routes.live), "topics": len(self._routes.topics)}
        counts |= self.limits.counts.shown() | self.audit.shown()
        return Reply(body=encode_body({"table": {k: str(count) for k, count in counts.items()}}))

    async def _namespace_body(self, namespace: str) -> bytes:
        """All of a namespace, as the body of an answer; empty when there is no such namespace."""
        if self._key_values.namespace(namespace) is None:
            return b""
        parts: list[bytes] = []
        await TimeSlices().run(self._key_values.namespace_pieces(namespace), parts.append)
        return b'{"table":{%s}}' % b",".join(parts)

    async def _order_table(self) -> bytes:
        """What each registration is answered with; made once after each change."""
        async with self._order_lock:
            version = self._key_values.version
            if self._order_body[0] != version:
                self._order_body = (version, await self._namespace_body(ORDER_TOPIC_CONFIG))
            return self._order_body[1]

    async def _topic_list(self, names: Iterator[list[str]], address: str | None = None) -> Reply:
        parts: list[bytes] = []
        size = 0

        def add(piece: list[str]) -> None:
            nonlocal size
            if piece:
                parts.append(_encode(piece)[1:-1])
                size += len(parts[-1])
            if size > FRAME_BYTES_MAX:
                raise BodyError("the list of topics is longer than a frame may be")

        async with self._list_lock:
            await TimeSlices().run(names, add)
            head = b"" if address is None else b'"brokerAddr":%s,' % _encode(address)
            return Reply(body=b'{%s"topicList":[%s]}' % (head, b",".join(parts)))


def _broker(broker: BrokerData) -> dict[str, object]:
    return {
        "brokerAddrs": broker.addresses,
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        # Clients in Rust read no route without it; others of 4.x pass over it.
        "enableActingMaster": False,
    }


def _queues(queues: QueueData, *, standard: bool) -> dict[str, object]:
    members: dict[str, object] = {
        "brokerName": queues.broker_name,
        "perm": queues.perm,
        "readQueueNums": queues.read_queue_nums,
    }
    if not standard:
        # Its name up to 4.9.3; askers that old know only this one, and ignore the other.
        members["topicSynFlag"] = queues.topic_sys_flag
    members["topicSysFlag"] = queues.topic_sys_flag
    members["writeQueueNums"] = queues.write_queue_nums
    return members


def _pass(_step: object) -> None:
    pass
