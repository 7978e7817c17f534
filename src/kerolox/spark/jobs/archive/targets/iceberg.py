"""An Iceberg table by its catalog (PyIceberg): Spark writes the files, one commit adds them.

The same commit sets a property of the table that says which batch of which archive was the last, so
a batch is in the table once or not at all, also when its snapshot has expired. The snapshot's
summary has both, for people.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kerolox.errors import ConfigError
from kerolox.spark.jobs.archive.records import BatchRecord
from kerolox.spark.jobs.archive.targets.target import Stored, rewrite, small_groups
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.files import Folder

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

LAST_BATCH = "kerolox.archive.{archive}"
"""Property of the table: the last batch of an archive."""

CATALOG_DEFAULT = "default"
_EPOCH = datetime.date(1970, 1, 1)


class IcebergTarget:
    """A table of a catalog, by its name with its namespace. ``catalog``: properties; ``name`` is
    that of a catalog of ``.pyiceberg.yaml``.
    """

    files_have_topic = True
    keeps_files = True

    def __init__(self, name: str, catalog: Mapping[str, str]) -> None:
        self._name = name
        self._catalog = dict(catalog)

    def prepare(self, archive: str, schema: StructType, *, is_new: bool, append: bool) -> None:
        """Make the table, partitioned by topic and day, or check it."""
        catalog = self._open()
        from pyiceberg.transforms import DayTransform, IdentityTransform

        from kerolox.spark.rows.schema import arrow_schema

        wanted = arrow_schema(schema)
        if catalog.table_exists(self._name):
            self._check(catalog.load_table(self._name), archive, wanted.names, is_new, append)
            return
        if not is_new:
            raise JobError(f"the catalog has no table {self._name} any more; restore it")
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        creation = catalog.create_table_transaction(self._name, wanted)
        with creation as transaction, transaction.update_spec() as spec:
            spec.add_field("topic", IdentityTransform(), "topic")
            spec.add_field("storeTimestamp", DayTransform(), "storeTimestamp_day")

    def _check(
        self, table: Table, archive: str, names: list[str], is_new: bool, append: bool
    ) -> None:
        if is_new and not append and table.current_snapshot() is not None:
            raise ConfigError(
                f"option --to: table {self._name} has other data; name another, or give --append"
            )
        if [field.name for field in table.schema().fields] != names:
            raise ConfigError(
                f"option --to: table {self._name} has other columns than the archive; name another"
            )

    def folder_of(self, archive: str, batch: int) -> Folder:
        """Among the table's data: the files stay where they are written."""
        return self._data().below(archive[:16], f"{batch:09d}")

    def commit(self, archive: str, record: BatchRecord) -> None:
        """Add its files, unless the table has them."""
        table = self._table()
        key = LAST_BATCH.format(archive=archive)
        if int(table.properties.get(key, "-1")) >= record.batch:
            return
        folder = Folder(record.folder)
        paths = [folder.path(each.path) for each in record.data]
        summary = {"kerolox-archive": archive, "kerolox-batch": str(record.batch)}
        with table.transaction() as transaction:
            transaction.set_properties({key: str(record.batch)})
            # The property says that they are new.
            transaction.add_files(paths, summary, check_duplicate_files=False)

    def stored(self) -> Iterator[Stored]:
        """The files of the table's current snapshot; ConfigError: rows were deleted by files of
        deletes, which this does not read.
        """
        for _, each in self._entries():
            yield each

    def _entries(self) -> Iterator[tuple[Any, Stored]]:
        for task in self._table().scan().plan_files():
            if task.delete_files:
                raise ConfigError(
                    f"table {self._name} has files of deletes; rewrite its data files first"
                )
            topic, day = task.file.partition[0], task.file.partition[1]
            date = day if isinstance(day, datetime.date) else _EPOCH + datetime.timedelta(days=day)
            file = task.file
            stored = Stored(
                file.file_path,
                str(topic),
                date.isoformat(),
                file.record_count,
                file.file_size_in_bytes,
            )
            yield file, stored

    def compact(self, spark: SparkSession, target_bytes: int, before: str) -> tuple[int, int]:
        """Rewrite small files and exchange them in one commit for each day of a topic; readers keep
        the files of the snapshot that they have."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        entries = {stored.path: file for file, stored in self._entries()}
        taken = made = 0
        groups = small_groups((stored for _, stored in self._entries()), target_bytes, before)
        for group in groups:
            folder = self._data().below("compacted", uuid.uuid4().hex)
            new = rewrite(spark, group, folder, target_bytes)
            table = self._table()
            with table.transaction() as transaction:
                metadata = transaction.table_metadata
                with transaction.update_snapshot({"kerolox-compacted": "1"}).overwrite() as update:
                    for old in group:
                        update.delete_data_file(entries[old.path])
                    for each in new:
                        update.append_data_file(
                            parquet_file_to_data_file(table.io, metadata, folder.path(each.path))
                        )
            taken, made = taken + len(group), made + len(new)
        return taken, made

    def _data(self) -> Folder:
        return Folder(f"{self._table().location().rstrip('/')}/data")

    def _table(self) -> Table:
        table: Table = self._open().load_table(self._name)
        return table

    def _open(self) -> Any:  # noqa: ANN401 - a catalog of an extra
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise ConfigError(
                f"option --format iceberg needs pyiceberg ({error}); install kerolox[lakehouse]"
            ) from None
        properties = dict(self._catalog)
        name = properties.pop("name", CATALOG_DEFAULT)
        try:
            return load_catalog(name, **properties)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"option --catalog: catalog {name} can't be used: {error}") from None
