"""A transactional query whose tasks fail, live on beside others or are run twice, and whose broker
is killed: each row is there once, and none before its batch is decided.

By default some tasks fail and live on. ``KEROLOX_SOFTWARE=all`` has the other ways too, kills the
broker five times while rows are written and five times while they are ended, and reads what was
written by the Java client as well.
"""

from __future__ import annotations

import random
import threading
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.names import HALF_TOPIC
from kerolox.spark.positions.read_limits import HAS_READ_LIMITS
from tests.spark.drivers import Driver, driver_variables
from tests.spark.servers import Servers
from tests.spark.sink_reading import Watch, java_bodies, stored
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import Topics, needs_limits
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL
from tests.support.servers.sparks import standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = "tests.spark.sink_fail_me"
WAYS = ("failures", "zombies", "speculation") if RUNS_ALL else ("zombies",)
PER_BATCH, BATCHES = (200, 3) if HAS_READ_LIMITS else (600, 1)
KILLS = 5
PER_BATCH_OF_KILLS = 2000

pytestmark = [pytest.mark.timeout(900), *([pytest.mark.java] if RUNS_ALL else [])]


@contextmanager
def master_of(how: str, folder: Path) -> Iterator[str]:
    """Where a query of this way runs; copies of slow tasks need hosts of their own."""
    if how == "speculation":
        with standalone_cluster(folder, driver_variables()) as master:
            yield master
    else:
        yield "local[2,9]"


def check(name_server: str, topic: str, read: list[int], total: int) -> None:
    assert sorted(read) == list(range(total))
    if RUNS_ALL:
        assert sorted(map(int, java_bodies(name_server, topic))) == list(range(total))


@pytest.mark.parametrize("how", WAYS)
def test_rows_of_attempts_that_do_not_count_are_never_seen(
    spark, topics, topic, read, tmp_path, how
):
    origin = topics.create(f"origin-{uuid.uuid4().hex[:12]}", queues=2)
    topics.send_numbers(origin, range(BATCHES * PER_BATCH), queues=2)
    with PatientConnection(topics.broker) as connection:
        before = stored(connection, HALF_TOPIC, 0)
    decisions = tmp_path / "checkpoint" / "kerolox-sink"
    given = topics.namesrv, origin, topic, tmp_path, how, PER_BATCH
    with (
        master_of(how, tmp_path / "cluster") as master,
        Driver(PROGRAM, *given, master, log=tmp_path / "log") as driver,
    ):
        with Watch(topics.broker, topic, decisions, per_batch=PER_BATCH) as watch:
            driver.wait()
            if how == "zombies":
                # They live on for a while when their driver is gone.
                ended = [tmp_path / f"zombie-{batch}-ends" for batch in range(BATCHES)]
                wait_until(lambda: all(path.exists() for path in ended), what="ends of zombies")
        assert not watch.early
    assert not list(tmp_path.glob("alone-*")), "a slow task had no other beside it"
    with PatientConnection(topics.broker) as connection:
        halves = stored(connection, HALF_TOPIC, 0) - before
    # Attempts that do not count have written, too: a half of a batch is one task's.
    assert halves >= BATCHES * PER_BATCH * 6 / 5
    assert watch.decided() == BATCHES
    rows = [int(bytes(row.body)) for row in read(topic).load().collect()]
    check(topics.namesrv, topic, rows, BATCHES * PER_BATCH)


@needs_limits
@pytest.mark.skipif(not RUNS_ALL, reason="with KEROLOX_SOFTWARE=all")
def test_a_broker_killed_while_it_writes_and_ends_halves_gives_each_row_once(
    spark, spark_environment, tmp_path
):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    total = 2 * KILLS * PER_BATCH_OF_KILLS
    decisions = tmp_path / "checkpoint" / "kerolox-sink"
    with ExitStack() as stack:
        servers = Servers(tmp_path / "servers")
        for server in servers.all:
            stack.enter_context(server)
        broker = f"127.0.0.1:{servers.port}"
        topics = Topics(f"127.0.0.1:{servers.ports[0]}", broker)
        origin, target = topics.create("origin", queues=2), topics.create("target")
        topics.send_numbers(origin, range(total), queues=2)
        given = servers.name_server, origin, target, tmp_path, "broker", PER_BATCH_OF_KILLS
        driver = stack.enter_context(Driver(PROGRAM, *given, "local[2]", log=tmp_path / "log"))
        with Watch(broker, target, decisions, per_batch=PER_BATCH_OF_KILLS) as watch:
            for batch in range(2 * KILLS):
                what = "writing" if batch % 2 else "ending"
                begun = tmp_path / f"{what}-{batch}"
                driver.wait_for(begun.exists, f"a driver that is {what} batch {batch}")
                threading.Event().wait(chance.random() / 20)
                servers.end(servers.broker, "kill")
                servers.broker.__enter__()
            driver.wait()
        assert not watch.early, f"seed {seed}"
        assert watch.looks_before_a_decision
        stream = spark.read.format("rocketmq").option("nameServer", servers.name_server)
        rows = stream.option("subscribe", target).load().select("body").collect()
        check(servers.name_server, target, [int(bytes(row.body)) for row in rows], total)
