"""TLS of connections that are made again and again: files that were renewed count from then on.

Certificates are renewed while a client or a broker runs. Each new connection checks whether one of
the files changed, and has what they say now. Connections that are there stay as they are.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.security.tls import Tls, TlsSettings, context_of

_log = logging.getLogger(__name__)


class TlsContexts:
    """The context of the next connection to servers, of one ``tls=``."""

    _seen: tuple[object, ...]
    _context: ssl.SSLContext | None

    def __init__(self, tls: Tls | Callable[[], Tls]) -> None:
        """Files are read now. What gives ``tls`` may give another one later; a context made
        elsewhere stays as it is. ConfigError: it can be no ``tls=``, or a file of it can't be used.
        """
        self._given = tls if callable(tls) else lambda: tls
        self._read()

    def current(self) -> ssl.SSLContext | None:
        """What a new connection speaks; None: no TLS.

        Files that can't be used now, as halfway through a renewal, are a warning: connections have
        what was read before, and the files are read again when they change.
        """
        if self._read_stamp(self._given()) == self._seen:
            return self._context
        try:
            self._read()
        except ConfigError as error:
            _log.warning(
                "%s; new connections have what was read before, until that changes again", error
            )
        else:
            _log.info("TLS has changed; new connections have its files as they are now")
        return self._context

    def _read(self) -> None:
        tls = self._given()
        # What changes while it is read is read once more.
        self._seen = self._read_stamp(tls)
        self._context = context_of(tls)

    @staticmethod
    def _read_stamp(tls: Tls) -> tuple[object, ...]:
        """What is different when settings changed, or a file was written or replaced."""
        if not isinstance(tls, TlsSettings):
            return (tls,)
        return (tls, *map(_stamp, (tls.ca, tls.certificate, tls.key)))


def _stamp(path: str | Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
