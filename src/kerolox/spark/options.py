"""The options of the ``rocketmq`` format: names as a user of Spark's Kafka source expects them.

Spark hands option names over in lower case and compares them without regard to case; so does this
module. All is checked here, before anything is read: an option that nobody knows is an error that
names the nearest one, since a misspelt ``startingOffsets`` would otherwise mean "latest".
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kerolox.config import nearest
from kerolox.errors import ConfigError
from kerolox.filter.tags import looks_like_sql92, parse_tags
from kerolox.message import ALL_TAGS, MessageQueue
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EARLIEST = -2
"""In an offsets JSON: the queue's first message."""

LATEST = -1
"""In an offsets JSON: after the queue's last message."""

OPTIONS = {
    "nameServer": "addresses of the name servers, host:port, several joined by ';' (required)",
    "subscribe": "topics, joined by ',' (required)",
    "startingOffsets": "earliest, latest or JSON; batch: earliest, new stream: latest",
    "endingOffsets": "latest or JSON; batch only, default latest",
    "subExpression": "tags, as in 'a || b'; default '*': all",
    "maxOffsetsPerTrigger": "stream: at most so many queue offsets in a micro-batch, shared fairly",
    "minPartitions": "at least so many Spark partitions; default: as few as are worth it",
    "failOnDataLoss": "true (default): fail when messages asked for are gone; false: warn, go on",
    "bodyErrors": "bodies that can't be inflated: fail (default), null, or raw: the stored bytes",
    "columns": "a subset of the columns, joined by ',', in this order; fewer are faster",
    "consumerGroup": "the group name in pull requests, default spark-rocketmq; keeps no offsets",
    "pollTimeoutMs": "longest wait for a broker to come back or to answer, default 120000",
    "pollIntervalMs": "stream: time between looks while nothing comes, default 250, later twice",
    "accessKey": "account that requests are signed with, for brokers with aclEnable",
    "secretKey": "its secret; Spark shows neither",
    "securityToken": "of a temporary account",
    "tls": "true: encrypt connections; default false, or true with another option of TLS",
    "tlsCaFile": "PEM file of the authorities that are trusted; default: the system's",
    "tlsCertificateFile": "PEM file of our certificate, for servers that ask for one",
    "tlsKeyFile": "PEM file of its private key; default: in the certificate's file",
    "tlsKeyPassword": "what the private key is encrypted with",
    "tlsVerify": "true (default): check the servers' certificates",
    "tlsCheckHostName": "true (default): they must be for the host or address connected to",
}
"""Every option with its meaning."""

_log = logging.getLogger(__name__)

_CANONICAL = {name.lower(): name for name in OPTIONS}
_BOOLEANS = {"true": True, "false": False}

CONSUMER_GROUP_DEFAULT = "spark-rocketmq"
"""One group for all queries: a broker keeps for ever each group that it has seen once."""

POLL_TIMEOUT_MS_DEFAULT = 120_000

POLL_INTERVAL_MS_DEFAULT = 250
"""Spark's own delay of a batch is as long."""

TOPICS_MAX = 1000
"""Most topics in one ``subscribe``."""


class Bound(Enum):
    """An end of a queue as it is when the query is planned."""

    EARLIEST = "earliest"
    LATEST = "latest"


class BodyErrors(Enum):
    """What stands for a body that can't be read: nothing (the query fails), null, the raw bytes."""

    FAIL = "fail"
    NULL = "null"
    RAW = "raw"


