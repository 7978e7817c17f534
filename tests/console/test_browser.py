"""The console in a real browser: nothing in its log, keyboard, accessibility, any width."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.console.browsing import console_process, fill, log_in
from tests.console.site import PASSWORD
from tests.support.browser import PHONE, opened_page, running_browser
from tests.support.eventually import wait_until
from tests.support.programs import build_axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.browser

ALL_RULES = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']"
COLOUR_RULES = "{type: 'rule', values: ['color-contrast', 'link-in-text-block']}"
"""What another colour scheme can change."""


@pytest.fixture(scope="module")
def base(our_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console process; its cluster has a topic, a group and dead letters."""
    folder = tmp_path_factory.mktemp("console")
    asyncio.run(fill(our_cluster.name_server))
    with console_process(folder, our_cluster.name_server) as address:
        yield address


@pytest.fixture(scope="module")
def axe() -> str:
    return build_axe().read_text()


@pytest.fixture(scope="module")
def browser(base: str) -> Iterator[Browser]:
    """One for all pages, begun when no event loop runs any more."""
    with running_browser() as running:
        yield running


def wait_in(page: Page, condition: str) -> None:
    """Wait until a JavaScript expression holds. Not by the page itself (``wait_for_function``):
    the second check would be an ``eval``, which the policy of its content forbids."""
    wait_until(lambda: page.evaluate(condition), what=condition)


def faults_of(page: Page, axe: str) -> list[str]:
    """What axe finds wrong with a page in both colour schemes."""
    page.evaluate(axe)
    found = page.evaluate(f"axe.run(document, {{runOnly: {ALL_RULES}}})")["violations"]
    page.emulate_media(color_scheme="dark")
    found += page.evaluate(f"axe.run(document, {{runOnly: {COLOUR_RULES}}})")["violations"]
    page.emulate_media(color_scheme="light")
    return [
        f"{page.url}: {each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found
    ]


def pages_of(base: str, page: Page) -> list[str]:
    """Each page of the table that a link leads to, or a form."""
    links = page.locator("nav.side a").evaluate_all("all => all.map(each => each.href)")
    queue = page.request.get(f"{base}/messages?topic=Shown").text()
    place = re.search(r"/message\?topic=Shown&amp;queue=([^&]+)&amp;offset=(\d+)", queue)
    assert place
    message = f"/message?topic=Shown&queue={place[1]}&offset={place[2]}"
    broker = re.search(r"/broker\?address=[^\"]+", page.request.get(f"{base}/brokers").text())
    assert broker
    transaction = re.search(
        r"/transaction\?[^\"]+", page.request.get(f"{base}/transactions").text()
    )
    assert transaction
    inside = (
        *("/topic?name=Shown", "/group?name=gives-up", "/dead-letter?group=gives-up"),
        *("/group/reset?name=gives-up&topic=Shown&to=beginning", "/messages?topic=Shown"),
        *("/messages/tail?topic=Shown", "/delayed?level=18&broker=broker-a", "/trace?id=none"),
        *(message, f"{message}&view=hex&tracks=1", broker[0], "/topics?q=nothing-like-it"),
        *("/search?q=Shown", "/groups?state=paused", "/topics?sort=messages"),
        *("/group/reset?name=gives-up&topic=*&to=end", html.unescape(transaction[0])),
    )
    return [*links, *(f"{base}{path}" for path in inside)]


def test_every_page_is_accessible_quiet_and_fits_a_phone(
    base: str, browser: Browser, axe: str
) -> None:
    with opened_page(browser, color_scheme="light") as page:
        size = page.viewport_size
        assert size is not None
        page.goto(f"{base}/login")
        faults = faults_of(page, axe)
        log_in(page, base, "admin")
        pages = pages_of(base, page)
        assert len(pages) >= 20
        for url in pages:
            answer = page.goto(url)
            assert answer is not None
            assert answer.status == 200, url
            page.wait_for_load_state("networkidle")
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            faults += faults_of(page, axe)
            page.set_viewport_size(PHONE)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"], url
            page.set_viewport_size(size)
        assert faults == []


