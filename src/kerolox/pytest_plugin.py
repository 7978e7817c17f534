"""Fixtures of pytest with a real broker; see :mod:`kerolox.testing`.

pytest finds them by itself where ``kerolox`` is installed; ``-p no:kerolox`` leaves them out.
Nothing is imported or started before a test asks for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kerolox.testing import LocalBroker

__all__ = [
    "kerolox_broker",
    "kerolox_group",
    "kerolox_settings",
    "kerolox_topic",
    "own_kerolox_broker",
]


@pytest.fixture(scope="session")
def kerolox_settings() -> dict[str, str]:
    """Settings of the brokers, by their names in ``broker.conf``: override it in a conftest."""
    return {}


@pytest.fixture(scope="session")
def kerolox_broker(kerolox_settings: dict[str, str]) -> Iterator[LocalBroker]:
    """A broker for all tests of the session; its clock only goes ahead."""
    from kerolox.testing import LocalBroker

    with LocalBroker(settings=kerolox_settings) as broker:
        yield broker


@pytest.fixture
def own_kerolox_broker(kerolox_settings: dict[str, str]) -> Iterator[LocalBroker]:
    """A broker for one test: to turn its clock, to restart it, to see all that it has."""
    from kerolox.testing import LocalBroker

    with LocalBroker(settings=kerolox_settings) as broker:
        yield broker


@pytest.fixture
def kerolox_topic(kerolox_broker: LocalBroker) -> str:
    """A topic of four queues that no other test has."""
    return kerolox_broker.create_topic()


@pytest.fixture
def kerolox_group() -> str:
    """The name of a group that no other test has."""
    return f"group-{uuid.uuid4().hex[:12]}"
