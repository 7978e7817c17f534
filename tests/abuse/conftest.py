"""A process of both roles on each kernel in turn, which counts its work, shared by a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 2_000_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "enablePropertyFilter": "true",
    "replyThreadPoolQueueCapacity": 2_000,
}


@pytest.fixture(scope="module", params=KERNELS)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("abuse")
    with Up(folder, settings=SETTINGS, kernel=request.param, counted=True) as started:
        yield started
