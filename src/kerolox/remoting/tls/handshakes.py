"""Handshakes of a server: how many are under way, for how long, and whose turn it is.

A handshake costs a thousand times what a message does. So the loop works on handshakes for
``SLICE_SECONDS`` at a time, and serves everybody else before it goes on. Only so many are under way
at once; others wait in line, unread, which costs them nothing but time. While some wait, one whose
peer has had ``PATIENCE_SECONDS`` to send its part gives way, so that those who never finish do not
hold up those who would.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from kerolox.security.certificate_faults import peer_fault

if TYPE_CHECKING:
    from kerolox.remoting.tls.transport import TlsTransport

SLICE_SECONDS = 0.002
"""How long handshakes are worked on before others are served."""

PATIENCE_SECONDS = 1.0
"""How long a handshake may wait for its peer, all in all, while others wait for their turn."""

CHECK_SECONDS = 0.1
"""How often that is examined."""

_log = logging.getLogger(__name__)


class HandshakeRefusedError(Exception):
    """The server ends a handshake; the text says why, and what to do."""


@dataclass(slots=True)
class HandshakeCounters:
    """What became of handshakes since the start."""

    done: int = 0
    resumed: int = 0
    """Of those, the ones that went on with an earlier session."""
    failed: int = 0
    """By the peer's fault, or given up by it."""
    timed_out: int = 0
    crowded_out: int = 0
    """Gave way for others."""
    refused: int = 0
    """The server speaks no TLS, or has no certificate."""


@dataclass(slots=True)
class _Handshake:
    timer: asyncio.TimerHandle
    is_started: bool = False
    waits_since: float | None = None
    """Since when it waits for its peer; None: it is the server's turn."""
    waited_seconds: float = 0.0
    """For its peer, before that."""


class Handshakes:
    """Those of one server, in its loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Callable[[], ssl.SSLContext | None],
        *,
        handshakes_max: int,
        seconds_max: float,
    ) -> None:
        """Args:
        loop: of the server.
        context: what new handshakes begin with; None: not yet, ``go_on`` is called later.
        handshakes_max: under way at the same time.
        seconds_max: from a handshake's first bytes to its end.
        """
        self.counters = HandshakeCounters()
        self.is_used = False
        """Whether any client began with TLS."""
        self._loop = loop
        self._context = context
        self._handshakes_max = handshakes_max
        self._seconds_max = seconds_max
        self._all: dict[TlsTransport, _Handshake] = {}
        self._queue: deque[TlsTransport] = deque()
        """Those that wait to begin; some may be gone."""
        self._under_way = 0
        self._ready: deque[TlsTransport] = deque()
        self._is_stepping = False
        self._check_timer: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """Handshakes that have begun and not ended."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """Those that wait to begin."""
        return len(self._all) - self._under_way

    def add(self, transport: TlsTransport) -> None:
        """A connection began with TLS."""
        self.is_used = True
        timer = self._loop.call_later(self._seconds_max, self._time_out, transport)
        self._all[transport] = _Handshake(timer)
        self._queue.append(transport)
        self.go_on()

    def go_on(self) -> None:
        """Begin as many as may be under way."""
        while self._queue and self._under_way < self._handshakes_max:
            context = self._context()
            if context is None:
                return
            transport = self._queue.popleft()
            handshake = self._all.get(transport)
            if handshake is not None:
                handshake.is_started = True
                self._under_way += 1
                transport.begin(context)
        if self._queue and self._check_timer is None:
            self._check_timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def step_soon(self, transport: TlsTransport) -> None:
        """Bytes of a handshake came: it goes on when it is its turn."""
        handshake = self._all.get(transport)
        if handshake is None:
            return
        if handshake.waits_since is not None:
            handshake.waited_seconds += monotonic() - handshake.waits_since
            handshake.waits_since = None
        self._ready.append(transport)
        if not self._is_stepping:
            self._is_stepping = True
            self._loop.call_soon(self._step)

    def ended(self, transport: TlsTransport, error: Exception | None) -> None:
        """A handshake is over; None: well."""
        handshake = self._all.pop(transport, None)
        if handshake is None:
            return
        handshake.timer.cancel()
        if handshake.is_started:
            self._under_way -= 1
        self._count(transport, error)
        if self._queue:
            # Not at once: this may be a part of going on.
            self._loop.call_soon(self.go_on)

    def refuse_all(self, reason: str) -> None:
        """End those that wait to begin: there is nothing to begin with."""
        self._queue.clear()
        for transport, handshake in list(self._all.items()):
            if not handshake.is_started:
                self.counters.refused += 1
                transport.fail(HandshakeRefusedError(reason))

    def stop(self) -> None:
        """Look no more; connections are ended by their server."""
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _step(self) -> None:
        slice_end = monotonic() + SLICE_SECONDS
        while self._ready:
            transport = self._ready.popleft()
            try:
                transport.step()
            except Exception:
                # One that fails in a way nobody thought of must not stop the others.
                _log.exception(
                    "closing %s: its TLS handshake failed", transport.above.remote_address
                )
                transport.above.abort()
            now = monotonic()
            handshake = self._all.get(transport)
            if handshake is not None:
                handshake.waits_since = now
            if now >= slice_end:
                break
        if self._ready:
            self._loop.call_soon(self._step)
        else:
            self._is_stepping = False

    def _time_out(self, transport: TlsTransport) -> None:
        self.counters.timed_out += 1
        transport.fail(
            HandshakeRefusedError(
                f"it did not finish the TLS handshake within {self._seconds_max:g} s "
                "(tls.server.handshakeTimeoutMillis)"
            )
        )

    def _check(self) -> None:
        """While others wait: have those give way whose peers take too long."""
        self._check_timer = None
        now = monotonic()
        wanted = self.waiting
        for transport, handshake in list(self._all.items()):
            if wanted <= 0:
                break
            since = handshake.waits_since
            if since is None or handshake.waited_seconds + now - since < PATIENCE_SECONDS:
                continue
            wanted -= 1
            self.counters.crowded_out += 1
            transport.fail(
                HandshakeRefusedError(
                    f"it is slow with the TLS handshake, {self._handshakes_max} are under way "
                    "and others wait (tls.server.handshakesMax)"
                )
            )
        self.go_on()

    def _count(self, transport: TlsTransport, error: Exception | None) -> None:
        if error is None:
            self.counters.done += 1
            self.counters.resumed += transport.is_resumed
            return
        if isinstance(error, HandshakeRefusedError):
            reason = str(error)
        else:
            self.counters.failed += 1
            reason = (
                f"no TLS connection: {peer_fault(error)}"
                if isinstance(error, ssl.SSLError)
                else "it closed the connection during the TLS handshake; it may not trust our "
                "certificate, or wait no longer; examine its log"
            )
        # A kind of line for each reason: they are limited by kind.
        _log.warning(f"closing %s: {reason.replace('%', '%%')}", transport.above.remote_address)
