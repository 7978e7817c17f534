"""The port for gRPC under attack: each call is refused with a status or its connection is closed,
others are served all the while, nothing unforeseen is logged, and the servers start again with all
that they had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.abuse.conftest import SETTINGS
from tests.abuse.grpc_abuses import TOPIC
from tests.abuse.grpc_scenarios import GRPC_SCENARIOS, served
from tests.abuse.kept import ask, differing, fitted, keep, kept, tables
from tests.abuse.scenarios import Scenario
from tests.support.clients.requests import topic_fields
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = str(int(RequestCode.GET_ALL_CONSUMER_OFFSET))
DELAYS = str(int(RequestCode.GET_ALL_DELAY_OFFSET))
FORGED_STAMP = "2026-01-01 00:00:00,000 WARNING"


@pytest.fixture(scope="module", params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("grpc")
    with Up(folder, settings=SETTINGS, kernel=request.param, counted=True, grpc=True) as started:
        fields = topic_fields(TOPIC, queues=1)
        answer = ask(started.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.SUCCESS
        keep(started)
        served(started)
        yield started


def play(up: Up, scenario: Scenario) -> None:
    with Probe(up) as probe:
        scenario.play(up)
    probe.verdict(memory_mib_max=scenario.memory_mib_max, log_lines_max=scenario.log_lines_max)
    assert not [line for line in probe.log_lines() if line.startswith(FORGED_STAMP)]


@pytest.mark.parametrize("name", GRPC_SCENARIOS)
def test_others_are_served_beside(up: Up, name: str) -> None:
    play(up, GRPC_SCENARIOS[name])


def test_all_that_was_there_is_there_after_a_restart(up: Up) -> None:
    before = kept(up)
    there = tables(up)
    there[OFFSETS]["offsetTable"] = fitted(up, there[OFFSETS]["offsetTable"])
    up.stop()
    up.start(keep_settings=True)
    served(up)
    found = tables(up)
    for each in (there, found):
        each.pop(DELAYS)
        each[OFFSETS]["offsetTable"].pop(f"{TOPIC}@abusers", None)
    assert differing(there, found) == []
    assert differing(before, kept(up)) == []
