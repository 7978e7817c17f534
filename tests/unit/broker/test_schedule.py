"""Delayed messages, delivered by a clock that the test turns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.services.writer import NewRecord
from kerolox.message import MessageId, pack_host
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from kerolox.store.flush import CommitLogFlusher
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


async def deliver_at(broker: Broker, milliseconds: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Deliver as if so much time had gone by."""
    later = broker.parts.now_ms() + milliseconds
    monkeypatch.setattr(broker.parts.writing.schedule, "_now_ms", lambda: later)
    return await broker.parts.writing.schedule.deliver_due()


@pytest.fixture
def long_delays(tmp_path, monkeypatch):
    """Levels that do not end while a test runs; nothing is delivered but by the test."""
    monkeypatch.setattr("kerolox.broker.broker.DELIVER_SECONDS", 3_600.0)
    return small_config(tmp_path, message_delay_level="1h 2h")


async def test_a_delayed_message_comes_when_its_time_has_come(long_delays, kernel, monkeypatch):
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        text = "KEYS\x01k\x02TAGS\x01a\x02DELAY\x012\x02WAIT\x01true"
        answer = await peer.send("T", b"later", queue_id=3, properties=text)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["queueId"] == "3"
        assert await peer.messages("T", 3) == []
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 0
        assert await deliver_at(broker, 7_200_000, monkeypatch) == 1
        assert await broker.parts.writing.schedule.deliver_due() == 0
        [message] = await peer.messages("T", 3)
        assert message.body == b"later"
        assert message.tags == "a"
        assert message.properties["REAL_TOPIC"] == "T"
        assert message.properties["REAL_QID"] == "3"
        assert message.properties["DELAY"] == "2"
        assert message.born_timestamp == 1_700_000_000_000
        answer = await peer.pull("T", 3, tags="a")
        assert answer.code == ResponseCode.SUCCESS
        assert broker.parts.writing.schedule.offsets == {2: 1}


async def test_a_message_is_due_one_delay_after_the_time_that_its_record_notes(
    long_delays, kernel, monkeypatch
):
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        # The clock goes on between a handler and the store.
        monkeypatch.setattr(
            broker.parts.writing.writer, "_now_ms", lambda: broker.parts.now_ms() - 1_000
        )
        await peer.send("T", b"later", properties="DELAY\x011")
        place, _size, due = broker.parts.store.queue_entry("SCHEDULE_TOPIC_XXXX", 0, 0)
        [record] = decode_records(broker.parts.store.lookup(place))
        assert due == record.store_timestamp + 3_600_000


async def test_many_messages_of_one_level_hold_up_no_other(long_delays, monkeypatch):
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for number in range(150):
            await peer.send("T", b"%d" % number, properties="DELAY\x011")
        await peer.send("T", b"other", properties="DELAY\x012")
        assert await deliver_at(broker, 7_200_000, monkeypatch) == 151
        bodies = []
        while len(bodies) < 151:
            bodies += [message.body for message in await peer.messages("T", offset=len(bodies))]
        assert bodies.index(b"other") == 100


async def test_large_messages_of_one_level_hold_up_no_other(long_delays, monkeypatch):
    monkeypatch.setattr("kerolox.broker.services.schedule.SLICE_BYTES", 1_500)
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for number in range(3):
            await peer.send("T", b"%d" % number * 1_000, properties="DELAY\x011")
        await peer.send("T", b"other", properties="DELAY\x012")
        assert await deliver_at(broker, 7_200_000, monkeypatch) == 4
        bodies = [message.body[:5] for message in await peer.messages("T")]
        assert bodies == [b"00000", b"11111", b"other", b"22222"]


async def test_a_level_above_the_last_is_the_last(long_delays, monkeypatch):
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await peer.send("T", properties="DELAY\x0199")
        assert broker.parts.store.queue_bounds("SCHEDULE_TOPIC_XXXX", 1) == (0, 1)


@pytest.mark.parametrize(
    ("levels", "wait_ms", "delivered"),
    [
        # Due further away than the level is long now: at once, as with a clock that was set back.
        ("30m", 0, 1),
        # A level that is longer now: those that are there keep the time that was said to them.
        ("3h", 3_500_000, 0),
        ("3h", 3_600_000, 1),
    ],
)
async def test_a_level_of_another_length_counts_for_what_waits(
    long_delays, tmp_path, monkeypatch, levels: str, wait_ms: int, delivered: int
):
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await peer.send("T", b"x", properties="DELAY\x011")
    async with Broker(small_config(tmp_path, message_delay_level=levels)) as broker:
        assert await deliver_at(broker, wait_ms, monkeypatch) == delivered


