"""What is refused before a page is made, and what errors look like."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from kerolox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    ConsumerNotOnlineError,
    KeroloxError,
    NotFoundError,
    RemotingError,
    TopicRouteNotFoundError,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from kerolox.console.visit import Visit

__all__ = ["Refused", "answer_to_error", "check_same_site"]


class Refused(Exception):
    """A request that is not served."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def check_same_site(request: Request) -> None:
    """Refuse what another site's page sends, by what browsers say of it. A form's token is checked
    beside that.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin", "")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != host):
        raise Refused(403, "The request comes from another site.")


def answer_to_error(visit: Visit, error: Exception, *, is_action: bool) -> Response:
    """The page about an error; for who is not logged in the login page."""
    status, title = _kind(error)
    if status == 401:
        return _to_login(visit)
    if isinstance(error, TimeoutError):
        text = "The cluster did not answer in time."
        if is_action:
            text += " Whether it was done is not known: look before you try again."
    elif status == 500:
        text = "The console could not make this page. Its log says why."
    else:
        text = error.text if isinstance(error, Refused) else str(error)
    if visit.session is None:
        return PlainTextResponse(f"{text}\n", status)
    return visit.page("error.html", status, title=title, text=text)


def _to_login(visit: Visit) -> Response:
    if visit.request.headers.get("hx-request") == "true":
        # A part of a page can't be the login page: the browser loads the whole.
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    if visit.request.method == "POST":
        return PlainTextResponse("Log in first.\n", 401)
    if visit.request.url.path.endswith(".json"):
        return PlainTextResponse("Log in first.\n", 401)
    here = visit.here
    return RedirectResponse(visit.path("/login", next="" if here == "/" else here), 303)


def _kind(error: Exception) -> tuple[int, str]:
    """Status and title."""
    match error:
        case Refused():
            return error.status, "Not allowed" if error.status == 403 else "Not possible"
        case NotFoundError() | TopicRouteNotFoundError() | ConsumerNotOnlineError():
            return 404, "Not found"
        case TimeoutError():
            return 504, "No answer in time"
        case AccessDeniedError():
            return 502, "The cluster denies it"
        case BrokerError():
            return 502, "The broker refuses"
        case RemotingError():
            return 502, "The cluster does not answer"
        case ClientError() | KeroloxError():
            return 400, "Not possible"
    return 500, "An error of the console"
