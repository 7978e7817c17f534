"""Templates, rows and positions of the command line."""

from __future__ import annotations

import json

import click
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kerolox.admin.positions import FIRST, LAST, Position, PositionKind, duration_ms, position_of
from kerolox.cli.messages import body_shown
from kerolox.cli.rows import Column, number_column, show_record, show_row, show_rows
from kerolox.cli.templates import fill_template, parse_template
from kerolox.cli.values import json_text
from kerolox.errors import ClientError
from kerolox.text import SECONDS_DIGITS, milliseconds_of

ROW = {"topic": "T\x1b", "lag": 7, "map": {"a": "b"}, "no": None, "yes": True}


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{topic} {lag}", "T\\x1b 7"),
        ("{topic:raw}", "T\x1b"),
        ("[{lag:>4}] [{lag:<4}]", "[   7] [7   ]"),
        ("{map} {map:json} {map.a} {map.z}", '{"a": "b"} {"a": "b"} b '),
        ("{{{lag}}}\\t\\n\\\\", "{7}\t\n\\"),
        ("{no}{yes}", "true"),
    ],
)
def test_a_template_shows_fields(template: str, shown: str) -> None:
    assert fill_template(parse_template(template), ROW) == shown


@pytest.mark.parametrize(
    "template", ["{", "}", "{}", "{a b}", "{lag:>9999}", "{lag:!r}", "{0}", "{a[0]}", "{a!r}"]
)
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r" at |is no field"):
        parse_template(template)


def test_no_part_of_an_object_is_reached_by_a_template() -> None:
    for template in ("{topic.__class__}", "{lag.real}", "{nothing}"):
        with pytest.raises(KeyError):
            fill_template(parse_template(template), ROW)
    with pytest.raises(click.UsageError, match="there are: topic, lag"):
        show_row(ROW, (), "{nothing}")


@given(st.text(max_size=40))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    try:
        parts = parse_template(text)
    except ValueError:
        return
    assert all(isinstance(each, str) or each.name for each in parts)


def test_a_table_is_aligned_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    columns = Column("name", "NAME"), number_column("lag", "LAG")
    rows = [{"name": "表\x07", "lag": 5}, {"name": "ab", "lag": 1234}]
    show_rows(rows, columns, "table")
    assert capsys.readouterr().out == "NAME     LAG\n表\\x07     5\nab      1234\n"
    show_rows(rows, columns, "raw")
    assert capsys.readouterr().out == "表\x07\t5\nab\t1234\n"
    show_rows(rows, columns, "json")
    assert json.loads(capsys.readouterr().out) == rows
    show_rows(rows, columns, "ndjson")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    show_record(rows[1], columns, "table")
    assert capsys.readouterr().out == "NAME  ab\nLAG   1234\n"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", FIRST),
        ("end", LAST),
        ("now", LAST),
        ("-100", Position(PositionKind.BACK, 100)),
        ("42", Position(PositionKind.OFFSET, 42)),
        ("2h", Position(PositionKind.TIME, 10_000_000_000 - 7_200_000)),
        ("1.5m", Position(PositionKind.TIME, 10_000_000_000 - 90_000)),
        ("1700000000000", Position(PositionKind.TIME, 1_700_000_000_000)),
        ("2026-01-31T12:00+00:00", Position(PositionKind.TIME, 1_769_860_800_000)),
    ],
)
def test_a_position_is_read(text: str, position: Position) -> None:
    assert position_of(text, at_ms=10_000_000_000) == position


@pytest.mark.parametrize("text", ["", "-", "--1", "2y", "1e5", "-5h", "x" * 500, "９", "+1"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no position"):
        position_of(text)
    with pytest.raises(ValueError, match="is no duration"):
        duration_ms(text)


@given(
    st.sampled_from(list(PositionKind)),
    st.integers(0, 1 << 62),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
async def test_a_position_lies_within_its_queue(
    kind: PositionKind, number: int, first: int, count: int
) -> None:
    async def by_time(timestamp_ms: int) -> int:
        return timestamp_ms % 3000 - 500

    assume(kind is not PositionKind.OFFSET or len(str(number)) != SECONDS_DIGITS)
    offset = await Position(kind, number).offset((first, first + count), by_time)
    assert first <= offset <= first + count


@pytest.mark.parametrize("number", [1_000_000_000, 1_700_000_000, 9_999_999_999])
async def test_an_offset_behind_the_end_that_looks_like_seconds_is_refused(number: int) -> None:
    async def by_time(timestamp_ms: int) -> int:
        raise AssertionError(timestamp_ms)

    position = position_of(str(number))
    with pytest.raises(ClientError, match=f"seconds since 1970; write {number}000 or 2"):
        await position.offset((0, 3), by_time)
    assert await position.offset((0, number), by_time) == number
    with pytest.raises(ValueError, match=f"seconds since 1970; write {number}000 or 2"):
        milliseconds_of(str(number))


@pytest.mark.parametrize(
    ("form", "body", "shown"),
    [
        ("auto", b"abc", "abc"),
        ("auto", b"\xff\x00", "ff 00"),
        ("text", b"a\xff", "a\\xff"),
        ("json", b'{"a":\n[1.10]}', '{"a": [1.10]}'),
        ("json", b'{"id": 1, "id": 2}', '{"id": 1, "id": 2}'),
        ("msgpack", b"\x81\xa1a\xc4\x01b", {"a": "Yg=="}),
        ("msgpack", b"\x82\x02\xcb\x7f\xf8" + bytes(6) + b"\xa1b\x02", {"2": "nan", "b": 2}),
        ("base64", b"abc", "YWJj"),
        ("none", b"abc", ""),
    ],
)
def test_a_body_is_shown_in_the_form_asked_for(form: str, body: bytes, shown: object) -> None:
    assert body_shown(body, form) == shown


def test_a_body_that_does_not_fit_the_form_is_hex() -> None:
    for form in ("json", "msgpack"):
        assert str(body_shown(b"\xc1", form)).endswith("] c1")
    for body in (
        b"[" * 100_000,
        b"[NaN]",
        b"Infinity",
        '"\ud800"'.encode("utf-8", "surrogatepass"),
    ):
        assert str(body_shown(body, "json")).startswith("[no json: ")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{body:json}", r'{"price": 1.10, "id": 1, "id": 2, "path": "a\/b\u0041"}'),
        ("{body.price} {body.id} {body.path} {body.none}", "1.10 2 a/bA "),
    ],
)
def test_a_template_shows_json_as_it_is_written(template: str, shown: str) -> None:
    body = rb'{"price":1.10,"id":1,"id":2,"path":"a\/b\u0041"}'
    assert fill_template(parse_template(template), {"body": body_shown(body, "json")}) == shown


def test_rows_hold_json_as_it_is_written_and_nothing_that_a_terminal_obeys() -> None:
    body = body_shown('{"a":1E5,"b":"\u202e"}'.encode(), "json")
    row = {"topic": "T", "body": body}
    written = r'{"topic": "T", "body": {"a": 1E5, "b": "\u202e"}}'
    assert json_text(row) == written
    assert json_text([row, {"n": 1}]) == f'[{written}, {{"n": 1}}]'
