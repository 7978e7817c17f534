"""Colours: on a terminal alone, never where they are refused, and nothing of a stranger's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.servers.command import kerolox
from tests.support.servers.terminal import on_terminal

COLOURS = re.compile(r"\x1b\[\d+m")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Of a broker, with something wrong."""
    path = tmp_path / "broker.conf"
    path.write_text("flushDiskTyp=SYNC_FLUSH\n")
    return path


def test_a_terminal_gets_findings_tables_and_errors_in_colours(
    settings: Path, name_server: str
) -> None:
    findings = on_terminal("doctor", "--offline", "--config", settings)
    assert COLOURS.match(findings)
    assert kerolox("topic", "create", "Shown", "-n", name_server).returncode == 0
    head, *rows = on_terminal("topic", "list", "-n", name_server).splitlines()
    assert head.startswith("\x1b[1m")
    assert head.endswith("\x1b[0m")
    assert not any("\x1b" in row for row in rows)
    shown = ("topic", "describe", "Shown", "-n", name_server)
    assert COLOURS.sub("", on_terminal(*shown)) == kerolox(*shown).stdout
    error = on_terminal("topic", "describe", "N\x1b[31mone", "-n", name_server)
    assert error.startswith("\x1b[31m\x1b[1mkerolox: error:\x1b[0m ")
    assert len(COLOURS.findall(error)) == 3


@pytest.mark.parametrize("refusal", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_colours_gets_none(settings: Path, refusal: dict[str, str]) -> None:
    arguments = ("doctor", "--offline", "--config", settings)
    plain = kerolox(*arguments).stdout
    assert plain
    assert "\x1b" not in plain
    assert on_terminal(*arguments, **refusal) == plain
    assert COLOURS.sub("", on_terminal(*arguments)) == plain
