"""The first message of the guide for clients of RocketMQ 5, in each language."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.docs.examples import ROOT, blocks_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GUIDE = ROOT / "docs" / "guides" / "rocketmq5.md"
ENDPOINT = "127.0.0.1:8081"


def example(language: str, endpoint: str) -> str:
    """The program of the guide, at another endpoint."""
    [code] = [
        each.code
        for each in blocks_of(GUIDE)
        if (each.language, each.needs) == (language, "rocketmq")
    ]
    assert ENDPOINT in code
    return code.replace(ENDPOINT, endpoint)


def check_first_message(
    command: Sequence[str], folder: Path, seconds: float, **environment: str
) -> None:
    """It is sent, received and acknowledged. ``folder``: where the program runs and may write."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    sent, got = done.stdout.splitlines()
    assert sent.startswith("sent 01")
    assert got.startswith("got hello ")
    assert "order-1" in got
