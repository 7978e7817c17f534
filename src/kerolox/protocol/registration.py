"""The body of REGISTER_BROKER (103): written whole, read in small pieces.

Plain it is the JSON of :class:`RegisterBody`; from a broker before 3.0.11 that of its topics only.
Compressed (``RegisterBrokerBody.encode(true)``) it is a zlib stream of: int length + DataVersion as
JSON; int count of topics; per topic int length + text ``name readQueues writeQueues perm
filterType``; int length + filter servers as a JSON array. The text has no system flag and no order,
so these are lost on that way. A 5.x broker puts the topic's attributes behind the filter type, and
maps of queues behind the filter servers, which mean nothing to 4.x clients; and it says of a
compressed body that it is not, so the first byte tells. Here no attributes are written there: a
name server of 4.9 takes a text of five parts alone.

A body of tens of thousands of topics takes a name server long, and one of 32 KB may inflate to
32 MB. So :class:`RegistrationReader` inflates and decodes piece by piece, keeps none of them, and
may be asked for them again.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

import msgspec

from kerolox.protocol import fastjson
from kerolox.protocol.bodies import (
    BodyError,
    DataVersion,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    encode_body,
)
from kerolox.protocol.names import NAME_BYTES_MAX, length_fault

TOPICS_MAX = 200_000
"""Topics that a broker has, and that a registration may name."""

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
"""Largest inflated registration: ``TOPICS_MAX`` topics whose names are as long as they may be."""

PIECE_TOPICS = 64
PIECE_BYTES = 64 * 1024
"""A piece has at most so many topics and, inflated, some more than so many bytes."""

TEXT_BYTES_MAX = 64 * 1024
"""Longest name, number or topic in a registration."""

LENIENT_BYTES_MAX = 4 * 1024
"""Longest part that is read where it is no ordinary JSON."""

FILTER_SERVERS_MAX = 64

MEMBERS_MAX = 64
"""Members of a registration beside its topics; a 5.x broker sends six."""

PASSED_MAX = 1_000_000
"""Names, values and marks in members that mean nothing here, all together."""

_DEPTH_MAX = 64
_TOKENS_PER_PIECE = 256
_SLICE_BYTES = 4 * 1024
"""Compressed bytes that are given to the inflater at once."""

_LENGTH = struct.Struct(">i")
_COMPRESSION_LEVEL = 9
_ZLIB = b"\x78"
"""The first byte of a zlib stream; no JSON begins with it."""

_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(rb"\s*+(?:[{}\[\]:,]|" + _TEXT + rb'|[^\s{}\[\]:,"]++)', re.DOTALL)
_SPACE = re.compile(rb"\s*+")
_FLAT = rb'[^{}"\[\]]++|' + _TEXT
_TOPIC = re.compile(rb"\s*+(\{(?:" + _FLAT + rb"|\{(?:" + _FLAT + rb")*+\})*+\})", re.DOTALL)
"""A map without lists, and with nothing inside the maps in it."""
_PLAIN_TEXT = rb'"[^"\\{}]*+"'
_PLAIN = rb'[^{}"\[\]]++|' + _PLAIN_TEXT
_RUN = re.compile(
    rb"(?:\s*+%b\s*+:\s*+\{(?:%b|\{(?:%b)*+\})*+\}\s*+,){1,%d}+"
    % (_PLAIN_TEXT, _PLAIN, _PLAIN, PIECE_TOPICS)
)
"""Members that are followed by another, each a map without lists or escaped texts, and without maps
in the maps in it."""

_decode_topic = msgspec.json.Decoder(TopicConfig, strict=False).decode
_decode_topics = msgspec.json.Decoder(dict[str, TopicConfig], strict=False).decode


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


class RegistrationReader:
    """Reads the body of a registration piece by piece, as often as it is asked to. When all pieces
    were read it knows ``data_version``, of the topics, and ``filter_servers``.
    """

    def __init__(self, body: bytes, *, compressed: bool, is_wrapped: bool = True) -> None:
        """``is_wrapped``: False for a broker before 3.0.11, which sends its topics only."""
        self.data_version = DataVersion()
        self.filter_servers: list[str] | None = [] if is_wrapped else None
        self._body = body
        self._is_wrapped = is_wrapped
        self._is_compressed = is_wrapped and (compressed or body[:1] == _ZLIB)

    def pieces(self) -> Iterator[list[TopicConfig]]:
        """The topics, some at a time; a piece without any is a step on the way. BodyError: the body
        is malformed, a name too long, or there is too much of something.
        """
        if not self._body:
            return
        count = 0
        for piece in self._compressed() if self._is_compressed else self._plain():
            count += len(piece)
            if count > TOPICS_MAX:
                raise BodyError(f"the registration has more than {TOPICS_MAX} topics")
            yield piece

    # -- compressed ---------------------------------------------------------------------------
    def _compressed(self) -> Iterator[list[TopicConfig]]:
        stream = _Inflated(self._body)
        self._set_data_version(stream.sized("data version"))
        yield []
        piece: list[TopicConfig] = []
        size = 0
        for _ in range(stream.number("topics", TOPICS_MAX)):
            text = stream.sized("topic")
            piece.append(_topic_from_text(text))
            size += len(text)
            if len(piece) >= PIECE_TOPICS or size >= PIECE_BYTES:
                yield piece
                piece, size = [], 0
        yield piece
        self._set_filter_servers(stream.sized("filter servers"))

    # -- plain --------------------------------------------------------------------------------
    def _plain(self) -> Iterator[list[TopicConfig]]:
        text = _Json(self._body, "RegisterBody" if self._is_wrapped else "TopicConfigTable")
        if self._is_wrapped:
            for key in text.members(MEMBERS_MAX):
                if key == "topicConfigSerializeWrapper":
                    yield from self._wrapper(text)
                else:
                    begin = text.position
                    yield from text.skip()
                    if key == "filterServerList":
                        self._set_filter_servers(self._body[begin : text.position])
        else:
            yield from self._wrapper(text)
        text.end()

    def _wrapper(self, text: _Json) -> Iterator[list[TopicConfig]]:
        for key in text.members(MEMBERS_MAX):
            if key == "topicConfigTable":
                yield from self._table(text)
            else:
                begin = text.position
                yield from text.skip()
                if key == "dataVersion":
                    self._set_data_version(self._body[begin : text.position])

    def _table(self, text: _Json) -> Iterator[list[TopicConfig]]:
        text.open()
        # What brokers send is runs of ordinary members; all else is taken member by member.
        passed = b"{"
        while run := text.run():
            passed = b","
            yield [_checked(topic) for topic in run]
        piece: list[TopicConfig] = []
        begin = text.position
        for key in text.members(TOPICS_MAX, passed=passed):
            topic = text.flat_map()
            if topic is None:
                topic_begin = text.position
                for step in text.skip():
                    yield step
                    if text.position - topic_begin > TEXT_BYTES_MAX:
                        raise BodyError(f"topicConfigTable: {key[:80]!r} is too long")
                topic = self._body[topic_begin : text.position]
            piece.append(_topic_from_json(topic, key))
            if len(piece) >= PIECE_TOPICS or text.position - begin >= PIECE_BYTES:
                yield piece
                piece, begin = [], text.position
        yield piece

    # -- both ---------------------------------------------------------------------------------
    def _set_data_version(self, data: bytes) -> None:
        if len(data) > TEXT_BYTES_MAX:
            raise BodyError(f"the registration's data version has {len(data)} bytes")
        self.data_version = decode_body(data, DataVersion, lenient_bytes_max=LENIENT_BYTES_MAX)

    def _set_filter_servers(self, data: bytes) -> None:
        what = "the filter servers of the registration"
        if len(data) > TEXT_BYTES_MAX:
            raise BodyError(f"{what} have {len(data)} bytes")
        try:
            servers = fastjson.loads(data, lenient_bytes_max=LENIENT_BYTES_MAX)
        except fastjson.FastjsonError as error:
            raise BodyError(f"{what} are no JSON: {error}") from None
        if not isinstance(servers, list | None):
            raise BodyError(f"{what} are no list")
        if servers is not None:
            servers = [str(each) for each in servers]
            self._check_filter_servers(servers, what)
        self.filter_servers = servers

    def _check_filter_servers(self, servers: list[str], what: str) -> None:
        if len(servers) > FILTER_SERVERS_MAX:
            raise BodyError(f"{what} are {len(servers)}; at most {FILTER_SERVERS_MAX} are taken")
        for each in servers:
            fault = length_fault("filter server", each)
            if fault is not None:
                raise BodyError(fault)


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _topic_from_text(data: bytes) -> TopicConfig:
    text = data.decode("utf-8", "replace")
    try:
        name, read_queues, write_queues, perm, filter_type, *_attributes = text.split(" ", 5)
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=_int32(read_queues),
            write_queue_nums=_int32(write_queues),
            perm=_int32(perm),
            topic_filter_type=filter_type,
        )
    except ValueError:
        raise BodyError(
            f"the registration has a topic {text[:80]!r}; it must be "
            "'name readQueues writeQueues perm filterType'"
        ) from None
    return _checked(topic)


def _int32(text: str) -> int:
    # The length first: a number of many digits takes long.
    if len(text) > 11 or not -(1 << 31) <= (value := int(text)) < 1 << 31:
        raise ValueError(text[:80])
    return value


def _topic_from_json(data: bytes, key: str) -> TopicConfig:
    try:
        topic = _decode_topic(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if len(data) > LENIENT_BYTES_MAX:
            raise BodyError(f"topicConfigTable: {key[:80]!r}: {error}") from None
        try:
            topic = decode_body(data, TopicConfig, lenient_bytes_max=LENIENT_BYTES_MAX)
        except BodyError as again:
            raise BodyError(f"topicConfigTable: {key[:80]!r}: {again}") from None
    return _checked(topic)


def _checked(topic: TopicConfig) -> TopicConfig:
    name = topic.topic_name
    if len(name) * 4 > NAME_BYTES_MAX:
        fault = length_fault("topic", name, is_topic=True)
        if fault is not None:
            raise BodyError(fault)
    if not name:
        raise BodyError("the registration has a topic without a name")
    return topic


class _Inflated:
    """A zlib stream of sized parts, of which only the next ones are kept."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._inflater = zlib.decompressobj()
        self._tail = b""
        self._buffer = bytearray()
        self._position = 0
        self._total = 0

    def number(self, what: str, most: int) -> int:
        """An int of 0 to ``most``."""
        (value,) = _LENGTH.unpack(self._take(_LENGTH.size, what, "before"))
        if not 0 <= value <= most:
            raise BodyError(f"the compressed registration gives {value} as length of its {what}")
        return int(value)

    def sized(self, what: str) -> bytes:
        """A part behind its length."""
        return self._take(self.number(what, TEXT_BYTES_MAX), what, "in the middle of")

    def _take(self, size: int, what: str, where: str) -> bytes:
        while len(self._buffer) - self._position < size:
            if not self._inflate():
                raise BodyError(f"the compressed registration ends {where} its {what}")
        begin = self._position
        self._position += size
        return bytes(self._buffer[begin : self._position])

    def _inflate(self) -> bool:
        """Inflate some more; False at the end."""
        if self._inflater.eof:
            return False
        if not self._tail:
            self._tail = self._data[self._at : self._at + _SLICE_BYTES]
            self._at += len(self._tail)
        is_last = not self._tail
        try:
            more = self._inflater.decompress(self._tail, PIECE_BYTES)
        except zlib.error as error:
            raise BodyError(f"the compressed registration is corrupt: {error}") from None
        if is_last and not more:
            return False
        self._tail = self._inflater.unconsumed_tail
        self._total += len(more)
        if self._total > REGISTRATION_BYTES_MAX:
            raise BodyError(
                f"the compressed registration has over {REGISTRATION_BYTES_MAX} bytes; that is too "
                "much"
            )
        del self._buffer[: self._position]
        self._position = 0
        self._buffer += more
        return True


