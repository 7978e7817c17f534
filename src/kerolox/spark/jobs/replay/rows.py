"""Which rows are sent, and as what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.errors import ConfigError
from kerolox.message import RESERVED_PROPERTIES, PropertyKey
from kerolox.spark.jobs.frame.errors import reason_of
from kerolox.spark.jobs.frame.options import option_error
from kerolox.spark.jobs.replay.options import ReplayOptions
from kerolox.spark.sink.rows import COLUMNS, check_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from kerolox.spark.sink.options import SinkOptions

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
    """The rows that are asked for.

    Raises:
        ConfigError: the condition is none.
    """
    from pyspark.sql import functions as f

    if options.topics:
        frame = frame.where(f.col("topic").isin(*options.topics))
    if options.since is not None:
        frame = frame.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(options.since)))
    if options.until is not None:
        frame = frame.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(options.until)))
    if options.tags:
        frame = frame.where(f.col("tags").isin(*options.tags))
    if options.keys:
        wanted = f.array(*[f.lit(key) for key in options.keys])
        frame = frame.where(f.arrays_overlap(f.split(f.col("keys"), " "), wanted))
    if options.where:
        try:
            frame = frame.where(options.where)
            frame.schema  # noqa: B018 - Spark Connect examines the condition only now
        except Exception as error:
            raise option_error(options, "where", reason_of(error)) from None
    return frame


def mapped(frame: DataFrame, options: ReplayOptions, sink: SinkOptions) -> DataFrame:
    """The rows as they are sent.

    Raises:
        ConfigError: an expression of ``--set`` is none, or gives what can't be sent.
    """
    from pyspark.sql import functions as f

    topic: Column = f.lit(options.to_topic) if options.to_topic else f.col("topic")
    properties = f.map_filter(
        f.col("properties"),
        lambda name, value: ~name.isin(_NOT_AGAIN) & (f.trim(name) != "") & (f.trim(value) != ""),
    )
    columns: dict[str, Column] = {
        "topic": topic,
        "tags": f.col("tags"),
        "keys": f.col("keys"),
        "properties": properties,
        "body": f.col("body"),
        "flag": f.col("flag"),
    }
    if options.ordered:
        columns["orderingKey"] = f.concat_ws("/", *_PLACE[:3])
    for name, expression in options.sets.items():
        columns[name] = f.expr(expression)
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
        raise option_error(options, "sets", reason_of(error)) from None
    return made


def _cast(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.select(
        *[
            f.col(field.name)
            if isinstance(field.dataType, COLUMNS[field.name]) or field.name not in _CASTS
            else f.col(field.name).cast(_CASTS[field.name]).alias(field.name)
            for field in frame.schema.fields
        ]
    )


def _marked(properties: Column) -> Column:
    from pyspark.sql import functions as f

    # A store does not say which broker it was of.
    parts = [f.coalesce(f.col(name).cast("string"), f.lit("")) for name in _PLACE]
    place = f.concat_ws("/", *parts)
    others = f.map_filter(properties, lambda name, _: name != REPLAYED_FROM)
    none = f.create_map().cast("map<string,string>")
    return f.map_concat(f.coalesce(others, none), f.create_map(f.lit(REPLAYED_FROM), place))


def check_columns(frame: DataFrame) -> None:
    """Refuse rows that are no messages.

    Raises:
        ConfigError: a column is missing.
    """
    needed = {*_PLACE, "tags", "keys", "properties", "body", "flag", "storeTimestamp"}
    missing = needed.difference(frame.columns)
    if missing:
        raise ConfigError(
            f"what is to be replayed lacks columns {', '.join(sorted(missing))}; leave out "
            "--source-option columns=..."
        )
