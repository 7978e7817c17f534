"""What Spark carries to a worker, in Python environments that are not this one."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.datasource import InputPartition

import kerolox
from kerolox.errors import ConfigError
from kerolox.kernel.choice import KERNEL_VARIABLE
from kerolox.message import MessageQueue
from kerolox.spark import worker
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import QueueRange
from kerolox.spark.positions.planned import QueuePartition
from kerolox.spark.reader import BatchReader
from kerolox.spark.rows.schema import schema_of
from kerolox.spark.source import RocketMQDataSource
from tests.support.bare_python import SOURCE, bare_python
from tests.support.servers.threaded_broker import Queue, ThreadedBroker

OPTIONS = {"nameServer": "n:1", "subscribe": "t", "pollTimeoutMs": "300"}
QUEUE = MessageQueue("t", "broker-a", 0)

WORKER = """
import pickle, sys, traceback
from pyspark.sql.datasource import DataSource, InputPartition

source, reader, partition = pickle.loads(sys.stdin.buffer.read())
assert isinstance(source, DataSource) and source.name() == "rocketmq"
assert isinstance(partition, InputPartition)
try:
    for _ in range(2):
        print(sum(batch.num_rows for batch in reader.read(partition)))
except Exception as error:
    print("".join(traceback.format_exception_only(error)))
"""


def in_worker(python: Path, partition: QueuePartition, **variables: str) -> tuple[str, str]:
    """(stdout, stderr) of a process that reads a partition as a Spark worker does."""
    options = SourceOptions.parse(OPTIONS)
    reader = BatchReader(options, schema_of(["body"]))
    carried = dumps((RocketMQDataSource(OPTIONS), reader, partition))
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    done = subprocess.run(
        [python, "-c", WORKER], input=carried, capture_output=True, timeout=100, env=environment
    )
    assert not done.returncode, done.stderr.decode()
    return done.stdout.decode().strip(), done.stderr.decode()


def partition(address: str) -> QueuePartition:
    return QueuePartition([(address, QueueRange(QUEUE, 0, 40))])


def test_a_worker_without_kerolox_says_so_in_one_line(tmp_path: Path) -> None:
    python = bare_python(tmp_path)
    text, _ = in_worker(python, partition("127.0.0.1:1"))
    assert text.startswith(f"kerolox.spark.worker.WorkerError: {python} of the Spark worker on ")
    assert "can't import kerolox (No module named 'kerolox')" in text
    assert f"install kerolox=={kerolox.__version__} there" in text
    assert "\n" not in text


def test_a_worker_with_another_version_says_so_in_one_line(tmp_path: Path) -> None:
    python = bare_python(tmp_path, version="9.8.7")
    text, _ = in_worker(python, partition("127.0.0.1:1"))
    assert f"has kerolox 9.8.7, but the query was planned with {kerolox.__version__}" in text
    assert "\n" not in text


def test_a_worker_with_the_same_version_reads(tmp_path: Path) -> None:
    python = bare_python(tmp_path, version=kerolox.__version__)
    with ThreadedBroker(Queue(40)) as broker:
        assert in_worker(python, partition(broker.address))[0].split() == ["40", "40"]


def test_a_worker_with_the_python_kernel_warns_once() -> None:
    variables = {"PYTHONPATH": str(SOURCE), KERNEL_VARIABLE: "python"}
    with ThreadedBroker(Queue(40)) as broker:
        found = in_worker(Path(sys.executable), partition(broker.address), **variables)
    assert found[0].split() == ["40", "40"]
    assert found[1].count("several times slower than with the native one") == 1


def test_a_driver_says_that_the_planner_lacks_kerolox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kerolox.spark.options", None)
    source = RocketMQDataSource(OPTIONS)
    for call in (source.schema, lambda: source.reader(schema_of(["body"]))):
        with pytest.raises(worker.WorkerError, match="can't import kerolox"):
            call()
    with pytest.raises(worker.WorkerError, match="can't import kerolox"):
        source.streamReader(schema_of(["body"])).initialOffset()


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_a_reader_becomes_one_that_only_reads(kind: str) -> None:
    made = getattr(RocketMQDataSource(OPTIONS), kind)(schema_of(["body"]))
    copy = pickle.loads(dumps(made))
    assert type(copy).__name__ == "WorkerReader"
    assert list(copy.read(None)) == list(made.read(None)) == []


CARRIER = """
import sys
from pyspark.cloudpickle import dumps
from {module} import DefaultSource

source = DefaultSource({options})
dumps((DefaultSource, source, source.streamReader(source.schema())))
needless = ("kerolox.spark.network", "kerolox.spark.partition", "kerolox.kernel", "kerolox_kernel")
print([name for name in sys.modules if name.startswith(needless)])
"""


@pytest.mark.parametrize(
    ("module", "options"),
    [("pyspark_rocketmq", OPTIONS), ("pyspark_rocketmq_store", {"path": "/store"})],
)
def test_what_only_carries_a_stream_imports_nothing_that_plans_or_reads(module, options) -> None:
    program = CARRIER.format(module=module, options=options)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_partition_is_carried_without_our_classes() -> None:
    copy = pickle.loads(dumps(partition("b:1")))
    assert type(copy) is InputPartition
    assert copy.value == [("b:1", (("t", "broker-a", 0), 0, 40), (None, False))]


def test_a_stream_that_is_refused_says_why_at_its_first_call() -> None:
    source = RocketMQDataSource({**OPTIONS, "endingOffsets": "latest"})
    reader = source.streamReader(schema_of(["body"]))
    for call in (reader.initialOffset, reader.latestOffset, reader.getDefaultReadLimit):
        with pytest.raises(ConfigError, match="endingOffsets is for batches only"):
            call()
    reader.stop()


HIDE = "SPARK_HIDE_TRACEBACK"


def test_only_errors_on_purpose_hide_their_traceback_and_only_in_spark(monkeypatch) -> None:
    monkeypatch.setenv(HIDE, "")
    source = RocketMQDataSource({"subscribe": "t"})
    for call in (source.schema, lambda: source.reader(schema_of(["body"]))):
        with pytest.raises(ConfigError):
            call()
    assert not os.environ[HIDE]
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    worker.show_short(ValueError("a defect"))
    assert not os.environ[HIDE]
    with pytest.raises(ConfigError):
        source.schema()
    assert os.environ[HIDE]
