"""Rows to topics by the sink: each unit of a replay is a batch of it, and is counted by topic."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kerolox.spark.jobs.frame.lazy import arrow, compute
from kerolox.spark.sink.job import write_partition
from kerolox.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from kerolox.spark.jobs.replay.options import ReplayOptions
    from kerolox.spark.sink.transactions.messages import SinkMessage

PRODUCER_GROUP = "kerolox-replay"
SEND_TIMEOUT_MS = 30_000

TOPICS_COUNTED_MAX = 1000
"""Topics that are counted each by its name; rows of all are counted in the sum."""

_RESULT = "result binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What rows there were.

    Args:
        rows, size: of all; bytes of bodies.
        by_topic: rows by the topic that they go to, of the first topics that came.
    """

    rows: int = 0
    size: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        by_topic = Counter(self.by_topic)
        for topic, rows in other.by_topic.items():
            if topic in by_topic or len(by_topic) < TOPICS_COUNTED_MAX:
                by_topic[topic] += rows
        return Counts(
            rows=self.rows + other.rows, size=self.size + other.size, by_topic=dict(by_topic)
        )


@dataclass(frozen=True, slots=True)
class UnitTask:
    """Sends the rows of one partition of a unit, in a task of Spark. It is pickled. ``sink`` of
    None: the rows are only counted. ``rate``: most rows a second of a task; None: as fast as
    brokers take them.
    """

    sink: SinkOptions | None
    unit: int
    rate: float | None = None

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Send all rows; gives one row, what the sink says and how many there were."""
        found = [Counts()]
        rows = _counted(batches, found)
        message = None
        if self.sink is None:
            deque(rows, maxlen=0)
        else:
            message = write_partition(self.sink, rows, self.unit, self.rate)
        result = pickle.dumps((message, found[0]))
        yield arrow.RecordBatch.from_pydict({"result": arrow.array([result], "binary")})


def send(rows: DataFrame, task: UnitTask) -> tuple[list[SinkMessage], Counts]:
    """Send the rows of a unit, as :func:`kerolox.spark.jobs.replay.rows.mapped` gives them.

    What the tasks tell the driver, which is to commit it, and how many rows there were. It grows
    with the number of tasks, not with rows.
    """
    counts = Counts()
    messages = []
    for row in rows.mapInArrow(task, _RESULT).collect():
        message, found = cast("tuple[SinkMessage | None, Counts]", pickle.loads(row["result"]))
        counts = counts.plus(found)
        if message is not None:
            messages.append(message)
    return messages, counts


def sink_options(options: ReplayOptions, decisions: str, replay: str) -> SinkOptions:
    """How the sink is to write. ``decisions``: transactional: the folder of its decisions.
    ``replay``: the id of the replay, which is the name of the transactions.
    """
    given = {"producerGroup": PRODUCER_GROUP, "sendTimeoutMs": str(SEND_TIMEOUT_MS)}
    if options.transactional:
        given |= {
            "transactional": "true",
            "transactionLocation": decisions,
            "transactionId": replay,
            # Any member of a group may be asked about its halves.
            "producerGroup": f"{PRODUCER_GROUP}-{replay}",
        }
    return SinkOptions.parse(options.source_options() | given, is_stream=False)


def _counted(
    batches: Iterator[pyarrow.RecordBatch], found: list[Counts]
) -> Iterator[pyarrow.RecordBatch]:
    """The batches; what they hold is added to the only item of ``found``."""
    for batch in batches:
        size = compute.sum(compute.binary_length(batch.column("body"))).as_py()
        values = compute.value_counts(batch.column("topic"))
        by_topic = {
            each["values"].as_py() or "": each["counts"].as_py()
            for each in values[:TOPICS_COUNTED_MAX]
        }
        counts = Counts(rows=batch.num_rows, size=size or 0, by_topic=by_topic)
        found[0] = found[0].plus(counts)
        yield batch
