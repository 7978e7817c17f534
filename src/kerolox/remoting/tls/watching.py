"""Certificates of a server that are renewed while it runs.

Files are read twice a second and compared with what is in force: their times tell too little, where
they are written twice within a tick or come from a backup. Connections that are there stay as they
are; new ones have what the files say. A wrong file leaves the old one in force. It is told when it
is the same at the next check: certificate and key are written one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable

from kerolox.errors import ConfigError
from kerolox.security.server.certificates import CertificateInfo
from kerolox.security.server.contexts import ServerFiles, Snapshot
from kerolox.tasks import end_tasks

DAY_SECONDS = 24 * 3600.0
"""After so long the same files make a new context: its keys of session tickets are new, and a
certificate that expires soon is told again."""

_log = logging.getLogger(__name__)


class CertificateWatch:
    """The files of one role; ``take_over`` gets each context that they make."""

    def __init__(
        self,
        files: ServerFiles,
        take_over: Callable[[ssl.SSLContext], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` gives seconds since the epoch, for what expires."""
        self._files = files
        self._take_over = take_over
        self._clock = clock
        self._in_force: Snapshot = ()
        self._info: CertificateInfo | None = None
        self._wrong: Snapshot | str | None = None
        """What the files held, or why they could not be read, when they were last wrong."""
        self._is_logged = False
        self._made_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, watch_seconds: float) -> None:
        """Read the files, and examine them again and again; in the running loop. ConfigError: one
        can't be used.
        """
        held = self._files.snapshot()
        self._have(held, *self._files.load())
        self._task = asyncio.get_running_loop().create_task(self._watch(watch_seconds))

    async def stop(self) -> None:
        """Look no more. Idempotent."""
        await end_tasks(self._task)

    async def _watch(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                held = await asyncio.to_thread(self._files.snapshot)
            except ConfigError as error:
                self._note_wrong(str(error), error)
                continue
            is_old = self._clock() - self._made_at >= DAY_SECONDS
            if held == self._in_force and not is_old:
                self._wrong = None
                continue
            if held == self._wrong and self._is_logged:
                continue
            try:
                loaded = await asyncio.to_thread(self._files.load)
            except ConfigError as error:
                self._note_wrong(held, error)
            else:
                self._wrong = None
                self._have(held, *loaded)

    def _have(self, held: Snapshot, context: ssl.SSLContext, info: CertificateInfo) -> None:
        self._in_force, self._info = held, info
        self._made_at = self._clock()
        self._take_over(context)
        _log.info("TLS: new connections get the certificate %s", info)
        trouble = info.trouble(self._made_at)
        if trouble:
            _log.warning("TLS: the certificate %s %s", info, trouble)

    def _note_wrong(self, state: Snapshot | str, error: ConfigError) -> None:
        if state != self._wrong:
            self._wrong, self._is_logged = state, False
        elif not self._is_logged:
            self._is_logged = True
            _log.error("TLS goes on with the certificate %s: %s", self._info, error)
