"""Producers that send by gRPC, and answer brokers that ask how a transaction ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from kerolox.broker.grpc import sending
from kerolox.client.core.sending.send import DetailedSendResult, SendResult, SendStatus
from kerolox.errors import KeroloxError
from kerolox.message import Message, MessageId, MessageQueue
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.recall_handles import RECALL_HANDLE_FIELD
from kerolox.tasks import end_tasks
from tests.simulation.grpc_members import CallFailedError, GrpcCalls
from tests.simulation.history import COMMIT, ROLLBACK, TRANSACTION, Sent
from tests.simulation.workload import RETRY_SECONDS, ProducerRun

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Node
    from tests.simulation.patches import Patches

ATTEMPTS = 3
HEARTBEAT_SECONDS = 3.0
SEND_SECONDS_MIN = 1.0
"""A call that is given up costs its connection, and a new one two ways of a slow link."""
_STORED = {
    pb.OK: SendStatus.SEND_OK,
    pb.MASTER_PERSISTENCE_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    pb.SLAVE_PERSISTENCE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    pb.HA_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
_RESOLUTIONS = {COMMIT: pb.COMMIT, ROLLBACK: pb.ROLLBACK}


def install(patches: Patches, cluster: Cluster) -> None:
    """Have the history of a cluster note where brokers store what comes by gRPC."""

    def entry(broker: Any, message: Any, answer: Any) -> Any:
        made = real(broker, message, answer)
        place = broker.config.broker_name, made.message_id, made.offset
        fields = answer.ext_fields
        physical = MessageId.parse(fields["msgId"]).physical_offset
        cluster.history.stored[place] = int(fields["queueId"]), physical
        return made

    real = sending._entry
    patches.set(sending, "_entry", entry)


class GrpcProducerRun(ProducerRun):
    """One producer that sends by gRPC."""

    _calls: GrpcCalls
    _turn = 0
    _streams: tuple[asyncio.Task[None], ...] = ()

    def _sent_of(self, key: str) -> Sent | None:
        """Of any producer: those of a topic are one group by gRPC, and each may be asked."""
        return next((sent for sent in self._history.sent if sent.key == key), None)

    @property
    def _brokers(self) -> list[Node]:
        return [node for node in self._cluster.nodes.values() if node.is_broker]

    async def run(self) -> None:
        """As the process: send, and answer checks, until cancelled."""
        self._is_stopping = False
        self._calls = GrpcCalls(self.node.name)
        if self.plan.kind == TRANSACTION:
            create = asyncio.get_running_loop().create_task
            self._streams = tuple(create(self._answer_checks(node)) for node in self._brokers)
        await self._send_all()

    async def stop(self) -> None:
        """Close it in order."""
        self._is_stopping = True
        await end_tasks(*self._streams)
        self._calls.close()

    def died(self) -> None:
        """The process is dead."""
        super().died()
        self._streams = ()

    async def _store(self, message: Message, sent: Sent) -> SendResult:
        request = pb.SendMessageRequest(messages=[_request(message, sent)])
        error = CallFailedError("no broker was asked")
        seconds = max(SEND_SECONDS_MIN, self.plan.timeout_ms / 1_000)
        for _ in range(ATTEMPTS):
            node = self._next_broker(sent.shard)
            try:
                [answer] = await self._calls.call(node, "SendMessage", request, seconds)
                [entry] = answer.entries or [answer]
                if entry.status.code not in _STORED:
                    raise self._calls.refused(node, entry.status)
            except CallFailedError as failed:
                error = failed
                continue
            result = self._result(node, message.topic, entry)
            if sent.kind == TRANSACTION and result.is_ok:
                # Else the broker asks, which it may have done about an earlier try.
                await self._end(node, message.topic, entry, self._said(sent))
            return result
        raise error

    def _next_broker(self, shard: str) -> Node:
        """Any in turn; one of the shard's broker name. ``usable`` leaves out slaves."""
        nodes = self._brokers
        if shard:
            names = sorted({node.settings["broker_name"] for node in nodes})
            name = names[int(shard[-1]) % len(names)]
            nodes = [node for node in nodes if node.settings["broker_name"] == name]
        nodes = self._calls.usable(nodes)
        self._turn += 1
        return nodes[self._turn % len(nodes)]

    def _result(self, node: Node, topic: str, entry: Any) -> SendResult:
        broker = node.settings["broker_name"]
        place = broker, entry.message_id, entry.offset
        queue_id, physical = self._cluster.history.stored[place]
        result = SendResult(
            _STORED[entry.status.code],
            entry.message_id,
            f"{physical:032X}",
            MessageQueue(topic, broker, queue_id),
            entry.offset,
        )
        return DetailedSendResult.of(result, {RECALL_HANDLE_FIELD: entry.recall_handle})

    async def _take_back(self, sent: Sent, handle: str) -> None:
        """Any broker passes it on to the one that has the message."""
        request = pb.RecallMessageRequest(recall_handle=handle)
        request.topic.name = sent.topic
        node = self._next_broker("")
        [answer] = await self._calls.call(node, "RecallMessage", request)
        if answer.status.code != pb.OK:
            raise CallFailedError(answer.status.message)

    # -- transactions -----------------------------------------------------------------------------
    async def _answer_checks(self, node: Node) -> None:
        """Keep a stream to a broker, and say what it asks."""
        while True:
            with contextlib.suppress(OSError, TimeoutError, KeroloxError):
                await self._answer_stream(node)
            await asyncio.sleep(RETRY_SECONDS)

    async def _answer_stream(self, node: Node) -> None:
        stream = (await self._calls.peer(node)).open("Telemetry")
        settings = pb.Settings(client_type=pb.PRODUCER)
        for topic in self.plan.topics:
            settings.publishing.topics.add().name = topic
        stream.send(pb.TelemetryCommand(settings=settings))
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    command = await stream.message()
            except TimeoutError:
                # A host that was off says nothing of what it forgot.
                await self._calls.call(
                    node, "Heartbeat", pb.HeartbeatRequest(client_type=pb.PRODUCER)
                )
                continue
            if command is None:
                return
            asked = command.recover_orphaned_transaction_command
            if command.WhichOneof("command") == "recover_orphaned_transaction_command":
                [key] = asked.message.system_properties.keys
                topic = asked.message.topic.name
                entry = pb.SendResultEntry(
                    message_id=asked.message.system_properties.message_id,
                    transaction_id=asked.transaction_id,
                )
                await self._end(node, topic, entry, self._decision(key), is_asked=True)

    async def _end(
        self, node: Node, topic: str, entry: Any, decision: str, *, is_asked: bool = False
    ) -> None:
        """Say how a transaction ends; a broker that does not hear it asks."""
        if decision not in _RESOLUTIONS:
            return
        request = pb.EndTransactionRequest(
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=_RESOLUTIONS[decision],
            source=pb.SOURCE_SERVER_CHECK if is_asked else pb.SOURCE_CLIENT,
        )
        request.topic.name = topic
        try:
            await self._calls.call(node, "EndTransaction", request)
        except CallFailedError as error:
            self._cluster.trace.add(f"end of {entry.message_id} fails: {error}")


def _request(message: Message, sent: Sent) -> Any:
    made = pb.Message(body=message.body)
    made.topic.name = message.topic
    system = made.system_properties
    system.message_id = sent.key
    system.keys.append(sent.key)
    system.message_type = pb.NORMAL
    now_ms = time.time_ns() // 1_000_000
    system.born_timestamp.FromMilliseconds(now_ms)
    if message.tags:
        system.tag = message.tags
    if sent.is_timed:
        sent.moment_ms = now_ms + sent.delay_ms
        system.message_type = pb.DELAY
        system.delivery_timestamp.FromMilliseconds(sent.moment_ms)
    elif sent.shard:
        system.message_type, system.message_group = pb.FIFO, sent.shard
    elif sent.kind == TRANSACTION:
        system.message_type = pb.TRANSACTION
    return made
