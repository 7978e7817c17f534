"""What the scenarios of other clients' versions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.grpc5.driver import Drivers
from tests.interop.mqadmin import MqAdmin, MqAdminProcess
from tests.support.programs import RUNS_ALL
from tests.support.servers.software import Servers, servers_of
from tests.support.servers.up import Up


@pytest.fixture(scope="module", params=["ours", "java"] if RUNS_ALL else ["ours"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """A name server and a broker: ours, and with ``KEROLOX_SOFTWARE=all`` Java's in turn."""
    with servers_of(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def grpc_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """Programs of clients of RocketMQ 5: one process of each kind for a module."""
    with Drivers(tmp_path_factory.mktemp("grpc-clients")) as drivers:
        yield drivers


@pytest.fixture(scope="package")
def mqadmin_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdminProcess]:
    """One Java process for the commands of all modules."""
    with MqAdminProcess(tmp_path_factory.mktemp("mqadmin")) as process:
        yield process


@pytest.fixture(scope="module")
def mqadmin(mqadmin_process: MqAdminProcess, up: Up) -> MqAdmin:
    """mqadmin, told of the module's servers."""
    return MqAdmin(mqadmin_process, up)
