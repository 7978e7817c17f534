"""The blocking clients against our broker and the Java broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kerolox.client.sync import (
    ConsumeStatus,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.errors import ClientClosedError
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster


def test_send_pull_query_without_asyncio(cluster: Cluster, topic: str, group: str) -> None:
    with Producer("contract-producers", cluster.name_server) as producer:
        result = producer.send(Message(topic, b"x", keys="k"))
        batch = producer.send_batch([Message(topic, b"y"), Message(topic, b"z")])
        producer.send_oneway(Message(topic, b"w"))
        wait_until(lambda: len(producer.query_by_key(topic, "k")) == 1)
        assert producer.view_by_id(topic, result.offset_message_id).body == b"x"
    with PullConsumer(group, cluster.name_server) as consumer:
        assert len(consumer.queues(topic)) == 4
        pulled = consumer.pull(batch.queue, batch.queue_offset, wait=True)
        assert pulled.status is PullStatus.FOUND
        assert [message.body for message in pulled.messages][:2] == [b"y", b"z"]
    with pytest.raises(ClientClosedError):
        producer.send(Message(topic, b"late"))


def test_listeners_are_plain_functions_in_threads(cluster: Cluster, topic: str, group: str) -> None:
    seen: list[MessageExt] = []
    threads: set[str] = set()

    def listen(message: MessageExt) -> ConsumeStatus:
        threads.add(threading.current_thread().name)
        seen.append(message)
        return ConsumeStatus.CONSUME_SUCCESS

    settings = PushConsumerSettings(consume_from_where=FIRST, consume_concurrency=3)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen)
    with consumer, Producer("contract-producers", cluster.name_server) as producer:
        sent = sorted(b"%03d" % index for index in range(100))
        for body in sent:
            producer.send(Message(topic, body))
        wait_until(lambda: len(seen) >= 100)
    assert sorted(message.body for message in seen) == sent
    assert all("listener" in name for name in threads)
    assert len(threads) <= 3
    assert not [t for t in threading.enumerate() if t.name.startswith(("Producer", "PushCon"))]
