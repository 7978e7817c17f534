"""The broker's and the name server's metrics, as Prometheus's own parser reads them."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from kerolox.broker.broker import Broker
from kerolox.client import Producer, PullConsumer
from kerolox.message import Message, MessageQueue
from kerolox.metrics import serving
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.extensions.dead_letter_marks import DoneOffsets
from tests.support.clients.peer import peer_of, small_config
from tests.support.clients.pops import GROUP, Member

HOST = "127.0.0.1"
PROM: dict[str, Any] = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}


class Served:
    """A name server and a broker with metrics."""

    def __init__(self, names: NameServer, broker: Broker) -> None:
        self.names, self.broker = names, broker

    async def figures(self, port: int = 0) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Value by name and labels, without those that all series have."""
        text = (await fetch(port or self.broker.metrics_port, "/metrics"))[1]
        shared = {"cluster", "node_type", "node_id"}
        return {
            (each.name, tuple(sorted((k, v) for k, v in each.labels.items() if k not in shared))): (
                each.value
            )
            for family in plain(text)
            for each in family.samples
        }


async def fetch(port: int, path: str, accept: str = "") -> tuple[int, str]:
    """Status and body."""

    def get() -> tuple[int, str]:
        request = urllib.request.Request(f"http://{HOST}:{port}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


def process_start() -> float:
    """Seconds since the epoch, as the kernel knows them."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    settings = NamesrvConfig.load(
        None, listen_host=HOST, listen_port=0, kv_config_path=tmp_path / "kv.json", **PROM
    )
    async with NameServer(settings) as names:
        config = small_config(tmp_path, namesrv_addr=f"{HOST}:{names.port}", **PROM)
        async with Broker(config) as broker:
            yield Served(names, broker)


async def test_dead_letters_that_wait_and_paused_groups_are_measured(served: Served) -> None:
    parts = served.broker.parts
    for topic in ("%DLQ%g", "%DLQ%h"):
        parts.tables.topics.put(
            TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)
        )
    parts.tables.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    parts.tables.groups.put(SubscriptionGroupConfig(group_name="h"))
    async with Producer("p", f"{HOST}:{served.names.port}") as producer:
        queue = MessageQueue("%DLQ%g", served.broker.config.broker_name, 1)
        for _ in range(6):
            await producer.send(Message("%DLQ%g", b"x"), queue=queue)
    done = DoneOffsets().with_done(0, 2, 0).with_done(4, 5, 0)
    for group, offset in DoneOffsets().changes_to(done):
        parts.tables.offsets.commit(group, "%DLQ%g", 1, offset, HOST)
    figures = await served.figures()
    for group, waiting, paused in (("g", 3, 1), ("h", 0, 0)):
        labels = (("consumer_group", group),)
        assert figures["kerolox_dead_letters_waiting", labels] == waiting
        assert figures["kerolox_group_paused", labels] == paused
    assert not any("CID_RMQ_SYS_DEAD" in str(labels) for _, labels in figures)
    assert ("kerolox_group_paused", (("consumer_group", "TOOLS_CONSUMER"),)) not in figures


async def test_windows_of_keys_are_measured(served: Served) -> None:
    topics = served.broker.parts.tables.topics
    attributes = {"dedup.window.ms": "60000"}
    topics.put(TopicConfig(topic_name="Once", attributes=attributes))
    async with Producer("p", f"{HOST}:{served.names.port}") as producer:
        for key in ("a", "b", "b"):
            await producer.send(Message("Once", b"x"), dedup_key=key)
    figures = await served.figures()
    labels = (("topic", "Once"),)
    assert figures["kerolox_duplicates_answered_total", labels] == 1
    assert figures["kerolox_dedup_keys", labels] == 2
    assert figures["kerolox_dedup_bytes", labels] > 0
    assert 0 <= figures["kerolox_dedup_window_seconds", labels] < 60
    assert figures["kerolox_dedup_keys_cut_total", labels] == 0


async def test_traffic_lag_and_times_are_measured(served: Served) -> None:
    name_server = f"{HOST}:{served.names.port}"
    async with Producer("p", name_server) as producer:
        for number in range(10):
            await producer.send(Message("T", b"x" * 100, keys=str(number)))
        async with PullConsumer("g", name_server) as consumer:
            queues = await consumer.queues("T")
            got = [m for queue in queues for m in (await consumer.pull(queue, 0)).messages]
            assert len(got) == 10
            broker_name = served.broker.config.broker_name
            served.broker.parts.tables.offsets.commit("g", "T", 0, 1, HOST)
            high = served.broker.parts.store.queue_bounds("T", 0)[1]
            assert MessageQueue("T", broker_name, 0) in queues
            figures = await served.figures()
    topic = (("is_system", "false"), ("topic", "T"))
    group = (("consumer_group", "g"), ("is_retry", "false"), *topic)
    assert figures["rocketmq_messages_in_total", topic] == 10
    assert figures["rocketmq_throughput_in_total", topic] > 1_000
    assert figures["rocketmq_messages_out_total", group] == 10
    assert figures["rocketmq_consumer_lag_messages", group] == high - 1
    assert (
        figures["kerolox_consumer_queue_lag_messages", tuple(sorted((*group, ("queue_id", "0"))))]
        == high - 1
    )
    assert figures["rocketmq_consumer_lag_latency", group] >= 0
    assert figures["kerolox_send_latency_seconds_count", ()] == 10
    assert figures["kerolox_delivery_latency_seconds_count", ()] == len(queues)
    assert figures["kerolox_delivery_latency_seconds_bucket", (("le", "3600.0"),)] == len(queues)
    assert (
        figures["kerolox_flush_latency_seconds_count", ()]
        == (figures["kerolox_store_flushes_total", ()])
    )
    age = figures["kerolox_consumer_queue_lag_seconds", tuple(sorted((*group, ("queue_id", "0"))))]
    assert 0 <= age < 60
    parts = {key[1][0][1] for key in figures if key[0] == "kerolox_resident_memory_bytes"}
    assert parts == {"anonymous", "files", "shared"}
    assert figures["kerolox_connections", ()] >= 1
    assert figures["process_resident_memory_bytes", ()] > 1 << 20
    assert figures["process_start_time_seconds", ()] == pytest.approx(process_start(), abs=2)
    storage = (("storage_medium", "disk"), ("storage_type", "local"))
    assert figures["rocketmq_storage_size", storage] > 1_000
    names = await served.figures(served.names.metrics_port)
    assert names["kerolox_namesrv_brokers", ()] == 1


async def test_deliveries_of_filtered_pulls_are_timed_too(tmp_path: Path, kernel: str) -> None:
    config = small_config(tmp_path, enable_property_filter=True, **PROM)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"x", properties="a\x012\x02")
        for expression, found in (("a > 1", 0), ("a > 5", 20)):
            answer = await peer.pull("T", tags=expression, expressionType="SQL92")
            assert answer.code == found
        assert (await peer.pull("T")).code == 0
        counts, total_us = broker.parts.store_stats.delivery_times()
    assert sum(counts) == 2
    assert total_us >= 0


@pytest.mark.parametrize(
    ("accept", "parse"), [("", plain), ("application/openmetrics-text", openmetrics)]
)
async def test_a_scrape_under_load_adds_up(served: Served, accept: str, parse: Any) -> None:
    async def send_always() -> None:
        while True:
            await asyncio.gather(*(peer.send("T", b"x") for _ in range(50)))

    async with peer_of(served.broker) as peer:
        await peer.create_topic("T")
        sending = asyncio.create_task(send_always())
        last: dict[tuple[str, str], float] = {}
        try:
            for _ in range(5):
                text = (await fetch(served.broker.metrics_port, "/metrics", accept))[1]
                families = {each.name: each for each in parse(text)}
                check_histograms(families)
                now = {
                    (each.name, str(each.labels)): each.value
                    for family in families.values()
                    if family.type in ("counter", "histogram")
                    for each in family.samples
                }
                assert all(now[key] >= value for key, value in last.items())
                last = now
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        stored = families["rocketmq_messages_in"].samples[0].value
    assert stored > 0


def check_histograms(families: dict[str, Any]) -> None:
    """Buckets grow to the count."""
    histograms = [each for each in families.values() if each.type == "histogram"]
    assert len(histograms) == 4
    for family in histograms:
        *buckets, count, total = family.samples
        values = [each.value for each in buckets]
        assert values == sorted(values)
        assert values[-1] == count.value
        assert total.value >= 0


async def test_names_keep_to_the_conventions(served: Served) -> None:
    status, text = await fetch(
        served.broker.metrics_port, "/metrics", "application/openmetrics-text; version=1.0.0"
    )
    assert status == 200
    families = list(openmetrics(text))
    assert len(families) > 20
    for family in families:
        assert family.documentation, family.name
        assert family.name.startswith(("rocketmq_", "kerolox_", "process_")), family.name
        shared = {"cluster", "node_type", "node_id"}
        assert all(shared <= sample.labels.keys() for sample in family.samples), family.name


async def test_a_server_is_ready_when_a_name_server_knows_it(served: Served) -> None:
    port = served.broker.metrics_port
    assert await fetch(port, "/health/live") == (200, "live\n")
    assert await fetch(port, "/health/ready") == (200, "ready\n")
    served.broker.parts.writing.gate.set_writable(False)
    status, text = await fetch(port, "/health/ready")
    assert (status, "disk" in text) == (503, True)
    assert (await fetch(port, "/health/live"))[0] == 200
    assert await fetch(served.names.metrics_port, "/health/ready") == (200, "ready\n")


async def test_series_are_bounded_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    config = small_config(tmp_path, metrics_otel_cardinality_limit=2, **PROM)
    async with Broker(config) as broker:
        for number in range(5):
            broker.parts.broker_stats.add("TOPIC_PUT_NUMS", f'T{number}\n"', 1)
        text = (await fetch(broker.metrics_port, "/metrics"))[1]
    [family] = [each for each in plain(text) if each.name == "rocketmq_messages_in"]
    assert len(family.samples) == 2
    [left_out] = [each for each in plain(text) if each.name == "kerolox_metrics_left_out_series"]
    assert left_out.samples[0].value >= 3


async def test_topics_groups_and_queues_make_no_more_series_than_the_limit(tmp_path: Path) -> None:
    limit = 7
    config = small_config(tmp_path, metrics_otel_cardinality_limit=limit, **PROM)
    async with Broker(config) as broker:
        for topic, group, queue_id in itertools.product("ABC", "GHIJ", range(4)):
            broker.parts.tables.offsets.commit(group, topic, queue_id, 0, HOST)
            broker.parts.broker_stats.add("GROUP_GET_NUMS", f"{topic}@{group}", 1)
        text = (await fetch(broker.metrics_port, "/metrics"))[1]
    families = {each.name: each.samples for each in plain(text) if each.type != "histogram"}
    assert max(map(len, families.values())) == limit
    for name in ("kerolox_consumer_queue_lag_messages", "kerolox_consumer_queue_lag_seconds"):
        assert len(families[name]) == limit
    [left_out] = families["kerolox_metrics_left_out_series"]
    assert left_out.value >= 2 * (48 - limit) + 3 * (12 - limit)


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
async def test_a_large_look_is_told_again_for_a_while(
    served: Served, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = served.broker.metrics_port
    first, second = [(await fetch(port, "/metrics", accept))[1] for _ in range(2)]
    assert first != second  # the process's CPU is in it
    monkeypatch.setattr(serving, "SERIES_ALWAYS_FRESH", 10)
    monkeypatch.setattr(serving, "SERIES_PER_MS", 0.0001)
    third, fourth = [(await fetch(port, "/metrics", accept))[1] for _ in range(2)]
    assert second != third == fourth
    monkeypatch.setattr(serving, "SERIES_PER_MS", 1e9)
    other = "" if accept else "application/openmetrics-text"
    fifth, sixth = [(await fetch(port, "/metrics", other))[1] for _ in range(2)]
    assert fifth != sixth


async def test_without_a_setting_no_port_is_open(tmp_path: Path) -> None:
    async with Broker(small_config(tmp_path)) as broker:
        assert broker.metrics_port == 0


SERVER_WITHOUT_FIGURES = """
import asyncio, sys
from pathlib import Path
from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.extensions.dead_letter_marks import DoneOffsets

async def start(folder):
    names = NamesrvConfig(listen_host="127.0.0.1", listen_port=0, kv_config_path=folder / "kv.json")
    async with NameServer(names), Broker(
        BrokerConfig(store_path_root_dir=folder, listen_host="127.0.0.1", listen_port=0)
    ):
        print([name for name in ("prometheus_client", "h11") if name in sys.modules])

asyncio.run(start(Path(sys.argv[1])))
"""


def test_without_metrics_no_library_for_them_is_loaded(tmp_path: Path) -> None:
    program = [sys.executable, "-c", SERVER_WITHOUT_FIGURES, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("path", ["/", "/metrics/", "/health"])
async def test_other_paths_name_those_that_there_are(served: Served, path: str) -> None:
    status, text = await fetch(served.broker.metrics_port, path)
    assert (status, "/metrics" in text) == (404, True)


async def test_messages_that_are_out_have_figures(served: Served):
    async with peer_of(served.broker) as peer:
        await peer.create_topic("T", 1)
        for _ in range(3):
            await peer.send("T")
        member = Member(peer)
        popped = await member.pop()
        await member.ack_all(popped[:1])
        await member.change(popped[1], 0)
        await served.broker.parts.popping.revival.run()
    labels = (
        ("consumer_group", GROUP),
        ("is_retry", "false"),
        ("is_system", "false"),
        ("topic", "T"),
    )
    figures = await served.figures()
    assert figures["rocketmq_consumer_inflight_messages", labels] == 1
    assert figures["kerolox_consumer_inflight_seconds", labels] >= 0
    assert figures["rocketmq_pop_revive_retry_messages_total", ()] == 1
    assert figures["kerolox_held_pops", ()] == 0


async def test_metrics_of_messages_for_a_moment_come_with_the_first(served: Served):
    before = await served.figures()
    assert not [name for name, _ in before if "timer" in name or "timing" in name]
    async with peer_of(served.broker) as peer:
        await peer.create_topic("Timed")
        for _ in range(3):
            answer = await peer.send("Timed", properties="TIMER_DELAY_SEC\x01120")
            assert answer.code == 0
    timer = served.broker.parts.writing.timer
    await timer.turn()
    found = await served.figures()
    assert found["rocketmq_timing_messages", (("topic", "Timed"),)] == 3
    assert found["rocketmq_timer_message_snapshot", (("timer_bound_s", "300"),)] == 3
    assert found["rocketmq_timer_message_snapshot", (("timer_bound_s", "60"),)] == 0
    assert found["rocketmq_timer_enqueue_total", ()] == 3
    for name in ("enqueue_lag", "enqueue_latency", "dequeue_lag", "dequeue_latency"):
        assert found[f"rocketmq_timer_{name}", ()] == 0
    assert found["kerolox_timer_lag_seconds", ()] == 0
    assert found["kerolox_timer_lost_total", ()] == 0
    counted = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "rocketmq_delay_message_latency_bucket" and ("topic", "Timed") in labels
    }
    assert (counted["60.0"], counted["600.0"], counted["+Inf"]) == (0, 3, 3)
    assert 330 < found["rocketmq_delay_message_latency_sum", (("topic", "Timed"),)] <= 360
    served.broker.parts.tables.topics.delete("Timed")
    assert not [name for name, _ in await served.figures() if "delay_message" in name]
