"""Executors whose Python has no Kerolox: what the user of a whole Spark is shown."""

import sys

import pyspark
import pytest
from pyspark.errors import PythonException

from kerolox.spark import RocketMQDataSource
from tests.support.bare_python import bare_python
from tests.support.clients.spark import reason_of_worker

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


@pytest.fixture
def elsewhere(spark, tmp_path, monkeypatch):
    """The Python of the executors, which lacks Kerolox, after the source is made to run there."""
    bare = bare_python(tmp_path / "bare")
    python = tmp_path / "python"
    python.write_text(DISPATCH.format(bare=bare, whole=sys.executable))
    python.chmod(0o755)

    class SourceElsewhere(RocketMQDataSource):
        @classmethod
        def name(cls) -> str:
            # A session's own sources have to be named otherwise than those that Spark finds.
            return "rocketmq-elsewhere"

    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    spark.dataSource.register(SourceElsewhere)
    return bare


def test_an_executor_without_kerolox_says_so_in_one_line(spark, topics, topic, elsewhere):
    topics.send_numbers(topic, range(8))
    reader = spark.read.format("rocketmq-elsewhere").option("nameServer", topics.namesrv)
    with pytest.raises(PythonException) as caught:
        reader.option("subscribe", topic).load().collect()
    reason = reason_of_worker(caught.value)
    assert f"{elsewhere} of the Spark worker on " in reason
    assert "can't import kerolox (No module named 'kerolox'); install kerolox==" in reason


def test_workers_take_the_installed_pyspark_where_spark_has_no_archive_of_it(spark):
    places = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__)
    assert places.collect() == [pyspark.__file__]
