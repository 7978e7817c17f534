"""The page of a job: whole by itself, and nothing of a message is obeyed by a browser."""

from html.parser import HTMLParser

import pytest

from kerolox.spark.jobs.report import (
    ROWS_MAX,
    Bars,
    KeyNumbers,
    Lines,
    Paragraph,
    Report,
    Section,
    Table,
    render,
    write_report,
)

HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\u202e"
VOID = {"meta", "rect", "path", "polyline"}


class Page(HTMLParser):
    """Checks that each element ends; gathers elements, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.seen, self.values, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.values += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)
        self.values += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def report_of(text: str) -> Report:
    parts = [
        Paragraph(text),
        KeyNumbers([(text, text), ("rows", 1234567), ("none", None)]),
        Table(text, (text, "number"), [(text, 1.5), ("b", 2)]),
        Bars(text, [(text, 3.0), ("b", 0)], unit=text),
        Lines(text, [(text, [(0, 1), (10, 4)]), ("empty", [])], text, text, (text, text)),
        Bars("no bars", []),
        Lines("no lines", []),
    ]
    return Report(text, text, [Section(text, parts)])


def test_texts_of_messages_are_no_elements_and_no_attributes():
    page = Page(render(report_of(HOSTILE)))
    plain = Page(render(report_of("plain")))
    assert page.seen == plain.seen
    assert [name for name, _ in page.values] == [name for name, _ in plain.values]
    assert not any(char in text for text in page.texts for char in "\x1b\u202e")


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing():
    text = render(report_of("plain"))
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.seen)
    assert not any(name in ("src", "href") or name.startswith("on") for name, _ in page.values)
    assert "url(" not in text
    assert "@import" not in text
    policy = dict(page.values)["content"]
    assert policy
    assert "default-src 'none'" in text


def test_charts_have_titles_and_their_numbers_in_a_table():
    page = Page(render(report_of("plain")))
    names = [value for name, value in page.values if name == "aria-labelledby"]
    ids = [value for name, value in page.values if name == "id"]
    assert set(names) <= set(ids)
    assert page.seen.count("svg") == page.seen.count("details") == 4
    assert page.seen.count("caption") == page.seen.count("table") == 5
    assert ("scope", "row") in page.values
    assert "prefers-color-scheme:dark" in render(report_of("plain"))


def test_a_long_table_is_cut_and_says_so():
    rows = [(str(number), number) for number in range(ROWS_MAX + 7)]
    text = render(Report("t", "s", [Section("x", [Table("many", ("a", "b"), rows)])]))
    assert Page(text).seen.count("tr") == ROWS_MAX + 1
    assert "7 more rows are not shown" in text


def test_a_page_that_can_not_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "page.html"
    write_report(report_of("first"), path)
    first = path.read_text()
    broken = Report("t", "s", [Section("x", [object()])])  # type: ignore[list-item]
    with pytest.raises(AssertionError):
        write_report(broken, path)
    assert path.read_text() == first
    assert list(tmp_path.iterdir()) == [path]
