"""Consumers whose master is gone read from its slave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.client import (
    ConsumeStatus,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.message import ConsumeFromWhere, Message, MessageQueue
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from tests.support.eventually import until

from .pairs import pair, quick_retries, until_equal

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

BODIES = {b"%d" % number for number in range(60)}
READ = {"slave_read_enable": True}


async def fill(master: Broker, slave: Broker, address: str) -> None:
    async with Producer("PG", address) as producer:
        await asyncio.gather(*(producer.send(Message("T", body)) for body in BODIES))
    await until_equal(master, slave)
    await slave.parts.peers.replication.tables.sync_from(master.address)


async def test_consumers_read_from_a_slave_while_its_master_is_gone(tmp_path: Path, kernel: str):
    config = NamesrvConfig.load(None, listen_port=0, kv_config_path=tmp_path / "kv.json")
    async with NameServer(config) as namesrv:
        address = f"127.0.0.1:{namesrv.port}"
        known = {"namesrv_addr": address, **READ}
        of_slave = {"ha_master_address": "", **known}
        async with pair(tmp_path, kernel, of_master=known, of_slave=of_slave) as (master, slave):
            await fill(master, slave, address)
            await master.stop()
            seen: list[bytes] = []

            async def listen(messages: list[Message]) -> ConsumeStatus:
                seen.extend(message.body for message in messages)
                return ConsumeStatus.CONSUME_SUCCESS

            first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            settings = PushConsumerSettings(consume_from_where=first)
            consumer = PushConsumer("readers", address, settings=settings)
            consumer.subscribe("T", "*", listen)
            async with consumer:
                await until(lambda: set(seen) >= BODIES)
            async with PullConsumer("pullers", address) as reader:
                queue = MessageQueue("T", "broker-t", 0)
                result = await reader.pull(queue, 0)
                assert {message.body for message in result.messages} <= BODIES
                assert result.messages
