"""Plain Parquet: ``topic=T/date=D/BATCH-NUMBER.parquet``, which each reader of Parquet takes.

Files are written where no reader looks, and then moved to their places one by one. A batch that is
done again finds its record and moves what is left.

Compaction exchanges files of days that are over. While it does so for a day of a topic, that folder
holds a file that is no Parquet: a reader that comes just then fails and says so, instead of seeing
rows twice or not at all.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, unquote

from kerolox.errors import ConfigError
from kerolox.spark.jobs.archive.options import HIDDEN
from kerolox.spark.jobs.archive.records import STAGING, BatchRecord, DataFile
from kerolox.spark.jobs.archive.staging import rows_of
from kerolox.spark.jobs.archive.targets.target import Stored, rewrite, small_groups
from kerolox.spark.jobs.frame.files import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_PLACE = re.compile(r"topic=(?P<topic>[^/]+)/date=(?P<date>[\d-]+)/(?P<name>[^/_.][^/]*\.parquet)")
_EXCHANGES = "exchanges"

EXCHANGING = "exchanging.parquet"
"""In a folder whose files are being exchanged."""

_EXCHANGING_TEXT = "no Parquet: the files of this folder are being exchanged; read it again later\n"


class ParquetTarget:
    """A folder."""

    files_have_topic = False
    keeps_files = False

    def __init__(self, to: str, state: str) -> None:
        self._to = Folder(to)
        self._state = Folder(state)

    def prepare(self, archive: str, schema: StructType, *, is_new: bool, append: bool) -> None:
        """Check that the folder is empty, or ours."""
        if not is_new:
            self._finish_exchanges()
            return
        others = [name for name in self._to.names() if not name.startswith(("_", "."))]
        if others and not append:
            raise ConfigError(
                f"option --to: {self._to.uri} has other data ({', '.join(sorted(others)[:3])}); "
                "name an empty folder, or give --append"
            )
        if self._to.exists(HIDDEN, "archive.json"):
            raise ConfigError(
                f"option --state: {self._to.uri} is an archive that keeps its state in {HIDDEN}; "
                "leave the option out to go on with it"
            )

    def folder_of(self, archive: str, batch: int) -> Folder:
        """In the state folder: hidden, and on the same file system."""
        return self._to.below(HIDDEN, STAGING, archive, f"{batch:09d}")

    def commit(self, archive: str, record: BatchRecord) -> None:
        """Move its files to their places."""
        source = Folder(record.folder)
        for number, each in enumerate(record.data):
            name = f"{record.batch:09d}-{number:05d}-{archive[:8]}.parquet"
            source.move(each.path, self._to, f"{place_of(each.topic, each.date)}/{name}")

    def stored(self) -> Iterator[Stored]:
        """All files in their places."""
        for found in self._to.files():
            place = _PLACE.fullmatch(found.path)
            if place is not None and place["name"] != EXCHANGING:
                yield Stored(
                    self._to.path(found.path),
                    unquote(place["topic"]),
                    place["date"],
                    rows_of(self._to, found.path),
                    found.size,
                )

    def compact(self, spark: SparkSession, target_bytes: int, before: str) -> tuple[int, int]:
        """Rewrite small files, then exchange them folder by folder."""
        self._finish_exchanges()
        taken = made = 0
        for group in small_groups(self.stored(), target_bytes, before):
            name = uuid.uuid4().hex
            folder = self._to.below(HIDDEN, STAGING, name)
            new = rewrite(spark, group, folder, target_bytes)
            self._record_exchange(name, group, new)
            self._exchange(name)
            taken, made = taken + len(group), made + len(new)
        return taken, made

    def _record_exchange(self, name: str, group: list[Stored], new: list[DataFile]) -> None:
        self._state.write_json(
            f"{_EXCHANGES}/{name}.json",
            {
                "place": place_of(group[0].topic, group[0].date),
                "old": [each.path.rpartition("/")[2] for each in group],
                "new": [each.path for each in new],
            },
        )

    def _finish_exchanges(self) -> None:
        """Those that were begun before a crash."""
        for file in self._state.below(_EXCHANGES).names():
            if file.endswith(".json") and not file.startswith("."):
                self._exchange(file.removesuffix(".json"))

    def _exchange(self, name: str) -> None:
        """Each step may have been done before."""
        record = f"{_EXCHANGES}/{name}.json"
        known = cast("dict[str, list[str]]", self._state.read_json(record) or {})
        place = str(known["place"])
        self._to.write_text(f"{place}/{EXCHANGING}", _EXCHANGING_TEXT)
        for old in known["old"]:
            self._to.delete(f"{place}/{old}")
        source = self._to.below(HIDDEN, STAGING, name)
        for number, path in enumerate(known["new"]):
            source.move(path, self._to, f"{place}/c-{number:05d}-{name[:16]}.parquet")
        self._to.delete(f"{place}/{EXCHANGING}")
        self._state.delete(record)
        self._to.delete_folder(HIDDEN, STAGING, name)


def place_of(topic: str, date: str) -> str:
    """Folder of a topic's day, with the escapes that Spark and Hive know."""
    return f"topic={quote(topic, safe='')}/date={date}"
