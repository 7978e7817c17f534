"""The built wheels alone are a working Kerolox: no checkout, no cargo, on each Python here.

Those between the oldest and the newest Python are tried with ``KEROLOX_SOFTWARE=all``, and so is
Spark. Else ``tests/spark/test_cluster.py`` has a Spark with Kerolox as an installed package, of the
files that the wheel has."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.packaging.environments import OWN, PYTHONS, ROOT, SECONDS_MAX, Environment, build
from tests.support.eventually import wait_until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.xdist_group("wheels"), pytest.mark.timeout(SECONDS_MAX)]

ENDS = (next(iter(PYTHONS)), next(reversed(PYTHONS)), OWN)
EACH_PYTHON = [
    pytest.param(version, marks=() if version in ENDS else pytest.mark.software)
    for version in PYTHONS
]

IS_COMPLETE = os.environ.get("KEROLOX_WHEELS") == "all"
"""Install Spark on each Python; else on the one of this run."""

WHERE = """
import importlib, kerolox, sys
print(kerolox.__file__)
print(importlib.import_module(sys.argv[1]).__file__)
"""
FIXTURES = """
from kerolox import Message
from kerolox.client.sync import Producer


def test_sends(kerolox_broker, kerolox_topic):
    with Producer("shop", kerolox_broker.name_server) as producer:
        producer.send(Message(kerolox_topic, b"hello"))
    assert [each.body for each in kerolox_broker.messages(kerolox_topic)] == [b"hello"]
"""
SPARK = """
import sys
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
reader = session.read.format("rocketmq").option("nameServer", sys.argv[1])
print("bodies:", [bytes(row.body) for row in reader.option("subscribe", "Orders").load().collect()])
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def complete(
    wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Environment]:
    """The environment with all wheels, of a version of Python: one for all tests."""

    @functools.cache
    def made(version: str) -> Environment:
        folder = tmp_path_factory.mktemp("complete") / "environment"
        environment = Environment(folder, PYTHONS[version])
        environment.install(*wheels)
        return environment

    return made


@contextlib.contextmanager
def served(environment: Environment, folder: Path) -> Iterator[str]:
    """``kerolox up`` of an environment; the name server's address."""
    ready, log, namesrv_port = folder / "ready", folder / "up.log", free_port()
    ports = ["--port", free_port(), "--namesrv-port", namesrv_port]
    options = [*ports, "--data", folder / "store", "--ready-file", ready]
    process = environment.start("kerolox", "up", *options, log=log)
    try:
        wait_until(
            lambda: ready.exists() or process.poll() is not None,
            seconds=SECONDS_MAX,
            what="a started server",
        )
        assert ready.exists(), log.read_text()
        yield f"127.0.0.1:{namesrv_port}"
    finally:
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0, log.read_text()


def send_and_tail(environment: Environment, name_server: str) -> None:
    environment.run("kerolox", "topic", "create", "Orders", "-n", name_server)
    environment.run("kerolox", "send", "Orders", "hello", "--tags", "new", "-n", name_server)
    options = ["--from-start", "--count", 1, "-o", "json", "-n", name_server]
    message = json.loads(environment.run("kerolox", "tail", "Orders", *options))
    assert (message["body"], message["tags"]) == ("hello", "new")


@pytest.mark.parametrize("version", EACH_PYTHON)
def test_the_wheels_send_and_receive(
    version: str, complete: Callable[[str], Environment], wheels: list[Path], tmp_path: Path
) -> None:
    environment = complete(version)
    engine = "kerolox_kernel" if len(wheels) == 2 else "kerolox._pykernel"
    for file in environment.run("python", "-c", WHERE, engine).split():
        assert Path(file).is_relative_to(environment.folder)
    with served(environment, tmp_path) as name_server:
        send_and_tail(environment, name_server)


def test_the_pure_wheel_is_complete_and_has_fixtures_of_pytest(
    wheels: list[Path], tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "environment", next(iter(PYTHONS.values())))
    environment.install(wheels[0])
    with served(environment, tmp_path) as name_server:
        send_and_tail(environment, name_server)
    environment.install("pytest")
    test = tmp_path / "test_fixtures.py"
    test.write_text(FIXTURES)
    assert "1 passed" in environment.run("python", "-m", "pytest", "-q", "-W", "error", test)


@pytest.mark.spark
@pytest.mark.software
@pytest.mark.timeout(3 * SECONDS_MAX)
@pytest.mark.parametrize("version", PYTHONS if IS_COMPLETE else [OWN])
def test_spark_reads_with_the_wheels(
    version: str, complete: Callable[[str], Environment], wheels: list[Path], tmp_path: Path
) -> None:
    environment = complete(version)
    environment.install(wheels[0], extra="[spark]")
    java = shutil.which("java")
    assert java is not None
    path = os.pathsep.join([str(environment.bin), str(Path(java).parent), "/usr/bin", "/bin"])
    with served(environment, tmp_path) as name_server:
        send_and_tail(environment, name_server)
        python = str(environment.bin / "python")
        variables = {"PATH": path, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        shown = environment.run("python", "-W", "ignore", "-c", SPARK, name_server, **variables)
    assert "bodies: [b'hello']" in shown


def test_each_wheel_is_typed_and_carries_its_licences(wheels: list[Path]) -> None:
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        packages = {name.split("/")[0] for name in names if name.endswith("/__init__.py")}
        for package in {name for name in packages if ".dist-info" not in name}:
            assert f"{package}/py.typed" in names
        for licence in ("LICENSE", "NOTICE"):
            assert [name for name in names if name.endswith(f".dist-info/licenses/{licence}")]


def test_the_wheel_has_each_file_of_the_source(wheels: list[Path]) -> None:
    command = ["git", "ls-files", "--", "src"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    wheel = {f"src/{name}" for name in zipfile.ZipFile(wheels[0]).namelist()}
    assert not tracked - wheel
    assert not {name for name in wheel - tracked if ".dist-info/" not in name}


def test_each_sdist_can_be_built_from(wheels: list[Path]) -> None:
    for sdist in wheels[0].parent.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        needed = {"pyproject.toml", "README.md", "LICENSE", "NOTICE"}
        if sdist.name.startswith("kerolox_kernel"):
            core = ROOT / "kernel" / "core"
            needed |= {"Cargo.lock", "Cargo.toml", "py/kerolox_kernel.pyi"}
            needed |= {f"core/{path.relative_to(core)}" for path in core.glob("src/**/*.rs")}
        assert not needed - names


@pytest.mark.skipif(shutil.which("cargo") is None, reason="asks cargo")
def test_the_kernels_notice_names_each_crate_in_it() -> None:
    command = ["cargo", "tree", "--offline", "--locked", "-p", "kerolox-kernel"]
    command += ["-e", "no-build,no-dev,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    listed = subprocess.run(command, cwd=ROOT / "kernel", capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    crates = {line.split()[0] for line in listed.stdout.splitlines() if line}
    notice = (ROOT / "kernel" / "NOTICE").read_text().partition("\n-- ")[0]
    crates -= {"kerolox-kernel", "kerolox-core", "heck"}
    assert crates == {line.strip() for line in notice.splitlines() if line.startswith("  ")}
