from __future__ import annotations

import struct
from typing import Any

import pytest

from kerolox.errors import LocalProtocolError, RemoteProtocolError
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import (
    FRAME_BYTES_MAX,
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
    SerializeType,
    version_number,
    version_text,
)
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.serialize import (
    HeaderFields,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
)


def fields(**changes: object) -> HeaderFields:
    given: dict[str, object] = {
        "code": 103,
        "language": LanguageCode.JAVA,
        "version": 2333,
        "opaque": 1,
        "flag": 0,
        "remark": None,
        "ext_fields": {},
    }
    return HeaderFields(**(given | changes))  # type: ignore[arg-type]


def test_a_binary_header_without_anything_has_21_bytes() -> None:
    assert len(encode_binary_header(fields())) == 21


def test_a_binary_header_with_one_field_has_35_bytes() -> None:
    header = encode_binary_header(fields(ext_fields={"key": "value"}))
    assert len(header) == 35
    assert header[17:21] == b"\0\0\0\x0e"
    assert decode_binary_header(header) == fields(ext_fields={"key": "value"})


def test_the_json_header_is_the_one_that_java_writes() -> None:
    header = encode_json_header(
        HeaderFields(310, LanguageCode.JAVA, 333, 5, 0, None, {"a": "g", "b": "T"})
    )
    assert header == (
        b'{"code":310,"extFields":{"a":"g","b":"T"},"flag":0,"language":"JAVA","opaque":5,'
        b'"serializeTypeCurrentRPC":"JSON","version":333}'
    )


def test_members_that_nobody_knows_are_ignored() -> None:
    header = decode_json_header(
        b'{"code":1,"new":{"x":[1]},"language":"KLINGON","extFields":{"a":"b","n":null}}'
    )
    assert header == HeaderFields(1, LanguageCode.OTHER, 0, 0, 0, None, {"a": "b"})


def test_fields_that_are_no_texts_are_read_as_java_would_write_them() -> None:
    header = decode_json_header(b'{"code":1,"extFields":{"a":1,"b":true,"c":-2.5,"d":"x"}}')
    assert header.ext_fields == {"a": "1", "b": "true", "c": "-2.5", "d": "x"}


def test_a_byte_that_is_no_language_is_other() -> None:
    header = bytearray(encode_binary_header(fields()))
    header[2] = 99
    assert decode_binary_header(bytes(header)).language == LanguageCode.OTHER


@pytest.mark.parametrize("remark", [None, "", "ä remark"])
def test_an_empty_remark_is_none_in_the_binary_encoding_only(remark: str | None) -> None:
    given = fields(remark=remark)
    assert decode_json_header(encode_json_header(given)) == given
    assert decode_binary_header(encode_binary_header(given)).remark == (remark or None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b'{"code":"ten"}',
        b'{"code":1.5}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1,"x":' + b"[" * 100_000,
        b'{"code":1,"flag":null}',
        b"\xff\xff",
        b'{"code":1} x',
        b'{"code":' + b"9" * 400 + b"}",
    ],
)
def test_a_json_header_that_is_none_is_an_error_of_the_peer(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="header is no JSON header"):
        decode_json_header(data)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (b"\xb1\xea\xc7\xa9", "\ufffd\ufffd\u01e9"),  # GBK
        (b"\\ud83d", "?"),
        (b"a\\uDC00\\ud83d\\ude00", "a?\U0001f600"),
    ],
)
def test_text_that_is_no_unicode_is_replaced_as_java_does(text: bytes, read: str) -> None:
    header = decode_json_header(b'{"code":310,"extFields":{"e":0,"i":"k' + text + b'"}}')
    assert header.ext_fields == {"e": "0", "i": f"k{read}"}
    if not text.isascii():
        binary = encode_binary_header(fields(ext_fields={"i": "????"})).replace(b"????", text)
        assert decode_binary_header(binary).ext_fields == {"i": read}


def test_a_very_long_header_is_not_repaired() -> None:
    text = b"x" * (256 * 1024) + b"\xff"
    with pytest.raises(RemoteProtocolError, match="header is no JSON header"):
        decode_json_header(b'{"code":310,"extFields":{"i":"' + text + b'"}}')


