"""The options of ``replay``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerolox.spark.jobs.archive.options import Format
from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.frame.options import option

UNIT_ROWS_DEFAULT = 500_000

COLUMNS_SET = (
    *("topic", "tags", "keys", "properties", "body", "flag"),
    *("orderingKey", "delayLevel"),
)
"""What ``--set`` can give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(ClusterOptions):
    """What to send again, whither, and how fast. Name servers, account and TLS are those of the
    target; also of the topic that is read, unless ``from_name_server`` says otherwise."""

    from_archive: str = option(
        "an archive: its folder; for iceberg its table", default="", metavar="PATH"
    )
    from_store: str = option("a store: the folder of a broker's files", default="", metavar="PATH")
    from_topics: tuple[str, ...] = option(
        "a topic to read", default=(), flag="from-topic", metavar="TOPIC"
    )
    format: str = option("what the archive is", default=Format.PARQUET.value, choices=tuple(Format))
    catalog: Mapping[str, str] = option(
        "a property of Iceberg's catalog; may be repeated", default={}
    )
    from_name_server: str = option(
        "name servers of --from-topic; default: those of the target", default=""
    )
    to_topic: str = option(
        "where all messages go; else each to the topic that it had", default="", metavar="TOPIC"
    )
    topics: tuple[str, ...] = option(
        "messages of this topic only; may be repeated", default=(), flag="topic"
    )
    since: int | None = option(
        "stored at this time or later", default=None, is_time=True, metavar="TIME"
    )
    until: int | None = option(
        "stored before this time", default=None, is_time=True, metavar="TIME"
    )
    tags: tuple[str, ...] = option(
        "messages with this tag only; may be repeated", default=(), flag="tag"
    )
    keys: tuple[str, ...] = option(
        "messages with this key only; may be repeated", default=(), flag="key"
    )
    where: str = option(
        "a condition in Spark's SQL on the columns of a row", default="", metavar="SQL"
    )
    sets: Mapping[str, str] = option(
        "a column by an expression of Spark's SQL, as in tags=concat('re-',tags); may be repeated",
        default={},
        flag="set",
        metavar="COLUMN=SQL",
    )
    rate: float | None = option(
        "most rows a second in all", default=None, minimum=0.001, metavar="ROWS"
    )
    ordered: bool = option(
        "keep the order of each queue: its rows go to one queue, in order", default=False
    )
    mark: bool = option("give each message the property that tells where it was", default=True)
    dry_run: bool = option("only count what would be sent", default=False)
    transactional: bool = option(
        "send each row exactly once, by half messages; needs --state", default=False
    )
    state: str = option(
        "folder of how far it is; run again with the same, it goes on", default="", metavar="PATH"
    )
    unit_rows: int = option(
        "about so many rows between two marks of how far it is",
        default=UNIT_ROWS_DEFAULT,
        minimum=1,
    )
    source: Mapping[str, str] = option(
        "a further option of the format that is read; may be repeated",
        default={},
        flag="source-option",
    )

    def check(self) -> None:
        """The options together."""
        given = [
            name for name in ("from_archive", "from_store", "from_topics") if getattr(self, name)
        ]
        if len(given) != 1:
            raise self.error(
                "from_archive", "give one of --from-archive, --from-store and --from-topic"
            )
        if self.catalog and self.format != Format.ICEBERG:
            raise self.error("catalog", f"has no meaning with --format {self.format}")
        if self.from_name_server and not self.from_topics:
            raise self.error("from_name_server", "has a meaning with --from-topic only")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise self.error("until", "is not behind --since, so nothing would be sent")
        for name in self.sets:
            if name not in COLUMNS_SET:
                raise self.error(
                    "sets", f"there is no column {name!r}; there are {', '.join(COLUMNS_SET)}"
                )
        if "topic" in self.sets and self.to_topic:
            raise self.error("to_topic", "contradicts --set topic=...; leave one out")
        if self.ordered and "orderingKey" in self.sets:
            raise self.error("ordered", "contradicts --set orderingKey=...; leave one out")
        if self.transactional and not self.state:
            raise self.error("transactional", "needs --state, the folder of what was decided")
        if self.transactional and "delayLevel" in self.sets:
            raise self.error("transactional", "contradicts --set delayLevel=...; leave one out")
        same = set(self.from_topics) & {self.to_topic}
        keeps = self.from_topics and not self.to_topic and "topic" not in self.sets
        if (keeps and not self.from_name_server) or same:
            raise self.error(
                "to_topic", "is needed with --from-topic: a topic is not replayed into itself"
            )

    def fingerprint(self) -> dict[str, object]:
        """What must be the same for a run that goes on."""
        fingerprint: dict[str, object] = {
            "from": self.from_archive or self.from_store or list(self.from_topics),
            "to": self.to_topic,
            "select": [*map(list, (self.topics, self.tags, self.keys)), self.where],
            "time": [self.since, self.until],
            "sets": dict(self.sets),
        }
        # As states were before there were transactions.
        return {**fingerprint, "transactional": True} if self.transactional else fingerprint
