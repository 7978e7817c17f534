"""``kerolox stats``, ``producers`` and ``export``: what goes through a cluster, and what it has."""

from __future__ import annotations

import json
from pathlib import Path

from kerolox.client.sync import Producer
from kerolox.message import Message
from tests.support.eventually import wait_until
from tests.support.servers.command import kerolox


def test_stats_has_what_goes_into_a_topic_and_out_to_its_groups(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Counted", "--queues", "1", *at)
    kerolox("send", "Counted", "x", "--count", "3", *at)
    assert kerolox("stats", "Counted", *at).stdout.splitlines()[0].split() == [
        *("TOPIC", "GROUP", "LAG", "IN/S", "OUT/S", "IN", "OUT")
    ]
    [row] = json.loads(kerolox("stats", "Counted", "-o", "json", *at).stdout)
    assert (row["topic"], row["group"], row["lag"], row["outDay"]) == ("Counted", "", None, None)
    kerolox("group", "create", "counting", *at)
    reset = ("group", "reset", "counting", "Counted", "--to", "beginning", "--yes", "--new-group")
    assert kerolox(*reset, *at).returncode == 0
    [row] = json.loads(kerolox("stats", "Counted", "-o", "json", *at).stdout)
    assert (row["group"], row["lag"], row["outDay"]) == ("counting", 3, 0)
    assert kerolox("stats", "Nowhere", *at).returncode == 1


def test_producers_names_who_sends_and_from_where(name_server: str) -> None:
    kerolox("topic", "create", "Made", "--queues", "1", "-n", name_server)
    with Producer("makers", name_server) as producer:
        producer.send(Message("Made", b"x"))

        def known() -> list[dict[str, str]]:
            done = kerolox("producers", "--group", "makers", "-o", "json", "-n", name_server)
            return list(json.loads(done.stdout))

        wait_until(known, what="the first heartbeat")
        [row] = known()
        assert (row["group"], row["clientId"]) == ("makers", producer.client_id)
        assert (row["language"], row["version"], row["brokers"]) == (
            *("PYTHON", "V4_9_8"),
            "broker-a",
        )
        of_broker = kerolox("producers", "--broker", "broker-a", "-n", name_server)
        assert "makers" in of_broker.stdout
    assert kerolox("producers", "--group", "nobody", "-n", name_server).stdout == ""


def test_export_writes_the_files_of_mqadmin(name_server: str, tmp_path: Path) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Exported", "--queues", "3", *at)
    file = tmp_path / "metadata.json"
    done = kerolox("export", "metadata", "--file", file, *at)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"kerolox: {file} is written\n")
    assert json.loads(file.read_text())["topicConfigTable"]["Exported"]["writeQueueNums"] == 3
    configs = json.loads(kerolox("export", "configs", *at).stdout)
    assert configs["clusterScale"] == {
        "masterBrokerSize": 1,
        "namesrvSize": 1,
        "slaveBrokerSize": 0,
    }
    metrics = json.loads(kerolox("export", "metrics", *at).stdout)
    assert metrics["evaluateReport"].keys() == {"broker-a"}
