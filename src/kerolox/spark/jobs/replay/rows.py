"""Which rows are sent, and as what."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from kerolox.errors import ConfigError
from kerolox.message import RESERVED_PROPERTIES, PropertyKey
from kerolox.spark.jobs.frame.errors import reason_of
from kerolox.spark.jobs.frame.lazy import sql
from kerolox.spark.jobs.replay.options import ReplayOptions
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.rows import COLUMNS, check_schema

REPLAYED_FROM = "REPLAYED_FROM"
"""Property of a replayed message: ``topic/brokerName/queueId/queueOffset`` of where it was; of one
that is replayed again, the place that it was replayed from last. A store has no broker's name,
unless ``--source-option brokerName=...`` gives one; it is empty then."""

_PLACE = ("topic", "brokerName", "queueId", "queueOffset")
_NOT_AGAIN = sorted(
    RESERVED_PROPERTIES | {value for name, value in vars(PropertyKey).items() if name.isupper()}
)
"""RocketMQ's own: a replayed message gets new ones. Its delay is over; its id is new."""

_CASTS = {
    **dict.fromkeys(("topic", "tags", "keys"), "string"),
    **dict.fromkeys(("flag", "delayLevel"), "int"),
    "properties": "map<string,string>",
}
"""What an expression of ``--set`` becomes where the sink does not take it as it is."""


def selected(frame: DataFrame, options: ReplayOptions) -> DataFrame:
    """The rows that are asked for."""
    if options.topics:
        frame = frame.where(sql.col("topic").isin(*options.topics))
    if options.since is not None:
        frame = frame.where(
            sql.col("storeTimestamp") >= sql.timestamp_millis(sql.lit(options.since))
        )
    if options.until is not None:
        frame = frame.where(
            sql.col("storeTimestamp") < sql.timestamp_millis(sql.lit(options.until))
        )
    if options.tags:
        frame = frame.where(sql.col("tags").isin(*options.tags))
    if options.keys:
        wanted = sql.array(*[sql.lit(key) for key in options.keys])
        frame = frame.where(sql.arrays_overlap(sql.split(sql.col("keys"), " "), wanted))
    if options.where:
        try:
            frame = frame.where(options.where)
            frame.schema  # noqa: B018 - Spark Connect examines the condition only now
        except Exception as error:
            raise options.error("where", reason_of(error)) from None
    return frame


def mapped(frame: DataFrame, options: ReplayOptions, sink: SinkOptions) -> DataFrame:
    """The rows as they are sent; ConfigError: an expression of ``--set`` is none, or gives what
    can't be sent.
    """
    topic: Column = sql.lit(options.to_topic) if options.to_topic else sql.col("topic")
    properties = sql.map_filter(
        sql.col("properties"),
        lambda name, value: (
            ~name.isin(_NOT_AGAIN) & (sql.trim(name) != "") & (sql.trim(value) != "")
        ),
    )
    columns: dict[str, Column] = {
        "topic": topic,
        "tags": sql.col("tags"),
        "keys": sql.col("keys"),
        "properties": properties,
        "body": sql.col("body"),
        "flag": sql.col("flag"),
    }
    if options.ordered:
        columns["orderingKey"] = sql.concat_ws("/", *_PLACE[:3])
    for name, expression in options.sets.items():
        columns[name] = sql.expr(expression)
    if options.mark:
        columns["properties"] = _marked(columns["properties"])
    if options.ordered:
        frame = frame.sortWithinPartitions(*_PLACE)
    try:
        made = _cast(frame.select(*[column.alias(name) for name, column in columns.items()]))
        check_schema(made.schema, sink)
    except Exception as error:
        if not options.sets:
            raise
        raise options.error("sets", reason_of(error)) from None
    return made


def _cast(frame: DataFrame) -> DataFrame:
    return frame.select(
        *[
            sql.col(field.name)
            if isinstance(field.dataType, COLUMNS[field.name]) or field.name not in _CASTS
            else sql.col(field.name).cast(_CASTS[field.name]).alias(field.name)
            for field in frame.schema.fields
        ]
    )


def _marked(properties: Column) -> Column:
    # A store does not say which broker it was of.
    parts = [sql.coalesce(sql.col(name).cast("string"), sql.lit("")) for name in _PLACE]
    place = sql.concat_ws("/", *parts)
    others = sql.map_filter(properties, lambda name, _: name != REPLAYED_FROM)
    none = sql.create_map().cast("map<string,string>")
    return sql.map_concat(sql.coalesce(others, none), sql.create_map(sql.lit(REPLAYED_FROM), place))


def check_columns(frame: DataFrame) -> None:
    """Refuse rows that are no messages."""
    needed = {*_PLACE, "tags", "keys", "properties", "body", "flag", "storeTimestamp"}
    missing = needed.difference(frame.columns)
    if missing:
        raise ConfigError(
            f"what is to be replayed lacks columns {', '.join(sorted(missing))}; leave out "
            "--source-option columns=..."
        )
