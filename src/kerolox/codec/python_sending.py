"""The codec of sends in Python: the complete twin of the native one, and its oracle."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from kerolox.codec.sending import PLAIN_HEADER_BYTES_MAX
from kerolox.errors import RemoteProtocolError
from kerolox.message import ITEM_END, NAME_END, PropertyKey, encode_properties
from kerolox.protocol.codes import (
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from kerolox.protocol.framing import LENGTHS, FrameDecoder
from kerolox.protocol.names import DEFAULT_REGION, PROPERTIES_BYTES_MAX, Int32
from kerolox.protocol.records import encode_batch

if TYPE_CHECKING:
    from kerolox.codec.sending import SendAnswer

_HEADER_WORD = struct.Struct(">I")
_KEYS = f"{PropertyKey.KEYS}{NAME_END}"
_TAGS = f"{PropertyKey.TAGS}{NAME_END}"
_WAIT = f"{PropertyKey.WAIT}{NAME_END}"
_ID = f"{ITEM_END}{PropertyKey.UNIQUE_KEY}{NAME_END}"
_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


class _Fields(msgspec.Struct):
    """The members of an answer to a send; all others have no meaning."""

    queueId: str
    msgId: str
    queueOffset: str
    region: str = msgspec.field(default="", name=PropertyKey.MSG_REGION)
    trace_on: str = msgspec.field(default="", name=PropertyKey.TRACE_ON)


class _Answer(msgspec.Struct):
    code: Int32
    opaque: Int32
    flag: Int32
    extFields: _Fields
    language: str | int | None = None
    version: Int32 = 0
    remark: str | None = None


_to_json = msgspec.json.Encoder().encode
_read_answer = msgspec.json.Decoder(_Answer).decode


class _Head:
    """What the headers of one producer's messages of one topic have in common."""

    __slots__ = ("_head", "_middle")

    def __init__(
        self,
        code: int,
        group: str,
        topic: str,
        create_topic_key: str,
        default_topic_queue_nums: int,
        unit_mode: bool,
    ) -> None:
        fields = {
            "a": group,
            "b": topic,
            "c": create_topic_key,
            "d": str(default_topic_queue_nums),
            "e": "",
        }
        text = _to_json(fields).decode()
        self._head = f'{{"code":{code},"extFields":{text[:-2]}'
        unit = "true" if unit_mode else "false"
        batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
        self._middle = (
            f',"j":"0","k":"{unit}","m":"{batch}"}},"flag":0,'
            f'"language":"{LanguageCode.PYTHON.name}","opaque":'
        )

    def frame(
        self, queue_id: int, opaque: int, now_ms: int, flag: int, properties: str, body: bytes
    ) -> bytes | None:
        try:
            quoted = _to_json(properties)
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        head = f'{self._head}{queue_id}","f":"0","g":"{now_ms}","h":"{flag}","i":'.encode()
        tail = f"{self._middle}{opaque}{_TAIL}".encode()
        header_size = len(head) + len(quoted) + len(tail)
        size = 4 + header_size + len(body)
        if size > FRAME_BYTES_MAX:
            return None
        return b"".join((LENGTHS.pack(size, header_size), head, quoted, tail, body))


