"""Round trips of commands in both encodings; arbitrary bytes only ever raise our error."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import RemoteProtocolError
from kerolox.message import decode_properties, encode_properties, java_hash
from kerolox.protocol import fastjson
from kerolox.protocol.codes import LanguageCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_batch, decode_records, encode_batch

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
shorts = st.integers(-(1 << 15), (1 << 15) - 1)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
some_text = texts.filter(bool)

commands = st.builds(
    RemotingCommand,
    code=shorts,
    ext_fields=st.dictionaries(some_text, some_text, max_size=6),
    body=st.binary(max_size=40),
    opaque=ints,
    flag=ints,
    remark=st.none() | some_text,
    language=st.sampled_from(LanguageCode),
    version=shorts,
    serialize_type=st.sampled_from(SerializeType),
)


@given(commands)
def test_a_command_is_read_as_it_was_written(command: RemotingCommand) -> None:
    assert RemotingCommand.decode(command.encode()[4:]) == command


@given(st.binary(max_size=80), st.sampled_from([b"", b"\0\0\0\x20", b"\x01\0\0\x20"]))
def test_arbitrary_frames_are_read_or_refused(data: bytes, start: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        RemotingCommand.decode(start + data)


@given(commands, st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_is_read_or_refused(
    command: RemotingCommand, position: int, value: int
) -> None:
    frame = bytearray(command.encode()[4:])
    frame[position % len(frame)] = value
    with contextlib.suppress(RemoteProtocolError):
        RemotingCommand.decode(bytes(frame))


@given(st.binary(max_size=200))
def test_arbitrary_records_and_batches_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_records(data)
    with contextlib.suppress(RemoteProtocolError):
        decode_batch(data)


@given(st.lists(st.tuples(ints, st.binary(max_size=20), st.binary(max_size=20)), max_size=5))
def test_a_batch_is_read_as_it_was_written(items: list[tuple[int, bytes, bytes]]) -> None:
    assert decode_batch(encode_batch(items))[0] == items


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(st.integers(-(1 << 31), 1 << 31), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_json_with_bare_keys_is_read_as_it_was_written(value: object) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps_pretty(value)) == value


@given(texts)
def test_arbitrary_text_is_json_or_refused(text: str) -> None:
    with contextlib.suppress(fastjson.FastjsonError):
        fastjson.loads(text)


plain = texts.filter(lambda text: text and not set(text) & {"\x01", "\x02"})


@given(st.dictionaries(plain, plain, max_size=6))
def test_properties_are_read_as_they_were_written(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.text(max_size=30))
def test_a_hash_fits_a_signed_int(text: str) -> None:
    assert -(1 << 31) <= java_hash(text) < 1 << 31
