"""A broker takes over a store in which a Java broker of 5.x left what it has out."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.pop.java_log import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG
from kerolox.broker.services import java_pop_reader, java_pops
from kerolox.broker.services.writer import NewRecord
from kerolox.message import PropertyKey
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.names import REVIVE_GROUP, TIMER_TOPIC
from kerolox.store.timer.checkpoint import TimerCheckpoint
from tests.support.clients.peer import peer_of, small_config
from tests.support.clients.pops import GROUP, Member
from tests.unit.broker.java_pop_records import ACK, BATCH_ACK, CHECKPOINT

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig

pytestmark = pytest.mark.asyncio

LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"
LONG_MS = 600_000


def checkpoint(start: int, count: int, **more: object) -> dict[str, object]:
    """Of a pop of queue 0 of topic T, just now."""
    point = json.loads(CHECKPOINT)
    point |= {"t": "T", "c": GROUP, "q": 0, "so": start, "n": count, "it": LONG_MS}
    point.pop("d", None)
    return {**point, **more}


def ack(start: int, offset: int, **more: object) -> dict[str, object]:
    found = {**json.loads(ACK), "t": "T", "c": GROUP, "q": 0, "so": start, "ao": offset}
    return {**found, **more}


class Left:
    """A store that a broker of 5.x stopped with."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def put(
        self,
        tag: str,
        body: object,
        *,
        queue_id: int = 0,
        waits_until_ms: int | None = None,
    ) -> None:
        """A record of its log; one that waits is in the timer's topic."""
        properties = {PropertyKey.TAGS: tag, PropertyKey.UNIQUE_KEY: f"{tag}-{body}"[:60]}
        topic = LOG
        if waits_until_ms is not None:
            topic = TIMER_TOPIC
            properties |= {
                PropertyKey.TIMER_OUT: str(waits_until_ms),
                PropertyKey.REAL_TOPIC: LOG,
                PropertyKey.REAL_QUEUE_ID: str(queue_id),
            }
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        record = NewRecord(
            topic=topic,
            queue_id=queue_id if topic == LOG else 0,
            body=text,
            properties=properties,
            born_timestamp=1,
            born_host=self._broker.parts.identity.store_host,
            store_host=self._broker.parts.identity.store_host,
        )
        assert self._broker.parts.writing.writer.put_now(record).put.is_stored

    def commit(self, offset: int, group: str = GROUP, topic: str = "T", queue_id: int = 0) -> None:
        self._broker.parts.tables.offsets.commit(group, topic, queue_id, offset, "test")


async def left(config: BrokerConfig, *, messages: int = 10) -> Broker:
    """A broker that makes the store; to be left by its caller."""
    broker = await Broker(config).__aenter__()
    async with peer_of(broker) as peer:
        await peer.create_topic("T", 1)
        for number in range(messages):
            await peer.send("T", b"%d" % number)
    broker.parts.tables.topics.create_for_group(LOG, 3)
    broker.parts.tables.groups.put(SubscriptionGroupConfig(group_name=GROUP))
    return broker


def out(broker: Broker) -> list[int]:
    pops = broker.parts.tables.pops
    return [
        each.offset
        for key in sorted(pops.state.held_queues())
        for each in pops.state.held(key, pops.now())
    ]


