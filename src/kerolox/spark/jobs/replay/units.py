"""What is replayed, cut into units: after each of them the job knows that it is done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kerolox.errors import ConfigError, KeroloxError
from kerolox.spark.jobs.archive.options import HIDDEN, Format
from kerolox.spark.jobs.archive.targets.delta import DeltaTarget
from kerolox.spark.jobs.archive.targets.iceberg import IcebergTarget
from kerolox.spark.jobs.archive.targets.parquet import ParquetTarget
from kerolox.spark.jobs.archive.targets.target import Stored, Target
from kerolox.spark.jobs.frame.errors import reason_of
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.replay.options import ReplayOptions

DAY_MS = 86_400_000

ROW_BYTES = 512
"""Of a record in a log, about, where no queues tell how many there are."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the rows, which is the same whenever it is read.

    Args:
        kind: ``archive``, ``store`` or ``topic``.
        topic, date: archive: of all its rows.
        files: archive: their paths.
        start, end: topic: offsets as JSON; store: physical offsets. Without them all of the
            store is meant: so say older plans.
    """

    kind: str
    topic: str = ""
    date: str = ""
    files: tuple[str, ...] = ()
    start: str = ""
    end: str = ""

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Unit:
        """From what ``dataclasses.asdict`` gave."""
        return cls(**{**found, "files": tuple(found["files"])})


def plan(options: ReplayOptions) -> list[Unit]:
    """All units, in the order in which they are sent; ConfigError: there is no such archive, store
    or topic.
    """
    if options.from_archive:
        return _of_archive(options)
    if options.from_store:
        return _of_store(options)
    return _of_topics(options)


def read(spark: SparkSession, options: ReplayOptions, unit: Unit) -> DataFrame:
    """The rows of a unit; DataLossError: retention has deleted a part of the store since it was
    planned.
    """
    if unit.kind == "archive":
        from kerolox.spark.rows.schema import COLUMNS, schema_of

        names = [name for name in COLUMNS if name != "topic"]
        frame = spark.read.schema(schema_of(names)).parquet(*unit.files)
        return frame.withColumn("topic", sql.lit(unit.topic))
    if unit.kind == "store":
        _check_store(options, unit)
        return spark.read.format("rocketmq-store").options(**store_options(options, unit)).load()
    reader = spark.read.format("rocketmq").options(**options.source_options())
    if options.from_name_server:
        reader = reader.option("nameServer", options.from_name_server)
    reader = reader.option("subscribe", ",".join(options.from_topics))
    reader = reader.option("startingOffsets", unit.start).option("endingOffsets", unit.end)
    return reader.options(**dict(options.source)).load()


def _target(options: ReplayOptions) -> Target:
    path = options.from_archive
    if options.format == Format.DELTA:
        return DeltaTarget(path)
    if options.format == Format.ICEBERG:
        return IcebergTarget(path, options.catalog)
    return ParquetTarget(path, f"{path.rstrip('/')}/{HIDDEN}")


def _of_archive(options: ReplayOptions) -> list[Unit]:
    try:
        stored = [each for each in _target(options).stored() if _may_have(each, options)]
    except (KeroloxError, OSError):
        raise
    except Exception as error:  # what a catalog's library raises
        raise ConfigError(
            f"option --from-archive: {options.from_archive} can't be read: {reason_of(error)}"
        ) from error
    if not stored:
        raise ConfigError(
            f"option --from-archive: {options.from_archive} has no file of an archive "
            f"({options.format}) of these topics and times"
        )
    by_place: dict[tuple[str, str], list[Stored]] = {}
    for each in stored:
        by_place.setdefault((each.date, each.topic), []).append(each)
    return [
        Unit("archive", topic, date, tuple(each.path for each in group))
        for (date, topic), files in sorted(by_place.items())
        for group in _groups(sorted(files, key=_age), options.unit_rows)
    ]


def _may_have(stored: Stored, options: ReplayOptions) -> bool:
    import datetime

    if options.topics and stored.topic not in options.topics:
        return False
    midnight = datetime.datetime.fromisoformat(stored.date).replace(tzinfo=datetime.UTC)
    first = int(midnight.timestamp() * 1000)
    is_over = options.since is not None and first + DAY_MS <= options.since
    return not is_over and (options.until is None or first < options.until)


def _age(stored: Stored) -> tuple[str, str]:
    """Files of an archive are named by their batches, in their folder or in their name."""
    return stored.path.rpartition("/k=")[0], stored.path.rpartition("/")[2]


def _groups(files: Iterable[Stored], rows_max: int) -> Iterable[Sequence[Stored]]:
    group: list[Stored] = []
    rows = 0
    for each in files:
        if group and rows + each.rows > rows_max:
            yield group
            group, rows = [], 0
        group.append(each)
        rows += each.rows
    if group:
        yield group


def store_options(options: ReplayOptions, unit: Unit | None = None) -> dict[str, str]:
    """Options of the format: what is not asked for is not read."""
    given = {
        "path": options.from_store,
        "subscribe": ",".join(options.topics),
        "startingTimestamp": "" if options.since is None else str(options.since),
        "endingTimestamp": "" if options.until is None else str(options.until),
    }
    given = {name: value for name, value in given.items() if value} | dict(options.source)
    if unit is None or not unit.end:
        return given
    bounds = {"startingPhysicalOffset": unit.start, "endingPhysicalOffset": unit.end}
    named = {name.lower() for name in bounds}
    return {name: value for name, value in given.items() if name.lower() not in named} | bounds


def _check_store(options: ReplayOptions, unit: Unit) -> None:
    """See whether the log still begins where it did; the format takes a start of 0 for any."""
    from kerolox.spark.positions.offsets import report_loss
    from kerolox.spark.store.files.listing import list_store
    from kerolox.spark.store.options import StoreOptions

    store = StoreOptions.parse(store_options(options, unit))
    begins = list_store(store.paths[0], store.log_paths).start
    if unit.start and begins > int(unit.start):
        what = f"{options.from_store}: the log begins at {begins}, behind {unit.start} of the plan"
        report_loss(what, fail_on_data_loss=store.fail_on_data_loss)


def _of_store(options: ReplayOptions) -> list[Unit]:
    """Parts of the log, as many as the entries of its queues are units, all of one length.

    The log's end is that of now, so a run that goes on sends nothing that came later.
    """
    from kerolox.spark.store.options import StoreOptions
    from kerolox.spark.store.plan import batch_range, queue_ranges

    store = StoreOptions.parse(store_options(options))
    if len(store.paths) > 1:
        raise ConfigError(
            f"option --from-store: {len(store.paths)} stores are named; replay one after the other"
        )
    found = batch_range(store, 0)
    size = found.end - found.start
    rows = size // ROW_BYTES
    if found.listing.queue_folder is not None:
        entries = sum(each.end - each.start for each in queue_ranges(found, store))
        rows = entries * size // max(found.log_end - found.listing.start, 1)
    count = max(1, -(-rows // options.unit_rows))
    places = [found.start + size * number // count for number in range(count + 1)]
    return [Unit("store", start=str(start), end=str(end)) for start, end in pairwise(places)]


def _of_topics(options: ReplayOptions) -> list[Unit]:
    from kerolox.admin.sync import Admin
    from kerolox.client.aio.settings import ClientSettings

    bounds: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}
    names = options.from_name_server or options.name_server
    settings = ClientSettings(credentials=options.credentials, tls=options.tls)
    with Admin(names, settings=settings) as admin:
        for topic in options.from_topics:
            for status in admin.describe_topic(topic).queues:
                queues = bounds.setdefault(topic, {}).setdefault(status.queue.broker_name, {})
                queues[str(status.queue.queue_id)] = (status.min_offset, status.max_offset)
    spans = [
        span for brokers in bounds.values() for each in brokers.values() for span in each.values()
    ]
    rows = sum(last - first for first, last in spans)
    count = max(1, -(-rows // options.unit_rows))
    return [
        Unit("topic", start=_cut(bounds, number, count), end=_cut(bounds, number + 1, count))
        for number in range(count)
    ]


def _cut(bounds: dict[str, dict[str, dict[str, tuple[int, int]]]], number: int, count: int) -> str:
    """Offsets at ``number`` parts of ``count``, as JSON of the source."""
    return json.dumps(
        {
            topic: {
                broker: {
                    queue: first + (last - first) * number // count
                    for queue, (first, last) in queues.items()
                }
                for broker, queues in brokers.items()
            }
            for topic, brokers in bounds.items()
        }
    )
