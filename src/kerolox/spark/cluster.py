"""What the planning side asks of a cluster: routes from a name server, bounds from the brokers.

Only masters (broker id 0) and queues that may be read count. All questions to one broker go out
together on one connection, so a plan costs two round trips per broker however many queues it has.
Connections are made when they are needed and stay open between micro-batches; nothing of this is
pickled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from kerolox.errors import (
    BrokerError,
    ConfigError,
    RemoteProtocolError,
    RemotingError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.codes import Perm, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.blocking import BlockingConnection, parse_address
from kerolox.spark.offsets import Bounds

__all__ = ["Cluster", "Routes"]

MASTER_ID = 0
QUEUES_MAX = 100_000
"""Most queues of one query."""

REQUEST_TIMEOUT_SECONDS = 10.0
RETRY_PAUSE_SECONDS = 0.2

_Answer = TypeVar("_Answer")


class Routes:
    """Where the readable queues of some topics are."""

    def __init__(self, queues: Iterable[MessageQueue], addresses: Mapping[str, str]) -> None:
        self.queues = tuple(sorted(queues))
        self.addresses = dict(addresses)
        """Master address by broker name."""


class Cluster:
    """Routes and queue bounds, asked of the name servers and masters.

    Args:
        name_servers: asked in this order; the one that answered last is asked first.
        retry_seconds: how long an unreachable server is tried again before its error is raised.
    """

    def __init__(self, name_servers: Iterable[str], *, retry_seconds: float = 3.0) -> None:
        self._name_servers = list(name_servers)
        for address in self._name_servers:
            parse_address(address)
        self.retry_seconds = retry_seconds
        self._connections: dict[str, BlockingConnection] = {}

    def routes(self, topics: Iterable[str]) -> Routes:
        """The readable queues of ``topics`` and the masters that hold them.

        Raises:
            TopicRouteNotFoundError: no name server knows one of the topics, or no master holds it.
            ConnectError: no name server answers.
        """
        queues: list[MessageQueue] = []
        addresses: dict[str, str] = {}
        for topic in topics:
            found = self._topic_queues(topic, self._route(topic), addresses)
            if not found:
                raise TopicRouteNotFoundError(
                    f"topic {topic} has no queue that can be read on a master now; "
                    "is its broker running, and may the topic be read (perm 4)?"
                )
            queues += found
        if len(queues) > QUEUES_MAX:
            raise ConfigError(f"the topics have {len(queues)} queues, over {QUEUES_MAX}")
        return Routes(queues, addresses)

    def bounds(self, routes: Routes) -> dict[MessageQueue, Bounds]:
        """The offsets that each queue of ``routes`` holds now.

        Raises:
            RemotingError: a broker does not answer.
            BrokerError: it answers with an error.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in routes.queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        bounds: dict[MessageQueue, Bounds] = {}
        for broker_name, queues in by_broker.items():
            address = routes.addresses[broker_name]
            codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            commands = [
                RemotingCommand.request(code, {"topic": queue.topic, "queueId": queue.queue_id})
                for queue in queues
                for code in codes
            ]
            answers = self._retried(partial(self._ask_all, address, commands))
            offsets = [_offset(answer, address) for answer in answers]
            for index, queue in enumerate(queues):
                bounds[queue] = Bounds(offsets[2 * index], offsets[2 * index + 1])
        return bounds

    def close(self) -> None:
        """Close the connections. Idempotent; the cluster can be used again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _route(self, topic: str) -> dict[str, Any]:
        answer = self._retried(lambda: self._ask_name_server(topic))
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError.from_response(answer.code, answer.remark, self._name_servers[0])
        try:
            route = fastjson.loads(answer.body)
        except fastjson.FastjsonError as error:
            raise RemoteProtocolError(f"route of topic {topic} is not readable: {error}") from error
        if not isinstance(route, dict):
            raise RemoteProtocolError(f"route of topic {topic} is no object")
        return route

    def _ask_name_server(self, topic: str) -> RemotingCommand:
        fields = {"topic": topic, "acceptStandardJsonOnly": True}
        unknown = 0
        failure: RemotingError | None = None
        for address in list(self._name_servers):
            command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            try:
                answer = self._ask_all(address, [command])[0]
            except RemotingError as error:
                failure = error
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                unknown += 1
                continue
            self._name_servers.remove(address)
            self._name_servers.insert(0, address)
            return answer
        if unknown:
            raise TopicRouteNotFoundError(
                f"name server {';'.join(self._name_servers)} knows no topic {topic}; "
                "create it or correct option subscribe"
            )
        assert failure is not None
        raise failure

    def _topic_queues(
        self, topic: str, route: dict[str, Any], addresses: dict[str, str]
    ) -> list[MessageQueue]:
        try:
            masters = {
                data["brokerName"]: address
                for data in route.get("brokerDatas") or ()
                for broker_id, address in data["brokerAddrs"].items()
                if int(broker_id) == MASTER_ID
            }
            queues = [
                MessageQueue(topic, data["brokerName"], queue_id)
                for data in route.get("queueDatas") or ()
                if data["brokerName"] in masters and data["perm"] & Perm.READ
                for queue_id in range(data["readQueueNums"])
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteProtocolError(
                f"route of topic {topic} has another shape: {error!r}"
            ) from error
        addresses.update(masters)
        return queues

    def _ask_all(self, address: str, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = BlockingConnection(address)
            self._connections[address] = connection
        # More would be in flight than a broker's queues take; so in groups.
        answers: list[RemotingCommand] = []
        for first in range(0, len(commands), 256):
            group = commands[first : first + 256]
            opaques = [connection.send(command, REQUEST_TIMEOUT_SECONDS) for command in group]
            arrived: dict[int, RemotingCommand] = {}
            while not arrived.keys() >= set(opaques):
                answer = connection.receive(REQUEST_TIMEOUT_SECONDS)
                arrived[answer.opaque] = answer
            answers += [arrived[opaque] for opaque in opaques]
        return answers

    def _retried(self, ask: Callable[[], _Answer]) -> _Answer:
        deadline = time.monotonic() + self.retry_seconds
        while True:
            try:
                return ask()
            except RemoteProtocolError:
                raise
            except RemotingError:
                # An idle connection that the server closed shows as a loss: ask once more at least.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_PAUSE_SECONDS)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.close()


def _offset(answer: RemotingCommand, address: str) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError.from_response(answer.code, answer.remark, address)
    try:
        return int(answer.ext_fields["offset"])
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"{address} answered without an offset: {error!r}") from error
