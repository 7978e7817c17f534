"""A name server and broker of a few lines, to make them do what real ones seldom do."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.fastjson import dumps
from kerolox.remoting.server import RemotingServer

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.server import ServerConnection

__all__ = ["FakeBroker", "route_body"]

Answer = Callable[["RemotingCommand"], "Awaitable[RemotingCommand | None]"]


def route_body(addresses: dict[str, str], *, queues: int = 4, perm: int = 6) -> bytes:
    """A route over brokers by name, each with a master."""
    return dumps(
        {
            "brokerDatas": [
                {"brokerAddrs": {0: address}, "brokerName": name, "cluster": "c"}
                for name, address in addresses.items()
            ],
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": perm,
                    "readQueueNums": queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": queues,
                }
                for name in addresses
            ],
        }
    )


class FakeBroker:
    """Answers as told; ``seen`` has every request by code.

    ``answers`` maps a request code to a function of the request; without one, sends are stored at
    growing offsets, routes come from ``routes``, and all else is answered with code 0.
    """

    def __init__(self) -> None:
        self.server = RemotingServer(self._handle, host="127.0.0.1", port=0)
        self.seen: dict[int, list[RemotingCommand]] = defaultdict(list)
        self.answers: dict[int, Answer] = {}
        self.routes: dict[str, bytes] = {}
        self.members: list[str] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.connections: list[ServerConnection] = []
        self._offset = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def __aenter__(self) -> FakeBroker:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    async def _handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        await asyncio.sleep(0)
        self.seen[command.code].append(command)
        if connection not in self.connections:
            self.connections.append(connection)
        answer = self.answers.get(command.code)
        if answer is not None:
            return await answer(command)
        return self._default(command)

    def _default(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            body = self.routes.get(fields["topic"])
            if body is None:
                return command.response(ResponseCode.TOPIC_NOT_EXIST, "no route")
            return command.response(body=body)
        if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            return self.stored(command)
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return command.response(body=dumps({"consumerIdList": self.members}))
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            offset = self.committed.get((fields["topic"], int(fields["queueId"])))
            if offset is None:
                return command.response(ResponseCode.QUERY_NOT_FOUND)
            return command.response(ext_fields={"offset": offset})
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            key = fields["topic"], int(fields["queueId"])
            self.committed[key] = int(fields["commitOffset"])
        return command.response()

    def stored(self, command: RemotingCommand, code: int = 0) -> RemotingCommand:
        """The answer to a send that was stored."""
        self._offset += 1
        fields = {
            "msgId": f"7F0000010000000000000000{self._offset:08X}",
            "queueId": command.ext_fields["e"],
            "queueOffset": self._offset,
        }
        return command.response(code, ext_fields=fields)
