"""The fast path of a connection: chunks of bytes in, answers and slow frames out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from typing_extensions import Buffer

FED_READY = 1
"""``Fed`` flag: ``Store.drain_ready`` has answers for other connections (held pulls woken)."""

FED_MORE = 2
"""``Fed`` flag: the answer budget was used up; call ``feed(b"", 0)`` again after the write."""


FedMembers = tuple[bytes, list[bytes] | None, int, str | None]
"""The members of ``Fed``, as a plain tuple."""


class Fed(NamedTuple):
    """What one ``Connection.feed`` gave."""

    answers: bytes
    """Whole response frames for this connection, in request order; one write. May be empty."""
    slow: list[bytes] | None
    """Frames for Python (everything after the 4-byte length), in order; None when there is none."""
    flags: int
    """``FED_READY`` | ``FED_MORE``."""
    error: str | None
    """Set when the peer broke the framing: write ``answers``, then close the connection."""


@runtime_checkable
class ConnectionKernel(Protocol):
    """The fast path of one connection. Constructed as ``Connection(store, id, born_host)``."""

    def feed(self, data: Buffer, size: int) -> FedMembers:
        """Take ``data[:size]``, all complete frames of it and of what was left before. See
        ``Fed``."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of frames that are not whole yet, or wait for their turn."""

    def close(self) -> None:
        """Drop held pulls and pending answers of this connection. Idempotent."""
