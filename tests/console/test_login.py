"""Logging in, what a session is, and when it ends."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from kerolox.console.security import users as users_module
from kerolox.console.security.attempts import (
    DELAY_SECONDS,
    DELAYED_OF_USER_MAX,
    KNOWN_SECONDS_MAX,
    NAMES_MAX,
    OF_ADDRESS,
    OF_USER,
    OF_USER_AND_ADDRESS,
    Attempts,
)
from kerolox.console.security.sessions import (
    IDLE_SECONDS_MAX,
    LIFE_SECONDS_MAX,
    SESSIONS_OF_USER_MAX,
    Sessions,
)
from kerolox.console.security.users import User, Users, read_users, write_users
from kerolox.console.visit import COOKIE, TOKEN_FIELD
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import PASSWORD, Visitor, hashed, running_console, users_file

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.console.console import Console
    from tests.support.servers.clusters import Cluster


async def log_in(visitor: Visitor, name: str, password: str, **more: str) -> httpx.Response:
    """By the form of the login page."""
    page = await visitor.look("/login", **more)
    token = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert token
    fields = {TOKEN_FIELD: token[1], "name": name, "password": password, **more}
    return await visitor.client.post("/login", data=fields)


async def test_who_has_the_password_gets_a_session_and_others_do_not(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    visitor = Visitor(console)
    for name, password in (
        ("admin", "wrong"),
        ("nobody", PASSWORD),
        ("", ""),
        ("admin", "x" * 300),
    ):
        refused = await log_in(visitor, name, password)
        assert refused.status_code in (400, 403)
        assert (await visitor.look("/topics")).status_code == 303
    before = visitor.client.cookies[COOKIE]
    assert (await log_in(visitor, "admin", PASSWORD)).status_code == 303
    assert visitor.client.cookies[COOKIE] != before
    assert "Log out" in (await visitor.look("/topics")).text
    outcomes = [json.loads(record.getMessage())["outcome"] for record in caplog.records]
    assert outcomes == ["login-failed"] * 3 + ["login"]
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_cookie_is_for_the_console_alone(console: Console, scheme: str) -> None:
    visitor = Visitor(console)
    visitor.client.base_url = f"{scheme}://console.test"
    answer = await log_in(visitor, "viewer", PASSWORD)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert ("secure" in cookie) == (scheme == "https")


@pytest.mark.parametrize(
    ("wanted", "location"),
    [
        ("/topics?q=a", "/topics?q=a"),
        ("//elsewhere.test/", "/"),
        ("/\\elsewhere.test", "/"),
        ("https://elsewhere.test", "/"),
        ("/a\nSet-Cookie: x=y", "/"),
        ("", "/"),
    ],
)
async def test_after_the_login_the_browser_stays_with_the_console(
    console: Console, wanted: str, location: str
) -> None:
    done = await log_in(Visitor(console), "viewer", PASSWORD, next=wanted)
    assert done.headers["location"] == location


async def test_a_link_of_another_site_leaves_the_session_as_it_is(console: Console) -> None:
    visitor = Visitor(console, "viewer")
    address = (await Visitor(console).look("/topics", q="a b")).headers["location"]
    # What a browser sends that follows such a link: no cookie.
    came = await Visitor(console, **{"Sec-Fetch-Site": "cross-site"}).client.get(address)
    assert came.status_code == 200
    assert "set-cookie" not in came.headers
    assert f'content="0; url={html.escape(address)}"' in came.text
    # The page asks again, as one of the same site.
    again = await visitor.client.get(address)
    assert (again.status_code, again.headers["location"]) == (303, "/topics?q=a+b")
    stranger = await Visitor(console, **{"Sec-Fetch-Site": "same-origin"}).client.get(address)
    assert 'name="password"' in stranger.text


async def test_a_page_asked_for_without_a_session_is_shown_after_the_login(
    console: Console,
) -> None:
    visitor = Visitor(console)
    asked = await visitor.look("/topics", q="a b")
    assert asked.headers["location"] == "/login?next=%2Ftopics%3Fq%3Da%2Bb"
    parts = await visitor.client.get("/topics", headers={"HX-Request": "true"})
    assert parts.status_code == 401
    assert parts.headers["hx-refresh"] == "true"


@pytest.fixture
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of an unknown name costs as little as those of ``site.hashed``."""
    for name in ("SCRYPT_LOG_N", "SCRYPT_R", "SCRYPT_P"):
        monkeypatch.setattr(users_module, name, 1)


@pytest.mark.usefixtures("cheap_guesses")
async def test_who_guesses_has_to_wait_and_others_do_not(console: Console) -> None:
    console.attempts = Attempts(clock=lambda: 0.0)
    guesser = Visitor(console)
    statuses = [
        (await log_in(guesser, f"name-{i}", "guess")).status_code
        for i in range(int(OF_ADDRESS[1]) + 1)
    ]
    assert statuses == [403] * int(OF_ADDRESS[1]) + [429]
    assert (await log_in(guesser, "admin", PASSWORD)).status_code == 429
    other = Visitor(console, address="192.0.2.99")
    assert (await log_in(other, "admin", PASSWORD)).status_code == 303


