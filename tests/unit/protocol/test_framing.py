from __future__ import annotations

import struct

import pytest

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.codes import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from kerolox.protocol.framing import KEPT_BUFFERS_MAX, FrameBuffer, FrameDecoder


def frame(payload: bytes = b"\x00\x00\x00\x00") -> bytes:
    return struct.pack(">i", len(payload)) + payload


class FedBuffer(FrameBuffer):
    """A frame buffer that takes bytes as they come."""

    def __init__(self) -> None:
        super().__init__(64)

    def feed(self, data: bytes) -> list[bytes]:
        frames = [] if data else self.filled(0)
        while data:
            with self.space() as space:
                count = min(len(space), len(data))
                space[:count] = data[:count]
            frames += self.filled(count)
            data = data[count:]
        return frames


@pytest.fixture(params=[FrameDecoder, FedBuffer])
def decoder(request: pytest.FixtureRequest) -> FrameDecoder | FedBuffer:
    return request.param()


def test_several_frames_of_one_chunk_come_in_order(decoder: FrameDecoder | FedBuffer) -> None:
    first, second = b"\0\0\0\0one", b"\0\0\0\0two"
    assert decoder.feed(frame(first) + frame(second)) == [first, second]
    assert decoder.buffered_bytes == 0


def test_an_unfinished_frame_is_kept(decoder: FrameDecoder | FedBuffer) -> None:
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
def test_a_length_that_can_not_be_ends_the_stream_for_good(
    decoder: FrameDecoder | FedBuffer, lengths: bytes
) -> None:
    with pytest.raises(RemoteProtocolError, match="of a frame is 16777216, of a header 4194304"):
        decoder.feed(lengths)
    with pytest.raises(RemoteProtocolError):
        decoder.feed(frame())


@pytest.mark.parametrize("lengths", BAD.values(), ids=BAD.keys())
def test_frames_before_a_bad_length_are_still_handed_out(
    decoder: FrameDecoder | FedBuffer, lengths: bytes
) -> None:
    decoder.feed(frame()[:2])
    assert decoder.feed(frame()[2:] + lengths) == [b"\0\0\0\0"]
    assert decoder.error is not None
    with pytest.raises(RemoteProtocolError):
        decoder.feed(b"")


def test_the_serialize_type_is_no_part_of_the_header_length() -> None:
    payload = struct.pack(">I", 1 << 24 | 2) + b"hh" + b"body"
    assert FrameDecoder().feed(frame(payload)) == [payload]


@pytest.mark.parametrize("step", [1, 7, 63, 64, 65, 1000])
def test_a_stream_gives_the_same_frames_however_it_is_cut(
    decoder: FrameDecoder | FedBuffer, step: int
) -> None:
    payloads = [bytes(4) + bytes([size % 251]) * size for size in (0, 1, 60, 64, 300, 5000, 3)]
    stream = b"".join(map(frame, payloads))
    taken = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert [each for part in taken for each in decoder.feed(part)] == payloads
    assert decoder.buffered_bytes == 0


def test_a_buffer_that_a_large_frame_made_is_given_back() -> None:
    buffer = FedBuffer()
    buffer.feed(frame(bytes(100_000)))
    with buffer.space() as space:
        assert len(space) == 64
    assert len(buffer._buffer) <= KEPT_BUFFERS_MAX * 64
