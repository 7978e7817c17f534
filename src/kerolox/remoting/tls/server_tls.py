"""TLS of one role: its mode, its certificate, and a check of the first byte of each connection.

A connection begins with the byte ``0x16`` when it speaks TLS; a frame never does. Who says nothing
is served as ever: it counts among the connections, and is closed when it was idle for too long.
From the first byte of TLS on, and in mode ``enforcing`` from the start, the time of a handshake
counts.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.errors import ConfigError
from kerolox.remoting.connection import FrameConnection
from kerolox.remoting.tls.handshakes import Handshakes
from kerolox.role_settings import DISABLED, ENFORCING, TlsServerSettings
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from kerolox.remoting.tls.watching import CertificateWatch

WATCH_SECONDS = 0.5
"""Between two checks of the certificate's files, as in RocketMQ."""

RETRY_SECONDS = 5.0
"""After so long it is tried again to make a certificate."""

TLS_FIRST_BYTE = 0x16

_log = logging.getLogger(__name__)


class ServerTls:
    """TLS of all ports of a role, in one loop."""

    def __init__(
        self,
        settings: TlsServerSettings,
        *,
        watch_seconds: float = WATCH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """No file is read before ``start``; then every ``watch_seconds``. Mode ``disabled`` has no
        such object. ``clock``: seconds since the epoch, for what expires.
        """
        self._settings = settings
        self.is_enforcing = settings.tls_server_mode == ENFORCING
        self.handshake_seconds_max = settings.tls_server_handshake_timeout_millis / 1000
        self._watch_seconds = watch_seconds
        self._clock = clock
        self._buffer: memoryview | None = None
        """Made when the first connection speaks TLS."""
        self._context: ssl.SSLContext | None = None
        self._watch: CertificateWatch | None = None
        self._making: asyncio.Task[None] | None = None
        self._make_again_at = 0.0
        self._why_none = ""
        """Why no certificate could be made the last time."""
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # until started
        self.handshakes: Handshakes = None  # type: ignore[assignment]

    @classmethod
    def of(cls, settings: TlsServerSettings) -> ServerTls | None:
        """None: the mode is ``disabled``."""
        return None if settings.tls_server_mode == DISABLED else cls(settings)

    def start(self) -> None:
        """Read the files and begin to watch them; in the running loop. ConfigError: one can't be
        used, or settings contradict each other.
        """
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self.handshakes = Handshakes(
            self._loop,
            self._context_now,
            handshakes_max=settings.tls_server_handshakes_max,
            seconds_max=self.handshake_seconds_max,
        )
        _warn_of(settings)
        if settings.is_test_mode:
            return
        # Few servers have a certificate of their own.
        from kerolox.remoting.tls.watching import CertificateWatch
        from kerolox.security.server.contexts import ServerFiles

        watch = CertificateWatch(ServerFiles.of(settings), self._take_over, clock=self._clock)
        watch.start(self._watch_seconds)
        self._watch = watch

    async def stop(self) -> None:
        """Watch no more, when the ports are closed. Idempotent."""
        if self._watch is not None:
            await self._watch.stop()
        await end_tasks(self._making)
        if self.handshakes is not None:
            self.handshakes.stop()

    async def context(self) -> ssl.SSLContext:
        """What a handshake begins with that another one than this class makes; OSError: no
        certificate could be made.
        """
        context = self._context_now()
        if context is None and self._making is not None:
            await asyncio.wait([self._making])
            context = self._context
        if context is None:
            raise OSError(f"it wants TLS, but {self._why_none}")
        return context

    def detect(self, connection: FrameConnection, transport: asyncio.Transport) -> None:
        """A connection is open: what it begins with decides what it speaks."""
        transport.set_protocol(_ProtocolDetector(self, connection, transport))

    def begin(
        self, connection: FrameConnection, transport: asyncio.Transport, hello: bytes
    ) -> None:
        """A connection began with TLS."""
        from kerolox.remoting.tls.transport import CIPHER_BUFFER_BYTES, TlsTransport

        if self._buffer is None:
            self._buffer = memoryview(bytearray(CIPHER_BUFFER_BYTES))
        self.handshakes.add(
            TlsTransport(transport, connection, self.handshakes, self._buffer, hello)
        )

    def handshake_counts(self) -> dict[str, int]:
        """What became of handshakes, by name; empty before the first."""
        counters = self.handshakes.counters
        if not self.handshakes.is_used:
            return {}
        return {
            "tlsHandshakesDone": counters.done,
            "tlsHandshakesResumed": counters.resumed,
            "tlsHandshakesFailed": counters.failed,
            "tlsHandshakesTimedOut": counters.timed_out,
            "tlsHandshakesCrowdedOut": counters.crowded_out,
            "tlsHandshakesRefused": counters.refused,
            "tlsHandshakesUnderWay": self.handshakes.under_way,
            "tlsHandshakesWaiting": self.handshakes.waiting,
        }

    def _take_over(self, context: ssl.SSLContext) -> None:
        self._context = context

    def _context_now(self) -> ssl.SSLContext | None:
        """What a handshake begins with; None: it is being made."""
        if self._context is None and self._making is None:
            self._making = self._loop.create_task(self._make())
        return self._context

    async def _make(self) -> None:
        """Make a certificate, when the first client wants one."""
        from kerolox.security.server.self_signed import self_signed_context

        try:
            if self._loop.time() >= self._make_again_at:
                self._context = await asyncio.to_thread(self_signed_context)
        except ConfigError as error:
            self._why_none = str(error)
            self._make_again_at = self._loop.time() + RETRY_SECONDS
        finally:
            self._making = None
        if self._context is None:
            self.handshakes.refuse_all(f"it wants TLS, but {self._why_none}")
        else:
            _log.warning(
                "TLS has a certificate that was made here (tls.test.mode.enable): clients that "
                "check certificates refuse it; name one (tls.server.certPath, tls.server.keyPath)"
            )
            self.handshakes.go_on()


class _ProtocolDetector(asyncio.BufferedProtocol):
    """Stands in a connection's place until its first byte."""

    def __init__(
        self, tls: ServerTls, connection: FrameConnection, transport: asyncio.Transport
    ) -> None:
        self._tls = tls
        self._connection = connection
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        if tls.is_enforcing:
            self._timer = asyncio.get_running_loop().call_later(
                tls.handshake_seconds_max, self._close_silent
            )

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        connection = self._connection
        begin = memoryview(connection.get_buffer(-1))[:nbytes]
        if begin[0] == TLS_FIRST_BYTE:
            self._tls.begin(connection, self._transport, bytes(begin))
        elif self._tls.is_enforcing:
            self._tls.handshakes.counters.refused += 1
            _log.warning(
                "closing %s: it speaks no TLS, and tls.server.mode=enforcing; switch TLS on in the "
                "client (setUseTLS(true), tls.enable=true), or set permissive here",
                connection.remote_address,
            )
            connection.close()
        else:
            self._transport.set_protocol(connection)
            connection.buffer_updated(nbytes)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.connection_lost(exc)

    def _close_silent(self) -> None:
        self._tls.handshakes.counters.timed_out += 1
        _log.warning(
            "closing %s: it began no TLS handshake within %g s (tls.server.handshakeTimeoutMillis)",
            self._connection.remote_address,
            self._tls.handshake_seconds_max,
        )
        self._connection.close()


def _warn_of(settings: TlsServerSettings) -> None:
    """Say what settings do not have the effect that they seem to have."""
    wish = settings.tls_server_need_client_auth.lower()
    if settings.is_test_mode and settings.tls_server_cert_path:
        _log.warning(
            "tls.server.certPath has no effect: with tls.test.mode.enable=true the server makes a "
            "certificate for itself; set it to false"
        )
    if wish != "none" and not settings.is_client_asked:
        why = "in test mode" if settings.is_test_mode else "without tls.server.authClient=true"
        _log.warning(
            "tls.server.need.client.auth=%s has no effect: %s nobody checks certificates of "
            "clients, so none is asked for",
            wish,
            why,
        )
