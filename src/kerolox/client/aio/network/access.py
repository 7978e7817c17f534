"""Access to a cluster: requests that must succeed, and the one way to ask its name servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.core.name_servers import (
    NameServers,
    route_of,
    route_request,
    time_shares,
)
from kerolox.errors import (
    ClientError,
    ConnectError,
    RemotingError,
    RequestCodeNotSupportedError,
    TopicRouteNotFoundError,
)
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import AUTO_CREATE_TOPIC
from kerolox.protocol.routing.name_servers import KNOWN_TO_ALL, NOT_A_NAME_SERVER

if TYPE_CHECKING:
    from kerolox.client.core.routes import TopicRoute
    from kerolox.protocol.bodies import TopicConfig
    from kerolox.remoting.client import RemotingClient

TIMEOUT_SECONDS = 5.0
"""Default time limit of one request."""

_Result = TypeVar("_Result")


class Access:
    """A way to a cluster: connections and the addresses of its name servers."""

    def __init__(
        self,
        remoting: RemotingClient,
        name_servers: tuple[str, ...],
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        first: int = 0,
    ) -> None:
        """Nothing is asked yet. Who made ``remoting`` closes it. ``timeout_seconds``: of one
        request. ``first``: position of the name server that is asked first, modulo their number.
        """
        self.remoting = remoting
        self.timeout_seconds = timeout_seconds
        self._name_servers = NameServers(name_servers, first=first)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """``host:port`` of each name server."""
        return self._name_servers.addresses

    async def ask(
        self,
        address: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        *,
        body: bytes = b"",
        timeout_seconds: float | None = None,
        ahead: bool = False,
    ) -> RemotingCommand:
        """Send a request whose answer must be code 0; one that goes ``ahead`` waits for no
        capacity. BrokerError: it is another one. RemotingError: no connection, or no answer in
        time.
        """
        response = await self.remoting.invoke(
            address,
            RemotingCommand.request(code, fields, body=body),
            timeout_seconds=timeout_seconds or self.timeout_seconds,
            ahead=ahead,
        )
        response.raise_for_code(address)
        return response

    async def ask_name_server(
        self, code: int, fields: Mapping[str, object] | None = None
    ) -> RemotingCommand:
        """Send a request to a name server, and to the next one when it does not answer.
        BrokerError: the first that answered refused. ConnectError: none answered; the text has each
        one's reason. ClientError: no name server is given.
        """
        try:
            return await self._in_order(
                lambda address, seconds: self.ask(address, code, fields, timeout_seconds=seconds)
            )
        except RequestCodeNotSupportedError as error:
            if code not in KNOWN_TO_ALL:
                raise
            raise RequestCodeNotSupportedError(NOT_A_NAME_SERVER, address=error.address) from error

    async def fetch_route(self, topic: str) -> TopicRoute | None:
        """The route of a topic, as the first name server that answers has it (code 105); None: it
        knows no such topic. Errors: see :meth:`ask_name_server`.
        """
        return route_of(
            *await self._in_order(lambda address, seconds: self._ask_route(address, topic, seconds))
        )

    async def fetch_route_from(self, address: str, topic: str) -> TopicRoute | None:
        """The same, of this name server alone. Errors: see :meth:`ask`."""
        return route_of(*await self._ask_route(address, topic, self.timeout_seconds))

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic that must be there, as it is now. TopicRouteNotFoundError: no name
        server knows one; others as of :meth:`ask_name_server`.
        """
        route = await self.fetch_route(topic)
        if route is None:
            raise no_route(topic, self.name_servers)
        return route

    async def read_address_of(self, topic: str, broker_name: str) -> str:
        """The address of a broker that has a topic: its master's, else any.
        TopicRouteNotFoundError: no name server knows the topic. ClientError: its route does not
        have the broker.
        """
        broker = (await self.route(topic)).broker(broker_name)
        address = broker.any_address() if broker is not None else None
        if address is None:
            raise no_address(topic, broker_name)
        return address

    async def _ask_route(
        self, address: str, topic: str, seconds: float
    ) -> tuple[RemotingCommand, str]:
        request = route_request(topic)
        return await self.remoting.invoke(address, request, timeout_seconds=seconds), address

    async def put_topic(self, address: str, settings: TopicConfig, attributes: str = "") -> None:
        """Have a broker make a topic, or replace all settings of one (code 17), but none of its
        attributes: ``attributes`` has changes of them (``attribute_changes``), which one of 4.9
        passes over. Errors: see :meth:`ask`.
        """
        fields: dict[str, object] = {
            "topic": settings.topic_name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": settings.read_queue_nums,
            "writeQueueNums": settings.write_queue_nums,
            "perm": settings.perm,
            "topicFilterType": settings.topic_filter_type,
            "topicSysFlag": settings.topic_sys_flag,
            "order": settings.order,
        }
        if attributes:
            fields["attributes"] = attributes
        await self.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def _in_order(self, ask: Callable[[str, float], Awaitable[_Result]]) -> _Result:
        """What the first name server that answers says; ``ask`` gets its address and seconds."""
        if not self.name_servers:
            raise ClientError("no name server is given")
        reasons: list[str] = []
        addresses = self._name_servers.in_order()
        shares = time_shares(self.timeout_seconds, len(addresses))
        for address, seconds in zip(addresses, shares, strict=True):
            try:
                result = await ask(address, seconds)
            except RemotingError as error:
                reasons.append(str(error))
                continue
            if reasons:
                self._name_servers.prefer(address)
            return result
        raise ConnectError(f"no name server answers: {'; '.join(reasons)}")


def no_route(topic: str, name_servers: tuple[str, ...]) -> TopicRouteNotFoundError:
    """The error of a topic that no name server knows."""
    return TopicRouteNotFoundError(
        f"no route for topic {topic!r} at {', '.join(name_servers)}; create the topic"
        " (kerolox topic create), or check that its broker is registered there"
    )


def no_address(topic: str, broker_name: str) -> ClientError:
    """The error of a broker that a topic's route does not have."""
    return ClientError(f"broker {broker_name!r} of topic {topic!r} has no known address")