async def test_a_level_that_is_gone_keeps_its_messages_until_it_is_back(
    long_delays, tmp_path, monkeypatch, caplog
):
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await peer.send("T", b"x", properties="DELAY\x012")
    caplog.set_level("WARNING", logger="kerolox.broker")
    told = "1 delayed messages of level 2 wait until messageDelayLevel, which has 1 levels now"
    assert told not in caplog.text
    async with Broker(small_config(tmp_path, message_delay_level="1h")) as broker:
        assert told in caplog.text
        assert await deliver_at(broker, 9_000_000, monkeypatch) == 0
    async with Broker(long_delays) as broker:
        assert await deliver_at(broker, 9_000_000, monkeypatch) == 1


async def test_a_topic_that_was_deleted_gets_what_was_delayed_for_it(
    long_delays, kernel, monkeypatch
):
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"before")
        await peer.send("T", b"delayed", properties="DELAY\x011")
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 1
        assert (await peer.pull("T")).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.create_topic("T")
        assert [m.body for m in await peer.messages("T")] == [b"delayed"]


async def test_a_message_that_can_t_be_stored_holds_up_no_other(
    long_delays, kernel, monkeypatch, caplog
):
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        host = pack_host("127.0.0.1", 1)
        for topic in ("a/b", "T"):
            record = NewRecord(
                topic=topic,
                queue_id=0,
                body=b"x",
                properties={"DELAY": "1"},
                born_timestamp=1,
                born_host=host,
                store_host=host,
            )
            assert (await broker.parts.writing.writer.put(record)).is_stored
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 2
        assert [m.body for m in await peer.messages("T")] == [b"x"]
    assert "to a/b: MESSAGE_ILLEGAL; dropped" in caplog.text


async def test_a_message_for_one_light_queue_too_many_waits_once_more(
    tmp_path, kernel, monkeypatch
):
    light = {"enable_lmq": True, "enable_multi_dispatch": True, "max_lmq_consume_queue_num": 1}
    config = small_config(tmp_path, message_delay_level="1h", **light)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for topic in ("%LMQ%b", "T"):
            sent = await peer.send(topic, b"later", properties="DELAY\x011")
            assert sent.code == ResponseCode.SUCCESS
        assert (await peer.send("%LMQ%a", b"x")).code == ResponseCode.SUCCESS
        await deliver_at(broker, 3_600_000, monkeypatch)
        assert [m.body for m in await peer.messages("T")] == [b"later"]
        assert broker.parts.store.queue_bounds("%LMQ%b", 0) == (0, 0)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%LMQ%a"})
        await deliver_at(broker, 3_600_000, monkeypatch)
        assert broker.parts.store.queue_bounds("%LMQ%b", 0) == (0, 1)
        assert broker.parts.store.queue_bounds("T", 0) == (0, 1)


async def test_on_a_full_disk_what_is_due_waits(long_delays, monkeypatch):
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"later", properties="DELAY\x011")
        broker.parts.writing.gate.set_writable(False)
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 0
        assert broker.parts.writing.schedule.offsets == {}
        broker.parts.writing.gate.set_writable(True)
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 1


async def test_with_sync_flush_what_is_delivered_goes_to_the_disk_at_once(
    tmp_path, kernel, monkeypatch
):
    config = small_config(
        tmp_path,
        message_delay_level="1h",
        flush_disk_type="SYNC_FLUSH",
        flush_commit_log_thorough_interval=3_600_000,
    )
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.send("T", b"later", properties="DELAY\x011")
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 1
        end = broker.parts.store.max_physical_offset
        await until(lambda: broker.parts.store.flushed_offset == end)


@pytest.fixture
def sync_delays(tmp_path, monkeypatch):
    """As ``long_delays``, under SYNC_FLUSH."""
    monkeypatch.setattr("kerolox.broker.broker.DELIVER_SECONDS", 3_600.0)
    return small_config(tmp_path, message_delay_level="1h", flush_disk_type="SYNC_FLUSH")


async def test_no_position_is_kept_of_what_a_failed_flush_left_off_the_disk(
    sync_delays, monkeypatch
):
    def fail(flusher: CommitLogFlusher, index: int) -> None:
        raise OSError("the disk failed")

    async with Broker(sync_delays, kernel="python") as broker, peer_of(broker) as peer:
        await peer.send("T", b"later", properties="DELAY\x011")
        with monkeypatch.context() as patches:
            patches.setattr(CommitLogFlusher, "_sync_file", fail)
            assert await deliver_at(broker, 3_600_000, monkeypatch) == 1
            await until(lambda: broker.parts.store.has_failed)
            await broker.parts.writing.schedule.persist()
    async with Broker(sync_delays, kernel="python") as broker:
        assert broker.parts.writing.schedule.offsets == {}


