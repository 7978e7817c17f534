"""The Spark session of a command."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kerolox.errors import ConfigError
from kerolox.spark.jobs.frame.errors import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""``spark-submit`` sets it for the Python program that it starts."""

_QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


def open_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that ``spark-submit`` or ``SPARK_REMOTE`` gives, or a local one. ConfigError:
    there is no PySpark, or Spark does not start.

    ``master``: what Spark calls so: ``local[4]``, ``spark://...``; ``sc://...`` is Spark Connect.
    None: what ``spark-submit`` says, else ``local[*]``.
    """
    warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            f"jobs run on Spark, and there is no PySpark here ({error}); install kerolox[spark]"
        ) from None
    is_ours = _SUBMITTED not in os.environ and "SPARK_REMOTE" not in os.environ
    builder = SparkSession.builder.appName(f"kerolox {name}")
    if master is not None and master.startswith("sc://"):
        builder = builder.remote(master)
    elif is_ours:
        from kerolox.spark.java import require_java

        require_java()
        # The workers of a local Spark are this interpreter, else another one that lacks Kerolox.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or "local[*]")
        builder = builder.config(map=dict(_QUIET))
    elif master is not None:
        raise ConfigError("option --master: spark-submit or SPARK_REMOTE has said it already")
    try:
        return builder.config(map=dict(settings or {})).getOrCreate()
    except Exception as error:
        raise ConfigError(f"Spark does not start: {reason_of(error)}") from error
