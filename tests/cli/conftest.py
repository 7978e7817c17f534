from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.command import Server


def small_store(folder: Path, **settings: object) -> Path:
    """A broker.conf whose files are small, so that tests do not fill the disk."""
    path = folder / "broker.conf"
    lines = {
        "brokerIP1": "127.0.0.1",
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        **settings,
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``kerolox up`` on free ports, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("up")
    configuration = small_store(folder)
    arguments = ["up", "--port", 0, "--namesrv-port", 0, "--data", folder / "store"]
    with Server(folder, *arguments, "-c", configuration) as server:
        yield server


@pytest.fixture
def name_server(cluster: Server) -> str:
    return cluster.addresses["namesrv"]
