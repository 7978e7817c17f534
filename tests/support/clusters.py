"""Two clusters with one face: ours (``kerolox up``) and the Java broker, each on free ports.

The Java broker's folder is named by ``KEROLOX_PEER_DIR`` (already built), else it is copied from
``shared/peer`` beside the checkout into ``.cache/peer`` and built there once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.up import Up, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Cluster", "JavaPeer", "built_peer", "cluster", "java_cluster", "our_cluster"]

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD_SECONDS_MAX = 600
READY_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60


@dataclass(frozen=True)
class Cluster:
    """A name server and a broker that run."""

    kind: str
    """``ours`` or ``java``."""
    name_server: str
    broker: str


def built_peer() -> Path:
    """The folder of the Java peer, built.

    Raises:
        AssertionError: it is nowhere, or the build failed.
    """
    named = os.environ.get("KEROLOX_PEER_DIR")
    if named:
        return Path(named)
    places = [parent / "shared" / "peer" for parent in CHECKOUT.parents[:2]]
    source = next((place for place in places if place.exists()), None)
    assert source is not None, f"no Java peer: set KEROLOX_PEER_DIR or put it at {places[0]}"
    built, building = CHECKOUT / ".cache" / "peer", CHECKOUT / ".cache" / "peer.building"
    built.parent.mkdir(exist_ok=True)
    with (built.parent / "peer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            shutil.rmtree(building, ignore_errors=True)
            shutil.copytree(source, building, copy_function=shutil.copy)
            # The source may be read-only.
            for path in [building, *building.rglob("*")]:
                path.chmod(path.stat().st_mode | 0o200)
            done = subprocess.run(
                [building / "build.sh"], capture_output=True, text=True, timeout=BUILD_SECONDS_MAX
            )
            assert done.returncode == 0, f"building the Java peer failed:\n{done.stderr}"
            building.rename(built)  # what is there is whole
    return built


class JavaPeer:
    """The Java name server and broker, as processes."""

    def __init__(self, data: Path, *, settings: tuple[str, ...] = ()) -> None:
        self.data = data
        self.settings = settings
        self.peer = built_peer()
        self.port, self.namesrv_port = free_port(), free_port()

    def __enter__(self) -> JavaPeer:
        assert shutil.which("java"), "these tests need Java 11 or newer; install a JRE"
        self.data.mkdir(parents=True, exist_ok=True)
        command = [str(self.peer / "up.sh"), str(self.data)]
        command += [str(self.namesrv_port), str(self.port)]
        environment = {**os.environ, "BROKER_HEAP": "512m", "NAMESRV_HEAP": "128m"}
        # Its servers inherit the output, so it goes to a file: a pipe would never end.
        with (self.data / "up.log").open("wb") as log:
            done = subprocess.run(
                [*command, "mappedFileSizeCommitLog=67108864", *self.settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                timeout=READY_SECONDS_MAX,
            )
        assert done.returncode == 0, (self.data / "up.log").read_text()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(
            [str(self.peer / "down.sh"), str(self.data)],
            check=True,
            capture_output=True,
            timeout=STOP_SECONDS_MAX,
        )


@pytest.fixture(scope="session")
def our_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """``kerolox up`` in a process of its own."""
    with Up(tmp_path_factory.mktemp("ours")) as up:
        yield Cluster("ours", up.namesrv, up.broker)


@pytest.fixture(scope="session")
def java_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The Java name server and broker."""
    with JavaPeer(tmp_path_factory.mktemp("java")) as peer:
        yield Cluster("java", f"127.0.0.1:{peer.namesrv_port}", f"127.0.0.1:{peer.port}")


@pytest.fixture(scope="session", params=["ours", pytest.param("java", marks=pytest.mark.java)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each test runs on both."""
    name = {"ours": "our_cluster", "java": "java_cluster"}[request.param]
    made: Cluster = request.getfixturevalue(name)
    return made
