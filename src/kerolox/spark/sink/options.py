"""The options of the ``rocketmq`` format when it is written to; all are checked before a row is.

An option with the name of a column stands for that column where the rows have none, and where a
row's value is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kerolox.client.core.namespaces import with_namespace
from kerolox.client.core.validate import check_producer_group, check_send_topic
from kerolox.codec.python_rows import PROPERTIES_RESERVE_BYTES
from kerolox.errors import ConfigError
from kerolox.message import Message, encode_properties
from kerolox.protocol.codes import FRAME_BYTES_MAX
from kerolox.protocol.names import PROPERTIES_BYTES_MAX
from kerolox.schemas.wire import ID_MAX, header
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.bounds import QUEUE_ID_MAX
from kerolox.spark.option_values import CONNECTION_OPTIONS, OptionValues, check_path, of_option
from kerolox.text import printable, quoted

OPTIONS = {
    "nameServer": CONNECTION_OPTIONS["nameServer"],
    "topic": "where rows go; needed unless there is a column topic",
    "tags": "tag of rows that have none of their own",
    "keys": "keys of rows that have none of their own, joined by blanks",
    "properties": "further properties of all rows that have none, as a JSON object of texts",
    "flag": "flag of rows that have none of their own, default 0",
    "delayLevel": "delay level of rows that have none of their own, default 0: none",
    "deliverTime": "when rows are delivered that have no time of their own, where brokers know it",
    "queueId": "queue of rows that have none of their own; default: in turn",
    "brokerName": "broker of rows that have none of their own; default: in turn",
    "orderingKey": "as column orderingKey: rows with the same key go to the same queue, in order",
    "reservedProperties": "RocketMQ's own names in column properties: fail (default) or drop them",
    "producerGroup": "the producer group; default spark-rocketmq, transactional: the query's own",
    "namespace": "namespace of topics and group",
    "sendTimeoutMs": "longest time for a request and its tries together, default 120000",
    "schemaId": "id of a schema in a registry: bodies get Confluent's header with it before them",
    "messageIndexes": "with schemaId, of Protobuf: place of the message in its file, as 0 or 1,0",
    "maxMessageBytes": "largest body, as the brokers' maxMessageSize; default 4m",
    "batchBytes": "rows of a queue travel in batches of about so many bytes, default 256k",
    "inFlightBytes": "most bytes without an answer, for each broker in each task, default 8m",
    "transactional": "true: exactly once, by half messages; default false: at least once",
    "transactionLocation": "folder of the decisions; stream: default in the checkpoint",
    "transactionId": "batch, transactional: the name of this write; the same name writes once",
    **CONNECTION_OPTIONS,
}

PRODUCER_GROUP_DEFAULT = "spark-rocketmq"

SEND_TIMEOUT_MS_DEFAULT = 120_000
"""As ``delivery.timeout.ms`` of Kafka's producers."""

MESSAGE_BYTES_DEFAULT = 4 * 1024 * 1024
"""``maxMessageSize`` of brokers."""

MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024
"""Of a frame the rest is for the header."""

BATCH_BYTES_DEFAULT = 256 * 1024
IN_FLIGHT_BYTES_DEFAULT = 8 * 1024 * 1024
DELAY_LEVEL_MAX = 64
"""Brokers have 18 levels unless they are told otherwise (``messageDelayLevel``)."""

INT_MAX = 2**31 - 1
TRANSACTION_ID_CHARACTERS_MAX = 100
_CHECKPOINT, _PATH = "checkpointlocation", "path"
_DECISIONS = "kerolox-sink"
"""The folder of the decisions in a checkpoint."""

_QUERY = "{query}"
"""Stands in a location for the name of the query, which only tasks learn."""


