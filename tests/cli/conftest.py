from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.command import Server
from tests.support.servers.settings import small_store


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
