"""What each of several brokers has, what they would share, and when one is started again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kerolox.broker.config import BrokerConfig
from kerolox.cli.commands.several.brokers import RESTART_SECONDS, BrokerProcess
from kerolox.cli.commands.several.channel import Report, Task
from kerolox.cli.commands.several.folders import folders_there, warn_of_left_out
from kerolox.cli.commands.several.machine import brokers_wanted, plan_lines, processors
from kerolox.cli.commands.several.plan import plan_brokers
from kerolox.errors import ConfigError, KeroloxError


def config(**given: object) -> BrokerConfig:
    return BrokerConfig.load(None, **{"broker_name": "orders", **given})


def test_the_first_broker_has_what_it_would_have_alone(tmp_path: Path) -> None:
    alone = config(store_path_root_dir=tmp_path, grpc_server_port=8081)
    first, second, third = plan_brokers(alone, 3)
    assert first.config == alone
    assert [each.name for each in (first, second, third)] == ["orders", "orders-1", "orders-2"]
    assert [each.config.listen_port for each in (second, third)] == [10921, 10931]
    assert [each.config.grpc_server_port for each in (second, third)] == [8082, 8083]
    assert third.config.store_path_root_dir == tmp_path / "broker-2"


def test_advertised_addresses_go_with_the_ports() -> None:
    given = config(advertised_address="mq:2000", grpc_advertised_address="mq:3000")
    found = plan_brokers(given, 2)[1].config
    assert (found.advertised_address, found.grpc_advertised_address) == ("mq:2010", "mq:3001")


def test_ports_that_are_any_or_none_stay_so() -> None:
    found = plan_brokers(config(listen_port=0), 2)[1].config
    assert (found.listen_port, found.grpc_server_port) == (0, 0)


def test_each_serves_its_metrics_to_this_machine_alone_at_any_port() -> None:
    measured = config(metrics_exporter_type="PROM", metrics_prom_exporter_host="*")
    for plan in plan_brokers(measured, 2):
        assert plan.config.metrics_prom_exporter_host == "127.0.0.1"
        assert plan.config.metrics_prom_exporter_port == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"store_path_commit_log": "/a"}, "storePathCommitLog"),
        ({"read_only_commit_log_store_paths": "/a"}, "readOnlyCommitLogStorePaths"),
        ({"ha_listen_port": 9000}, "haListenPort"),
        ({"broker_role": "SLAVE", "broker_id": 1}, "brokerRole=SLAVE"),
        ({"listen_port": 65530}, "listenPort=65530: the last broker's would be 65540"),
        ({"broker_name": "x" * 126}, "broker 2 of 2: brokerName"),
    ],
)
def test_what_several_brokers_can_not_have_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_brokers(config(**given), 2)


def test_stores_of_an_earlier_start_with_more_brokers_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert folders_there(tmp_path / "none") == 1
    for name in ("broker-1", "broker-2", "broker-x", "commitlog"):
        (tmp_path / name).mkdir()
    assert folders_there(tmp_path) == 3
    warn_of_left_out(tmp_path, 3)
    assert not caplog.messages
    warn_of_left_out(tmp_path, 2)
    assert caplog.messages == [
        f"{tmp_path} has stores of 3 brokers, of which 2 are served; --brokers 3 serves all"
    ]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with eight processors, whose control group may use five and a half."""
    root = tmp_path / "machine"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    files = {
        "proc/self/cgroup": "0::/system.slice/kerolox\n",
        "proc/meminfo": "MemTotal:       16777216 kB\n",
        "sys/fs/cgroup/system.slice/cpu.max": "max 100000\n",
        "sys/fs/cgroup/system.slice/kerolox/cpu.max": "550000 100000\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_auto_leaves_a_quarter_of_the_processors_and_no_store_unserved(
    machine: Path, tmp_path: Path
) -> None:
    assert processors(machine) == 5
    assert processors(tmp_path / "unknown") == 8
    assert brokers_wanted(tmp_path, machine) == 3
    (tmp_path / "broker-6").mkdir()
    assert brokers_wanted(tmp_path, machine) == 7


def test_a_plan_says_what_brokers_share(machine: Path, tmp_path: Path) -> None:
    lines = "\n".join(plan_lines(plan_brokers(config(store_path_root_dir=tmp_path), 4), machine))
    assert "processors   5, of which a broker keeps one busy at most\n" in lines
    assert (
        "4 brokers take turns with their flushes and this machine's clients; 3 would not" in lines
    )
    assert "memory       16,384 MiB" in lines
    assert "orders, orders-1, orders-2, orders-3" in lines


class Falling(BrokerProcess):
    """A broker that ends as soon as it answers, or does not start."""

    def __init__(self, *, starts: bool) -> None:
        super().__init__(
            Task(
                name="orders",
                config_file=None,
                overrides={},
                may_lack_grpc=False,
                log_level=None,
                log_file=None,
                log_format="text",
            )
        )
        self.starts = starts
        self.report = Report()

    async def start(self) -> Report:
        if not self.starts:
            raise KeroloxError("broker orders did not start: its port is taken")
        self.report = Report()
        return self.report

    async def _ended(self) -> str:
        self.report = None
        return "was ended by SIGKILL"


@pytest.mark.asyncio
@pytest.mark.parametrize("starts", [True, False])
async def test_a_broker_that_ends_again_and_again_waits_longer_each_time(
    starts: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > len(RESTART_SECONDS):
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    falling = Falling(starts=starts)
    with pytest.raises(asyncio.CancelledError):
        await falling.keep()
    assert pauses == [*RESTART_SECONDS, RESTART_SECONDS[-1]]
    assert falling.restarts == len(RESTART_SECONDS)
    again = "was ended by SIGKILL" if starts else "did not start: its port is taken"
    assert f"broker orders {again}; it is started again in 1 s, the others go on" in caplog.messages
