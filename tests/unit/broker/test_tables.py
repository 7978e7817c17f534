"""The tables and their files, without a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from kerolox.broker.config import BrokerConfig
from kerolox.broker.role import BrokerRole, Role
from kerolox.broker.tables import topics
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.json_file import JsonFile
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.errors import BrokerError, StoreError
from kerolox.observable import Observable
from kerolox.protocol import fastjson
from kerolox.protocol.attributes import ATTRIBUTES_MAX
from kerolox.protocol.bodies import TopicConfig, TopicConfigTable, wire_value
from tests.support.clients.peer import small_config
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


class RecordingStore:
    """Takes the pushes of the tables and remembers them."""

    transient_buffers = -1

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, int, int, bool]] = {}
        self.groups: dict[str, tuple[bool, int]] = {}
        self.commits: list[tuple[str, str, int, int]] = []

    def set_topic(self, topic: str, read: int, write: int, perm: int, fast: bool) -> None:
        self.topics[topic] = (read, write, perm, fast)

    def set_fast_calls(self, topic: str, *, normal: bool, fifo: bool) -> None:
        pass

    def set_dedup(self, topic: str, window_ms: int, by_keys: bool) -> None:
        pass

    def delete_topic(self, topic: str) -> None:
        del self.topics[topic]

    def set_group(self, group: str, fast: bool, slow_broker_id: int) -> None:
        self.groups[group] = (fast, slow_broker_id)

    def delete_group(self, group: str) -> None:
        del self.groups[group]

    def drain_commits(self) -> list[tuple[str, str, int, int]]:
        taken, self.commits = self.commits, []
        return taken

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, 100


def topic_table(folder: Path, store: RecordingStore, **overrides: object) -> TopicTable:
    config = small_config(folder, **overrides)
    config.config_folder.mkdir(parents=True, exist_ok=True)
    return TopicTable(Observable(config), store, lambda: 1_000)


def group_table(config: BrokerConfig, store: RecordingStore) -> GroupTable:
    return GroupTable(Observable(config), BrokerRole(Role.of(config)), store, lambda: 1_000)


async def test_the_built_in_topics_are_those_of_rocketmq(tmp_path):
    store = RecordingStore()
    topic_table(tmp_path, store, trace_topic_enable=True).load()
    assert store.topics == {
        "SELF_TEST_TOPIC": (1, 1, 6, False),
        "TBW102": (8, 8, 7, True),
        "BenchmarkTest": (1024, 1024, 6, True),
        "DefaultCluster": (16, 16, 7, True),
        "broker-t": (1, 1, 7, True),
        "OFFSET_MOVED_EVENT": (1, 1, 6, False),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6, False),
        "RMQ_SYS_TRACE_TOPIC": (1, 1, 6, True),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6, True),
    }


async def test_retry_dead_letter_and_multi_tag_topics_are_cold(tmp_path):
    store = RecordingStore()
    table = topic_table(tmp_path, store)
    table.load()
    table.create_for_group("%RETRY%g", 1)
    table.create_for_group("%DLQ%g", 1)
    created = table.create_for_send("T", "TBW102", 4, 0)
    assert created is not None
    assert store.topics["T"][3] is False, "a crash could forget it"
    for name in ("%RETRY%g", "%DLQ%g", "T"):
        await table.make_durable(name)
    assert [store.topics[name][3] for name in ("%RETRY%g", "%DLQ%g", "T")] == [False, False, True]
    table.put(msgspec.structs.replace(created, topic_filter_type="MULTI_TAG"))
    assert store.topics["T"][3] is False
    await table.file.flush()


async def test_an_ordered_topic_is_cold_only_without_write_permission(tmp_path):
    for permission, fast in ((6, True), (4, False)):
        store = RecordingStore()
        table = topic_table(tmp_path / str(permission), store, broker_permission=permission)
        table.load()
        table.create_for_send("T", "TBW102", 4, 0)
        await table.make_durable("T")
        table.set_ordered(["T"])
        assert store.topics["T"][3] is fast
        table.set_ordered([])
        assert table.get("T").order is False
        await table.file.flush()


async def test_topics_json_is_what_rocketmq_writes(tmp_path):
    table = topic_table(tmp_path, RecordingStore())
    table.load()
    table.create_for_send("T", "TBW102", 4, 0)
    await table.file.flush()
    text = table.file.path.read_text()
    assert text.startswith(
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":1000\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"SELF_TEST_TOPIC":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n'
        '\t\t\t"readQueueNums":1,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
        '\t\t\t"topicName":"SELF_TEST_TOPIC",\n\t\t\t"topicSysFlag":0,\n'
        '\t\t\t"writeQueueNums":1\n\t\t},\n'
    )
    again = topic_table(tmp_path, RecordingStore())
    again.load()
    assert again.snapshot() == table.snapshot()


async def test_a_topics_json_of_version_5_is_understood(tmp_path):
    table = topic_table(tmp_path, RecordingStore())
    table.file.path.write_text(
        '{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1686643918215},'
        '"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,'
        '"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}'
    )
    table.load()
    assert table.version.counter == 2
    assert table.get("T").write_queue_nums == 4


async def test_a_template_in_the_file_does_not_outlive_the_setting(tmp_path):
    table = topic_table(tmp_path, RecordingStore())
    table.load()
    table.file.mark()
    await table.file.flush()
    without = topic_table(tmp_path, RecordingStore(), auto_create_topic_enable=False)
    without.load()
    assert without.get("TBW102").perm == 6
    assert without.create_for_send("T", "TBW102", 4, 0) is None


async def test_groups_are_pushed_and_kept(tmp_path):
    config = small_config(tmp_path)
    config.config_folder.mkdir(parents=True)
    store = RecordingStore()
    table = group_table(config, store)
    table.load()
    assert len(table.names) == 7
    assert table.find("g").retry_max_times == 16
    assert store.groups["g"] == (True, 0)
    table.put(msgspec.structs.replace(table.find("g"), consume_enable=False))
    assert store.groups["g"] == (False, 0)
    await table.file.flush()
    again = group_table(config, RecordingStore())
    again.load()
    assert again.snapshot() == table.snapshot()
    assert table.delete("g")
    assert not table.delete("g")
    assert "g" not in store.groups
    await table.file.flush()


async def test_only_system_groups_are_made_without_leave(tmp_path):
    config = small_config(tmp_path, auto_create_subscription_group=False)
    config.config_folder.mkdir(parents=True)
    table = group_table(config, RecordingStore())
    table.load()
    assert table.find("g") is None
    assert table.find("CID_RMQ_SYS_TRANS") is not None
    await table.file.flush()


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (lambda table: table.query("G", "T", 0), 7),
        (lambda table: table.of_topic("G", "T"), {0: 7}),
        (lambda table: table.topics_of("G"), ["T"]),
        (lambda table: table.topics_by_group(), {"G": ["T"]}),
        (lambda table: table.groups_of("T"), ["G"]),
        (lambda table: table.lowest("T", set()), {0: 7}),
        (lambda table: table.clone("G", "H", "T") or table.query("H", "T", 0), 7),
        (lambda table: table.remove_group("G") or table.topics_of("G"), []),
        (lambda table: table.commit("G", "T", 0, 8, "c") or table.query("G", "T", 0), 8),
        (lambda table: dict(table.snapshot()["offsetTable"]), {"T@G": {0: 7}}),
    ],
)
async def test_every_examine_offsets_sees_what_fast_pulls_committed(tmp_path, look, found):
    store = RecordingStore()
    table = OffsetTable(tmp_path, store)
    store.commits = [("G", "T", 0, 7)]
    assert look(table) == found


async def test_hot_commits_come_before_cold_ones(tmp_path):
    store = RecordingStore()
    table = OffsetTable(tmp_path, store)
    store.commits = [("g", "T", 0, 5), ("g", "T", 1, 6)]
    table.commit("g", "T", 0, 3, "me")
    assert (table.query("g", "T", 0), table.query("g", "T", 1)) == (3, 6)
    store.commits = [("g", "T", 0, 9)]
    assert table.query("g", "T", 0) == 9
    store.commits = [("g", "T", 0, 10)]
    await table.persist()
    assert fastjson.loads(table.file.path.read_bytes()) == {"offsetTable": {"T@g": {0: 10, 1: 6}}}
    again = OffsetTable(tmp_path, RecordingStore())
    again.load()
    assert again.snapshot()["offsetTable"] == {"T@g": {0: 10, 1: 6}}


async def test_offsets_behind_the_end_of_their_queue_are_brought_back(tmp_path):
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:101,1:100,2:-1}}}')
    table = OffsetTable(tmp_path, RecordingStore())
    table.load()
    assert table.fit(has_crashed=True) == 1
    assert table.of_topic("g", "T") == {0: 100, 1: 100, 2: -1}
    await table.persist()
    assert fastjson.loads(table.file.path.read_bytes())["offsetTable"]["T@g"][0] == 100
    assert table.fit(has_crashed=True) == 0


@pytest.mark.parametrize(("has_crashed", "offset"), [(True, 0), (False, 5)])
async def test_a_crash_takes_offsets_of_queues_without_messages(tmp_path, has_crashed, offset):
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5}}}')
    store = RecordingStore()
    store.queue_bounds = lambda topic, queue_id: (0, 0)
    table = OffsetTable(tmp_path, store)
    table.load()
    table.fit(has_crashed=has_crashed)
    assert table.of_topic("g", "T") == {0: offset}


async def test_an_unchanged_table_is_not_written(tmp_path):
    table = OffsetTable(tmp_path, RecordingStore())
    await table.persist()
    assert not table.file.path.exists()


async def test_offsets_of_rocketmq_are_read(tmp_path):
    (tmp_path / "consumerOffset.json").write_text(
        '{\n\t"offsetTable":{\n\t\t"%RETRY%g@g":{0:3\n\t\t},\n\t\t"T@g":{0:12,1:7\n\t\t}\n\t}\n}'
    )
    table = OffsetTable(tmp_path, RecordingStore())
    table.load()
    assert table.topics_of("g") == ["%RETRY%g", "T"]
    assert table.of_topic("g", "T") == {0: 12, 1: 7}
    assert table.lowest("T", set()) == {0: 12, 1: 7}


# -- files ----------------------------------------------------------------------------------------
async def test_many_changes_are_few_writes_and_the_last_one_counts(tmp_path, monkeypatch):
    state = {"value": 0}
    writes = []
    import kerolox.broker.tables.json_file as module

    plain = module._store
    monkeypatch.setattr(module, "_store", lambda *a: (writes.append(a[2]), plain(*a)))
    file = JsonFile(tmp_path / "t.json", lambda: {"dataVersion": {"counter": state["value"]}})

    async def change() -> None:
        state["value"] += 1
        file.mark()
        await file.flush()

    await asyncio.gather(*(change() for _ in range(50)))
    assert fastjson.loads(file.path.read_bytes())["dataVersion"]["counter"] == 50
    assert len(writes) <= 3


async def test_the_version_before_becomes_the_backup(tmp_path):
    state = {"value": 1}
    file = JsonFile(tmp_path / "t.json", lambda: {"dataVersion": {"counter": state["value"]}})
    for value in (1, 2):
        state["value"] = value
        file.mark()
        await file.flush()
    assert fastjson.loads(file.backup_path.read_bytes())["dataVersion"]["counter"] == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.json", "t.json.bak"]


async def test_a_missing_file_falls_back_and_no_file_is_no_table(tmp_path):
    file = JsonFile(tmp_path / "t.json", dict)
    assert file.load(TopicConfigTable) is None
    file.backup_path.write_text('{"dataVersion":{"counter":4,"timestamp":1}}')
    assert file.load(TopicConfigTable).data_version.counter == 4


async def test_a_table_of_another_shape_is_refused(tmp_path):
    file = JsonFile(tmp_path / "t.json", dict)
    file.path.write_text('{"topicConfigTable":["T"]}')
    with pytest.raises(StoreError, match="the body is no TopicConfigTable"):
        file.load(TopicConfigTable)


async def test_a_failed_write_is_an_error_for_those_who_wait_and_a_log_line_for_others(
    tmp_path, caplog
):
    file = JsonFile(tmp_path / "missing" / "t.json", dict)
    file.mark()
    with pytest.raises(OSError, match="missing"):
        await file.flush()
    file.write_soon()
    await until(lambda: "can't be written" in caplog.text)
    (tmp_path / "missing").mkdir()
    await file.flush()
    assert file.path.exists()


async def test_attributes_count_as_what_a_table_takes(tmp_path, monkeypatch):
    table = topic_table(tmp_path, RecordingStore())
    table.load()
    values = {f"k{number}": "v" * 200 for number in range(10)}
    topic = TopicConfig(topic_name="T", attributes=values)
    written = len(fastjson.dumps({"T": wire_value(topic)}))
    monkeypatch.setattr(topics, "TABLE_BYTES_MAX", table._bytes + written - 1)
    with pytest.raises(BrokerError, match="no space for another one"):
        table.put(topic)
    table.put(msgspec.structs.replace(topic, attributes=None))
    await table.file.flush()


async def test_attributes_of_a_file_are_bounded_and_those_of_later_versions_stay(tmp_path):
    table = topic_table(tmp_path, RecordingStore())
    many = {f"k{number}": "v" for number in range(10 * ATTRIBUTES_MAX)}
    topic = {"topicName": "T", "attributes": {"lite.topic.expiration": "5"}}
    text = {"topicConfigTable": {"T": topic, "U": {"topicName": "U", "attributes": many}}}
    table.file.path.write_bytes(fastjson.dumps(text))
    table.load()
    kept, bounded = table.get("T"), table.get("U")
    assert kept is not None
    assert bounded is not None
    assert kept.attributes == {"lite.topic.expiration": "5"}
    assert len(bounded.attributes or {}) == ATTRIBUTES_MAX