OffsetBound = Bound | dict[MessageQueue, int]
"""One end for all queues, or one per queue (``EARLIEST`` and ``LATEST`` as values)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of one ``spark.read`` or ``spark.readStream``."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    starting_offsets: OffsetBound | None = None
    """None: not given; the default differs between batch and stream."""
    ending_offsets: OffsetBound | None = None
    sub_expression: str = ALL_TAGS
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    body_errors: BodyErrors = BodyErrors.FAIL
    columns: tuple[str, ...] | None = None
    consumer_group: str = CONSUMER_GROUP_DEFAULT
    poll_timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT
    poll_interval_ms: int = POLL_INTERVAL_MS_DEFAULT
    credentials: Credentials | None = None
    tls: bool | TlsSettings = False

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags to keep; empty: all messages."""
        return parse_tags(self.sub_expression)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Check the options of a query.

        Raises:
            ConfigError: an unknown or missing option, or a value that its option can't have.
        """
        options = _canonical_names(given)
        topics = tuple(dict.fromkeys(_items(_required(options, "subscribe"), ",")))
        if not topics:
            raise ConfigError("option subscribe names no topic; write one or more, joined by ','")
        if len(topics) > TOPICS_MAX:
            raise ConfigError(f"option subscribe names {len(topics)} topics, over {TOPICS_MAX}")
        name_servers = tuple(_items(_required(options, "nameServer").replace(",", ";"), ";"))
        if not name_servers:
            raise ConfigError("option nameServer is empty; write host:port, as in 127.0.0.1:9876")
        columns = tuple(_items(options["columns"], ",")) if "columns" in options else None
        if columns is not None and (not columns or len(set(columns)) != len(columns)):
            raise ConfigError(
                f"option columns={options['columns']!r} is empty or names a column twice"
            )
        return cls(
            name_servers=name_servers,
            topics=topics,
            starting_offsets=_bound(options, "startingOffsets", topics),
            ending_offsets=_bound(options, "endingOffsets", topics),
            sub_expression=_tag_expression(options),
            max_offsets_per_trigger=_positive(options, "maxOffsetsPerTrigger"),
            min_partitions=_positive(options, "minPartitions"),
            fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
            body_errors=_body_errors(options),
            columns=columns,
            consumer_group=options.get("consumerGroup", "").strip() or CONSUMER_GROUP_DEFAULT,
            poll_timeout_ms=_positive(options, "pollTimeoutMs") or POLL_TIMEOUT_MS_DEFAULT,
            poll_interval_ms=_positive(options, "pollIntervalMs") or POLL_INTERVAL_MS_DEFAULT,
            credentials=_credentials(options),
            tls=_tls(options),
        )

    def check_batch(self) -> None:
        """Refuse what only a stream can mean; warn of what has no effect.

        Raises:
            ConfigError: a batch that starts after the last message or after its own end, or ends
                at the first message.
        """
        if self.starting_offsets is Bound.LATEST or _has(self.starting_offsets, LATEST):
            raise ConfigError(
                "startingOffsets can't be latest (-1) in a batch: it would read nothing; "
                "use earliest or offsets"
            )
        if self.ending_offsets is Bound.EARLIEST or _has(self.ending_offsets, EARLIEST):
            raise ConfigError("endingOffsets can't be earliest (-2); use latest or offsets")
        self._check_order()
        if self.max_offsets_per_trigger is not None:
            # As Spark's Kafka source does: the same options are often used for both.
            _log.warning(
                "option maxOffsetsPerTrigger has no effect in a batch, which reads all between "
                "startingOffsets and endingOffsets; set endingOffsets to read less"
            )

    def _check_order(self) -> None:
        starting, ending = self.starting_offsets, self.ending_offsets
        if not isinstance(starting, dict) or not isinstance(ending, dict):
            return
        for queue, start in starting.items():
            end = ending.get(queue, LATEST)
            if 0 <= end < start:
                raise ConfigError(
                    f"startingOffsets {start} of {queue.topic} queue {queue.queue_id} on "
                    f"{queue.broker_name} is behind its endingOffsets {end}, so nothing would be "
                    "read; exchange them, or give both the same offset to leave the queue out"
                )

    def check_stream(self) -> None:
        """Refuse what only a batch can mean.

        Raises:
            ConfigError: a stream with an end.
        """
        if self.ending_offsets is not None:
            raise ConfigError(
                "endingOffsets is for batches only; a stream with "
                "trigger(availableNow=True) ends by itself"
            )


def parse_bound(text: str, topics: Iterable[str], *, option: str) -> OffsetBound:
    """``earliest``, ``latest``, or JSON by topic, broker name and queue id.

    Raises:
        ConfigError: neither; a topic that is not subscribed; an offset below -2.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(word)
    example = '{"topic":{"broker-a":{"0":123,"1":-2}}}'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"option {option}={text!r} is neither earliest, latest nor JSON ({error}); "
            f"JSON looks like {example}"
        ) from error
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"option {option}={text!r} is no object; write {example}")
    known = set(topics)
    offsets: dict[MessageQueue, int] = {}
    for topic, brokers in value.items():
        if topic not in known:
            raise ConfigError(f"option {option} has topic {topic!r}, which subscribe does not name")
        for broker_name, queues in _members(brokers, option, example):
            for queue_id, offset in _members(queues, option, example):
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise ConfigError(f"option {option} has queue id {queue_id!r}; write {example}")
                if type(offset) is not int or offset < EARLIEST:
                    raise ConfigError(
                        f"option {option} has offset {offset!r} for {topic} {broker_name} "
                        f"{queue_id}; write 0 or more, -1 (latest) or -2 (earliest)"
                    )
                offsets[MessageQueue(topic, broker_name, int(queue_id))] = offset
    return offsets


