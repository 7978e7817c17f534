"""Headers of the fast requests: parsed when they look as clients write them, refused otherwise.

``parse_json`` and ``parse_binary`` raise one of ``NOT_FAST`` when anything is unusual: an unknown
member, a value of another type, a missing required field. Such a frame is *slow*: the handler in
Python reads it again and decides. Texts stay texts here; what they mean (numbers, flags) is judged
where the answer can be kept for the next header.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.headers import SEND_LONG_NAMES
from kerolox.protocol.names import (
    ACCESS_KEY_FIELD,
    NAME_BYTES_MAX,
    ONS_CHANNEL_FIELD,
    REQUEST_TYPE_FIELD,
    SECURITY_TOKEN_FIELD,
    SIGNATURE_FIELD,
    length_fault,
)

SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)
PULL_MESSAGE = int(RequestCode.PULL_MESSAGE)
SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH_MESSAGE = int(RequestCode.SEND_BATCH_MESSAGE)
LITE_PULL_MESSAGE = int(RequestCode.LITE_PULL_MESSAGE)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_INT64_CHARACTERS_MAX = 20

_FIELDS_MAX = 20

_PLAIN_CHARACTERS_MAX = NAME_BYTES_MAX // 4
"""So many characters are no more bytes than a name may have, whatever they are."""

_Short = Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)]
"""A name or a number: what is longer is slow, and refused there."""

_FIXED = Struct(">hbhiii")
_INT = Struct(">i")
_SHORT = Struct(">h")


SIGNING_FIELDS = (
    ACCESS_KEY_FIELD,
    SECURITY_TOKEN_FIELD,
    SIGNATURE_FIELD,
    ONS_CHANNEL_FIELD,
    REQUEST_TYPE_FIELD,
)
"""Fields that clients with an account add to each request."""


class SendFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Fields of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (``SendMessageRequestHeaderV2``)."""

    a: _Short
    b: str
    c: _Short
    d: str
    e: str
    f: str
    g: str
    h: str
    i: str = ""
    j: str = "0"
    k: str = "false"
    l: str = "0"  # noqa: E741  # the wire's name
    m: str = "false"
    n: _Short = ""
    bname: _Short = ""
    AccessKey: _Short = ""
    SecurityToken: str = ""
    Signature: _Short = ""
    OnsChannel: _Short = ""
    ReqT: _Short = ""


if TYPE_CHECKING:

    class SendFieldsV1(SendFields):
        """Fields of SEND_MESSAGE, held under their short names."""

else:
    SendFieldsV1 = msgspec.defstruct(
        "SendFieldsV1",
        [
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(SendFields)
            if field.name in SEND_LONG_NAMES or field.name in SIGNING_FIELDS
        ],
        rename=SEND_LONG_NAMES,
        forbid_unknown_fields=True,
        gc=False,
    )


class PullFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Fields of PULL_MESSAGE and LITE_PULL_MESSAGE (``PullMessageRequestHeader``).

    ``maxMsgBytes``, of 5.x clients, means nothing here, as with a 4.x broker.
    """

    consumerGroup: _Short
    topic: _Short
    queueId: _Short
    queueOffset: _Short
    maxMsgNums: _Short
    sysFlag: _Short
    commitOffset: _Short
    suspendTimeoutMillis: _Short
    subVersion: _Short
    subscription: str = ""
    expressionType: _Short = "TAG"
    bname: _Short = ""
    maxMsgBytes: _Short = ""
    AccessKey: _Short = ""
    SecurityToken: str = ""
    Signature: _Short = ""
    OnsChannel: _Short = ""
    ReqT: _Short = ""


class _Header(msgspec.Struct, forbid_unknown_fields=True, gc=False, tag_field="code", tag=0):
    opaque: int
    flag: int = 0
    language: str = ""
    version: int = 0
    remark: str | None = None
    serializeTypeCurrentRPC: str = ""


class SendV2Header(_Header, tag=SEND_MESSAGE_V2, kw_only=True, gc=False):
    """Header of SEND_MESSAGE_V2, which clients use by default."""

    code: ClassVar[int] = SEND_MESSAGE_V2
    extFields: SendFields


class SendV1Header(_Header, tag=SEND_MESSAGE, kw_only=True, gc=False):
    """Header of SEND_MESSAGE: the same fields under long names."""

    code: ClassVar[int] = SEND_MESSAGE
    extFields: SendFieldsV1


class SendBatchHeader(_Header, tag=SEND_BATCH_MESSAGE, kw_only=True, gc=False):
    """Header of SEND_BATCH_MESSAGE."""

    code: ClassVar[int] = SEND_BATCH_MESSAGE
    extFields: SendFields


class PullHeader(_Header, tag=PULL_MESSAGE, kw_only=True, gc=False):
    """Header of PULL_MESSAGE."""

    code: ClassVar[int] = PULL_MESSAGE
    extFields: PullFields


class LitePullHeader(PullHeader, tag=LITE_PULL_MESSAGE, kw_only=True, gc=False):
    """Header of LITE_PULL_MESSAGE: a pull under the code that the lite consumers of 5.x use."""

    code: ClassVar[int] = LITE_PULL_MESSAGE


SendHeader = SendV2Header | SendV1Header | SendBatchHeader
FastHeader = SendV2Header | SendBatchHeader | PullHeader | LitePullHeader | SendV1Header

parse_json: Callable[[bytes], FastHeader] = msgspec.json.Decoder(FastHeader).decode
"""Decode a JSON header; raises one of ``NOT_FAST`` for every header that is not fast."""

NOT_FAST = (msgspec.DecodeError, UnicodeDecodeError, StructError, RecursionError)
"""What the parsers raise. Both must stay plain calls: this is the fast path."""


def parse_binary(header: bytes) -> FastHeader:
    """Decode a header in the ROCKETMQ encoding; raises one of ``NOT_FAST`` when it is not fast.

    A text of zero bytes is a missing one, as in RocketMQ.
    """
    code, _language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
    members = {
        "code": code,
        "opaque": opaque,
        "flag": flag,
        "version": version,
        "extFields": _binary_fields(header, remark_size)[0],
    }
    parsed: FastHeader = msgspec.convert(members, FastHeader)
    return parsed


class _ExtFields(msgspec.Struct, gc=False):
    """What a signature needs of a JSON header."""

    extFields: dict[str, str]


_read_fields = msgspec.json.Decoder(_ExtFields).decode


def signed_fields(serialize_type: int, header: bytes) -> dict[str, str] | None:
    """The fields of a header that was parsed, with those that are there only. None: one of them has
    no value, so that it is not certain what was signed."""
    if serialize_type == SerializeType.JSON:
        return _read_fields(header).extFields
    fields, has_null = _binary_fields(header, _FIXED.unpack_from(header)[-1])
    return None if has_null else fields


def _binary_fields(header: bytes, remark_size: int) -> tuple[dict[str, str], bool]:
    """The fields of a ROCKETMQ header that have a value, and whether one has none."""
    at = _FIXED.size + remark_size
    (ext_size,) = _INT.unpack_from(header, at)
    at += _INT.size
    if remark_size < 0 or ext_size < 0 or at + ext_size != len(header):
        raise StructError("lengths of the header do not add up")
    fields: dict[str, str] = {}
    has_null = False
    count = 0
    while at < len(header):
        count += 1
        if count > _FIELDS_MAX:
            raise StructError("more fields than a fast request has")
        (key_size,) = _SHORT.unpack_from(header, at)
        value_at = at + _SHORT.size + key_size
        (value_size,) = _INT.unpack_from(header, value_at)
        end = value_at + _INT.size + value_size
        if key_size <= 0 or value_size < 0 or end > len(header):
            raise StructError("lengths of a field do not add up")
        if value_size:
            key = header[at + _SHORT.size : value_at].decode()
            fields[key] = header[value_at + _INT.size : end].decode()
        has_null = has_null or not value_size
        at = end
    return fields, has_null


def is_name(text: str) -> bool:
    """Whether a text is as short in bytes as a name has to be."""
    return len(text) <= _PLAIN_CHARACTERS_MAX or length_fault("", text) is None


def integer(text: str, limit: int) -> int | None:
    """The number that ``text`` spells in the one canonical way, within -limit - 1 .. limit."""
    if len(text) > _INT64_CHARACTERS_MAX:
        return None
    try:
        value = int(text)
    except ValueError:
        return None
    return value if str(value) == text and -limit - 1 <= value <= limit else None
