"""With each kernel the same bytes, however cut, give the same events, output and errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels import INSTALLED

from kerolox.kernel.http2 import Http2Error
from kerolox.remoting.http2 import server_side
from kerolox.remoting.http2.choice import http2_of
from kerolox.remoting.http2.frames import PREFACE, frame, header_block, settings_frame

pytestmark = pytest.mark.skipif("native" not in INSTALLED, reason="the native kernel is not built")

LIMITS = {"streams_max": 3, "header_bytes_max": 400, "slice_frames": 4}
STREAM_IDS = st.sampled_from((0, 1, 1, 3, 3, 5, 7, 9, 2, (1 << 31) - 1))
WINDOWS = st.sampled_from((0, 1, 5, 100, 70_000, (1 << 31) - 1, (1 << 32) - 1))
TEXTS = st.sampled_from((b"", b"a", b":path", b"/b", b"value" * 9, b"z" * 130))
PIECES = st.one_of(
    st.sampled_from(
        (b"\x82", b"\x84", b"\xbe", b"\xbf", b"\xc0", b"\x20", b"\x3f\x09", b"\x3f\xe2\x1f")
    ),
    st.builds(lambda name, value: header_block([(name, value)]), TEXTS, TEXTS),
    st.builds(lambda name, value: b"\x40" + header_block([(name, value)])[1:], TEXTS, TEXTS),
    st.builds(
        lambda value: b"\x04" + value,
        st.sampled_from(
            (
                b"\x89\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab",
                b"\x82\xff\xff",
                b"\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            )
        ),
    ),
    st.builds(
        lambda value: b"\x0f\x2f" + bytes((0x80 | len(value),)) + value, st.binary(max_size=9)
    ),
    st.binary(max_size=6),
)
BLOCKS = st.lists(PIECES, max_size=6).map(b"".join)
FLAGS = st.sampled_from((0, 1, 4, 5, 4, 5, 8, 12, 32, 37, 255))
SETTINGS = st.lists(st.tuples(st.sampled_from((1, 3, 4, 4, 5, 9)), WINDOWS), max_size=3)
FRAMES = st.one_of(
    st.builds(lambda *all: frame(1, *all), FLAGS, STREAM_IDS, BLOCKS),
    st.builds(lambda *all: frame(1, 5, *all), STREAM_IDS, BLOCKS),
    st.builds(lambda *all: frame(9, *all), FLAGS, STREAM_IDS, BLOCKS),
    st.builds(lambda *all: frame(0, *all), FLAGS, STREAM_IDS, st.binary(max_size=40)),
    st.builds(
        lambda number, size: frame(8, 0, number, size.to_bytes(4, "big")), STREAM_IDS, WINDOWS
    ),
    st.builds(lambda values: settings_frame(values), SETTINGS),
    st.builds(lambda number: frame(3, 0, number, bytes(4)), STREAM_IDS),
    st.builds(frame, st.integers(0, 12), FLAGS, STREAM_IDS, st.binary(max_size=9)),
    st.binary(max_size=12),
    st.just(frame(0, 0, 1, bytes(16_384)) * 40),
)
OURS = st.one_of(
    st.builds(
        lambda number, size: ("send_data", number, bytes(size)),
        STREAM_IDS,
        st.sampled_from((0, 3, 20_000, 90_000)),
    ),
    st.builds(lambda number: ("send_headers", number, b"\x88"), STREAM_IDS),
    st.builds(lambda number: ("send_trailers", number, b"\x88"), STREAM_IDS),
    st.builds(lambda number: ("reset", number, 8), STREAM_IDS),
    st.sampled_from((("ping",), ("leave",), ("leave", 2, "why"))),
)
STEPS = st.lists(st.one_of(FRAMES, FRAMES, FRAMES, OURS), max_size=25)


def seen(side: Any, act: str, *arguments: Any) -> tuple[object, ...]:
    """What a step gave, and how the connection is after it."""
    try:
        result = getattr(side, act)(*arguments)
    except Http2Error as error:
        result = (error.code, str(error))
    open_streams = [side.waiting_bytes(number) for number in (1, 3, 5, 7, 9)]
    numbers = side.stream_count, side.refused_streams, side.unanswered_pings, side.kept_bytes
    return result, side.take_output(), numbers, open_streams


def check_same(chunks: list[object], **limits: int) -> None:
    """Give both the chunks, bytes or calls, until one is refused."""
    sides = [http2_of(name)(**limits) for name in ("python", "native")]
    for chunk in chunks:
        steps = [("receive", chunk)] if isinstance(chunk, bytes) else [chunk]
        while steps:
            step = steps.pop()
            ours, theirs = (seen(side, *step) for side in sides)  # type: ignore[misc]
            assert ours == theirs, step
            result = ours[0]
            if step[0] == "receive" and isinstance(result[0], int):
                return
            if step[0] == "receive" and result[1]:
                steps.append(("receive", b""))


@settings(max_examples=300)
@given(STEPS, st.lists(st.integers(1, 60), max_size=30), st.booleans())
def test_any_frames_mean_the_same(steps: list[Any], cuts: list[int], whole: bool) -> None:
    chunks: list[object] = []
    held = PREFACE + settings_frame(())
    for step in steps:
        if isinstance(step, bytes):
            held += step
            continue
        while held and not whole:
            size = cuts.pop() if cuts else len(held)
            chunks.append(held[:size])
            held = held[size:]
        chunks += [held, step]
        held = b""
    check_same([*chunks, held], **LIMITS)


@given(st.binary(max_size=40), st.integers(0, 24))
def test_any_start_means_the_same(data: bytes, size: int) -> None:
    check_same([PREFACE[:size] + data, b"", data])


def test_headers_that_are_remembered_and_forgotten_mean_the_same() -> None:
    names = [b"%d" % number * 40 for number in range(90)]
    kept = [b"\x40" + header_block([(name, name[:9])])[1:] for name in names]
    blocks = [b"".join(kept[at : at + 7]) + bytes((0xBE + at % 20,)) for at in range(0, 84, 7)]
    blocks += [
        b"\x3f\x81\x01" + b"\xbe",
        b"\x20",
        b"\x3f\xe1\x1f" + kept[0] + b"\xbe",
        b"\xbe",
        b"\xbf",
    ]
    frames = [frame(1, 5, 2 * number + 1, block) for number, block in enumerate(blocks)]
    check_same([PREFACE + settings_frame(()), *frames])


def test_a_flood_ends_both_at_the_same_frame() -> None:
    for one in (frame(6, 0, 0, bytes(8)), frame(2, 0, 1, bytes(5)), frame(77, 0, 0)):
        check_same([PREFACE + settings_frame(()), one * (server_side.IDLE_FRAMES_MAX + 1)])
