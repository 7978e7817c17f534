"""A broker with a port for gRPC, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.servers.up import free_port

from kerolox.broker.broker import Broker
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig

TYPES = {"T": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}


@pytest_asyncio.fixture
async def grpc_broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = small_config(
        tmp_path, grpc_server_port=free_port(), max_requests_per_second_per_address=0
    )
    async with Broker(config) as started:
        await prepared(started)
        yield started


async def prepared(broker: Broker) -> None:
    """A topic of each type with two queues, one without a type, and an ordered group."""
    for name, kind in (*TYPES.items(), ("Any", "")):
        attributes = {"message.type": kind} if kind else None
        topic = TopicConfig(
            topic_name=name, read_queue_nums=2, write_queue_nums=2, attributes=attributes
        )
        broker.parts.tables.topics.put(topic)
    ordered = SubscriptionGroupConfig(group_name="ordered", consume_message_orderly=True)
    broker.parts.tables.groups.put(ordered)


@pytest_asyncio.fixture
async def client(grpc_broker: Broker) -> AsyncIterator[GrpcPeer]:
    async with grpc_peer(grpc_broker.config.grpc_server_port) as peer:
        yield peer
