"""The scenarios of ``test_grpc_clients.py`` at RocketMQ's proxy 5.3.3 with its broker: what came of
them there comes of them here, but for what :data:`DIFFERENCES` names. ``KEROLOX_SOFTWARE=all``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.grpc5.driver import CLIENTS, Driver, Drivers
from tests.interop.grpc5.scenarios import SCENARIOS, begun, facts_of
from tests.interop.grpc5.servers import Served, admin_of, java_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = [
    pytest.mark.java,
    pytest.mark.node,
    pytest.mark.go,
    pytest.mark.software,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("grpc-oracle"),
]

SECONDS_MAX = 200
DIFFERENCES: dict[tuple[str, str], list[object]] = {
    # Its answer has one entry for all messages of a call.
    ("rust", "batch"): [["0", "1", "2", "3", "4"], False],
    # It is told a policy that it does not know, and so tries nothing again.
    ("node", "fifo_push"): [["fail a0", "a1", "a2"], ["fail b0", "b1", "b2"]],
    ("node", "fifo_dead_letters"): [["fail", "good"], ["fail"]],
}
"""What comes of a client's scenario there, and not here."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, grpc_drivers: Drivers) -> Iterator[Served]:
    with java_proxy(tmp_path_factory.mktemp("oracle"), grpc_drivers.authority) as started:
        yield started


@pytest.fixture(scope="module", params=CLIENTS)
def driver(request: pytest.FixtureRequest, grpc_drivers: Drivers) -> Driver:
    return grpc_drivers(request.param)


@pytest.fixture(scope="module")
def outcomes(driver: Driver, served: Served) -> Iterator[dict[str, Future[list[object]]]]:
    with admin_of(served) as admin:
        yield begun(driver, served.server, admin)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_proxy_of_java_does_the_same(
    outcomes: dict[str, Future[list[object]]], driver: Driver, name: str
) -> None:
    facts = facts_of(driver.kind, name)
    assert outcomes[name].result(SECONDS_MAX) == DIFFERENCES.get((driver.kind, name), facts)


def test_a_difference_is_one() -> None:
    for (kind, name), facts in DIFFERENCES.items():
        assert facts != facts_of(kind, name)
