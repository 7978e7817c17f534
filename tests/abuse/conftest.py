"""A process of both roles on each kernel in turn, which counts its work, shared by a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

SETTINGS = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 2_000_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "enablePropertyFilter": "true",
    "replyThreadPoolQueueCapacity": 2_000,
}


SHARED = ("up", "guarded")
"""Fixtures of modules that start a server with each kernel."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """What shares a server stays with one worker, so that it is started once."""
    given = getattr(item, "callspec", None)
    for name in SHARED if given is not None else ():
        if name in given.params:
            group = f"{item.path.stem}-{given.params[name]}"
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="module", params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("abuse")
    with Up(folder, settings=SETTINGS, kernel=request.param, counted=True) as started:
        yield started
