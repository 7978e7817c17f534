"""The server's end of one HTTP/2 connection in Python: ``kernel/http2.py`` states what it does.

What a peer can make it do and keep is bounded: header blocks, their frames, open streams, bytes of
unfinished requests, resets, and frames that bring nothing. It grants the peer's bytes as they come;
whoever reads the socket stops when too much is kept (``kept_bytes``).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from hpack import Decoder, HPACKError, OversizedHeaderListError

from kerolox.kernel.http2 import Http2Error, Http2Event, Opened, Received, WasReset
from kerolox.remoting.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITIZED,
    WINDOW_MAX,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    goaway,
    reset,
    settings_frame,
    window_update,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

STREAMS_MAX = 1_024
"""Open streams of a connection; a client opens one for each queue that it receives from."""

HEADER_BYTES_MAX = 8 * 1024
"""Bytes of one header block, as they come; and of its headers, as RFC 7541 counts them. So much
RocketMQ's proxy takes (``DEFAULT_MAX_HEADER_LIST_SIZE`` of grpc-java)."""

TABLE_UPDATES_MAX = 2
"""Changes of the table's size that a header block begins with (RFC 7541, 4.2)."""

CONTINUATIONS_MAX = 8
"""Frames of a header block behind its first."""

CONNECTION_WINDOW = 16 * 1024 * 1024
STREAM_WINDOW = 1024 * 1024
"""What a peer may send before it hears from us. Half of it gone, it is granted anew, so nobody can
send too much; a server that keeps too much does not read."""

IDLE_FRAMES_MAX = 2_000
"""Frames in a row that bring nothing: empty ones, pings, settings, priorities."""

RESETS_MAX = 1_000
"""Streams that the peer reset before they were answered, less those that were answered."""

SLICE_FRAMES = 512
"""Frames that one call handles before others get their turn."""

SLICE_WORK = 16 * 1024
"""Work that one call does before that, some two ms: bytes of headers, as RFC 7541 counts them, and
streams whose windows change. A byte may stand for a whole header, a setting for all streams."""

RESET_WORK = 256
"""What the end of an open stream counts as: somebody gives up what its call waits for."""

SETTINGS_MAX = 32
"""Values of one frame of settings."""

UNREADABLE = "headers that can't be read"

WATCHED_MAX = 256
"""Answers of which is noted whether the peer reads them, the last ones of a connection."""

HEADER_EXTRA_BYTES = 32
"""That RFC 7541 counts for each header."""

_Events = list[Http2Event]


@dataclass(slots=True)
class _Stream:
    send_window: int
    granted: int = STREAM_WINDOW
    """What the peer may still send."""
    is_ended: bool = False
    """By the peer."""
    is_finished: bool = False
    """By us, as soon as what waits is sent."""
    waiting: deque[bytes | memoryview] = field(default_factory=deque)
    waiting_bytes: int = 0
    trailers: bytes | None = None
    """A made block; sent behind what waits."""


