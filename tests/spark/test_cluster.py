"""Sources and sink on a standalone cluster whose workers have Kerolox installed, or get it.

By Spark Connect the client has no Kerolox: the Python of server and workers has. The ordinary run
has a Connect server without a cluster, which is five Java processes less: Spark starts the same
Python processes on a worker as on a server. A session in the driver's own process is what all other
tests of this folder have."""

from __future__ import annotations

import tarfile
from contextlib import ExitStack
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

from kerolox.spark import lag
from tests.packaging.environments import OWN, PYTHONS, Environment, build
from tests.spark.piped import SECRET, check_found, run_pipeline
from tests.support.bare_python import bare_python
from tests.support.programs import RUNS_ALL
from tests.support.servers.sparks import connect_server, standalone_cluster, told, user_variables

pytestmark = pytest.mark.xdist_group("spark-cluster")


@pytest.mark.skipif(find_spec("grpc") is None, reason="needs pyspark[connect]")
@pytest.mark.parametrize("has_cluster", [False, pytest.param(True, marks=pytest.mark.software)])
def test_a_connect_client_reads_and_writes_each_message_once(topics, tmp_path, has_cluster):
    python, client = bare_python(tmp_path / "installed", formats=True), tmp_path / "client-python"
    variables = user_variables(python)
    with ExitStack() as stack:
        master = "local[2]"
        if has_cluster:
            master = stack.enter_context(standalone_cluster(tmp_path / "cluster", variables))
        url = stack.enter_context(connect_server(tmp_path / "server", variables, master))
        found = run_pipeline([bare_python(client)], variables, url, topics, tmp_path / "client")
    check_found(found)
    events = told(tmp_path / "server")
    assert "rocketmq" in events
    assert SECRET not in events
    if has_cluster:
        assert workers_of(found, tmp_path) == {"worker-1", "worker-2"}
    behind = lag({"sources": found["sources"]})
    assert len(behind) == 4
    assert set(behind.values()) == {0}


def workers_of(found, folder):
    """Whose folders tasks have run in."""
    return {Path(each).relative_to(folder).parts[1] for each in found["folders"]}


@pytest.mark.software
def test_a_cluster_of_two_workers_reads_and_writes_each_message_once(topics, tmp_path):
    python = bare_python(tmp_path / "installed", formats=True)
    variables = user_variables(python)
    with standalone_cluster(tmp_path / "cluster", variables) as master:
        found = run_pipeline([python], variables, master, topics, tmp_path / "driver")
    check_found(found)
    events = told(tmp_path / "driver")
    assert "rocketmq" in events
    assert SECRET not in events
    assert workers_of(found, tmp_path) == {"worker-1", "worker-2"}


@pytest.mark.skipif(not RUNS_ALL, reason="builds wheels; KEROLOX_SOFTWARE=all runs it")
def test_a_cluster_without_packages_gets_them_by_an_archive(topics, tmp_path):
    made = Environment(tmp_path / "made", PYTHONS[OWN])
    made.install(*build(tmp_path / "dist", only="kerolox"), "pyarrow", "pandas<3")
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(made.folder, ".")
    driver = tmp_path / "driver"
    driver.mkdir()
    # Planning runs on the driver's machine by the same path as the tasks.
    (driver / "environment").symlink_to(made.folder)
    variables = user_variables("./environment/bin/python")
    variables["SPARK_HOME"] = str(files("pyspark"))
    submit = [f"{variables['SPARK_HOME']}/bin/spark-submit"]
    submit += ["--archives", f"{archive}#environment"]
    with standalone_cluster(tmp_path / "cluster", variables) as master:
        found = run_pipeline([*submit, "--master", master], variables, master, topics, driver)
    check_found(found)
    for folder in found["folders"]:
        assert (Path(folder) / "environment" / "pyvenv.cfg").is_file()
