"""TLS between a socket's transport and its connection.

:class:`TlsTransport` is both: the protocol of the socket's own transport below, and the transport
of the connection above. OpenSSL works in memory. What a chunk decrypts to is fed at once, and what
is written leaves at once, so that limits of unsent bytes and pauses are those of the socket below.

Work and memory of one connection are bounded: a chunk becomes one feed, a chunk of very many
records takes several iterations of the event loop, and OpenSSL's buffers, which never shrink, are
filled in small pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable
from typing import Protocol

from kerolox.remoting.connection import READ_BUFFER_BYTES, FrameConnection

CIPHER_BUFFER_BYTES = READ_BUFFER_BYTES - 32 * 1024
"""Of encrypted bytes that are read at once. With the rest of a record from before, what they
decrypt to always fits the read buffer of connections."""

HANDSHAKE_CHUNK_BYTES = 16 * 1024
"""Of a handshake that are read at once."""

PIECE_IN_BYTES = 16 * 1024
PIECE_OUT_BYTES = 32 * 1024
"""What OpenSSL's buffers get at once."""

RECORDS_PER_SLICE = 1024
"""After so many records of a connection others have their turn. They may have a byte each."""

_HANDSHAKE, _OPEN, _ENDED = range(3)

_log = logging.getLogger(__name__)


