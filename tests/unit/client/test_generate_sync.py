"""The blocking clients are what the generator makes of the asyncio ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox import client
from kerolox.client import sync

ROOT = Path(__file__).resolve().parents[3]
CLIENTS = ["Producer", "PullConsumer", "PushConsumer"]


def test_the_blocking_clients_are_fresh() -> None:
    command = [sys.executable, "tools/generate_sync.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_both_packages_have_the_same_names() -> None:
    assert client.__all__ == sync.__all__


def public(cls: type) -> dict[str, object]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLIENTS)
def test_methods_have_the_same_names_and_signatures(name: str) -> None:
    ours, twins = public(getattr(client, name)), public(getattr(sync, name))
    assert ours.keys() == twins.keys()
    for method, twin in ((ours[key], twins[key]) for key in ours):
        if inspect.isfunction(method) and inspect.isfunction(twin):
            assert inspect.signature(method) == inspect.signature(twin)
            assert not inspect.iscoroutinefunction(twin)
            assert bool(method.__doc__) == bool(twin.__doc__)