class SendEncoder:
    """Makes the frames of one producer's messages of one topic."""

    def __init__(
        self,
        group: str,
        topic: str,
        create_topic_key: str,
        default_topic_queue_nums: int,
        unit_mode: bool,
    ) -> None:
        common = (group, topic, create_topic_key, default_topic_queue_nums, unit_mode)
        self._single = _Head(RequestCode.SEND_MESSAGE_V2, *common)
        self._batch = _Head(RequestCode.SEND_BATCH_MESSAGE, *common)

    def encode(
        self,
        queue_id: int,
        opaque: int,
        now_ms: int,
        message_id: str,
        body: bytes,
        keys: str,
        tags: str,
        wait: bool,
        flag: int,
        properties: Mapping[str, str],
    ) -> bytes | None:
        """A SEND_MESSAGE_V2 request, or None; see :class:`kerolox.codec.sending.SendEncoder`."""
        text = _property_text(message_id, keys, tags, wait, properties)
        if text is None:
            return None
        return self._single.frame(queue_id, opaque, now_ms, flag, text, body)

    def item(
        self,
        message_id: str,
        body: bytes,
        keys: str,
        tags: str,
        wait: bool,
        flag: int,
        properties: Mapping[str, str],
    ) -> bytes | None:
        """A message as it lies in a batch, or None."""
        text = _property_text(message_id, keys, tags, wait, properties)
        if text is None:
            return None
        try:
            return encode_batch([(flag, body, text.encode())])
        except (UnicodeEncodeError, struct.error):  # half of a surrogate pair; no flag
            return None

    def batch(
        self, queue_id: int, opaque: int, now_ms: int, wait: bool, items: list[bytes]
    ) -> bytes | None:
        """A SEND_BATCH_MESSAGE request of items, or None."""
        text = f"{_WAIT}{'true' if wait else 'false'}"
        return self._batch.frame(queue_id, opaque, now_ms, 0, text, b"".join(items))


def _property_text(
    message_id: str, keys: str, tags: str, wait: bool, properties: Mapping[str, str]
) -> str | None:
    """The property text of a message; None: it would be read as others, or is too long."""
    word = "true" if wait else "false"
    if properties:
        wire = dict(properties)
        if keys:
            wire[PropertyKey.KEYS] = keys
        if tags:
            wire[PropertyKey.TAGS] = tags
        wire[PropertyKey.WAIT] = word
        wire[PropertyKey.UNIQUE_KEY] = message_id
        text, count = encode_properties(wire), len(wire)
    elif keys:
        if tags:
            text = f"{_KEYS}{keys}{ITEM_END}{_TAGS}{tags}{ITEM_END}{_WAIT}{word}{_ID}{message_id}"
            count = 4
        else:
            text, count = f"{_KEYS}{keys}{ITEM_END}{_WAIT}{word}{_ID}{message_id}", 3
    elif tags:
        text, count = f"{_TAGS}{tags}{ITEM_END}{_WAIT}{word}{_ID}{message_id}", 3
    else:
        text, count = f"{_WAIT}{word}{_ID}{message_id}", 2
    if text.count(NAME_END) != count or text.count(ITEM_END) != count - 1:
        return None
    # No character has more than four bytes.
    return text if len(text) <= PROPERTIES_BYTES_MAX // 4 else None


class SendDecoder:
    """Cuts the bytes of one connection, and reads answers to sends."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()

    def feed(
        self, data: bytearray, size: int, sends: Mapping[int, object]
    ) -> tuple[list[SendAnswer], list[bytes], str | None]:
        """Take ``data[:size]``; see :class:`kerolox.codec.sending.SendDecoder`."""
        answers: list[SendAnswer] = []
        try:
            with memoryview(data) as buffer, buffer[:size] as view:
                frames = self._decoder.feed(view)
        except RemoteProtocolError as error:
            return answers, [], str(error)
        reason = None if self._decoder.error is None else str(self._decoder.error)
        if not sends:
            return answers, frames, reason
        others: list[bytes] = []
        for frame in frames:
            answer = _plain_answer(frame)
            if answer is not None and answer[0] in sends:
                answers.append(answer)
            else:
                others.append(frame)
        return answers, others, reason


def _plain_answer(frame: bytes) -> SendAnswer | None:
    """What an answer says that stored a message; None: the frame is anything else."""
    (header_size,) = _HEADER_WORD.unpack_from(frame)
    if header_size > PLAIN_HEADER_BYTES_MAX:  # or another encoding than JSON
        return None
    try:
        header = _read_answer(frame[4 : 4 + header_size])
        fields = header.extFields
        queue_id, queue_offset = int(fields.queueId), int(fields.queueOffset)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    if header.code != ResponseCode.SUCCESS or not header.flag & FLAG_RESPONSE:
        return None
    return (
        header.opaque,
        queue_id,
        queue_offset,
        fields.msgId,
        fields.region or DEFAULT_REGION,
        fields.trace_on != "false",
    )
