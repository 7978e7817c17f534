"""Claim: 10,000 queues, of one topic or of 10,000 topics, cost a restart of at most 5 s.

python benchmarks/scale.py [--kernel native] [--queues 10000] [--shape topic|topics] [--folder DIR]

Each queue gets messages and is read, then the broker is stopped and started, killed and started,
and everything is read again. Files have RocketMQ's size. Prints a line of JSON for each shape.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import Target, our_broker
from kerolox.message import encode_properties
from kerolox.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from kerolox.remoting.client import RemotingClient

IN_FLIGHT = 128
SECONDS_MAX = 60.0
BODY = b"0123456789" * 10
Place = tuple[str, int]
"""Topic and queue id."""


def usage_of(pid: int) -> dict[str, float]:
    """Memory, maps and descriptors of a process."""
    status = Path(f"/proc/{pid}/status").read_text()

    def megabytes(name: str) -> float:
        match = re.search(rf"{name}:\s+(\d+) kB", status)
        return round(int(match.group(1)) / 1000, 1) if match else 0.0

    return {
        "own_memory_mb": megabytes("RssAnon"),
        "page_tables_mb": megabytes("VmPTE"),
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


async def all_of(works: Iterable[Callable[[], Awaitable[None]]]) -> float:
    """Do things, some of them at the same time; the seconds it took."""
    free = asyncio.Semaphore(IN_FLIGHT)
    started = time.monotonic()

    async def one(work: Callable[[], Awaitable[None]]) -> None:
        async with free:
            await work()

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(one(work))
    return time.monotonic() - started


class Session:
    """One connection to the broker."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.client = client
        self.address = address

    async def ask(
        self, code: RequestCode, fields: dict[str, object], body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, fields, body=body)
        answer = await self.client.invoke(self.address, command, timeout_seconds=SECONDS_MAX)
        if answer.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"{code.name} {fields}: {answer.code} {answer.remark}")
        return answer

    async def create(self, topic: str, queues: int) -> None:
        fields: dict[str, object] = {"topic": topic, "defaultTopic": "TBW102", "perm": 6}
        fields |= {"readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0}
        fields |= {"topicFilterType": "SINGLE_TAG", "order": False}
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def send(self, place: Place) -> None:
        text = encode_properties({"UNIQ_KEY": f"{place[0]}-{place[1]}", "WAIT": "true"})
        values = ("scale", place[0], "TBW102", 1, place[1], 0, 1_700_000_000_000, 0, text, 0)
        fields: dict[str, object] = dict(zip("abcdefghij", values, strict=True))
        await self.ask(RequestCode.SEND_MESSAGE_V2, fields | {"k": False, "m": False}, BODY)

    async def pull(self, place: Place, count: int) -> None:
        fields: dict[str, object] = {
            "consumerGroup": "readers",
            "topic": place[0],
            "queueId": place[1],
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": int(PullSysFlag.SUBSCRIPTION),
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        }
        answer = await self.ask(RequestCode.PULL_MESSAGE, fields)
        found = [(m.topic, m.queue_id, m.queue_offset) for m in decode_records(answer.body)]
        if found != [(*place, offset) for offset in range(count)]:
            raise RuntimeError(f"{place} gave {found} instead of {count} messages")


async def fill(target: Target, shape: str, places: list[Place], rounds: int) -> dict[str, float]:
    """Make the topics, put messages, read them."""
    seconds: dict[str, float] = {}
    async with RemotingClient() as client:
        session = Session(client, target.address)
        if shape == "topic":
            seconds["create_s"] = await all_of([lambda: session.create(places[0][0], len(places))])
        # The first message makes the queue, and in the other shape its topic too.
        seconds["first_put_s"] = await put_all(session, places)
        for _ in range(rounds - 1):
            seconds["put_s"] = await put_all(session, places)
        seconds["pull_s"] = await pull_all(session, places, rounds)
    return seconds


async def put_all(session: Session, places: list[Place]) -> float:
    """A message for each queue."""
    return await all_of([lambda place=place: session.send(place) for place in places])  # type: ignore[misc]


async def pull_all(session: Session, places: list[Place], count: int) -> float:
    """Read each queue whole."""
    return await all_of([lambda place=place: session.pull(place, count) for place in places])  # type: ignore[misc]


async def read_back(target: Target, places: list[Place], count: int) -> float:
    """Read each queue whole over a new connection."""
    async with RemotingClient() as client:
        return await pull_all(Session(client, target.address), places, count)


def measure(folder: Path, kernel: str, shape: str, queues: int, rounds: int) -> dict[str, object]:
    """One shape from an empty store to the second restart."""
    if shape == "topic":
        places = [("Wide", queue_id) for queue_id in range(queues)]
    else:
        places = [(f"Topic{number:05d}", 0) for number in range(queues)]
    result: dict[str, object] = {"kernel": kernel, "shape": shape, "queues": queues}
    with our_broker(folder, kernel) as target:
        empty = usage_of(target.pid)
        result |= asyncio.run(fill(target, shape, places, rounds))
        used = usage_of(target.pid)
        result["used"] = used
        growth = (used["own_memory_mb"] - empty["own_memory_mb"]) * 1e6
        result["own_bytes_per_queue"] = round(growth / queues)
        stopping = time.monotonic()
    result["stop_s"] = time.monotonic() - stopping
    for how in ("clean", "killed"):
        started = time.monotonic()
        with our_broker(folder, kernel) as target:
            result[f"restart_{how}_s"] = time.monotonic() - started
            result[f"restarted_{how}"] = usage_of(target.pid)
            result[f"pull_{how}_s"] = asyncio.run(read_back(target, places, rounds))
            if how == "clean":
                os.kill(target.pid, signal.SIGKILL)
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in result.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=("native", "python"), default="native")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3, help="messages per queue")
    parser.add_argument("--shape", choices=("topic", "topics"), action="append")
    parser.add_argument("--folder", type=Path, help="where the store is made; else a temporary one")
    chosen = parser.parse_args()
    for shape in chosen.shape or ("topic", "topics"):
        with tempfile.TemporaryDirectory(prefix="kerolox-scale-", dir=chosen.folder) as folder:
            result = measure(Path(folder), chosen.kernel, shape, chosen.queues, chosen.rounds)
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