async def test_a_position_is_kept_when_what_it_stands_for_is_on_the_disk(sync_delays, monkeypatch):
    lets_through = threading.Event()
    sync_file = CommitLogFlusher._sync_file

    def wait(flusher: CommitLogFlusher, index: int) -> None:
        lets_through.wait(10)
        sync_file(flusher, index)

    path = sync_delays.config_folder / "delayOffset.json"
    async with Broker(sync_delays, kernel="python") as broker, peer_of(broker) as peer:
        for _ in range(2):
            await peer.send("T", b"later", properties="DELAY\x011")
        schedule = broker.parts.writing.schedule
        monkeypatch.setattr("kerolox.broker.services.schedule.DELIVERIES_PER_SLICE", 1)
        monkeypatch.setattr(CommitLogFlusher, "_sync_file", wait)
        later = broker.parts.now_ms() + 3_600_000
        monkeypatch.setattr(schedule, "_now_ms", lambda: later)
        schedule._deliver_slice(1)
        writing = asyncio.create_task(schedule.persist())
        await asyncio.sleep(0)
        # Delivered while the first one is on its way to the disk.
        schedule._deliver_slice(1)
        assert not path.exists()
        lets_through.set()
        await writing
        assert "1:1" in path.read_text()
        await schedule.persist()
        assert "1:2" in path.read_text()


async def test_positions_are_written_as_often_as_the_settings_say(tmp_path, monkeypatch):
    config = small_config(tmp_path, message_delay_level="1h", flush_delay_offset_interval=100)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.send("T", b"x", properties="DELAY\x011")
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 1
        path = config.config_folder / "delayOffset.json"
        await until(lambda: path.exists() and b"1:1" in path.read_bytes())


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_no_delay_is_no_delay(peer: Peer, level: str):
    await peer.create_topic("T")
    await peer.send("T", b"now", properties=f"DELAY\x01{level}")
    assert [m.body for m in await peer.messages("T")] == [b"now"]


async def test_a_delay_that_is_no_number_is_code_1(peer: Peer):
    answer = await peer.send("T", properties="DELAY\x01soon")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the property DELAY is no number: 'soon'"


async def test_positions_outlive_a_restart_and_nothing_comes_twice(long_delays, monkeypatch):
    async with Broker(long_delays) as broker, peer_of(broker) as peer:
        for index in range(250):
            await peer.send("T", b"%d" % index, properties="DELAY\x011")
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 250
        answer = await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert fastjson.loads(answer.body) == {"offsetTable": {1: 250}}
    assert "1:250" in (long_delays.config_folder / "delayOffset.json").read_text()
    async with Broker(long_delays) as broker:
        assert await deliver_at(broker, 3_600_000, monkeypatch) == 0
        assert broker.parts.store.queue_bounds("T", 0) == (0, 250)


async def test_a_position_outside_its_queue_is_brought_inside(long_delays):
    long_delays.config_folder.mkdir(parents=True)
    (long_delays.config_folder / "delayOffset.json").write_text('{"offsetTable":{1:77,2:0}}')
    async with Broker(long_delays) as broker:
        assert broker.parts.writing.schedule.offsets == {1: 0, 2: 0}


async def test_a_real_second_of_delay_wakes_a_waiting_consumer(tmp_path, kernel):
    config = small_config(tmp_path, message_delay_level="1s")
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"soon", properties="DELAY\x011")
        answer = await peer.pull("T", suspend_ms=60_000)
        assert answer.code == ResponseCode.SUCCESS


async def test_a_message_given_back_comes_again_to_its_group(long_delays, kernel, monkeypatch):
    async with Broker(long_delays, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.heartbeat("c1", topics={"T": "*", "%RETRY%readers": "*"})
        sent = await peer.send("T", b"again", properties="TAGS\x01a")
        offset = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
        held = asyncio.create_task(
            peer.pull("%RETRY%readers", tags=None, subVersion=1, suspend_ms=60_000)
        )
        await until(lambda: broker.parts.store.stats()["held_pulls"] == 1)
        fields = {"offset": offset, "group": "readers", "delayLevel": 0}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
        assert await deliver_at(broker, 7_200_000, monkeypatch) == 1
        [message] = decode_records((await held).body)
        assert (message.body, message.tags, message.reconsume_times) == (b"again", "a", 1)
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]
