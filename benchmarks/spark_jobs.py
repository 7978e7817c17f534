"""Time and memory of each job on Spark, on a store of ``--messages`` messages.

Claim measured: the memory of a job does not grow with the data; its time does, evenly. Fills a
store with the kernel, then runs each job as its command with ``--master local[2]`` and Spark's own
settings: first those that read files on the store, then the others beside a broker that has it.
``dlq`` and ``trace`` get a store of dead letters, and one of traces. Prints one JSON object per
job: what it told of itself, seconds in all, and the most resident memory, in MiB, of the JVM, of
the driver's Python and of each worker's.

    python benchmarks/spark_jobs.py [--messages 10000000] [--size 128] [--jobs archive,audit]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.clients.spark import Topics, spark_variables  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from benchmarks.spark_memory import Memory  # noqa: E402
from kerolox.client.core.tracing.trace import (  # noqa: E402
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    encode_trace,
)
from kerolox.kernel.choice import kernel_name, load_kernel  # noqa: E402
from kerolox.kernel.settings import StoreSettings  # noqa: E402
from kerolox.kernel.values import Batch  # noqa: E402
from kerolox.message import DEAD_LETTER_REASON, PropertyKey, encode_properties  # noqa: E402
from kerolox.protocol.names import DLQ_PREFIX, TRACE_TOPIC  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402
from kerolox.spark.jobs import JOBS  # noqa: E402

TOPIC, GROUP = "Orders", "billing"
QUEUES = 4
BATCH = 500
HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
MASTER = "local[2]"

Item = tuple[int, bytes, bytes]


# -- stores ------------------------------------------------------------------------------------
def order(number: int, size: int) -> Item:
    properties = {"TAGS": f"tag{number % 8}", "KEYS": f"k{number}"}
    properties |= {PropertyKey.UNIQUE_KEY: f"{number:032X}"}
    return 0, f"{number:032d}".encode().ljust(size, b"x")[:size], _text(properties)


def dead_letter(number: int, size: int) -> Item:
    properties = {PropertyKey.RETRY_TOPIC: TOPIC, DEAD_LETTER_REASON: f"reason {number % 16}"}
    properties |= {PropertyKey.UNIQUE_KEY: f"{number:032X}", "KEYS": f"k{number}"}
    return 0, bytes(size), _text(properties)


def trace_of(number: int, _size: int) -> Item:
    """Of three messages: a send, the call of a listener, its end."""
    message, kind = divmod(number, 3)
    now, name = 1_700_000_000_000 + message, f"{message:032X}"
    records = (
        PubTrace(
            timestamp_ms=now,
            region="r",
            group="makers",
            topic=TOPIC,
            message_id=name,
            cost_ms=message % 50,
        ),
        SubBeforeTrace(
            timestamp_ms=now + 100, region="r", group=GROUP, request_id=name, message_id=name
        ),
        SubAfterTrace(
            request_id=name, message_id=name, cost_ms=message % 200, is_success=bool(message % 9)
        ),
    )
    return 0, encode_trace(records[kind]).encode(), _text({"KEYS": name})


def _text(properties: dict[str, str]) -> bytes:
    return encode_properties(properties).encode()


STORES: dict[str, tuple[str, Callable[[int, int], Item]]] = {
    "orders": (TOPIC, order),
    "letters": (DLQ_PREFIX + GROUP, dead_letter),
    "traces": (TRACE_TOPIC, trace_of),
}
"""Name of a store: the topic of its messages, and what makes one of them."""


def fill(folder: Path, kind: str, count: int, size: int) -> None:
    topic, make = STORES[kind]
    settings = StoreSettings(store_path_root_dir=str(folder))
    store: Any = load_kernel().Store(settings)
    store.open()
    for first in range(0, count, BATCH):
        items = [make(number, size) for number in range(first, min(first + BATCH, count))]
        now = time.time_ns() // 1_000_000
        queue_id = first // BATCH % QUEUES
        batch = Batch(topic.encode(), queue_id, 0, now, HOST, HOST, 0, items)
        assert store.append_batch(batch)[0] == 0
    store.close()


# -- jobs --------------------------------------------------------------------------------------
def commands(folder: Path, name_server: str) -> dict[str, tuple[str, list[str]]]:
    """Each job's store and arguments. A new job has a line here."""
    store, archived = str(folder / "store"), str(folder / "archive")
    at = ["-n", name_server]
    again = ["--from-archive", archived, *at]
    state = ["--state", str(folder / "state")]
    return {
        "audit": ("orders", ["--store", store]),
        "traffic": ("orders", ["--store", store]),
        "rebuild": ("orders", ["--store", store, "--to", str(folder / "made"), "--all-topics"]),
        "archive": ("orders", ["--topic", TOPIC, "--to", archived, *at]),
        "replay": ("orders", [*again, "--to-topic", "Again"]),
        "replay transactional": (
            *("orders", [*again, "--to-topic", "Exactly", "--transactional", *state]),
        ),
        "dlq": ("letters", ["--store", store, "--group", GROUP]),
        "trace": ("traces", ["--store", store]),
    }


def run(job: str, arguments: list[str], settings: list[str]) -> dict[str, object]:
    command = [sys.executable, "-W", "ignore", "-m", "kerolox.cli", "spark", job.split()[0]]
    command += [*arguments, "--master", MASTER, "-o", "json"]
    command += [part for each in settings for part in ("--conf", each)]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=told, stderr=errors, env=os.environ | spark_variables()
        )
        try:
            with Memory(process.pid) as memory:
                process.wait()
        finally:
            process.kill()
        seconds = time.monotonic() - started
        errors.seek(0)
        assert process.returncode in (0, 1), errors.read()[-5000:]
        told.seek(0)
        text = told.read()
        assert text, errors.seek(0) or errors.read()[-5000:]
    summary = {
        name: value
        for name, value in json.loads(text).items()
        if isinstance(value, int | float) and value
    }
    return {"summary": summary, "seconds": round(seconds, 1), **memory.as_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--jobs", default="", help="joined by commas; default: all")
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark")
    parser.add_argument("--folder", help="where stores are made; default: a temporary folder")
    options = parser.parse_args()
    require_java()
    for kind in STORES:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            up = Up(Path(name))
            jobs = commands(Path(name), up.namesrv)
            assert {each.split()[0] for each in jobs} <= JOBS.keys()
            wanted = options.jobs.split(",") if options.jobs else list(jobs)
            chosen = {job: of for job, of in jobs.items() if of[0] == kind and job in wanted}
            if not chosen:
                continue
            fill(Path(name, "store"), kind, options.messages, options.size)
            facts = {"benchmark": "spark_jobs", "messages": options.messages}
            facts |= {"size": options.size, "kernel": kernel_name()}
            with contextlib.ExitStack() as stack:
                for job, (_, arguments) in chosen.items():
                    if "-n" in arguments and up.process is None:
                        topics = Topics(up.namesrv, stack.enter_context(up).broker)
                        for topic in (TOPIC, "Again", "Exactly"):
                            topics.create(topic, queues=QUEUES)
                    told = run(job, arguments, options.conf)
                    print(json.dumps({**facts, "job": job, **told}), flush=True)


if __name__ == "__main__":
    main()
