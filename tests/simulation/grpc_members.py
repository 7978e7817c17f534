"""Members of groups that receive by gRPC from each broker in turn, as clients of RocketMQ 5 do."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import h2.exceptions

from kerolox.errors import KeroloxError
from kerolox.message import MessageExt, PropertyKey
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.pop import PopReceipt
from tests.simulation.scenario import GRPC_PORT, POP_SECONDS
from tests.simulation.workload import PopRun
from tests.support.clients.grpc_peer import GrpcPeer

if TYPE_CHECKING:
    from tests.simulation.cluster import Node

CALL_SECONDS_MAX = 4.0
"""A call is given up after it, whatever its deadline says."""

DEADLINE = {"grpc-timeout": "3S"}
WAIT_SECONDS = 1
BATCH = 16
"""Messages of a receive: its member waits for its slowest message before the next one."""
AVOIDED_SECONDS = 3.0
"""A broker that refuses, as slaves do, is left out so long: clients ask anew where topics are."""


class CallFailedError(KeroloxError):
    """A call had no answer, or one that is no success."""


class GrpcCalls:
    """The calls of one client at all brokers."""

    def __init__(self, name: str) -> None:
        """No connection is open. ``name``: the client's id."""
        self._name = name
        self._peers: dict[str, GrpcPeer] = {}
        """By the name of the broker's node."""
        self._connecting: dict[str, asyncio.Lock] = {}
        self._avoided: dict[str, float] = {}
        """By the name of the node, until when."""

    def usable(self, nodes: list[Node]) -> list[Node]:
        """Those that did not refuse lately; all, where each did."""
        now = asyncio.get_running_loop().time()
        return [node for node in nodes if self._avoided.get(node.name, 0.0) <= now] or nodes

    def refused(self, node: Node, status: Any) -> CallFailedError:
        """A broker has refused: it is left out for a while. The error to raise."""
        self._avoided[node.name] = asyncio.get_running_loop().time() + AVOIDED_SECONDS
        return CallFailedError(f"{node.name}: {status.message}")

    async def call(
        self, node: Node, name: str, request: Any, seconds: float = CALL_SECONDS_MAX
    ) -> list[Any]:
        """The answers of a call of one request; CallFailedError: it has none in time."""
        try:
            async with asyncio.timeout(seconds):
                peer = await self.peer(node)
                stream = peer.open(name, DEADLINE)
                stream.send(request, end=True)
                answers = await stream.messages()
        except (OSError, TimeoutError) as error:
            self._drop(node)
            raise CallFailedError(f"{node.name}: {type(error).__name__}") from None
        if stream.status != 0 or not answers:
            self._drop(node)
            raise CallFailedError(f"{node.name}: status {stream.status}")
        return answers

    async def peer(self, node: Node) -> GrpcPeer:
        """The connection to a broker."""
        async with self._connecting.setdefault(node.name, asyncio.Lock()):
            peer = self._peers.get(node.name)
            if peer is None or peer.gone.done() or peer.has_goaway:
                loop = asyncio.get_running_loop()
                made = partial(_Peer, self._name)
                _, peer = await loop.create_connection(made, node.host, GRPC_PORT)
                self._peers[node.name] = peer
            return peer

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    def _drop(self, node: Node) -> None:
        peer = self._peers.pop(node.name, None)
        if peer is not None:
            peer.close()


