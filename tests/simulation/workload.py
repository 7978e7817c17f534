"""Clients of a run: producers that send, groups that consume, and the history that they write."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

from kerolox.client import ProducerSettings, PushConsumerSettings, SimpleConsumerSettings
from kerolox.client.aio.consumers.push_consumer import PushConsumer
from kerolox.client.aio.consumers.simple_consumer import SimpleConsumer
from kerolox.client.aio.producers.producer import Producer
from kerolox.client.aio.producers.transaction import TransactionProducer
from kerolox.client.core.consuming.outcome import Outcome
from kerolox.client.core.sending.send import SendResult
from kerolox.client.core.sending.transaction import TransactionState
from kerolox.errors import KeroloxError
from kerolox.message import ConsumeFromWhere, Message, MessageExt, PropertyKey
from kerolox.protocol.pop import PopReceipt
from tests.simulation.history import (
    ASKED,
    COMMIT,
    DELAYED,
    DIED,
    DONE,
    LATER,
    LOST,
    OK,
    ORDERED,
    ROLLBACK,
    TRANSACTION,
    UNKNOWN,
    History,
    Received,
    Sent,
)
from tests.simulation.scenario import POP_SECONDS, TAGS, GroupPlan, ProducerPlan

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Node

RETRY_SECONDS = 0.5
HELLO_TOPIC = "Hello"
"""Nobody reads it."""
BODY_BYTES_MAX = 1_500
SHARDS = 3
DELAY_LEVELS = {1: 1_000, 2: 2_000}

_STATES = {
    COMMIT: TransactionState.COMMIT,
    ROLLBACK: TransactionState.ROLLBACK,
    UNKNOWN: TransactionState.UNKNOWN,
}


class ProducerRun:
    """One producer: sends what is left of its plan whenever it is started."""

    def __init__(self, cluster: Cluster, node: Node, plan: ProducerPlan, seed: int) -> None:
        self.node = node
        self.plan = plan
        self._cluster = cluster
        self._history: History = cluster.history
        self._random = random.Random(seed)
        self._begun = 0
        self._sent: dict[str, Sent] = {}
        self.may_be_unsure = True
        """Transactions may be left open; not while the cluster comes to rest."""
        self._producer: Producer | None = None
        """It may still be starting."""
        self._is_stopping = False

    @property
    def is_done(self) -> bool:
        """Everything was tried."""
        return self._begun >= self.plan.count

    async def run(self) -> None:
        """As the process: start, send, and stay, to answer checks, until cancelled."""
        plan = self.plan
        settings = ProducerSettings(
            client_ip=self.node.host,
            send_timeout_ms=plan.timeout_ms,
            route_poll_interval_ms=3_000,
            heartbeat_interval_ms=3_000,
        )
        self._is_stopping = False
        while True:
            producer = self._producer = self._made(settings)
            self._cluster.clients.append(producer)
            try:
                await producer.start()
                break
            except KeroloxError as error:
                self._cluster.trace.add(f"start fails: {type(error).__name__}")
                await producer.close()
                await asyncio.sleep(RETRY_SECONDS)
            if self._is_stopping:
                return
        if plan.kind == TRANSACTION:
            await self._introduce(producer)
        await self._send_all()

    async def _send_all(self) -> None:
        """Send what is left, and stay."""
        while not self.is_done and not self._is_stopping:
            await self._send_one()
            if self.plan.pause_seconds:
                await asyncio.sleep(self._random.random() * 2 * self.plan.pause_seconds)
        await asyncio.get_running_loop().create_future()

    async def _introduce(self, producer: Producer) -> None:
        """One that sends nothing any more is asked by brokers whose topics it has sent to."""
        while not self._is_stopping:
            try:
                await producer.send(Message(HELLO_TOPIC, b"hello"))
            except KeroloxError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def stop(self) -> None:
        """Close it in order, though it may not have started yet."""
        self._is_stopping = True
        if self._producer is not None:
            await self._producer.close()
            self._producer = None

    def calm(self) -> None:
        """Have checks give answers."""
        self.may_be_unsure = False

    def died(self) -> None:
        """The process is dead: the send that was open may have been stored or not."""
        for sent in self._sent.values():
            if not sent.status and not sent.error:
                sent.failed(self._cluster.loop.time(), DIED)
        self._producer = None

    def _made(self, settings: ProducerSettings) -> Producer:
        group, servers = f"{self.plan.name}-group", self._cluster.name_servers
        if self.plan.kind == TRANSACTION:
            return TransactionProducer(group, servers, check=self._check, settings=settings)
        return Producer(group, servers, settings=settings)

    async def _send_one(self) -> None:
        plan, chance = self.plan, self._random
        key = f"{plan.name}:{self._begun:02}"
        self._begun += 1
        topic = chance.choice(plan.topics)
        now = asyncio.get_running_loop().time
        sent = self._history.send(key, topic, plan.kind, now())
        self._sent[key] = sent
        size = plan.body_bytes or chance.randrange(20, BODY_BYTES_MAX)
        body = key.encode().ljust(size, b".")
        message = Message(topic, body, keys=key)
        if plan.has_tags:
            message.tags = sent.tag = chance.choice(TAGS)
        if plan.kind == DELAYED:
            if plan.is_timed:
                sent.is_timed = True
                sent.delay_ms = chance.choice((chance.randrange(1, 2_000), chance.randrange(6_000)))
            else:
                message.delay_level = chance.choice(list(DELAY_LEVELS))
                sent.delay_ms = DELAY_LEVELS[message.delay_level]
        elif plan.kind == ORDERED:
            sent.shard = f"{plan.name}-{topic}-{chance.randrange(SHARDS)}"
        elif plan.kind == TRANSACTION:
            sent.decision = chance.choice((COMMIT, COMMIT, ROLLBACK))
        try:
            result = await self._store(message, sent)
        except KeroloxError as error:
            sent.failed(now(), type(error).__name__)
            self._cluster.trace.add(f"{key} fails: {sent.error}")
        else:
            self._told(sent, result, now())
            if result.recall_handle and chance.random() < plan.recalls:
                await self._recall(sent, result.recall_handle)

    def _said(self, sent: Sent) -> str:
        """What the producer of a transaction says at once."""
        return UNKNOWN if self._random.random() < 0.3 else sent.decision

    async def _store(self, message: Message, sent: Sent) -> SendResult:
        """Send a message; KeroloxError: it may be stored or not."""
        producer = self._producer
        assert producer is not None
        if isinstance(producer, TransactionProducer):
            said = _STATES[self._said(sent)]
            result = (await producer.send_in_transaction(message, lambda _: said)).send
            if not result.is_ok:
                sent.decision = ROLLBACK  # a half that is not stored safely is taken back
            return result
        if sent.is_timed:
            return await producer.send(message, deliver_after=sent.delay_ms / 1_000)
        if sent.shard:
            return await producer.send(message, ordering_key=sent.shard)
        return await producer.send(message)

    async def _take_back(self, sent: Sent, handle: str) -> None:
        assert self._producer is not None
        await self._producer.recall(handle)

    async def _recall(self, sent: Sent, handle: str) -> None:
        """Take a message back; where no answer comes it may be or not."""
        sent.recall = ASKED
        try:
            await self._take_back(sent, handle)
        except KeroloxError as error:
            self._cluster.trace.add(f"recall of {sent.key} fails: {type(error).__name__}")
        else:
            sent.recall = DONE
            self._cluster.trace.add(f"took {sent.key} back")

    def _told(self, sent: Sent, result: SendResult, at: float) -> None:
        queue = result.queue
        physical = int(result.offset_message_id.split(",")[0][-16:] or "-1", 16)
        sent.told(
            at, result.status.name, queue.broker_name, queue.queue_id, result.queue_offset, physical
        )
        self._cluster.trace.add(
            f"{sent.key} {sent.status} {queue.queue_id}:{sent.queue_offset} at {physical}"
        )

    def _check(self, message: MessageExt) -> TransactionState:
        return _STATES[self._decision(message.keys)]

    def _sent_of(self, key: str) -> Sent | None:
        """The message of a key, where this producer knows it."""
        return self._sent.get(key)

    def _decision(self, key: str) -> str:
        """What the producer says when a broker asks."""
        sent = self._sent_of(key)
        answer = UNKNOWN
        if sent is not None and not (self.may_be_unsure and self._random.random() < 0.2):
            answer = sent.decision
        self._history.checks.append((asyncio.get_running_loop().time(), key, answer))
        self._cluster.trace.add(f"asked about {key}: {answer}")
        return answer


class ConsumerRun:
    """One member of a group."""

    def __init__(self, cluster: Cluster, node: Node, plan: GroupPlan, seed: int) -> None:
        self.node = node
        self.plan = plan
        self._cluster = cluster
        self._random = random.Random(seed)
        self._open: list[Received] = []
        self._consumer: PushConsumer | None = None
        """It may still be starting."""
        self._is_stopping = False
        self.may_fail = True
        """Listeners may ask for a message again; not while the cluster comes to rest."""

    async def run(self) -> None:
        """As the process: consume until cancelled."""
        plan = self.plan
        settings = PushConsumerSettings(
            client_ip=self.node.host,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            route_poll_interval_ms=3_000,
            heartbeat_interval_ms=3_000,
            rebalance_interval_ms=3_000,
            persist_interval_ms=1_500,
            lock_interval_ms=3_000,
            suspend_timeout_ms=2_500,
            pull_timeout_ms=4_500,
            pull_error_delay_ms=300,
            illegal_offset_delay_ms=500,
            suspend_current_queue_ms=200,
            delay_level_when_next_consume=1,
            consume_batch_max=plan.batch,
        )
        self._is_stopping = False
        while True:
            consumer = PushConsumer(plan.name, self._cluster.name_servers, settings=settings)
            self._consumer = consumer
            self._cluster.clients.append(consumer)
            for topic in plan.topics:
                consumer.subscribe(topic, plan.tags, self._listen, ordered=plan.is_orderly)
            try:
                await consumer.start()
                break
            except KeroloxError as error:
                self._cluster.trace.add(f"start fails: {type(error).__name__}")
                await consumer.close()
                await asyncio.sleep(RETRY_SECONDS)
            if self._is_stopping:
                return
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """Close it in order, though it may not have started yet."""
        self._is_stopping = True
        if self._consumer is not None:
            await self._consumer.close()
            self._consumer = None

    def calm(self) -> None:
        """Have listeners succeed."""
        self.may_fail = False

    def died(self) -> None:
        """The process is dead: what listeners had is not settled."""
        for received in self._open:
            if not received.result:
                received.result = DIED
        self._open.clear()
        self._consumer = None

    async def _listen(self, messages: list[MessageExt]) -> Outcome | None:
        loop, history = asyncio.get_running_loop(), self._cluster.history
        now: list[Received] = []
        for message in messages:
            received = Received(
                loop.time(),
                self.plan.name,
                self.node.name,
                message.keys,
                message.topic,
                message.broker_name,
                message.queue_id,
                message.queue_offset,
                message.reconsume_times,
            )
            self._cluster.trace.add(
                f"gets {received.key} {received.queue_id}:{received.queue_offset}"
                f" again {received.reconsume_times}"
            )
            history.received.append(received)
            now.append(received)
            self._open.append(received)
        if self.plan.seconds:
            await asyncio.sleep(self._random.random() * 2 * self.plan.seconds)
        fails = self.may_fail and self._random.random() < self.plan.fails
        for received in now:
            received.result = LATER if fails else OK
            received.ended = loop.time()
            self._open.remove(received)
        return Outcome.nack() if fails else None


class Receiving(Protocol):
    """What a member that pops has of its consumer."""

    async def receive(self) -> list[MessageExt]: ...
    async def ack(self, message: MessageExt, /) -> None: ...
    async def dead_letter(self, message: MessageExt, /) -> None: ...
    async def nack(self, message: MessageExt, /, *, after: float) -> None: ...
    async def extend(self, message: MessageExt, seconds: float, /) -> None: ...
    async def close(self) -> None: ...


class PopRun(ConsumerRun):
    """One member of a group that pops."""

    def __init__(self, cluster: Cluster, node: Node, plan: GroupPlan, seed: int) -> None:
        super().__init__(cluster, node, plan, seed)
        self._simple: Receiving | None = None

    async def run(self) -> None:
        """As the process: receive until cancelled."""
        settings = SimpleConsumerSettings(
            client_ip=self.node.host,
            route_poll_interval_ms=3_000,
            heartbeat_interval_ms=3_000,
            invisible_ms=round(POP_SECONDS * 1000),
            wait_ms=2_000,
            receive_batch_size=4,
            from_first=True,
            is_ordered=self.plan.is_ordered,
        )
        self._is_stopping = False
        consumer = SimpleConsumer(self.plan.name, self._cluster.name_servers, settings=settings)
        self._simple = consumer
        self._cluster.clients.append(consumer)
        for topic in self.plan.topics:
            consumer.subscribe(topic, self.plan.tags)
        await consumer.start()
        await self._receive(consumer)

    async def _receive(self, consumer: Receiving) -> None:
        while not self._is_stopping:
            try:
                messages = await consumer.receive()
            except KeroloxError as error:
                self._cluster.trace.add(f"receive fails: {type(error).__name__}")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.gather(*(self._work(consumer, each) for each in messages))
        await asyncio.get_running_loop().create_future()

    async def _work(self, consumer: Receiving, message: MessageExt) -> None:
        loop, history = asyncio.get_running_loop(), self._cluster.history
        receipt = PopReceipt.parse(message.properties[PropertyKey.POP_RECEIPT])
        received = Received(
            loop.time(),
            self.plan.name,
            self.node.name,
            message.keys,
            receipt.kind.topic(message.topic, self.plan.name),
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            message.reconsume_times,
        )
        received.pop_time = receipt.pop_time
        received.popped_at = history.popped_at(self.node.name, received.delivery, received.at)
        received.visible_at = received.popped_at + POP_SECONDS
        self._cluster.trace.add(
            f"gets {received.key} {received.topic} {received.queue_id}:{received.queue_offset}"
        )
        history.received.append(received)
        self._open.append(received)
        if self.plan.seconds:
            await asyncio.sleep(self._random.random() * 2 * self.plan.seconds)
        try:
            await self._settle(consumer, message, received)
        except KeroloxError as error:
            self._cluster.trace.add(f"ack fails: {type(error).__name__}")
            if not received.result:
                received.result, received.ended = LOST, loop.time()
                self._open.remove(received)

    async def _settle(self, consumer: Receiving, message: MessageExt, received: Received) -> None:
        """Say what became of it; perhaps too late, twice, or not at all."""
        loop, plan, draw = asyncio.get_running_loop(), self.plan, self._random.random
        if draw() < plan.extends:
            # Both receipts count now.
            self._cluster.trace.add(f"extends {received.key}")
            asked = loop.time()
            await consumer.extend(message, POP_SECONDS)
            received.extended, received.visible_at = asked, asked + POP_SECONDS
            await asyncio.sleep(draw() * POP_SECONDS / 2)
        fails = self.may_fail and draw() < plan.fails
        is_lost = self.may_fail and not fails and draw() < plan.loses
        received.result = LATER if fails else LOST if is_lost else OK
        received.ended = loop.time()
        self._open.remove(received)
        if is_lost:
            self._cluster.trace.add(f"says nothing of {received.key}")
            return
        if fails:
            received.given_back(loop.time())
            await consumer.nack(message, after=self._random.choice((0, 0.5)))
            return
        done = consumer.ack
        if plan.forwards and draw() < plan.forwards:
            done, received.is_forwarded = consumer.dead_letter, True
            self._cluster.trace.add(f"has {received.key} be a dead letter")
        await done(message)
        received.acknowledged = loop.time()
        if draw() < plan.doubles:
            if draw() < 0.3:
                await asyncio.sleep(draw() * 1.5 * POP_SECONDS)
            self._cluster.trace.add(f"acknowledges {received.key} again")
            await done(message)

    async def stop(self) -> None:
        """Close it in order."""
        self._is_stopping = True
        if self._simple is not None:
            await self._simple.close()
            self._simple = None

    def died(self) -> None:
        """The process is dead."""
        super().died()
        self._simple = None
