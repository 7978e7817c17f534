"""Masters and slaves as whole brokers: what is copied, waited for, refused, and gone on with."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.replication import server
from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.names import HALF_TOPIC, TRANSACTION_GROUP
from kerolox.protocol.records import encode_batch
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import SECONDS_MAX, until

from .pairs import (
    fill,
    ha_port,
    log_of,
    master_config,
    pair,
    quick_retries,
    raw_slave,
    slave_config,
    until_equal,
)

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

SYNC = {"broker_role": "SYNC_MASTER", "slave_timeout": 20_000}
ENDING = {
    "producerGroup": "PG",
    "tranStateTableOffset": 0,
    "commitLogOffset": 0,
    "commitOrRollback": 8,
    "fromTransactionCheck": "false",
    "msgId": "",
    "transactionId": "",
}
SLAVE_TEXT = "Can't modify topic or subscription group from slave broker"


async def test_a_slave_has_its_masters_log_queues_and_messages(tmp_path: Path, kernel: str):
    async with pair(tmp_path, kernel, of_slave={"slave_read_enable": True}) as (master, slave):
        # Some files of the log.
        await fill(master, 3_000)
        await until_equal(master, slave)
        await slave.parts.peers.replication.tables.sync_from(master.address)
        async with peer_of(slave) as peer:
            [first, *_] = await peer.messages("T", 3)
        assert first.body.startswith(b"3 x")


async def test_either_side_may_stop_and_go_on(tmp_path: Path, kernel: str):
    config = master_config(tmp_path)
    async with Broker(config, kernel=kernel) as master:
        await fill(master, 50)
        async with Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave:
            await until_equal(master, slave)
        await fill(master, 50)
        again = slave_config(tmp_path, ha_port(master))
        async with Broker(again, kernel=kernel) as slave:
            await until_equal(master, slave)
            port = ha_port(master)
            await master.stop()
            named = master_config(tmp_path, ha_listen_port=port)
            async with Broker(named, kernel=kernel) as restarted:
                await fill(restarted, 50)
                await until_equal(restarted, slave)


async def test_an_empty_slave_of_ours_gets_all_files_of_its_master(tmp_path: Path, kernel: str):
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        await fill(master, 2_500)
        assert master.parts.store.log_files()[-1][1] > 0
        async with Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave:
            await until_equal(master, slave)
            assert slave.parts.store.min_physical_offset == 0


async def test_an_empty_slave_begins_where_its_masters_log_does(tmp_path: Path, kernel: str):
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        await fill(master, 2_500)
        store = master.parts.store
        assert store.drop_log_file() is not None
        begin = store.min_physical_offset
        async with Broker(slave_config(tmp_path, ha_port(master)), kernel=kernel) as slave:
            await until(lambda: slave.parts.store.max_physical_offset == store.max_physical_offset)
            assert slave.parts.store.min_physical_offset == begin > 0
            assert log_of(slave) == log_of(master)


async def test_a_slave_that_says_no_hello_begins_with_the_last_file(tmp_path: Path, kernel: str):
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        await fill(master, 2_500)
        last = master.parts.store.log_files()[-1][1]
        async with raw_slave(master) as slave:
            slave.report(0)
            assert (await slave.frame())[0] == last > 0


async def test_a_sync_master_without_a_slave_says_so_and_stores(tmp_path: Path, kernel: str):
    config = master_config(tmp_path, **SYNC)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        assert (await peer.send("T", b"a")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        # Its sender does not wait for others (isWaitStoreMsgOK).
        answer = await peer.send("T", b"b", properties="WAIT\x01false")
        assert answer.code == ResponseCode.SUCCESS
        assert [message.body for message in await peer.messages("T")] == [b"a", b"b"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_what_a_sync_master_acknowledges_is_on_a_slave(
    tmp_path: Path, kernel: str, flush: str
):
    async with pair(tmp_path, kernel, of_master={**SYNC, "flush_disk_type": flush}) as brokers:
        master, slave = brokers
        async with peer_of(master) as peer:
            await peer.create_topic("T")
            for number in range(20):
                answer = await peer.send("T", b"%d" % number)
                assert answer.code == ResponseCode.SUCCESS
                assert slave.parts.store.queue_bounds("T", 0)[1] == number + 1


async def test_a_slave_that_is_late_or_far_behind_is_told_of(tmp_path: Path, kernel: str):
    more = {**SYNC, "slave_timeout": 50, "ha_slave_fallbehind_max": 4_000}
    config = master_config(tmp_path, **more)
    async with (
        Broker(config, kernel=kernel) as master,
        raw_slave(master) as slave,
        peer_of(master) as peer,
    ):
        await peer.create_topic("T")
        slave.report(0)
        await until(lambda: master.parts.peers.replication.waits.replicated.slaves == 1)
        assert (await peer.send("T", b"a")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        answer = await peer.send("T", b"x" * 4_000)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_halves_batches_and_returned_messages_wait_for_slaves(tmp_path: Path, kernel: str):
    config = master_config(tmp_path, **SYNC)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        half = {"f": 4, "properties": "TRAN_MSG\x01true\x02PGROUP\x01PG"}
        batch = encode_batch([(0, b"x", b"")])
        sends = [
            await peer.send("T", b"a", **half),
            await peer.send("T", batch, code=RequestCode.SEND_BATCH_MESSAGE, m="true"),
        ]
        assert {answer.code for answer in sends} == {ResponseCode.SLAVE_NOT_AVAILABLE}
        back = {"group": "readers", "offset": 0, "delayLevel": 0, "originTopic": "T"}
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SUCCESS
        ending = {
            "producerGroup": "PG",
            "tranStateTableOffset": sends[0].ext_fields["queueOffset"],
            "commitLogOffset": int(sends[0].ext_fields["msgId"][16:], 16),
            "commitOrRollback": 8,
        }
        answer = await peer.ask(RequestCode.END_TRANSACTION, ENDING | ending)
        assert answer.code == ResponseCode.SUCCESS
        bodies = [message.body for message in await peer.messages("T")]
        assert bodies == [b"x", b"a"]


async def test_a_slave_takes_no_messages_and_no_changes(tmp_path: Path, kernel: str):
    async with pair(tmp_path, kernel) as (_master, slave), peer_of(slave) as peer:
        answer = await peer.send("TBW102")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "messages are put to the slave" in str(answer.remark)
        answers = [
            await peer.create_topic("T"),
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
            await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{}"),
            await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}),
        ]
        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
        assert all(SLAVE_TEXT in str(answer.remark) for answer in answers)
        answer = await peer.ask(RequestCode.END_TRANSACTION, ENDING)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_slave_takes_its_masters_tables(tmp_path: Path, kernel: str):
    async with pair(tmp_path, kernel) as (master, slave), peer_of(master) as peer:
        await peer.create_topic("T", 3)
        group = b'{"groupName":"readers","retryMaxTimes":3}'
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
        fields = {"consumerGroup": "readers", "topic": "T", "queueId": 1, "commitOffset": 7}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        await peer.send("T", b"later", properties="DELAY\x011")
        await until(lambda: master.parts.writing.schedule.offsets == {1: 1})
        await until_equal(master, slave)
        tables = slave.parts.peers.replication.tables
        await tables.sync_from(master.address)
        mine, its = slave.parts, master.parts
        assert mine.tables.topics.snapshot() == its.tables.topics.snapshot()
        assert mine.tables.groups.snapshot() == its.tables.groups.snapshot()
        assert mine.tables.offsets.query("readers", "T", 1) == 7
        assert mine.writing.schedule.offsets == its.writing.schedule.offsets == {1: 1}
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
        await tables.sync_from(master.address)
        assert mine.tables.topics.get("T") is None
        assert mine.tables.groups.get("readers") is None


async def test_delay_positions_wait_for_the_log_that_they_stand_for(tmp_path: Path, kernel: str):
    async with pair(tmp_path, kernel) as (master, first):
        await until_equal(master, first)
        other = slave_config(tmp_path, 1, store_path_root_dir=tmp_path / "other")
        async with Broker(other, kernel=kernel) as slave, peer_of(master) as peer:
            await peer.create_topic("T")
            await peer.send("T", b"later", properties="DELAY\x011")
            await until(lambda: master.parts.writing.schedule.offsets == {1: 1})
            tables = slave.parts.peers.replication.tables
            await tables.take_from(master.address)
            assert slave.parts.writing.schedule.offsets == {}
            slave.parts.store.append_log(0, log_of(master))
            await tables.take_from(master.address)
            assert slave.parts.writing.schedule.offsets == {1: 1}


async def test_positions_of_transactions_wait_for_the_log_they_stand_for(
    tmp_path: Path, kernel: str
):
    async with pair(tmp_path, kernel) as (master, first):
        await until_equal(master, first)
        other = slave_config(tmp_path, 1, store_path_root_dir=tmp_path / "other")
        async with Broker(other, kernel=kernel) as slave:

            def position() -> int:
                return slave.parts.tables.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0)

            tables = slave.parts.peers.replication.tables
            await fill(master, 1)
            old = log_of(master)
            master.parts.tables.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1, "a test")
            master.parts.tables.offsets.commit("readers", "T", 0, 1, "a test")
            await tables.take_from(master.address)
            assert position() == -1
            assert slave.parts.tables.offsets.query("readers", "T", 0) == 1
            # The next check finds a longer log; what waits is not forgotten for what comes later.
            await fill(master, 1)
            master.parts.tables.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 2, "a test")
            await tables.take_from(master.address)
            assert position() == -1
            slave.parts.store.append_log(0, old)
            await tables.take_from(master.address)
            assert position() == 1
            slave.parts.store.append_log(len(old), log_of(master)[len(old) :])
            await tables.take_from(master.address)
            assert position() == 2


async def slave_with_messages(tmp_path: Path, kernel: str, **more: Any) -> Any:
    """A slave of nobody, with what a master left in its folder."""
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        await fill(master, 40)
    (tmp_path / "master").rename(tmp_path / "slave")
    return Broker(slave_config(tmp_path, 1, **more), kernel=kernel)


async def test_a_slave_without_slave_read_enable_serves_and_suggests_its_master(
    tmp_path: Path, kernel: str
):
    async with await slave_with_messages(tmp_path, kernel) as slave, peer_of(slave) as peer:
        for offset, code, next_offset, has_records in (
            (0, ResponseCode.SUCCESS, 10, True),
            (10, ResponseCode.PULL_NOT_FOUND, 10, False),
            (1_000, ResponseCode.PULL_RETRY_IMMEDIATELY, 1_000, False),
        ):
            answer = await peer.pull("T", offset=offset)
            assert (answer.code, bool(answer.body)) == (code, has_records)
            assert answer.ext_fields["nextBeginOffset"] == str(next_offset)
            assert answer.ext_fields["suggestWhichBrokerId"] == "0"


async def test_a_slave_that_is_read_suggests_what_the_group_says(tmp_path: Path, kernel: str):
    of_slave = {"slave_read_enable": True}
    made = await slave_with_messages(tmp_path, kernel, **of_slave)
    async with made as slave, peer_of(slave) as peer:
        answer = await peer.pull("T", group="plain")
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        slave.parts.tables.groups.put(SubscriptionGroupConfig(group_name="own", broker_id=1))
        answer = await peer.pull("T", group="own")
        assert answer.ext_fields["suggestWhichBrokerId"] == "1"


async def test_a_slow_reader_is_sent_where_its_group_says(tmp_path: Path, kernel: str):
    more = {"slave_read_enable": True, "access_message_in_memory_max_ratio": 0}
    async with Broker(master_config(tmp_path, **more), kernel=kernel) as master:
        await fill(master, 100)
        async with peer_of(master) as peer:
            for which in (1, 3):
                group = b'{"groupName":"slow","whichBrokerWhenConsumeSlowly":%d}' % which
                await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
                answer = await peer.pull("T", group="slow")
                assert answer.ext_fields["suggestWhichBrokerId"] == str(which)


@pytest.mark.parametrize("checks", [False, True])
async def test_an_offset_outside_a_slaves_queue_is_its_masters_affair(
    tmp_path: Path, kernel: str, checks: bool, caplog
):
    more = {"slave_read_enable": True, "offset_check_in_slave": checks}
    made = await slave_with_messages(tmp_path, kernel, **more)
    async with made as slave, peer_of(slave) as peer:
        slave.parts.tables.groups.put(SubscriptionGroupConfig(group_name="own", broker_id=1))
        answer = await peer.pull("T", offset=1_000, group="own")
    seen = answer.code, answer.ext_fields["nextBeginOffset"]
    code = ResponseCode.PULL_OFFSET_MOVED if checks else ResponseCode.PULL_RETRY_IMMEDIATELY
    assert seen == (code, "10" if checks else "1000")
    assert answer.ext_fields["suggestWhichBrokerId"] == "1"
    assert ("offset moved: group own, topic T, queue 0" in caplog.text) == checks


async def test_a_slave_keeps_no_offset_that_comes_with_a_pull(tmp_path: Path, kernel: str):
    async with await slave_with_messages(tmp_path, kernel, slave_read_enable=True) as slave:
        async with peer_of(slave) as peer:
            flags = int(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION)
            await peer.pull("T", offset=5, sys_flag=flags, commitOffset=5)
        assert slave.parts.tables.offsets.query("readers", "T", 0) == -1


async def test_a_slave_that_is_ahead_of_its_master_is_told_of(tmp_path: Path, kernel: str, caplog):
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        await fill(master, 5)
        async with raw_slave(master) as slave:
            slave.report(1 << 40)
            assert await slave.is_closed()
        assert "its log reaches 1099511627776, and the one here ends at" in caplog.text
        assert master.parts.peers.replication.waits.replicated.offset == 0
        await fill(master, 5)


async def test_garbage_and_silence_end_their_own_connection(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "SLAVES_MAX", 3)
    of_master = {"ha_housekeeping_interval": 300}
    async with pair(tmp_path, kernel, of_master=of_master) as (master, slave):
        async with raw_slave(master) as garbage, raw_slave(master) as silent:
            garbage.writer.write(b"\xff" * 1_000)
            assert await garbage.is_closed()
            async with raw_slave(master) as late, raw_slave(master) as one_too_many:
                assert await one_too_many.is_closed()
                assert await silent.is_closed()
                assert await late.is_closed()
        await fill(master, 20)
        await until_equal(master, slave)


async def test_a_slave_that_reads_nothing_costs_no_memory_and_no_other(tmp_path: Path, kernel: str):
    async with pair(tmp_path, kernel) as (master, slave), raw_slave(master) as lazy:
        cast("asyncio.Transport", lazy.writer.transport).pause_reading()
        lazy.report(0)
        await fill(master, 3_000)
        await until_equal(master, slave)


async def test_a_master_stops_in_bounded_time_while_it_sends(tmp_path: Path, kernel: str):
    master = Broker(master_config(tmp_path), kernel=kernel)
    await master.start()
    await fill(master, 1_000)
    async with raw_slave(master) as slave:
        slave.report(1)
        await slave.reader.readexactly(100)
        start = time.monotonic()
        async with asyncio.timeout(SECONDS_MAX):
            await master.stop()
        assert time.monotonic() - start < SECONDS_MAX / 2
        assert await slave.is_closed()


async def test_a_name_server_tells_a_slave_where_its_master_is(tmp_path: Path, kernel: str):
    config = NamesrvConfig.load(None, listen_port=0, kv_config_path=tmp_path / "kv.json")
    async with NameServer(config) as namesrv:
        known = {"namesrv_addr": f"127.0.0.1:{namesrv.port}", "vip_port_enable": False}
        of_slave = {"ha_master_address": "", **known}
        async with pair(tmp_path, kernel, of_master=known, of_slave=of_slave) as (master, slave):
            await fill(master, 20)
            await until_equal(master, slave)
            await slave.parts.peers.replication.tables.sync()
            assert slave.parts.tables.topics.get("T") is not None


async def test_the_port_for_slaves_is_as_the_settings_say(tmp_path: Path, caplog):
    async with Broker(master_config(tmp_path)) as master:
        taken = ha_port(master)
        with pytest.raises(ConfigError, match="haListenPort"):
            await Broker(small_config(tmp_path, ha_listen_port=taken)).start()
        async with raw_slave(master) as slave:
            slave.report(0)
            assert (await slave.frame())[1] == b""
