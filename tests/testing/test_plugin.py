"""The fixtures of pytest, in a run of its own as a user's project has one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

SECONDS_MAX = 300
CONFTEST = """
import pytest


@pytest.fixture(scope="session")
def kerolox_settings():
    return {"messageDelayLevel": "1h"}
"""
TESTS = """
import sys

import pytest
from kerolox import Message, Producer
from kerolox.client import sync

brokers, topics, groups = set(), set(), set()


def test_nothing_is_imported_before_it_is_asked_for():
    assert "kerolox.broker" not in sys.modules


@pytest.mark.parametrize("number", range(3))
def test_the_session_has_one_broker(number, kerolox_broker, kerolox_topic, kerolox_group):
    brokers.add(kerolox_broker.name_server)
    topics.add(kerolox_topic)
    groups.add(kerolox_group)
    with sync.Producer(kerolox_group, kerolox_broker.name_server) as producer:
        producer.send(Message(kerolox_topic, b"hello"))
    assert len(kerolox_broker.messages(kerolox_topic)) == 1
    assert (len(brokers), len(topics), len(groups)) == (1, number + 1, number + 1)


def test_a_test_may_have_its_own(kerolox_broker, own_kerolox_broker):
    assert own_kerolox_broker.name_server != kerolox_broker.name_server


def test_settings_are_the_project_s(own_kerolox_broker):
    with sync.Producer("shop", own_kerolox_broker.name_server) as producer:
        producer.send(Message("Orders", b"later", delay_level=1))
    own_kerolox_broker.advance(minutes=59)
    assert own_kerolox_broker.messages("Orders") == []
    own_kerolox_broker.advance(minutes=2)
    assert len(own_kerolox_broker.messages("Orders")) == 1
"""


def run(folder: Path) -> str:
    # An environment that was set up before there was an entry point does not name the plugin.
    named = entry_points(group="pytest11", name="kerolox")
    plugin = ["-p", "no:asyncio"] + ([] if named else ["-p", "kerolox.pytest_plugin"])
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *plugin]
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST", "COV_"))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_project_has_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    assert "6 passed" in run(tmp_path)