def _members(value: object, option: str, example: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(f"option {option} has {value!r} where an object must be; write {example}")
    return value.items()


def _canonical_names(given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _CANONICAL.get(name.lower())
        if known is None:
            near = nearest(name, OPTIONS)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(OPTIONS)}"
            raise ConfigError(f"format rocketmq has no option {name!r}; {hint}")
        options[known] = str(value)
    return options


def _required(options: Mapping[str, str], name: str) -> str:
    if name not in options:
        raise ConfigError(f"option {name} is missing: {OPTIONS[name]}")
    return options[name]


def _items(text: str, separator: str) -> list[str]:
    return [item.strip() for item in text.split(separator) if item.strip()]


def _tag_expression(options: Mapping[str, str]) -> str:
    expression = options.get("subExpression", ALL_TAGS).strip() or ALL_TAGS
    try:
        parse_tags(expression)
    except ValueError as error:
        raise ConfigError(f"option subExpression: {error}") from error
    if looks_like_sql92(expression):
        raise ConfigError(
            f"option subExpression={printable(expression)} is no tag expression: write tags as in "
            "'a || b'. A condition (SQL92) would need option subExpressionType, which is not "
            "served yet; leave the option out and filter the rows by column properties or tags"
        )
    return expression


def _bound(options: Mapping[str, str], name: str, topics: tuple[str, ...]) -> OffsetBound | None:
    return parse_bound(options[name], topics, option=name) if name in options else None


def _positive(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ConfigError(f"option {name}={text!r} must be a whole number from 1 up")
    return int(text)


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in _BOOLEANS:
        raise ConfigError(f"option {name}={text!r} must be true or false")
    return _BOOLEANS[text]


def _body_errors(options: Mapping[str, str]) -> BodyErrors:
    text = options.get("bodyErrors", BodyErrors.FAIL.value).strip().lower()
    try:
        return BodyErrors(text)
    except ValueError:
        raise ConfigError(f"option bodyErrors={text!r} must be fail, null or raw") from None


def _credentials(options: Mapping[str, str]) -> Credentials | None:
    access_key, secret_key = options.get("accessKey", ""), options.get("secretKey", "")
    token = options.get("securityToken", "")
    if not (access_key or secret_key or token):
        return None
    for name, value in (("accessKey", access_key), ("secretKey", secret_key)):
        if not value:
            raise ConfigError(f"option {name} is missing: an account has accessKey and secretKey")
    return Credentials(access_key, secret_key, token)


def _tls(options: Mapping[str, str]) -> bool | TlsSettings:
    given = [name for name in options if name.startswith("tls") and name != "tls"]
    if not _boolean(options, "tls", default=bool(given)):
        if given:
            raise ConfigError(f"option {given[0]} is given, but tls=false; leave one of them out")
        return False
    return TlsSettings(
        ca=options.get("tlsCaFile"),
        certificate=options.get("tlsCertificateFile"),
        key=options.get("tlsKeyFile"),
        key_password=options.get("tlsKeyPassword"),
        verify=_boolean(options, "tlsVerify", default=True),
        check_host_name=_boolean(options, "tlsCheckHostName", default=True),
    )


def _has(bound: OffsetBound | None, offset: int) -> bool:
    return isinstance(bound, dict) and offset in bound.values()
