"""Records held against each other and against the entries of their queues, as tables of Spark."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from kerolox.protocol.codes import TRANSACTION_MASK
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.store.appends import UNQUEUED
from kerolox.store.queues.ext_unit import ADDRESS_MAX

_QUEUE = ("topic", "queueId")
_PLACE = (*_QUEUE, "queueOffset")


def queued(records: DataFrame, topics: DataFrame) -> DataFrame:
    """The records that have a place in a queue: no prepared or rolled back ones, and only those of
    topics that are there (one column, ``topic``)."""
    kind = sql.col("sysFlag").bitwiseAND(TRANSACTION_MASK)
    return records.where(~kind.isin(*UNQUEUED)).join(sql.broadcast(topics), "topic", "left_semi")


def damages(parts: DataFrame) -> DataFrame:
    """Bytes that hold no record, and records whose body does not match its CRC."""
    lost = sql.format_string("%d bytes hold no whole record: %s", "size", "reason")
    torn = _findings(parts.where(sql.col("reason").isNotNull()), "damage", lost)
    text = sql.format_string(
        "the body of %s queue %d offset %d does not match its CRC", *map(sql.col, _PLACE)
    )
    return torn.union(_findings(parts.where(~sql.col("crcOk")), "crc", text))


def newest(records: DataFrame) -> DataFrame:
    """One row for each place in a queue: the record that was written last, and how many there are.

    Older ones are of a topic that was deleted and made again.
    """
    last = sql.max_by(sql.struct("physical", "size", "code"), "physical").alias("last")
    return (
        records.groupBy(*_PLACE)
        .agg(last, sql.count("*").alias("times"))
        .select(*_PLACE, "last.physical", "last.size", "last.code", "times")
    )


def gaps(places: DataFrame) -> DataFrame:
    """Queue offsets that no record of the log has, between two that have one."""
    from pyspark.sql import Window

    order = Window.partitionBy(*_QUEUE).orderBy("queueOffset")
    before = places.withColumn("before", sql.lag("queueOffset").over(order))
    text = sql.format_string(
        "%s queue %d: the log has no record from offset %d to %d",
        sql.col("topic"),
        sql.col("queueId"),
        sql.col("before") + 1,
        sql.col("queueOffset") - 1,
    )
    return _findings(before.where(sql.col("queueOffset") - sql.col("before") > 1), "gap", text)


def entry_findings(
    places: DataFrame, entries: DataFrame, records: DataFrame, bounds: tuple[int, int]
) -> DataFrame:
    """Records without their entry, entries that say something else, entries without a record.
    ``places``: as :func:`newest` gives them. ``records``: all of the log, for what other queues'
    entries name. ``bounds``: physical offsets where the log begins and ends.
    """
    both = places.join(entries, list(_PLACE), "full_outer")
    place = [sql.col(name) for name in _PLACE]
    missing = _findings(
        both.where(sql.col("entryPhysical").isNull()),
        "missing entry",
        sql.format_string("%s queue %d has no entry %d for its record", *place),
    )
    code_fits = (
        sql.col("code").isNull()
        | (sql.col("code") == sql.col("entryCode"))
        | (sql.col("entryCode") <= ADDRESS_MAX)
    )
    is_right = (
        (sql.col("physical") == sql.col("entryPhysical"))
        & (sql.col("size") == sql.col("entrySize"))
        & code_fits
    )
    is_both = sql.col("physical").isNotNull() & sql.col("entryPhysical").isNotNull()
    wrong = _findings(
        both.where(is_both & ~is_right),
        "wrong entry",
        sql.format_string(
            "%s queue %d: entry %d says (place, size, code) (%d, %d, %d), the record is"
            " (%d, %d, %s)",
            *place,
            *(sql.col(name) for name in ("entryPhysical", "entrySize", "entryCode")),
            *(sql.col(name) for name in ("physical", "size")),
            sql.coalesce(sql.col("code").cast("string"), sql.lit("a time")),
        ),
    )
    others = _entries_alone(both, records, bounds)
    return missing.union(wrong).union(others)


def _entries_alone(both: DataFrame, records: DataFrame, bounds: tuple[int, int]) -> DataFrame:
    """Entries at whose place no record says that it is."""
    place = [sql.col(name) for name in _PLACE]
    alone = both.where(
        sql.col("physical").isNull() & (sql.col("entryPhysical") >= bounds[0])
    ).select(*_PLACE, "entryPhysical")
    named = records.select(
        sql.col("physical").alias("entryPhysical"),
        *(sql.col(name).alias(f"of{name}") for name in (*_PLACE, "sysFlag")),
    )
    alone = alone.join(named, "entryPhysical", "left_outer")
    alone = alone.withColumn("physical", sql.col("entryPhysical"))
    is_dangling = sql.col("oftopic").isNull()
    says = sql.format_string(
        "whose record says queue %d offset %d, system flag %d",
        *map(sql.col, ("ofqueueId", "ofqueueOffset", "ofsysFlag")),
    )
    where = (
        sql.when(~is_dangling, says)
        .when(sql.col("entryPhysical") >= bounds[1], sql.lit("behind the log's end"))
        .otherwise(sql.lit("where no whole record begins"))
    )
    text = sql.format_string(
        "%s queue %d: entry %d names physical offset %d, %s",
        *place,
        sql.col("entryPhysical"),
        where,
    )
    kind = sql.when(is_dangling, sql.lit("dangling entry")).otherwise(sql.lit("wrong entry"))
    return _findings(alone.where(is_dangling | _is_strange()), kind, text)


def _is_strange() -> Column:
    """Whether an entry names a record of its topic that says another place, or has none. Entries of
    further queues (multi dispatch) name records of other topics."""
    kind = sql.col("ofsysFlag").bitwiseAND(TRANSACTION_MASK)
    is_here = (sql.col("ofqueueId") == sql.col("queueId")) & (
        sql.col("ofqueueOffset") == sql.col("queueOffset")
    )
    return (sql.col("oftopic") == sql.col("topic")) & (~is_here | kind.isin(*UNQUEUED))


def _findings(rows: DataFrame, kind: str | Column, text: Column) -> DataFrame:
    return rows.select(
        (sql.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        "topic",
        "queueId",
        "queueOffset",
        "physical",
        text.alias("text"),
    )
