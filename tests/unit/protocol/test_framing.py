from __future__ import annotations

import struct

import pytest

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.codes import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from kerolox.protocol.framing import FrameDecoder


def frame(payload: bytes = b"\x00\x00\x00\x00") -> bytes:
    return struct.pack(">i", len(payload)) + payload


def test_several_frames_of_one_chunk_come_in_order() -> None:
    decoder = FrameDecoder()
    first, second = b"\0\0\0\0one", b"\0\0\0\0two"
    assert decoder.feed(frame(first) + frame(second)) == [first, second]
    assert decoder.buffered_bytes == 0


def test_an_unfinished_frame_is_kept() -> None:
    decoder = FrameDecoder()
    whole = frame(b"\0\0\0\0body")
    assert decoder.feed(whole + whole[:9]) == [b"\0\0\0\0body"]
    assert decoder.buffered_bytes == 9
    assert decoder.feed(whole[9:]) == [b"\0\0\0\0body"]


def test_a_frame_of_the_largest_size_is_taken() -> None:
    payload = bytes(FRAME_BYTES_MAX)
    assert FrameDecoder().feed(frame(payload)) == [payload]
    payload = struct.pack(">I", HEADER_BYTES_MAX) + bytes(HEADER_BYTES_MAX)
    assert FrameDecoder().feed(frame(payload)) == [payload]


def test_an_unfinished_frame_lacks_its_lengths_first_and_then_the_rest() -> None:
    decoder = FrameDecoder()
    whole = frame(b"\0\0\0\0body")
    seen = [decoder.lacking_bytes]
    for at in range(len(whole)):
        decoder.feed(whole[at : at + 1])
        seen.append(decoder.lacking_bytes)
    assert seen == [0, *range(7, 0, -1), *range(4, -1, -1)]


BAD = {
    "too long": struct.pack(">iI", FRAME_BYTES_MAX + 1, 0),
    "negative": struct.pack(">iI", -1, 0),
    "zero": struct.pack(">iI", 0, 0),
    "too short": struct.pack(">iI", 3, 0),
    "header longer than the frame": struct.pack(">iI", 8, 5),
    "header too long": struct.pack(">iI", FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1),
}


@pytest.mark.parametrize("lengths", BAD.values(), ids=BAD.keys())
def test_a_length_that_can_not_be_ends_the_stream_for_good(lengths: bytes) -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError, match="of a frame is 16777216, of a header 4194304"):
        decoder.feed(lengths)
    with pytest.raises(RemoteProtocolError):
        decoder.feed(frame())


@pytest.mark.parametrize("lengths", BAD.values(), ids=BAD.keys())
def test_frames_before_a_bad_length_are_still_handed_out(lengths: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(frame()[:2])
    assert decoder.feed(frame()[2:] + lengths) == [b"\0\0\0\0"]
    assert decoder.error is not None
    with pytest.raises(RemoteProtocolError):
        decoder.feed(b"")


def test_the_serialize_type_is_no_part_of_the_header_length() -> None:
    payload = struct.pack(">I", 1 << 24 | 2) + b"hh" + b"body"
    assert FrameDecoder().feed(frame(payload)) == [payload]
