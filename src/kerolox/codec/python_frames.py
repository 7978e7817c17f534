"""Frames of sends in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kerolox.message import ITEM_END, NAME_END, PropertyKey, encode_properties
from kerolox.protocol.codes import FRAME_BYTES_MAX, VERSION, LanguageCode, RequestCode
from kerolox.protocol.framing import LENGTHS
from kerolox.protocol.names import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.message import Message

_KEYS = f"{PropertyKey.KEYS}{NAME_END}"
_TAGS = f"{PropertyKey.TAGS}{NAME_END}"
_WAIT = f"{PropertyKey.WAIT}{NAME_END}"
_ID = f"{PropertyKey.UNIQUE_KEY}{NAME_END}"
_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


SHORT_TEXT_MAX = 256
"""Longest tags that are remembered, and longest keys that go with them, in characters."""

TAGS_MAX = 64
"""How many tags are remembered."""

_to_json = msgspec.json.Encoder().encode


class FrameHead:
    """What the headers of one producer's messages of one topic have in common."""

    __slots__ = ("_birth", "_head", "_middle", "_now_ms")

    def __init__(
        self,
        code: int,
        group: str,
        topic: str,
        create_topic_key: str,
        default_topic_queue_nums: int,
        unit_mode: bool,
        request_flag: int = 0,
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
        self._now_ms, self._birth = -1, ""
        unit = "true" if unit_mode else "false"
        batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
        self._middle = (
            f'","j":"0","k":"{unit}","m":"{batch}"}},"flag":{request_flag},'
            f'"language":"{LanguageCode.PYTHON.name}","opaque":'
        )

    def start(self, queue_id: int) -> str:
        """What the headers of one queue's messages begin with: up to the time of birth."""
        return f'{self._head}{queue_id}","f":"0","g":"'

    def message(
        self, start: str, opaque: int, now_ms: int, message_id: str, keys: str, message: Message
    ) -> bytes | None:
        """The request of a message; None: it can't be made here.

        Args:
            start: that of its queue.
            opaque: the id of the request.
            now_ms: the time of birth.
            message_id: its id.
            keys: its keys, as one text.
            message: all else.

        Raises:
            UnicodeEncodeError: it has half of a surrogate pair.
        """
        tags, wait, flag = message.tags, message.wait_store_ok, message.flag
        rests = _RESTS if wait else _RESTS_NO_WAIT
        if (
            message.properties
            or type(tags) is not str
            or (rest := rests.get(tags) or _remembered(rests, tags, wait)) is None
            # As long as itself, but for the quotes, is only what JSON writes as it is.
            or len(_to_json(keys)) != len(keys) + 2
            or len(keys) > SHORT_TEXT_MAX
        ):
            text = property_text(message_id, keys, tags, wait, message.properties)
            if text is None:
                return None
            return self.frame(start, opaque, now_ms, flag, json_text(text), message.body)
        if now_ms != self._now_ms:  # many messages are born in one millisecond
            self._now_ms, self._birth = now_ms, f'{now_ms}","h":"0","i":"'
        birth = f'{now_ms}","h":"{flag}","i":"' if flag else self._birth
        first = _JSON_KEYS if keys else ""
        if not keys:
            rest = rest[len(_JSON_ITEM_END) :]
        header = f"{start}{birth}{first}{keys}{rest}{message_id}{self._middle}{opaque}{_TAIL}"
        return _framed(header.encode(), message.body)

    def frame(
        self, start: str, opaque: int, now_ms: int, flag: int, properties: str, body: bytes
    ) -> bytes | None:
        """A request whose properties are ready (:func:`json_text`); None: no frame holds it."""
        header = f'{start}{now_ms}","h":"{flag}","i":"{properties}{self._middle}{opaque}{_TAIL}'
        return _framed(header.encode(), body)


def _framed(header: bytes, body: bytes) -> bytes | None:
    """The frame of both; None: it would be too long."""
    header_size = len(header)
    size = 4 + header_size + len(body)
    if size > FRAME_BYTES_MAX:
        return None
    return LENGTHS.pack(size, header_size) + header + body


def json_text(text: str) -> str:
    """The content of a text as JSON has it, between its quotes.

    Raises:
        UnicodeEncodeError: it has half of a surrogate pair.
    """
    return _to_json(text)[1:-1].decode()


_JSON_KEYS = json_text(_KEYS)
_JSON_ITEM_END = json_text(ITEM_END)


def wait_text(wait: bool) -> str:
    """The property text of a batch itself."""
    return f"{_WAIT}{'true' if wait else 'false'}"


def property_text(
    message_id: str, keys: str, tags: str, wait: bool, properties: Mapping[str, str]
) -> str | None:
    """The property text of a message; None: it would be read as others, or is too long."""
    if properties:
        wire = dict(properties)
        if keys:
            wire[PropertyKey.KEYS] = keys
        if tags:
            wire[PropertyKey.TAGS] = tags
        wire[PropertyKey.WAIT] = "true" if wait else "false"
        wire[PropertyKey.UNIQUE_KEY] = message_id
        text, count = encode_properties(wire), len(wire)
    else:
        rest = f"{_rest(tags, wait)}{message_id}"
        text = f"{_KEYS}{keys}{ITEM_END}{rest}" if keys else rest
        count = 2 + bool(keys) + bool(tags)
    if text.count(NAME_END) != count or text.count(ITEM_END) != count - 1:
        return None
    # No character has more than four bytes.
    return text if len(text) <= PROPERTIES_BYTES_MAX // 4 else None


def _rest(tags: str, wait: bool) -> str:
    """The property text of a message without properties of users, behind its keys, up to its id."""
    rest = f"{wait_text(wait)}{ITEM_END}{_ID}"
    return f"{_TAGS}{tags}{ITEM_END}{rest}" if tags else rest


_RESTS: dict[str, str] = {}
"""By tags: the same behind keys, as JSON has it."""
_RESTS_NO_WAIT: dict[str, str] = {}


def _remembered(rests: dict[str, str], tags: str, wait: bool) -> str | None:
    """Remember what follows on the keys of messages with these tags; None: they are too odd."""
    if len(tags) > SHORT_TEXT_MAX or NAME_END in tags or ITEM_END in tags:
        return None
    if len(rests) >= TAGS_MAX:
        rests.clear()
    rest = rests[tags] = json_text(f"{ITEM_END}{_rest(tags, wait)}")
    return rest
