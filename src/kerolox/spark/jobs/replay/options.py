"""The options of ``replay``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kerolox.spark.jobs.archive.options import Format
from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.frame.options import option, option_error

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

    from_archive: str = field(
        default="",
        metadata=option("an archive: its folder; for iceberg its table", metavar="PATH"),
    )
    from_store: str = field(
        default="", metadata=option("a store: the folder of a broker's files", metavar="PATH")
    )
    from_topics: tuple[str, ...] = field(
        default=(), metadata=option("a topic to read", flag="from-topic", metavar="TOPIC")
    )
    format: str = field(
        default=Format.PARQUET.value,
        metadata=option("what the archive is", choices=tuple(Format)),
    )
    catalog: Mapping[str, str] = field(
        default_factory=dict, metadata=option("a property of Iceberg's catalog; may be repeated")
    )
    from_name_server: str = field(
        default="",
        metadata=option("name servers of --from-topic; default: those of the target"),
    )
    to_topic: str = field(
        default="",
        metadata=option(
            "where all messages go; else each to the topic that it had", metavar="TOPIC"
        ),
    )
    topics: tuple[str, ...] = field(
        default=(),
        metadata=option("messages of this topic only; may be repeated", flag="topic"),
    )
    since: int | None = field(
        default=None,
        metadata=option("stored at this time or later", is_time=True, metavar="TIME"),
    )
    until: int | None = field(
        default=None, metadata=option("stored before this time", is_time=True, metavar="TIME")
    )
    tags: tuple[str, ...] = field(
        default=(), metadata=option("messages with this tag only; may be repeated", flag="tag")
    )
    keys: tuple[str, ...] = field(
        default=(), metadata=option("messages with this key only; may be repeated", flag="key")
    )
    where: str = field(
        default="",
        metadata=option("a condition in Spark's SQL on the columns of a row", metavar="SQL"),
    )
    sets: Mapping[str, str] = field(
        default_factory=dict,
        metadata=option(
            "a column by an expression of Spark's SQL, as in tags=concat('re-',tags); may be"
            " repeated",
            flag="set",
            metavar="COLUMN=SQL",
        ),
    )
    rate: float | None = field(
        default=None,
        metadata=option("most rows a second in all", minimum=0.001, metavar="ROWS"),
    )
    ordered: bool = field(
        default=False,
        metadata=option("keep the order of each queue: its rows go to one queue, in order"),
    )
    mark: bool = field(
        default=True,
        metadata=option("give each message the property that tells where it was"),
    )
    dry_run: bool = field(default=False, metadata=option("only count what would be sent"))
    transactional: bool = field(
        default=False,
        metadata=option("send each row exactly once, by half messages; needs --state"),
    )
    state: str = field(
        default="",
        metadata=option(
            "folder of how far it is; run again with the same, it goes on", metavar="PATH"
        ),
    )
    unit_rows: int = field(
        default=UNIT_ROWS_DEFAULT,
        metadata=option("about so many rows between two marks of how far it is", minimum=1),
    )
    source: Mapping[str, str] = field(
        default_factory=dict,
        metadata=option(
            "a further option of the format that is read; may be repeated", flag="source-option"
        ),
    )

    def check(self) -> None:
        """The options together."""
        given = [
            name for name in ("from_archive", "from_store", "from_topics") if getattr(self, name)
        ]
        if len(given) != 1:
            raise option_error(
                self, "from_archive", "give one of --from-archive, --from-store and --from-topic"
            )
        if self.catalog and self.format != Format.ICEBERG:
            raise option_error(self, "catalog", f"has no meaning with --format {self.format}")
        if self.from_name_server and not self.from_topics:
            raise option_error(self, "from_name_server", "has a meaning with --from-topic only")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise option_error(self, "until", "is not behind --since, so nothing would be sent")
        for name in self.sets:
            if name not in COLUMNS_SET:
                raise option_error(
                    self, "sets", f"there is no column {name!r}; there are {', '.join(COLUMNS_SET)}"
                )
        if "topic" in self.sets and self.to_topic:
            raise option_error(self, "to_topic", "contradicts --set topic=...; leave one out")
        if self.ordered and "orderingKey" in self.sets:
            raise option_error(self, "ordered", "contradicts --set orderingKey=...; leave one out")
        if self.transactional and not self.state:
            raise option_error(
                self, "transactional", "needs --state, the folder of what was decided"
            )
        if self.transactional and "delayLevel" in self.sets:
            raise option_error(
                self, "transactional", "contradicts --set delayLevel=...; leave one out"
            )
        same = set(self.from_topics) & {self.to_topic}
        keeps = self.from_topics and not self.to_topic and "topic" not in self.sets
        if (keeps and not self.from_name_server) or same:
            raise option_error(
                self,
                "to_topic",
                "is needed with --from-topic: a topic is not replayed into itself",
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
