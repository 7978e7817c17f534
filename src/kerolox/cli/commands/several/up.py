"""``kerolox up --brokers N``: a name server here, and each broker in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from kerolox.cli.commands import starting
from kerolox.cli.commands.several.brokers import STOP_BROKERS_SECONDS_MAX, BrokerProcesses
from kerolox.cli.commands.several.channel import Report, Task
from kerolox.cli.commands.several.folders import warn_of_left_out
from kerolox.cli.commands.several.machine import brokers_wanted, plan_lines
from kerolox.cli.commands.several.plan import METRICS_HOST, plan_brokers
from kerolox.cli.process.loop import STOP_SECONDS_MAX
from kerolox.cli.process.running import Started, running, say

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.broker.config import BrokerConfig
    from kerolox.cli.commands.several.plan import BrokerPlan
    from kerolox.namesrv.config import NamesrvConfig


class Options(Protocol):
    """What of the options of ``up`` is used here."""

    @property
    def config_file(self) -> Path | None:
        """The settings of all brokers."""

    @property
    def ready_file(self) -> Path | None:
        """Written when all answer."""

    @property
    def log_file(self) -> Path | None:
        """Where all log."""

    @property
    def log_format(self) -> str:
        """How."""

    @property
    def log_level(self) -> str | None:
        """From which level on; None: not given."""


def show_plan(config: BrokerConfig, count: int | None, *, wants_grpc: bool) -> None:
    """Say what :func:`up_several` would start. Errors are the same, of settings alone."""
    starting.say_all(plan_lines(_planned(config, count, wants_grpc=wants_grpc)))


def up_several(
    namesrv_config: NamesrvConfig,
    broker_config: BrokerConfig,
    options: Options,
    count: int | None,
    *,
    wants_grpc: bool,
) -> None:
    """Serve until a signal.

    Args:
        namesrv_config: of the name server.
        broker_config: of the first broker, as if it were alone.
        options: of the command line.
        count: how many brokers; None: as many as this machine has processors for.
        wants_grpc: each broker has a port for gRPC, or says why that can't be.

    Raises:
        ConfigError: a setting can't be that of several brokers.
        KeroloxError: a server did not start; the text says which, and why.
    """
    plans = _planned(broker_config, count, wants_grpc=wants_grpc)
    warn_of_left_out(broker_config.store_path_root_dir, len(plans))
    started = _started(namesrv_config, broker_config, plans, options, wants_grpc=wants_grpc)
    most = STOP_BROKERS_SECONDS_MAX + STOP_SECONDS_MAX
    starting.serve(started, options.ready_file, stop_seconds_max=most)


def _planned(config: BrokerConfig, count: int | None, *, wants_grpc: bool) -> list[BrokerPlan]:
    if count is None:
        count = brokers_wanted(config.store_path_root_dir)
    if wants_grpc:
        config = config.overridden(grpc_server_port=starting.GRPC_PORT)
    return plan_brokers(config, count)


@asynccontextmanager
async def _started(
    namesrv_config: NamesrvConfig,
    broker_config: BrokerConfig,
    plans: Sequence[BrokerPlan],
    options: Options,
    *,
    wants_grpc: bool,
) -> AsyncIterator[Started]:
    from kerolox.namesrv.server import NameServer

    name_server = NameServer(namesrv_config)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(name_server))
        address = starting.near_address(name_server)
        tasks = [_task(plan, options, address, wants_grpc=wants_grpc) for plan in plans]
        brokers = BrokerProcesses(tasks)
        await stack.enter_async_context(running(brokers))
        page = await _metrics_page(broker_config, brokers, stack)
        reports = [each.report or Report() for each in brokers.members]
        starting.say_all(starting.namesrv_lines(name_server))
        addresses = {"namesrv": address}
        listening = list(name_server.listen_addresses)
        for number, report in enumerate(reports):
            starting.say_all(report.lines or ())
            addresses[f"broker-{number}" if number else "broker"] = report.address
            listening += report.listen_addresses or ()
        if page:
            say(f"metrics      of all brokers at port {page}")
        starting.warn_of_strangers(*listening)
        starting.collect_from_now_on()
        yield Started(addresses, (name_server, brokers))


def _task(plan: BrokerPlan, options: Options, name_server: str, *, wants_grpc: bool) -> Task:
    # As `up` alone has it: nobody else can be at that address.
    given = {"namesrv_addr": name_server, "tls_client_auth_server": False}
    file, log_file = options.config_file, options.log_file
    return Task(
        name=plan.name,
        config_file=str(file.absolute()) if file else None,
        overrides={**plan.overrides, **given},
        may_lack_grpc=wants_grpc,
        log_level=options.log_level,
        log_file=str(log_file.absolute()) if log_file else None,
        log_format=options.log_format,
    )


async def _metrics_page(
    config: BrokerConfig,
    brokers: BrokerProcesses,
    stack: contextlib.AsyncExitStack,
) -> int:
    """Serve the metrics of all brokers, if they are asked for; the port, or 0."""
    if not config.serves_metrics:
        return 0
    from kerolox.metrics.merging import MergedMetricsServer, MetricsSource

    def sources() -> dict[str, MetricsSource]:
        return {
            each.name: MetricsSource(each.report.metrics_port if each.report else 0, each.restarts)
            for each in brokers.members
        }

    page = MergedMetricsServer(METRICS_HOST, config.broker_cluster_name, sources)
    stack.push_async_callback(page.stop)
    await page.start(config.metrics_prom_exporter_host, config.metrics_prom_exporter_port)
    return page.port
