"""What brokers ask of a consumer on behalf of operators (``ClientRemotingProcessor``).

307 what are you doing, 220 go on at other offsets, 221 what are your offsets, 309 consume this
message now. Anything else is answered with code 3.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.stacks import asked_stacks
from kerolox.client.core.consuming.outcome import ConsumeStatus
from kerolox.client.core.heartbeat import running_info_body, running_properties
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.fastjson import dumps, loads, members_of
from kerolox.protocol.records import decode_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.core.consuming.ordered.locks import QueueLock
    from kerolox.client.core.consuming.process_queue import ProcessQueue
    from kerolox.client.core.consuming.stats import TopicStats
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt
    from kerolox.protocol.command import RemotingCommand


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """The state of a consumer that brokers may ask for."""

    group: str
    consume_type: str
    start_ms: int
    name_servers: tuple[str, ...]
    consume_concurrency: int
    subscriptions: Iterable[Subscription]
    queues: Mapping[MessageQueue, ProcessQueue]
    stats: Mapping[str, TopicStats]
    offsets: OffsetStore
    reset_offsets: Callable[[dict[MessageQueue, int]], Awaitable[None]]
    consume_directly: Callable[[MessageExt], Awaitable[ConsumeStatus]] | None = None
    """None: it has no listeners."""
    is_ordered: Callable[[str], bool] = lambda _: False
    """Whether a topic is read in order."""
    locks: Mapping[MessageQueue, QueueLock] = field(default_factory=dict)
    """Those of the queues that are read in order."""


async def answer_broker(consumer: ConsumerView, command: RemotingCommand) -> RemotingCommand:
    """Do what the broker asks; the answer to it."""
    fields = command.ext_fields
    group = fields.get("consumerGroup") or fields.get("group") or consumer.group
    if group != consumer.group:
        return command.response(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer Group <{group}> not exist in this consumer",
        )
    if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        return command.response(body=_running_info(consumer, stacks=asked_stacks(command)))
    if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        return command.response(body=_offsets(consumer, fields.get("topic", "")))
    if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        await consumer.reset_offsets(parse_reset_offsets(command.body, fields.get("topic", "")))
        return command.response()
    consume = consumer.consume_directly
    if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY and consume is not None:
        return command.response(body=await _consume_directly(consumer, consume, command))
    return command.not_supported()


def parse_reset_offsets(body: bytes, topic: str) -> dict[MessageQueue, int]:
    """The offsets of a ``ResetOffsetBody``, in either of its forms (map, or list for C++);
    RemoteProtocolError: neither.
    """
    try:
        table = members_of(loads(body))["offsetTable"] if body else {}
        offsets: dict[MessageQueue, int] = {}
        if isinstance(table, list):
            for item in map(members_of, table):
                name, queue_id = str(item["brokerName"]), int(str(item["queueId"]))
                queue = MessageQueue(str(item["topic"]), name, queue_id)
                offsets[queue] = int(str(item["offset"]))
        else:
            for key, offset in members_of(table).items():
                if not isinstance(key, MessageQueue):
                    raise ValueError(f"{key!r:.100} is no queue")
                offsets[key] = int(str(offset))
        return {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"reset offsets are unreadable: {error!r}") from None


def _running_info(consumer: ConsumerView, *, stacks: str) -> bytes:
    return running_info_body(
        properties=running_properties(
            consumer.consume_type,
            consumer.start_ms,
            consumer.name_servers,
            threads=consumer.consume_concurrency,
            in_order=all(consumer.is_ordered(item.topic) for item in consumer.subscriptions),
        ),
        subscriptions=consumer.subscriptions,
        queues={
            queue: (process_queue, consumer.offsets.table.read(queue))
            for queue, process_queue in consumer.queues.items()
        },
        stats=consumer.stats,
        now_ms=clock.steady_ms(),
        locks=consumer.locks,
        stacks=stacks,
    )


def _offsets(consumer: ConsumerView, topic: str) -> bytes:
    table = {
        queue: consumer.offsets.table.read(queue)
        for queue in consumer.queues
        if queue.topic == topic or not topic
    }
    return dumps({"messageQueueTable": table})


async def _consume_directly(
    consumer: ConsumerView,
    consume: Callable[[MessageExt], Awaitable[ConsumeStatus]],
    command: RemotingCommand,
) -> bytes:
    broker_name = command.ext_fields.get("brokerName", "")
    message, _ = decode_record(command.body, broker_name=broker_name)
    topic, start = message.topic, time.monotonic()
    remark = ""
    try:
        status = await consume(message)
        result = "CR_LATER" if status is ConsumeStatus.RECONSUME_LATER else "CR_SUCCESS"
    except Exception as error:
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    return dumps(
        {
            "autoCommit": True,
            "consumeResult": result,
            "order": consumer.is_ordered(topic),
            "remark": remark,
            "spentTimeMills": int((time.monotonic() - start) * 1000),
        }
    )