async def test_guesses_of_one_user_from_many_addresses_have_to_wait() -> None:
    now, waits = 0.0, asyncio.Event()

    async def sleep(seconds: float) -> None:
        assert seconds == DELAY_SECONDS
        await waits.wait()

    attempts = Attempts(clock=lambda: now, sleep=sleep)
    tries = [await attempts.may_try(f"198.51.100.{i}", "admin") for i in range(int(OF_USER[1]))]
    assert all(tries)
    late = [
        asyncio.ensure_future(attempts.may_try(f"198.51.100.{100 + i}", "admin")) for i in range(20)
    ]
    await asyncio.sleep(0)
    refused = [each for each in late if each.done()]
    assert [each.result() for each in refused] == [False] * (20 - DELAYED_OF_USER_MAX)
    # Those who wait keep nobody else's name from being tried.
    assert await attempts.may_try("198.51.100.150", "viewer")
    waits.set()
    assert sum([await each for each in late]) == DELAYED_OF_USER_MAX
    assert await attempts.may_try("198.51.100.160", "admin"), "nobody waits any more"


async def test_a_user_is_not_shut_out_by_guesses_from_elsewhere(console: Console) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    console.attempts = Attempts(clock=lambda: 0.0, sleep=sleep)
    at_home = Visitor(console, address="127.0.0.9")
    assert (await log_in(at_home, "admin", PASSWORD)).status_code == 303
    for number in range(11):
        guesser = Visitor(console, address=f"127.0.0.{2 + number % 3}")
        assert (await log_in(guesser, "admin", "guess")).status_code == 403
    assert len(waited) == 1
    elsewhere = Visitor(console, address="127.0.0.5")
    assert (await log_in(elsewhere, "admin", PASSWORD)).status_code == 303
    assert len(waited) == 2, "an address that is new waits"
    again = Visitor(console, address="127.0.0.9")
    assert (await log_in(again, "admin", PASSWORD)).status_code == 303
    assert len(waited) == 2, "an address with a former login does not"


async def test_an_address_with_a_former_login_guesses_no_faster() -> None:
    now = 0.0
    attempts = Attempts(clock=lambda: now)
    assert await attempts.may_try("192.0.2.1", "admin")
    attempts.succeeded("192.0.2.1", "admin")
    tries = [await attempts.may_try("192.0.2.1", "admin") for _ in range(20)]
    assert sum(tries) == OF_USER_AND_ADDRESS[1]
    now = KNOWN_SECONDS_MAX + 1
    for number in range(int(OF_USER[1])):
        assert await attempts.may_try(f"192.0.2.{number + 9}", "admin")


def test_addresses_that_are_known_are_bounded() -> None:
    attempts = Attempts(clock=lambda: 0.0)
    for number in range(NAMES_MAX + 10):
        attempts.succeeded("192.0.2.1", str(number))
    assert sys.getsizeof(attempts._known) < 1 << 20
    assert len(attempts._known) == NAMES_MAX


async def test_a_session_ends_when_somebody_logs_out(console: Console) -> None:
    visitor = Visitor(console, "viewer")
    kept = visitor.client.cookies[COOKIE]
    assert (await visitor.post("/logout")).status_code == 303
    visitor.client.cookies.set(COOKIE, kept)
    assert (await visitor.look("/topics")).status_code == 303


@pytest.mark.parametrize("change", ["removed", "another role", "another password"])
async def test_a_session_ends_when_its_user_changes(
    our_cluster: Cluster, tmp_path: Path, change: str
) -> None:
    async with running_console(tmp_path, our_cluster.name_server) as console:
        visitor = Visitor(console, "operator")
        assert (await visitor.look("/topics")).status_code == 200
        users = read_users(tmp_path / "users.json")
        old = users.pop("operator")
        if change == "another role":
            users["operator"] = User("viewer", old.password)
        elif change == "another password":
            users["operator"] = User("operator", hashed().replace("scrypt$1$", "scrypt$2$"))
        write_users(tmp_path / "users.json", users)
        assert (await visitor.look("/topics")).status_code == 303


async def test_a_broken_users_file_keeps_those_who_were_in(
    our_cluster: Cluster, tmp_path: Path
) -> None:
    async with running_console(tmp_path, our_cluster.name_server) as console:
        visitor = Visitor(console, "viewer")
        for broken in ("", "{", '{"users":{"x":{"role":"king","password":"p"}}}'):
            (tmp_path / "users.json").write_text(broken)
            assert (await visitor.look("/topics")).status_code == 200


async def test_sessions_end_by_time_and_are_bounded_in_number(tmp_path: Path) -> None:
    now = 0.0
    users = Users(users_file(tmp_path))
    sessions = Sessions(users, clock=lambda: now)
    viewer = users.find("viewer")
    assert viewer is not None
    idle, busy = sessions.begin("viewer", viewer), sessions.begin("viewer", viewer)
    while now < IDLE_SECONDS_MAX:
        now += IDLE_SECONDS_MAX / 2
        assert sessions.find(busy)
    now += 1
    assert sessions.find(idle) is None
    while now < LIFE_SECONDS_MAX:
        assert sessions.find(busy)
        now += IDLE_SECONDS_MAX / 2
    now += 1
    assert sessions.find(busy) is None
    # A page that refreshes itself does not keep it from ending.
    left = sessions.begin("viewer", viewer)
    for _ in range(3):
        now += IDLE_SECONDS_MAX / 3
        assert sessions.find(left, is_use=False)
    now += 1
    assert sessions.find(left, is_use=False) is None
    keys = [sessions.begin("viewer", viewer) for _ in range(SESSIONS_OF_USER_MAX + 1)]
    assert [sessions.find(key) is not None for key in keys] == [False] + [True] * 20
