"""What a terminal shows while a command takes long, and nobody else gets."""

from __future__ import annotations

import re
import sys
import threading

import pytest

from kerolox.cli.process import status
from tests.support.servers.command import kerolox
from tests.support.servers.terminal import on_terminal

CLEARED = "\r\x1b[K"
DOCTOR = ("doctor", "--between-looks", "2", "-o", "ndjson")


def test_a_terminal_is_told_what_takes_longer_than_a_second(name_server: str) -> None:
    shown = on_terminal(*DOCTOR, "-n", name_server)
    assert f"{CLEARED}examining the cluster, 1 s" in shown
    status, _, rest = shown.rpartition(CLEARED)
    assert "examining the cluster" in status
    assert "examining the cluster" not in rest


def test_neither_a_pipe_nor_a_dumb_terminal_is_told(name_server: str) -> None:
    done = kerolox(*DOCTOR, "-n", name_server, TERM="xterm")
    assert "examining" not in done.stderr + done.stdout
    assert "examining" not in on_terminal(*DOCTOR, "-n", name_server, TERM="dumb")


def test_a_terminal_is_told_how_many_messages_are_sent(name_server: str) -> None:
    many = ("send", "Slowly", "x", "--count", "30", "--rate", "15", "-n", name_server)
    assert re.search(re.escape(CLEARED) + r"sent \d+ messages, 1 s", on_terminal(*many))


def test_work_on_files_is_told_from_a_second_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(status, "STATUS_AFTER_SECONDS", 0.01)
    told = threading.Event()

    def doing() -> str:
        told.set()
        return "reading store"

    with status.status_of(doing):
        assert told.wait(30)
    shown = capsys.readouterr().err
    assert shown.startswith(f"{CLEARED}reading store, 0 s")
    assert shown.endswith(CLEARED)


def test_a_quick_command_shows_no_status(name_server: str) -> None:
    assert "waiting for" not in on_terminal("topic", "list", "-n", name_server)