class Http2ServerSide:
    """One connection."""

    def __init__(
        self,
        *,
        streams_max: int = STREAMS_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        slice_frames: int = SLICE_FRAMES,
    ) -> None:
        """The first output is our settings."""
        self._streams_max = streams_max
        self._header_bytes_max = header_bytes_max
        self._slice_frames = slice_frames
        self._decoder = Decoder(max_header_list_size=header_bytes_max)
        self._buffer = bytearray()
        self._at = 0
        self._is_greeted = False
        self._has_settings = False
        self._streams: dict[int, _Stream] = {}
        self._last_id = 0
        self._block: tuple[int, int, bytearray, int] | None = None
        """Of headers that are not whole: stream, flags, bytes, continuations."""
        self._window = DEFAULT_WINDOW
        self._peer_stream_window = DEFAULT_WINDOW
        self._peer_frame_bytes = FRAME_BYTES_MAX
        self._granted = CONNECTION_WINDOW
        self._idle_frames = 0
        self._resets = 0
        self._refused = 0
        self._work = 0
        self._held: Opened | None = None
        """A stream that began, and whose first frame is here or begins."""
        self._waiting_bytes = 0
        self._is_leaving = False
        self._pings = 0
        self._taken_bytes = 0
        """Of what is to be sent, since the start."""
        self._watched: dict[int, int | None] = {}
        """By stream, how much was to be sent with the end of its answer; None: it waits."""
        self._answered: list[int] = []
        """Of these, those that ended since something was taken."""
        self._out: list[bytes] = [
            settings_frame(
                (
                    (Setting.MAX_CONCURRENT_STREAMS, streams_max),
                    (Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
                    (Setting.MAX_HEADER_LIST_SIZE, header_bytes_max),
                )
            ),
            window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW),
        ]

    # -- what it has --------------------------------------------------------------------------
    @property
    def stream_count(self) -> int:
        """Open streams."""
        return len(self._streams)

    @property
    def refused_streams(self) -> int:
        """Streams that were refused since the start."""
        return self._refused

    @property
    def unanswered_pings(self) -> int:
        """Our own that the peer did not answer yet."""
        return self._pings

    @property
    def kept_bytes(self) -> int:
        """Frames that are not whole, and answers that the peer grants no window for."""
        block = 0 if self._block is None else len(self._block[2])
        return len(self._buffer) - self._at + self._waiting_bytes + block

    def waiting_bytes(self, stream_id: int) -> int:
        """Of a stream's answer, what the peer grants no window for."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.waiting_bytes

    def take_output(self) -> bytes:
        """What is to be sent."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._taken_bytes += len(data)
        for stream_id in self._answered:
            if stream_id in self._watched:
                self._watched[stream_id] = self._taken_bytes
        self._answered.clear()
        return data

    @property
    def taken_bytes(self) -> int:
        """What was taken since the start."""
        return self._taken_bytes

    def watch(self, stream_id: int) -> None:
        """Note whether the peer reads the answer of an open stream."""
        if stream_id in self._streams and stream_id not in self._watched:
            while len(self._watched) >= WATCHED_MAX:
                del self._watched[next(iter(self._watched))]
            self._watched[stream_id] = None

    def unread(self, arrived_bytes: int) -> list[int]:
        """Watched streams whose answer the peer does not have whole, with so many bytes."""
        return [
            stream_id
            for stream_id, end in self._watched.items()
            if end is None or end > arrived_bytes
        ]

    # -- the peer's bytes ---------------------------------------------------------------------
    def receive(self, data: Buffer) -> tuple[_Events, bool]:
        """What came means; True: there are more whole frames, call again with nothing. Http2Error:
        the connection ends, after what is to be sent.
        """
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data
        events: _Events = []
        if not self._is_greeted and not self._take_preface():
            return events, False
        if self._held is not None:
            events.append(self._held)
            self._held = None
        has_more = self._take_frames(events)
        if self._at < len(self._buffer) and events:
            # Whoever takes a call at once wants it whole, and what is missing is on its way.
            last = events[-1]
            if isinstance(last, Opened) and not last.is_ended:
                self._held = last
                events.pop()
        return events, has_more

    def _take_frames(self, events: _Events) -> bool:
        self._work = 0
        for _ in range(self._slice_frames):
            if not self._take_frame(events):
                return False
            if self._work >= SLICE_WORK:
                break
        return True

    def _take_preface(self) -> bool:
        seen = bytes(self._buffer[: len(PREFACE)])
        if not PREFACE.startswith(seen):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "it does not begin as HTTP/2 does")
        if len(seen) < len(PREFACE):
            return False
        self._is_greeted = True
        self._at = len(PREFACE)
        return True

    def _take_frame(self, events: _Events) -> bool:
        buffer, at = self._buffer, self._at
        if len(buffer) - at < HEAD_BYTES:
            return False
        size = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
        if size > FRAME_BYTES_MAX:
            raise Http2Error(
                ErrorCode.FRAME_SIZE_ERROR,
                f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are taken",
            )
        end = at + HEAD_BYTES + size
        if len(buffer) < end:
            return False
        kind, flags = buffer[at + 3], buffer[at + 4]
        stream_id = int.from_bytes(buffer[at + 5 : at + 9], "big") & WINDOW_MAX
        payload = bytes(buffer[at + HEAD_BYTES : end])
        self._at = end
        if not self._has_settings and (kind != FrameType.SETTINGS or flags & ACK):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "its first frame is not SETTINGS")
        if self._block is not None and kind != FrameType.CONTINUATION:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block is cut by another frame")
        handler = _HANDLERS.get(kind)
        if handler is None:
            self._count_idle()  # of a kind that is not known: to be ignored
        else:
            handler(self, flags, stream_id, payload, events)
        return True

    # -- frames of streams --------------------------------------------------------------------
    def _on_headers(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        if not stream_id % 2:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"headers of stream {stream_id}")
        block = _unpadded(payload, flags)
        if flags & PRIORITIZED:
            if len(block) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "headers without their priority")
            block = block[5:]
        self._block = stream_id, flags, bytearray(block), 0
        if flags & END_HEADERS:
            self._end_block(events)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a continuation of no header block")
        first, first_flags, block, count = self._block
        block += payload
        if len(block) > self._header_bytes_max or count >= CONTINUATIONS_MAX:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block of more than {self._header_bytes_max} bytes or "
                f"{CONTINUATIONS_MAX} continuations",
            )
        self._block = first, first_flags, block, count + 1
        if flags & END_HEADERS:
            self._end_block(events)

    def _end_block(self, events: _Events) -> None:
        assert self._block is not None
        stream_id, flags, block, _ = self._block
        self._block = None
        _check_table_updates(block)
        try:
            decoded = self._decoder.decode(bytes(block), raw=True)
            headers = cast("list[tuple[bytes, bytes]]", decoded)
        except OversizedHeaderListError:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {self._header_bytes_max} bytes"
            ) from None
        except (HPACKError, ValueError):
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, UNREADABLE) from None
        sizes = (len(name) + len(value) + HEADER_EXTRA_BYTES for name, value in headers)
        self._work += sum(sizes)
        is_ended = bool(flags & END_STREAM)
        if stream_id <= self._last_id:
            self._on_trailers(stream_id, is_ended, events)
            return
        self._idle_frames = 0
        self._last_id = stream_id
        if self._is_leaving or len(self._streams) >= self._streams_max:
            self._refused += 1
            self._count_reset()
            self._out.append(reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        self._streams[stream_id] = _Stream(self._peer_stream_window, is_ended=is_ended)
        events.append(Opened(stream_id, headers, is_ended))

    def _on_trailers(self, stream_id: int, is_ended: bool, events: _Events) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._count_idle()  # We ended it, and the peer did not know.
            return
        if stream.is_ended or not is_ended:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"headers again on stream {stream_id}")
        stream.is_ended = True
        self._idle_frames = 0
        events.append(Received(stream_id, b"", True))

    def _on_data(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        size = len(payload)
        self._granted -= size
        if self._granted < CONNECTION_WINDOW // 2:
            self._out.append(window_update(0, CONNECTION_WINDOW - self._granted))
            self._granted = CONNECTION_WINDOW
        data = _unpadded(payload, flags)
        stream = self._streams.get(stream_id)
        if stream is None:
            if not 0 < stream_id <= self._last_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"data of stream {stream_id}")
            self._count_idle()
            return
        if stream.is_ended:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"data behind the end of stream {stream_id}")
        is_ended = bool(flags & END_STREAM)
        stream.granted -= size
        stream.is_ended = is_ended
        if not is_ended and stream.granted < STREAM_WINDOW // 2:
            self._out.append(window_update(stream_id, STREAM_WINDOW - stream.granted))
            stream.granted = STREAM_WINDOW
        if data or is_ended:
            self._idle_frames = 0
            events.append(Received(stream_id, data, is_ended))
        else:
            self._count_idle()

    def _on_reset(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        _check_size(payload, 4, "RST_STREAM")
        if not 0 < stream_id <= self._last_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a reset of stream {stream_id}")
        self._count_reset()
        is_refused = int.from_bytes(payload, "big") != ErrorCode.NO_ERROR
        is_watched = self._watched.pop(stream_id, -1) != -1 and is_refused
        if self._forget(stream_id) or is_watched:
            self._work += RESET_WORK
            events.append(WasReset(stream_id))

    # -- frames of the connection -------------------------------------------------------------
    def _on_priority(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        self._count_idle()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        self._count_idle()
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            return
        if len(payload) % 6:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
        if len(payload) // 6 > SETTINGS_MAX:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"{len(payload) // 6} settings in a frame; at most {SETTINGS_MAX} are taken",
            )
        self._has_settings = True
        for name, value in struct.iter_unpack(">HI", payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._set_stream_window(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES_MAX <= value < 1 << 24:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._peer_frame_bytes = min(value, 4 * FRAME_BYTES_MAX)
        self._out.append(frame(FrameType.SETTINGS, ACK, 0))
        self._flush_all()

    def _set_stream_window(self, value: int) -> None:
        if value > WINDOW_MAX:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
        change = value - self._peer_stream_window
        self._peer_stream_window = value
        self._work += len(self._streams)
        for stream in self._streams.values():
            stream.send_window += change
            if stream.send_window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window grew too large")

    def _on_push(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client pushes nothing")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        _check_size(payload, 8, "PING")
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a ping of a stream")
        self._count_idle()
        if flags & ACK:
            self._pings = 0
        else:
            self._out.append(frame(FrameType.PING, ACK, 0, payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        self._count_idle()  # It opens no more streams; those that there are go on.

    def _on_window(self, flags: int, stream_id: int, payload: bytes, events: _Events) -> None:
        _check_size(payload, 4, "WINDOW_UPDATE")
        size = int.from_bytes(payload, "big") & WINDOW_MAX
        if not size:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window update of nothing")
        if not stream_id:
            self._window += size
            if self._window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window grew too large")
            waiting_bytes = self._waiting_bytes
            self._flush_all()
            has_use = self._waiting_bytes < waiting_bytes
        else:
            stream = self._streams.get(stream_id)
            if stream is None:
                if stream_id > self._last_id:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a window of stream {stream_id}")
                self._count_idle()
                return
            stream.send_window += size
            if stream.send_window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window grew too large")
            has_use = bool(stream.waiting)
            self._flush(stream_id, stream)
        if not has_use:
            self._count_idle()

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"more than {IDLE_FRAMES_MAX} frames in a row that bring nothing",
            )

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > RESETS_MAX:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"{RESETS_MAX} streams more were reset than answered",
            )

    # -- our own ------------------------------------------------------------------------------
    def send_headers(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """Send a made block. A stream that is gone is passed over; ``end``: nothing follows."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_finished:
            return
        flags = END_HEADERS | (END_STREAM if end else 0)
        self._out.append(frame(FrameType.HEADERS, flags, stream_id, block))
        if end:
            stream.is_finished = True
            self._sent_all(stream_id, stream)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send what the peer's windows allow; the rest waits for them."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_finished or not data:
            return
        stream.waiting.append(data)
        stream.waiting_bytes += len(data)
        self._waiting_bytes += len(data)
        self._flush(stream_id, stream)

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """End a stream by a made block, behind all that waits."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_finished:
            return
        stream.is_finished = True
        stream.trailers = block
        self._flush(stream_id, stream)

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream at once."""
        if self._forget(stream_id):
            self._out.append(reset(stream_id, code))

    def ping(self) -> None:
        """Ask whether the peer is there."""
        self._pings += 1
        self._out.append(frame(FrameType.PING, 0, 0, b"kerolox!"))

    def leave(self, code: int = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Take no more streams; those that there are go on. Idempotent, but for an error."""
        if not self._is_leaving or code:
            self._is_leaving = True
            self._out.append(goaway(self._last_id, code, text))

    def _flush_all(self) -> None:
        if self._waiting_bytes:
            self._work += len(self._streams)
            for stream_id, stream in list(self._streams.items()):
                if stream.waiting:
                    self._flush(stream_id, stream)

    def _flush(self, stream_id: int, stream: _Stream) -> None:
        waiting = stream.waiting
        while waiting:
            room = min(stream.send_window, self._window, self._peer_frame_bytes)
            if room <= 0:
                return
            data = waiting[0]
            if len(data) > room:
                view = memoryview(data)
                waiting[0], data = view[room:], view[:room]
            else:
                waiting.popleft()
            size = len(data)
            stream.send_window -= size
            self._window -= size
            stream.waiting_bytes -= size
            self._waiting_bytes -= size
            self._out.append(frame(FrameType.DATA, 0, stream_id, data))
        if stream.trailers is not None:
            flags = END_HEADERS | END_STREAM
            self._out.append(frame(FrameType.HEADERS, flags, stream_id, stream.trailers))
            stream.trailers = None
            self._sent_all(stream_id, stream)

    def _sent_all(self, stream_id: int, stream: _Stream) -> None:
        """We have ended it. A peer that has not is told to send no more (RFC 9113, 8.1)."""
        self._resets = max(0, self._resets - 1)
        if stream_id in self._watched:
            self._answered.append(stream_id)
        if not stream.is_ended:
            self._out.append(reset(stream_id, ErrorCode.NO_ERROR))
        self._forget(stream_id)

    def _forget(self, stream_id: int) -> bool:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return False
        self._waiting_bytes -= stream.waiting_bytes
        return True


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame of padding alone")
    return payload[1 : len(payload) - payload[0]]


def _check_table_updates(block: bytearray) -> None:
    if len(block) <= TABLE_UPDATES_MAX:
        return
    at = 0
    for _ in range(TABLE_UPDATES_MAX + 1):
        if at >= len(block) or block[at] & 0xE0 != 0x20:
            return
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = bool(block[at] & 0x80)
            at += 1
    raise Http2Error(ErrorCode.COMPRESSION_ERROR, UNREADABLE)


def _check_size(payload: bytes, size: int, name: str) -> None:
    if len(payload) != size:
        raise Http2Error(
            ErrorCode.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes; it has {size}"
        )


_HANDLERS: dict[int, Callable[[Http2ServerSide, int, int, bytes, _Events], None]] = {
    FrameType.DATA: Http2ServerSide._on_data,
    FrameType.HEADERS: Http2ServerSide._on_headers,
    FrameType.PRIORITY: Http2ServerSide._on_priority,
    FrameType.RST_STREAM: Http2ServerSide._on_reset,
    FrameType.SETTINGS: Http2ServerSide._on_settings,
    FrameType.PUSH_PROMISE: Http2ServerSide._on_push,
    FrameType.PING: Http2ServerSide._on_ping,
    FrameType.GOAWAY: Http2ServerSide._on_goaway,
    FrameType.WINDOW_UPDATE: Http2ServerSide._on_window,
    FrameType.CONTINUATION: Http2ServerSide._on_continuation,
}

__all__ = ["Http2ServerSide"]