def test_everything_is_reached_by_keyboard(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        page.goto(f"{base}/topics")
        # Keys that come before the field has the focus are lost.
        wait_in(page, "document.activeElement.name === 'name'")
        page.keyboard.type("viewer")
        page.keyboard.press("Tab")
        page.keyboard.type(PASSWORD)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Topics").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Freeze"
        page.keyboard.press("Tab")
        with page.expect_response(lambda answer: "q=shown" in answer.url):
            page.keyboard.type("shown")
        # The list is put in place of the old one, which had it, too.
        wait_in(page, "!document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')")
        page.get_by_role("link", name="Shown", exact=True).wait_for()
        names = []
        while "Shown" not in names and len(names) < 20:
            page.keyboard.press("Tab")
            names.append(page.evaluate("document.activeElement.textContent.trim()"))
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Shown", exact=True).wait_for()


def test_an_admin_makes_a_topic_sends_follows_and_deletes(base: str, browser: Browser) -> None:
    with opened_page(browser) as page, opened_page(browser) as other:
        log_in(page, base, "admin", "/topics")
        page.get_by_text("Make a topic").click()
        page.get_by_label("Name", exact=True).fill("Clicked")
        page.get_by_label("Queues on each broker").fill("1")
        page.get_by_role("button", name="Make it").click()
        page.get_by_role("status").get_by_text("Topic Clicked has 1 queue").wait_for()
        log_in(other, base, "viewer", "/messages/tail?topic=Clicked")
        page.get_by_text("Send a test message").click()
        page.get_by_label("Body").fill("<b>said</b>")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("status").get_by_text("SEND_OK at offset 0").wait_for()
        other.get_by_role("log").get_by_text("<b>said</b>").wait_for()
        page.get_by_text("Delete the topic").click()
        page.get_by_label("Type its name once more").fill("Clicked")
        page.get_by_role("button", name="Delete it").click()
        page.get_by_role("status").get_by_text("Topic Clicked is deleted").wait_for()


def test_a_viewer_sees_no_form_that_changes_something(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "viewer")
        for url in pages_of(base, page):
            page.goto(url)
            forms = page.locator("form[method=post]").evaluate_all(
                "all => all.map(each => new URL(each.action).pathname)"
            )
            assert set(forms) <= {"/logout", "/zone"}, url
            assert page.get_by_role("button", name="Send the chosen").count() == 0


def test_charts_are_drawn_and_lists_are_filtered_in_place(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "viewer")
        page.locator(".plot canvas").first.wait_for()
        assert page.locator(".chart-note").first.inner_text().startswith("Last: in ")
        page.goto(f"{base}/topics")
        page.evaluate("window.isSame = true")
        page.get_by_label("Name contains").fill("no such name")
        page.get_by_text("No topic has “no such name” in its name.").wait_for()
        assert page.evaluate("window.isSame")
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log in").wait_for()


def test_a_chart_shows_what_is_missing_as_such_and_thousands_as_tables_do(
    browser: Browser, base: str
) -> None:
    now = int(time.time())
    shown = {"begin": now - 3600, "end": now, "times": [now - 60, now]}
    series = {"in": [1.5, 12.34], "out": [3.0, None], "waiting": [5, 6591]}

    def answer(route: Route) -> None:
        names = parse_qs(urlsplit(route.request.url).query)["series"]
        values = [series["waiting" if each == "lag:" else each.partition(":")[0]] for each in names]
        route.fulfill(json={**shown, "values": values})

    with opened_page(browser) as page:
        page.route("**/history.json*", answer)
        log_in(page, base, "viewer")

        def notes() -> list[str]:
            return page.locator(".chart-note").all_inner_texts()

        wait_until(lambda: all(each.startswith("Last") for each in notes()), what="the charts")
        assert notes() == ["Last: in 12.3/s, out –", "Last: waiting 6\u202f591"]
