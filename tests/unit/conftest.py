"""What holds for all unit tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.stores.memory import tmp_path

__all__ = ["log_level_of_the_process", "tmp_path"]


@pytest.fixture(autouse=True)
def log_level_of_the_process() -> Iterator[None]:
    """``logLevel`` is for the whole process, in which other tests read the log."""
    log = logging.getLogger("kerolox")
    before = log.level
    yield
    log.setLevel(before)
