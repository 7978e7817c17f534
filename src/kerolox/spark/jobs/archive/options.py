"""The options of ``archive``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.frame.options import option

BATCH_ROWS_DEFAULT = 1_000_000
INTERVAL_SECONDS_DEFAULT = 60.0
COMPACT_MIB_DEFAULT = 256

HIDDEN = "_kerolox"
"""Folder in a target for what is no data; readers of Parquet and Delta pass it over."""


class Format(StrEnum):
    """The format of a target."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Body(StrEnum):
    """The encoding of bodies."""

    BINARY = "binary"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compact(StrEnum):
    """The time of compaction: small files become large ones."""

    NO = "no"
    AFTER = "after"
    ONLY = "only"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(ClusterOptions):
    """The options of ``archive``: source, target, schema, recovery."""

    to: str = option("folder of the target; for iceberg its table, as in lake.orders")
    topics: tuple[str, ...] = option(
        "a topic; may be repeated", default=(), flag="topic", metavar="TOPIC"
    )
    format: str = option("what the target is", default=Format.PARQUET.value, choices=tuple(Format))
    follow: bool = option("go on for ever; else stop at the end of the topics", default=False)
    interval: float = option(
        "with --follow: seconds between batches",
        default=INTERVAL_SECONDS_DEFAULT,
        minimum=0,
        maximum=86_400,
        metavar="SECONDS",
    )
    batch_rows: int = option(
        "most rows of a batch (PySpark 4.1: all)",
        default=BATCH_ROWS_DEFAULT,
        minimum=1,
        metavar="N",
    )
    starting_offsets: str = option(
        "where a new archive begins: earliest, latest or JSON", default="earliest", metavar="WHERE"
    )
    body: str = option(
        "decode bodies into a column value; they are kept beside it",
        default=Body.BINARY.value,
        choices=tuple(Body),
    )
    body_schema: str = option(
        "file of their schema: json: JSON Schema or Spark's; avro: .avsc; protobuf: a"
        " descriptor set",
        default="",
        metavar="FILE",
    )
    body_message: str = option("with protobuf: the message's full name", default="", metavar="NAME")
    quarantine: str = option(
        f"folder for rows that do not decode; default quarantine in --state ({HIDDEN} in the"
        " target)",
        default="",
        metavar="PATH",
    )
    state: str = option(
        f"folder of the checkpoint; default {HIDDEN} in the target; needed for iceberg",
        default="",
        metavar="PATH",
    )
    append: bool = option("take a target that has other data already", default=False)
    compact: str = option(
        "make large files of small ones, of days that are over",
        default=Compact.NO.value,
        choices=tuple(Compact),
    )
    compact_mib: int = option(
        "size of the large ones, in MiB",
        default=COMPACT_MIB_DEFAULT,
        minimum=1,
        maximum=4096,
        metavar="MIB",
    )
    catalog: Mapping[str, str] = option(
        "a property of Iceberg's catalog; may be repeated", default={}
    )
    source: Mapping[str, str] = option(
        "a further option of format rocketmq, as in failOnDataLoss=false; may be repeated",
        default={},
        flag="source-option",
    )

    def check(self) -> None:
        """The options together."""
        names = {name.lower() for name in self.source}
        has_topics = bool(self.topics or names & {"subscribepattern", "assign"})
        if not has_topics and self.compact != Compact.ONLY:
            raise self.error("topics", "give one or more")
        if self.format == Format.ICEBERG:
            if not self.state:
                raise self.error("state", "is needed for iceberg: a folder of its own")
            if "." not in self.to.strip("."):
                raise self.error("to", f"{self.to!r} is no table; write as in lake.orders")
        elif self.catalog:
            raise self.error("catalog", f"has no meaning with --format {self.format}")
        if (self.body != Body.BINARY) != bool(self.body_schema):
            what = "is needed" if not self.body_schema else "has no meaning"
            raise self.error("body_schema", f"{what} with --body {self.body}")
        if (self.body == Body.PROTOBUF) != bool(self.body_message):
            what = "is needed" if not self.body_message else "has no meaning"
            raise self.error("body_message", f"{what} with --body {self.body}")
        if self.follow and self.compact == Compact.AFTER:
            raise self.error("compact", "after has no meaning with --follow; run it beside")

    @property
    def state_folder(self) -> str:
        """Of the checkpoint and of what is known of batches."""
        return self.state or f"{self.to.rstrip('/')}/{HIDDEN}"

    @property
    def quarantine_folder(self) -> str:
        """Of rows that do not decode."""
        return self.quarantine or f"{self.state_folder.rstrip('/')}/quarantine"
