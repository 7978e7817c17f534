"""QueryRoute and QueryAssignment: this broker's queues, at the address that the client knows it by
(``RouteActivity``)."""

from __future__ import annotations

from kerolox.broker.context import Context
from kerolox.broker.grpc import checks
from kerolox.broker.grpc.answers import AnswerError, ok
from kerolox.broker.grpc.asking import Caller
from kerolox.protocol.attributes import MESSAGE_TYPE, TopicMessageType
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.codes import Perm
from kerolox.protocol.grpc import messages as pb

ALL_QUEUES = -1

ENDPOINTS_BYTES_MAX = 4 * 1024
"""Of the endpoints of a request, which its answer repeats for each queue."""

ROUTE_BYTES_MAX = 8 * 1024 * 1024
"""Of endpoints, in all queues of one answer."""

_TYPES: dict[str, tuple[int, ...]] = {
    TopicMessageType.NORMAL: (pb.NORMAL,),
    TopicMessageType.FIFO: (pb.FIFO,),
    TopicMessageType.DELAY: (pb.DELAY,),
    TopicMessageType.TRANSACTION: (pb.TRANSACTION,),
    TopicMessageType.MIXED: (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
}


def types_of(topic: TopicConfig) -> tuple[int, ...]:
    """The types of messages that a topic takes; without the attribute: all, as by remoting."""
    kind = (topic.attributes or {}).get(MESSAGE_TYPE, TopicMessageType.MIXED)
    return _TYPES.get(kind, (pb.NORMAL,))


def known_topic(broker: Context, name: str) -> TopicConfig:
    """A topic; AnswerError TOPIC_NOT_FOUND."""
    topic = broker.tables.topics.get(name)
    if topic is None:
        raise AnswerError(
            pb.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {name}"
        )
    return topic


async def query_route(
    broker: Context, caller: Caller, request: pb.QueryRouteRequest
) -> pb.QueryRouteResponse:
    """All queues of a topic."""
    name = checks.topic_name(request.topic)
    caller.check_shown(broker, name)
    topic = known_topic(broker, name)
    permissions = _permissions(broker, topic)
    _check_endpoints(request.endpoints, len(permissions))
    model = pb.MessageQueue(topic=request.topic, accept_message_types=types_of(topic))
    _set_broker(model, broker, request.endpoints)
    response = pb.QueryRouteResponse(status=ok())
    for queue_id, permission in enumerate(permissions):
        queue = response.message_queues.add()
        queue.CopyFrom(model)
        queue.id, queue.permission = queue_id, permission
    return response


def _permissions(broker: Context, topic: TopicConfig) -> list[int]:
    """Of each queue: those that are only read, only written, then both
    (``genMessageQueueFromQueueData``)."""
    perm = topic.perm & broker.config.broker_permission
    may_read, may_write = bool(perm & Perm.READ), bool(perm & Perm.WRITE)
    reads, writes = topic.read_queue_nums, topic.write_queue_nums
    if may_read and may_write:
        both = min(reads, writes)
        return [pb.READ] * (reads - both) + [pb.WRITE] * (writes - both) + [pb.READ_WRITE] * both
    if may_read:
        return [pb.READ] * reads
    if may_write:
        return [pb.WRITE] * writes
    return [pb.NONE] * max(1, reads, writes)


def _check_endpoints(endpoints: pb.Endpoints, queues: int) -> None:
    size = endpoints.ByteSize()
    if size > ENDPOINTS_BYTES_MAX or size * queues > ROUTE_BYTES_MAX:
        raise AnswerError(
            pb.ILLEGAL_ACCESS_POINT,
            f"endpoints of {size} bytes for {queues} queues; at most {ENDPOINTS_BYTES_MAX} are "
            f"taken, and {ROUTE_BYTES_MAX} for all queues",
        )


def _set_broker(queue: pb.MessageQueue, broker: Context, endpoints: pb.Endpoints) -> None:
    if not endpoints.addresses:
        raise AnswerError(pb.ILLEGAL_ACCESS_POINT, "endpoint list is empty")
    queue.broker.name = broker.config.broker_name
    queue.broker.id = broker.role.current.broker_id
    queue.broker.endpoints.CopyFrom(endpoints)


async def query_assignment(
    broker: Context, caller: Caller, request: pb.QueryAssignmentRequest
) -> pb.QueryAssignmentResponse:
    """What a member of a group receives from: all queues at once, or each one where it is
    ordered."""
    name, group = checks.topic_name(request.topic), checks.group_name(request.group)
    caller.check_read(broker, name, group)
    topic = known_topic(broker, name)
    if not topic.perm & broker.config.broker_permission & Perm.READ or not topic.read_queue_nums:
        raise AnswerError(pb.FORBIDDEN, f"no readable queue of topic {topic.topic_name}")
    response = pb.QueryAssignmentResponse(status=ok())
    ids = range(topic.read_queue_nums) if is_fifo(broker, group) else (ALL_QUEUES,)
    _check_endpoints(request.endpoints, len(ids))
    for queue_id in ids:
        queue = response.assignments.add().message_queue
        queue.topic.CopyFrom(request.topic)
        queue.id, queue.permission = queue_id, pb.READ_WRITE
        queue.accept_message_types.extend(types_of(topic))
        _set_broker(queue, broker, request.endpoints)
    return response


def is_fifo(broker: Context, group: str) -> bool:
    """Whether a group consumes in order (``consumeMessageOrderly``)."""
    found = broker.tables.groups.get(group)
    return found is not None and found.consume_message_orderly is True
