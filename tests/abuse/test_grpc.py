"""The port for gRPC under attack: each call is refused with a status or its connection is closed,
others are served all the while, nothing unforeseen is logged, and the servers start again with all
that they had."""

from __future__ import annotations

import hashlib
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.abuse.conftest import SETTINGS
from tests.abuse.grpc_abuses import TOPIC
from tests.abuse.grpc_scenarios import (
    GRPC_COUNTERS,
    GRPC_SCENARIOS,
    KERNEL_FIELDS,
    OF_PYTHON,
    served,
)
from tests.abuse.kept import ask, differing, fitted, keep, kept, tables
from tests.abuse.scenarios import Scenario
from tests.support.clients.requests import pull_fields, topic_fields
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = str(int(RequestCode.GET_ALL_CONSUMER_OFFSET))
DELAYS = str(int(RequestCode.GET_ALL_DELAY_OFFSET))
MAX_OFFSET, PULL = RequestCode.GET_MAX_OFFSET, RequestCode.PULL_MESSAGE
FORGED_STAMP = "2026-01-01 00:00:00,000 WARNING"


@pytest.fixture(scope="module", params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("grpc")
    settings = {
        **SETTINGS,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": free_port(),
    }
    with Up(folder, settings=settings, kernel=request.param, counted=True, grpc=True) as started:
        fields = topic_fields(TOPIC, queues=1)
        answer = ask(started.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.SUCCESS
        keep(started)
        served(started)
        yield started


_COUNTER = re.compile(
    r"(?:kerolox_grpc_(?P<name>calls_refused|connections_closed)_total|rocketmq_rpc_latency_count)"
    r"\{(?P<labels>.*)\} (?P<value>[0-9]+)"
)


def counted(up: Up) -> dict[str, int]:
    """What the port has counted, by the names of :data:`GRPC_COUNTERS`."""
    url = f"http://127.0.0.1:{up.settings['metricsPromExporterPort']}/metrics"
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for match in _COUNTER.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if match["name"]:
            found[f"{match['name']} {labels['reason']}"] += int(match["value"])
        else:
            found[f"{labels['request_code']} {labels['response_code']}"] += int(match["value"])
    return found


def stored(up: Up) -> list[tuple[int, str]]:
    """The messages of the topic under attack: where each is, and a digest of all of it."""
    queue = {"topic": TOPIC, "queueId": 0}
    end = int(ask(up.broker, MAX_OFFSET, queue).ext_fields["offset"])
    found: list[tuple[int, str]] = []
    while len(found) < end:
        fields = pull_fields(
            topic=TOPIC, consumerGroup="readers", queueOffset=len(found), sysFlag=4, maxMsgNums=32
        )
        answer = ask(up.broker, PULL, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for message in decode_records(answer.body):
            digest = hashlib.sha256(message.body + repr(message.properties).encode()).hexdigest()
            found.append((message.queue_offset, digest))
    return found


def play(up: Up, scenario: Scenario) -> None:
    with Probe(up) as probe:
        scenario.play(up)
    probe.verdict(memory_mib_max=scenario.memory_mib_max, log_lines_max=scenario.log_lines_max)
    assert not [line for line in probe.log_lines() if line.startswith(FORGED_STAMP)]


def judge(up: Up, name: str) -> None:
    before = counted(up)
    play(up, GRPC_SCENARIOS[name])

    def has_moved() -> bool:
        now = counted(up)
        return all(now[each] > before[each] for each in GRPC_COUNTERS[name])

    wait_until(has_moved, what=f"{GRPC_COUNTERS[name]} are counted")


LONG_IN_PYTHON = (KERNEL_FIELDS, "windows of a thousand streams")
"""Python's kernel takes 8 s of a processor for each, ten times what the native one does."""


@pytest.mark.parametrize(
    "name", [name for name in GRPC_SCENARIOS if name not in (*OF_PYTHON, *LONG_IN_PYTHON)]
)
def test_others_are_served_beside_and_the_attack_is_counted(up: Up, name: str) -> None:
    judge(up, name)


@pytest.mark.parametrize(
    "up",
    [*(pytest.param(each, marks=pytest.mark.software) for each in KERNELS[:-1]), KERNELS[-1]],
    indirect=True,
    scope="module",
)
@pytest.mark.parametrize("name", LONG_IN_PYTHON)
def test_others_are_served_beside_what_takes_python_long(up: Up, name: str) -> None:
    judge(up, name)


@pytest.mark.parametrize("up", KERNELS[-1:], indirect=True, scope="module")
@pytest.mark.parametrize("name", OF_PYTHON)
def test_what_no_kernel_answers_is_abused_beside_one(up: Up, name: str) -> None:
    judge(up, name)


@pytest.mark.software
@pytest.mark.parametrize("name", GRPC_SCENARIOS)
def test_the_store_opens_again_after_each_attack(up: Up, name: str) -> None:
    """:func:`test_all_that_was_there_is_there_after_a_restart_and_a_kill` holds it of all."""
    before = stored(up)
    GRPC_SCENARIOS[name].play(up)
    up.kill()
    up.start(keep_settings=True)
    served(up)
    assert stored(up)[: len(before)] == before


def test_all_that_was_there_is_there_after_a_restart_and_a_kill(up: Up) -> None:
    before, messages = kept(up), stored(up)
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
    up.kill()
    up.start(keep_settings=True)
    served(up)
    now = stored(up)
    assert now[: len(messages)] == messages
    assert len(now) == len(messages) + 2, "one was sent after each start"
