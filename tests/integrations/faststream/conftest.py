"""The fixtures that FastStream's tests ask for, and a broker for all tests of this folder."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from unittest.mock import AsyncMock, MagicMock

import pytest
from faststream._internal.context import ContextRepo

from kerolox.integrations.faststream import KeroloxRouter
from kerolox.testing import LocalBroker


@pytest.fixture(scope="session")
def server() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def queue() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def event() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event2() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event3() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def mock() -> MagicMock:
    return MagicMock()


@pytest.fixture
def mock2() -> MagicMock:
    return MagicMock()


@pytest.fixture
def async_mock() -> AsyncMock:
    return AsyncMock()


@pytest.fixture
def context() -> ContextRepo:
    return ContextRepo()


@pytest.fixture
def router() -> KeroloxRouter:
    return KeroloxRouter()


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("connected: needs a server there", "flaky: is tried again there, not here"):
        config.addinivalue_line("markers", f"{mark} (of FastStream's tests)")
