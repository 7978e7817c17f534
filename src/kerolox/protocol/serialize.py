"""The two header encodings: JSON, and RocketMQ's own binary one (``RocketMQSerializable``).

Both turn the seven header fields into bytes and back. Decoding is liberal where RocketMQ is:
members that nobody knows are ignored, a language that nobody knows is ``OTHER``, a missing member
has its default, text that is no Unicode (GBK from a C++ client, half an emoji from JavaScript) is
replaced as Java replaces it. Everything else that does not fit is a :class:`RemoteProtocolError`.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple, cast

import msgspec

from kerolox.errors import LocalProtocolError, RemoteProtocolError
from kerolox.protocol.codes import HEADER_BYTES_MAX, LanguageCode
from kerolox.protocol.names import Int32

REPAIRED_BYTES_MAX = 256 * 1024
"""Longest JSON header whose text is repaired."""

FIELDS_MAX = 1_024
"""Members of a header. Requests have some twenty."""

CROWDED_BYTES_MIN = 64 * 1024
QUOTES_MAX = 16 * FIELDS_MAX
"""A JSON header from so many bytes on has at most so many quotation marks, those inside of texts
aside: millions of members would take a second to read."""

_FIXED = struct.Struct(">hbhii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_LANGUAGES: dict[str | int, LanguageCode] = {
    each: language for language in LanguageCode for each in (language.name, language.value)
}

_OTHER_LANGUAGE = LanguageCode.OTHER


class HeaderFields(NamedTuple):
    """The fields of a header, whichever encoding carried them."""

    code: int
    language: LanguageCode
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext_fields: dict[str, str]


class _JsonHeader(msgspec.Struct):
    code: Int32
    flag: Int32 = 0
    language: str | int | None = None
    opaque: Int32 = 0
    version: Int32 = 0
    remark: str | None = None
    # Texts, but clients in other languages write numbers and booleans too, and fastjson takes them.
    extFields: dict[str, str | bool | int | float | None] | None = None


class PlainHeader(_JsonHeader):
    """A header whose fields are left as they came: for who reads some of them alone."""

    extFields: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]  # in place of the map


_json_decoder = msgspec.json.Decoder(_JsonHeader)
_plain_decoder = msgspec.json.Decoder(PlainHeader)
_json_encoder = msgspec.json.Encoder()


def encode_json_header(fields: HeaderFields) -> bytes:
    """Encode with the members in fastjson's order; a null remark and empty fields are left out."""
    header: dict[str, object] = {"code": fields.code}
    if fields.ext_fields:
        header["extFields"] = fields.ext_fields
    header["flag"] = fields.flag
    header["language"] = fields.language.name
    header["opaque"] = fields.opaque
    if fields.remark is not None:
        header["remark"] = fields.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = fields.version
    return _json_encoder.encode(header)


def decode_json_header(data: bytes | memoryview) -> HeaderFields:
    """Decode a JSON header. RemoteProtocolError: it is no JSON object, a member has the wrong type,
    or it is too large.
    """
    if len(data) >= CROWDED_BYTES_MIN:
        _check_size(data)
        if is_crowded(data):
            raise _crowded()
    try:
        header = _json_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        repaired = _repaired(data)
        if repaired is None:
            raise RemoteProtocolError(f"header is no JSON header: {error}") from None
        header = repaired
    given = header.extFields or {}
    if len(given) > FIELDS_MAX:
        raise _crowded()
    for value in given.values():
        if type(value) is not str:
            given = {name: _java_text(each) for name, each in given.items() if each is not None}
            break
    language = header.language
    return HeaderFields(
        header.code,
        _LANGUAGES["JAVA"] if language is None else _LANGUAGES.get(language, _OTHER_LANGUAGE),
        header.version,
        header.opaque,
        header.flag,
        header.remark,
        cast("dict[str, str]", given),
    )


def decode_plain_header(data: bytes | memoryview) -> PlainHeader:
    """Decode a short JSON header without its fields. MsgspecError, UnicodeDecodeError or
    RecursionError: ask :func:`decode_json_header`."""
    return _plain_decoder.decode(data)


def _repaired(data: bytes | memoryview) -> _JsonHeader | None:
    """A header whose text is no UTF-8, or has halves of surrogate pairs: one such message must not
    cost a client its connection, and all that is under way on it. None: that is not what is wrong.
    """
    if len(data) > REPAIRED_BYTES_MAX:
        return None
    try:
        text = json.dumps(json.loads(str(data, "utf-8", "replace")), ensure_ascii=False)
        return _json_decoder.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _java_text(value: str | bool | float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def encode_binary_header(fields: HeaderFields) -> bytes:
    """Encode in the ROCKETMQ encoding; LocalProtocolError: a number or a key does not fit its
    field.
    """
    remark = b"" if fields.remark is None else fields.remark.encode()
    try:
        entries = []
        for key, value in fields.ext_fields.items():
            key_bytes, value_bytes = key.encode(), value.encode()
            entries += [_SHORT.pack(len(key_bytes)), key_bytes]
            entries += [_INT.pack(len(value_bytes)), value_bytes]
        ext = b"".join(entries)
        fixed = _FIXED.pack(
            fields.code, fields.language, fields.version, fields.opaque, fields.flag
        )
        return b"".join((fixed, _INT.pack(len(remark)), remark, _INT.pack(len(ext)), ext))
    except struct.error as error:
        raise LocalProtocolError(
            f"header of code {fields.code} can't be encoded: {error}"
        ) from None


def decode_binary_header(data: bytes | memoryview) -> HeaderFields:
    """Decode a ROCKETMQ header. A zero-length remark is None. RemoteProtocolError: a length points
    outside the header, or it is too large.
    """
    _check_size(data)
    view = memoryview(data)
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(view)
        position = _FIXED.size
        remark, position = _text(view, position, _INT)
        (ext_size,) = _INT.unpack_from(view, position)
        position += _INT.size
        if ext_size < 0 or position + ext_size > len(view):
            raise RemoteProtocolError(f"extFields of {ext_size} bytes in a {len(view)} byte header")
        end = position + ext_size
        ext_fields: dict[str, str] = {}
        count = 0
        while position < end:
            count += 1
            if count > FIELDS_MAX:
                raise _crowded()
            key, position = _text(view, position, _SHORT)
            value, position = _text(view, position, _INT)
            if key is not None and value is not None:
                ext_fields[key] = value
    except struct.error as error:
        raise RemoteProtocolError(f"header is no ROCKETMQ header: {error}") from None
    try:
        known_language = LanguageCode(language)
    except ValueError:
        known_language = LanguageCode.OTHER
    return HeaderFields(code, known_language, version, opaque, flag, remark, ext_fields)


def is_crowded(data: bytes | memoryview) -> bool:
    """Whether a JSON header has more members than it may, without reading it."""
    text = bytes(data)
    return text.count(b'"') - text.count(b'\\"') > QUOTES_MAX


def _check_size(data: bytes | memoryview) -> None:
    if len(data) > HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            f"a header of {len(data)} bytes; at most {HEADER_BYTES_MAX} are read"
        )


def _crowded() -> RemoteProtocolError:
    return RemoteProtocolError(f"the header has more than {FIELDS_MAX} members")


def _text(view: memoryview, position: int, length: struct.Struct) -> tuple[str | None, int]:
    (size,) = length.unpack_from(view, position)
    position += length.size
    if size < 0 or position + size > len(view):
        raise RemoteProtocolError(f"a text of {size} bytes in a {len(view)} byte header")
    if size == 0:
        return None, position
    return str(view[position : position + size], "utf-8", "replace"), position + size
