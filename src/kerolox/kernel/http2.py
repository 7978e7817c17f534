"""The server's end of one HTTP/2 connection: bytes in, events out, bytes out.

``kerolox.remoting.http2`` has it in Python, the oracle of the native one: the same bytes give the
same events, output and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Http2Error(Exception):
    """The peer broke the protocol or a limit: the connection ends."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        """An error code of HTTP/2."""


class Opened(NamedTuple):
    """A stream began."""

    stream_id: int
    headers: list[tuple[bytes, bytes]]
    is_ended: bool
    """The peer sends nothing more on it."""


class Received(NamedTuple):
    """Bytes of a stream came; ``data`` may be empty."""

    stream_id: int
    data: bytes
    is_ended: bool


class WasReset(NamedTuple):
    """The peer ended a stream: nobody wants what is left of its answer. Of a watched stream also
    when all of that was sent."""

    stream_id: int


Http2Event = Opened | Received | WasReset


class Http2ServerSide(Protocol):
    """One connection."""

    def __init__(
        self, *, streams_max: int = ..., header_bytes_max: int = ..., slice_frames: int = ...
    ) -> None:
        """The first output is our settings.

        Args:
            streams_max: open streams; further ones are refused.
            header_bytes_max: of one header block, as it comes; and of its headers, as RFC 7541
                counts them.
            slice_frames: frames that one call of ``receive`` handles.
        """

    @property
    def stream_count(self) -> int:
        """Open streams."""

    @property
    def refused_streams(self) -> int:
        """Streams that were refused since the start."""

    @property
    def unanswered_pings(self) -> int:
        """Our own that the peer did not answer yet."""

    @property
    def kept_bytes(self) -> int:
        """Frames that are not whole, and answers that the peer grants no window for."""

    def waiting_bytes(self, stream_id: int) -> int:
        """Of a stream's answer, what the peer grants no window for."""

    def take_output(self) -> bytes:
        """What is to be sent."""

    @property
    def taken_bytes(self) -> int:
        """What was taken since the start."""

    def watch(self, stream_id: int) -> None:
        """Note whether the peer reads the answer of an open stream. Of the last ones alone."""

    def unread(self, arrived_bytes: int) -> list[int]:
        """Watched streams whose answer the peer does not have whole, with so many bytes of what was
        taken."""

    def receive(self, data: Buffer) -> tuple[list[Http2Event], bool]:
        """What came means; True: there are more whole frames, call again with nothing. Http2Error:
        the connection ends, after what is to be sent.
        """

    def send_headers(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """Send a made block. A stream that is gone is passed over; ``end``: nothing follows."""

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send what the peer's windows allow; the rest waits for them."""

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """End a stream by a made block, behind all that waits."""

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream at once."""

    def ping(self) -> None:
        """Ask whether the peer is there."""

    def leave(self, code: int = 0, text: str = "") -> None:
        """Take no more streams; those that there are go on. Idempotent, but for an error."""
