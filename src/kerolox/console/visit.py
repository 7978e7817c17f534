"""One request: who asks, what for, and what the answer is made with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response

from kerolox.console.acting import Actor, checked
from kerolox.console.cache import KEPT_SECONDS
from kerolox.console.security.roles import Role
from kerolox.console.zones import zone_of
from kerolox.errors import ClientError

if TYPE_CHECKING:
    import datetime

    from starlette.requests import Request

    from kerolox.console.console import Console
    from kerolox.console.security.sessions import Session

__all__ = [
    "COOKIE",
    "TOKEN_FIELD",
    "ZONE_COOKIE",
    "Visit",
    "is_refresh",
    "is_shared",
]

COOKIE = "kerolox_console"
ZONE_COOKIE = "kerolox_zone"
TOKEN_FIELD = "csrf"
SHARED = ("login", "logout", "health", "static")
"""How paths begin that are of no cluster."""
FIELDS_MAX = 2_000

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Visit(Actor):
    """A request of somebody."""

    console: Console
    request: Request
    cookie: str
    """Of the session, or of the login page; empty: there is none yet."""
    session: Session | None
    form: Mapping[str, list[str]] = field(default_factory=dict)
    target: dict[str, object] = field(default_factory=dict)
    """What an action that failed was about, for the audit line."""

    @property
    def role(self) -> Role:
        """What the user may do."""
        return self.session.user.rank if self.session is not None else Role.NOBODY

    @property
    def name(self) -> str:
        """Of the user; empty: nobody is logged in."""
        return self.session.name if self.session is not None else ""

    @property
    def address(self) -> str:
        """Where the request came from; behind a trusted proxy what that says."""
        return self.request.client.host if self.request.client is not None else "-"

    @property
    def is_refresh(self) -> bool:
        """The page refreshes itself, and nobody has clicked."""
        return is_refresh(self.request)

    @property
    def is_part(self) -> bool:
        """A script asks for a part of a page."""
        return self.is_refresh or self.request.headers.get("hx-request") == "true"

    async def shared(
        self, key: Hashable, make: Callable[[], Coroutine[None, None, _Answer]]
    ) -> _Answer:
        """What a page shows that refreshes itself. Whoever opens it gets a new answer; those who
        look on share one for some seconds."""
        seconds = KEPT_SECONDS if self.is_refresh else 0.0
        return await self.console.cache.get(key, seconds, make)

    def note(self, text: str) -> None:
        """Have the next page tell something."""
        if self.session is not None:
            self.session.note(text)

    def go_on_with(self, group: str, mark: str, total: int) -> None:
        """Have the next page of a group send more of its dead letters."""
        if self.session is not None:
            self.session.under_way[group] = mark, total

    @property
    def here(self) -> str:
        """The path that was asked for, with its parameters, for a way back."""
        inside = self.request.scope["path"] or "/"
        if not is_shared(inside):
            inside = f"{self.console.prefix}{inside}"
        query = self.request.url.query
        return f"{inside}?{query}" if query else inside

    @property
    def zone_name(self) -> str:
        """The time zone that the browser has chosen; empty: the console's own."""
        return self.request.cookies.get(ZONE_COOKIE, "") if self.zone is not None else ""

    @property
    def zone(self) -> datetime.tzinfo | None:
        """The same; None: the console's own."""
        return zone_of(self.request.cookies.get(ZONE_COOKIE, ""))

    def asked(self, name: str, default: str = "") -> str:
        """A parameter of the address, without blanks around it; ClientError: it is too long."""
        return checked(name, self.request.query_params.get(name, default))

    def needed(self, name: str) -> str:
        """A parameter of the address that must be there. Raises ClientError where it is not."""
        value = self.asked(name)
        if not value:
            raise ClientError(f"the address of the page lacks {name!r}")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = 1 << 62) -> int:
        """A whole number of the address; what is none or out of range is the nearest that fits."""
        text = self.asked(name)
        is_number = text.lstrip("-").isdigit() and text.isascii() and len(text) < 20
        return min(max(int(text) if is_number else default, least), most)

    def path(self, path: str, **parameters: object) -> str:
        """An address in the console as links have it."""
        shown = {name: value for name, value in parameters.items() if value not in ("", None)}
        prefix = "" if is_shared(path) else self.console.prefix
        root = self.console.settings.root_path
        return f"{root}{prefix}{path}{'?' if shown else ''}{urlencode(shown)}"

    def elsewhere(self, console: Console, section: str) -> str:
        """The address of a section of another cluster."""
        return f"{console.settings.root_path}{console.prefix}{section}"

    def page(self, template: str, http_status: int = 200, **values: object) -> Response:
        """A page of a template."""
        notices = self.session.take_notices() if self.session and not self.is_part else []
        text = self.console.templates.get_template(template).render(
            visit=self,
            settings=self.console.settings,
            token=self.console.sessions.token(self.cookie) if self.cookie else "",
            notices=notices,
            Role=Role,
            **values,
        )
        return HTMLResponse(text, http_status)

    def go(self, location: str) -> Response:
        """Have the browser ask for another page."""
        return RedirectResponse(location, 303)

    def set_cookie(
        self,
        response: Response,
        name: str,
        value: str,
        seconds: int | None = None,
        *,
        from_elsewhere: bool = False,
    ) -> None:
        """Have the browser send a cookie to this console alone.

        Args:
            response: which carries it.
            name: of the cookie.
            value: of it.
            seconds: how long it is kept; None: until the browser ends.
            from_elsewhere: it is sent, too, where another site leads the browser here.
        """
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=self._cookie_path,
            secure=self.request.url.scheme == "https",
            httponly=True,
            samesite="lax" if from_elsewhere else "strict",
        )

    def forget_cookie(self, response: Response, name: str) -> None:
        """Have the browser forget a cookie."""
        response.delete_cookie(name, path=self._cookie_path)

    @property
    def _cookie_path(self) -> str:
        return self.console.settings.root_path or "/"


def is_shared(path: str) -> bool:
    """Whether a path of the console is of no cluster."""
    return path.split("/", 2)[1] in SHARED


def is_refresh(request: Request) -> bool:
    """Whether a page asks for itself again, which is no sign that somebody is there."""
    return request.headers.get("kerolox-refresh") == "1"


def parsed_form(body: bytes) -> dict[str, list[str]]:
    """The fields of a form; ValueError: it is none, or has too many fields."""
    found: dict[str, list[str]] = {}
    pairs = parse_qsl(
        body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict"
    )
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
