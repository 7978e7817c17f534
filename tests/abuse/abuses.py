"""What is wrong with a request, one thing at a time: tables of texts, numbers, members and bodies.

Each abuse is a frame that is one, so it is answered, unless its header is larger than any may be;
other frames that end their connections are in ``tests/malformed``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kerolox.protocol.codes import BINARY_CODE_MAX, HEADER_BYTES_MAX, SerializeType
from kerolox.protocol.registration import encode_registration
from kerolox.protocol.serialize import FIELDS_MAX
from tests.abuse.every_code import REGISTRATION

if TYPE_CHECKING:
    from tests.abuse.every_code import Role

__all__ = ["Abuse", "abuses_of", "huge_abuses_of"]

LONG_BYTES = HEADER_BYTES_MAX - (64 << 10)
"""Of one member, beside which the others have room."""

HUGE_BYTES = 15_000_000
"""The same in a frame, which may have 16 MiB."""

HALF = "\ud800"
"""Half of a surrogate pair, which has no UTF-8."""

TEXTS = {
    "300 bytes": "x" * 300,
    "100 characters of 300 bytes": "日" * 100,
    "64 KiB": "y" * (64 << 10),
    "line ends and escapes": "a\r\n2026-01-01 00:00:00,000 WARNING forged: \x1b[2J\x07\x9b",
    "half a pair": f"a{HALF}b",
    "a path": "../../../../../../tmp/abused",
    "separators": "a@b@c\0\x01\x02;:=,",
    "blank": "  ",
}
NUMBERS = {
    "largest int": "2147483647",
    "over an int": "2147483648",
    "below an int": "-2147483649",
    "largest long": "9223372036854775807",
    "smallest long": "-9223372036854775808",
    "over a long": "9223372036854775808",
    "5,000 digits": "9" * 5000,
    "64 KiB of digits": "9" * (64 << 10),
    "no number": "NaN",
    "infinite": "1e999",
    "less than nothing": "-1",
}
FLAGS = {"64 KiB": "t" * (64 << 10), "no flag": "5"}

DEEP = 100_000
MANY = 100_000
ZEROS_MIB = 190


def _bomb(mebibytes: int) -> bytes:
    """Zeros that zlib has packed: each worker makes it, so only the first block is compressed."""
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    checksum = ((mebibytes << 20) % 65521) << 16 | 1  # Adler-32 of zeros
    return b"\x78\xda" + block * mebibytes + b"\x03\x00" + checksum.to_bytes(4)


def _registration_of(topics: int) -> bytes:
    """Compressed, of that many topics."""

    def sized(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    parts = [sized(b'{"counter":2,"timestamp":2}'), struct.pack(">i", topics)]
    parts += [sized(b"abused-%d 1 1 6 SINGLE_TAG" % number) for number in range(topics)]
    return zlib.compress(b"".join([*parts, sized(b"[]")]), 9)


def _keys(count: int, *, text: str = '"k%d":0') -> bytes:
    return ("{" + ",".join(text % number for number in range(count)) + "}").encode()


BODIES: dict[str, bytes] = {
    "no JSON": b"\xff\xfe\x00x" * 100,
    "null": b"null",
    "lists in lists": b"[" * DEEP,
    "closed lists in lists": b"[" * DEEP + b"]" * DEEP,
    "objects in objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "bare keys in bare keys": b"{a:" * 30_000 + b"1" + b"}" * 30_000,
    "many keys": _keys(MANY),
    "many keys below a MiB": _keys(MANY // 2),
    "many bare keys": _keys(10_000, text="k%d:0"),
    "many objects as keys": _keys(5_000, text='{"a":%d}:0'),
    "a long list": b"[" + b"1," * 500_000 + b"1]",
    "a long text": b'"' + b"z" * (1 << 20) + b'"',
    "half a pair": b'{"clientID":"\\ud800","groupName":"\\ud800","topic":"\\ud800"}',
    "a zlib bomb": _bomb(ZEROS_MIB),
    "a registration of 100,000 topics": _registration_of(100_000),
    "5,000 settings that are nearly known": b"".join(
        b"flushDiskTypo%d=1\n" % number for number in range(5_000)
    ),
    "a setting with a name of 500 KB": b"s" * 500_000 + b"=1\n",
    "a setting of 900 KB": b"regionId=" + b"r" * 900_000 + b"\n",
    "a black list of 900 KB": b"configBlackList=" + b"r" * 900_000 + b"\n",
    "a setting of several lines": b"regionId=a\\u000astorePathRootDir=/nowhere/abused\n"
    b"productEnvName=c\\u000akvConfigPath=/nowhere/abused\n",
    "a name of several lines": b"regionId\\u000astorePathRootDir=/nowhere/abused\n",
    "100,000 lines": b"a\n" * MANY,
    "a line that goes on 100,000 times": b"\\\n" * MANY,
}
"""Sent with every code."""

SETTINGS_BODIES: dict[str, bytes] = {
    "a name of 2 MB": b"s" * 2_000_000 + b"=1\n",
    "a setting of 4 MB": b"regionId=" + b"r" * 4_000_000 + b"\n",
}
"""Sent with the codes whose bodies are no JSON."""

ZIPPED = {"a zlib bomb", "a registration of 100,000 topics", "a compressed registration"}
"""Where the header says so."""


class Abuse(msgspec.Struct, frozen=True):
    """One request, and what is wrong with it."""

    what: str
    opaque: int
    frame: bytes
    may_end: bool = False
    """Its connection may end in place of an answer."""


def frame_of(
    code: int, members: dict[str, str], body: bytes, opaque: int, kind: SerializeType
) -> bytes:
    """A request; text without UTF-8 is written as its escape, or as the three bytes of its half.
    Codes that a binary header can't hold are in JSON, whatever ``kind`` says."""
    if code > BINARY_CODE_MAX:
        kind = SerializeType.JSON
    if kind == SerializeType.JSON:
        header = {"code": code, "extFields": members, "flag": 0, "language": "JAVA"}
        data = json.dumps({**header, "opaque": opaque, "version": 401}).encode()
    else:
        pairs = [(k.encode(), v.encode("utf-8", "surrogatepass")) for k, v in members.items()]
        fields = b"".join(
            struct.pack(">h", len(k)) + k + struct.pack(">i", len(v)) + v for k, v in pairs
        )
        data = struct.pack(">hbhiiii", code, 0, 401, opaque, 0, 0, len(fields)) + fields
    size = 4 + len(data) + len(body)
    return struct.pack(">II", size, kind << 24 | len(data)) + data + body


