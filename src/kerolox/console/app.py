"""The ASGI application: for each request who asks, whether he may, and what an error looks like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as StarletteRoute

from kerolox.console.acting import ActionResult
from kerolox.console.performing import audit_failure, audit_result, check_may
from kerolox.console.refusals import Refused, answer_to_error, check_same_site
from kerolox.console.routes import ROUTES, Route
from kerolox.console.security.guard import CONTEXT, Guard
from kerolox.console.security.roles import Role
from kerolox.console.static_files import VersionedFiles
from kerolox.console.visit import (
    COOKIE,
    TOKEN_FIELD,
    Visit,
    is_refresh,
    is_shared,
    parsed_form,
)
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from kerolox.console.console import Console

__all__ = ["application"]

REQUESTS_AT_ONCE_MAX = 32
"""Requests that ask the cluster at the same time; further ones wait, within their deadline."""

STATIC = Path(__file__).parent / "static"

_log = logging.getLogger(__name__)


def application(console: Console) -> ASGIApp:
    """The pages of a console that is started and stopped by whoever serves them, and of those that
    share its users (``console.shared``)."""
    room = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)
    contexts = console.shared.consoles
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    served: list[BaseRoute] = [
        StarletteRoute(path, _endpoint(console, methods, room), methods=sorted(methods))
        for path, methods in by_path.items()
    ]
    served.append(Mount("/static", VersionedFiles(directory=STATIC)))
    app = Starlette(routes=served, exception_handlers={404: _not_found})
    return Guard(app, console.settings.root_path, contexts.keys() - {""})


def _endpoint(
    console: Console, methods: dict[str, Route], room: asyncio.Semaphore
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        route = methods[method]
        cookie = request.cookies.get(COOKIE, "")
        session = console.sessions.find(cookie, is_use=not is_refresh(request))
        named = console.shared.consoles.get(request.scope[CONTEXT])
        visit = Visit(named or console, request, cookie, session)
        if named is None and not is_shared(route.path):
            return _which_cluster(visit)
        try:
            async with asyncio.timeout(route.seconds_max):
                await _check(route, visit)
                async with room:
                    return await _answer(route, visit)
        except ClientDisconnect:
            return PlainTextResponse("", 400)
        except (KeroloxError, TimeoutError, Refused) as error:
            return _failed(route, visit, error)
        except Exception as error:
            _log.exception("%s %s could not be answered", route.method, route.path)
            return _failed(route, visit, error)

    return endpoint


def _which_cluster(visit: Visit) -> Response:
    """The same page of the first cluster; nothing is done where none is named."""
    if visit.request.method == "POST":
        return PlainTextResponse("The address does not say of which cluster.\n", 404)
    query = visit.request.url.query
    path = visit.path(visit.request.scope["path"])
    return visit.go(f"{path}?{query}" if query else path)


async def _check(route: Route, visit: Visit) -> None:
    """Whether the request is one of somebody who may, else Refused; read the form of it."""
    if route.method == "POST":
        check_same_site(visit.request)
        visit.form = await _read_form(visit.request, route.body_bytes_max)
        token = visit.given(TOKEN_FIELD)
        if not visit.cookie or not visit.console.sessions.is_token(visit.cookie, token):
            raise Refused(403, "The form is too old, or was not made by this console. Try again.")
    if route.role is Role.NOBODY:
        return
    if visit.session is None:
        raise Refused(401, "Log in first.")
    check_may(visit, route.role, is_action=route.is_action)


async def _answer(route: Route, visit: Visit) -> Response:
    answer = await route.answer(visit)
    if not isinstance(answer, ActionResult):
        return answer
    audit_result(visit, route.path, answer)
    visit.note(answer.text)
    return visit.go(answer.location)


async def _read_form(request: Request, bytes_max: int) -> dict[str, list[str]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "A form is sent as application/x-www-form-urlencoded.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise Refused(413, f"The form is larger than {bytes_max} bytes.")
    try:
        return parsed_form(bytes(body))
    except ValueError:
        raise Refused(400, "The form can't be read.") from None


def _failed(route: Route, visit: Visit, error: Exception) -> Response:
    audit_failure(visit, route.path, error, is_action=route.is_action)
    return answer_to_error(visit, error, is_action=route.is_action)


async def _not_found(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("There is no such page.\n", 404)
