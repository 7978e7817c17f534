"""Metrics of what is put and got: by topic, group and broker, over a minute, an hour and a day."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.metrics import broker_stats
from kerolox.broker.metrics.broker_stats import BrokerStats
from kerolox.observable import Observable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until
from tests.support.slices import each_step_is_a_turn

CLUSTER = "DefaultCluster"


class Counters:
    """A kernel that counted so much."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, int]] = {}
        self.groups: dict[tuple[str, str, int], tuple[int, int, int, int]] = {}
        self.looks = 0

    def topic_stats(self) -> list[tuple[str, int, int]]:
        self.looks += 1
        return [(topic, *counts) for topic, counts in self.topics.items()]

    def group_stats(self) -> list[tuple[str, str, int, int, int, int, int]]:
        return [(*key, *counts) for key, counts in self.groups.items()]


class Bench:
    """Traffic over counters, with a clock that is set."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now_ms = 1_000_000_000
        self.kernel = Counters()
        config = small_config(folder, **settings)
        self.stats = BrokerStats(Observable(config), self.kernel, lambda: self.now_ms)  # type: ignore[arg-type]

    def sample(self, times: int = 1) -> None:
        for _ in range(times):
            self.stats.sample()
            self.now_ms += 10_000

    def minute_now(self, name: str, key: str) -> dict[str, float | int]:
        asyncio.run(self.stats.refresh())
        return self.minute(name, key)

    def minute(self, name: str, key: str) -> dict[str, float | int]:
        found = self.stats.view(name, key)
        assert found is not None
        return found["statsMinute"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_figure_is_there_at_once_and_tells_something_after_the_next_sample(bench: Bench) -> None:
    assert bench.stats.view("TOPIC_PUT_NUMS", "T") is None
    bench.kernel.topics["T"] = 30, 3_000
    assert bench.minute_now("TOPIC_PUT_NUMS", "T") == {"avgpt": 0.0, "sum": 0, "tps": 0.0}
    bench.sample()
    assert bench.minute("TOPIC_PUT_NUMS", "T") == {"avgpt": 1.0, "sum": 30, "tps": 3.0}
    assert bench.minute("TOPIC_PUT_SIZE", "T") == {"avgpt": 100.0, "sum": 3_000, "tps": 300.0}
    assert bench.minute("BROKER_PUT_NUMS", CLUSTER)["sum"] == 30


def test_a_minute_is_seven_samples_and_forgets_what_came_before(bench: Bench) -> None:
    bench.kernel.topics["T"] = 30, 3_000
    bench.sample()
    bench.kernel.topics["T"] = 90, 9_000
    bench.sample(5)
    assert bench.minute("TOPIC_PUT_NUMS", "T")["sum"] == 90
    bench.sample()
    assert bench.minute("TOPIC_PUT_NUMS", "T") == {"avgpt": 1.0, "sum": 60, "tps": 1.0}
    bench.sample(6)
    assert bench.minute("TOPIC_PUT_NUMS", "T")["sum"] == 0


def test_an_hour_and_a_day_have_samples_of_their_own(bench: Bench) -> None:
    bench.kernel.topics["T"] = 60, 60
    bench.sample(60)
    bench.kernel.topics["T"] = 120, 120
    bench.sample(60)
    found = bench.stats.view("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found["statsMinute"]["sum"] == 0
    assert found["statsHour"] == {"avgpt": 1.0, "sum": 120, "tps": pytest.approx(0.1)}
    assert found["statsDay"]["sum"] == 0
    bench.sample(600)
    found = bench.stats.view("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found["statsHour"]["sum"] == 0
    assert found["statsDay"]["sum"] == 120


def test_the_first_ten_minutes_are_seen_in_the_minute_alone(bench: Bench) -> None:
    # A tool takes the first of day, hour and minute that is not 0 for the day so far.
    bench.kernel.topics["T"] = 1, 1
    bench.sample()
    bench.kernel.topics["T"] = 7, 7
    bench.sample()
    found = bench.stats.view("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert [found[f"stats{span}"]["sum"] for span in ("Day", "Hour", "Minute")] == [0, 0, 7]


def test_gets_are_counted_by_topic_and_group_and_their_times_by_queue(bench: Bench) -> None:
    bench.kernel.groups["G", "T", 0] = 2, 20, 2_000, 3
    bench.kernel.groups["G", "T", 3] = 1, 10, 1_000, 9
    bench.sample()
    assert bench.minute("GROUP_GET_NUMS", "T@G") == {"avgpt": 10.0, "sum": 30, "tps": 3.0}
    assert bench.minute("GROUP_GET_SIZE", "T@G")["sum"] == 3_000
    assert bench.minute("GROUP_GET_LATENCY", "0@T@G")["avgpt"] == 1.5
    assert bench.minute("GROUP_GET_LATENCY", "3@T@G")["avgpt"] == 9.0
    assert bench.minute("BROKER_GET_NUMS", CLUSTER) == {"avgpt": 0.0, "sum": 30, "tps": 3.0}
    assert bench.stats.got_per_second("G", "T") == 3.0
    assert bench.stats.got_per_second("G", "Other") == 0.0


def test_without_detail_times_are_by_topic_and_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path, enable_detail_stat=False)
    bench.kernel.groups["G", "T", 3] = 1, 10, 1_000, 9
    bench.sample()
    assert bench.minute("GROUP_GET_LATENCY", "T@G")["sum"] == 9


def test_a_counter_that_began_anew_adds_what_it_has(bench: Bench) -> None:
    bench.kernel.topics["T"] = 30, 3_000
    bench.sample()
    bench.kernel.topics["T"] = 5, 500
    bench.sample()
    assert bench.minute("TOPIC_PUT_NUMS", "T")["sum"] == 35


@pytest.mark.parametrize("goes", [True, False])
def test_metrics_of_what_was_deleted_go_if_that_is_wanted(tmp_path: Path, goes: bool) -> None:
    bench = Bench(tmp_path, auto_delete_unused_stats=goes)
    bench.kernel.topics.update(T=(1, 1), Other=(1, 1))
    bench.kernel.groups["G", "T", 0] = 1, 1, 1, 1
    bench.kernel.groups["G", "Other", 0] = 1, 1, 1, 1
    bench.kernel.groups["H", "Other", 0] = 1, 1, 1, 1
    bench.sample()
    asyncio.run(bench.stats.forget_topic("T"))
    asyncio.run(bench.stats.forget_group("H"))
    names = [("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@G"), ("GROUP_GET_LATENCY", "0@T@G")]
    names += [("GROUP_GET_NUMS", "Other@H"), ("GROUP_GET_LATENCY", "0@Other@H")]
    assert [bench.stats.view(*each) is None for each in names] == [goes] * 5
    assert bench.stats.view("GROUP_GET_NUMS", "Other@G") is not None


def test_metrics_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_stats, "METRICS_MAX", 2)
    for number in range(5):
        bench.stats.note_sent_back("G", f"T{number}")
    assert bench.stats.view("SNDBCK_PUT_NUMS", "T1@G") is not None
    assert bench.stats.view("SNDBCK_PUT_NUMS", "T2@G") is None
    assert caplog.text.count("statistics are kept") == 1


@pytest.fixture
def busy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A kernel with 3,000 counters, and turns of one step each."""
    each_step_is_a_turn(monkeypatch)
    bench.kernel.topics.update({f"T{number}": (10, 100) for number in range(1_000)})
    bench.kernel.groups.update({("G", f"T{number}", 0): (1, 10, 100, 1) for number in range(2_000)})
    return bench


