"""The kernels that can be tested here: the Python one, and the native one when it is built."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernels import KERNELS, MODULES
from tests.support.stores.bench import Bench
from tests.support.stores.memory import tmp_path

__all__ = ["bench", "closed_bench", "closing", "kernel", "other_kernel", "tmp_path"]


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Any:
    """The module of each kernel in turn."""
    return importlib.import_module(MODULES[request.param])


@pytest.fixture(params=KERNELS)
def other_kernel(request: pytest.FixtureRequest) -> Any:
    """Each kernel in turn, for tests that pass files from one to another."""
    return importlib.import_module(MODULES[request.param])


@pytest.fixture
def closing() -> Iterator[list[Bench]]:
    """Benches put here are closed at the end."""
    benches: list[Bench] = []
    yield benches
    for bench in benches:
        if bench.store is not None:
            bench.store.close()


@pytest.fixture
def bench(kernel: Any, tmp_path: Path, closing: list[Bench]) -> Bench:
    """An open store with asynchronous flush."""
    made = Bench(kernel, tmp_path / "store")
    closing.append(made)
    made.open()
    return made


@pytest.fixture
def closed_bench(kernel: Any, tmp_path: Path, closing: list[Bench]) -> Bench:
    """A store that the test opens with its own settings."""
    made = Bench(kernel, tmp_path / "store")
    closing.append(made)
    return made
