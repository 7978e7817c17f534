"""How far groups are and how much goes through: of one group (208), of all (317), and single
metrics (315)."""

from __future__ import annotations

import asyncio

from kerolox.broker.context import Context
from kerolox.broker.requests.errors import system_error
from kerolox.broker.requests.monitor import consumes, queues_of_group
from kerolox.message import MessageQueue
from kerolox.protocol.bodies import TopicConfig, encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import (
    ConsumerStatsHeader,
    ConsumeStatsInBrokerHeader,
    ViewBrokerStatsHeader,
)
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.time_slices import TimeSlices
from kerolox.text import printable

router: Router[Context] = Router()

_Progress = dict[MessageQueue, dict[str, int]]


@router.on(RequestCode.GET_CONSUME_STATS, ConsumerStatsHeader.decode)
async def consume_stats(broker: Context, header: ConsumerStatsHeader, request: Request) -> Reply:
    """How far a group is in each queue, and how fast."""
    group = header.consumer_group
    topics = [header.topic] if header.topic.strip() else broker.tables.offsets.topics_of(group)
    offsets: _Progress = {}
    rate = 0.0
    slices = TimeSlices()
    for name in topics:
        await slices.checkpoint()
        topic = broker.tables.topics.get(name)
        if topic is None or not consumes(broker, group, name):
            continue
        offsets |= _progress(broker, group, topic)
        rate += broker.broker_stats.got_per_second(group, name)
    return Reply(body=encode_body({"consumeTps": rate, "offsetTable": offsets}))


@router.on(RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsInBrokerHeader.decode)
async def all_consume_stats(
    broker: Context, header: ConsumeStatsInBrokerHeader, request: Request
) -> Reply:
    """The same of all groups, topic by topic; of ordered topics only, if that is wanted.

    With thousands of groups that takes seconds, in which others run.
    """
    slices = TimeSlices()
    groups: list[dict[str, list[dict[str, object]]]] = []
    lag = 0
    topics = broker.tables.offsets.topics_by_group()
    for group in broker.tables.groups.names:
        found: list[dict[str, object]] = []
        for name in topics.get(group, ()):
            await slices.checkpoint()
            topic = broker.tables.topics.get(name)
            if topic is None or (header.is_order and not topic.order):
                continue
            if not consumes(broker, group, name):
                continue
            table = _progress(broker, group, topic)
            lag += sum(each["brokerOffset"] - each["consumerOffset"] for each in table.values())
            rate = broker.broker_stats.got_per_second(group, name)
            found.append({"consumeTps": rate, "offsetTable": table})
        groups.append({group: found})
    body = {"brokerAddr": broker.identity.address, "consumeStatsList": groups, "totalDiff": lag}
    return Reply(body=await asyncio.to_thread(encode_body, body))


@router.on(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsHeader.decode)
async def view_stats(broker: Context, header: ViewBrokerStatsHeader, request: Request) -> Reply:
    """One metric over the last minute, hour and day."""
    await broker.broker_stats.refresh()
    found = broker.broker_stats.view(header.stats_name, header.stats_key)
    if found is None:
        raise system_error(
            f"The stats <{printable(header.stats_name)}> <{printable(header.stats_key)}> not exist"
        )
    return Reply(body=encode_body(found))


def _progress(broker: Context, group: str, topic: TopicConfig) -> _Progress:
    """``OffsetWrapper`` by queue."""
    table: _Progress = {}
    name = topic.topic_name
    for queue_id in queues_of_group(broker, group, topic):
        high = broker.store.queue_bounds(name, queue_id)[1]
        consumed = max(broker.tables.offsets.query(group, name, queue_id), 0)
        last = broker.store.store_time(name, queue_id, consumed - 1) if consumed else 0
        table[MessageQueue(name, broker.config.broker_name, queue_id)] = {
            "brokerOffset": high,
            "consumerOffset": consumed,
            "lastTimestamp": max(last, 0),
        }
    return table
