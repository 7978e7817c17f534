"""``kerolox context``: clusters by name."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.support.servers.command import kerolox


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Variables of a user without contexts."""
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


def test_a_context_is_added_selected_used_and_deleted(
    name_server: str, home: dict[str, str]
) -> None:
    assert "kerolox context add" in kerolox("context", "list", **home).stdout
    added = kerolox("context", "add", "prod", "-n", name_server, **home)
    assert added.stdout == "context prod added and selected\n"
    assert kerolox("context", "add", "far", "-n", "127.0.0.1:1", **home).returncode == 0
    assert kerolox("topic", "list", "--all", **home).returncode == 0
    assert kerolox("context", "select", "far", **home).returncode == 0
    assert "127.0.0.1:1" in kerolox("topic", "list", **home).stderr
    assert kerolox("topic", "list", "--context", "prod", **home).returncode == 0
    assert kerolox("topic", "list", KEROLOX_CONTEXT="prod", **home).returncode == 0
    listed = json.loads(kerolox("context", "list", "-o", "json", **home).stdout)
    assert [(each["name"], each["selected"]) for each in listed] == [("far", True), ("prod", False)]
    assert kerolox("context", "delete", "far", **home).returncode == 0
    assert kerolox("context", "show", **home).returncode == 1


def test_what_is_given_is_stronger_than_the_selected_context(
    name_server: str, home: dict[str, str]
) -> None:
    kerolox("context", "add", "far", "-n", "127.0.0.1:1", **home)
    assert kerolox("topic", "list", "-n", name_server, **home).returncode == 0
    assert kerolox("topic", "list", NAMESRV_ADDR=name_server, **home).returncode == 0
    named = kerolox("topic", "list", "--context", "far", NAMESRV_ADDR=name_server, **home)
    assert "127.0.0.1:1" in named.stderr


def test_keys_of_a_context_are_not_sent_to_another_cluster(
    name_server: str, home: dict[str, str], tmp_path: Path
) -> None:
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: operator\nsecretKey: 12345678\n")
    add = ("context", "add", "prod", "-n", "127.0.0.1:1", "--credentials", keys)
    assert kerolox(*add, **home).returncode == 0
    keys.unlink()
    # The file is only read for the context's own cluster.
    assert kerolox("topic", "list", "-n", name_server, **home).returncode == 0
    assert "tools.yml" in kerolox("topic", "list", **home).stderr


def test_a_wrong_name_or_a_broken_file_is_one_clear_line(home: dict[str, str]) -> None:
    kerolox("context", "add", "prod", "-n", "127.0.0.1:1", **home)
    twice = kerolox("context", "add", "prod", "-n", "127.0.0.1:2", **home)
    assert "--replace" in twice.stderr
    assert "did you mean 'prod'?" in kerolox("topic", "list", "--context", "prd", **home).stderr
    assert kerolox("context", "add", "../x", "-n", "127.0.0.1:1", **home).returncode == 1
    path = Path(home["XDG_CONFIG_HOME"], "kerolox", "contexts.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for text in ("{", '{"contexts": 5}', "[" * 100_000):
        path.write_text(text)
        [line] = kerolox("topic", "list", **home).stderr.splitlines()
        assert "is no file of contexts" in line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes(shell: str) -> None:
    script = kerolox("completion", shell)
    assert script.returncode == 0
    assert "_KEROLOX_COMPLETE" in script.stdout
    words = {"COMP_WORDS": "kerolox gro", "COMP_CWORD": "1", "_KEROLOX_COMPLETE": "bash_complete"}
    assert kerolox(**words).stdout == "plain,group\n"
