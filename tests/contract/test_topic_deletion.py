"""A topic that is deleted while messages come to it: the broker lives on."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin, topic_deletion
from kerolox.message import Message
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client import Producer
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

SENT_AT_ONCE = 200


async def test_a_broker_outlives_the_deletion_of_a_topic_under_load(
    cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's process may end: it writes to a queue whose files are unmapped."""
    # Producers here notice at once.
    monkeypatch.setattr(topic_deletion, "PRODUCERS_SECONDS", 0.1)
    async with Admin(cluster.name_server) as admin:
        boot_ms = (await admin.broker_runtime(cluster.broker)).boot_ms
        topic = f"t-{uuid.uuid4().hex[:12]}"
        await admin.create_topic(topic, queues=4)
        await until(lambda: producer.queues(topic), what="the route")
        sending = [asyncio.create_task(send_until_refused(producer, topic)) for _ in range(4)]
        try:
            await until(lambda: stored(admin, topic, 1000), what="load")
            assert await admin.delete_topic(topic) == [cluster.broker]
        finally:
            for each in sending:
                each.cancel()
            await asyncio.wait(sending)
        assert (await admin.broker_runtime(cluster.broker)).boot_ms == boot_ms


async def send_until_refused(producer: Producer, topic: str) -> None:
    while True:
        messages = (producer.send(Message(topic, b"x")) for _ in range(SENT_AT_ONCE))
        results = await asyncio.gather(*messages, return_exceptions=True)
        if any(isinstance(each, Exception) for each in results):
            return


async def stored(admin: Admin, topic: str, least: int) -> bool:
    description = await admin.describe_topic(topic)
    return sum(each.max_offset for each in description.queues) >= least
