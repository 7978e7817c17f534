"""Clients that ask too much at once: others are served all the while, and memory has a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.abuse.scenarios import FLOODS
from tests.support.servers.probe import Probe, memory_mib

if TYPE_CHECKING:
    from tests.support.servers.up import Up

LEFT_MIB_MAX = 300


@pytest.mark.parametrize("name", FLOODS)
def test_others_are_served_beside(up: Up, name: str) -> None:
    scenario = FLOODS[name]
    with Probe(up) as probe:
        scenario.play(up)
    probe.verdict(memory_mib_max=scenario.memory_mib_max, log_lines_max=scenario.log_lines_max)


def test_what_the_storms_left_behind_is_little(up: Up) -> None:
    assert up.process is not None
    assert memory_mib(up.process.pid) < LEFT_MIB_MAX
