"""The time zone in which a browser sees times, and writes them."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING

import pytest

from kerolox.console.visit import ZONE_COOKIE
from kerolox.console.zones import with_zone, zone_names, zone_of
from kerolox.text import time_text
from tests.console.site import Visitor

if TYPE_CHECKING:
    from kerolox.console.console import Console

KOLKATA = "Asia/Kolkata"
"""Half an hour off the others, and without a summer time."""


async def test_a_chosen_zone_shows_and_reads_times_in_that_browser_alone(
    console: Console, topic_of_console: str
) -> None:
    viewer, other = Visitor(console, "viewer"), Visitor(console, "viewer")
    chosen = await viewer.post("/zone", zone=KOLKATA, next=f"/messages?topic={topic_of_console}")
    assert chosen.status_code == 303
    assert chosen.headers["location"] == f"/messages?topic={topic_of_console}"
    assert "HttpOnly" in chosen.headers["set-cookie"]
    [newest] = [
        each async for each in console.admin.read_messages(topic_of_console, max_messages=1)
    ]
    stored = newest.store_timestamp
    pages = [
        (await each.look("/messages", topic=topic_of_console)).text for each in (viewer, other)
    ]
    zone = zone_of(KOLKATA)
    assert time_text(stored, zone) in pages[0]
    assert time_text(stored) in pages[1]
    assert f'data-zone="{KOLKATA}"' in pages[0]
    assert "data-zone" not in pages[1]
    # A time that is typed is one of the zone, too.
    after = datetime.datetime.fromtimestamp(stored / 1000 + 60, zone).strftime("%Y-%m-%dT%H:%M:%S")
    asked = {"topic": topic_of_console, "from": after}
    assert "No message matches" in (await viewer.look("/messages", **asked)).text
    before = datetime.datetime.fromtimestamp(stored / 1000 - 60, zone).strftime("%Y-%m-%dT%H:%M:%S")
    found = (await viewer.look("/messages", **{**asked, "from": before})).text
    assert re.search(r"1 shown, 1 read", found)
    await viewer.post("/zone", zone="")
    assert ZONE_COOKIE not in viewer.client.cookies


async def test_a_zone_that_is_none_is_refused_and_a_cookie_with_one_ignored(
    console: Console,
) -> None:
    viewer = Visitor(console, "viewer")
    for name in ("Mars/Olympus", "../../etc/passwd", "/etc/localtime", "x" * 300):
        assert (await viewer.post("/zone", zone=name)).status_code == 400
        viewer.client.cookies.set(ZONE_COOKIE, name)
        assert (await viewer.look("/zone")).status_code == 200
        viewer.client.cookies.delete(ZONE_COOKIE)
    outside = await viewer.post("/zone", zone="UTC", next="//elsewhere.test/")
    assert outside.headers["location"] == "/"
    assert (await Visitor(console).post("/zone", zone="UTC")).status_code in (401, 403)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-01-31T12:00", "2026-01-31T12:00:00+05:30"),
        ("2026-01-31", "2026-01-31T00:00:00+05:30"),
        ("2026-01-31T12:00+01:00", "2026-01-31T12:00+01:00"),
        ("2026-01-99", "2026-01-99"),
        ("2h", "2h"),
        ("-100", "-100"),
        ("", ""),
    ],
)
def test_a_time_without_a_zone_gets_that_of_the_browser(text: str, read: str) -> None:
    assert with_zone(text, zone_of(KOLKATA)) == read
    assert with_zone(text, None) == text
    assert "UTC" in zone_names()
