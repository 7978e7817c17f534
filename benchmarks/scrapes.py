"""Claim: figures scraped every 5 s take less than 1 % of the CPU that a broker uses under load.

A broker with many topics, groups and queues takes sends. In turn nobody looks, and somebody scrapes
one time after the other. What a scrape costs is what the broker's CPU grows by, beyond that of the
messages sent meanwhile; it is set against the CPU of 5 s of load.

    python benchmarks/scrapes.py [--topics 20] [--groups 3] [--turns 5] [--seconds 4]
                                 [--kernel native]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.servers.up import free_port

from benchmarks.peers import Target, build_loadgen, cpu_seconds, our_broker
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient

INTERVAL_SECONDS = 5.0
QUEUES = 8


class Scraper:
    """Asks for all figures, one time after the other, while it is on."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._over = threading.Event()
        self.count = 0
        self.series = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            with urllib.request.urlopen(self._url, timeout=60) as answer:
                lines = answer.read().splitlines()
            self.series = sum(not line.startswith(b"#") for line in lines)
            self.count += 1


async def fill(target: Target, topics: int, groups: int) -> None:
    """Topics, and an offset of each group in each of their queues."""
    async with RemotingClient() as client:

        async def ask(code: RequestCode, fields: dict[str, object]) -> None:
            answer = await client.invoke(
                target.address, RemotingCommand.request(code, fields), timeout_seconds=60
            )
            assert answer.code == 0, answer.remark

        for topic in (f"Topic{number}" for number in range(topics)):
            await ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": topic,
                    "defaultTopic": "TBW102",
                    "readQueueNums": QUEUES,
                    "writeQueueNums": QUEUES,
                    "perm": 6,
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": 0,
                    "order": "false",
                },
            )
            for group in (f"group-{number}" for number in range(groups)):
                for queue_id in range(QUEUES):
                    await ask(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        {
                            "consumerGroup": group,
                            "topic": topic,
                            "queueId": queue_id,
                            "commitOffset": 0,
                        },
                    )


def load(loadgen: Path, target: Target, seconds: int) -> tuple[int, float]:
    """Messages sent, and the broker's seconds of CPU meanwhile."""
    command = [str(loadgen / "target" / "release" / "loadgen"), "produce", "--create", "--json"]
    command += ["--broker", target.address, "--topic", "load", "--queues", "4"]
    command += ["--connections", "64", "--inflight", "4", "--size", "1024"]
    command += ["--warmup", "0", "--seconds", str(seconds)]
    before = cpu_seconds(target.pid)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return round(json.loads(done.stdout)["msgs_per_s"] * seconds), cpu_seconds(target.pid) - before


def measure(target: Target, port: int, chosen: argparse.Namespace) -> None:
    loadgen = build_loadgen()
    asyncio.run(fill(target, chosen.topics, chosen.groups))
    load(loadgen, target, 2)
    shares, costs = [], []
    series = 0
    for _ in range(chosen.turns):
        plain_messages, plain_cpu = load(loadgen, target, chosen.seconds)
        with Scraper(port) as scraper:
            messages, cpu = load(loadgen, target, chosen.seconds)
        series = scraper.series
        cost = (cpu - plain_cpu * messages / plain_messages) / max(scraper.count, 1)
        costs.append(1000 * cost)
        shares.append(100 * cost / (INTERVAL_SECONDS * plain_cpu / chosen.seconds))
        print(
            f"{scraper.count} scrapes, {1e6 * plain_cpu / plain_messages:.2f} us per message "
            f"without and {1e6 * cpu / messages:.2f} with them: {costs[-1]:.1f} ms per scrape",
            flush=True,
        )
    print(
        f"{series} series: {statistics.median(costs):.1f} ms of CPU per scrape "
        f"[{min(costs):.1f}..{max(costs):.1f}]; every {INTERVAL_SECONDS:g} s that is "
        f"{statistics.median(costs) / INTERVAL_SECONDS / 10:.2f} % of a core, and "
        f"{statistics.median(shares):.2f} % of the CPU that the broker took under load "
        f"[{min(shares):.2f}..{max(shares):.2f}]"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--kernel", default="native")
    chosen = parser.parse_args()
    port = free_port()
    settings = ["metricsExporterType=PROM", f"metricsPromExporterPort={port}", "fileReservedTime=1"]
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-scrapes-") as folder,
        our_broker(Path(folder) / "broker", chosen.kernel, *settings) as target,
    ):
        measure(target, port, chosen)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