async def test_what_is_out_in_the_log_and_in_timers_is_out_here_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    config = small_config(tmp_path, timer_wheel_enable=False)
    broker = await left(config)
    store, now_ms = Left(broker), broker.parts.now_ms()
    pop_time = now_ms - 1_000
    # Dealt with, by the offset of the revive group, and by the check point of the timer.
    store.put(CHECKPOINT_TAG, checkpoint(0, 1, pt=1))
    store.commit(0, REVIVE_GROUP, LOG)
    store.put(CHECKPOINT_TAG, checkpoint(0, 1, pt=2), waits_until_ms=now_ms - 60_000)
    # In the log, acknowledged in the timer; in the timer, acknowledged in the log.
    store.put(CHECKPOINT_TAG, checkpoint(1, 3, pt=pop_time))
    store.put(ACK_TAG, ack(1, 2, pt=pop_time), waits_until_ms=now_ms - 60_000)
    later = checkpoint(4, 3, pt=pop_time, d=[0, 1, 2])
    store.put(CHECKPOINT_TAG, later, queue_id=1, waits_until_ms=now_ms + LONG_MS)
    store.put(BATCH_ACK_TAG, ack(4, -1, pt=pop_time, aol=[5]), queue_id=1)
    store.put(CHECKPOINT_TAG, b"{torn")
    store.put(CHECKPOINT_TAG, checkpoint(0, 1, t="gone"))
    store.commit(7)
    await broker.stop()
    checked = TimerCheckpoint(last_read_ms=now_ms - 30_000)
    (config.config_folder / "timercheck").write_bytes(checked.file())

    async with Broker(config) as ours, peer_of(ours) as peer:
        assert (
            "taken over from a RocketMQ broker: 4 messages that it has out are out here, 0 more "
            "come again since too many are out, 1 are gone with their topic, group or retention; "
            "1 records of its revive log can't be read"
        ) in caplog.text
        assert f"record 2 of queue 0 of {LOG}: its body is no checkpoint" in caplog.text
        assert out(ours) == [1, 3, 4, 6]
        offsets = ours.parts.tables.offsets
        assert offsets.query(GROUP, "T", 0) == 1
        member = Member(peer)
        assert [each.text for each in await member.pop()] == ["7", "8", "9"]
        # What the timer brings later is of pops that were taken over.
        Left(ours).put(CHECKPOINT_TAG, later, queue_id=2)

    caplog.clear()
    async with Broker(config) as ours:
        assert out(ours) == [1, 3, 4, 6, 7, 8, 9]
        assert "taken over" not in caplog.text
        # The Java broker goes on behind all, and gets what is out by the offset of the group.
        assert ours.parts.tables.offsets.query(REVIVE_GROUP, LOG, 0) == 3
        assert ours.parts.tables.offsets.query(REVIVE_GROUP, LOG, 2) == 0


async def test_a_crash_before_the_offsets_are_written_takes_over_again(tmp_path: Path):
    config = small_config(tmp_path, timer_wheel_enable=False, flush_consumer_offset_interval=60_000)
    broker = await left(config)
    store = Left(broker)
    store.put(CHECKPOINT_TAG, checkpoint(1, 2, pt=broker.parts.now_ms()))
    store.commit(7)
    await broker.stop()
    files = {path: path.read_bytes() for path in config.config_folder.glob("*.json")}
    for _ in range(2):
        async with Broker(config) as ours:
            assert out(ours) == [1, 2]
            assert ours.parts.tables.offsets.query(GROUP, "T", 0) == 1
        for path in config.config_folder.glob("*.json"):
            path.unlink()
        for path, data in files.items():
            path.write_bytes(data)


async def test_a_store_without_the_log_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(java_pop_reader, "JavaPopReader", None)
    async with Broker(small_config(tmp_path)) as broker:
        assert out(broker) == []


async def test_what_a_java_broker_has_in_rocksdb_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = small_config(tmp_path)
    folder = config.store_path_root_dir / java_pops.KV_FOLDER
    folder.mkdir(parents=True)
    (folder / "000001.log").touch()
    async with Broker(config):
        assert "mqadmin exportPopRecord" in caplog.text


async def test_records_of_a_java_broker_are_read_as_it_writes_them(tmp_path: Path):
    config = small_config(tmp_path, timer_wheel_enable=False)
    broker = await left(config)
    store = Left(broker)
    store.put(CHECKPOINT_TAG, CHECKPOINT)
    store.put(ACK_TAG, ACK)
    store.put(BATCH_ACK_TAG, BATCH_ACK)
    store.commit(9)
    await broker.stop()
    async with Broker(config) as ours:
        assert out(ours) == [0, 1]
