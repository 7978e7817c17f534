"""Logging in and out."""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response

from kerolox.console.security.attempts import RETRY_SECONDS
from kerolox.console.security.sessions import new_key
from kerolox.console.security.users import PASSWORD_CHARACTERS_MAX
from kerolox.console.visit import COOKIE, Visit

__all__ = ["form", "health", "inside_or_start", "log_in", "log_out"]


async def health(_visit: Visit) -> Response:
    """The process answers; says nothing of the cluster."""
    return PlainTextResponse("ok\n")


async def form(visit: Visit) -> Response:
    """The page to log in."""
    if visit.session is not None:
        return visit.go(visit.path("/"))
    return _page(visit, 200, "")


async def log_in(visit: Visit) -> Response:
    """Open a session for who has the right password."""
    name = visit.given("name", characters_max=PASSWORD_CHARACTERS_MAX)
    password = visit.given("password", characters_max=PASSWORD_CHARACTERS_MAX + 1)
    console = visit.console
    if not await console.attempts.may_try(visit.address, name):
        console.audit.session("login-failed", name, visit.address)
        response = _page(
            visit, 429, f"Too many tries. Wait {RETRY_SECONDS} seconds, then try again."
        )
        response.headers["retry-after"] = str(RETRY_SECONDS)
        return response
    user = await console.users.authenticate(name, password)
    if user is None:
        console.audit.session("login-failed", name, visit.address)
        return _page(visit, 403, "The name or the password is wrong.")
    console.attempts.succeeded(visit.address, name)
    console.audit.session("login", name, visit.address)
    if visit.session is not None:
        console.sessions.end(visit.cookie)
    response = visit.go(inside_or_start(visit))
    visit.set_cookie(response, COOKIE, console.sessions.begin(name, user))
    return response


async def log_out(visit: Visit) -> Response:
    """Close the session."""
    visit.console.sessions.end(visit.cookie)
    visit.console.audit.session("logout", visit.name, visit.address)
    response = visit.go(visit.path("/login"))
    visit.forget_cookie(response, COOKIE)
    return response


def _page(visit: Visit, status: int, fault: str) -> Response:
    visit.cookie = visit.cookie or new_key()
    response = visit.page("login.html", status, fault=fault, next_page=_next(visit))
    visit.set_cookie(response, COOKIE, visit.cookie)
    return response


def _next(visit: Visit) -> str:
    return visit.given("next") or visit.asked("next")


def _is_inside(location: str) -> bool:
    """Whether it is a path of the console; browsers take ``//`` and ``\\`` for another site."""
    is_path = location.startswith("/") and not location.startswith("//")
    return is_path and "\\" not in location and location.isprintable()


def inside_or_start(visit: Visit) -> str:
    """Where the browser goes on: what the form names, if that is a path of the console."""
    if not _is_inside(_next(visit)):
        return visit.path("/")
    return f"{visit.console.settings.root_path}{_next(visit)}"