def abuses_of(role: Role, code: int, first_opaque: int, *, all_of_them: bool) -> Iterator[Abuse]:
    """Those of a code, but for huge members: every other header in one encoding, and of the bodies
    that its handler is not known to read every eighth; or all of them in both encodings."""
    opaque = first_opaque
    members, body = role.members(code), role.body(code)
    for number, (what, changed) in enumerate(_headers(role, code, members)):
        kinds = list(SerializeType)
        if not all_of_them:
            kinds = [kinds[(number // 2 + code) % 2]] if (number + code) % 2 else []
        for kind in kinds:
            frame = frame_of(code, changed, body, opaque, kind)
            yield Abuse(f"{code}: {what}", opaque, frame, may_end=len(changed) > FIELDS_MAX)
            opaque += 1
    step = 1 if all_of_them or body else 8
    for what, other in [*list(BODIES.items())[code % step :: step], *_bodies(body)]:
        told = {n: _compressed(n, v) for n, v in members.items()} if what in ZIPPED else members
        frame = frame_of(code, told, other, opaque, SerializeType.JSON)
        yield Abuse(f"{code}: body {what}", opaque, frame)
        opaque += 1


def huge_abuses_of(
    role: Role, code: int, first_opaque: int, *, all_of_them: bool, is_one_too_long: bool
) -> Iterator[Abuse]:
    """A text as long as a header may be, of one member, or of all in both encodings. Where that is
    asked for, also one that fills a frame: its connection ends whatever its code is, which nobody
    reads."""
    opaque = first_opaque
    members, body = role.members(code), role.body(code)
    texts = [name for name, kind in role.types(code).items() if kind == "str"] or ["unknown"]
    for number, name in enumerate(texts if all_of_them else texts[:1]):
        for kind in SerializeType if all_of_them else [SerializeType(code % 2)]:
            for size in (LONG_BYTES, HUGE_BYTES) if is_one_too_long else (LONG_BYTES,):
                changed = {**members, name: chr(97 + number) * size}
                frame = frame_of(code, changed, body, opaque, kind)
                may_end = size > HEADER_BYTES_MAX
                yield Abuse(f"{code}: {name} of {size} bytes", opaque, frame, may_end=may_end)
                opaque += 1


def _compressed(name: str, value: str) -> str:
    return {"compressed": "true", "sysFlag": "1", "f": "1"}.get(name, value)


def _headers(
    role: Role, code: int, members: dict[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    tables = {"str": TEXTS, "int": NUMBERS, "bool": FLAGS}
    for name, kind in role.types(code).items():
        for what, value in tables[kind].items():
            yield f"{name} {what}", {**members, name: value}
        yield f"no {name}", {each: value for each, value in members.items() if each != name}
    yield "900 unknown members", {**{f"unknown{n}": "1" for n in range(900)}, **members}
    yield "5,000 unknown members", {**{f"unknown{n}": "1" for n in range(5_000)}, **members}
    yield "an unknown member of 30 KB", {**members, "u" * 30_000: "1"}
    yield "an unknown member of several lines", {**members, "a\nb\x1b[2J": "\n\x1b[2J"}


def _bodies(body: bytes) -> Iterator[tuple[str, bytes]]:
    """A JSON body with one of its values changed."""
    try:
        value = json.loads(body)
    except ValueError:
        yield from SETTINGS_BODIES.items() if body else ()
        return
    yield from _changed(value)
    if "topicConfigSerializeWrapper" in value:
        yield "a compressed registration", encode_registration(REGISTRATION, compressed=True)


def _changed(whole: Any) -> Iterator[tuple[str, bytes]]:
    for path, value in list(_leaves(whole, ())):
        changes: dict[str, Any] = {}
        if isinstance(value, str):
            changes = dict(TEXTS)
        elif isinstance(value, bool):
            changes = {"a number": 5}
        elif isinstance(value, int):
            changes = {"over a long": 1 << 63, "over an int": 1 << 31, "a real": 1e300, "text": "x"}
        elif isinstance(value, list):
            item = value[0] if value else "x"
            changes = {
                "1,000 items": [item] * 1_000,
                "as many items as a MiB holds": [item] * (1_000_000 // len(json.dumps([item]))),
                "1,000 different items": [_numbered(item, n) for n in range(1_000)],
                "lists in lists": [[[[[[[[[[[[[]]]]]]]]]]]]],
            }
        changes["null"] = None
        for what, other in changes.items():
            yield f"{path} {what}", json.dumps(_with(whole, path, other)).encode()


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path:
        yield path, value
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, member in items:
        yield from _leaves(member, (*path, key))


def _with(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = _with(value[path[0]], path[1:], other)
    return copy


def _numbered(item: Any, number: int) -> Any:
    """An item that is different from the others."""
    if isinstance(item, dict):
        return {key: _numbered(value, number) for key, value in item.items()}
    if isinstance(item, str) and item not in ("SQL92", "TAG", "CLUSTERING", "CONSUME_PASSIVELY"):
        return f"{item}{number}"
    return item
