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
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader

from kerolox.spark.positions.read_limits import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    import pyarrow
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

READING_MODULE = "kerolox.spark.partition"
"""Reads what the format ``rocketmq`` planned."""

STORE_READING_MODULE = "kerolox.spark.store.partition"

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
        """The record batches of one partition; WorkerError: this worker has no Kerolox, or not the
        version of the planner.
        """
        try:
            reading = require_kerolox(self._version, self._module)
            options, schema = pickle.loads(self._payload)
            yield from reading.read_partition(partition, options, schema)
        except Exception as error:
            show_short(error)
            raise


Packed = tuple[type[WorkerReader], tuple[str, bytes, str]]


def packed(options: object, schema: StructType, module: str = READING_MODULE) -> Packed:
    """What ``__reduce__`` of a reader returns, so that a :class:`WorkerReader` arrives."""
    import kerolox

    return WorkerReader, (kerolox.__version__, pickle.dumps((options, schema)), module)


def short_errors(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes errors of a method that Spark calls look plain: see :func:`show_short`."""

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            show_short(error)
            raise

    return called


class StreamPlanning(Protocol):
    """What plans a stream; Spark's own names and documents."""

    @property
    def latestOffset(self) -> Callable[..., dict[str, object]]:
        """Where the next batch ends."""

    def initialOffset(self) -> dict[str, object]:
        """Where a query starts."""

    def getDefaultReadLimit(self) -> object:
        """Of a micro-batch."""

    def prepareForTriggerAvailableNow(self) -> None:
        """This run ends where the source ends now."""

    def reportLatestOffset(self) -> Mapping[str, object] | None:
        """For the query's progress."""

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """Of a micro-batch."""

    def commit(self, end: dict[str, object]) -> None:
        """A micro-batch is done."""

    def stop(self) -> None:
        """The query is over."""


class LateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream reader that is made when Spark first asks it something.

    Spark makes one in two processes: one plans, the other only carries it to the tasks and need not
    import what plans. And of an error of ``streamReader`` PySpark tells nothing; here each method
    raises it.

    Args:
        make: makes what plans.
        carry: what :func:`packed` gives for the tasks.
    """

    def __init__(self, make: Callable[[], StreamPlanning], carry: Callable[[], Packed]) -> None:
        self._make = make
        self._carry = carry
        self._made: StreamPlanning | None = None

    def __reduce__(self) -> Packed:
        return self._carry()

    def initialOffset(self) -> dict[str, object]:
        """As all others: that of what plans."""
        return self._planning().initialOffset()

    def getDefaultReadLimit(self) -> object:
        """Of a micro-batch."""
        return self._planning().getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        """This run ends where the source ends now."""
        self._planning().prepareForTriggerAvailableNow()

    def latestOffset(self, *given: object) -> dict[str, object]:
        """PySpark 4.1 gives nothing, later ones a start and a limit."""
        return self._planning().latestOffset(*given)

    def reportLatestOffset(self) -> Mapping[str, object] | None:
        """For the query's progress."""
        return self._planning().reportLatestOffset()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """Of a micro-batch."""
        return self._planning().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """One partition, as a task reads it."""
        reading, arguments = self._carry()
        return reading(*arguments).read(partition)

    def commit(self, end: dict[str, object]) -> None:
        """A micro-batch is done."""
        self._planning().commit(end)

    def stop(self) -> None:
        """The query is over."""
        if self._made is not None:
            self._made.stop()

    @short_errors
    def _planning(self) -> StreamPlanning:
        if self._made is None:
            self._made = self._make()
        return self._made


def require_kerolox(
    version: str | None = None, module: str = "kerolox.spark.options"
) -> ModuleType:
    """A module of the Kerolox that is installed here; WorkerError: there is none that can be
    imported, or it has not the version given.
    """
    where = f"{sys.executable} of the Spark worker on {socket.gethostname()}"
    wanted = f"kerolox=={version}" if version else "kerolox"
    try:
        import kerolox

        found = importlib.import_module(module)
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
    return found


def show_short(error: Exception) -> None:
    """See to it that the user is shown the error's own text, without a traceback before it.

    Of an exception in one of its Python processes PySpark shows the traceback, unless this variable
    is set. It looks when the exception has arrived there, and then ends the process. Errors that
    nobody raised on purpose keep their traceback.
    """
    is_ours = any(each.__name__ in ("KeroloxError", "WorkerError") for each in type(error).__mro__)
    if is_ours and any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


cloudpickle.register_pickle_by_value(sys.modules[__name__])
