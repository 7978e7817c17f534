"""What a terminal shows while a command takes long, and nobody else gets."""

from __future__ import annotations

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


def test_a_quick_command_shows_no_status(name_server: str) -> None:
    assert "waiting for" not in on_terminal("topic", "list", "-n", name_server)
