"""Tables that clients fill are bounded in bytes, and the next start reads what was written."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.tables import clients, groups, json_file, locks, offsets, topics
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.json_file import JsonFile
from kerolox.broker.tables.locks import QueueLocks
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.errors import BrokerError, StoreError
from kerolox.message import MessageQueue
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import peer_of, small_config
from tests.unit.broker.test_tables import RecordingStore, group_table, topic_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kerolox.broker.broker import Broker
    from tests.support.clients.peer import Peer

WORST = "\x01" * 255
"""The name that takes most in a file: six bytes a character."""

MEGABYTES = "n" * 3_000_000

COMMIT: dict[str, object] = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": 0,
    "commitOffset": 1,
}


def _refused(put: Callable[[int], object], count: int) -> str:
    """Put one thing after the other until one is refused; the error."""
    try:
        for number in range(count):
            put(number)
    except BrokerError as error:
        return error.remark or ""
    return "nothing is refused"


async def test_an_offset_of_a_group_with_a_long_name_is_refused(broker: Broker, peer: Peer) -> None:
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    refused = await peer.ask(code, COMMIT | {"consumerGroup": MEGABYTES})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert '<consumerGroup> "nnnn' in (refused.remark or "")
    assert "has 3000000 bytes; at most 255 are allowed" in (refused.remark or "")
    assert broker.parts.tables.offsets.snapshot()["offsetTable"] == {}
    assert (await peer.ask(code, COMMIT | {"consumerGroup": "n" * 255})).code == 0


async def test_a_pull_that_commits_for_a_long_name_is_refused(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 1)
    pull: dict[str, object] = {
        "consumerGroup": MEGABYTES,
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 1,
        "sysFlag": 5,
        "commitOffset": 7,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    refused = await peer.ask(RequestCode.PULL_MESSAGE, pull)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "at most 255 are allowed" in (refused.remark or "")
    assert MEGABYTES not in broker.parts.tables.groups.names
    assert broker.parts.tables.offsets.snapshot()["offsetTable"] == {}
    assert (await peer.ask(RequestCode.PULL_MESSAGE, pull | {"consumerGroup": "g"})).code != 1
    assert broker.parts.tables.offsets.query("g", "T", 0) == 7


async def test_offsets_are_bounded_by_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "TABLE_BYTES_MAX", 200_000)
    table = OffsetTable(tmp_path, RecordingStore())
    refused = _refused(
        lambda n: table.commit(f"{n:03}{WORST[3:]}", WORST, n, 1 << 62, "a test"), 1_000
    )
    assert "no space for another one" in refused
    assert table._drained._bytes <= 200_000
    # What is there goes on, what is forgotten makes room.
    table.commit("000" + WORST[3:], WORST, 0, 5, "a test")
    await table.persist()
    assert table.file.path.stat().st_size <= table._drained._bytes
    again = OffsetTable(tmp_path, RecordingStore())
    again.load()
    assert again.snapshot() == table.snapshot()
    assert (again._drained._bytes, again._drained._count) == (
        table._drained._bytes,
        table._drained._count,
    )
    for group in {key.partition("@")[2] for key in table.snapshot()["offsetTable"]}:
        table.remove_group(group)
    assert (table._drained._bytes, table._drained._count) == (0, 0)


async def test_commits_of_pulls_without_room_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 2)
    store = RecordingStore()
    table = OffsetTable(tmp_path, store)
    store.commits = [("g", "T", queue_id, 1) for queue_id in range(4)]
    assert table.of_topic("g", "T") == {0: 1, 1: 1}
    store.commits = [("g", "T", 0, 9), ("h", "T", 0, 9)]
    assert table.of_topic("g", "T") == {0: 9, 1: 1}
    assert table.query("h", "T", 0) == -1
    said = [each for each in caplog.messages if "offsets that pulls commit are left out" in each]
    assert len(said) == 1


async def test_a_clone_of_offsets_has_the_same_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = OffsetTable(tmp_path, RecordingStore())
    for queue_id in range(3):
        table.commit("from", "T", queue_id, queue_id, "a test")
    table.commit("to", "T", 0, 9, "a test")
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 5)
    with pytest.raises(BrokerError, match="no space"):
        table.clone("from", "to", "T")
    assert table.of_topic("to", "T") == {0: 9}
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 6)
    table.clone("from", "to", "T")
    assert table.of_topic("to", "T") == {0: 0, 1: 1, 2: 2}
    assert table._drained._count == 6


async def test_names_of_megabytes_in_a_file_do_not_stop_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (json_file, offsets):
        monkeypatch.setattr(module, "TABLE_BYTES_MAX", 16 << 20)
    rows = [f'"T@{letter * 1_000_000}":{{0:5}}' for letter in "abcdefghijklmnopqrst"]
    text = '{"offsetTable":{' + ",".join([*rows, '"T@g":{0:7,1:8}']) + "}}"
    (tmp_path / "consumerOffset.json").write_text(text)
    assert len(text) > json_file.TABLE_BYTES_MAX
    table = OffsetTable(tmp_path, RecordingStore())
    table.load()
    assert table.snapshot()["offsetTable"] == {"T@g": {0: 7, 1: 8}}
    assert "20 names longer than a request may have are left out" in caplog.text


async def test_a_damaged_table_is_kept_when_its_backup_is_used(tmp_path: Path) -> None:
    table = OffsetTable(tmp_path, RecordingStore())
    for offset in (1, 2):
        table.commit("g", "T", 0, offset, "a test")
        await table.persist()
    table.file.path.write_text('{"offsetTable":{"T@g":{0:')
    again = OffsetTable(tmp_path, RecordingStore())
    again.load()
    assert again.query("g", "T", 0) == 1
    again.commit("g", "T", 0, 3, "a test")
    await again.persist()
    assert again.file.damaged_path.read_text() == '{"offsetTable":{"T@g":{0:'
    last = OffsetTable(tmp_path, RecordingStore())
    last.load()
    assert last.query("g", "T", 0) == 3


async def test_without_a_good_backup_nothing_is_changed_and_the_error_says_what_to_do(
    tmp_path: Path,
) -> None:
    table = OffsetTable(tmp_path, RecordingStore())
    table.file.path.write_text("{")
    table.file.backup_path.write_text("[]")
    with pytest.raises(StoreError, match="restore the file from a backup, or remove it"):
        table.load()
    assert table.file.path.read_text() == "{"
    assert table.file.backup_path.read_text() == "[]"


async def test_a_table_that_no_start_would_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"a": "x" * 50}
    file = JsonFile(tmp_path / "a.json", lambda: value)
    file.mark()
    await file.flush()
    written = file.path.read_bytes()
    monkeypatch.setattr(json_file, "FILE_BYTES_MAX", len(written))
    value["b"] = "y"
    file.mark()
    with pytest.raises(OSError, match="no start would read"):
        await file.flush()
    assert file.path.read_bytes() == written
    assert os.listdir(tmp_path) == ["a.json"]
    del value["b"]
    file.mark()
    await file.flush()
    assert file.load(dict[str, Any]) == value


async def test_topics_are_bounded_by_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = topic_table(tmp_path, RecordingStore())
    table.load()
    monkeypatch.setattr(topics, "TABLE_BYTES_MAX", 100_000)
    refused = _refused(lambda n: table.create_for_group(f"{n:02}" + "\x01" * 125, 1), 100)
    assert re.search(r"topics that take \d+ bytes, and no space", refused)
    assert table._bytes <= 100_000
    await table.file.flush()
    assert table.file.path.stat().st_size <= table._bytes
    again = topic_table(tmp_path, RecordingStore())
    again.load()
    assert (again._bytes, again._queues) == (table._bytes, table._queues)


async def test_the_queues_of_all_topics_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = topic_table(tmp_path, RecordingStore())
    table.load()
    monkeypatch.setattr(topics, "QUEUES_OF_ALL_MAX", table._queues + 10)
    table.put(TopicConfig(topic_name="A", read_queue_nums=2, write_queue_nums=8))
    with pytest.raises(BrokerError, match="and no space for another one"):
        table.put(TopicConfig(topic_name="B", read_queue_nums=3, write_queue_nums=1))
    with pytest.raises(BrokerError, match="and no space for another one"):
        table.put(TopicConfig(topic_name="A", read_queue_nums=11, write_queue_nums=8))
    table.put(TopicConfig(topic_name="A", read_queue_nums=8, write_queue_nums=4))
    table.delete("A")
    table.put(TopicConfig(topic_name="B", read_queue_nums=10, write_queue_nums=1))


async def test_groups_are_bounded_by_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded_table() -> GroupTable:
        config = small_config(tmp_path)
        config.config_folder.mkdir(parents=True, exist_ok=True)
        table = group_table(config, RecordingStore())
        table.load()
        return table

    table = loaded_table()
    monkeypatch.setattr(groups, "TABLE_BYTES_MAX", 100_000)
    refused = _refused(
        lambda n: table.put(SubscriptionGroupConfig(group_name=f"{n:02}{WORST[2:]}")), 100
    )
    assert re.search(r"which take \d+ bytes, and no space", refused)
    assert table._bytes <= 100_000
    await table.file.flush()
    assert table.file.path.stat().st_size <= table._bytes
    assert loaded_table()._bytes == table._bytes
    before = table._bytes
    assert table.delete("00" + WORST[2:])
    table.put(SubscriptionGroupConfig(group_name="99" + WORST[2:]))
    assert table._bytes == before


async def test_locks_are_bounded_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_BYTES_MAX", 10_000)
    now = 1_000
    table = QueueLocks(lambda: now, 60)
    queues = [MessageQueue("T" * 255, "b" * 255, number) for number in range(20)]
    with pytest.raises(BrokerError, match="queues are locked already"):
        table.lock("g" * 255, queues, "c" * 255)
    assert 0 < table._bytes <= 10_000
    assert table.lock("g" * 255, queues[:1], "c" * 255) == queues[:1]
    assert table.lock("g" * 255, queues[:1], "d") == []
    now += 61
    # Taken over by a client with a shorter name.
    assert table.lock("g" * 255, queues[:1], "d") == queues[:1]
    table.expire()
    table.unlock("g" * 255, queues[:1], "d")
    assert (table._bytes, len(table)) == (0, 0)


async def test_a_lock_of_no_queue_leaves_nothing_behind() -> None:
    table = QueueLocks(lambda: 1_000, 60)
    assert table.lock("g", [], "c") == []
    assert table._locks == {}


async def test_number_keys_are_read_whatever_the_names_look_like(tmp_path: Path) -> None:
    table = OffsetTable(tmp_path, RecordingStore())
    names = ['{"0":', "{0:", ',1:"', '\\",2:', "\\"]
    for number, name in enumerate(names):
        table.commit(name, "T", number, number, "a test")
    await table.persist()
    assert b"0:" in table.file.path.read_bytes()
    again = OffsetTable(tmp_path, RecordingStore())
    again.load()
    assert again.snapshot() == table.snapshot()
    compact = {"offsetTable": {"T@g": {"0": 5}}}
    table.file.path.write_text(json.dumps(compact).replace('"0"', "0 "))
    again.load()
    assert again.query("g", "T", 0) == 5


async def test_clients_and_what_they_subscribe_to_are_bounded_by_what_they_take(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = broker.parts.tables.clients
    assert table._bytes == 0
    async with peer_of(broker) as other:
        await other.heartbeat("d", "a", {"T": "x||y", "U": "*"}, producers=["p"])
        taken = table._bytes
        await other.heartbeat("d" * 200, "a", {"T": "*"}, version=2, producers=["p"])
        assert 0 < table._bytes < taken + 400
        monkeypatch.setattr(clients, "CLIENTS_BYTES_MAX", table._bytes + 2_000)
        for topics_wanted in ({"T": "a" * 3_000}, {f"T{number}": "*" for number in range(3)}):
            refused = await peer.heartbeat("c", "b", topics_wanted)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "bytes in this broker already" in (refused.remark or "")
        refused = await peer.heartbeat("c", "", producers=[f"p{number}" for number in range(9)])
        assert "bytes in this broker already" in (refused.remark or "")
        assert table._bytes <= clients.CLIENTS_BYTES_MAX
        monkeypatch.setattr(clients, "CLIENTS_BYTES_MAX", table._bytes + 2_000)
        assert (await peer.heartbeat("c", "b", {"T": "*"})).code == ResponseCode.SUCCESS
        leaving = {"clientID": "d", "producerGroup": "p", "consumerGroup": "a"}
        assert (await other.ask(RequestCode.UNREGISTER_CLIENT, leaving)).code == 0
    for connection in list(table._joined):
        table.connection_closed(connection)
    assert (table._bytes, table._members, table._subscriptions) == (0, 0, 0)


async def test_a_full_table_has_room_for_the_brokers_own_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 1)
    table = OffsetTable(tmp_path, RecordingStore())
    table.commit("g", "T", 0, 1, "a test")
    with pytest.raises(BrokerError, match="no space"):
        table.commit("h", "T", 0, 1, "a test")
    table.commit("CID_RMQ_SYS_TRANS", "T", 0, 1, "the broker", is_own=True)
    assert table.query("CID_RMQ_SYS_TRANS", "T", 0) == 1
