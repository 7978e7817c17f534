"""The columns that can be written, and record batches as what the encoder takes.

Nothing here is done row by row: casts, defaults and joins are Arrow's.
"""

from __future__ import annotations

import pyarrow
import pyarrow.compute
from pyspark.sql import types

from kerolox.codec.python_rows import MapColumn, RowColumns, RowRules, TextColumn
from kerolox.config import nearest
from kerolox.errors import ConfigError
from kerolox.message import RESERVED_PROPERTIES, PropertyKey, encode_properties
from kerolox.spark.sink.options import ReservedProperties, SinkOptions

_WHOLE = (types.IntegerType, types.ShortType, types.ByteType)

COLUMNS: dict[str, tuple[type[types.DataType], ...]] = {
    "body": (types.BinaryType, types.StringType),
    "topic": (types.StringType,),
    "tags": (types.StringType,),
    "keys": (types.StringType, types.ArrayType),
    "properties": (types.MapType,),
    "flag": _WHOLE,
    "delayLevel": _WHOLE,
    "deliverTime": (types.TimestampType, types.LongType),
    "queueId": _WHOLE,
    "brokerName": (types.StringType,),
    "orderingKey": (
        types.StringType,
        types.IntegerType,
        types.LongType,
        types.ShortType,
        types.ByteType,
    ),
}
"""Every column that can be written, with the types that it may have."""

_CANONICAL = {name.lower(): name for name in COLUMNS}

_OUR_OWN = (
    PropertyKey.SINK,
    PropertyKey.TRANSACTION_CHECK_TIMES,
    PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET,
)
"""Names by which halves are told apart when they are ended."""


def check_schema(schema: types.StructType, options: SinkOptions) -> None:
    """Refuse rows that can't be messages, by their columns. ConfigError: an unknown column (names
    the nearest), one of another type, no body, no topic, or delays in a transaction.
    """
    names = []
    for field in schema.fields:
        name = _canonical(field.name)
        names.append(name)
        if not isinstance(field.dataType, COLUMNS[name]) or not _has_texts(field.dataType):
            raise ConfigError(
                f"column {field.name} is {field.dataType.simpleString()}, but must be "
                f"{_types_of(name)}; cast it before writing"
            )
    if len(set(names)) != len(names):
        raise ConfigError(f"the rows have a column twice: {', '.join(schema.fieldNames())}")
    if "body" not in names:
        raise ConfigError(
            "the rows have no column body (binary or string); make one, as in "
            "selectExpr('to_json(struct(*)) AS body')"
        )
    if "topic" not in names and not options.topic:
        raise ConfigError("option topic is missing, and the rows have no column topic")
    delayed = [name for name in ("delayLevel", "deliverTime") if name in names]
    if options.transactional and delayed:
        raise ConfigError(f"column {delayed[0]}: rows of a transaction can't be delayed")


def _canonical(name: str) -> str:
    found = _CANONICAL.get(name.lower())
    if found is None:
        near = nearest(name, COLUMNS)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(COLUMNS)}"
        raise ConfigError(
            f"format rocketmq can't write a column {name!r}; {hint} Leave out what is no part of "
            "a message, as in select('body')"
        )
    return found


def _has_texts(kind: types.DataType) -> bool:
    if isinstance(kind, types.ArrayType):
        return isinstance(kind.elementType, types.StringType)
    if isinstance(kind, types.MapType):
        return isinstance(kind.keyType, types.StringType) and isinstance(
            kind.valueType, types.StringType
        )
    return True


def _types_of(name: str) -> str:
    shown = {types.ArrayType: "array<string>", types.MapType: "map<string,string>"}
    names = [shown.get(kind) or kind().simpleString() for kind in COLUMNS[name]]
    return " or ".join(names)


def rules_of(options: SinkOptions, tail: dict[str, str]) -> RowRules:
    """What is the same for all rows; ``tail``: properties behind those of each row."""
    drops = options.reserved_properties is ReservedProperties.DROP
    return RowRules(
        body_bytes_max=options.message_bytes_max,
        reserved=frozenset(name.encode() for name in (*RESERVED_PROPERTIES, *_OUR_OWN)),
        drops_reserved=drops,
        default_properties=encode_properties(options.properties).encode(),
        tail=encode_properties(tail).encode(),
    )


