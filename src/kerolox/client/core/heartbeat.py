"""The JSON bodies with which a client tells about itself: heartbeats and running info."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kerolox.protocol.codes import KEROLOX_VERSION, VERSION, version_text
from kerolox.protocol.fastjson import dumps
from kerolox.protocol.names import CONSUME_PASSIVELY
from kerolox.release import __version__

if TYPE_CHECKING:
    from kerolox.client.core.consuming.ordered.locks import QueueLock
    from kerolox.client.core.consuming.process_queue import ProcessQueue
    from kerolox.client.core.consuming.stats import TopicStats
    from kerolox.filter.tags import Subscription
    from kerolox.message import ConsumeFromWhere, MessageModel, MessageQueue


class ConsumerFacts(NamedTuple):
    """The facts about a group's member in a heartbeat."""

    group: str
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: tuple[Subscription, ...]
    unit_mode: bool = False
    consume_type: str = CONSUME_PASSIVELY


def _subscription(subscription: Subscription) -> dict[str, object]:
    return {
        "classFilterMode": subscription.class_filter_mode,
        "codeSet": list(subscription.codes),
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": list(subscription.tags),
        "topic": subscription.topic,
    }


def heartbeat_body(
    client_id: str, *, producer_groups: Iterable[str] = (), consumers: Iterable[ConsumerFacts] = ()
) -> bytes:
    """``HeartbeatData``."""
    return dumps(
        {
            "clientID": client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": consumer.consume_from_where.value,
                    "consumeType": consumer.consume_type,
                    "groupName": consumer.group,
                    "messageModel": consumer.message_model.value,
                    "subscriptionDataSet": [_subscription(item) for item in consumer.subscriptions],
                    "unitMode": consumer.unit_mode,
                }
                for consumer in consumers
            ],
            "producerDataSet": [{"groupName": group} for group in producer_groups],
        }
    )


def check_client_body(client_id: str, group: str, subscription: Subscription) -> bytes:
    """``CheckClientRequestBody``."""
    return dumps(
        {
            "clientId": client_id,
            "group": group,
            "subscriptionData": _subscription(subscription),
        }
    )


def _process_queue(
    queue: ProcessQueue, commit_offset: int, lock: QueueLock | None, now_ms: int
) -> dict[str, object]:
    from kerolox.client.core.consuming.process_queue import MIB

    return {
        "cachedMsgCount": len(queue),
        "cachedMsgMaxOffset": queue.last_offset or 0,
        "cachedMsgMinOffset": queue.first_offset or 0,
        "cachedMsgSizeInMiB": queue.message_bytes // MIB,
        "commitOffset": commit_offset,
        "droped": queue.is_dropped,
        "lastConsumeTimestamp": queue.last_consume_ms,
        "lastLockTimestamp": (lock.granted_ms or 0) if lock is not None else 0,
        "lastPullTimestamp": queue.last_pull_ms,
        "locked": lock is not None and lock.is_valid(now_ms),
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def running_properties(
    consume_type: str,
    start_ms: int,
    name_servers: Iterable[str],
    *,
    threads: int,
    in_order: bool = False,
) -> dict[str, str]:
    """What a consumer says of itself in its running info.

    A frame and a heartbeat have capacity for the version of RocketMQ alone; these are free
    properties.
    """
    return {
        KEROLOX_VERSION: __version__,
        "PROP_CLIENT_VERSION": version_text(VERSION),
        "PROP_CONSUMEORDERLY": "true" if in_order else "false",
        "PROP_CONSUMER_START_TIMESTAMP": str(start_ms),
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_NAMESERVER_ADDR": ";".join(name_servers),
        "PROP_THREADPOOL_CORE_SIZE": str(threads),
    }


def running_info_body(
    *,
    properties: Mapping[str, str],
    subscriptions: Iterable[Subscription],
    queues: Mapping[MessageQueue, tuple[ProcessQueue, int]],
    stats: Mapping[str, TopicStats],
    now_ms: int,
    locks: Mapping[MessageQueue, QueueLock] | None = None,
    stacks: str = "",
) -> bytes:
    """``ConsumerRunningInfo``; ``queues`` gives each process queue with its commit offset,
    ``locks`` those of the queues that are read in order, ``stacks`` is told if there are some."""
    held = locks or {}
    return dumps(
        {
            **({"jstack": stacks} if stacks else {}),
            "mqTable": {
                queue: _process_queue(*item, held.get(queue), now_ms)
                for queue, item in queues.items()
            },
            "properties": dict(properties),
            "statusTable": {topic: item.consume_status(now_ms) for topic, item in stats.items()},
            "subscriptionSet": [_subscription(item) for item in subscriptions],
        }
    )
