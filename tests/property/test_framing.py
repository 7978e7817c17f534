"""Any cut of a stream of frames gives the same frames; no bytes make the decoder misbehave."""

from __future__ import annotations

import contextlib
import itertools
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import RemoteProtocolError
from kerolox.protocol.framing import FrameDecoder

payloads = st.binary(max_size=64).map(lambda data: b"\0\0\0\0" + data)


def frames_of(chunks: list[bytes], **settings_: int) -> tuple[list[bytes], FrameDecoder]:
    decoder = FrameDecoder(**settings_)
    frames: list[bytes] = []
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            frames += decoder.feed(chunk)
    return frames, decoder


def cut(stream: bytes, positions: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(stream) + 1) for p in positions), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(payloads, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_a_stream_cut_anywhere_gives_its_frames(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    got, decoder = frames_of(cut(stream, cuts))
    assert got == frames
    assert decoder.buffered_bytes == 0


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=6))
def test_any_bytes_cut_anywhere_end_alike(stream: bytes, cuts: list[int]) -> None:
    whole, one = frames_of([stream], frame_bytes_max=64)
    parts, other = frames_of(cut(stream, cuts), frame_bytes_max=64)
    assert whole == parts
    assert (one.error is None) == (other.error is None)
    if one.error is None:
        assert one.buffered_bytes == other.buffered_bytes <= 4 + 64


@given(st.lists(payloads, max_size=4), st.integers(-(1 << 31), 3))
@settings(max_examples=50)
def test_frames_before_a_bad_length_are_never_lost(frames: list[bytes], size: int) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    got, decoder = frames_of([stream + struct.pack(">iI", size, 0), b""])
    assert got == frames
    assert decoder.error is not None
