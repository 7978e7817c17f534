"""The fast path of a connection: chunks of bytes in, answers and slow frames out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kerolox.kernel.http2 import Http2Event, Http2ServerSide

FED_READY = 1
"""``Fed`` flag: ``Store.drain_ready`` has answers for other connections (held pulls woken)."""

FED_MORE = 2
"""``Fed`` flag: the answer budget was used up; call ``feed(b"", 0)`` again after the write."""

FED_WAITS = 4
"""``Fed`` flag: senders wait until a slave has what was appended."""

FED_FOREIGN = 8
"""``Fed`` flag: the peer broke the framing since it speaks another protocol (TLS, HTTP)."""

ALLOWANCE_MAX = (1 << 62) - 1
"""``allowance`` of a connection that may have any number of requests answered."""

FedMembers = tuple[bytes, list[bytes] | None, int, str | None]
"""The members of ``Fed``, as a plain tuple."""


class Fed(NamedTuple):
    """What one ``Connection.feed`` gave."""

    answers: bytes
    """Whole response frames for this connection, in request order; one write. May be empty."""
    slow: list[bytes] | None
    """Frames for Python (everything after the 4-byte length), in order; None when there is none."""
    flags: int
    """``FED_READY`` | ``FED_MORE`` | ``FED_WAITS`` | ``FED_FOREIGN``."""
    error: str | None
    """Set when the peer broke the framing: write ``answers``, then close the connection."""


class ConnectionAccess(Protocol):
    """What access control knows of a connection's peer; see ``AccessTables``."""

    def set_white(self, is_white: bool, access_keys: Sequence[str]) -> None:
        """Say which white lists have the peer's address; at first none has it.

        Where one had it and has it no more, the connection's held pulls are answered with the next
        tick.

        Args:
            is_white: the global one; no request is checked.
            access_keys: those of these accounts, whose requests need neither signature nor
                permission then.
        """


class Given(NamedTuple):
    """Messages of a queue that a receive gave out; they follow each other."""

    group: str
    topic: str
    queue_id: int
    start: int
    """Offset of the first."""
    messages: int
    pop_time: int
    invisible_ms: int


GivenMembers = tuple[str, str, int, int, int, int, int]
"""The members of ``Given``, as a plain tuple."""

TRIED_FOUND, TRIED_NOTHING, TRIED_DECLINED = 1, 0, -1
"""What ``ConnectionKernel.try_receive`` returns."""


@runtime_checkable
class ConnectionKernel(ConnectionAccess, Protocol):
    """The fast path of one connection. Constructed as ``Connection(store, id, born_host)``."""

    def feed(self, data: Buffer, size: int) -> FedMembers:
        """Take ``data[:size]``, all complete frames of it and of what was left before. See
        ``Fed``."""

    def feed_calls(self, http2: Http2ServerSide, data: Buffer) -> tuple[list[Http2Event], int]:
        """Take a chunk of HTTP/2, of a side that this kernel's module made. Calls of gRPC that it
        knows for certain are answered, and nobody sees them; the rest are events for Python.
        Flags: as those of ``Fed``, of which FED_MORE asks for a call with nothing. Http2Error: see
        :meth:`~kerolox.kernel.http2.Http2ServerSide.receive`.
        """

    def answer_calls(self, http2: Http2ServerSide, answers: bytes) -> None:
        """Send answers of such calls that became ready later: what ``Store.drain_ready`` has for
        this connection."""

    def try_receive(
        self, http2: Http2ServerSide, stream_id: int, client_id: str, request: bytes
    ) -> int:
        """Try to answer a ReceiveMessage of a stream by queues of pops that are lent, also when it
        has waited. ``client_id``: who gets the messages. TRIED_FOUND: it is answered whole.
        TRIED_NOTHING: all queues are lent, and there is nothing for the group. TRIED_DECLINED: only
        the caller knows; nothing is changed."""

    def take_given(self, streams: list[int]) -> list[GivenMembers]:
        """What receives of these streams gave out by the kernel itself: each is told once."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of frames that are not whole yet, or wait for their turn."""

    allowance: int
    """How many frames ``feed`` may still answer by itself: each that it does takes one, and at 0
    all are slow. ``ALLOWANCE_MAX``, as it is at first, is never used up."""

    def close(self) -> None:
        """Drop held pulls and pending answers of this connection. Idempotent."""
