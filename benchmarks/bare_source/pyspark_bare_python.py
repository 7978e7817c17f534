"""A Python source of a few lines, without Kerolox: what PySpark itself takes.

Spark finds it as it finds ours, in ``DefaultSource`` of a module ``pyspark_*``. It has the same
nine columns, made in memory: one micro-batch with as many rows as that of the other systems, or
``rows`` rows with bodies of ``size`` bytes, the same few thousand over and over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow

ROWS = 10_000
TASKS, ROWS_OF_A_BATCH = 4, 4096
COLUMNS = (
    "topic string, queueId int, queueOffset long, bornTimestamp timestamp, "
    "storeTimestamp timestamp, tags string, keys string, body binary, "
    "properties map<string,string>"
)


class BareStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """One batch, and nothing after it."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"rows": ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [] if start == end else [InputPartition((start["rows"], end["rows"]))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        first, end = partition.value
        row = ["topic", 0, 0, 0, 0, "tag", "key", bytes(128), [("TAGS", "tag")]]
        columns = [
            pyarrow.array([value] * (end - first), field.type)
            for value, field in zip(row, schema, strict=True)
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)


class BareReader(DataSourceReader):  # type: ignore[misc]
    """Rows of a batch query."""

    def __init__(self, schema: Any, rows: int, size: int) -> None:  # noqa: ANN401
        self._schema, self._rows, self._size = schema, rows, size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        import hashlib

        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        numbers = range(ROWS_OF_A_BATCH)
        texts = (hashlib.sha512(b"%d" % number).hexdigest() for number in numbers)
        bodies = [(text * (self._size // len(text) + 1))[: self._size].encode() for text in texts]
        properties = [
            {
                "TAGS": f"tag{each % 8}",
                "KEYS": f"k{each}",
                "UNIQ_KEY": f"{each:032X}",
                "WAIT": "true",
            }
            for each in numbers
        ]
        values: list[list[Any]] = [
            ["SparkRead"] * len(numbers),
            [partition.value] * len(numbers),
            *([*numbers] for _ in ("queueOffset", "bornTimestamp", "storeTimestamp")),
            [f"tag{each % 8}" for each in numbers],
            [f"k{each}" for each in numbers],
            bodies,
            [[*each.items()] for each in properties],
        ]
        arrays = [
            pyarrow.array(column, field.type) for column, field in zip(values, schema, strict=True)
        ]
        batch = pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
        for left in range(self._rows // TASKS, 0, -len(numbers)):
            yield batch.slice(0, left)


class DefaultSource(DataSource):  # type: ignore[misc]
    """Format ``bare-python``."""

    @classmethod
    def name(cls) -> str:
        return "bare-python"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: object) -> BareReader:
        return BareReader(schema, int(self.options["rows"]), int(self.options["size"]))

    def streamReader(self, schema: object) -> BareStreamReader:
        return BareStreamReader(schema)