@pytest.mark.parametrize("size", range(21))
def test_a_cut_binary_header_is_an_error_of_the_peer(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_binary_header(encode_binary_header(fields())[:size])


@pytest.mark.parametrize(
    "tail",
    [
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\x7f\xff\xff\xff\0\0\0\0",
        b"\0\0\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\0\0\x63",
        b"\0\0\0\0\0\0\0\x03\0\x01k",
        b"\0\0\0\0\0\0\0\x07\0\x01k\0\0\0\x09",
    ],
)
def test_a_binary_header_with_lying_lengths_is_an_error_of_the_peer(tail: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_binary_header(encode_binary_header(fields())[:13] + tail)


@pytest.mark.parametrize(
    "given",
    [fields(code=40_000), fields(version=-40_000), fields(ext_fields={"k" * 40_000: "v"})],
)
def test_what_does_not_fit_the_binary_encoding_is_an_error_of_ours(given: HeaderFields) -> None:
    with pytest.raises(LocalProtocolError, match="can't be encoded"):
        encode_binary_header(given)


def test_values_become_the_text_that_java_gives() -> None:
    command = RemotingCommand.request(
        10, {"t": True, "f": False, "n": -1, "none": None, "s": "x", "e": ResponseCode.SYSTEM_BUSY}
    )
    assert command.ext_fields == {"t": "true", "f": "false", "n": "-1", "s": "x", "e": "2"}


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_a_response_has_the_opaque_and_the_encoding_of_its_request(
    serialize_type: SerializeType,
) -> None:
    request = RemotingCommand(10, opaque=-5, serialize_type=serialize_type)
    response = request.response(ResponseCode.SYSTEM_ERROR, "no", {"a": 1}, body=b"b")
    assert response.is_response
    assert not response.is_oneway
    assert RemotingCommand.decode(response.encode()[4:]) == response
    assert (response.opaque, response.serialize_type) == (-5, serialize_type)


def test_a_one_way_request_has_the_flag() -> None:
    assert RemotingCommand.request(10, oneway=True).is_oneway


def test_a_command_that_no_frame_holds_is_an_error_of_ours() -> None:
    with pytest.raises(LocalProtocolError, match="for code 10; the limit is"):
        RemotingCommand(10, body=bytes(FRAME_BYTES_MAX)).encode()


@pytest.mark.parametrize(
    "frame",
    [b"", b"\0\0\0", struct.pack(">I", 5) + b"abc", struct.pack(">I", 2 << 24), b"\xff" * 8],
)
def test_a_frame_without_its_header_is_an_error_of_the_peer(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RemotingCommand.decode(frame)


def fields_of(count: int, *, more: str = "x") -> HeaderFields:
    ext_fields = {f"{number:x}": "1" for number in range(count)} | {"more": more}
    return HeaderFields(105, LanguageCode.JAVA, 1, 2, 0, None, ext_fields)


ENCODINGS = [(encode_json_header, decode_json_header), (encode_binary_header, decode_binary_header)]


@pytest.mark.parametrize(("encode", "decode"), ENCODINGS)
def test_a_header_has_a_length_and_a_number_of_members(encode, decode) -> None:
    most = fields_of(1_023)
    assert decode(encode(most)) == most
    long = fields_of(20, more='a "quoted" text, ' * 7_000)
    assert decode(encode(long)) == long
    for count in (1_024, 100_000):
        with pytest.raises(RemoteProtocolError, match="more than 1024 members"):
            decode(encode(fields_of(count)))
    with pytest.raises(RemoteProtocolError, match="at most 4194304 are read"):
        decode(encode(fields_of(1, more="x" * (4 << 20))))


def test_a_crowded_json_header_is_refused_before_it_is_read(monkeypatch) -> None:
    data = encode_json_header(fields_of(100_000))
    # Decoding it is what takes long.
    monkeypatch.setattr("kerolox.protocol.serialize._json_decoder", None)
    with pytest.raises(RemoteProtocolError, match="more than 1024 members"):
        decode_json_header(data)


def test_quotes_inside_of_texts_are_no_members() -> None:
    header = HeaderFields(10, LanguageCode.JAVA, 1, 2, 0, None, {"i": '"' * 32_767})
    assert decode_json_header(encode_json_header(header)) == header
    names = ",".join(f'"{number}\\\\":1' for number in range(20_000))
    with pytest.raises(RemoteProtocolError, match="more than 1024 members"):
        decode_json_header(f'{{"code":1,"extFields":{{{names}}}}}'.encode())


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (62, "V3 (62)"),
        (212, "V4_0_0_SNAPSHOT"),
        (213, "V4_0_0"),
        (232, "V4_1_0_SNAPSHOT"),
        (401, "V4_9_4"),
        (VERSION, "V4_9_8"),
        (413, "V5_0_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (-1, "V3 (-1)"),
    ],
)
def test_versions_have_the_names_that_rocketmq_gives_them(version: int, name: str) -> None:
    assert version_text(version) == name


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("where", [{"ext_fields": {"a": "\ud83d"}}, {"remark": "\ud83d"}])
def test_half_of_a_surrogate_pair_fits_no_frame(
    where: dict[str, Any], serialize_type: SerializeType
) -> None:
    command = RemotingCommand(105, serialize_type=serialize_type, **where)
    with pytest.raises(LocalProtocolError, match="half of a surrogate pair"):
        command.encode()
    with pytest.raises(LocalProtocolError, match="the body of a dict"):
        encode_body({"a": "\ud83d"})


def test_a_code_above_16_bits_has_a_json_header_in_either_encoding():
    for kind in SerializeType:
        command = RemotingCommand.request(RequestCode.POP_MESSAGE, {"topic": "T"})
        command.serialize_type = kind
        sent = RemotingCommand.decode(command.encode()[4:])
        assert (sent.code, sent.ext_fields) == (RequestCode.POP_MESSAGE, {"topic": "T"})
        assert sent.serialize_type is SerializeType.JSON


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("5.0.6", "V5_0_6"),
        ("5.1.4-rc1", "V5_1_4"),
        ("4.9.8", "V4_9_8"),
        ("1.0.7", "V5_0_0"),
        ("5.0.10", "V5_0_0"),
        ("", "V5_0_0"),
    ],
)
def test_a_version_of_a_client_by_grpc_has_a_number(text: str, name: str) -> None:
    assert version_text(version_number(text)) == name
