"""Claim: the official Python client is at least as fast at our port as at RocketMQ's proxy.

A program with that client sends messages of 128 B, one after the other, then receives 32 at a time
and acknowledges each: at our broker, and at RocketMQ 5.3.3's proxy in local mode, in turn over the
rounds. The rate is mostly the client's own.

    python benchmarks/grpc_python.py [--count 500] [--rounds 3]

Prints each round and the medians; exits with 1 where Java's proxy is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.programs import build_python_grpc_client

from benchmarks.grpc_calls import Served, java_proxy, ours
from benchmarks.pops import QUEUES, TOPIC, make_group, make_topic

RUN_SECONDS_MAX = 300
GROUP = "python-readers"
PROGRAM = """
import sys, time
from rocketmq import (
    ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer,
)
endpoint, topic, group, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
configuration = ClientConfiguration(endpoint, Credentials())
producer = Producer(configuration, (topic,))
producer.startup()
consumer = SimpleConsumer(configuration, group, {topic: FilterExpression("*")}, 5)
consumer.startup()

def send():
    message = Message()
    message.topic, message.body = topic, bytes(128)
    producer.send(message)

def receive(wanted):
    found = 0
    while found < wanted:
        for each in consumer.receive(32, 60) or ():
            consumer.ack(each)
            found += 1

for _ in range(20):
    send()
receive(20)
begin = time.monotonic()
for _ in range(count):
    send()
sent = time.monotonic()
receive(count)
received = time.monotonic()
print("rates", count / (sent - begin), count / (received - sent), flush=True)
producer.shutdown()
consumer.shutdown()
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates: dict[str, list[tuple[float, float]]] = {"kerolox": [], "rocketmq": []}
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        served = {
            "kerolox": servers.enter_context(ours(folder / "ours", "native")),
            "rocketmq": servers.enter_context(java_proxy(folder / "java")),
        }
        for each in served.values():
            make_topic(each.target, TOPIC, QUEUES)
            make_group(each.target, GROUP)
        # Java's compiler has what it runs often.
        _rates(served["rocketmq"], options.count, folder)
        print(f"{'messages a second':<20}{'sent':>10}{'received':>10}")
        for _ in range(options.rounds):
            for kind, each in served.items():
                found = _rates(each, options.count, folder)
                rates[kind].append(found)
                print(f"{kind:<20}{found[0]:10.0f}{found[1]:10.0f}", flush=True)
    ratios = [
        statistics.median(rate[part] for rate in rates["kerolox"])
        / statistics.median(rate[part] for rate in rates["rocketmq"])
        for part in (0, 1)
    ]
    print(f"{'times the rate':<20}{ratios[0]:10.2f}{ratios[1]:10.2f}")
    sys.exit(min(ratios) < 1)


def _rates(served: Served, count: int, folder: Path) -> tuple[float, float]:
    """Messages a second, sent and received."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"127.0.0.1:{served.port}", TOPIC, GROUP, str(count)],
        cwd=folder,
        env={
            **os.environ,
            "HOME": str(folder),
            "PYTHONPATH": str(build_python_grpc_client().parent),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=True,
    )
    _, sent, received = next(
        line for line in done.stdout.splitlines() if line.startswith("rates")
    ).split()
    return float(sent), float(received)


if __name__ == "__main__":
    main()
