"""``kerolox topic``."""

from __future__ import annotations

import json

from tests.cli.command import Server, kerolox


def test_a_topic_is_created_listed_described_and_deleted(cluster: Server, name_server: str) -> None:
    broker = cluster.addresses["broker"]
    created = kerolox("topic", "create", "Orders", "--queues", 3, "-n", name_server)
    assert created.stdout == f"topic Orders has 3 queues on {broker}\n"
    assert kerolox("topic", "list", "-n", name_server).stdout.splitlines() == ["Orders"]
    listed = kerolox("topic", "list", "--all", "-o", "json", NAMESRV_ADDR=name_server)
    assert {"Orders", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(json.loads(listed.stdout))

    described = kerolox("topic", "describe", "Orders", "-n", name_server).stdout
    assert "broker-a: 3 read, 3 write queues, perm 6" in described
    assert f"broker-a master {broker} (DefaultCluster)" in described
    assert described.endswith("  0 messages\n")
    as_json = kerolox("topic", "describe", "Orders", "-o", "json", "-n", name_server).stdout
    assert json.loads(as_json)["queueData"] == [
        {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    ]
    assert len(json.loads(as_json)["queues"]) == 3

    changed = kerolox("topic", "create", "Orders", "--queues", 5, "-n", name_server)
    assert "5 queues" in changed.stdout
    deleted = kerolox("topic", "delete", "Orders", "-n", name_server)
    assert deleted.stdout == f"topic Orders deleted on {broker}\n"
    assert kerolox("topic", "list", "-n", name_server).stdout == ""


def test_an_ordered_topic_has_its_queues_in_the_name_server(name_server: str) -> None:
    done = kerolox("topic", "create", "Ordered", "--queues", 2, "--order", "-n", name_server)
    assert done.returncode == 0
    assert kerolox("topic", "delete", "Ordered", "-n", name_server).returncode == 0


def check_error(reason: str, *arguments: object) -> None:
    done = kerolox(*arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert reason in line


def test_errors_are_one_line_and_say_what_is_wrong(name_server: str) -> None:
    at = ("-n", name_server)
    check_error("there is no topic 'None'", "topic", "describe", "None", *at)
    check_error("there is no topic 'None'", "topic", "delete", "None", *at)
    check_error("no/such", "topic", "create", "no/such", *at)
    check_error("belongs to RocketMQ itself", "topic", "create", "TBW102", *at)
    check_error("belongs to RocketMQ itself", "topic", "delete", "TBW102", *at)
    check_error("known: DefaultCluster", "topic", "create", "T", "--cluster", "X", *at)


def test_a_name_server_that_is_down_or_misspelt_is_named() -> None:
    check_error("127.0.0.1:1: Connection refused", "topic", "list", "-n", "127.0.0.1:1")
    check_error("'nowhere' is no address", "topic", "list", "-n", "nowhere")
