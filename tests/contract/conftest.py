"""The tests of this folder run against our broker and against the Java broker.

On the Java broker a part of them runs by default, and all with ``KEROLOX_SOFTWARE=all``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.client import Producer, ProducerSettings, PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere
from tests.support.eventually import until
from tests.support.servers.clusters import cluster, java_cluster, our_cluster
from tests.support.servers.patience import lift_time_limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

__all__ = ["cluster", "java_cluster", "our_cluster"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


ON_JAVA_BY_DEFAULT = frozenset(
    (
        "test_bench.py",
        "test_clients_blocking.py",
        "test_clients_consume.py",
        "test_clients_orderly.py",
        "test_clients_send.py",
        "test_clients_transactions.py",
        "test_clients_ways.py",
        "test_given_back.py",
        "test_groups_and_messages.py",
        "test_requests.py",
        "test_same_answers.py",
        "test_sink.py",
        "test_times.py",
        "test_topic_deletion.py",
        "test_topics_and_brokers.py",
    )
)
"""Sending, both ways of reading, transactions, Spark's sink, and all that the two brokers are asked
alike: what a change of the clients breaks on one broker alone, it breaks here."""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group("contract"))
    # The first one that needs the Java broker may have to fetch and build it.
    item.add_marker(pytest.mark.timeout(600))
    if _is_on_java(item) and item.path.name not in ON_JAVA_BY_DEFAULT:
        item.add_marker(pytest.mark.software)


def _is_on_java(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    return given is not None and given.params.get("cluster") == "java"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """See :func:`lift_time_limits`."""
    lift_time_limits(monkeypatch)


class Inbox:
    """Consumers of one test and what they got."""

    def __init__(self, name_server: str) -> None:
        self.name_server = name_server
        self.consumers: list[PushConsumer] = []

    async def consumer(
        self, group: str, topic: str, expression: str = "*", **settings: Any
    ) -> tuple[PushConsumer, list[MessageExt]]:
        """A running consumer from the first offset, and the list that it fills."""
        got: list[MessageExt] = []

        async def listen(messages: list[MessageExt]) -> None:
            got.extend(messages)

        given: dict[str, Any] = {"consume_from_where": FIRST, **settings}
        made = PushConsumer(group, self.name_server, settings=PushConsumerSettings(**given))
        made.subscribe(topic, expression, listen)
        self.consumers.append(made)
        await made.start()
        return made, got

    async def close(self) -> None:
        for made in self.consumers:
            await made.close()


@pytest_asyncio.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    settings = ProducerSettings(api_timeout_ms=60_000)  # the machine may stand still for seconds
    async with Producer("contract-producers", cluster.name_server, settings=settings) as made:
        yield made


@pytest_asyncio.fixture
async def inbox(cluster: Cluster) -> AsyncIterator[Inbox]:
    made = Inbox(cluster.name_server)
    yield made
    await made.close()


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest_asyncio.fixture
async def topic(producer: Producer) -> str:
    """A fresh topic of four queues, known to the name server."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    await producer.create_topic(name, queues=4)
    cluster = producer._open_cluster()
    await until(lambda: cluster.fetch_route(name), what="the route")
    return name
