"""Pages that refresh themselves, in a real browser: what was chosen, opened or typed stays."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.message import Message
from tests.console.browsing import console_process, fill, log_in
from tests.support.browser import PHONE, opened_page, running_browser
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.browser

GROUP = "gives-up"
WIDTHS = (320, 390, 600, 768, 1024, 1440, 1920)


@pytest.fixture(scope="module")
def base(our_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    asyncio.run(fill(our_cluster.name_server))
    with console_process(tmp_path_factory.mktemp("live"), our_cluster.name_server) as address:
        yield address


@pytest.fixture(scope="module")
def admin(our_cluster: Cluster) -> Iterator[Admin]:
    with Admin(our_cluster.name_server) as asking:
        yield asking


@pytest.fixture(scope="module")
def browser(base: str) -> Iterator[Browser]:
    with running_browser() as running:
        yield running


def live_text(page: Page) -> str:
    return page.locator("[data-live-text]").inner_text()


def test_dead_letters_that_come_keep_what_was_chosen(
    base: str, admin: Admin, browser: Browser
) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "operator", f"/dead-letter?group={GROUP}")
        rows = page.locator("#live tbody tr")
        before = rows.count()
        chosen = page.get_by_role("checkbox", name="Choose").nth(1)
        chosen.check()
        place = chosen.get_attribute("value")
        page.get_by_text("Mark all that wait as done").click()
        page.get_by_label("Type the group’s name once more").fill("half a na")
        page.evaluate("window.isSame = true; document.querySelector('#live tr').isSame = true")
        admin.send_message(Message(f"%DLQ%{GROUP}", b"one more"))
        wait_until(lambda: rows.count() == before + 1, what="the new dead letter")
        assert page.evaluate("window.isSame && document.querySelector('#live tr').isSame")
        assert page.locator(f"input[value='{place}']").is_checked()
        assert page.locator("input[name=place]:checked").count() == 1
        field = page.get_by_label("Type the group’s name once more")
        assert field.input_value() == "half a na"
        assert page.evaluate("document.activeElement.name") == "again"
        assert live_text(page).startswith("Updated ")


def test_all_dead_letters_of_a_page_are_chosen_by_one_box(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "operator", f"/dead-letter?group={GROUP}")
        chosen = page.locator("input[name=place]:checked")
        page.get_by_role("checkbox", name="All", exact=True).check()
        assert chosen.count() == page.locator("#live tbody tr").count() > 0
        page.get_by_role("checkbox", name="All", exact=True).uncheck()
        assert chosen.count() == 0


def test_lag_grows_on_an_open_page_which_stays_where_it_was(
    base: str, admin: Admin, browser: Browser
) -> None:
    topic, group = (f"{kind}{uuid.uuid4().hex[:8]}" for kind in ("Live", "live"))
    admin.create_topic(topic, queues=30)
    admin.update_group(group)
    wait_until(lambda: topic in admin.list_topics())
    admin.reset_offsets(group, topic, 0)
    with opened_page(browser, viewport=PHONE) as page:
        log_in(page, base, "viewer", f"/group?name={group}")
        lag = page.locator(".figures dd").first
        assert lag.inner_text() == "0"
        table = page.get_by_role("region", name="Queues")
        table.evaluate("each => { each.scrollLeft = 120; }")
        table.focus()
        page.evaluate("scrollTo(0, 400)")
        place = page.evaluate("scrollY")
        assert place > 0
        admin.send_message(Message(topic, b"x"))
        wait_until(lambda: lag.inner_text() == "1", what="the lag")
        assert table.evaluate("each => each.scrollLeft") == 120
        assert page.evaluate("scrollY") == place
        assert page.evaluate("document.activeElement.getAttribute('aria-labelledby')") == "queues"


def test_selected_text_and_a_freeze_hold_the_page_still(
    base: str, admin: Admin, browser: Browser
) -> None:
    topic = f"Still{uuid.uuid4().hex[:8]}"
    admin.create_topic(topic, queues=1)
    wait_until(lambda: topic in admin.list_topics())
    with opened_page(browser) as page:
        log_in(page, base, "viewer", f"/topic?name={topic}")
        stored = page.locator(".figures dd").first
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.figures dd'))")
        admin.send_message(Message(topic, b"x"))
        wait_until(lambda: live_text(page).startswith("Waits, since "), what="the wait")
        assert stored.inner_text() == "0"
        page.evaluate("getSelection().removeAllRanges()")
        wait_until(lambda: stored.inner_text() == "1", what="the message")
        page.get_by_role("button", name="Freeze").click()
        assert live_text(page).startswith("Frozen at ")
        admin.send_message(Message(topic, b"x"))
        page.get_by_role("button", name="Freeze").click()
        wait_until(lambda: stored.inner_text() == "2", what="the next message")


def test_a_page_that_gets_no_answer_says_since_when(base: str, browser: Browser) -> None:
    # What does not come stands in the browser's log, too, so that is not examined here.
    context = browser.new_context()
    page = context.new_page()
    try:
        log_in(page, base, "viewer", "/topic?name=Shown")
        page.route("**/topic?name=Shown", lambda route: route.abort())
        wait_until(lambda: live_text(page).startswith("Not updated since "), what="the fault")
        assert "the console does not answer" in live_text(page)
        assert page.locator(".figures").count() == 1
        page.unroute("**/topic?name=Shown")
        wait_until(lambda: live_text(page).startswith("Updated "), what="the next answer")
    finally:
        context.close()


def test_a_page_whose_session_has_ended_leads_to_the_login(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "viewer", "/topic?name=Shown")
        other = page.context.new_page()
        other.goto(f"{base}/groups")
        other.get_by_role("button", name="Log out").click()
        other.get_by_role("heading", name="Log in").wait_for()
        page.get_by_role("heading", name="Log in").wait_for()
        assert "next=%2Ftopic" in page.url


def test_pages_fit_every_width_and_the_navigation_folds(base: str, browser: Browser) -> None:
    paths = ("/", "/doctor", "/topics", "/topic?name=Shown", "/groups", f"/group?name={GROUP}")
    paths += ("/messages?topic=Shown", f"/dead-letter?group={GROUP}", "/brokers", "/search?q=s")
    with opened_page(browser) as page:
        log_in(page, base, "admin")
        for path in paths:
            page.goto(f"{base}{path}")
            page.wait_for_load_state("networkidle")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        icons = page.locator("nav.side svg.icon")
        drawn = icons.evaluate_all("all => all.map(each => each.getBBox().width)")
        assert len(drawn) > 10
        assert min(drawn) > 0
        page.set_viewport_size(PHONE)
        link = page.locator("nav.side").get_by_role("link", name="Groups")
        assert not link.is_visible()
        page.get_by_role("button", name="Menu").focus()
        page.keyboard.press("Enter")
        link.wait_for()
        page.keyboard.press("Escape")
        link.wait_for(state="hidden")
        page.keyboard.press("Enter")
        link.click()
        page.get_by_role("heading", name="Groups").wait_for()


def test_a_slash_leads_to_the_search_and_enter_finds(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "viewer")
        page.keyboard.press("/")
        page.keyboard.type("shown")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Found for “shown”").wait_for()
        page.get_by_text("No message has it as its id or as a key").wait_for()
        page.get_by_role("list", name="Topics").get_by_role("link", name="Shown").click()
        page.get_by_role("heading", name="Shown").wait_for()
