"""The first batch of a query, on topics that are written to meanwhile.

``KEROLOX_SPARK_ROUNDS=20`` takes as many starts and as many kills.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.clients.spark import Gathered, Sending
from tests.support.eventually import wait_until

HERE = Path(__file__).parent
SECONDS_MAX = 240
ROUNDS = int(os.environ.get("KEROLOX_SPARK_ROUNDS", "0"))
STARTS = ROUNDS or 3
KILLS = ROUNDS or 1

long = pytest.mark.timeout(600 + 90 * ROUNDS)


@pytest.fixture
def start(spark, topics, topic):
    """Starts a query from where it would by itself, with a checkpoint and more options."""

    @contextmanager
    def started(checkpoint, take, *, trigger=None, **options):
        trigger = trigger or {"processingTime": "0 seconds"}
        stream = spark.readStream.format("rocketmq").option("nameServer", topics.namesrv)
        stream = stream.option("subscribe", topic).options(**options)
        writer = stream.load().writeStream.option("checkpointLocation", str(checkpoint))
        query = writer.foreachBatch(take).trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()

    return started


def catch_up(query, gathered: Gathered, sending: Sending) -> None:
    """Wait until the query has rows, and then all up to where the sender is."""

    def lives() -> bool:
        assert query.exception() is None, query.exception()
        return True

    wait_until(lambda: lives() and gathered.places, seconds=SECONDS_MAX, what="a row of the query")
    # What was sent before this query began is behind its first row, if it starts at latest.
    sent = sending.acknowledged[-200:]
    wait_until(
        lambda: lives() and gathered.has_all(sent),
        seconds=SECONDS_MAX,
        what="rows up to the sender's place",
    )
    assert set(gathered.places.values()) == {1}


@long
@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_query_starts_on_a_topic_that_is_written_to(start, topics, topic, tmp_path, starting):
    with Sending(topics.broker, topic) as sending:
        for number in range(STARTS):
            gathered = Gathered()
            checkpoint = tmp_path / str(number)
            with start(checkpoint, gathered.take, startingOffsets=starting) as query:
                catch_up(query, gathered, sending)
            if starting == "earliest":
                assert {(queue_id, 0) for queue_id in range(4)} <= gathered.places.keys()


def test_a_single_batch_reads_what_is_there(start, topics, topic, tmp_path):
    topics.send_numbers(topic, range(40))
    gathered = Gathered()
    options = {"trigger": {"availableNow": True}, "startingOffsets": "earliest"}
    with start(tmp_path / "now", gathered.take, **options) as query:
        assert query.awaitTermination(SECONDS_MAX)
    assert len(gathered.places) == 40


@long
@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_driver_killed_in_its_first_batch_starts_again(
    start, spark_environment, topics, topic, tmp_path, starting
):
    with Sending(topics.broker, topic) as sending:
        for number in range(KILLS):
            checkpoint = tmp_path / str(number) / "checkpoint"
            kill_in_first_batch(topics.namesrv, topic, tmp_path / str(number), starting)
            document = (checkpoint / "offsets" / "0").read_text().splitlines()[-1]
            gathered = Gathered()
            with start(checkpoint, gathered.take, startingOffsets=starting) as query:
                catch_up(query, gathered, sending)
            begun = json.loads(document)["starts"][topic]
            [begun] = begun.values()
            begun = {int(queue_id): max(offset, 0) for queue_id, offset in begun.items()}
            assert gathered.first() == begun


def kill_in_first_batch(namesrv: str, topic: str, folder: Path, starting: str) -> None:
    folder.mkdir()
    command = [sys.executable, str(HERE / "kill_me.py"), namesrv, topic, str(folder / "table")]
    command += [str(folder / "checkpoint"), "1000000", starting, "stuck"]
    log, stuck = folder / "log", folder / "table.stuck"
    while not stuck.exists():
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        try:
            wait_until(
                lambda p=process: stuck.exists() or p.poll() is not None,
                seconds=SECONDS_MAX,
                what="the first batch",
            )
            # Spark gives a Python process ten seconds to start: then there was no first batch yet.
            assert stuck.exists() or "Python worker failed to connect back" in log.read_text(), (
                log.read_text()
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    assert not list((folder / "checkpoint" / "commits").glob("[0-9]*"))