class ReservedProperties(Enum):
    """The rule for RocketMQ's own names in column ``properties``."""

    FAIL = "fail"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The checked options of one write."""

    name_servers: tuple[str, ...]
    topic: str = ""
    tags: str = ""
    keys: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    deliver_time: int = 0
    """ms since 1970; 0: none."""
    queue_id: int | None = None
    broker_name: str = ""
    ordering_key: str | None = None
    reserved_properties: ReservedProperties = ReservedProperties.FAIL
    producer_group: str = ""
    """As brokers know it; empty: the default."""
    namespace: str = ""
    body_header: bytes = b""
    """Stands before each body."""
    send_timeout_ms: int = SEND_TIMEOUT_MS_DEFAULT
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    batch_bytes: int = BATCH_BYTES_DEFAULT
    in_flight_bytes: int = IN_FLIGHT_BYTES_DEFAULT
    transactional: bool = False
    location: str = ""
    """Where decisions are kept, as a path or URI; empty: nowhere."""
    transaction_id: str = ""
    credentials: Credentials | None = None
    tls: bool | TlsSettings = False

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
        """Check the options of a write; ConfigError: an unknown or missing option, or a value that
        its option can't have.
        """
        spark = {name.lower(): value for name, value in given.items()}
        if spark.get(_PATH):
            raise ConfigError(
                f"a path ({spark[_PATH]!r}) means nothing to format rocketmq; "
                "name the topic by option topic, and call save() or start() without a path"
            )
        values = OptionValues("rocketmq", OPTIONS, given, ignored=(_CHECKPOINT, _PATH))
        name_servers = values.name_servers()
        namespace = values.namespace()
        transaction = _transaction(values, spark.get(_CHECKPOINT, ""), is_stream=is_stream)
        return cls(
            name_servers=name_servers,
            topic=_topic(values, namespace),
            tags=_plain(values, "tags"),
            keys=_plain(values, "keys"),
            properties=_properties(values),
            flag=_signed(values, "flag"),
            delay_level=values.whole("delayLevel", maximum=DELAY_LEVEL_MAX) or 0,
            deliver_time=values.timestamp_ms("deliverTime") or 0,
            queue_id=values.whole("queueId", maximum=QUEUE_ID_MAX),
            broker_name=_plain(values, "brokerName"),
            ordering_key=_plain(values, "orderingKey") if "orderingKey" in values else None,
            reserved_properties=values.choice("reservedProperties", ReservedProperties.FAIL),
            producer_group=_group(values, namespace),
            namespace=namespace,
            body_header=_body_header(values),
            send_timeout_ms=values.wait_ms("sendTimeoutMs") or SEND_TIMEOUT_MS_DEFAULT,
            message_bytes_max=_sizes(values, "maxMessageBytes", MESSAGE_BYTES_DEFAULT),
            batch_bytes=_sizes(values, "batchBytes", BATCH_BYTES_DEFAULT),
            in_flight_bytes=values.byte_size("inFlightBytes") or IN_FLIGHT_BYTES_DEFAULT,
            transactional=transaction.is_on,
            location=transaction.location,
            transaction_id=transaction.name,
            credentials=values.credentials(),
            tls=values.tls(),
        )

    def folder_of(self, query: str) -> str:
        """Where the decisions of a query are kept."""
        return self.location.replace(_QUERY, query)

    def group_of(self, query: str) -> str:
        """The producer group: transactions of a query have one of their own, since any member of a
        group may be asked about its halves."""
        default = f"{PRODUCER_GROUP_DEFAULT}-{query}" if query else PRODUCER_GROUP_DEFAULT
        return self.producer_group or with_namespace(self.namespace, default)


def _body_header(values: OptionValues) -> bytes:
    """Confluent's, by the options ``schemaId`` and ``messageIndexes``; empty: there is none."""
    schema_id, places = values.whole("schemaId", maximum=ID_MAX), values.text("messageIndexes")
    if schema_id is None:
        if places:
            raise ConfigError("option messageIndexes needs schemaId")
        return b""
    if not places:
        return header(schema_id)
    try:
        return header(schema_id, [int(each) for each in places.split(",")])
    except ValueError:
        raise ConfigError(
            f"option messageIndexes is {quoted(places)}; it must be numbers, as in 0 or 1,0"
        ) from None


class _Transaction(NamedTuple):
    """What the options say of exactly once."""

    is_on: bool = False
    location: str = ""
    name: str = ""


