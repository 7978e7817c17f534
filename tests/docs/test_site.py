"""The documentation is whole: each page in its place, each table and picture as its source says."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from benchmarks.draw import PICTURE, RESULTS, picture

from kerolox.spark.options import OPTIONS
from kerolox.spark.rows.schema import COLUMNS
from tests.docs.examples import ROOT

README = (ROOT / "README.md").read_text()
SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
SPARK_PAGE = (ROOT / "docs" / "spark" / "source.md").read_text()


def pages_of(nav: list[dict[str, object]]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        for place in entry.values():
            found += [place] if isinstance(place, str) else pages_of(place)  # type: ignore[arg-type]
    return found


def test_each_page_stands_once_in_the_navigation_of_the_site() -> None:
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages_of(SITE["nav"])) == sorted(written), "see nav in zensical.toml"


@pytest.mark.timeout(1200)
def test_the_site_builds_without_a_warning(site: Path) -> None:
    page = (site / "reference" / "client" / "index.html").read_text()
    assert 'id="kerolox.client.Producer.send"' in page


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("kerolox", "chooses the queue among those of the topic"),
        ("sync", "chooses the queue among those of the topic"),
        ("admin-sync", "also those that are done"),
    ],
)
def test_pages_have_whole_docstrings_of_imported_names(site: Path, page: str, text: str) -> None:
    shown = (site / "reference" / page / "index.html").read_text()
    assert text in re.sub(r"<[^>]+>|\s+", " ", shown)


def test_the_reference_has_a_page_for_each_public_module() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    public = importlib.import_module("check_public_types").PUBLIC
    shown = [
        path.read_text().removeprefix("::: ").strip()
        for path in (ROOT / "docs" / "reference").glob("*.md")
        if path.name != "index.md"
    ]
    assert sorted(shown) == sorted(public)


@pytest.mark.parametrize(("table", "names"), [("Options", OPTIONS), ("Columns", COLUMNS)])
def test_the_page_of_the_spark_source_names_all_options_and_columns(
    table: str, names: dict[str, str]
) -> None:
    part = SPARK_PAGE.split(f"## {table}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(names)


def test_the_picture_of_the_figures_is_drawn_from_the_results() -> None:
    assert PICTURE.read_text() == picture(json.loads(RESULTS.read_text()))


def test_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 105
    assert max(map(len, lines)) <= 100


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]
