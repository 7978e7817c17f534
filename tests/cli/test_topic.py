"""``kerolox topic``."""

from __future__ import annotations

import json

from tests.support.servers.command import Server, kerolox


def test_a_topic_is_created_listed_described_and_deleted(cluster: Server, name_server: str) -> None:
    broker = cluster.addresses["broker"]
    created = kerolox("topic", "create", "Orders", "--queues", 3, "-n", name_server)
    assert created.stdout == f"topic Orders has 3 queues on {broker}\n"
    assert kerolox(
        "topic", "list", "--names", "-o", "raw", "-n", name_server
    ).stdout.splitlines() == ["Orders"]
    listed = kerolox("topic", "list", "--all", "--names", "-o", "json", NAMESRV_ADDR=name_server)
    assert {"Orders", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= {
        row["topic"] for row in json.loads(listed.stdout)
    }

    described = kerolox("topic", "describe", "Orders", "-n", name_server).stdout
    assert "broker-a: 3 read, 3 write queues, permission RW" in described
    assert f"broker-a master {broker} (DefaultCluster)" in described
    assert described.endswith("0 messages, 0 groups\n")
    as_json = kerolox("topic", "describe", "Orders", "-o", "json", "-n", name_server).stdout
    assert json.loads(as_json)["queueData"] == [
        {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    ]
    assert len(json.loads(as_json)["queues"]) == 3

    deleted = kerolox("topic", "delete", "Orders", "--yes", "-n", name_server)
    assert deleted.stdout == f"topic Orders deleted on {broker}\n"
    assert kerolox("topic", "list", "--names", "-o", "raw", "-n", name_server).stdout == ""


def test_an_ordered_topic_has_its_queues_in_the_name_server(name_server: str) -> None:
    done = kerolox("topic", "create", "Ordered", "--queues", 2, "--order", "-n", name_server)
    assert done.returncode == 0
    assert kerolox("topic", "delete", "Ordered", "--yes", "-n", name_server).returncode == 0


def queue_counts(topic: str, name_server: str) -> tuple[int, int]:
    """Read and write queues of its only broker."""
    done = kerolox("topic", "describe", topic, "-o", "json", "-n", name_server)
    [data] = json.loads(done.stdout)["queueData"]
    return data["readQueueNums"], data["writeQueueNums"]


def test_a_topic_that_is_there_is_left_as_it_is(cluster: Server, name_server: str) -> None:
    at = ("-n", name_server)
    assert kerolox("topic", "create", "There", "--queues", 4, *at).returncode == 0
    check_error(
        f"topic 'There' is there already: 4 read, 4 write queues, perm 6 on "
        f"{cluster.addresses['broker']}; nothing was changed. 'kerolox topic update There' changes",
        *("topic", "create", "There", "--queues", 2, *at),
    )
    assert queue_counts("There", name_server) == (4, 4)


def test_an_update_says_what_changes_and_keeps_read_queues(
    cluster: Server, name_server: str
) -> None:
    at, begin = ("-n", name_server), f"topic Grows on {cluster.addresses['broker']}: "
    update = ("topic", "update", "Grows", *at)
    assert kerolox("topic", "create", "Grows", "--queues", 4, *at).returncode == 0
    tried = kerolox(*update, "--queues", 6, "--dry-run").stdout
    assert tried.splitlines() == [
        begin + "read queues 4 → 6, write queues 4 → 6",
        "nothing was changed (--dry-run)",
    ]
    assert queue_counts("Grows", name_server) == (4, 4)
    grown = kerolox(*update, "--queues", 6, "--perm", 4).stdout
    assert grown == begin + "read queues 4 → 6, write queues 4 → 6, perm RW → R\n"
    assert queue_counts("Grows", name_server) == (6, 6)
    shrunk = kerolox(*update, "--queues", 2).stdout.splitlines()
    assert shrunk[0] == begin + "write queues 6 → 2"
    assert shrunk[1].startswith("  read queues stay 6: ")
    assert queue_counts("Grows", name_server) == (6, 2)
    assert kerolox(*update, "--queues", 2, "--shrink-read-queues").returncode == 0
    assert queue_counts("Grows", name_server) == (2, 2)
    assert kerolox(*update, "--queues", 2).stdout == begin + "nothing changes\n"
    assert kerolox(*update).returncode == 2
    check_error("there is no topic 'Gone'", "topic", "update", "Gone", "--queues", 2, *at)


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


def test_attributes_are_given_shown_filtered_by_and_taken_away(
    cluster: Server, name_server: str
) -> None:
    at, broker = ("-n", name_server), cluster.addresses["broker"]
    created = kerolox("topic", "create", "Typed", "--attribute", "message.type=FIFO", *at)
    assert created.returncode == 0
    assert kerolox("topic", "create", "Untyped", *at).returncode == 0
    assert "  broker-a: message.type=FIFO\n" in kerolox("topic", "describe", "Typed", *at).stdout
    as_json = json.loads(kerolox("topic", "describe", "Typed", "-o", "json", *at).stdout)
    assert as_json["attributes"] == {"broker-a": {"message.type": "FIFO"}}
    template = ("-o", "{topic} {messageType}")
    listed = kerolox("topic", "list", "--type", "FIFO", *template, *at).stdout
    assert listed == "Typed FIFO\n"
    listed = kerolox("topic", "list", "--type", "MIXED", "--names", "-o", "raw", *at).stdout
    assert "Untyped" in listed.splitlines()
    assert "Typed" not in listed.splitlines()
    change = ("topic", "update", "Typed", *at)
    done = kerolox(*change, "--attribute", "message.type=DELAY", "--dry-run").stdout
    begin = f"topic Typed on {broker}: attributes message.type=FIFO → "
    assert done.splitlines()[0] == begin + "message.type=DELAY"
    done = kerolox(*change, "--remove-attribute", "message.type").stdout
    assert done == begin + "-\n"
    for topic in ("Typed", "Untyped"):
        assert kerolox("topic", "delete", topic, "--yes", *at).returncode == 0


def test_attributes_that_no_broker_takes_are_an_error_that_says_why(name_server: str) -> None:
    make = ("topic", "create", "Wrong", "-n", name_server, "--attribute")
    check_error("value is not in set: [UNSPECIFIED, TRANSACTION, FIFO", *make, "message.type=SOME")
    check_error("unsupported key: a", *make, "a=1")
    check_error("is illegal: a name has no '+'", *make, "a+b=1")
    done = kerolox(*make, "message.type")
    assert done.returncode == 2
    assert "write NAME=VALUE, such as message.type=FIFO" in done.stderr


def test_a_topic_is_described_with_what_its_window_of_keys_has(name_server: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Once", "--attribute", "dedup.window.ms=60000", *at)
    described = kerolox("topic", "describe", "Once", *at).stdout
    assert "broker-a: window of 1 min: 0 keys, 0 bytes, 0 messages not stored again\n" in described
    as_json = json.loads(kerolox("topic", "describe", "Once", "-o", "json", *at).stdout)
    assert as_json["dedupWindows"]["broker-a"] == {
        **dict.fromkeys(("keys", "bytes", "ageMs", "keysCut", "answered"), 0),
        "windowMs": 60_000,
        "isKept": True,
    }
    kerolox("topic", "delete", "Once", "--yes", *at)