def _transaction(values: OptionValues, checkpoint: str, *, is_stream: bool) -> _Transaction:
    transactional = values.boolean("transactional", default=False)
    location, name = values.text("transactionLocation"), values.text("transactionId")
    if not transactional:
        for option in ("transactionLocation", "transactionId"):
            if option in values:
                raise ConfigError(
                    f"option {option} is given, but not transactional=true; leave one of them out"
                )
        return _Transaction()
    if is_stream and name:
        raise ConfigError(
            "option transactionId is for batches; a stream is known by its checkpoint"
        )
    if is_stream and not location:
        if not checkpoint:
            raise ConfigError(
                "option transactional=true needs a place for its decisions: give option "
                "checkpointLocation to the query itself, or option transactionLocation"
            )
        location = f"{checkpoint.rstrip('/')}/{_DECISIONS}"
    elif location:
        location = f"{location.rstrip('/')}/{_QUERY}"
    for option in () if is_stream else ("transactionLocation", "transactionId"):
        if not values.text(option):
            raise ConfigError(
                f"option {option} is missing: a batch with transactional=true keeps its decision "
                "at transactionLocation, under the name transactionId"
            )
    if name:
        _check_transaction_id(name)
    check_path("transactionLocation", location)
    delayed = [option for option in ("delayLevel", "deliverTime") if option in values]
    if delayed:
        raise ConfigError(f"option {delayed[0]}: rows of a transaction can't be delayed")
    return _Transaction(True, location, name)


def _check_transaction_id(name: str) -> None:
    allowed = name.replace("-", "").replace("_", "").replace(".", "")
    if len(name) <= TRANSACTION_ID_CHARACTERS_MAX and allowed.isascii() and allowed.isalnum():
        return
    raise ConfigError(
        f"option transactionId={name!r:.120} must be 1 to {TRANSACTION_ID_CHARACTERS_MAX} letters, "
        "digits, '-', '_' or '.', with a letter or digit: it names a file"
    )


def _topic(values: OptionValues, namespace: str) -> str:
    topic = values.text("topic")
    if topic:
        with of_option("topic"):
            check_send_topic(with_namespace(namespace, topic))
    elif "topic" in values:
        raise ConfigError("option topic is empty; name a topic, or leave it out")
    return topic


def _group(values: OptionValues, namespace: str) -> str:
    group = with_namespace(namespace, values.text("producerGroup"))
    if group:
        with of_option("producerGroup"):
            check_producer_group(group)
    return group


def _plain(values: OptionValues, name: str) -> str:
    """A text of one property."""
    text = values.text(name)
    if not text.isprintable():
        raise ConfigError(
            f"option {name}={printable(text)!r} has a control character; leave it out"
        )
    _check_bytes(name, text)
    return text


def _check_bytes(name: str, text: str) -> None:
    """Refuse what no row could have in its properties."""
    size, most = len(text.encode()), PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE_BYTES
    if size > most:
        raise ConfigError(
            f"option {name} has {size} bytes; the properties of a message have {most} at most"
        )


def _signed(values: OptionValues, name: str) -> int:
    """A number of 32 bits, which may be negative."""
    text = values.text(name, "0")
    digits = text.removeprefix("-")
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 12 else 2**40
    if not -(2**31) <= number <= INT_MAX:
        raise ConfigError(f"option {name}={printable(text)!r} must be a whole number of 32 bits")
    return number


def _sizes(values: OptionValues, name: str, default: int) -> int:
    size = values.byte_size(name) or default
    if size > MESSAGE_BYTES_MAX:
        raise ConfigError(
            f"option {name} is {size} bytes; no frame holds more than {MESSAGE_BYTES_MAX}"
        )
    return size


def _properties(values: OptionValues) -> dict[str, str]:
    text = values.text("properties", "{}")
    example = '{"source":"spark"}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"option properties is no JSON ({error}); write {example}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"option properties is no object; write {example}")
    with of_option("properties"):
        Message("t", b"b", properties=found)
    for part in (*found, *found.values()):
        if not part.isprintable():
            raise ConfigError(f"option properties: {printable(part)!r} has a control character")
    _check_bytes("properties", encode_properties(found))
    return found
