"""Sign-in by OpenID Connect in a real browser, with a real provider and a console process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.console.browsing import console_process
from tests.console.provider import provider_process
from tests.console.site import PASSWORD
from tests.support.browser import opened_page, running_browser
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.support.servers.clusters import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.node]


@pytest.fixture(scope="module")
def base(our_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console that a provider signs in for."""
    folder, port = tmp_path_factory.mktemp("oidc"), free_port()
    with provider_process(folder, console=f"http://127.0.0.1:{port}") as provider:
        file = folder / "oidc.json"
        file.write_bytes(msgspec.json.encode(provider.settings))
        name_server = our_cluster.name_server
        with console_process(folder, name_server, "--oidc", file, port=port) as address:
            yield address


@pytest.fixture(scope="module")
def browser(base: str) -> Iterator[Browser]:
    with running_browser() as running:
        yield running


def sign_in(page: Page, name: str) -> None:
    page.get_by_role("link", name="Log in with the company").click()
    page.get_by_label("Name at the provider").fill(name)
    page.get_by_role("button", name="Sign in").click()


def test_who_signs_in_gets_to_the_page_asked_for_and_logs_out_at_both(
    base: str, browser: Browser
) -> None:
    with opened_page(browser) as page:
        page.goto(f"{base}/groups?q=some")
        sign_in(page, "vera")
        page.get_by_role("heading", name="Groups").wait_for()
        assert page.url == f"{base}/groups?q=some"
        page.get_by_text("oidc:vera.k (viewer)").wait_for()
        page.reload()
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log out of the provider?").wait_for()
        page.get_by_role("button", name="Yes, log out").click()
        page.get_by_role("heading", name="Log in").wait_for()
        assert page.url.startswith(f"{base}/login")
        # The provider asks again who it is, since its own session is over, too.
        sign_in(page, "otto")
        page.get_by_text("oidc:otto.k (operator)").wait_for()


def test_who_has_no_role_reads_why_and_may_use_another_account(base: str, browser: Browser) -> None:
    with opened_page(browser, expected="status of 403") as page:
        page.goto(base)
        sign_in(page, "nora")
        page.get_by_role("alert").get_by_text("You have no role here").wait_for()
        page.get_by_label("Name").fill("viewer")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in", exact=True).click()
        page.get_by_text("viewer (viewer)").wait_for()
