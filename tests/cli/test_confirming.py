"""Questions before something is deleted: on a terminal only."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import COMMAND, kerolox


def asked(answer: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run on a terminal, and answer."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        return subprocess.run(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)


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
