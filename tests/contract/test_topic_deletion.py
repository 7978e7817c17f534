"""A topic that is deleted while messages come to it: the broker lives on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin
from kerolox.admin.topic_changes import deletion
from kerolox.errors import BrokerError
from kerolox.message import Message
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.client import Producer
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

SENT_AT_ONCE = 200


async def test_a_broker_outlives_the_deletion_of_a_topic_under_load(
    cluster: Cluster, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's process may end: it writes to a queue whose files are unmapped."""
    # Producers here notice at once.
    monkeypatch.setattr(deletion, "PRODUCERS_SECONDS", 0.1)
    async with Admin(cluster.name_server) as admin:
        boot_ms = await boot_of(admin, cluster.broker)
        is_loaded = asyncio.Event()
        sending = [
            asyncio.create_task(send_until_refused(producer, topic, is_loaded)) for _ in range(4)
        ]
        try:
            await until(lambda: stored(admin, topic, 1000), what="load")
            is_loaded.set()
            assert await admin.delete_topic(topic) == [cluster.broker]
        finally:
            for each in sending:
                each.cancel()
            await asyncio.wait(sending)
        assert await boot_of(admin, cluster.broker) == boot_ms


async def boot_of(admin: Admin, broker: str) -> int:
    """When a broker started; Java's has no figures in its first seconds."""

    found: list[int] = []

    async def has_figures() -> bool:
        with contextlib.suppress(BrokerError):
            found.append((await admin.broker_runtime(broker)).boot_ms)
        return bool(found)

    await until(has_figures, what="figures")
    return found[0]


async def send_until_refused(producer: Producer, topic: str, is_loaded: asyncio.Event) -> None:
    """Send always; once there is load, up to an error."""
    while True:
        messages = (producer.send(Message(topic, b"x")) for _ in range(SENT_AT_ONCE))
        results = await asyncio.gather(*messages, return_exceptions=True)
        if is_loaded.is_set() and any(isinstance(each, Exception) for each in results):
            return
        await asyncio.sleep(0)


async def stored(admin: Admin, topic: str, least: int) -> bool:
    description = await admin.describe_topic(topic)
    return sum(each.max_offset for each in description.queues) >= least
