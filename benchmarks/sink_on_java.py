"""How often a row is seen twice when a RocketMQ broker, or the driver, dies while halves are ended.

A RocketMQ broker ends half messages one by one and does not remember which. Each round writes rows
with ``transactional=true`` to the Java broker and commits them; meanwhile the broker and its name
server, or the driver, are killed by SIGKILL at a moment of chance, and the commit goes on. Prints
the rows that are seen twice and those that are missing, for each round; ``--ours`` does the same
with our broker.

    python benchmarks/sink_on_java.py [--kills 10] [--rows 5000] [--what broker|driver] [--ours]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.clients.spark import Topics  # noqa: E402
from tests.support.servers.clusters import JavaPeer  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from kerolox.client.sync import PullConsumer  # noqa: E402
from kerolox.spark.sink import job  # noqa: E402
from kerolox.spark.sink.options import SinkOptions  # noqa: E402

if TYPE_CHECKING:
    from kerolox.spark.sink.transactions.messages import SinkMessage

FLUSH = ("flushDiskType=ASYNC_FLUSH",)


class Servers:
    """A broker and its name server that can be killed and started again."""

    def __init__(self, folder: Path, *, ours: bool) -> None:
        self._made = Up(folder) if ours else JavaPeer(folder, settings=FLUSH)
        self._made.__enter__()
        self.name_server = f"127.0.0.1:{self._made.namesrv_port}"
        self.broker = f"127.0.0.1:{self._made.port}"

    def crash(self) -> None:
        self._made.kill()
        self._made.__enter__()

    def close(self) -> None:
        self._made.kill()


def bodies(name_server: str, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with PullConsumer("sink-on-java", name_server) as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found.update(each.body for each in result.messages)
                offset = result.next_offset
    return found


def commit_while_a_broker_dies(
    servers: Servers, options: SinkOptions, messages: list[SinkMessage], seconds: float
) -> None:
    thread = threading.Thread(target=job.commit, args=(options, messages, 0))
    thread.start()
    time.sleep(seconds)
    servers.crash()
    thread.join()


def commit_by_a_driver_that_dies(
    options: SinkOptions, messages: list[SinkMessage], seconds: float
) -> None:
    child = os.fork()
    if not child:
        try:
            job.commit(options, messages, 0)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    job.commit(options, messages, 0)


def play(servers: Servers, folder: Path, chosen: argparse.Namespace, took: float) -> dict[str, int]:
    """One round. ``took``: seconds of a commit that nothing disturbs."""
    topic = f"target-{uuid.uuid4().hex[:8]}"
    Topics(servers.name_server, servers.broker).create(topic)
    given = {"nameServer": servers.name_server, "topic": topic, "transactional": "true"}
    given |= {"transactionLocation": str(folder), "transactionId": topic}
    options = SinkOptions.parse(given, is_stream=False)
    rows = pyarrow.record_batch({"body": [str(number) for number in range(chosen.rows)]})
    messages = [job.write_halves(options, topic, 0, 0, 0, [rows])]
    started = time.monotonic()
    if not took:
        job.commit(options, messages, 0)
    elif chosen.what == "broker":
        commit_while_a_broker_dies(servers, options, messages, random.uniform(0, took))
    else:
        commit_by_a_driver_that_dies(options, messages, random.uniform(0, took))
    seconds = time.monotonic() - started
    found = bodies(servers.name_server, topic)
    twice = sum(count > 1 for count in found.values())
    return {"missing": chosen.rows - len(found), "twice": twice, "ms": round(seconds * 1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--what", choices=("broker", "driver"), default="broker")
    parser.add_argument("--ours", action="store_true", help="our broker, not Java's")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        servers = Servers(Path(name, "servers"), ours=chosen.ours)
        try:
            took = 0.0
            for number in range(-1, chosen.kills):
                found = play(servers, Path(name, "decisions"), chosen, took)
                took = took or found["ms"] / 1000
                facts = {"benchmark": "sink_on_java", "what": chosen.what, "kill": number}
                print(json.dumps(facts | {"rows": chosen.rows} | found), flush=True)
        finally:
            servers.close()


if __name__ == "__main__":
    main()
