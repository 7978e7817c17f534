"""Rows as Parquet files of one topic and one day each, in a folder that no reader looks into."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kerolox.spark.jobs.archive.records import DataFile
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.jobs.frame.lazy import sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON = "reason"
"""Column: why a row's body does not decode; null where it does, or need not."""

VALUE = "value"
"""Column: what a body is decoded to."""

DATE = "date"
"""Column: the day of the store time in UTC."""

ROWS_OF_FILE_MAX = 5_000_000

_DATA, _QUARANTINED = "data", "quarantined"
_PATH = re.compile(r"k=(?P<kind>\w+)/t=(?P<topic>[^/]+)/d=(?P<date>[\d-]+)/[^/_.][^/]*\.parquet")

SETTINGS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Of the session that writes: other readers know no timestamps of 96 bits."""


def day_of(column: str) -> Column:
    """The UTC day of a timestamp, whatever the session's zone is."""
    return sql.expr(f"date_from_unix_date(cast(floor(unix_millis({column}) / 86400000) AS int))")


def stage(frame: DataFrame, folder: Folder, *, with_topic: bool) -> None:
    """Write rows of the source's columns, maybe :data:`VALUE` and :data:`REASON`; whatever was in
    the folder is replaced. ``with_topic``: whether the files have the column ``topic`` too.
    """
    for name, value in SETTINGS.items():
        frame.sparkSession.conf.set(name, value)
    kind = sql.lit(_DATA)
    if REASON in frame.columns:
        kind = sql.when(sql.col(REASON).isNull(), _DATA).otherwise(_QUARANTINED)
    marked = frame.withColumns({"k": kind, "t": sql.col("topic"), "d": day_of("storeTimestamp")})
    if not with_topic:
        marked = marked.drop("topic")
    writer = marked.write.mode("overwrite").partitionBy("k", "t", "d")
    writer.option("maxRecordsPerFile", ROWS_OF_FILE_MAX).parquet(folder.uri)


def staged(folder: Folder) -> tuple[list[DataFile], list[DataFile]]:
    """The files of a folder that :func:`stage` has written: data, and what does not decode."""
    data: list[DataFile] = []
    quarantined: list[DataFile] = []
    for found in folder.files():
        place = _PATH.fullmatch(found.path)
        if place is None:
            continue
        file = DataFile(
            path=found.path,
            topic=unquote(place["topic"]),
            date=place["date"],
            rows=rows_of(folder, found.path),
            size=found.size,
        )
        (data if place["kind"] == _DATA else quarantined).append(file)
    return data, quarantined


def rows_of(folder: Folder, path: str) -> int:
    """How many rows a Parquet file has, by its footer."""
    from pyarrow import parquet

    with folder.system.open_input_file(folder.inner(path)) as file:
        return int(parquet.read_metadata(file).num_rows)
