"""What Spark carries to its Python workers, and how errors look there.

A worker that has no Kerolox, or another version of it, can't unpickle what is Kerolox's. So the
classes and functions of this module and of :mod:`kerolox.spark.source` are pickled by value: they
arrive in any worker that has PySpark, import Kerolox when they are called, and say in one line when
that fails. Nothing else of Kerolox is pickled, but for bytes that are opened after that.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

READING_MODULE = "kerolox.spark.partition"
"""Reads what the format ``rocketmq`` planned."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class WorkerError(Exception):
    """The Python of a Spark worker or of the planner is not fit for this query."""


class WorkerReader:
    """Reads partitions in a worker: what a batch or stream reader becomes when it is pickled.

    Args:
        version: of Kerolox where the query was planned.
        payload: the pickled options and schema.
        module: whose ``read_partition`` reads.
    """

    def __init__(self, version: str, payload: bytes, module: str = READING_MODULE) -> None:
        self._version = version
        self._payload = payload
        self._module = module

    def read(self, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
        """The record batches of one partition.

        Raises:
            WorkerError: this worker has no Kerolox, or not the version of the planner.
        """
        try:
            read_partition = require_kerolox(self._version, self._module)
            options, schema = pickle.loads(self._payload)
            yield from read_partition(partition, options, schema)
        except Exception as error:
            show_plainly(error)
            raise


def packed(options: object, schema: StructType, module: str = READING_MODULE) -> tuple[object, ...]:
    """What ``__reduce__`` of a reader returns, so that a :class:`WorkerReader` arrives."""
    import kerolox

    return WorkerReader, (kerolox.__version__, pickle.dumps((options, schema)), module)


class RefusedStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Stands for a stream reader that could not be made; every method raises why.

    PySpark replaces an error of ``streamReader`` by one of its own, which says nothing.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *_args: object) -> NoReturn:
        show_plainly(self._error)
        raise self._error

    initialOffset = latestOffset = partitions = read = getDefaultReadLimit = _refuse

    def stop(self) -> None:
        """Nothing to do."""


def require_kerolox(
    version: str | None = None, module: str = READING_MODULE
) -> Callable[..., Iterator[pyarrow.RecordBatch]]:
    """``read_partition`` of a module of the Kerolox that is installed here.

    Raises:
        WorkerError: there is none that can be imported, or it has not the version given.
    """
    where = f"{sys.executable} of the Spark worker on {socket.gethostname()}"
    wanted = f"kerolox=={version}" if version else "kerolox"
    try:
        import kerolox

        reading = importlib.import_module(module)
    except ImportError as error:
        raise WorkerError(
            f"{where} can't import kerolox ({error}); install {wanted} there, "
            "on every machine that runs executors"
        ) from None
    if version is not None and kerolox.__version__ != version:
        raise WorkerError(
            f"{where} has kerolox {kerolox.__version__}, but the query was planned with "
            f"{version}; install {wanted} on every machine that runs executors"
        )
    read_partition: Callable[..., Iterator[pyarrow.RecordBatch]] = reading.read_partition
    return read_partition


def plain_errors(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes errors of a method that Spark calls look plain: see :func:`show_plainly`."""

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            show_plainly(error)
            raise

    return called


def show_plainly(error: Exception) -> None:
    """See to it that the user is shown the error's own text, without a traceback before it.

    Of an exception in one of its Python processes PySpark shows the traceback, unless this variable
    is set. It looks when the exception has arrived there, and then ends the process. Errors that
    nobody raised on purpose keep their traceback.
    """
    is_ours = any(each.__name__ in ("KeroloxError", "WorkerError") for each in type(error).__mro__)
    if is_ours and any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


cloudpickle.register_pickle_by_value(sys.modules[__name__])
