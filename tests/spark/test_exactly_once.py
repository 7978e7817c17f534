"""One query whose driver is killed again and again, into Parquet: each message is there once.

By default one driver is killed (``KEROLOX_SPARK_ROUNDS``: as many as that). With
``KEROLOX_SOFTWARE=all`` twenty are, each on a cluster of two hosts where slow tasks have copies
(speculation). In turn executors are killed too, broker and name servers are killed and started
again, and queues are added, all while messages are sent.
"""

import os
import random
import signal
import threading
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kerolox.spark.positions.read_limits import HAS_READ_LIMITS
from tests.spark.drivers import Driver, driver_variables
from tests.spark.servers import Servers
from tests.support.clients.spark import SECONDS_OF_SPARK, Sending, Sent, Topics
from tests.support.programs import RUNS_ALL
from tests.support.servers.sparks import standalone_cluster

KILLS = int(os.environ.get("KEROLOX_SPARK_ROUNDS", "20" if RUNS_ALL else "1"))
PER_BATCH = 60
RUNS_TO_THE_END = 1 if HAS_READ_LIMITS else 2
"""Of PySpark 4.1 the first one does no more than the batch in which the driver was killed."""

BATCHES_MAX = 4
"""A driver does at most so many batches before it is killed."""

pytestmark = pytest.mark.timeout(600 + 120 * KILLS)


class Reader(Driver):
    """A driver that reads into a table until it is killed, with its executors.

    Args:
        name_server: of the brokers.
        topic: what it reads.
        folder: has the table, the checkpoint, and what the driver tells.
        master: of Spark.
        cluster: its folder, with those of its executors.
    """

    def __init__(
        self, name_server: str, topic: str, folder: Path, master: str, cluster: Path
    ) -> None:
        self._folder, self._cluster = folder, cluster
        self.running = folder / "running"
        self.running.unlink(missing_ok=True)
        given = name_server, topic, folder, master, PER_BATCH
        super().__init__("tests.spark.read_on", *given, log=folder / "log")

    def commits(self) -> int:
        """Batches that are done."""
        return len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))

    def kill_executors(self) -> None:
        """They are started again."""
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_ours = self._cluster in (each / "cwd").readlink().parents
                if is_ours and b"CoarseGrainedExecutorBackend" in (each / "cmdline").read_bytes():
                    os.kill(int(each.name), signal.SIGKILL)


def test_each_message_is_in_the_table_once_whatever_is_killed(
    spark, spark_environment, tmp_path_factory
):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("exactly-once")
    with ExitStack() as stack:
        servers = Servers(tmp_path_factory.mktemp("exactly-once-servers"))
        for server in servers.all:
            stack.enter_context(server)
        topics = Topics(f"127.0.0.1:{servers.ports[0]}", f"127.0.0.1:{servers.port}")
        topic = topics.create(f"once-{uuid.uuid4().hex[:12]}")
        master, cluster = "local[2]", folder / "cluster"
        if RUNS_ALL:
            master = stack.enter_context(standalone_cluster(cluster, driver_variables()))
        sending = stack.enter_context(Sending(topics.broker, topic))
        more: list[tuple[int, int]] = []
        for number in range(KILLS):
            with Reader(servers.name_server, topic, folder, master, cluster) as driver:
                more += end_one_way(driver, number, chance, servers, topics, topic)
        sent = [*sending.acknowledged, *more]
        stream = spark.readStream.format("rocketmq").options(
            nameServer=servers.name_server,
            subscribe=topic,
            startingOffsets="earliest",  # a driver may be killed before it has planned a batch
            columns="queueId,queueOffset,body",
        )
        writer = stream.load().writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        for _ in range(RUNS_TO_THE_END):
            assert writer.start(str(folder / "table")).awaitTermination(SECONDS_OF_SPARK)
    # A task and a copy of it have lived at the same time.
    assert any(folder.glob("copied-*")) or not RUNS_ALL
    rows = spark.read.parquet(str(folder / "table")).select("queueId", "queueOffset").collect()
    places = [(row.queueId, row.queueOffset) for row in rows]
    assert len(places) == len(set(places)), f"a message is there twice; seed {seed}"
    assert set(sent) - set(places) == set(), f"a message is missing; seed {seed}"


def end_one_way(
    driver: Reader,
    number: int,
    chance: random.Random,
    servers: Servers,
    topics: Topics,
    topic: str,
) -> list[tuple[int, int]]:
    """Wait for some batches, have something else fail or change at times, and return a moment
    later; the places of messages that were sent besides."""
    more: list[tuple[int, int]] = []
    target = driver.commits() + chance.randrange(BATCHES_MAX)
    driver.wait_for(driver.running.exists, "a query that runs")
    driver.wait_for(lambda: driver.commits() >= target, f"batch {target}")
    if RUNS_ALL:
        what = number % 4
        if what == 0:
            driver.kill_executors()
        elif what == 1:
            servers.end(servers.broker, "kill")
            servers.broker.__enter__()
        elif what == 2:
            for server in servers.names:
                servers.end(server, "kill")
                server.__enter__()
        else:
            topics.create(topic, queues=4 + number)
            sent = topics.send(topic, [Sent(b"0", queue_id=3 + number) for _ in range(9)])
            more = [(each.queue_id, each.queue_offset) for each in sent]
        driver.wait_for(lambda: driver.commits() > target, "a batch after that")
    threading.Event().wait(chance.random() / 2)
    return more
