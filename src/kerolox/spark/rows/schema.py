"""The columns: RocketMQ's names, their Spark types, and the way from raw records to Arrow.

``decode_columns`` of the kernel gives buffers in Arrow's layout; here they are wrapped without a
copy into arrays of exactly the types that Spark expects of a batch. Only the columns that the query
has are decoded: there is no column pruning for Python sources, so ``columns`` and ``.schema(...)``
choose them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kerolox.config import nearest
from kerolox.errors import ConfigError, RemoteProtocolError
from kerolox.kernel import Kernel, load_kernel
from kerolox.spark.options import BodyErrors
from kerolox.spark.rows.bodies import odd_body_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow

    from kerolox.message import MessageQueue
    from kerolox.spark.options import SourceOptions

BATCH_BODY_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of bodies, inflated, in one record batch. A larger body stands alone in its batch: one
that is compressed has ``kerolox.protocol.compression.INFLATED_BYTES_MAX`` at most."""

COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "commitLogOffset": LongType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "storeHost": StringType(),
    "flag": IntegerType(),
    "sysFlag": IntegerType(),
    "tags": StringType(),
    "keys": StringType(),
    "msgId": StringType(),
    "uniqKey": StringType(),
    "reconsumeTimes": IntegerType(),
    "preparedTransactionOffset": LongType(),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
}
"""Every column in its order, with its type. tags, keys and uniqKey may be null."""

_CANONICAL = {name.lower(): name for name in COLUMNS}
_BROKER_NAME = "brokerName"
_TAGS = "tags"


def full_schema() -> StructType:
    """All columns."""
    return schema_of(COLUMNS)


def schema_of(names: Sequence[str] | dict[str, DataType]) -> StructType:
    """The schema of some columns, in the order given.

    Raises:
        ConfigError: there is no such column; names the nearest.
    """
    return StructType([StructField(name, COLUMNS[_column(name)]) for name in names])


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Check a schema that a user gave with ``.schema(...)``: any columns of ours in any order.

    Raises:
        ConfigError: an unknown column, another type, or not what option ``columns`` says.
    """
    for field in schema.fields:
        expected = COLUMNS[_column(field.name)]
        if field.dataType != expected:
            raise ConfigError(
                f"column {field.name} is {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after reading"
            )
    names = schema.fieldNames()
    if not names:
        raise ConfigError(f"the schema has no column; there are {', '.join(COLUMNS)}")
    if len({name.lower() for name in names}) != len(names):
        raise ConfigError(f"the schema names a column twice: {', '.join(names)}")
    if options.columns is not None and list(options.columns) != names:
        raise ConfigError(
            f"option columns={','.join(options.columns)} contradicts the schema "
            f"{','.join(names)}; give only one of them"
        )


def _column(name: str) -> str:
    canonical = _CANONICAL.get(name.lower())
    if canonical is None:
        near = nearest(name, COLUMNS)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(COLUMNS)}"
        raise ConfigError(f"format rocketmq has no column {name!r}; {hint}")
    return canonical


class ColumnDecoder:
    """Turns raw records into record batches of one schema.

    Args:
        schema: the columns as Spark wants them.
        tags: keep only messages with one of these tags, by text; empty: keep all.
        body_errors: what stands for a body that can't be inflated.
        kernel: who decodes; the process's own choice by default.
    """

    def __init__(
        self,
        schema: StructType,
        *,
        tags: Sequence[str] = (),
        body_errors: BodyErrors = BodyErrors.FAIL,
        kernel: Kernel | None = None,
    ) -> None:
        self._names = [_column(name) for name in schema.fieldNames()]
        self._schema = arrow_schema(schema)
        self._tags = list(tags)
        self._body_errors = body_errors
        self._kernel = kernel or load_kernel()
        wanted = [name for name in self._names if name != _BROKER_NAME]
        if self._tags and _TAGS not in wanted:
            wanted.append(_TAGS)
        # Something must be decoded to know how many rows there are.
        self._wanted = wanted or ["queueId"]

    def decode(
        self, records: bytes, queue: MessageQueue
    ) -> Iterator[tuple[pyarrow.RecordBatch, int]]:
        """Batches in order, each with how many records were looked at for it, those included that
        the tags left out. Inflated bodies make several batches of one answer.

        Raises:
            RemoteProtocolError: a record is torn.
            BodyError: a body can't be inflated.
        """
        start = 0
        while start < len(records):
            batch, rows, start = self._decode_from(start, records, queue)
            yield batch, rows
            # It is not kept while the next one is made.
            del batch

    def _decode_from(
        self, start: int, records: bytes, queue: MessageQueue
    ) -> tuple[pyarrow.RecordBatch, int, int]:
        import pyarrow

        try:
            rows, buffers, end = self._kernel.decode_columns(
                records,
                self._wanted,
                start=start,
                body_bytes_max=BATCH_BODY_BYTES_MAX,
                odd_body=odd_body_of(queue, self._body_errors),
            )
        except ValueError as error:
            where = f"{queue.topic} queue {queue.queue_id} on {queue.broker_name}"
            raise RemoteProtocolError(f"{where}: {error}") from error
        arrays = [
            pyarrow.repeat(pyarrow.scalar(queue.broker_name), rows)
            if name == _BROKER_NAME
            else _array(field.type, rows, buffers[name])
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        batch = pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._tags and rows:
            batch = batch.filter(self._matches(rows, buffers[_TAGS]))
        return batch, rows, end

    def _matches(self, rows: int, buffers: object) -> pyarrow.Array:
        import pyarrow
        import pyarrow.compute

        tags = _array(pyarrow.string(), rows, buffers)
        return pyarrow.compute.is_in(tags, value_set=pyarrow.array(self._tags))


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """What Spark compares a batch's schema with."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # PySpark 4.1 spells it otherwise.
        return to_arrow_schema(schema, timestamp_utc=True)


def _array(kind: pyarrow.DataType, rows: int, buffers: object) -> pyarrow.Array:
    """An array over the kernel's buffers: bytes (numbers), 3 (text, binary) or 5 of them (map)."""
    import pyarrow

    wrap = pyarrow.py_buffer
    if isinstance(buffers, bytes):
        return pyarrow.Array.from_buffers(kind, rows, [None, wrap(buffers)], null_count=0)
    parts = cast("tuple[Any, ...]", buffers)
    if len(parts) == 3:
        validity, offsets, data = parts
        bitmap = None if validity is None else wrap(validity)
        return pyarrow.Array.from_buffers(kind, rows, [bitmap, wrap(offsets), wrap(data)])
    offsets, key_offsets, key_data, value_offsets, value_data = parts
    items = len(key_offsets) // 4 - 1
    entry_type = pyarrow.struct([kind.key_field, kind.item_field])
    keys, values = (
        pyarrow.Array.from_buffers(pyarrow.string(), items, [None, wrap(at), wrap(data)])
        for at, data in ((key_offsets, key_data), (value_offsets, value_data))
    )
    entries = pyarrow.StructArray.from_arrays([keys, values], fields=list(entry_type))
    return pyarrow.Array.from_buffers(
        kind, rows, [None, wrap(offsets)], null_count=0, children=[entries]
    )
