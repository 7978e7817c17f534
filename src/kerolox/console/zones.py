"""The time zone in which pages show times: the console's own, unless a browser has chosen one."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from functools import cache

__all__ = ["local_zone_name", "with_zone", "zone_names", "zone_of"]

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@cache
def zone_names() -> frozenset[str]:
    """Those that this machine knows; UTC at least."""
    return frozenset({"UTC", *zoneinfo.available_timezones()} - {"localtime"})


def zone_of(name: str) -> datetime.tzinfo | None:
    """A zone by its name; None: there is no such one here."""
    if name == "UTC":
        return datetime.UTC
    # Only names of the list become names of files.
    return zoneinfo.ZoneInfo(name) if name in zone_names() else None


def local_zone_name() -> str:
    """What the console's own zone is called now, for example ``CET``."""
    return datetime.datetime.now().astimezone().tzname() or "local"


def with_zone(text: str, zone: datetime.tzinfo | None) -> str:
    """A place in a topic as people write it; a time without a zone gets this one."""
    if zone is None or not _DATE.match(text):
        return text
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if when.tzinfo is not None else when.replace(tzinfo=zone).isoformat()
