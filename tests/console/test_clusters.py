"""Several clusters in one console: each has paths of its own, all share users and the audit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.cli.contexts import Context, Contexts, write_contexts
from kerolox.console.console import Console, Shared
from kerolox.console.routes import ROUTES
from kerolox.console.security.roles import Role
from kerolox.console.settings import ConsoleSettings
from kerolox.errors import TopicExistsError
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.browsing import console_process, log_in
from tests.console.site import PASSWORD, Visitor, users_file
from tests.console.test_login import log_in as log_in_by_form
from tests.support.browser import PHONE, opened_page, running_browser
from tests.support.eventually import until
from tests.support.servers.command import Server, kerolox
from tests.support.servers.up import Up, deaf_address

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster

FIRST, SECOND = "Of-first", "Of-second"
"""A topic of one cluster, and of the other."""


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Another cluster than the fixture's."""
    with Up(tmp_path_factory.mktemp("second"), settings={"brokerName": "other"}) as up:
        yield up


async def make_topic(name_server: str, topic: str) -> None:
    async with Admin(name_server) as admin:
        with contextlib.suppress(TopicExistsError):
            await admin.create_topic(topic, queues=1)

        async def is_known() -> bool:
            return topic in await admin.list_topics()

        await until(is_known)


@contextlib.asynccontextmanager
async def running(folder: Path, **name_servers: str) -> AsyncIterator[Console]:
    """The first console of some contexts."""
    settings = ConsoleSettings(
        name_server="", users=users_file(folder), history=None, actions=True, sample_seconds=900
    )
    shared = Shared(settings)
    first, *_ = (
        Console(replace(settings, name_server=name_server), context=context, shared=shared)
        for context, name_server in name_servers.items()
    )
    for each in first.all:
        await each.start()
    try:
        yield first
    finally:
        await asyncio.gather(*(each.stop() for each in first.all))


@pytest_asyncio.fixture
async def site(our_cluster: Cluster, second: Up, tmp_path: Path) -> AsyncIterator[Console]:
    await make_topic(our_cluster.name_server, FIRST)
    await make_topic(second.namesrv, SECOND)
    async with running(tmp_path, one=our_cluster.name_server, two=second.namesrv) as first:
        yield first


async def test_a_page_is_of_the_cluster_that_its_path_names(site: Console) -> None:
    viewer = Visitor(site, "viewer")
    one = (await viewer.look("/in/one/topics", q="Of-")).text
    two = (await viewer.look("/in/two/topics", q="Of-")).text
    assert (f">{FIRST}<" in one, f">{SECOND}<" in one) == (True, False)
    assert (f">{FIRST}<" in two, f">{SECOND}<" in two) == (False, True)
    # No link of a page leads elsewhere, but to those of no cluster and to the other cluster.
    links = re.findall(r'(?:href|action|hx-get|data-url)="(/[^"]*)"', two)
    others = {link for link in links if not link.startswith("/in/two/")}
    assert others - {"/logout", "/in/one/topics"} == {
        link for link in links if link.startswith("/static/")
    }
    assert '<a href="/in/one/topics">one</a>' in two


async def test_a_path_that_names_no_cluster_leads_to_the_first_and_does_nothing(
    site: Console,
) -> None:
    admin = Visitor(site, "admin")
    asked = await admin.look("/topics", q="a b")
    assert (asked.status_code, asked.headers["location"]) == (303, "/in/one/topics?q=a+b")
    assert (await admin.post("/topic/delete", topic=FIRST, again=FIRST)).status_code == 404
    assert FIRST in await site.admin.list_topics()
    for path in ("/in/three/topics", "/in/one", "/in/", "/in/one/in/two/topics", "/in//topics"):
        assert (await admin.look(path)).status_code == 404, path