class Rows:
    """The rows of one record batch, with what options say of them filled in. ``first_row``: the
    number of its first row in the partition.
    """

    def __init__(self, batch: pyarrow.RecordBatch, options: SinkOptions, first_row: int) -> None:
        self.first_row = first_row
        self.count = batch.num_rows
        self._arrays = {
            _canonical(name): _whole(array)
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        }
        self._options = options
        self.columns = self._columns()

    def taken(self, indices: pyarrow.Array) -> RowColumns:
        """Some of the rows, in that order, for the encoder."""
        return _row_columns({name: array.take(indices) for name, array in self._parts.items()})

    def _columns(self) -> RowColumns:
        options = self._options
        body = _cast(self._arrays["body"], pyarrow.binary())
        if options.body_header:
            body = pyarrow.compute.binary_join_element_wise(options.body_header, body, b"")
        parts = {"body": body}
        self._parts = parts
        for name, default in (("tags", options.tags), ("keys", options.keys)):
            texts = self._text(name, default)
            if texts is not None:
                parts[name] = texts
        flags = self._numbers("flag", options.flag)
        if flags is not None:
            parts["flags"] = flags
        if "properties" in self._arrays:
            parts["properties"] = _cast(
                self._arrays["properties"], pyarrow.map_(pyarrow.string(), pyarrow.string())
            )
        return _row_columns(parts)

    def _text(self, name: str, default: str = "") -> pyarrow.Array | None:
        """A column of texts; None: all are the default, which is none."""
        array = self._arrays.get(name)
        if array is None:
            return pyarrow.repeat(pyarrow.scalar(default), self.count) if default else None
        if pyarrow.types.is_list(array.type) or pyarrow.types.is_large_list(array.type):
            joined = pyarrow.compute.binary_join(_cast(array, pyarrow.list_(pyarrow.string())), " ")
            array = _cast(joined, pyarrow.string())
        array = _cast(array, pyarrow.string())
        return array.fill_null(default) if default else array

    def _numbers(self, name: str, default: int) -> pyarrow.Array | None:
        array = self._arrays.get(name)
        if array is None:
            if not default:
                return None
            return pyarrow.repeat(pyarrow.scalar(default, pyarrow.int32()), self.count)
        return _cast(array, pyarrow.int32()).fill_null(default)

    @property
    def topics(self) -> pyarrow.Array | None:
        """The topic of each row; None: all are that of option topic."""
        if "topic" not in self._arrays:
            return None
        return self._text("topic", self._options.topic)

    @property
    def queue_ids(self) -> pyarrow.Array | None:
        """The queue that each row wants, or null; None: no row wants one."""
        if "queueId" not in self._arrays and self._options.queue_id is None:
            return None
        array = self._arrays.get("queueId")
        wanted = self._options.queue_id
        if array is None:
            return pyarrow.repeat(pyarrow.scalar(wanted, pyarrow.int32()), self.count)
        array = _cast(array, pyarrow.int32())
        return array if wanted is None else array.fill_null(wanted)

    @property
    def broker_names(self) -> pyarrow.Array | None:
        """The broker that each row wants, or null; None: no row wants one."""
        return self._text("brokerName", self._options.broker_name)

    @property
    def ordering_keys(self) -> pyarrow.Array | None:
        """The key of each row, as a text or a number, or null; None: no row has one."""
        array = self._arrays.get("orderingKey")
        default = self._options.ordering_key
        if array is None:
            return None if default is None else pyarrow.repeat(pyarrow.scalar(default), self.count)
        if pyarrow.types.is_integer(array.type):
            return _cast(array, pyarrow.int64())
        array = _cast(array, pyarrow.string())
        return array if default is None else array.fill_null(default)

    @property
    def delay_levels(self) -> pyarrow.Array | None:
        """The delay level of each row; None: no row is delayed by one."""
        return self._numbers("delayLevel", self._options.delay_level)

    @property
    def deliver_times(self) -> pyarrow.Array | None:
        """When each row is to be delivered, ms since 1970, 0 for at once; None: all at once."""
        array = self._arrays.get("deliverTime")
        default = self._options.deliver_time
        if array is None:
            return pyarrow.repeat(pyarrow.scalar(default), self.count) if default else None
        if pyarrow.types.is_timestamp(array.type):
            array = array.cast(pyarrow.timestamp("ms", array.type.tz), safe=False)
        return _cast(array, pyarrow.int64()).fill_null(default)


def _whole(array: pyarrow.Array) -> pyarrow.Array:
    """The same array with its values at the start of its buffers."""
    if not array.offset:
        return array
    return array.take(pyarrow.array(range(len(array)), pyarrow.int32()))


def _cast(array: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    return array if array.type == kind else array.cast(kind)


def _row_columns(parts: dict[str, pyarrow.Array]) -> RowColumns:
    tags, keys, flags = parts.get("tags"), parts.get("keys"), parts.get("flags")
    properties = parts.get("properties")
    return RowColumns(
        body=text_column(parts["body"]),
        tags=None if tags is None else text_column(tags),
        keys=None if keys is None else text_column(keys),
        flags=None if flags is None else flags.buffers()[1],
        properties=None if properties is None else _map_column(properties),
    )


def text_column(array: pyarrow.Array) -> TextColumn:
    """An array of strings or binaries for the encoder."""
    validity, offsets, data = array.buffers()
    return TextColumn(validity, offsets or bytes(4), data or b"")


def _map_column(array: pyarrow.Array) -> MapColumn:
    validity, offsets, *_ = array.buffers()
    return MapColumn(
        validity,
        offsets or bytes(4),
        text_column(_whole(array.keys)),
        text_column(_whole(array.items)),
    )
