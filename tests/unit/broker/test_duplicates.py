"""Topics that store no message twice: what a second send is told, and what a restart remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.message import encode_properties
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.duplicates import DedupWindow
from kerolox.protocol.records import encode_batch
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until
from tests.unit.broker.replication.pairs import quick_retries
from tests.unit.broker.roles.cluster import pair_of
from tests.unit.broker.test_transactions import COMMIT, ROLLBACK, bodies, end, prepare

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

WINDOW = "+dedup.window.ms=60000"
PLACE = ("msgId", "queueId", "queueOffset")


def keyed(key: str, **more: str) -> str:
    return encode_properties({"UNIQ_KEY": key, **more})


async def send(peer: Peer, key: str, queue_id: int = 0, **more: Any) -> dict[str, str]:
    properties = keyed(key, **more.pop("properties", {}))
    answer = await peer.send("T", key.encode(), queue_id=queue_id, properties=properties, **more)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext_fields


def place(fields: dict[str, str]) -> list[str]:
    return [fields[name] for name in PLACE]


async def send_batch(peer: Peer, *keys: str, queue_id: int = 0) -> dict[str, str]:
    body = encode_batch([(0, key.encode(), keyed(key).encode()) for key in keys])
    code = RequestCode.SEND_BATCH_MESSAGE
    answer = await peer.send("T", body, queue_id=queue_id, code=code, m="true")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext_fields


def answered(broker: Broker) -> int:
    return broker.parts.writing.duplicates.answered["T"]


async def test_a_second_send_is_answered_with_the_place_of_the_first(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T", attributes=WINDOW)
    first = await send(any_peer, "k", 2)
    assert "duplicate" not in first
    second = await send(any_peer, "k", 1)
    assert place(second) == place(first)
    assert second["duplicate"] == "true"
    assert [len(await any_peer.messages("T", queue)) for queue in range(4)] == [0, 0, 1, 0]
    assert answered(any_broker) == 1


async def test_without_the_attribute_and_after_it_is_gone_all_is_stored(any_peer: Peer):
    await any_peer.create_topic("T")
    await send(any_peer, "k")
    assert "duplicate" not in await send(any_peer, "k")
    await any_peer.create_topic("T", attributes=WINDOW)
    assert "duplicate" not in await send(any_peer, "k")
    assert (await send(any_peer, "k"))["duplicate"] == "true"
    await any_peer.create_topic("T", attributes="-dedup.window.ms")
    assert "duplicate" not in await send(any_peer, "k")


@pytest.mark.parametrize(
    "wrong", ["dedup.window.ms=0", "dedup.window.ms=86400001", "dedup.key=BODY"]
)
async def test_values_that_make_no_sense_are_refused(any_peer: Peer, wrong: str):
    answer = await any_peer.create_topic("T", attributes=f"+{wrong}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("value is not in ")


async def test_keys_may_count_instead_of_the_unique_key(any_peer: Peer):
    await any_peer.create_topic("T", attributes=f"{WINDOW},+dedup.key=KEYS")
    first = await send(any_peer, "a", properties={"KEYS": "order-1 customer-2"})
    assert "duplicate" not in await send(any_peer, "a", properties={"KEYS": "order-1"})
    assert "duplicate" not in await send(any_peer, "a")
    assert place(await send(any_peer, "b", properties={"KEYS": "order-1 customer-2"})) == place(
        first
    )


async def test_each_message_of_a_batch_counts_by_itself(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T", attributes=WINDOW)
    first = await send_batch(any_peer, "a", "b", queue_id=1)
    again = await send_batch(any_peer, "a", "b", queue_id=3)
    assert place(again) == place(first)
    assert (again["duplicate"], again["duplicates"]) == ("true", "0:1:0 1:1:1")
    mixed = await send_batch(any_peer, "c", "b", "d", "c", queue_id=3)
    assert (mixed["queueId"], mixed["queueOffset"], mixed["duplicate"]) == ("3", "0", "false")
    assert mixed["duplicates"] == "1:1:1 3:3:0"
    ids = mixed["msgId"].split(",")
    assert (ids[1], ids[3]) == (first["msgId"].split(",")[1], ids[0])
    stored = [[each.body for each in await any_peer.messages("T", queue)] for queue in range(4)]
    assert stored == [[], [b"a", b"b"], [], [b"c", b"d"]]
    assert answered(any_broker) == 4


async def test_of_a_transaction_the_commit_counts(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T", attributes=WINDOW)
    for outcome in (ROLLBACK, COMMIT, COMMIT):
        half = await prepare(any_peer, "k")
        assert "duplicate" not in half.ext_fields
        await end(any_peer, half, outcome)
    assert len(await bodies(any_peer, "T")) == 1
    assert (await send(any_peer, "k"))["duplicate"] == "true"
    transactions = any_broker.parts.writing.transactions
    assert transactions.open_halves == 0


async def test_a_message_that_waits_counts_from_when_it_was_sent(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T", attributes=WINDOW)
    delays = ({"DELAY": "18"}, {"TIMER_DELAY_SEC": "3600"})
    for number, delay in enumerate(delays):
        first = await send(any_peer, f"k{number}", 3, properties=delay)
        second = await send(any_peer, f"k{number}", 1, properties=delay)
        assert place(second) == place(first)
        assert second.get("recallHandle") == first.get("recallHandle")
        assert second["duplicate"] == "true"


async def take_back(peer: Peer, sent: dict[str, str]) -> None:
    fields = {"topic": "T", "recallHandle": sent["recallHandle"], "producerGroup": "p"}
    answer = await peer.ask(RequestCode.RECALL_MESSAGE, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.parametrize("more", [{}, {"KEYS": "order-1"}], ids=["UNIQ_KEY", "KEYS"])
async def test_the_key_of_a_message_that_is_taken_back_may_be_sent_again(
    tmp_path: Path, kernel: str, more: dict[str, str]
):
    config = small_config(tmp_path)
    attributes = f"{WINDOW},+dedup.key=KEYS" if more else WINDOW
    soon, later = {"TIMER_DELAY_SEC": "3600", **more}, {"TIMER_DELAY_SEC": "3700", **more}
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=attributes)
        first = await send(peer, "k", properties=soon)
        assert (await send(peer, "k", properties=soon))["duplicate"] == "true"
        await until(lambda: broker.parts.store.stats()["index_pending"] == 0)
        await take_back(peer, first)
        assert broker.parts.store.dedup_windows()[0].keys == 0
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        second = await send(peer, "k" if not more else "other", properties=later)
        assert "duplicate" not in second
        assert place(await send(peer, "k", properties=later)) == place(second)


async def test_a_command_frees_no_key_that_another_message_has_by_now(tmp_path: Path, kernel: str):
    config = small_config(tmp_path)
    sent = {"TIMER_DELAY_SEC": "3600", "KEYS": "order-1"}
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=f"{WINDOW},+dedup.key=KEYS")
        first = await send(peer, "k", properties=sent)
        await take_back(peer, first)
        second = await send(peer, "other", properties=sent)
        again = {**sent, "TIMER_DEL_UNIQKEY": "T+k"}
        await send(peer, "command", properties=again)
        assert place(await send(peer, "third", properties=sent)) == place(second)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert place(await send(peer, "third", properties=sent)) == place(second)


async def test_a_deleted_topic_takes_its_keys_with_it(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T", attributes=WINDOW)
    await send(any_peer, "k")
    await any_peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await any_peer.create_topic("T", attributes=WINDOW)
    assert "duplicate" not in await send(any_peer, "k")
    assert len(await any_peer.messages("T")) == 1


async def test_a_restart_reads_the_keys_of_the_window_and_no_others(tmp_path: Path, kernel: str):
    config = small_config(tmp_path)
    places = {}
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=WINDOW)
        await peer.create_topic("U", attributes=WINDOW)
        broker.parts.store.set_clock(broker.parts.now_ms() - 61_000)
        await send(peer, "old")
        broker.parts.store.set_clock(None)
        for number in range(6):
            places[str(number)] = place(await send(peer, str(number), number % 4))
        places["waits"] = place(await send(peer, "waits", 3, properties={"DELAY": "18"}))
        timed = await send(peer, "timed", 2, properties={"TIMER_DELAY_SEC": "3600"})
        places["timed"] = place(timed)
        back = await send(peer, "back", properties={"TIMER_DELAY_SEC": "3601"})
        await until(lambda: broker.parts.store.stats()["index_pending"] == 0)
        await take_back(peer, back)
        half = await prepare(peer, "open")
        assert half.code == ResponseCode.SUCCESS
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        for key, where in places.items():
            second = await send(peer, key)
            assert (key, place(second), second["duplicate"]) == (key, where, "true")
        for key in ("old", "back", "open"):
            assert "duplicate" not in await send(peer, key), key


async def test_more_keys_than_the_limit_are_the_newest_ones_after_a_restart(
    tmp_path: Path, kernel: str
):
    config = small_config(tmp_path, dedup_max_keys=3)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=WINDOW)
        now = broker.parts.now_ms()
        for number in range(6):
            broker.parts.store.set_clock(now + number)
            await send(peer, str(number), number % 4)
        ((_, keys, _, cut, _),) = broker.parts.store.dedup_windows()
        assert (keys, cut) == (3, 3)
    async with Broker(config, kernel=kernel) as broker:
        find = broker.parts.writing.duplicates.find
        assert [find("T", str(number).encode()) is not None for number in range(6)] == [
            *[False] * 3,
            *[True] * 3,
        ]


async def test_operators_see_that_a_window_is_cut(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, dedup_max_keys=1)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=WINDOW)
        for key in ("a", "b", "b"):
            await send(peer, key)
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert fastjson.loads(answer.body)["table"]["dedupKeysCut"] == "T:1"


async def test_a_promoted_slave_knows_what_its_master_stored(tmp_path: Path, kernel: str):
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_of(cluster["a"]) as peer:
            await peer.create_topic("T", attributes=WINDOW)
            places = {str(n): place(await send(peer, str(n), n % 4)) for n in range(8)}
        await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
        await cluster.until_following("b")
        await cluster.admin.promote_broker(cluster.at("b"))
        async with peer_of(cluster["b"]) as peer:
            for key, where in places.items():
                assert place(await send(peer, key)) == where


async def test_a_second_send_waits_for_the_disk_and_the_slave_of_the_first(
    tmp_path: Path, kernel: str
):
    slow = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 600_000}
    config = small_config(tmp_path, **slow)
    async with (
        Broker(config, kernel=kernel) as broker,
        peer_of(broker) as peer,
        peer_of(broker) as other,
    ):
        await peer.create_topic("T", attributes=WINDOW)
        waits = broker.parts.writing.writer.flush_waits
        reached = asyncio.Event()
        waited: list[int] = []
        usual = waits.wait

        async def wait(end_offset: int) -> bool:
            waited.append(end_offset)
            await reached.wait()
            return await usual(end_offset)

        waits.wait = wait  # type: ignore[method-assign]
        first = await send(peer, "k")
        second = asyncio.create_task(send(other, "k"))
        await until(lambda: len(waited) == 1)
        assert not second.done()
        # For the end of the first one's record, which is the last of the log.
        assert waited == [broker.parts.store.max_physical_offset]
        reached.set()
        assert place(await second) == place(first)


async def test_what_no_slave_has_is_no_success_for_the_second_send_either(
    tmp_path: Path, kernel: str
):
    config = small_config(tmp_path, broker_role="SYNC_MASTER")
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=WINDOW)
        answers = [await peer.send("T", properties=keyed("k")) for _ in range(2)]
        assert [each.code for each in answers] == [ResponseCode.SLAVE_NOT_AVAILABLE] * 2
        assert answers[1].ext_fields["duplicate"] == "true"


async def test_with_a_transient_pool_there_is_no_window_and_operators_hear_of_it(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
):
    config = small_config(tmp_path, transient_store_pool_enable=True)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        for _ in range(2):
            await peer.create_topic("T", attributes=WINDOW)
        assert caplog.text.count("topic T has dedup.window.ms, and stores each message") == 1
        await send(peer, "k")
        assert "duplicate" not in await send(peer, "k")
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert fastjson.loads(answer.body)["table"]["dedupWindowsOff"] == "T"
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
        assert "dedupKeys" not in answer.ext_fields
        await peer.create_topic("T", attributes="-dedup.window.ms")
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert "dedupWindowsOff" not in fastjson.loads(answer.body)["table"]


async def test_a_pool_that_a_synchronous_flush_does_not_use_forbids_no_window(
    tmp_path: Path, kernel: str
):
    config = small_config(tmp_path, transient_store_pool_enable=True, flush_disk_type="SYNC_FLUSH")
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", attributes=WINDOW)
        first = await send(peer, "k")
        assert place(await send(peer, "k")) == place(first)


async def test_the_settings_of_a_topic_come_with_what_its_window_has(
    any_broker: Broker, any_peer: Peer
):
    await any_peer.create_topic("T", attributes=WINDOW)
    for key in ("a", "b", "b"):
        await send(any_peer, key)
    answer = await any_peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    window = DedupWindow.decode(answer.ext_fields)
    assert (window.dedup_keys, window.dedup_answered, window.dedup_keys_cut) == (2, 1, 0)
    assert window.dedup_bytes > 0
    assert 0 <= window.dedup_age_ms < 60_000
