"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path) as server:
        yield server


def test_the_python_example_sends_and_receives(up: Up) -> None:
    [example] = [
        code for code in re.findall(r"```python\n(.*?)```", README, re.S) if "main()" in code
    ]
    example = example.replace("127.0.0.1:9876", up.namesrv)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "SEND_OK" in done.stdout
    assert "b'hello'" in done.stdout or "b'again'" in done.stdout


def test_the_shell_commands_work(up: Up) -> None:
    lines = [line.strip() for line in README.splitlines()]
    commands = [line.split("#")[0] for line in lines if line.startswith("kerolox ")]
    client_commands = [line for line in commands if line.split()[1] in {"topic", "send"}]
    assert len(client_commands) == 2
    for line in client_commands:
        command = [sys.executable, "-m", "kerolox.cli", *shlex.split(line)[1:], "-n", up.namesrv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
