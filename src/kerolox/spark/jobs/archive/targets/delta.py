"""A Delta table by its own log: Spark writes the files, one transaction adds them.

The transaction carries the archive's id and the number of the batch (``txn``), as delta-spark's
``txnAppId`` and ``txnVersion`` do, so a batch is in the table once or not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kerolox.errors import ConfigError
from kerolox.spark.jobs.archive.records import BatchRecord
from kerolox.spark.jobs.archive.staging import DATE
from kerolox.spark.jobs.archive.targets.target import Stored
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.files import Folder

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_PARTITIONS = ["topic", DATE]


class DeltaTarget:
    """A folder with a Delta table."""

    files_have_topic = False
    keeps_files = True

    def __init__(self, to: str) -> None:
        self._to = Folder(to)
        self._uri = to.replace("s3a://", "s3://", 1)

    def prepare(self, archive: str, schema: StructType, *, is_new: bool, append: bool) -> None:
        """Make the table, or check it."""
        delta = _library()
        from pyspark.sql.types import DateType, StructField, StructType

        from kerolox.spark.rows.schema import arrow_schema

        wanted = arrow_schema(StructType([*schema.fields, StructField(DATE, DateType())]))
        if not delta.DeltaTable.is_deltatable(self._uri):
            if not is_new:
                raise JobError(f"{self._uri} is no Delta table any more; restore it")
            others = [name for name in self._to.names() if not name.startswith(("_", "."))]
            if others:
                raise ConfigError(
                    f"option --to: {self._uri} is no Delta table and has other data "
                    f"({', '.join(sorted(others)[:3])}); name an empty folder"
                )
            delta.DeltaTable.create(
                self._uri, delta.Schema.from_arrow(wanted), partition_by=_PARTITIONS
            )
            return
        table = self._table()
        if is_new and not append and table.version() > 0:
            raise ConfigError(
                f"option --to: the Delta table {self._uri} has other data; name another, or give "
                "--append"
            )
        if table.schema() != delta.Schema.from_arrow(wanted):
            raise ConfigError(
                f"option --to: the Delta table {self._uri} has other columns than the archive; "
                "name another"
            )

    def folder_of(self, archive: str, batch: int) -> Folder:
        """In the table's folder: the files stay where they are written."""
        return self._to.below(f"{archive[:16]}", f"{batch:09d}")

    def commit(self, archive: str, record: BatchRecord) -> None:
        """Add its files, unless the table has them."""
        _library()
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        table = self._table()
        version = table.transaction_version(archive)
        if version is not None and version >= record.batch:
            return
        root = f"{archive[:16]}/{record.batch:09d}"
        now = time.time_ns() // 1_000_000
        adds = [
            AddAction(
                path=f"{root}/{each.path}",
                size=each.size,
                partition_values={"topic": each.topic, DATE: each.date},
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": each.rows}),
            )
            for each in record.data
        ]
        properties = CommitProperties(app_transactions=[Transaction(archive, record.batch)])
        table.create_write_transaction(
            adds,
            mode="append",
            schema=table.schema(),
            partition_by=_PARTITIONS,
            commit_properties=properties,
        )

    def stored(self) -> Iterator[Stored]:
        """The files of the table's last version."""
        table = self._table()
        from pyarrow import table as arrow_table

        actions = arrow_table(table.get_add_actions(flatten=True))
        for row in actions.to_pylist():
            yield Stored(
                self._to.path(row["path"]),
                str(row["partition.topic"]),
                str(row[f"partition.{DATE}"]),
                int(row["num_records"] or 0),
                int(row["size_bytes"]),
            )

    def compact(self, spark: SparkSession, target_bytes: int, before: str) -> tuple[int, int]:
        """The table's own compaction; readers keep the files of the version that they have."""
        done = self._table().optimize.compact(
            [(DATE, "<", before)], target_size=target_bytes, max_concurrent_tasks=1
        )
        return int(done["numFilesRemoved"]), int(done["numFilesAdded"])

    def _table(self) -> DeltaTable:
        table: DeltaTable = _library().DeltaTable(self._uri)
        return table


def _library() -> Any:  # noqa: ANN401 - a module of an extra
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError(
            f"option --format delta needs deltalake ({error}); install kerolox[lakehouse]"
        ) from None
    return deltalake
