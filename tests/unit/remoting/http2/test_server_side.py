"""The server's end of HTTP/2 of each kernel; its peer: the package ``h2``, or frames by hand."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kernels import KERNELS

from kerolox.kernel.http2 import Http2Error, Opened, Received, WasReset
from kerolox.remoting.http2 import server_side
from kerolox.remoting.http2.choice import http2_of
from kerolox.remoting.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    header_block,
    settings_frame,
    window_update,
)

HEADERS = [(":method", "POST"), (":path", "/a"), (":scheme", "http"), (":authority", "b")]
BLOCK = header_block([(name.encode(), value.encode()) for name, value in HEADERS])
ANSWER = b"\x88"
GREETING = PREFACE + settings_frame(())

Http2ServerSide: Any
"""That of the kernel whose turn it is."""


@pytest.fixture(autouse=True, scope="module", params=KERNELS)
def use_kernel(request: pytest.FixtureRequest) -> None:
    global Http2ServerSide
    Http2ServerSide = http2_of(request.param)


class Pair:
    """A client of ``h2`` and our end."""

    def __init__(self, **limits: int) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.client.initiate_connection()
        self.server = Http2ServerSide(**limits)
        self.seen: list[object] = []
        self.got: list[h2.events.Event] = []
        self.exchange()

    def exchange(self) -> None:
        while True:
            up = self.client.data_to_send()
            has_more = bool(up)
            while has_more:
                events, has_more = self.server.receive(up)
                self.seen += events
                up = b""
            down = self.server.take_output()
            if not down:
                return
            self.got += self.client.receive_data(down)

    def open(self, *, end: bool = True) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, HEADERS, end_stream=end)
        self.exchange()
        return stream_id

    def data(self, stream_id: int) -> bytes:
        of_stream = (each for each in self.got if getattr(each, "stream_id", 0) == stream_id)
        return b"".join(e.data for e in of_stream if isinstance(e, h2.events.DataReceived))

    def has(self, kind: type, stream_id: int) -> bool:
        of_stream = (e for e in self.got if getattr(e, "stream_id", 0) == stream_id)
        return any(isinstance(each, kind) for each in of_stream)


def by_hand(*frames: bytes, **limits: int) -> list[object]:
    """What frames mean behind a greeting."""
    server = Http2ServerSide(**limits)
    events: list[object] = []
    more, has_more = server.receive(GREETING + b"".join(frames))
    events += more
    while has_more:
        more, has_more = server.receive(b"")
        events += more
    return events


def headers(stream_id: int, flags: int = END_HEADERS | END_STREAM, block: bytes = BLOCK) -> bytes:
    return frame(FrameType.HEADERS, flags, stream_id, block)


def refused(*frames: bytes, **limits: int) -> ErrorCode:
    with pytest.raises(Http2Error) as error:
        by_hand(*frames, **limits)
    return ErrorCode(error.value.code)


def test_a_call_goes_up_and_its_answer_comes_down() -> None:
    pair = Pair()
    stream_id = pair.open(end=False)
    pair.client.send_data(stream_id, b"question", end_stream=True)
    pair.exchange()
    opened, received = pair.seen
    assert isinstance(opened, Opened)
    assert (b":path", b"/a") in opened.headers
    assert received == Received(stream_id, b"question", True)
    pair.server.send_headers(stream_id, ANSWER)
    pair.server.send_data(stream_id, b"answer")
    pair.server.send_trailers(stream_id, header_block([(b"grpc-status", b"0")]))
    pair.exchange()
    assert pair.data(stream_id) == b"answer"
    assert pair.has(h2.events.TrailersReceived, stream_id)
    assert pair.has(h2.events.StreamEnded, stream_id)
    assert pair.server.stream_count == 0


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_bytes_mean_the_same_however_they_are_cut(body: bytes, cuts: list[int]) -> None:
    data = GREETING + headers(1, END_HEADERS) + frame(FrameType.DATA, END_STREAM, 1, body)
    server, found = Http2ServerSide(), bytearray()
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    for piece in (*pieces, data):
        events, _ = server.receive(piece)
        for each in events:
            if isinstance(each, Received):
                found += each.data
    assert bytes(found) == body


def test_an_answer_waits_for_the_windows_of_its_peer() -> None:
    pair = Pair()
    stream_id = pair.open()
    body = bytes(range(256)) * 1024
    pair.server.send_headers(stream_id, ANSWER)
    pair.server.send_data(stream_id, body)
    pair.server.send_trailers(stream_id, header_block([(b"grpc-status", b"0")]))
    pair.exchange()
    assert len(pair.data(stream_id)) == 65_535
    assert pair.server.waiting_bytes(stream_id) == len(body) - 65_535
    assert pair.server.kept_bytes == len(body) - 65_535
    while not pair.has(h2.events.StreamEnded, stream_id):
        before = len(pair.data(stream_id))
        pair.client.acknowledge_received_data(min(before, 60_000), stream_id)
        pair.exchange()
        assert len(pair.data(stream_id)) > before or pair.has(h2.events.StreamEnded, stream_id)
    assert pair.data(stream_id) == body
    assert pair.server.kept_bytes == 0


def test_a_peer_that_changes_its_window_gets_what_waits() -> None:
    pair = Pair()
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    stream_id = pair.open()
    pair.server.send_headers(stream_id, ANSWER)
    pair.server.send_data(stream_id, b"0123456789abcdef")
    pair.exchange()
    assert pair.data(stream_id) == b"0123456789"
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 14})
    pair.exchange()
    assert pair.data(stream_id) == b"0123456789abcd"


def test_a_peer_may_send_more_than_its_first_windows_hold() -> None:
    pair = Pair()
    stream_id = pair.open(end=False)
    sent = 0
    while sent < 3 * server_side.CONNECTION_WINDOW:
        size = min(16_384, pair.client.local_flow_control_window(stream_id))
        assert size > 0
        pair.client.send_data(stream_id, bytes(size))
        sent += size
        if sent % (1 << 18) < 16_384:
            pair.exchange()
    pair.exchange()
    assert sum(len(e.data) for e in pair.seen if isinstance(e, Received)) == sent


def test_a_stream_that_the_peer_resets_is_told_and_forgotten() -> None:
    pair = Pair()
    stream_id = pair.open()
    pair.server.send_data(stream_id, bytes(100_000))
    pair.client.reset_stream(stream_id)
    pair.exchange()
    assert pair.seen[-1] == WasReset(stream_id)
    assert (pair.server.stream_count, pair.server.kept_bytes) == (0, 0)
    pair.server.send_data(stream_id, b"late")
    assert pair.server.take_output() == b""


def test_an_answer_before_the_end_of_the_question_stops_its_peer() -> None:
    pair = Pair()
    stream_id = pair.open(end=False)
    pair.server.send_headers(stream_id, ANSWER, end=True)
    pair.exchange()
    assert pair.has(h2.events.StreamEnded, stream_id)
    assert pair.has(h2.events.StreamReset, stream_id)


def test_a_stream_too_many_is_refused_and_the_others_go_on() -> None:
    pair = Pair(streams_max=2)
    first = pair.open()
    pair.open()
    server = pair.server
    events, _ = server.receive(headers(5))
    assert events == []
    out = server.take_output()
    assert out == frame(
        FrameType.RST_STREAM, 0, 5, int(ErrorCode.REFUSED_STREAM).to_bytes(4, "big")
    )
    server.send_headers(first, ANSWER, end=True)
    assert server.stream_count == 1


def test_a_server_that_leaves_says_so_and_takes_no_more() -> None:
    pair = Pair()
    stream_id = pair.open()
    pair.server.leave()
    pair.server.leave()
    pair.exchange()
    [terminated] = [e for e in pair.got if isinstance(e, h2.events.ConnectionTerminated)]
    assert terminated.last_stream_id == stream_id
    pair.server.receive(headers(3))
    assert int(ErrorCode.REFUSED_STREAM).to_bytes(4, "big") in pair.server.take_output()


def test_pings_are_answered_and_ours_are_counted() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.server.ping()
    assert pair.server.unanswered_pings == 1
    pair.exchange()
    assert any(isinstance(each, h2.events.PingAckReceived) for each in pair.got)
    assert pair.server.unanswered_pings == 0


def test_padding_and_priorities_are_taken_off() -> None:
    padded = frame(FrameType.DATA, PADDED | END_STREAM, 1, b"\x03body\0\0\0")
    prioritized = frame(
        FrameType.HEADERS, PADDED | END_HEADERS | 32, 1, b"\x02" + bytes(5) + BLOCK + b"\0\0"
    )
    opened, received = by_hand(prioritized, frame(FrameType.PRIORITY, 0, 1, bytes(5)), padded)
    assert isinstance(opened, Opened)
    assert received == Received(1, b"body", True)


def test_headers_in_several_frames_are_put_together() -> None:
    [opened] = by_hand(
        frame(FrameType.HEADERS, END_STREAM, 1, BLOCK[:7]),
        frame(FrameType.CONTINUATION, 0, 1, BLOCK[7:9]),
        frame(FrameType.CONTINUATION, END_HEADERS, 1, BLOCK[9:]),
    )
    assert isinstance(opened, Opened)
    assert opened.is_ended
    assert len(opened.headers) == len(HEADERS)


def test_frames_of_a_kind_that_nobody_knows_are_passed_over() -> None:
    [opened] = by_hand(frame(77, 0, 1, b"what"), headers(1))
    assert isinstance(opened, Opened)


def test_many_frames_take_several_turns() -> None:
    server = Http2ServerSide(slice_frames=4)
    data = GREETING + b"".join(headers(number) for number in range(1, 20, 2))
    events, has_more = server.receive(data)
    assert (len(events), has_more) == (3, True)
    events, has_more = server.receive(b"")
    assert (len(events), has_more) == (4, True)


def test_a_stream_is_told_when_its_first_frame_is_whole_or_none_begins() -> None:
    server = Http2ServerSide()
    server.receive(GREETING)
    body = frame(FrameType.DATA, END_STREAM, 1, b"body")
    assert server.receive(headers(1, END_HEADERS) + body[:5]) == ([], False)
    [opened, received], _ = server.receive(body[5:])
    assert isinstance(opened, Opened)
    assert received == Received(1, b"body", True)
    [opened], _ = server.receive(headers(3, END_HEADERS))
    assert isinstance(opened, Opened)


def slices_of(server: Http2ServerSide, data: bytes) -> list[int]:
    """How many events come with each call until all is taken."""
    events, has_more = server.receive(data)
    counts = [len(events)]
    while has_more:
        events, has_more = server.receive(b"")
        counts.append(len(events))
    return counts


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x82" * 180, id="a byte for each header"),
        pytest.param(header_block([(b"x", b"y" * 7_000)]), id="a long header"),
        pytest.param(b"\x40\x01a\x01b" * 220, id="headers to remember"),
    ],
)
def test_large_headers_take_several_turns(block: bytes) -> None:
    data = b"".join(headers(number, block=block) for number in range(1, 80, 2))
    counts = slices_of(Http2ServerSide(), GREETING + data)
    assert sum(counts) == 40
    assert max(counts) <= 3


def test_windows_of_many_streams_take_several_turns() -> None:
    server = Http2ServerSide()
    streams = range(1, 2 * server_side.STREAMS_MAX, 2)
    slices_of(server, GREETING + settings_frame([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    slices_of(server, b"".join(headers(number) for number in streams))
    for number in streams:
        server.send_headers(number, ANSWER)
        server.send_data(number, b"answer")
    for flood in (window_update(0, 1), settings_frame([(Setting.INITIAL_WINDOW_SIZE, 0)])):
        assert len(slices_of(server, flood * 500)) > 20


def test_windows_of_a_connection_that_send_nothing_end_it() -> None:
    server = Http2ServerSide()
    server.receive(GREETING + settings_frame([(Setting.INITIAL_WINDOW_SIZE, 0)]) + headers(1))
    server.send_headers(1, ANSWER)
    server.send_data(1, b"answer")
    with pytest.raises(Http2Error) as error:
        slices_of(server, window_update(0, 1) * (server_side.IDLE_FRAMES_MAX + 1))
    assert error.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_window_that_shrinks_below_zero_holds_the_answer_until_it_grows() -> None:
    server = Http2ServerSide()
    server.receive(GREETING + headers(1))
    server.send_headers(1, ANSWER)
    server.send_data(1, bytes(65_530))
    server.receive(settings_frame([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    server.send_data(1, b"more")
    server.take_output()
    server.receive(window_update(1, 65_530))
    assert server.take_output() == b""
    server.receive(window_update(1, 1))
    assert server.take_output() == frame(FrameType.DATA, 0, 1, b"m")


WRONG = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "no settings first": (PREFACE + headers(1), ErrorCode.PROTOCOL_ERROR),
    "an acknowledgement first": (
        PREFACE + frame(FrameType.SETTINGS, ACK, 0),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a long frame": (GREETING + b"\x00\x40\x01\x00\x00\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
    "a stream of a server": (GREETING + headers(2), ErrorCode.PROTOCOL_ERROR),
    "headers of no stream": (GREETING + headers(0), ErrorCode.PROTOCOL_ERROR),
    "headers twice": (
        GREETING + headers(1, END_HEADERS) + headers(1, END_HEADERS),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data of no stream": (
        GREETING + frame(FrameType.DATA, 0, 7, b"x"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data behind the end": (
        GREETING + headers(1) + frame(FrameType.DATA, 0, 1, b"x"),
        ErrorCode.STREAM_CLOSED,
    ),
    "a reset of no stream": (
        GREETING + frame(FrameType.RST_STREAM, 0, 1, bytes(4)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a short reset": (
        GREETING + headers(1) + frame(FrameType.RST_STREAM, 0, 1, b"x"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "a push": (
        GREETING + frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(4)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window of nothing": (GREETING + window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "a window too large": (
        GREETING + window_update(0, (1 << 31) - 1),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a window of no stream": (GREETING + window_update(9, 1), ErrorCode.PROTOCOL_ERROR),
    "a first window too large": (
        GREETING + settings_frame([(Setting.INITIAL_WINDOW_SIZE, 1 << 31)]),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frames too small": (
        GREETING + settings_frame([(Setting.MAX_FRAME_SIZE, 10)]),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "torn settings": (
        GREETING + frame(FrameType.SETTINGS, 0, 0, b"12345"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "settings of a stream": (
        GREETING + frame(FrameType.SETTINGS, 0, 1, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a continuation alone": (
        GREETING + frame(FrameType.CONTINUATION, END_HEADERS, 1, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a header block cut": (
        GREETING + headers(1, 0) + frame(FrameType.PING, 0, 0, bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "padding alone": (
        GREETING + headers(1, PADDED | END_HEADERS, b"\xff"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "no header compression": (
        GREETING + headers(1, END_HEADERS, b"\xff\xff\xff\xff\xff\xff"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a table that changes its size again and again": (
        GREETING + headers(1, END_HEADERS, b"\x20\x3f\xe1\x1f\x20" + BLOCK),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a window that settings make too large": (
        GREETING
        + headers(1, END_HEADERS)
        + window_update(1, 1 << 30)
        + settings_frame([(Setting.INITIAL_WINDOW_SIZE, 1 << 30)]),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a table too large": (
        GREETING + headers(1, END_HEADERS, b"\x3f\xe1\xff\x03"),
        ErrorCode.COMPRESSION_ERROR,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_protocol_ends_the_connection(name: str) -> None:
    data, code = WRONG[name]
    with pytest.raises(Http2Error) as error:
        Http2ServerSide().receive(data)
    assert error.value.code == code


CALM = {
    "rapid resets": [
        headers(number) + frame(FrameType.RST_STREAM, 0, number, bytes(4))
        for number in range(1, 2 * server_side.RESETS_MAX + 3, 2)
    ],
    "pings": [frame(FrameType.PING, 0, 0, bytes(8))] * (server_side.IDLE_FRAMES_MAX + 1),
    "settings": [settings_frame(())] * (server_side.IDLE_FRAMES_MAX + 1),
    "empty data": [headers(1, END_HEADERS)]
    + [frame(FrameType.DATA, 0, 1)] * (server_side.IDLE_FRAMES_MAX + 1),
    "priorities": [frame(FrameType.PRIORITY, 0, 1, bytes(5))] * (server_side.IDLE_FRAMES_MAX + 1),
    "windows": [window_update(0, 1)] * (server_side.IDLE_FRAMES_MAX + 1),
    "continuations": [headers(1, 0)]
    + [frame(FrameType.CONTINUATION, 0, 1)] * (server_side.CONTINUATIONS_MAX + 1),
    "long headers": [headers(1, 0)] + [frame(FrameType.CONTINUATION, 0, 1, bytes(16_000))] * 3,
    "headers of streams that are over": [headers(1), frame(FrameType.RST_STREAM, 0, 1, bytes(4))]
    + [headers(1)] * (server_side.IDLE_FRAMES_MAX + 1),
    "many settings": [settings_frame([(Setting.INITIAL_WINDOW_SIZE, 1)] * 33)],
    # One header of 4 KB, which the peer has us remember, and a byte for each time more.
    "headers that grow": [
        headers(1, END_HEADERS, b"\x40\x01x\x7f\x81\x1e" + b"y" * 3_968 + b"\xbe" * 1_000)
    ],
}


@pytest.mark.parametrize("name", CALM)
def test_a_flood_ends_the_connection(name: str) -> None:
    assert refused(*CALM[name]) == ErrorCode.ENHANCE_YOUR_CALM


def test_resets_of_a_client_that_is_answered_are_no_flood() -> None:
    server = Http2ServerSide()
    server.receive(GREETING)
    for number in range(1, 4 * server_side.RESETS_MAX, 4):
        server.receive(headers(number) + headers(number + 2))
        server.receive(frame(FrameType.RST_STREAM, 0, number, bytes(4)))
        server.send_headers(number + 2, ANSWER, end=True)
        server.take_output()
    assert server.stream_count == 0


def test_it_is_known_which_answers_the_peer_has_not_read() -> None:
    server = Http2ServerSide()
    server.receive(GREETING)
    for stream_id in (1, 3, 5):
        server.receive(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream_id, BLOCK))
        server.watch(stream_id)
    server.watch(7)  # there is none
    server.take_output()
    before = server.taken_bytes
    for stream_id in (1, 3):
        server.send_data(stream_id, b"answer")
        server.send_trailers(stream_id, ANSWER)
        assert len(server.take_output()) == server.taken_bytes - before
        before = server.taken_bytes
    assert server.unread(server.taken_bytes) == [5]
    assert server.unread(server.taken_bytes - 1) == [3, 5]
    assert server.unread(0) == [1, 3, 5]
    resets = [
        frame(FrameType.RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))
        for stream_id, code in ((1, ErrorCode.NO_ERROR), (3, ErrorCode.CANCEL), (3, 8), (5, 0))
    ]
    events, _ = server.receive(b"".join(resets))
    assert events == [WasReset(3), WasReset(5)]
    assert server.unread(0) == []


def test_the_last_answers_are_watched() -> None:
    server = Http2ServerSide()
    server.receive(GREETING)
    streams = range(1, 2 * server_side.WATCHED_MAX + 3, 2)
    for stream_id in streams:
        server.receive(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream_id, BLOCK))
        server.watch(stream_id)
    assert server.unread(0) == list(streams)[1:]