async def test_requests_share_one_examine_many_counters(busy: Bench) -> None:
    for _ in range(2):
        await asyncio.gather(*(busy.stats.refresh() for _ in range(100)))
    assert busy.kernel.looks == 1
    busy.now_ms += 3_000 // broker_stats.COUNTERS_PER_MS - 1
    await busy.stats.refresh()
    assert busy.kernel.looks == 1
    busy.now_ms += 1
    await busy.stats.refresh()
    assert busy.kernel.looks == 2
    busy.now_ms -= 1_000
    await busy.stats.refresh()
    assert busy.kernel.looks == 3, "the clock was set back"


@pytest.mark.parametrize("what", ["refresh", "sample", "forget_topic", "forget_group"])
async def test_others_have_turns_while_many_counters_are_examined(busy: Bench, what: str) -> None:
    await busy.stats.refresh()
    busy.now_ms += 10_000
    work = {
        "refresh": busy.stats.refresh,
        "sample": busy.stats.sample_in_slices,
        "forget_topic": lambda: busy.stats.forget_topic("T5"),
        "forget_group": lambda: busy.stats.forget_group("G"),
    }[what]
    task = asyncio.ensure_future(work())
    others = 0
    while not task.done():
        await asyncio.sleep(0)
        others += 1
    await task
    assert others >= 3_000


