"""Executors whose Python has no Kerolox: what the user of a whole Spark is shown."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.bare_python import bare_python

HERE = Path(__file__).parent

DISPATCH = """#!/bin/sh
# Executors run pyspark.worker, what plans a query other modules.
for each in "$@"; do
  if [ "$each" = pyspark.worker ]; then
    PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -v '/src$' | paste -sd :)
    export PYTHONPATH
    exec {bare} "$@"
  fi
done
exec {whole} "$@"
"""


def test_an_executor_without_kerolox_says_so_in_one_line(topics, topic, tmp_path):
    topics.send_numbers(topic, range(8))
    bare = bare_python(tmp_path / "bare")
    python = tmp_path / "python"
    python.write_text(DISPATCH.format(bare=bare, whole=sys.executable))
    python.chmod(0o755)
    path = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parents[1])])
    variables = {"PYSPARK_PYTHON": str(python), "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "read_once.py"), topics.namesrv, topic],
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | variables,
    )
    lines = done.stdout.strip().splitlines()
    assert lines, done.stderr
    assert lines[0] == "An exception was thrown from the Python worker:"
    assert f"{bare} of the Spark worker on " in lines[1]
    assert "can't import kerolox (No module named 'kerolox'); install kerolox==" in lines[1]
    assert "Traceback" not in done.stdout
