"""Headers of the fast answers, in both encodings, byte for byte the same as the native kernel's.

The parts that change from answer to answer are three or four numbers; everything else is rendered
once into a template for bytes formatting. Fields stand in the order of their names, as
RocketMQ's JSON library writes the members of an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from kerolox.kernel.status import GetMessageStatus
from kerolox.message import ITEM_END, NAME_END, PropertyKey
from kerolox.protocol.codes import FLAG_RESPONSE, VERSION, LanguageCode, SerializeType
from kerolox.protocol.framing import LENGTHS
from kerolox.protocol.names import DEFAULT_REGION, NAME_BYTES_MAX

JSON = int(SerializeType.JSON)
BINARY = int(SerializeType.ROCKETMQ)

_FIXED = Struct(">hbhiii")
_INT = Struct(">i")

_LANGUAGE = int(LanguageCode.PYTHON)

_JSON_END = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
_JSON_PULL = (
    b'{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d"},"flag":1,"language":"PYTHON","opaque":%d,"remark":"%b"'
    + _JSON_END
)
_REGION = PropertyKey.MSG_REGION.encode()
_TRACE_ON = PropertyKey.TRACE_ON.encode()
_JSON_REGION = b'{"code":0,"extFields":{"%b":"' % _REGION
_JSON_TRACE_ON = b'","%b":"' % _TRACE_ON
_JSON_OK = b'{"code":0,'
_JSON_FIELDS_END = b'"},'
_ITEM_END = ITEM_END.encode()
_UNIQUE_KEY = (PropertyKey.UNIQUE_KEY + NAME_END).encode()

_REMARKS = {int(status): status.name.encode() for status in GetMessageStatus}

JSON_PREFIXES = [LENGTHS.pack(4 + size, size) for size in range(1_024)]
"""What stands before a JSON header of that length in a frame without a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this broker is, as records and answers say it."""

    cluster: str = "DefaultCluster"
    region: str = DEFAULT_REGION
    trace_on: bool = True
    store_host: bytes = bytes(8)
    broker_id: int = 0

    def trace_text(self) -> bytes:
        """The value of TRACE_ON."""
        return b"true" if self.trace_on else b"false"


def json_send_template(identity: Identity, queue_id: int, *, batch: bool) -> bytes:
    """A template for ``template % (where, queue offset, opaque)``.

    ``where`` is the physical offset, or with ``batch`` the text of all message ids.
    """
    message_id = b"%b" if batch else identity.store_host.hex().upper().encode() + b"%016X"
    region = _json_text(identity.region).replace(b"%", b"%%")
    return b"".join(
        (
            _JSON_REGION + region,
            _JSON_TRACE_ON + identity.trace_text(),
            b'","msgId":"' + message_id,
            b'","queueId":"%d","queueOffset":"%%d"' % queue_id,
            b'},"flag":1,"language":"PYTHON","opaque":%d' + _JSON_END,
        )
    )


def json_pull_header(
    code: int, offsets: tuple[int, int, int], suggested: int, opaque: int, status: int
) -> bytes:
    """Header of a pull answer; ``offsets`` are the largest, the smallest and the next one."""
    return _JSON_PULL % (code, *offsets, suggested, opaque, _REMARKS[status])


def message_ids(identity: Identity, physical_offsets: list[int]) -> bytes:
    """Server message ids of records (store host and physical offset in hex), comma-joined."""
    host = identity.store_host.hex().upper().encode()
    return b",".join([b"%b%016X" % (host, offset) for offset in physical_offsets])


def unique_key(stored: bytes) -> bytes:
    """What the answer to a half message says of its transaction: UNIQ_KEY of its property text;
    b"": it has none, or none that is short enough for an id. A handle to take a message back has
    it, too."""
    for item in stored.split(_ITEM_END):
        if item.startswith(_UNIQUE_KEY):
            key = item[len(_UNIQUE_KEY) :]
            return key if len(key) <= NAME_BYTES_MAX else b""
    return b""


def with_member(header: bytes, name: str, value: bytes) -> bytes:
    """A JSON header of a send answer, with one member more; ``value`` may be empty: without."""
    if not value:
        return header
    # What follows the fields has no other such end; a text among them may.
    fields, _, rest = header.rpartition(_JSON_FIELDS_END)
    text = _json_text(value.decode())
    return fields + b'","' + name.encode() + b'":"' + text + _JSON_FIELDS_END + rest


def binary_send_header(
    identity: Identity,
    queue_id: int,
    ids: bytes,
    queue_offset: int,
    opaque: int,
    name: str = "",
    value: bytes = b"",
) -> bytes:
    """Header of a send answer in the ROCKETMQ encoding, with one member more unless ``value`` is
    empty."""
    fields: tuple[tuple[bytes, bytes], ...] = (
        (_REGION, identity.region.encode()),
        (_TRACE_ON, identity.trace_text()),
        (b"msgId", ids),
        (b"queueId", b"%d" % queue_id),
        (b"queueOffset", b"%d" % queue_offset),
    )
    if value:
        fields = (*fields, (name.encode(), value))
    return _binary_header(0, opaque, b"", fields)


def binary_pull_header(
    code: int, offsets: tuple[int, int, int], suggested: int, opaque: int, status: int
) -> bytes:
    """As :func:`json_pull_header`, in the ROCKETMQ encoding."""
    names = (b"maxOffset", b"minOffset", b"nextBeginOffset", b"suggestWhichBrokerId")
    values = (*offsets, suggested)
    fields = tuple((name, b"%d" % value) for name, value in zip(names, values, strict=True))
    return _binary_header(code, opaque, _REMARKS[status], fields)


def with_code(header: bytes, serialize_type: int, code: int) -> bytes:
    """The same answer to a send that was stored, with another code."""
    if not code:
        return header
    if serialize_type == JSON:
        return b'{"code":%d,' % code + header[len(_JSON_OK) :]
    return code.to_bytes(2, "big") + header[2:]


def _binary_header(
    code: int, opaque: int, remark: bytes, fields: tuple[tuple[bytes, bytes], ...]
) -> bytes:
    entries = b"".join(
        len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value
        for name, value in fields
    )
    fixed = _FIXED.pack(code, _LANGUAGE, VERSION, opaque, FLAG_RESPONSE, len(remark))
    return fixed + remark + _INT.pack(len(entries)) + entries


def _json_text(text: str) -> bytes:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(
        character if character >= " " else f"\\u{ord(character):04x}" for character in escaped
    ).encode()