async def test_a_look_that_is_cancelled_counts_nothing_twice(busy: Bench) -> None:
    task = asyncio.ensure_future(busy.stats.refresh())
    for _ in range(500):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    busy.sample()
    assert busy.minute("BROKER_PUT_NUMS", CLUSTER)["sum"] == 10_000
    assert busy.minute("BROKER_GET_NUMS", CLUSTER)["sum"] == 20_000


async def test_a_topic_made_anew_counts_from_nothing(bench: Bench) -> None:
    bench.kernel.topics["T"] = 30, 3_000
    bench.kernel.groups["G", "T", 0] = 1, 10, 100, 1
    bench.sample()
    await bench.stats.forget_topic("T")
    bench.kernel.topics["T"] = 40, 4_000
    bench.kernel.groups["G", "T", 0] = 2, 20, 200, 2
    bench.sample()
    assert bench.minute("TOPIC_PUT_NUMS", "T")["sum"] == 70
    assert bench.minute("GROUP_GET_NUMS", "T@G")["sum"] == 30


async def view(peer: Peer, name: str, key: str) -> dict[str, Any]:
    fields = {"statsName": name, "statsKey": key}
    answer = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    assert sorted(found) == ["statsDay", "statsHour", "statsMinute"]
    return found


async def test_a_broker_counts_hot_pulls_filtered_ones_and_what_is_given_back(
    tmp_path: Path, kernel: str
) -> None:
    config = small_config(tmp_path, enable_property_filter=True)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for number in range(3):
            await peer.send("T", b"x" * 10, properties=f"a\x01{number}\x02")
        await peer.heartbeat("me", "readers", {"T": "*"})
        messages = await peer.messages("T")
        await peer.pull("T", group="filters", tags="a = '1'", expressionType="SQL92")
        back = {"group": "readers", "delayLevel": 1, "offset": messages[0].commit_log_offset}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        broker.parts.broker_stats.sample()
        sums = {
            (name, key): (await view(peer, name, key))["statsMinute"]["sum"]
            for name, key in (
                ("TOPIC_PUT_NUMS", "T"),
                ("GROUP_GET_NUMS", "T@readers"),
                ("GROUP_GET_NUMS", "T@filters"),
                ("GROUP_GET_SIZE", "T@filters"),
                ("SNDBCK_PUT_NUMS", "T@readers"),
                ("BROKER_GET_NUMS", broker.config.broker_cluster_name),
            )
        }
        assert list(sums.values()) == [3, 3, 1, messages[1].store_size, 1, 4]
        latency = await view(peer, "GROUP_GET_LATENCY", "0@T@readers")
        assert latency["statsMinute"]["avgpt"] >= 0
        answer = await peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"})
        assert json.loads(answer.body[: answer.body.index(b',"offsetTable"')] + b"}") == {
            "consumeTps": pytest.approx(0.0)
        }


