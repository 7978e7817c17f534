"""What brokers, clients and operators send to a name server, with types.

Headers of the codes 100 to 106, 205, 206, 216, 219, 224, 304, 311 to 313, 318, 319, 322 and 327,
and the body of a registration, plain or compressed.

A compressed registration (``RegisterBrokerBody.encode(true)``) is a zlib stream of: int length +
DataVersion as JSON; int count of topics; per topic int length + text
``name readQueues writeQueues perm filterType``; int length + filter servers as a JSON array. The
text has no system flag and no order, so these are lost on that way.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from kerolox.protocol import fastjson
from kerolox.protocol.bodies import (
    LENIENT_BODY_BYTES_MAX,
    BodyError,
    DataVersion,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    encode_body,
)
from kerolox.protocol.headers import Header, Int32, Int64
from kerolox.protocol.names import Address, LongText, Name, TopicName  # noqa: TC001 - msgspec reads them

__all__ = [
    "ORDER_TOPIC_CONFIG",
    "BrokerAddressHeader",
    "BrokerNameHeader",
    "ClusterHeader",
    "DataVersionHeader",
    "DeleteTopicHeader",
    "KeyHeader",
    "KeyValueHeader",
    "NamespaceHeader",
    "RegisterBody",
    "RegisterHeader",
    "RouteHeader",
    "decode_registration",
    "encode_registration",
]

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-values that say how many queues of which brokers an ordered topic has."""

REGISTRATION_BYTES_MAX = 128 * 1024 * 1024
"""Largest inflated registration; about a million topics."""

_LENGTH = struct.Struct(">i")
_COMPRESSION_LEVEL = 9


class KeyValueHeader(Header, frozen=True, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: Name
    key: Name
    value: LongText


class KeyHeader(Header, frozen=True, kw_only=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: Name
    key: Name


class NamespaceHeader(Header, frozen=True, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: Name


class RegisterHeader(Header, frozen=True, kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    ha_server_addr: Address
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0


class BrokerAddressHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_BROKER (104)."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    broker_id: Int64


class RouteHeader(Header, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: TopicName
    accept_standard_json_only: bool = False


class BrokerNameHeader(Header, frozen=True, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: Name


class DeleteTopicHeader(Header, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: TopicName
    cluster_name: Name = ""


class ClusterHeader(Header, frozen=True, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: Name


class DataVersionHeader(Header, frozen=True, kw_only=True):
    """QUERY_DATA_VERSION (322)."""

    broker_name: Name
    broker_addr: Address
    cluster_name: Name
    broker_id: Int64


class RegisterBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of REGISTER_BROKER."""

    filter_server_list: list[str] | None = []
    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()


def encode_registration(body: RegisterBody, *, compressed: bool = False) -> bytes:
    """The body of REGISTER_BROKER as RocketMQ brokers send it."""
    if not compressed:
        return encode_body(body)
    table = body.topic_config_serialize_wrapper
    parts = [_sized(encode_body(table.data_version))]
    parts.append(_LENGTH.pack(len(table.topic_config_table)))
    for topic in table.topic_config_table.values():
        text = (
            f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
            f"{topic.perm} {topic.topic_filter_type}"
        )
        parts.append(_sized(text.encode()))
    parts.append(_sized(encode_body(body.filter_server_list or [])))
    return zlib.compress(b"".join(parts), _COMPRESSION_LEVEL)


def decode_registration(data: bytes, *, compressed: bool) -> RegisterBody:
    """Decode what :func:`encode_registration` gives.

    Raises:
        BodyError: it is malformed, or inflates beyond ``REGISTRATION_BYTES_MAX``.
    """
    if not compressed:
        return decode_body(data, RegisterBody, lenient_bytes_max=LENIENT_BODY_BYTES_MAX)
    reader = _Reader(_inflate(data))
    version = decode_body(
        reader.sized("data version"), DataVersion, lenient_bytes_max=LENIENT_BODY_BYTES_MAX
    )
    topics: dict[str, TopicConfig] = {}
    for _ in range(reader.count("topics")):
        topic = _topic_from_text(reader.sized("topic"))
        topics[topic.topic_name] = topic
    try:
        filter_servers = fastjson.loads(
            reader.sized("filter servers"), lenient_bytes_max=LENIENT_BODY_BYTES_MAX
        )
    except fastjson.FastjsonError as error:
        raise BodyError(f"the filter servers of the registration are no JSON: {error}") from None
    if not isinstance(filter_servers, list | None):
        raise BodyError("the filter servers of the registration are no list")
    return RegisterBody(
        filter_server_list=[str(each) for each in filter_servers or []],
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=version, topic_config_table=topics
        ),
    )


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, REGISTRATION_BYTES_MAX)
    except zlib.error as error:
        raise BodyError(f"the compressed registration is corrupt: {error}") from None
    if inflater.unconsumed_tail:
        raise BodyError(
            f"the compressed registration has over {REGISTRATION_BYTES_MAX} bytes; that is too much"
        )
    return inflated


def _topic_from_text(data: bytes) -> TopicConfig:
    text = data.decode("utf-8", "replace")
    try:
        name, read_queues, write_queues, perm, filter_type = text.split(" ")
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(read_queues),
            write_queue_nums=int(write_queues),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError:
        raise BodyError(
            f"the registration has a topic {text[:80]!r}; it must be "
            "'name readQueues writeQueues perm filterType'"
        ) from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self, what: str) -> int:
        end = self._position + _LENGTH.size
        if end > len(self._data):
            raise BodyError(f"the compressed registration ends before its {what}")
        (value,) = _LENGTH.unpack_from(self._data, self._position)
        self._position = end
        if not 0 <= value <= len(self._data):
            raise BodyError(f"the compressed registration gives {value} as length of its {what}")
        return int(value)

    def sized(self, what: str) -> bytes:
        size = self.count(what)
        end = self._position + size
        if end > len(self._data):
            raise BodyError(f"the compressed registration ends in the middle of its {what}")
        data = self._data[self._position : end]
        self._position = end
        return data
