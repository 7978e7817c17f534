"""A Python stream of a few lines, without Kerolox: what PySpark itself takes for a first batch.

Spark finds it as it finds ours, in ``DefaultSource`` of a module ``pyspark_*``. Its one batch has
as many rows and the same nine columns as that of the other systems, made in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow

ROWS = 10_000
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


class DefaultSource(DataSource):  # type: ignore[misc]
    """Format ``bare-python``."""

    @classmethod
    def name(cls) -> str:
        return "bare-python"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: object) -> BareStreamReader:
        return BareStreamReader(schema)
