"""A driver that a test kills: two queries in their first batch.

Arguments: name server, a topic that is written to, a folder. The first batches, from ``latest`` and
from ``earliest``, never end; ``stuck`` appears in the folder when both have begun. Each query has a
folder of its name, with its checkpoint in it.
"""

import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.clients.spark import QUICK

if __name__ == "__main__":
    name_server, busy, folder = sys.argv[1:]
    session = SparkSession.builder.master("local[2]").config(map=QUICK).getOrCreate()

    def writer(name: str, **options: str):
        stream = session.readStream.format("rocketmq").options(nameServer=name_server, **options)
        checkpoint = Path(folder) / name / "checkpoint"
        return stream.load().writeStream.option("checkpointLocation", str(checkpoint))

    def start_stuck(starting: str) -> threading.Event:
        begun = threading.Event()

        def never_end(_frame: object, _batch_id: int) -> None:
            begun.set()
            threading.Event().wait()

        stream = writer(starting, subscribe=busy, startingOffsets=starting)
        stream.foreachBatch(never_end).start()
        return begun

    # One after the other: Spark gives the Python process of each ten seconds to start.
    for count, starting in enumerate(("latest", "earliest"), 1):
        begun = start_stuck(starting)
        while not begun.wait(0.1):
            if len(session.streams.active) < count:
                # One has failed: this raises why.
                session.streams.awaitAnyTermination()
    (Path(folder) / "stuck").touch()
    session.streams.awaitAnyTermination()
