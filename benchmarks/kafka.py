"""The Kafka broker that the benchmarks of the Spark sink run against, as a process on loopback.

The jars are those of a folder with ``kafka-broker`` and ``kafka-connector``, as the script of
``bench/kafka-spark`` installs them.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.eventually import wait_until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 4
READY_SECONDS_MAX = 120
HEAP = "1g"
CLUSTER_ID = "a2Vyb2xveC1iZW5jaG1hcg"

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Kafka(NamedTuple):
    """A broker that runs."""

    address: str
    pid: int
    data: Path
    """Where its topics are, a folder for each partition."""
    jars: str
    """Of Spark's connector, as ``spark.jars`` takes them."""


@contextmanager
def kafka_broker(peers: Path, folder: Path) -> Iterator[Kafka]:
    """One broker in KRaft mode, with its default settings of durability.

    Args:
        peers: the folder with the jars.
        folder: for its data and its log.
    """
    port, controller, data = free_port(), free_port(), folder / "data"
    data.mkdir(parents=True)
    properties = folder / "server.properties"
    values = {"port": port, "controller": controller, "data": data, "partitions": PARTITIONS}
    properties.write_text(_PROPERTIES.format(**values))
    java = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", "-cp", f"{peers}/kafka-broker/*"]
    log = folder / "log"
    with log.open("wb") as sink:
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*java, *tool], check=True, stdout=sink, stderr=sink)
        process = subprocess.Popen([*java, "kafka.Kafka", properties], stdout=sink, stderr=sink)
    try:

        def started() -> bool:
            assert process.poll() is None, log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(started, seconds=READY_SECONDS_MAX, what="the start of Kafka")
        jars = ",".join(map(str, sorted((peers / "kafka-connector").glob("*.jar"))))
        yield Kafka(f"127.0.0.1:{port}", process.pid, data, jars)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(READY_SECONDS_MAX)
