"""Every code of both roles is abused, many of them at once: each request is answered, a probe is
served all the while, memory has a bound, and the servers start again with all that they had.

With ``KEROLOX_FUZZ_EXAMPLES`` it is all that can be wrong with each code, else a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.abuse.conftest import SETTINGS
from tests.abuse.every_code import BROKER, BROKER_KERNEL, NAMESRV, TOPIC, Role
from tests.abuse.everything import ALL_OF_THEM
from tests.abuse.kept import ask, differing, fitted, keep, kept, tables
from tests.abuse.scenarios import everything_of
from tests.support.clients.requests import topic_fields
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = str(int(RequestCode.GET_ALL_CONSUMER_OFFSET))
DELAYS = str(int(RequestCode.GET_ALL_DELAY_OFFSET))
NOT_REACHED = ("the custom field", "the body is no", "the body's")
"""How an answer begins when the handler was not reached."""


SECONDS_MAX = 600
"""It takes twenty on a machine that has nothing else to do."""

FORGED_STAMP = "2026-01-01 00:00:00,000 WARNING"
"""What names with line ends try to put into the log."""


CASES = [
    (kernel, role if kernel == KERNELS[-1] or ALL_OF_THEM else BROKER_KERNEL)
    for role in (BROKER, NAMESRV)
    for kernel in (KERNELS if role is BROKER or ALL_OF_THEM else KERNELS[-1:])
]
"""A name server has no kernel: one is enough beside it, as it is for codes that Python answers."""


@pytest.fixture
def counting(kernel: str, tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path, settings=SETTINGS, kernel=kernel, counted=True) as up:
        fields = topic_fields(TOPIC, queues=1)
        answer = ask(up.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.SUCCESS
        keep(up)
        yield up


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize(("kernel", "role"), CASES, ids=lambda each: getattr(each, "name", each))
def test_every_code_is_abused_and_all_that_was_there_is_there_after_a_restart(
    counting: Up, role: Role
) -> None:
    before = kept(counting)
    for scenario in everything_of(role).values():
        with Probe(counting) as probe:
            scenario.play(counting)
        probe.verdict(memory_mib_max=scenario.memory_mib_max, log_lines_max=scenario.log_lines_max)
        assert not [line for line in probe.log_lines() if line.startswith(FORGED_STAMP)]
    assert differing(before, kept(counting)) == []
    there = tables(counting)
    there[OFFSETS]["offsetTable"] = fitted(counting, there[OFFSETS]["offsetTable"])
    counting.stop()
    counting.start(keep_settings=True)
    found = tables(counting)
    # Messages that were sent back become due meanwhile: their level's offset goes on, never back.
    delivered, delivered_now = (each.pop(DELAYS)["offsetTable"] for each in (there, found))
    assert all(delivered_now[level] >= offset for level, offset in delivered.items())
    assert differing(there, found) == []
    assert differing(before, kept(counting)) == []


@pytest.mark.parametrize("role", [BROKER, NAMESRV], ids=lambda role: role.name)
def test_what_is_abused_reaches_the_handler_of_each_code(up: Up, role: Role) -> None:
    """One thing is wrong with an abused request; without it nothing is."""
    ask(up.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, queues=1))
    address = up.broker if role is BROKER else up.namesrv
    for code in sorted(role.headers):
        remark = ask(address, code, role.members(code), role.body(code)).remark or ""
        assert not remark.startswith(NOT_REACHED), (code, remark)
