"""The columns of a store: those of ``rocketmq`` with the same meaning, and three more by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructType

from kerolox.message import tags_code
from kerolox.spark.rows.schema import (
    COLUMNS,
    arrow_schema,
    check_schema,
    column_of,
    schema_of,
)
from kerolox.spark.store.options import FORMAT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow

    from kerolox.spark.store.scan import Rows

CRC_OK = "crcOk"

STORE_COLUMNS: dict[str, DataType] = {
    **COLUMNS,
    "size": IntegerType(),
    CRC_OK: BooleanType(),
    "physicalOffset": LongType(),
}
"""Every column with its type. ``load()`` alone gives those of ``rocketmq``. The last three are
given when they are asked for: the bytes of the record, whether its body matches its CRC, and where
it stands (as commitLogOffset does). brokerName is null without option brokerName."""

_BROKER_NAME = "brokerName"
_OF_KERNEL = {"physicalOffset": "commitLogOffset"}


def store_schema(columns: Sequence[str] | None) -> StructType:
    """The schema of option ``columns``; None: all columns of ``rocketmq``."""
    return schema_of(columns or tuple(COLUMNS), known=STORE_COLUMNS, source=FORMAT)


def check_store_schema(schema: StructType, columns: Sequence[str] | None) -> None:
    """Check a schema that a user gave with ``.schema(...)``."""
    check_schema(schema, columns, known=STORE_COLUMNS, source=FORMAT)


def tags_codes(tags: pyarrow.Array) -> pyarrow.Array:
    """What queue entries say of tags (int64); 0 for none."""
    import pyarrow

    encoded = tags.dictionary_encode()
    codes = [tags_code(text) for text in encoded.dictionary.to_pylist()]
    return pyarrow.array(codes, pyarrow.int64()).take(encoded.indices).fill_null(0)


class RowBatches:
    """Makes record batches of rows; ``further``: columns that the kernel decodes besides, for who
    chooses rows by them.
    """

    def __init__(
        self, schema: StructType, broker_name: str | None, further: Sequence[str] = ()
    ) -> None:
        names = [column_of(name, STORE_COLUMNS, FORMAT) for name in schema.fieldNames()]
        self._names = [_OF_KERNEL.get(name, name) for name in names]
        self._schema = arrow_schema(schema)
        self._broker_name = broker_name
        wanted = [name for name in (*self._names, *further) if name != _BROKER_NAME]
        self.wanted = tuple(dict.fromkeys(wanted))
        """The columns that the kernel is asked for."""

    def batch(self, rows: Rows) -> pyarrow.RecordBatch:
        """The batch of some rows."""
        import pyarrow

        from kerolox.spark.rows.decoding import column_array

        arrays = [
            pyarrow.repeat(pyarrow.scalar(self._broker_name, pyarrow.string()), rows.count)
            if name == _BROKER_NAME
            else column_array(field.type, rows.count, rows.buffers[name])
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)
