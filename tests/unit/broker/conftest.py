"""Brokers for tests: one per test, in the test's own loop, on each kernel that is here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.testing import Clock
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.kernels import KERNELS
from tests.support.servers.patience import lift_time_limits


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    """The name of each kernel in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """See :func:`lift_time_limits`."""
    lift_time_limits(monkeypatch)


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker on the kernel that the environment chooses."""
    async with Broker(small_config(tmp_path)) as started:
        yield started


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    """A client of ``broker``."""
    async with peer_of(broker) as client:
        yield client


@pytest_asyncio.fixture
async def any_broker(tmp_path: Path, kernel: str) -> AsyncIterator[Broker]:
    """A broker on each kernel in turn."""
    async with Broker(small_config(tmp_path), kernel=kernel, clock_ms=Clock()) as started:
        yield started


@pytest_asyncio.fixture
async def any_peer(any_broker: Broker) -> AsyncIterator[Peer]:
    """A client of ``any_broker``."""
    async with peer_of(any_broker) as client:
        yield client