async def test_what_was_counted_before_a_deletion_is_part_of_the_metrics(
    tmp_path: Path, kernel: str
) -> None:
    async with Broker(small_config(tmp_path), kernel=kernel) as broker, peer_of(broker) as peer:
        for sends in (3, 5):
            await peer.create_topic("T")
            for _ in range(sends):
                await peer.send("T")
            assert len(await peer.messages("T")) == sends
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            fields = {"groupName": "readers", "removeOffset": "true"}
            await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        broker.parts.broker_stats.sample()
        for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@readers")):
            assert (await view(peer, name, key))["statsMinute"]["sum"] == 8


@pytest.mark.parametrize("is_detailed", [True, False])
async def test_delayed_messages_count_where_they_wait_and_where_they_come(
    tmp_path: Path, kernel: str, is_detailed: bool
) -> None:
    config = small_config(tmp_path, message_delay_level="1h 0s", enable_detail_stat=is_detailed)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"x", properties="DELAY\x012")
        await until(lambda: broker.parts.store.queue_bounds("T", 0)[1])
        topic, reader = "SCHEDULE_TOPIC_XXXX", "SCHEDULE_CONSUMER"
        for name, key in (
            ("TOPIC_PUT_NUMS", topic),
            ("TOPIC_PUT_NUMS", "T"),
            ("GROUP_GET_NUMS", f"{topic}@{reader}"),
        ):
            await view(peer, name, key)
        for name, key in (
            ("QUEUE_PUT_NUMS", f"{topic}@1"),
            ("QUEUE_PUT_SIZE", f"{topic}@1"),
            ("QUEUE_GET_NUMS", f"{topic}@1@{reader}"),
            ("QUEUE_GET_SIZE", f"{topic}@1@{reader}"),
        ):
            assert (broker.parts.broker_stats.view(name, key) is not None) is is_detailed
        broker.parts.broker_stats.sample()
        [delayed] = decode_records(
            broker.parts.store.lookup(broker.parts.store.min_physical_offset) or b""
        )
        sizes = await view(peer, "GROUP_GET_SIZE", f"{topic}@{reader}")
        # The record that came is shorter by what the other topic's name is longer.
        assert sizes["statsMinute"]["sum"] == delayed.store_size - len(topic) + len("T")


async def test_deliveries_are_not_counted_when_that_is_switched_off(tmp_path: Path) -> None:
    config = small_config(tmp_path, message_delay_level="0s", enable_schedule_message_stats=False)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.send("T", b"x", properties="DELAY\x011")
        await until(lambda: broker.parts.store.queue_bounds("T", 0)[1])
        key = "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"
        assert broker.parts.broker_stats.view("GROUP_GET_NUMS", key) is None


async def test_an_unknown_figure_is_told_apart(any_peer: Peer) -> None:
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Nowhere"}
    answer = await any_peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <Nowhere> not exist")
    missing = await any_peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "x"})
    assert missing.code == 1


async def test_progress_of_all_groups_has_rates_and_the_whole_distance(tmp_path: Path) -> None:
    async with Broker(small_config(tmp_path)) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", 2)
        for _ in range(3):
            await peer.send("T")
        await peer.messages("T")
        commit = {"consumerGroup": "readers", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        broker.parts.broker_stats.sample()
        code = RequestCode.GET_BROKER_CONSUME_STATS
        answer = await peer.ask(code, {"isOrder": "false"})
        ordered = await peer.ask(code, {"isOrder": "true"})
        text = answer.body.decode()
        assert f'"brokerAddr":"{broker.address}"' in text
        assert '"totalDiff":2' in text
        assert '{"readers":[{"consumeTps":0.3,"offsetTable":{' in text
        assert '"consumerOffset":1' in text
        assert '{"readers":[]}' in ordered.body.decode()
        assert '"totalDiff":0' in ordered.body.decode()