class _Json:
    """Walks through the text of a map, member by member, without making anything of what it
    passes. Bare keys are read as fastjson reads them."""

    def __init__(self, text: bytes, what: str) -> None:
        self.position = 0
        self._text = text
        self._what = what
        self._passed = 0

    def open(self) -> None:
        """Pass the start of the map that comes."""
        self._expect(b"{")

    def run(self) -> list[TopicConfig]:
        """The next topics of an open map, decoded at once; empty where that can't be done, or where
        the last one follows."""
        match = _RUN.match(self._text, self.position, self.position + PIECE_BYTES)
        if match is None:
            return []
        members = match.group()
        try:
            topics = _decode_topics(b"{%b}" % members[:-1])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []
        inner = members.count(b"{") - len(topics)
        if inner and inner != sum(each.attributes is not None for each in topics.values()):
            return []
        self.position = match.end()
        return list(topics.values())

    def members(self, most: int, *, passed: bytes = b"") -> Iterator[str]:
        """The keys of the map that comes; whoever gets one moves ``position`` behind its value.
        ``passed``: the map's brace, or a comma in it, where the caller is behind that."""
        if not passed:
            self.open()
        token = self._token()
        if token == b"}" and passed != b",":
            return
        for _ in range(most):
            yield self._key(token)
            token = self._token()
            if token == b"}":
                return
            if token != b",":
                raise self._error("',' or '}' is missing")
            token = self._token()
        raise self._error(f"a map has more than {most} members")

    def flat_map(self) -> bytes | None:
        """The map that comes, if it is a simple one."""
        match = _TOPIC.match(self._text, self.position, self.position + TEXT_BYTES_MAX)
        if match is None:
            return None
        self.position = match.end()
        return match[1]

    def skip(self) -> Iterator[list[TopicConfig]]:
        """Pass the value that comes, in steps."""
        depth = count = 0
        mark = self.position
        while True:
            token = self._token()
            if token in (b"{", b"["):
                depth += 1
                if depth > _DEPTH_MAX:
                    raise self._error(f"nested deeper than {_DEPTH_MAX}")
            elif token in (b"}", b"]"):
                depth -= 1
            elif not depth and token in (b",", b":"):
                raise self._error("a value is missing")
            if depth < 0:
                raise self._error("a value is missing")
            if not depth:
                return
            count += 1
            self._passed += 1
            if self._passed > PASSED_MAX:
                raise self._error(f"it has more than {PASSED_MAX} parts that mean nothing")
            if not count % _TOKENS_PER_PIECE or self.position - mark >= PIECE_BYTES:
                mark = self.position
                yield []

    def end(self) -> None:
        """Nothing but space may follow."""
        match = _SPACE.match(self._text, self.position, self.position + TEXT_BYTES_MAX)
        if match is None or match.end() != len(self._text):
            raise self._error("text after the value")

    def _key(self, token: bytes) -> str:
        try:
            if token[:1] != b'"':
                key = str(token, "utf-8")
            elif b"\\" in token:
                key = msgspec.json.decode(token, type=str)
            else:
                key = str(token[1:-1], "utf-8")
        except (UnicodeDecodeError, msgspec.DecodeError) as error:
            raise self._error(str(error)) from None
        if key in ("{", "}", "[", "]", ":", ","):
            raise self._error("a name is missing")
        self._expect(b":")
        return key

    def _expect(self, wanted: bytes) -> None:
        if self._token() != wanted:
            raise self._error(f"expected {wanted.decode()!r}")

    def _token(self) -> bytes:
        match = _TOKEN.match(self._text, self.position, self.position + TEXT_BYTES_MAX)
        if match is None:
            if self.position + TEXT_BYTES_MAX < len(self._text):
                raise self._error(f"a text is longer than {TEXT_BYTES_MAX}")
            raise self._error("it ends in the middle of a value")
        self.position = match.end()
        return match.group().lstrip()

    def _error(self, reason: str) -> BodyError:
        return BodyError(f"the body is no {self._what}: {reason} at byte {self.position}")
