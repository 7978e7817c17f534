"""What scripts of the console do in a real browser: copying, going on, ordering, the time zone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from kerolox.message import Message
from tests.console.browsing import console_process, fill, log_in
from tests.support.browser import opened_page, running_browser
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.browser

GROUP = "goes-on"


@pytest.fixture(scope="module")
def base(our_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    asyncio.run(fill(our_cluster.name_server))
    with Admin(our_cluster.name_server) as admin:
        for topic in (f"%DLQ%{GROUP}", f"%RETRY%{GROUP}"):
            admin.create_topic(topic, queues=1)
        admin.send_message(Message(f"%DLQ%{GROUP}", b"given up"))
    with console_process(tmp_path_factory.mktemp("pages"), our_cluster.name_server) as address:
        yield address


@pytest.fixture(scope="module")
def browser(base: str) -> Iterator[Browser]:
    with running_browser() as running:
        yield running


def test_a_body_is_copied_and_the_next_message_is_one_click_away(
    base: str, browser: Browser
) -> None:
    with opened_page(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        log_in(page, base, "viewer", "/messages?topic=Shown")
        page.get_by_role("region", name="Messages").get_by_role("link").last.click()
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#body-text").text_content()
        assert copied.startswith('{\n  "a": ')
        place = page.locator(".pairs dd").first
        before = place.inner_text()
        page.get_by_role("link", name="Next").click()
        wait_until(lambda: place.inner_text() != before, what="the next message")


def test_sending_all_again_goes_on_until_nothing_waits(base: str, browser: Browser) -> None:
    def as_if_begun(route: Route) -> None:
        answer = route.fetch()
        text = re.sub(r'(resend-all" class="inline")', r"\1 data-goes-on", answer.text())
        route.fulfill(response=answer, body=text)

    with opened_page(browser) as page:
        log_in(page, base, "operator")
        page.route(f"**/dead-letter?group={GROUP}", as_if_begun, times=1)
        page.goto(f"{base}/dead-letter?group={GROUP}")
        page.get_by_text("1 dead letter was sent again.").wait_for()
        assert page.locator("form[data-goes-on]").count() == 0
        page.get_by_text("0 of 1 wait.").wait_for()


def test_a_click_on_the_head_of_a_column_orders_the_list(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "viewer", "/topics?all=1")
        head = page.get_by_role("columnheader", name="Topic")
        assert head.get_attribute("aria-sort") == "ascending"
        first = page.locator("#list tbody tr td").first.inner_text()
        head.get_by_role("link").click()
        wait_until(lambda: head.get_attribute("aria-sort") == "descending", what="the order")
        assert page.locator("#list tbody tr td").first.inner_text() != first
        # What is searched then stays in that order.
        with page.expect_response(lambda answer: "q=shown" in answer.url) as found:
            page.get_by_label("Name contains").fill("shown")
        assert "order=desc" in found.value.url
        assert "all=1" in found.value.url


def test_a_zone_that_is_chosen_is_that_of_tables_and_of_charts(base: str, browser: Browser) -> None:
    with opened_page(browser) as page:
        log_in(page, base, "viewer", "/topics")
        page.get_by_role("link", name="Times: of the console").click()
        page.get_by_label("Times are shown in, and read as of").select_option("Pacific/Kiritimati")
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("heading", name="Topics").wait_for()
        page.get_by_role("link", name="Times: Pacific/Kiritimati").wait_for()
        own = page.evaluate(
            "new Intl.DateTimeFormat('en-GB', {timeStyle: 'short', hour12: false,"
            " timeZone: 'Pacific/Kiritimati'}).format(new Date())"
        )
        hour = own.partition(":")[0]
        # An hour may have passed between both.
        following = f"{(int(hour) + 1) % 24:02}"
        live = page.locator("[data-live-text]").inner_text()
        assert live.startswith((f"Updated {hour}:", f"Updated {following}:"))


def test_a_followed_topic_that_is_frozen_goes_on_where_it_was(base: str, browser: Browser) -> None:
    with opened_page(browser) as page, opened_page(browser) as other:
        log_in(page, base, "viewer", "/messages/tail?topic=Shown")
        log_in(other, base, "operator", "/topic?name=Shown")

        def send(body: str) -> None:
            other.get_by_text("Send a test message").click()
            other.get_by_label("Body").fill(body)
            other.get_by_role("button", name="Send", exact=True).click()
            other.get_by_role("status").get_by_text("Sent: SEND_OK").wait_for()

        entries = page.locator("#tail li")
        send("first")
        wait_until(lambda: entries.count() == 1, what="the first message")
        page.get_by_role("button", name="Freeze").click()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        send("second")
        other.get_by_role("button", name="Log out").click()
        other.get_by_role("heading", name="Log in").wait_for()
        assert entries.count() == 1
        page.get_by_role("button", name="Freeze").click()
        wait_until(lambda: entries.count() == 2, what="the second message")
        assert entries.first.get_by_text("second").count() == 1
        assert asked
