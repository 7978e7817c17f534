"""A driver of the sink without Spark: its batches, their tasks one after the other, their commits.

It dies at a step of one batch, and goes on from what was committed when it is started again.
Arguments: name server, a topic to write, a folder for the checkpoint, the step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow

from kerolox.spark.sink import job
from kerolox.spark.sink.options import SinkOptions
from tests.spark.drivers import die
from tests.spark.sink_kill_me import KILLED_BATCH, die_at

BATCHES, PER_BATCH, TASKS = 3, 200, 2
QUERY = "plain"


def rows_of(batch: int, task: int) -> pyarrow.RecordBatch:
    numbers = range(batch * PER_BATCH + task, (batch + 1) * PER_BATCH, TASKS)
    return pyarrow.record_batch({"body": [str(number) for number in numbers]})


def run(options: SinkOptions, commits: Path, step: str) -> None:
    for batch in range(BATCHES):
        if (commits / str(batch)).exists():
            continue
        messages = []
        for task in range(TASKS):
            rows = [rows_of(batch, task)]
            messages.append(job.write_halves(options, QUERY, batch, task, 0, rows))
            if (batch, step) == (KILLED_BATCH, "write"):
                die()
        if batch == KILLED_BATCH:
            die_at(step)
        job.commit(options, messages, batch)
        if (batch, step) == (KILLED_BATCH, "commit"):
            die()
        (commits / str(batch)).touch()


if __name__ == "__main__":
    name_server, topic, folder, step = sys.argv[1:]
    commits = Path(folder) / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    given = {"nameServer": name_server, "topic": topic, "transactional": "true"}
    given["checkpointLocation"] = folder
    run(SinkOptions.parse(given, is_stream=True), commits, step)