async def test_an_action_is_done_in_its_cluster_alone_and_the_audit_says_so(
    site: Console, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    admin, viewer = Visitor(site, "admin"), Visitor(site, "viewer")
    assert "Group g-two is made" in await admin.act("/in/two/group/update", name="g-two", retries=3)
    one, two = site.all
    assert await two.admin.group_exists("g-two")
    assert not await one.admin.group_exists("g-two")
    await viewer.post("/in/two/group/pause", name="g-two")
    await admin.post("/in/one/group/pause", name="g-two")
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == LOGGER]
    told = [(each["outcome"], each["context"]) for each in lines]
    assert told == [("changed", "two"), ("denied", "two"), ("failed", "one")]
    page = (await admin.look("/in/one/audit")).text
    assert "&#34;context&#34;:&#34;two&#34;" in page


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_opens_no_route_of_any_cluster_that_needs_a_higher_one(
    site: Console, role: Role
) -> None:
    visitor = Visitor(site, "" if role is Role.NOBODY else role.label)
    visitor.client.cookies.set("other", "x")
    for route in ROUTES:
        if route.role <= Role.NOBODY or route.path in ("/logout", "/zone"):
            continue
        asked = visitor.look if route.method == "GET" else visitor.post
        status = (await asked(f"/in/two{route.path}")).status_code
        if role is Role.NOBODY:
            assert status in (303, 401, 403), route
        else:
            assert (status == 403) == (role < route.role), (route, status)


async def test_who_logs_in_gets_to_the_page_of_the_cluster(site: Console) -> None:
    visitor = Visitor(site)
    asked = await visitor.look("/in/two/topics", q="a")
    assert asked.headers["location"] == "/login?next=%2Fin%2Ftwo%2Ftopics%3Fq%3Da"
    assert "Console of one, two" in (await visitor.look("/login")).text
    done = await log_in_by_form(visitor, "viewer", PASSWORD, next="/in/two/topics?q=a")
    assert done.headers["location"] == "/in/two/topics?q=a"
    assert (await visitor.look("/in/one/topics")).status_code == 200
    await visitor.post("/logout")
    assert (await visitor.look("/in/one/topics")).status_code == 303


async def test_a_cluster_that_is_gone_holds_no_other_up(
    our_cluster: Cluster, tmp_path: Path
) -> None:
    with deaf_address() as address:
        async with running(tmp_path, gone=address, here=our_cluster.name_server) as first:
            viewer = Visitor(first, "viewer")
            async with asyncio.timeout(60):
                gone, here = await asyncio.gather(
                    viewer.look("/in/gone/topics"), viewer.look("/in/here/topics")
                )
    assert gone.status_code in (502, 504)
    assert here.status_code == 200


# -- as processes -----------------------------------------------------------------------------
@pytest.fixture
def configured(
    our_cluster: Cluster, second: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder of settings whose contexts are both clusters."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts = {
        "production": Context(our_cluster.name_server),
        "staging": Context(second.namesrv, description="for tries"),
    }
    write_contexts(tmp_path / "kerolox" / "contexts.json", Contexts("staging", contexts))
    return tmp_path


def test_contexts_that_are_not_there_or_not_alone_are_refused(configured: Path) -> None:
    users = ("--users", str(users_file(configured)))
    for arguments, told in (
        (("--contexts", "production,nowhere"), "there is no context 'nowhere'"),
        (("--contexts", "all", "-n", "127.0.0.1:1"), "does not go together"),
        (("--contexts", "all", "--title", "x"), "does not go together"),
    ):
        done = kerolox("console", *users, *arguments)
        assert done.returncode != 0
        assert told in done.stderr


def test_a_console_serves_all_contexts_and_keeps_a_history_of_each(configured: Path) -> None:
    arguments = ["--users", users_file(configured), "--history", configured / "history.sqlite"]
    arguments += ["--contexts", "all", "--port", 0]
    with Server(configured / "run", "console", *arguments) as server:
        assert "of production, staging" in server.log.read_text()
    found = {each.name for each in configured.glob("history-*.sqlite")}
    assert found == {"history-production.sqlite", "history-staging.sqlite"}


@pytest.mark.browser
def test_a_cluster_is_chosen_in_the_header_and_the_page_stays(
    configured: Path, second: Up, our_cluster: Cluster
) -> None:
    asyncio.run(make_topic(second.namesrv, SECOND))
    folder = configured / "console"
    more = ("--contexts", "production,staging")
    with (
        console_process(folder, "", *more) as base,
        running_browser() as browser,
        opened_page(browser) as page,
    ):
        log_in(page, base, "viewer", "/topics")
        assert page.url == f"{base}/in/production/topics"
        assert page.get_by_role("link", name=SECOND).count() == 0
        page.locator("summary").get_by_text("production").click()
        page.get_by_role("link", name="staging").click()
        page.get_by_role("link", name=SECOND).wait_for()
        assert page.url == f"{base}/in/staging/topics"
        page.set_viewport_size(PHONE)
        page.locator("summary").get_by_text("staging").click()
        page.get_by_role("link", name="production").wait_for()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
