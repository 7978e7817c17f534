"""What a name server answers, by request code (``DefaultRequestProcessor``).

A request with a malformed header or body is answered with code 1 and a remark that names the
fault. A code that a name server does not know is answered with code 3, as a broker answers it;
RocketMQ's name server says nothing there and lets the client run into its time limit.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from kerolox.errors import BrokerError, ConfigError
from kerolox.live_settings import LiveSettings
from kerolox.properties import format_properties
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import (
    LENIENT_BODY_BYTES_MAX,
    BodyError,
    DataVersion,
    TopicConfigTable,
    decode_body,
    encode_body,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import HeaderFieldError
from kerolox.protocol.namesrv import (
    ORDER_TOPIC_CONFIG,
    BrokerAddressHeader,
    BrokerNameHeader,
    ClusterHeader,
    DataVersionHeader,
    DeleteTopicHeader,
    KeyHeader,
    KeyValueHeader,
    NamespaceHeader,
    RegisterBody,
    RegisterHeader,
    RouteHeader,
    decode_registration,
)

if TYPE_CHECKING:
    from kerolox.namesrv.config import NamesrvConfig
    from kerolox.namesrv.key_values import KeyValues
    from kerolox.namesrv.route_table import BrokerData, QueueData, RouteTable
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.server import ServerConnection

__all__ = ["NameServerHandlers"]

_Body = TypeVar("_Body")

VERSION_OF_REGISTER_BODY = 37
"""V3_0_11: older brokers send only the topics, without filter servers."""

VERSION_OF_STANDARD_JSON = 401
"""V4_9_4: from here on clients get routes as standard JSON."""

FAQ_HINT = "\nSee https://rocketmq.apache.org/docs/faq/ for further details."

_log = logging.getLogger(__name__)

_Handler = Callable[[Any, "RemotingCommand", "ServerConnection"], Awaitable["RemotingCommand"]]
_HANDLERS: dict[int, _Handler] = {}


def _on(*codes: RequestCode) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        for code in codes:
            assert code not in _HANDLERS
            _HANDLERS[code] = handler
        return handler

    return register


class NameServerHandlers:
    """Answers requests from a route table and key-values."""

    def __init__(
        self,
        config: NamesrvConfig,
        routes: RouteTable,
        key_values: KeyValues,
        clock_ms: Callable[[], int],
    ) -> None:
        self.config = config
        """The settings as they are now; UPDATE_NAMESRV_CONFIG changes them in place."""
        self.live_settings = LiveSettings(config, clock_ms)
        self._routes = routes
        self._key_values = key_values
        self._clock_ms = clock_ms

    async def handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand:
        """Answer one request."""
        handler = _HANDLERS.get(command.code)
        if handler is None:
            return command.response(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        try:
            return await handler(self, command, connection)
        except (HeaderFieldError, BodyError, ConfigError) as error:
            return command.response(ResponseCode.SYSTEM_ERROR, str(error))
        except BrokerError as error:
            return command.response(error.code, error.remark)
        except OSError as error:
            _log.error("code %d: %s", command.code, error)
            return command.response(ResponseCode.SYSTEM_ERROR, f"can't be written: {error}")

    # -- key-values ---------------------------------------------------------------------------
    @_on(RequestCode.PUT_KV_CONFIG)
    async def _put_key_value(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = KeyValueHeader.decode(command.ext_fields)
        await self._key_values.put(header.namespace, header.key, header.value)
        return command.response()

    @_on(RequestCode.GET_KV_CONFIG)
    async def _get_key_value(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = KeyHeader.decode(command.ext_fields)
        value = self._key_values.get(header.namespace, header.key)
        if value is None:
            return command.response(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return command.response(ext_fields={"value": value})

    @_on(RequestCode.DELETE_KV_CONFIG)
    async def _delete_key_value(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = KeyHeader.decode(command.ext_fields)
        await self._key_values.delete(header.namespace, header.key)
        return command.response()

    @_on(RequestCode.GET_KVLIST_BY_NAMESPACE)
    async def _get_namespace(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = NamespaceHeader.decode(command.ext_fields)
        table = self._namespace_body(header.namespace)
        if not table:
            return command.response(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return command.response(body=table)

    # -- brokers ------------------------------------------------------------------------------
    @_on(RequestCode.REGISTER_BROKER)
    async def _register_broker(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand:
        header = RegisterHeader.decode(command.ext_fields)
        crc = zlib.crc32(command.body) & 0x7FFFFFFF
        if header.body_crc32 and crc != header.body_crc32:
            _log.warning("registration of %s: crc32 does not match", header.broker_addr)
            return command.response(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        if command.version < VERSION_OF_REGISTER_BODY:
            table = _decoded(command.body, TopicConfigTable) if command.body else TopicConfigTable()
            filter_servers = None
        else:
            body = (
                decode_registration(command.body, compressed=header.compressed)
                if command.body
                else RegisterBody()
            )
            table, filter_servers = body.topic_config_serialize_wrapper, body.filter_server_list
        result = self._routes.register(
            cluster=header.cluster_name,
            address=header.broker_addr,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            ha_address=header.ha_server_addr,
            data_version=table.data_version,
            topics=table.topic_config_table.values(),
            filter_servers=filter_servers,
            connection=connection.connection_id,
            now_ms=self._clock_ms(),
        )
        return command.response(
            ext_fields={"haServerAddr": result.ha_address, "masterAddr": result.master_address},
            body=self._namespace_body(ORDER_TOPIC_CONFIG),
        )

    @_on(RequestCode.UNREGISTER_BROKER)
    async def _unregister_broker(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = BrokerAddressHeader.decode(command.ext_fields)
        self._routes.unregister(
            cluster=header.cluster_name,
            address=header.broker_addr,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
        )
        return command.response()

    @_on(RequestCode.QUERY_DATA_VERSION)
    async def _query_data_version(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = DataVersionHeader.decode(command.ext_fields)
        asked = _decoded(command.body, DataVersion)
        changed = self._routes.is_changed(header.broker_addr, asked)
        if not changed:
            self._routes.touch(header.broker_addr, self._clock_ms())
        known = self._routes.data_version(header.broker_addr)
        return command.response(
            ext_fields={"changed": changed}, body=b"" if known is None else encode_body(known)
        )

    @_on(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    async def _wipe_write_permission(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand:
        header = BrokerNameHeader.decode(command.ext_fields)
        count = self._routes.wipe_write_permission(header.broker_name)
        _log.info(
            "%s took the write permission off %d topics of %s",
            connection.remote_address,
            count,
            header.broker_name,
        )
        return command.response(ext_fields={"wipeTopicCount": count})

    @_on(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    async def _add_write_permission(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand:
        header = BrokerNameHeader.decode(command.ext_fields)
        count = self._routes.add_write_permission(header.broker_name)
        _log.info(
            "%s gave %d topics of %s the write permission",
            connection.remote_address,
            count,
            header.broker_name,
        )
        return command.response(ext_fields={"addTopicCount": count})

    @_on(RequestCode.GET_BROKER_CLUSTER_INFO)
    async def _cluster_info(self, command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
        routes = self._routes
        info = {
            "brokerAddrTable": {name: _broker(b) for name, b in routes.brokers.items()},
            "clusterAddrTable": {name: sorted(names) for name, names in routes.clusters.items()},
        }
        return command.response(body=fastjson.dumps(info))

    # -- topics -------------------------------------------------------------------------------
    @_on(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    async def _route_of_topic(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = RouteHeader.decode(command.ext_fields)
        route = self._routes.route(header.topic)
        if route is None:
            return command.response(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{FAQ_HINT}",
            )
        standard = (
            command.version >= VERSION_OF_STANDARD_JSON or header.accept_standard_json_only
        ) and not self.config.cluster_test
        order: str | None = None
        if self.config.order_message_enable or self.config.cluster_test:
            order = self._key_values.get(ORDER_TOPIC_CONFIG, header.topic)
        answer: dict[str, object] = {
            "brokerDatas": [_broker(broker) for broker in route.brokers],
            "filterServerTable": route.filter_servers,
        }
        if order is not None:
            answer["orderTopicConf"] = order
        answer["queueDatas"] = [_queues(queues, standard=standard) for queues in route.queues]
        dumps = fastjson.dumps_strict if standard else fastjson.dumps
        return command.response(body=dumps(answer))

    @_on(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    async def _all_topics(self, command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
        return _topic_list(command, self._routes.topics)

    @_on(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    async def _delete_topic(self, command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
        header = DeleteTopicHeader.decode(command.ext_fields)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return command.response()

    @_on(RequestCode.GET_TOPICS_BY_CLUSTER)
    async def _topics_of_cluster(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        header = ClusterHeader.decode(command.ext_fields)
        return _topic_list(command, self._routes.topics_of_cluster(header.cluster))

    @_on(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    async def _system_topics(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        topics, address = self._routes.system_topics()
        return _topic_list(command, topics, address)

    @_on(RequestCode.GET_UNIT_TOPIC_LIST)
    async def _unit_topics(self, command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
        return _topic_list(command, self._routes.unit_topics())

    @_on(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
    async def _unit_subscribed_topics(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        return _topic_list(command, self._routes.unit_subscribed_topics())

    @_on(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    async def _unit_subscribed_topics_of_no_unit(
        self, command: RemotingCommand, _: ServerConnection
    ) -> RemotingCommand:
        return _topic_list(command, self._routes.unit_subscribed_topics_of_no_unit())

    # -- settings -----------------------------------------------------------------------------
    @_on(RequestCode.UPDATE_NAMESRV_CONFIG)
    async def _update_config(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand:
        if not command.body:
            return command.response()
        asker = f"request of {connection.remote_address}"
        remark = await self.live_settings.change(command.body, asker)
        return command.response(remark=remark or None)

    @_on(RequestCode.GET_NAMESRV_CONFIG)
    async def _get_config(self, command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
        return command.response(body=format_properties(self.live_settings.shown()).encode())

    def _namespace_body(self, namespace: str) -> bytes:
        table = self._key_values.namespace(namespace)
        return b"" if table is None else fastjson.dumps({"table": table})


def _decoded(data: bytes, body_type: type[_Body]) -> _Body:
    return decode_body(data, body_type, lenient_bytes_max=LENIENT_BODY_BYTES_MAX)


def _broker(broker: BrokerData) -> dict[str, object]:
    return {
        "brokerAddrs": broker.addresses,
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
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


def _topic_list(
    command: RemotingCommand, topics: Iterable[str], address: str | None = None
) -> RemotingCommand:
    answer: dict[str, object] = {} if address is None else {"brokerAddr": address}
    answer["topicList"] = list(topics)
    return command.response(body=fastjson.dumps(answer))
