"""mqadmin shows our broker's metrics: how much goes through, how far groups are, its settings."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer, PullConsumer
from kerolox.message import Message
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import RETRY_PREFIX
from tests.interop.mqadmin import MqAdmin
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import wait_until
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

TOPIC, GROUP = "Figures", "figures-readers"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A broker with ten messages, of which a group got all and committed four."""
    with Up(tmp_path_factory.mktemp("figures")) as server:
        with (
            Producer("figures", server.namesrv) as producer,
            PullConsumer(GROUP, server.namesrv) as consumer,
        ):
            queue = producer.send(Message(TOPIC, b"x")).queue
            for _ in range(9):
                producer.send(Message(TOPIC, b"x"), queue=queue)
            assert len(consumer.pull(queue, 0).messages) == 10
            consumer.commit(queue, 4)
        yield server


def test_broker_consume_stats_shows_the_distance_of_each_queue(up: Up, mqadmin: MqAdmin) -> None:
    text = mqadmin("brokerConsumeStats", "-b", up.broker)
    row = next(line for line in text.splitlines() if line.startswith(TOPIC) and " 10 " in line)
    assert re.search(rf"{GROUP} +\S+ +\d+ +10 +4 +6 ", row), text
    assert "Diff Total: 6" in text
    with Admin(up.namesrv) as admin:
        found = admin.broker_progress(up.broker)
    assert found.lag == 6
    [mine] = [each for each in found.groups if each.group == GROUP]
    assert [(each.broker_offset, each.consumer_offset) for each in mine.queues if each.lag] == [
        (10, 4)
    ]


def test_stats_all_shows_what_goes_in_and_out(up: Up, mqadmin: MqAdmin) -> None:
    rows: list[list[str]] = []

    def sampled() -> bool:
        text = mqadmin("statsAll", "-t", TOPIC)
        rows[:] = [line.split() for line in text.splitlines() if line.startswith(TOPIC)]
        return rows[0][-2:] == ["10", "10"]

    # Metrics are samples of every ten seconds; one may be taken between mqadmin's two questions.
    # A command of mqadmin costs too much to be asked all the time.
    with PatientConnection(up.broker) as connection:
        fields = {"statsName": "GROUP_GET_NUMS", "statsKey": f"{TOPIC}@{GROUP}"}
        asked = RemotingCommand.request(RequestCode.VIEW_BROKER_STATS_DATA, fields)
        wait_until(
            lambda: fastjson.loads(connection.invoke(asked).body)["statsMinute"]["sum"] == 10,
            what="a sample with all ten messages",
        )
    wait_until(sampled, what="a sample with all ten messages, in and out")
    [[topic, group, behind, _in_rate, _out_rate, in_day, out_day]] = rows
    assert (topic, group) == (TOPIC, GROUP)
    with Admin(up.namesrv) as admin:
        [row] = admin.traffic(topic=TOPIC)
    assert (row.topic, row.group, row.lag) == (topic, group, 6)
    assert behind in ("0", "6")  # mqadmin finds the lag of groups with a retry topic only
    assert (str(row.in_day), str(row.out_day)) == (in_day, out_day)


def test_settings_are_changed_and_shown(up: Up, mqadmin: MqAdmin) -> None:
    changed = mqadmin("updateBrokerConfig", "-b", up.broker, "-k", "fileReservedTime", "-v", "9")
    assert "success" in changed
    assert re.search(r"fileReservedTime\s+=\s+9\b", mqadmin("getBrokerConfig", "-b", up.broker))
    assert "fileReservedTime=9" in (up.data / "broker.conf").read_text()


def test_settings_and_metrics_are_exported(up: Up, mqadmin: MqAdmin) -> None:
    folder = up.data / "exported"
    for command, file, member in (
        ("exportConfigs", "configs.json", '"brokerRole":"ASYNC_MASTER"'),
        ("exportMetrics", "metrics.json", f'"cpuNum":"{os.cpu_count()}"'),
    ):
        mqadmin(command, "-c", "DefaultCluster", "-f", str(folder))
        assert member in (folder / file).read_text()


def test_offsets_and_metrics_are_those_of_mqadmin(up: Up, mqadmin: MqAdmin) -> None:
    with Admin(up.namesrv) as admin:
        # By its route mqadmin finds the brokers of a group; push consumers have it made.
        admin.create_topic(RETRY_PREFIX + GROUP, queues=1)
        progress = mqadmin("consumerProgress", "-g", GROUP)
        ours = admin.group_progress(GROUP)
        rows = [line.split()[:6] for line in progress.splitlines() if line.startswith(TOPIC)]
        assert [
            [q.topic, q.broker_name, *map(str, (q.queue_id, e.broker_offset, e.consumer_offset))]
            for e in ours.queues
            for q in [e.queue]
        ] == [row[:5] for row in rows]
        assert f"Diff Total: {ours.lag}" in progress
        status = mqadmin("topicStatus", "-t", TOPIC)
        queues = admin.describe_topic(TOPIC).queues
        rows = [line.split()[:4] for line in status.splitlines() if not line.startswith("#")]
        assert [
            [q.broker_name, *map(str, (q.queue_id, each.min_offset, each.max_offset))]
            for each in queues
            for q in [each.queue]
        ] == [row for row in rows if row]
        told = mqadmin("brokerStatus", "-b", up.broker)
        names = [line.partition(":")[0].strip() for line in told.splitlines() if ":" in line]
        assert sorted(names) == sorted(admin.broker_runtime(up.broker).values)
        shares = json.loads(mqadmin("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"))
        ours_by_client = admin.allocate_queues(TOPIC, ["10.0.0.1", "10.0.0.2"])
        # It takes the queues in any order; members of a group sort them.
        assert {client: len(each) for client, each in shares["result"].items()} == {
            client: len(each) for client, each in ours_by_client.items()
        }


def test_exports_are_those_of_mqadmin(up: Up, mqadmin: MqAdmin) -> None:
    folder = up.data / "both"

    def exported(command: str, file: str) -> Any:
        mqadmin(command, "-c", "DefaultCluster", "-f", str(folder))
        return json.loads((folder / file).read_text())

    with Admin(up.namesrv) as admin:
        theirs, ours = exported("exportMetadata", "metadata.json"), admin.export_metadata()
        del theirs["exportTime"]
        assert json.loads(ours.to_json()) == {**theirs, "exportTime": ours.exported_ms}
        assert json.loads(admin.export_configs().to_json()) == exported(
            "exportConfigs", "configs.json"
        )
        metrics = json.loads(admin.export_metrics().to_json())
        assert shape(metrics) == shape(exported("exportMetrics", "metrics.json"))


def shape(value: object) -> object:
    """The names and kinds of what is in it: metrics change with each check."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in sorted(value.items())}
    return type(value).__name__
