"""The choice of the time zone, kept in a cookie of the browser."""

from __future__ import annotations

from starlette.responses import Response

from kerolox.console.pages.login import inside_or_start
from kerolox.console.visit import ZONE_COOKIE, Visit
from kerolox.console.zones import local_zone_name, zone_names, zone_of
from kerolox.errors import ClientError

__all__ = ["choose", "form"]

KEPT_SECONDS = 365 * 86_400


async def form(visit: Visit) -> Response:
    """The page with all zones."""
    return visit.page("zone.html", zones=sorted(zone_names()), local=local_zone_name())


async def choose(visit: Visit) -> Response:
    """Keep the choice; an empty one is the console's own zone."""
    name = visit.given("zone")
    if name and zone_of(name) is None:
        raise ClientError(f"there is no time zone {name!r}")
    response = visit.go(inside_or_start(visit, visit.given("next")))
    if name:
        visit.set_cookie(response, ZONE_COOKIE, name, KEPT_SECONDS)
    else:
        visit.forget_cookie(response, ZONE_COOKIE)
    return response
