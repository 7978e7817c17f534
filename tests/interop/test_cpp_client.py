"""The C++ client, ``librocketmq.so`` of PyPI's ``rocketmq-python-cvs`` 2.1.0.3, unmodified."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kerolox.admin.sync import Admin
from tests.support.programs import build_cpp_client
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

MESSAGES = 3
RUN_SECONDS_MAX = 180


def test_a_batch_of_the_c_plus_plus_client_is_stored_as_its_messages(tmp_path: Path) -> None:
    """It says ``m="1"`` of a batch, where Java says ``true``."""
    program = build_cpp_client()
    with Up(tmp_path / "up") as up, Admin(up.namesrv) as admin:
        admin.create_topic("Cpp", queues=1)
        done = subprocess.run(
            [sys.executable, str(program), up.namesrv, "Cpp", str(MESSAGES)],
            env={**os.environ, "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
        )
        stored = [
            (bytes(each.body), each.queue_offset, each.properties["KEYS"], each.properties["TAGS"])
            for each in admin.read_messages("Cpp")
        ]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = done.stdout.splitlines()
    bodies = [f"batch {number}" for number in range(MESSAGES)]
    assert stored == [
        (body.encode(), number, f"key-{number}", "cpp") for number, body in enumerate(bodies)
    ]
    assert "status 0" in said
    assert sorted(line.removeprefix("got ") for line in said if line.startswith("got ")) == bodies
    assert said[-1] == "left"
