"""How far queries are: lag from the progress that Spark reports, and a listener that keeps it.

Python sources have no metrics of their own in Spark, so lag is made of what each progress holds:
where its batch ended (``endOffset``), and where the queues ended when it was planned
(``latestOffset``, which PySpark 4.1 lacks).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql.streaming import StreamingQueryListener

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark.positions.offsets import Offsets
from kerolox.spark.positions.position import SourcePosition

QUERIES_MAX = 1000
"""Most queries that a listener keeps figures of; those that ended longest ago go first."""

_log = logging.getLogger(__name__)


class Source(Protocol):
    """One of a progress' sources (``SourceProgress``)."""

    endOffset: object
    latestOffset: object


class Progress(Protocol):
    """A batch's report by Spark (``StreamingQueryProgress``)."""

    sources: Iterable[Source]


def lag(progress: Progress | Mapping[str, object] | None) -> dict[MessageQueue, int]:
    """How many offsets of each queue lie behind the batch that a progress is about.

    Args:
        progress: ``query.lastProgress``, the ``progress`` of a listener's event, or their JSON as a
            dict. None, which a query has before its first batch, has no lag.

    Returns:
        Offsets by queue, 0 or more, of all sources of this format together. Sources of other
        formats count for nothing. Without ``latestOffset`` (PySpark 4.1) it is empty.
    """
    behind: dict[MessageQueue, int] = {}
    for end, latest in _sources(progress):
        reached, newest = _offsets(end), _offsets(latest)
        for queue, offset in newest.items():
            if queue in reached:
                behind[queue] = behind.get(queue, 0) + max(offset - reached[queue], 0)
    return behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The metrics in the newest progress of a query."""

    name: str
    """Of the query; its id when it has none."""
    batch_id: int
    rows: int
    rows_per_second: float
    """Rows that came since the batch before, by the time between them (inputRowsPerSecond)."""
    processed_per_second: float
    """Rows of the batch by the time that it took (processedRowsPerSecond)."""
    lag: dict[MessageQueue, int] = field(default_factory=dict)
    """As :func:`lag`."""

    @property
    def behind(self) -> int:
        """The lag of all queues together."""
        return sum(self.lag.values())


class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Keeps lag and rates of the queries of a session, and logs them.

    ``spark.streams.addListener(listener)`` begins; :attr:`figures` has the newest of each query, by
    the query's id. A line goes to the log (``kerolox.spark.progress``, INFO) for each query every
    ``log_seconds`` at most.

    Args:
        log_seconds: shortest time between two lines about a query; 0: a line for each batch.
    """

    def __init__(self, *, log_seconds: float = 60.0) -> None:
        super().__init__()
        self.figures: dict[str, Figures] = {}
        self._log_seconds = log_seconds
        self._logged_at: dict[str, float] = {}

    def onQueryStarted(self, event: object) -> None:
        """A query has begun; there is nothing to tell yet."""

    def onQueryProgress(self, event: object) -> None:
        """A batch is done."""
        progress = event.progress  # type: ignore[attr-defined]
        query = str(progress.id)
        figures = Figures(
            name=progress.name or query,
            batch_id=progress.batchId,
            rows=progress.numInputRows,
            rows_per_second=progress.inputRowsPerSecond,
            processed_per_second=progress.processedRowsPerSecond,
            lag=lag(progress),
        )
        self.figures.pop(query, None)
        self.figures[query] = figures
        while len(self.figures) > QUERIES_MAX:
            oldest = next(iter(self.figures))
            del self.figures[oldest]
            self._logged_at.pop(oldest, None)
        now = time.monotonic()
        if now - self._logged_at.get(query, now - self._log_seconds) >= self._log_seconds:
            self._logged_at[query] = now
            self._log_progress(figures)

    def onQueryIdle(self, event: object) -> None:
        """Nothing has come; the figures stay."""

    def onQueryTerminated(self, event: object) -> None:
        """A query has ended; its last figures stay."""

    def _log_progress(self, figures: Figures) -> None:
        worst = max(figures.lag.items(), key=lambda each: each[1], default=None)
        where = ""
        if worst is not None and worst[1]:
            queue, offsets = worst
            where = f", most in {queue.topic} {queue.broker_name} {queue.queue_id}: {offsets}"
        _log.info(
            "query %s, batch %d: %d rows, %.0f in and %.0f done a second, %d offsets behind%s",
            figures.name,
            figures.batch_id,
            figures.rows,
            figures.rows_per_second,
            figures.processed_per_second,
            figures.behind,
            where,
        )


def _sources(
    progress: Progress | Mapping[str, object] | None,
) -> Iterable[tuple[object, object]]:
    if progress is None:
        return
    if isinstance(progress, dict):
        for each in progress.get("sources") or []:
            yield each.get("endOffset"), each.get("latestOffset")
        return
    for source in progress.sources:  # type: ignore[union-attr]
        yield source.endOffset, source.latestOffset


def _offsets(given: object) -> Offsets:
    """The offsets of one end of a source; none when it is a source of another format."""
    try:
        document = json.loads(given) if isinstance(given, str) else given
        return SourcePosition.parse(document).offsets if isinstance(document, dict) else {}
    except (ValueError, RecursionError, ConfigError):
        return {}
