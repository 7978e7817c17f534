"""The job: unit by unit, read, selected, mapped, paced, sent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import SparkSession

from kerolox.errors import KeroloxError
from kerolox.spark.jobs.frame.errors import JobError, reason_of
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary, silent
from kerolox.spark.jobs.replay.options import ReplayOptions
from kerolox.spark.jobs.replay.rows import check_columns, mapped, selected
from kerolox.spark.jobs.replay.sending import Counts, UnitTask, send, sink_options
from kerolox.spark.jobs.replay.state import Plan, ReplayState, SentRows
from kerolox.spark.jobs.replay.units import Unit, plan, read
from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.job import abort, commit
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.transactions.commit import store_of

TASKS_DEFAULT = 2
"""Where Spark does not say how many run at once (Spark Connect)."""

HELP = """Send messages of an archive, a store or a topic again.

Chosen by time, topic, tag, key or a condition in SQL; as they were, or changed by --set. Each has
the property REPLAYED_FROM: topic/brokerName/queueId/queueOffset of where it was. With --state a run
that was stopped goes on; a part that it was about to send may then come twice. With --transactional
none does.

\b
  kerolox spark replay --from-archive /data/orders --to-topic Orders --dry-run
  kerolox spark replay --from-archive /data/orders --to-topic Orders --since 2026-01-31T12:00 \\
    --where "properties['country'] = 'SK'" --rate 500 --state /data/replay
  kerolox spark replay --from-topic %DLQ%billing --to-topic Orders --set "tags='again'"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary(Summary):
    """What a replay has sent, in this run and those that it went on with; or would send."""

    job: ClassVar[str] = "replay"

    dry_run: bool
    rows: int
    bytes: int
    """Of bodies."""
    rows_by_topic: Mapping[str, int] = field(default_factory=dict)
    """By the topic that they go to."""
    units: int = 0
    units_of_this_run: int = 0


def replay(
    spark: SparkSession, options: ReplayOptions, progress: Progress = silent
) -> ReplaySummary:
    """Send messages again. ConfigError: a wrong option, a missing archive or topic; nothing was
    sent. JobError: it stopped; the text says what is sent, and how to go on.
    """
    started = time.monotonic()
    state = ReplayState(options)
    progress(Step("planning"))
    if options.dry_run:
        the_plan, before = Plan("dry-run", tuple(plan(options))), SentRows()
    else:
        the_plan, before = state.plan(lambda: plan(options)), state.done()
    sink = sink_options(options, state.decisions, the_plan.replay)
    done = before
    for number, unit in enumerate(the_plan.units):
        if number < before.units:
            continue
        what = "counting" if options.dry_run else "replaying"
        progress(Step(what, number, len(the_plan.units), "units"))
        try:
            counts = _replay_unit(spark, options, sink, state, number, unit)
        except Exception as error:
            is_told = isinstance(error, OSError | KeroloxError)
            if is_told and not isinstance(error, SinkError | DataLossError):
                raise
            raise _stopped(error, options, done) from error
        done = done.plus(counts)
        if not options.dry_run:
            state.mark(done)
    return ReplaySummary(
        seconds=time.monotonic() - started,
        dry_run=options.dry_run,
        rows=done.rows,
        bytes=done.size,
        rows_by_topic=done.by_topic,
        units=done.units,
        units_of_this_run=done.units - before.units,
    )


def _stopped(error: Exception, options: ReplayOptions, done: SentRows) -> JobError:
    text = f"the replay stopped: {reason_of(error)}; {done.rows} rows are sent for certain"
    if options.dry_run:
        return JobError(f"nothing was sent: {reason_of(error)}")
    if options.transactional:
        return JobError(f"{text}; run it again with the same --state to go on, none comes twice")
    if options.state:
        return JobError(
            f"{text}; run it again with the same --state to go on, and some of those that follow "
            "may be sent twice"
        )
    return JobError(f"{text}, and maybe some more; with --state it could be gone on with")


def _replay_unit(
    spark: SparkSession,
    options: ReplayOptions,
    sink: SinkOptions,
    state: ReplayState,
    number: int,
    unit: Unit,
) -> Counts:
    """What a unit holds; it is sent then, unless it is a dry run."""
    if sink.transactional and store_of(sink, sink.transaction_id).decision(number) is not None:
        # A run before this one has sent it, and did not come to its end.
        commit(sink, [], number)
        return state.kept(number)
    frame = read(spark, options, unit)
    check_columns(frame)
    frame = selected(frame, options)
    tasks = _tasks(spark)
    if options.ordered:
        frame = frame.repartition(tasks, "topic", "brokerName", "queueId")
    rows = mapped(frame, options, sink)
    if options.dry_run:
        return send(rows, UnitTask(None, number))[1]
    rate = None
    if options.rate is not None:
        rows, rate = rows.coalesce(tasks), options.rate / tasks
    messages, counts = send(rows, UnitTask(sink, number, rate))
    try:
        if sink.transactional:
            state.keep(number, counts)
        commit(sink, messages, number)
    except Exception:
        abort(sink, messages, number)
        raise
    return counts


def _tasks(spark: SparkSession) -> int:
    """How many run at once."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # Spark Connect has no context
        return TASKS_DEFAULT


JOB = Job(name="replay", help=HELP, options=ReplayOptions, run=replay)
