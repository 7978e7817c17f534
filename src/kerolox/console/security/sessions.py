"""Sessions of who is logged in: in memory, bounded in number and in time.

The cookie has a random id and nothing else. Tokens against forged requests are made from the id
(HMAC), so they end with the session and need no room.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kerolox.console.security.users import User, Users

__all__ = ["Session", "Sessions"]

IDLE_SECONDS_MAX = 30 * 60.0
LIFE_SECONDS_MAX = 12 * 3600.0
SESSIONS_MAX = 1_000
SESSIONS_OF_USER_MAX = 20
NOTICES_MAX = 64

_ID_BYTES = 32


@dataclass(slots=True)
class Session:
    """Somebody who is logged in."""

    name: str
    user: User
    """As at the login: when the file has another password or role, the session is over."""
    began: float
    seen: float
    id_token: str | None = None
    """Of who was signed in by OpenID Connect; empty: it was too long. None: an own account."""
    notices: list[str] = field(default_factory=list)
    """What the next page says of the last action."""

    under_way: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By group of whose dead letters more are to be sent again: what the address of the next page
    says, and how many there are in all."""

    def note(self, text: str) -> None:
        """Have the next page tell something."""
        self.notices = [*self.notices, text][-NOTICES_MAX:]

    def take_notices(self) -> list[str]:
        """What is to be told, once."""
        taken, self.notices = self.notices, []
        return taken


class Sessions:
    """All that are open."""

    def __init__(self, users: Users, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds; tests turn one by hand."""
        self._users = users
        self._clock = clock
        self._key = secrets.token_bytes(_ID_BYTES)
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, name: str, user: User, id_token: str | None = None) -> str:
        """Open one for somebody whose password was right, or whom a provider has signed in; its
        id. The oldest ends for it where there are too many.

        Args:
            name: who it is.
            user: the account, whose change ends the session; of a provider's the role alone counts.
            id_token: what the provider gave; None: the password was right.
        """
        now = self._clock()
        own = [key for key, each in self._open.items() if each.name == name]
        for key in own[: max(len(own) - SESSIONS_OF_USER_MAX + 1, 0)]:
            del self._open[key]
        while len(self._open) >= SESSIONS_MAX:
            del self._open[next(iter(self._open))]
        key = secrets.token_urlsafe(_ID_BYTES)
        self._open[key] = Session(name, user, now, now, id_token)
        return key

    def find(self, key: str, *, is_use: bool = True) -> Session | None:
        """The session of a cookie, if it is not over. It ends later for it where that ``is_use``,
        as a page that refreshes itself is not."""
        session = self._open.get(key)
        if session is None:
            return None
        now = self._clock()
        is_over = (
            now - session.seen > IDLE_SECONDS_MAX
            or now - session.began > LIFE_SECONDS_MAX
            or (session.id_token is None and self._users.find(session.name) != session.user)
        )
        if is_over:
            del self._open[key]
            return None
        if is_use:
            session.seen = now
        return session

    def end(self, key: str) -> None:
        """Close one."""
        self._open.pop(key, None)

    def token(self, key: str) -> str:
        """What a form of that cookie carries."""
        return hmac.new(self._key, key.encode(), hashlib.sha256).hexdigest()

    def is_token(self, key: str, token: str) -> bool:
        """Whether a form was made for that cookie."""
        return hmac.compare_digest(self.token(key).encode(), token.encode("utf-8", "replace"))


def new_key() -> str:
    """A random value for the cookie of the login page."""
    return secrets.token_urlsafe(_ID_BYTES)
