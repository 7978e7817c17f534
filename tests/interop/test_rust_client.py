"""The Rust client ``rocketmq-client-rust`` 1.0.0 of crates.io, unmodified, against our servers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kerolox.client.sync import Producer
from tests.support.programs import RUST_SECONDS_MAX, build_rust_client
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.software, pytest.mark.timeout(RUST_SECONDS_MAX + 300)]

MESSAGES = 20
RUN_SECONDS_MAX = 120


def test_a_rust_application_sends_and_receives_unmodified(tmp_path: Path) -> None:
    """Its producer reads no route that lacks ``enableActingMaster``."""
    program = build_rust_client()
    with Up(tmp_path / "up") as up:
        with Producer("rust-topics", up.namesrv) as producer:
            producer.create_topic("Rust", queues=4)
        done = subprocess.run(
            [program, up.namesrv, "Rust", "rust-readers", str(MESSAGES), str(RUN_SECONDS_MAX)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * RUN_SECONDS_MAX,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = done.stdout.splitlines()
    assert sum(line == "sent SendOk" for line in lines) == MESSAGES, done.stdout
    got = [int(line.removeprefix("got ")) for line in lines if line.startswith("got ")]
    assert sorted(got) == list(range(MESSAGES))
    assert lines[-1] == "ended"
