"""Logging in, by an own account or by the provider of OpenID Connect, and out."""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response

from kerolox.console.security.attempts import RETRY_SECONDS
from kerolox.console.security.pending_logins import LOGIN_SECONDS_MAX, SignInError
from kerolox.console.security.sessions import new_key
from kerolox.console.security.users import PASSWORD_CHARACTERS_MAX, User
from kerolox.console.visit import COOKIE, Visit
from kerolox.errors import NotFoundError
from kerolox.text import printable

__all__ = [
    *("answer_of_provider", "ask_provider", "form", "health", "inside_or_start", "log_in"),
    "log_out",
]

PENDING_COOKIE = "kerolox_oidc"
"""Of a login that the provider is asked about."""
TRIES_OF_LOGIN = 2
"""What one sign-in by the provider takes of the tries of an address: its begin, and its end."""


async def health(_visit: Visit) -> Response:
    """The process answers; says nothing of the cluster."""
    return PlainTextResponse("ok\n")


async def form(visit: Visit) -> Response:
    """The page to log in; for who is logged in the page that was wanted.

    A browser that follows another site's link sends no cookie of a session (``SameSite=Strict``).
    It is had ask again from a page of the console, with what it has.
    """
    if visit.session is not None:
        return visit.go(inside_or_start(visit, _next(visit)))
    if not visit.cookie and visit.request.headers.get("sec-fetch-site") == "cross-site":
        return visit.page(
            "on_the_way.html",
            title="One moment",
            text="Another site has led you here.",
            address=visit.path("/login", next=_next(visit)),
        )
    return _page(visit, 200, "")


async def log_in(visit: Visit) -> Response:
    """Open a session for who has the right password."""
    name = visit.given("name", characters_max=PASSWORD_CHARACTERS_MAX)
    password = visit.given("password", characters_max=PASSWORD_CHARACTERS_MAX + 1)
    console = visit.console
    if not await console.attempts.may_try(visit.address, name):
        console.audit.session("login-failed", name, visit.address)
        return _too_many(visit)
    user = await console.users.authenticate(name, password)
    if user is None:
        console.audit.session("login-failed", name, visit.address)
        return _page(visit, 403, "The name or the password is wrong.")
    console.attempts.succeeded(visit.address, name)
    console.audit.session("login", name, visit.address)
    response = visit.go(inside_or_start(visit, _next(visit)))
    _begin_session(visit, response, name, user)
    return response


async def ask_provider(visit: Visit) -> Response:
    """Send the browser to the provider."""
    sign_in = visit.console.sign_in
    if sign_in is None:
        raise NotFoundError("this console has no sign-in by OpenID Connect")
    if not visit.console.attempts.may_sign_in(visit.address):
        return _too_many(visit)
    pending = sign_in.pending.begin(_next(visit))
    try:
        response = visit.go(await sign_in.address(pending))
    except SignInError as error:
        return _page(visit, 502, str(error))
    visit.set_cookie(
        response, PENDING_COOKIE, pending.cookie, LOGIN_SECONDS_MAX, from_elsewhere=True
    )
    return response


async def answer_of_provider(visit: Visit) -> Response:
    """Open a session for whom the provider has signed in, if this browser has begun that.

    The page that comes next asks for the one that was wanted: browsers send no cookie of a session
    (``SameSite=Strict``) while they follow another site's redirect.
    """
    console = visit.console
    sign_in = console.sign_in
    if sign_in is None:
        raise NotFoundError("this console has no sign-in by OpenID Connect")
    if not console.attempts.may_sign_in(visit.address):
        return _too_many(visit)
    try:
        pending = sign_in.pending.take(
            visit.request.cookies.get(PENDING_COOKIE, ""), visit.asked("state")
        )
        if refusal := visit.asked("error"):
            raise SignInError(f"The provider refuses it: {printable(refusal)}")
        found = await sign_in.identity(pending, visit.asked("code"), visit.asked("iss"))
    except SignInError as error:
        console.audit.session("login-failed", "", visit.address, {"reason": str(error)})
        response = _page(visit, 403, str(error))
        visit.forget_cookie(response, PENDING_COOKIE)
        return response
    console.attempts.signed_in(visit.address, TRIES_OF_LOGIN)
    told = {"issuer": sign_in.settings.issuer, "sub": found.subject, "role": found.role.label}
    console.audit.session("login", found.name, visit.address, told)
    response = visit.page(
        "on_the_way.html",
        title="Logged in",
        text=f"You are logged in as {found.name}.",
        address=inside_or_start(visit, pending.next_page),
    )
    _begin_session(visit, response, found.name, User(found.role.label, ""), found.id_token)
    visit.forget_cookie(response, PENDING_COOKIE)
    return response


async def log_out(visit: Visit) -> Response:
    """Close the session; of whom the provider has signed in, that there, too."""
    console, session = visit.console, visit.session
    console.sessions.end(visit.cookie)
    console.audit.session("logout", visit.name, visit.address)
    address = ""
    if console.sign_in is not None and session is not None and session.id_token is not None:
        address = console.sign_in.logout_address(session.id_token)
    visit.session = None
    response = (
        visit.page(
            "on_the_way.html",
            title="Logged out",
            text="You are logged out here. The provider ends its own session now.",
            address=address,
        )
        if address
        else visit.go(visit.path("/login"))
    )
    visit.forget_cookie(response, COOKIE)
    return response


def _begin_session(
    visit: Visit, response: Response, name: str, user: User, id_token: str | None = None
) -> None:
    sessions = visit.console.sessions
    if visit.session is not None:
        sessions.end(visit.cookie)
    visit.set_cookie(response, COOKIE, sessions.begin(name, user, id_token))


def _too_many(visit: Visit) -> Response:
    response = _page(visit, 429, f"Too many tries. Wait {RETRY_SECONDS} seconds, then try again.")
    response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


def _page(visit: Visit, status: int, fault: str) -> Response:
    visit.session, visit.cookie = None, visit.cookie or new_key()
    sign_in = visit.console.sign_in
    response = visit.page(
        "login.html",
        status,
        fault=fault,
        next_page=_next(visit),
        provider=sign_in.settings.label if sign_in is not None else "",
        has_accounts=len(visit.console.users) > 0,
    )
    visit.set_cookie(response, COOKIE, visit.cookie)
    return response


def _next(visit: Visit) -> str:
    return visit.given("next") or visit.asked("next")


def _is_inside(location: str) -> bool:
    """Whether it is a path of the console; browsers take ``//`` and ``\\`` for another site."""
    is_path = location.startswith("/") and not location.startswith("//")
    return is_path and "\\" not in location and location.isprintable()


def inside_or_start(visit: Visit, location: str) -> str:
    """Where the browser goes on: there, if that is a path of the console."""
    if not _is_inside(location):
        return visit.path("/")
    return f"{visit.console.settings.root_path}{location}"
