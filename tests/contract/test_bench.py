"""``kerolox bench``: on a cluster of ours and on a Java cluster."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin.sync import Admin
from kerolox.bench.running import PREFIX
from kerolox.errors import TopicRouteNotFoundError
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.command import kerolox
from tests.support.servers.terminal import read_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers.clusters import Cluster


def bench(cluster: Cluster, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = kerolox("bench", *arguments, "-o", "json", "-n", cluster.name_server)
    assert done.returncode == code, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def leftovers(cluster: Cluster) -> list[str]:
    """Topics and groups of loads that are still there."""
    with Admin(cluster.name_server) as admin:
        return [each for each in (*admin.list_topics(), *admin.list_groups()) if PREFIX in each]


@pytest.fixture(scope="module", autouse=True)
def _nothing_comes_back(cluster: Cluster) -> Iterator[None]:
    """A Java broker that answers a held pull of a consumer that has left makes its group anew."""
    yield
    assert leftovers(cluster) == []


@pytest.mark.parametrize("kind", ["send", "consume", "roundtrip"])
def test_a_load_is_measured_and_leaves_nothing(cluster: Cluster, kind: str) -> None:
    found = bench(cluster, kind, "--count", 300, "--size", "2KiB", "--concurrency", 8)
    assert (found["kind"], found["failed"], found["errors"]) == (kind, 0, {})
    assert found["messages"] == 300
    assert found["bytes"] == 300 * 2048
    assert sum(each["count"] for each in found["histogram"]) == 300
    assert 0 <= found["p50Ms"] <= found["p90Ms"] <= found["p99Ms"] <= found["maxMs"]
    assert found["messagesPerSecond"] > 0
    assert found["topic"].startswith(PREFIX)
    assert leftovers(cluster) == []


def test_a_topic_that_was_there_stays_and_refusals_are_counted(cluster: Cluster) -> None:
    with Admin(cluster.name_server) as admin:
        admin.create_topic("BenchStays", queues=2)
        assert bench(cluster, "send", "BenchStays", "--count", 50)["messages"] == 50
        # Of what was there before a round trip sees nothing.
        assert bench(cluster, "roundtrip", "BenchStays", "--count", 20)["messages"] == 20
        assert bench(cluster, "consume", "BenchStays")["messages"] == 70
        queues = admin.describe_topic("BenchStays").queues
        assert sum(each.max_offset for each in queues) == 70
        admin.update_topic("BenchStays", perm=4)
        refused = bench(cluster, "send", "BenchStays", "--count", 3, code=1)
        assert (refused["messages"], refused["failed"]) == (0, 3)
        admin.delete_topic("BenchStays")


def test_a_rate_is_kept_from_the_times_that_sends_are_due(cluster: Cluster) -> None:
    found = bench(cluster, "send", "--count", 40, "--rate", 100)
    assert found["messages"] == 40
    assert found["seconds"] >= 0.39
    text = kerolox("bench", "send", "--count", 40, "-n", cluster.name_server).stdout
    assert text.startswith("40 messages, 40,960 bytes in ")
    assert "p99.9 " in text
    assert "█" in text


def test_an_interrupt_removes_what_was_made(cluster: Cluster) -> None:
    """stderr is a terminal, so that progress is shown meanwhile."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "kerolox.cli", "bench", "roundtrip", "--seconds", "600"]
    process = subprocess.Popen(
        [*command, "-n", cluster.name_server], stderr=slave, stdout=subprocess.PIPE
    )
    os.close(slave)
    shown = b""
    while b"messages" not in shown:
        shown += os.read(master, 4096)
    # A terminal that nobody reads would hold it up.
    reading = threading.Thread(target=read_to_end, args=(master,))
    reading.start()
    assert leftovers(cluster) != []
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS_MAX) == 130
    assert process.stdout is not None
    process.stdout.close()
    reading.join()
    os.close(master)
    wait_until(lambda: leftovers(cluster) == [], what="the end of the topic and the group")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["send", "--size", "5MiB"], 1, "size is 5242880; it must be between 1 and 4194304"),
        (["roundtrip", "--size", "23"], 1, "it must be between 24"),
        (["send", "--size", "1kg"], 2, "write a size such as 512, 1KiB or 1MiB"),
        (["send", "--concurrency", "0"], 2, "--concurrency"),
        (["run"], 2, "run"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], code: int, reason: str) -> None:
    done = kerolox("bench", *arguments, "-n", "127.0.0.1:1")
    assert done.returncode == code
    assert reason in done.stderr


def test_a_topic_without_messages_is_not_waited_for(cluster: Cluster) -> None:
    with Admin(cluster.name_server) as admin:
        admin.create_topic("BenchEmpty", queues=1)
        done = kerolox("bench", "consume", "BenchEmpty", "-n", cluster.name_server)
        assert done.returncode == 1
        assert "has no message to consume" in done.stderr
        admin.delete_topic("BenchEmpty")
        with pytest.raises(TopicRouteNotFoundError):
            admin.describe_topic("BenchEmpty")
