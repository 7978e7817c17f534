"""All that tests build or download once for a checkout.

A run makes it beside the tests that do without.

Each build locks what it makes: who comes meanwhile waits, and who comes first makes it, so that one
test alone works as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support import programs, spark_versions
from tests.support.built import LIBRARIES, built
from tests.support.java_classes import build_java_with_classes

__all__ = [
    "BUILDS",
    "FIRST_BUILDS",
    "LATE_VARIABLE",
    "Build",
    "Made",
    "late_builds",
    "needs_build",
    "prepare",
    "wait_for",
]

ROOT = Path(__file__).resolve().parents[2]

BUILDS_AT_ONCE = 2
"""More would take the processors from the tests; the network is what most of a build waits for."""

LATE_VARIABLE = "KEROLOX_BUILDS_LATE"
"""1: the builds go on beside the tests, so those that need one come last."""


@dataclass(frozen=True)
class Build:
    """One of them.

    ``marker`` is that of the tests which can't do without. ``program`` is the source folder of one
    that takes long.
    """

    name: str
    marker: str | None
    make: Callable[[], object]
    program: str | None = None


@dataclass(frozen=True)
class Made:
    """How a build went: ``error`` is empty when it is there."""

    name: str
    seconds: float
    error: str


def _share_classes() -> None:
    from tests.support.clients.spark import share_classes  # PySpark need not be here

    share_classes()


def _other_spark() -> None:
    if version := os.environ.get(spark_versions.VARIABLE):
        spark_versions.use_pyspark(version)


BUILDS = (
    # What takes longest on a new machine comes first: Go compiles its libraries, Maven downloads.
    Build("Go programs", "go", programs.build_go_clients, "go"),
    Build("Java programs", "java", build_java_with_classes, "java"),
    Build("Go program with TLS", "go", programs.build_go_tls_clients, "gotls"),
    Build("Node.js programs", "node", programs.build_node_clients, "node"),
    Build("Node.js client by gRPC", "node", programs.build_node_grpc_client, "nodegrpc"),
    Build("Java client by gRPC", "java", programs.build_java_grpc_client, "javagrpc"),
    Build("Go client by gRPC", "go", programs.build_go_grpc_client, "gogrpc"),
    Build("provider of OpenID Connect", "node", programs.build_oidc_provider, "oidc"),
    Build("mqadmin 4.6", "java", programs.build_mqadmin_46, "mqadmin46"),
    Build("broker 5.3.3", "java", programs.build_broker_53, "broker53"),
    Build("script of the accessibility checks", "browser", programs.build_axe, "axe"),
    Build("Python client rocketmq", None, programs.build_python_clients),
    Build("Python client by gRPC", None, programs.build_python_grpc_client),
    Build("C++ client", None, programs.build_cpp_client),
    Build("libraries in C", None, lambda: [built(source) for source in LIBRARIES]),
    Build("another PySpark", None, _other_spark),
)

FIRST_BUILDS = (
    # Each Spark of the tests starts faster with them; none needs them.
    Build("classes of Spark", "spark", _share_classes),
)
"""What all workers would make at once, each for itself: it is made before they start."""

_NEEDED = frozenset(build.marker for build in BUILDS if build.program is not None)


def late_builds(left_out: Collection[str], builds: Iterable[Build] = BUILDS) -> list[str]:
    """Names of those that take long and are not there; ``left_out`` as for `prepare`."""
    return [
        build.name
        for build in builds
        if build.program is not None
        and build.marker not in left_out
        and not programs.is_built(build.program)
    ]


def prepare(
    left_out: Collection[str],
    told: Callable[[Made], None],
    builds: Iterable[Build] = BUILDS,
) -> list[Made]:
    """Make all builds, a few at a time; ``told`` hears of each.

    Args:
        left_out: markers of tests that do not run.
        told: called in a thread of its own.
        builds: these.
    """

    def make(build: Build) -> Made:
        started = time.monotonic()
        error = ""
        try:
            build.make()
        except Exception as raised:
            error = str(raised) or repr(raised)
        made = Made(build.name, time.monotonic() - started, error)
        told(made)
        return made

    with ThreadPoolExecutor(BUILDS_AT_ONCE) as pool:
        return list(pool.map(make, [each for each in builds if each.marker not in left_out]))


def needs_build(item: pytest.Item) -> bool:
    """Whether a test can't do without one of the builds that take long."""
    return any(mark.name in _NEEDED for mark in item.iter_markers())


@cache
def _wait_for(marker: str) -> None:
    prepare((), lambda made: None, [build for build in BUILDS if build.marker == marker])


def wait_for(item: pytest.Item) -> None:
    """Have what a test needs before its time begins. What can't be built fails in the test."""
    for marker in sorted({mark.name for mark in item.iter_markers()} & _NEEDED):
        _wait_for(marker)