class HandshakeScheduler(Protocol):
    """Who decides when a handshake goes on."""

    def step_soon(self, transport: TlsTransport) -> None:
        """Bytes came; call ``step`` when it is its turn."""

    def ended(self, transport: TlsTransport, error: Exception | None) -> None:
        """The handshake is over; None: well."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """One connection that speaks TLS, from its first bytes on."""

    def __init__(
        self,
        below: asyncio.Transport,
        above: FrameConnection,
        scheduler: HandshakeScheduler,
        buffer: memoryview,
        hello: bytes,
    ) -> None:
        """Reading stops until ``begin``. This becomes the protocol of the socket's transport
        ``below``.

        ``hello``: what was read already. ``buffer``: all such transports read into it, of
        ``CIPHER_BUFFER_BYTES``.
        """
        super().__init__()
        self.above = above
        self._below = below
        self._scheduler = scheduler
        self._buffer = buffer
        self._state = _HANDSHAKE
        self._held = hello
        """Read, and not given to OpenSSL yet."""
        self._is_paused = False
        self.written_bytes = 0
        """Encrypted ones, to the socket."""
        self._context: ssl.SSLContext = None  # type: ignore[assignment]  # until begun
        self._incoming: ssl.MemoryBIO = None  # type: ignore[assignment]  # until its first step
        self._outgoing: ssl.MemoryBIO = None  # type: ignore[assignment]
        self._ssl: ssl.SSLObject = None  # type: ignore[assignment]
        below.set_protocol(self)
        below.pause_reading()

    # -- the handshake ------------------------------------------------------------------------
    def begin(self, context: ssl.SSLContext) -> None:
        """Start the handshake with the bytes that were read."""
        self._context = context
        self._scheduler.step_soon(self)

    def step(self) -> None:
        """Take the handshake as far as the bytes lead that are here."""
        if self._state != _HANDSHAKE:
            return
        if self._ssl is None:
            # Not before its turn: OpenSSL's objects cost time, too.
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._ssl = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._incoming.write(self._held)
            self._held = b""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            self._below.resume_reading()
        except OSError as error:
            self.fail(error)
        else:
            self._open()

    def fail(self, error: Exception) -> None:
        """End the handshake; the peer gets the alert that OpenSSL has for it."""
        if self._state != _HANDSHAKE:
            return
        self._state = _ENDED
        if self._outgoing is not None:
            self._flush()
        self._scheduler.ended(self, error)
        self.above.close()

    def _open(self) -> None:
        self._state = _OPEN
        self._flush()
        shown = self._ssl.getpeercert()
        from kerolox.security.server.certificates import subject_text

        subject = subject_text(shown.get("subject", ())) if shown else None  # type: ignore[arg-type]
        self._scheduler.ended(self, None)
        self.above.encrypted(self, subject)
        self._take(memoryview(b""))
        if not self._is_paused and not self._held:
            self._below.resume_reading()

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake went on with an earlier session."""
        return bool(self._ssl.session_reused)

    # -- the protocol of the transport below --------------------------------------------------
    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop before each read."""
        return self._buffer if self._state == _OPEN else self._buffer[:HANDSHAKE_CHUNK_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes were read."""
        if self._state == _OPEN:
            self._take(self._buffer[:nbytes])
        elif self._state == _HANDSHAKE:
            self._incoming.write(self._buffer[:nbytes])
            # What waits for its turn is bounded by one chunk.
            self._below.pause_reading()
            self._scheduler.step_soon(self)

    def _take(self, cipher: memoryview) -> None:
        """Decrypt what came, and feed it in one piece."""
        incoming, read = self._incoming, self._ssl.read
        plain = self.above.get_buffer(-1)
        view = memoryview(plain)
        room, end = len(view), len(cipher)
        filled = at = records = 0
        is_over, fault = False, None
        try:
            while not is_over and records < RECORDS_PER_SLICE:
                if at < end:
                    incoming.write(cipher[at : at + PIECE_IN_BYTES])
                    at += PIECE_IN_BYTES
                try:
                    while incoming.pending:
                        size = read(room - filled, view[filled:])
                        if not size:
                            is_over = True
                            break
                        filled += int(size)
                        records += 1
                except ssl.SSLWantReadError:
                    pass  # The rest of a record is still to come.
                if at >= end:
                    break
        except ssl.SSLError as error:
            fault = error
        if self._outgoing.pending:
            # An answer to the peer's close, change of keys or mistake.
            self._flush()
        if at < end and fault is None and not is_over:
            self._hold(cipher[at:])
        if filled:
            self.above.buffer_updated(filled)
        if fault is not None:
            self._break_off(fault)
        elif is_over and not self.above.eof_received():
            self.above.close()

    def _hold(self, rest: memoryview) -> None:
        self._held = bytes(rest)
        self._below.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._state != _OPEN or self._is_paused or not self._held:
            return
        held, self._held = self._held, b""
        self._take(memoryview(held))
        if not self._held and not self._is_paused and not self._below.is_closing():
            self._below.resume_reading()

    def _break_off(self, error: ssl.SSLError) -> None:
        words = (error.reason or "no reason given").replace("_", " ").lower()
        _log.warning("closing %s: its TLS is broken: %s", self.above.remote_address, words)
        self.above.close()

    def eof_received(self) -> bool:
        """Called by the loop: the peer sends no more."""
        if self._state == _HANDSHAKE:
            self.fail(ConnectionResetError())
            return False
        keeps_open = self.above.eof_received()
        if not keeps_open:
            # Leave is taken even so: OpenSSL forgets the session of a connection that just ends.
            self.close()
        return keeps_open

    def pause_writing(self) -> None:
        """Called by the loop: the peer does not take what is written."""
        self.above.pause_writing()

    def resume_writing(self) -> None:
        """Called by the loop: the peer took enough of it."""
        self.above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the socket is closed."""
        if self._state == _HANDSHAKE:
            self._state = _ENDED
            self._scheduler.ended(self, exc or ConnectionResetError())
        self._state = _ENDED
        self._held = b""
        self.above.connection_lost(exc)

    # -- the transport of the connection above ------------------------------------------------
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._state != _OPEN or not data:
            return
        try:
            if len(data) <= PIECE_OUT_BYTES and self._ssl.write(data) == len(data):
                self._flush()
                return
            pieces = self._pieces(memoryview(data))
            self.written_bytes += sum(map(len, pieces))
            self._below.writelines(pieces)
        except ssl.SSLError as error:
            self._break_off(error)

    def _pieces(self, data: memoryview) -> list[bytes]:
        encrypt, outgoing = self._ssl.write, self._outgoing
        pieces = []
        at = 0
        while at < len(data):
            at += encrypt(data[at : at + PIECE_OUT_BYTES])
            if outgoing.pending >= PIECE_OUT_BYTES:
                pieces.append(outgoing.read())
        pieces.append(outgoing.read())
        return pieces

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self.written_bytes += len(data)
            self._below.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send several pieces."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Take leave, send what is unsent, and close. The peer's leave is not waited for."""
        if self._state == _OPEN:
            self._state = _ENDED
            with contextlib.suppress(OSError):
                self._ssl.unwrap()
            self._flush()
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        self._below.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._below.is_closing()

    def pause_reading(self) -> None:
        """Feed nothing more for now."""
        self._is_paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Go on: first with what is held."""
        self._is_paused = False
        if self._held:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._below.resume_reading()

    def is_reading(self) -> bool:
        """Whether it is not paused."""
        return not self._is_paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Those of the socket, in encrypted bytes."""
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Unsent bytes, encrypted."""
        return self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """As asyncio's transports have it, ``ssl_object`` too."""
        return self._ssl if name == "ssl_object" else self._below.get_extra_info(name, default)
