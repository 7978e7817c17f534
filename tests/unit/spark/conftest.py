"""Connections that a test leaves to the next task of its process are closed with it."""

from collections.abc import Iterator

import pytest

from kerolox.spark.network.pull import POOL


@pytest.fixture(autouse=True)
def no_kept_connections() -> Iterator[None]:
    yield
    POOL.close()