class GrpcMember:
    """What a member has of a consumer, by calls."""

    def __init__(self, run: GrpcRun) -> None:
        """No connection is open."""
        self._run = run
        self._calls = GrpcCalls(run.node.name)
        self._asked: dict[tuple[str, str], float] = {}
        """By the name of the node and the topic, when last."""
        self._attempt = 0
        self._life = f"{run.node.name}-{asyncio.get_running_loop().time()}"
        """Attempts of a life before are others."""
        self._nodes: dict[int, Node] = {}

    async def receive(self) -> list[MessageExt]:
        """Messages of the next broker and topic; KeroloxError: it has none for us."""
        now = asyncio.get_running_loop().time()
        nodes = self._calls.usable(self._run.broker_nodes)
        places = [(node, topic) for topic in self._run.plan.topics for node in nodes]
        node, topic = min(places, key=lambda at: self._asked.get((at[0].name, at[1]), 0.0))
        self._asked[node.name, topic] = now
        request = pb.ReceiveMessageRequest(batch_size=BATCH)
        request.group.name = self._run.plan.name
        request.message_queue.topic.name = topic
        request.filter_expression.expression = self._run.plan.tags
        request.invisible_duration.seconds = int(POP_SECONDS)
        request.long_polling_timeout.seconds = WAIT_SECONDS
        request.attempt_id = f"{self._life}-{self._attempt}"
        answers = await self._calls.call(node, "ReceiveMessage", request)
        self._attempt += 1
        found = []
        for answer in answers:
            if answer.WhichOneof("content") == "status":
                if answer.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                    raise self._calls.refused(node, answer.status)
            elif answer.WhichOneof("content") == "message":
                found.append(_message(answer.message))
                self._nodes[id(found[-1])] = node
        return found

    async def ack(self, message: MessageExt) -> None:
        """The message is done."""
        request = pb.AckMessageRequest()
        self._name(request, message)
        entry = request.entries.add()
        entry.message_id = message.properties[PropertyKey.UNIQUE_KEY]
        entry.receipt_handle = message.properties[PropertyKey.POP_RECEIPT]
        await self._ask(message, "AckMessage", request)

    async def dead_letter(self, message: MessageExt) -> None:
        """The message goes to the dead letters of the group, and is done."""
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            message_id=message.properties[PropertyKey.UNIQUE_KEY],
            receipt_handle=message.properties[PropertyKey.POP_RECEIPT],
        )
        self._name(request, message)
        await self._ask(message, "ForwardMessageToDeadLetterQueue", request)

    async def extend(self, message: MessageExt, seconds: float) -> None:
        """More time for it; also none, for one that is to come again."""
        request = pb.ChangeInvisibleDurationRequest(
            message_id=message.properties[PropertyKey.UNIQUE_KEY]
        )
        self._name(request, message)
        request.receipt_handle = message.properties[PropertyKey.POP_RECEIPT]
        request.invisible_duration.nanos = round(seconds % 1 * 1e9)
        request.invisible_duration.seconds = int(seconds)
        answer = await self._ask(message, "ChangeInvisibleDuration", request)
        message.properties[PropertyKey.POP_RECEIPT] = answer.receipt_handle

    async def nack(self, message: MessageExt, *, after: float) -> None:
        """The message is to come again."""
        await self.extend(message, after)

    async def close(self) -> None:
        """Close its connections."""
        self._calls.close()

    def _name(self, request: Any, message: MessageExt) -> None:
        request.group.name, request.topic.name = self._run.plan.name, message.topic

    async def _ask(self, message: MessageExt, name: str, request: Any) -> Any:
        node = self._nodes[id(message)]
        [answer] = await self._calls.call(node, name, request)
        if answer.status.code != pb.OK:
            raise CallFailedError(f"{node.name}: {answer.status.message}")
        return answer


class _Peer(GrpcPeer):
    """The package ``h2`` takes nothing behind a GOAWAY, but calls that are under way go on."""

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            super().data_received(data)
        except h2.exceptions.ProtocolError:
            self.close()


def _message(found: Any) -> MessageExt:
    system = found.system_properties
    receipt = PopReceipt.parse(system.receipt_handle)
    return MessageExt(
        topic=found.topic.name,
        body=found.body,
        properties={
            PropertyKey.KEYS: " ".join(system.keys),
            PropertyKey.POP_RECEIPT: system.receipt_handle,
            PropertyKey.UNIQUE_KEY: system.message_id,
        },
        broker_name=receipt.broker_name,
        queue_id=system.queue_id,
        commit_log_offset=receipt.commit_log_offset,
        queue_offset=system.queue_offset,
        reconsume_times=system.delivery_attempt - 1,
    )


class GrpcRun(PopRun):
    """One member of a group that receives by gRPC."""

    @property
    def broker_nodes(self) -> list[Node]:
        """All endpoints: those of slaves, too."""
        return [node for node in self._cluster.nodes.values() if node.is_broker]

    async def run(self) -> None:
        """As the process: receive until cancelled."""
        self._is_stopping = False
        self._simple = GrpcMember(self)
        await self._receive(self._simple)
