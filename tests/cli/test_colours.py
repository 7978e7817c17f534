"""Colours: on a terminal alone, never where they are refused, and nothing of a stranger's."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import COMMAND, kerolox

COLOURS = re.compile(r"\x1b\[\d+m")


def on_terminal(*arguments: object, **environment: str) -> str:
    """What a terminal gets of a command."""
    ours, theirs = pty.openpty()
    read = bytearray()

    def drain() -> None:
        # A terminal that nobody writes to any more answers with an error.
        while True:
            try:
                some = os.read(ours, 65_536)
            except OSError:
                return
            read.extend(some)

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        subprocess.run(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **environment},
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return read.decode().replace("\r\n", "\n")


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
