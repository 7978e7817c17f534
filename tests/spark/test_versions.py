"""The other versions of PySpark that the range in ``pyproject.toml`` has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.programs import RUNS_ALL
from tests.support.spark_versions import OTHER_VERSIONS, VARIABLE

ROOT = Path(__file__).parents[2]
MODULES = ("test_batch", "test_stream", "test_store_source", "test_sink", "test_cluster")
"""What reads and writes; all others run with ``KEROLOX_PYSPARK`` by hand."""


def test_the_range_has_the_versions_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (asked,) = [
        each
        for each in project["project"]["optional-dependencies"]["spark"]
        if each.startswith("pyspark")
    ]
    first, last = (re.search(rf"{sign}(4)\.(\d+)", asked)[2] for sign in (">=", "<"))
    locked = re.search(r"^pyspark==(4\.\d+)", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert {f"4.{each}" for each in range(int(first), int(last))} == {*OTHER_VERSIONS, locked}


@pytest.mark.skipif(not RUNS_ALL, reason="takes minutes; KEROLOX_SOFTWARE=all runs it")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_sources_and_sink_work_on_another_pyspark(version):
    modules = [str(Path(__file__).with_name(f"{name}.py")) for name in MODULES]
    variables = {name: text for name, text in os.environ.items() if name != "KEROLOX_SOFTWARE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules],
        cwd=ROOT,
        env=variables | {VARIABLE: version},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-20_000:]
