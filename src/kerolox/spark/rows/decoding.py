"""From raw records to Arrow.

``decode_columns`` of the kernel gives buffers in Arrow's layout; here they are wrapped without a
copy into arrays of exactly the types that Spark expects of a batch. Only the columns that the query
has are decoded: there is no column pruning for Python sources, so ``columns`` and ``.schema(...)``
choose them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow
import pyarrow.compute

from kerolox.client.core.namespaces import without_namespace
from kerolox.errors import RemoteProtocolError
from kerolox.kernel.choice import load_kernel
from kerolox.spark.options import BodyErrors
from kerolox.spark.rows.bodies import odd_body_of
from kerolox.spark.rows.schema import arrow_schema, column_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from kerolox.kernel.choice import Kernel
    from kerolox.message import MessageQueue

BATCH_BODY_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of bodies, inflated, in one record batch. A larger body stands alone in its batch: one
that is compressed has ``kerolox.protocol.compression.INFLATED_BYTES_MAX`` at most."""

_BROKER_NAME = "brokerName"
_TAGS = "tags"
_TOPIC = "topic"


class ColumnDecoder:
    """Turns raw records into record batches of one schema.

    Args:
        schema: the columns as Spark wants them.
        tags: keep only messages with one of these tags, by text; empty: keep all.
        namespace: is taken off the names of topics.
        kernel: who decodes; the process's own choice by default.
    """

    def __init__(
        self,
        schema: StructType,
        *,
        tags: Sequence[str] = (),
        body_errors: BodyErrors = BodyErrors.FAIL,
        namespace: str = "",
        kernel: Kernel | None = None,
    ) -> None:
        self._names = [column_of(name) for name in schema.fieldNames()]
        self._schema = arrow_schema(schema)
        self._tags = list(tags)
        self._body_errors = body_errors
        self._namespace = namespace
        self._kernel = kernel or load_kernel()
        wanted = [name for name in self._names if name != _BROKER_NAME]
        if self._tags and _TAGS not in wanted:
            wanted.append(_TAGS)
        # Something must be decoded to know how many rows there are.
        self._wanted = wanted or ["queueId"]

    def decode(
        self, records: bytes, queue: MessageQueue
    ) -> Iterator[tuple[pyarrow.RecordBatch, int]]:
        """Batches in order, each with how many records were examined for it, those included that
        the tags left out. Inflated bodies make several batches of one answer. RemoteProtocolError:
        a record is torn. BodyError: a body can't be inflated.
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
            else column_array(field.type, rows, buffers[name])
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        if self._namespace and _TOPIC in self._names:
            place = self._names.index(_TOPIC)
            arrays[place] = _shown_topics(arrays[place], self._namespace)
        batch = pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._tags and rows:
            batch = batch.filter(self._matches(rows, buffers[_TAGS]))
        return batch, rows, end

    def _matches(self, rows: int, buffers: object) -> pyarrow.Array:
        tags = column_array(pyarrow.string(), rows, buffers)
        return pyarrow.compute.is_in(tags, value_set=pyarrow.array(self._tags))


def _shown_topics(topics: pyarrow.Array, namespace: str) -> pyarrow.Array:
    """Names of topics as the user knows them; there are few different ones."""
    encoded = topics.dictionary_encode()
    shown = [without_namespace(namespace, name) for name in encoded.dictionary.to_pylist()]
    names = pyarrow.array(shown, pyarrow.string())
    return pyarrow.DictionaryArray.from_arrays(encoded.indices, names).dictionary_decode()


def column_array(kind: pyarrow.DataType, rows: int, buffers: object) -> pyarrow.Array:
    """An array over the kernel's buffers: one (numbers, truths), 3 (text, binary) or 5 (map)."""
    wrap = pyarrow.py_buffer
    if not isinstance(buffers, tuple):
        return pyarrow.Array.from_buffers(kind, rows, [None, wrap(buffers)], null_count=0)
    if len(buffers) == 3:
        validity, offsets, data = buffers
        bitmap = None if validity is None else wrap(validity)
        return pyarrow.Array.from_buffers(kind, rows, [bitmap, wrap(offsets), wrap(data)])
    offsets, key_offsets, key_data, value_offsets, value_data = buffers
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
