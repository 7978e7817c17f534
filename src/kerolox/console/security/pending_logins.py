"""Logins that a provider of OpenID Connect is asked about: what proves that a browser began one.

Nothing is kept until an answer comes. The browser's cookie has a random value and the time, and
``state``, ``nonce`` and PKCE's verifier are made from it by a key of this process (HMAC). So many
who begin a login push nobody else's out. A state counts once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.errors import ClientError

__all__ = ["LOGIN_SECONDS_MAX", "PendingLogin", "PendingLogins", "SignInError"]

LOGIN_SECONDS_MAX = 600
"""From the begin of a login to the provider's answer."""
USED_MAX = 10_000
"""States that are remembered, so that none counts again."""
NEXT_CHARACTERS_MAX = 1_024

_KEY_BYTES = 32
_TOO_OLD = (
    "This login was begun in another browser, is used already, or is too old. Begin it again."
)


class SignInError(ClientError):
    """Somebody is not let in by the provider's answer."""


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """One that has begun."""

    cookie: str
    """For the browser that began it."""
    state: str
    nonce: str
    verifier: str
    """PKCE's; the provider gets its hash first."""
    next_page: str
    """Where the browser goes on."""

    @property
    def challenge(self) -> str:
        """The hash of the verifier, by S256."""
        return _base64(hashlib.sha256(self.verifier.encode()).digest())


class PendingLogins:
    """Makes and recognizes them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds; tests turn one by hand."""
        self._clock = clock
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._used: dict[str, float] = {}

    def begin(self, next_page: str) -> PendingLogin:
        """A new one. ``next_page``: where the browser goes on; the start where it is too long."""
        page = next_page if len(next_page) <= NEXT_CHARACTERS_MAX else ""
        parts = f"{int(self._clock()):x}", secrets.token_urlsafe(_KEY_BYTES)
        return self._of(".".join((*parts, _base64(page.encode("utf-8", "replace")))))

    def take(self, cookie: str, state: str) -> PendingLogin:
        """The one of a browser's cookie and of the provider's answer. It does not count again.
        SignInError: both don't belong together, it is too old, or was taken before.
        """
        try:
            pending = self._of(cookie)
            began = int(cookie.partition(".")[0], 16)
        except ValueError:
            raise SignInError(_TOO_OLD) from None
        now = self._clock()
        is_own = hmac.compare_digest(pending.state.encode(), state.encode("utf-8", "replace"))
        if not is_own or not 0 <= now - began <= LOGIN_SECONDS_MAX or pending.state in self._used:
            raise SignInError(_TOO_OLD)
        self._used[pending.state] = now
        for used, when in list(self._used.items()):
            if now - when <= LOGIN_SECONDS_MAX and len(self._used) <= USED_MAX:
                break
            del self._used[used]
        return pending

    def _of(self, cookie: str) -> PendingLogin:
        """Raises ValueError where it is no cookie of this kind."""
        try:
            _, _, page = cookie.split(".")
            next_page = base64.urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None
        state, nonce, verifier = (
            _base64(hmac.new(self._key, f"{use} {cookie}".encode(), hashlib.sha256).digest())
            for use in ("state", "nonce", "verifier")
        )
        return PendingLogin(cookie, state, nonce, verifier, next_page)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
