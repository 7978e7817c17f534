"""What Spark carries of a write: to its tasks, and back to the driver that commits.

As in :mod:`kerolox.spark.worker`, these classes are pickled by value, so that a worker without
Kerolox, or with another version of it, says so in one line.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from kerolox.spark.worker import require_kerolox, show_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow
    from pyspark.sql.datasource import WriterCommitMessage

    from kerolox.spark.sink.options import SinkOptions


class CarriedOptions:
    """The options of a write, with the version of Kerolox that checked them."""

    def __init__(self, options: SinkOptions) -> None:
        import kerolox

        self._version = kerolox.__version__
        self._payload = pickle.dumps(options)

    def call(self, name: str, *arguments: object) -> object:
        """Call a function of :mod:`kerolox.spark.sink.job` with the options."""
        try:
            job = require_kerolox(self._version, "kerolox.spark.sink.job")
            function: Callable[..., object] = getattr(job, name)
            return function(pickle.loads(self._payload), *arguments)
        except Exception as error:
            show_short(error)
            raise


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write, each method in the process where Spark calls it."""

    def __init__(self, carried: CarriedOptions) -> None:
        self.carried = carried

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """In a task: store the rows."""
        return self.carried.call("write_partition", iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks have stored theirs."""
        self.carried.call("commit", messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit has failed."""
        self.carried.call("abort", messages, 0)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A micro-batch of a stream, likewise."""

    def __init__(self, carried: CarriedOptions) -> None:
        self.carried = carried

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """In a task: store the rows."""
        return self.carried.call("write_partition", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks have stored theirs."""
        self.carried.call("commit", messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when a task or the commit has failed."""
        self.carried.call("abort", messages, batchId)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
