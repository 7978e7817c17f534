"""Questions before something is deleted: on a terminal only."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from kerolox.cli.grouping import ConnectionOption
from tests.cli.every_command import command_contexts
from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import COMMAND, kerolox
from tests.support.servers.terminal import read_to_end


def asked(answer: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run on a terminal, and answer; stderr is what the terminal shows."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            env=os.environ | {"COLUMNS": "200"} | environment,
        )
    finally:
        os.close(theirs)
    try:
        done.stderr = read_to_end(ours).decode()
    finally:
        os.close(ours)
    return done


@pytest.mark.parametrize("noun", ["topic", "group"])
def test_a_deletion_waits_for_a_yes_on_a_terminal_alone(name_server: str, noun: str) -> None:
    at = ("-n", name_server)
    assert kerolox(noun, "create", "Doomed", *at).returncode == 0
    refused = kerolox(noun, "delete", "Doomed", *at)
    assert refused.returncode == 2
    assert "Nothing was done; --yes does it." in refused.stderr
    kept = asked("n\n", noun, "delete", "Doomed", *at)
    assert (kept.returncode, kept.stdout) == (130, "")
    deleted = asked("y\n", noun, "delete", "Doomed", *at)
    assert deleted.returncode == 0
    assert deleted.stdout.startswith(f"{noun} Doomed deleted on ")


def test_a_question_names_the_cluster_and_the_context_that_chose_it(
    name_server: str, tmp_path: Path
) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert kerolox("topic", "create", "Named", "-n", name_server).returncode == 0
    asked_there = asked("n\n", "topic", "delete", "Named", "-n", name_server)
    assert f"Delete topic Named (name server {name_server})?" in asked_there.stderr
    assert kerolox("context", "add", "prod", "-n", name_server, **environment).returncode == 0
    for chosen in (("--context", "prod"), ()):
        said = asked("n\n", "topic", "delete", "Named", *chosen, **environment).stderr
        assert f"Delete topic Named (name server {name_server}, context prod)?" in said


@pytest.mark.parametrize("word", ["--yes", "-y", "--execute"])
def test_a_reset_is_only_told_until_somebody_agrees(name_server: str, word: str) -> None:
    at = ("-n", name_server)
    kerolox("topic", "create", "Again", "--queues", "1", *at)
    kerolox("send", "Again", "x", *at)
    group = f"g{word.strip('-')}"
    kerolox("group", "create", group, *at)
    reset = ("group", "reset", group, "Again", "--to", "end", *at)
    tried = kerolox(*reset, "--dry-run")
    assert (tried.returncode, tried.stdout.splitlines()[-1]) == (
        0,
        "nothing was changed (--dry-run)",
    )
    refused = kerolox(*reset)
    assert refused.returncode == 2
    assert "Nothing was done; --yes does it." in refused.stderr
    assert asked("n\n", *reset).returncode == 130
    assert kerolox("group", "describe", group, *at).returncode == 1
    both = kerolox(*reset, word, "--dry-run")
    assert "--yes and --dry-run don't go together." in both.stderr
    done = kerolox(*reset, word)
    assert (done.returncode, done.stderr) == (0, "")
    assert kerolox("group", "describe", group, *at).returncode == 0


CHANGES = re.compile(
    r"create|update|delete|set|reset|pause|resume|clone|retire|return|promote|demote|resend|purge"
)
"""Verbs of commands that change a cluster."""
WITH_ARGUMENTS = {"kerolox topic permission", "kerolox acl white-list"}
"""Commands that change one where they are given what to set."""


def test_each_command_that_changes_a_cluster_can_say_so_first() -> None:
    changing = []
    for context in command_contexts(without={"spark"}):
        names = {each for param in context.command.params for each in param.opts}
        asks_cluster = any(isinstance(each, ConnectionOption) for each in context.command.params)
        verb = context.command_path.rpartition(" ")[2]
        if asks_cluster and (CHANGES.fullmatch(verb) or context.command_path in WITH_ARGUMENTS):
            changing.append(context.command_path)
            assert "--dry-run" in names, context.command_path
    assert len(changing) >= 24, changing
