"""The diagrams of the design are true to the code, and the site draws them without a network."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docs.examples import PAGES, ROOT, blocks_of
from tests.support.browser import opened_page, running_browser

MESSAGES_MAX = 12
DIAGRAMS = {
    page: [block.code for block in blocks_of(page) if block.language == "mermaid"] for page in PAGES
}
DRAWN = [page for page, diagrams in DIAGRAMS.items() if diagrams]
TEXT = "\n".join(diagram for diagrams in DIAGRAMS.values() for diagram in diagrams)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_diagram_is_short_enough_to_follow() -> None:
    assert TEXT
    messages = [
        len(re.findall(r"^ +\w+-+>>\w+: ", diagram, re.MULTILINE))
        for diagrams in DIAGRAMS.values()
        for diagram in diagrams
    ]
    assert min(messages) > 1
    assert max(messages) <= MESSAGES_MAX


def test_diagrams_name_classes_and_functions_that_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "kerolox").rglob("*.py"))
    classes = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", TEXT)) | set(
        re.findall(r"participant \w+ as ([A-Z]\w+)$", TEXT, re.MULTILINE)
    )
    functions = set(re.findall(r"\b([a-z_]+)\(", TEXT))
    assert classes
    assert functions
    assert {name for name in classes if f"class {name}" not in source} == set()
    assert {name for name in functions if f"def {name}(" not in source} == set()


@pytest.mark.browser
@pytest.mark.timeout(1200)
def test_the_site_draws_each_diagram_without_a_network(address: str) -> None:
    with running_browser() as browser, opened_page(browser) as page:
        for drawn in DRAWN:
            name = drawn.relative_to(ROOT / "docs").with_suffix("")
            page.goto(f"{address}/{name}/")
            shown = page.locator("div.mermaid")
            count = len(DIAGRAMS[drawn])
            page.wait_for_function(f"document.querySelectorAll('div.mermaid').length == {count}")
            assert page.locator("pre.mermaid").count() == 0
            for index in range(count):
                box = shown.nth(index).bounding_box()
                assert box is not None
                assert box["height"] > 200
