"""Claim: what a send costs that a codec alone can't make, beside a plain one.

One client sends to one broker, 256 at a time, one kind after the other and each several times in
turn. Told is the client's CPU of a message, the median of all turns, and how often a plain one of
the same size that is.

    python benchmarks/send_kinds.py [--count 10000] [--turns 3] [--only plain,signed]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import our_broker
from kerolox.client import Producer, ProducerSettings, RpcHook, SendHook
from kerolox.message import Message
from kerolox.security.credentials import Credentials

IN_FLIGHT = 256
SMALL, LARGE = 128, 8_192


class Hook(RpcHook, SendHook):
    """A hook of requests, or of sends, that examines nothing."""


KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any], bool]] = {
    "plain": (SMALL, {}, {}, False),
    "with properties": (SMALL, {}, {"keys": "k1", "tags": "a", "properties": {"n": "1"}}, False),
    "one-way": (SMALL, {}, {}, True),
    "signed": (SMALL, {"credentials": Credentials("access", "secret-key")}, {}, False),
    "signed one-way": (SMALL, {"credentials": Credentials("access", "secret-key")}, {}, True),
    "binary headers": (SMALL, {"serialize_type": "ROCKETMQ"}, {}, False),
    "namespaced": (SMALL, {"namespace": "n"}, {}, False),
    "delayed": (SMALL, {}, {"delay_level": 1}, False),
    "rpc hook": (SMALL, {"rpc_hook": Hook()}, {}, False),
    "send hook": (SMALL, {"send_hooks": (Hook(),)}, {}, False),
    "latency fault": (SMALL, {"latency_fault_enable": True}, {}, False),
    "traced": (SMALL, {"enable_trace": True}, {}, False),
    "plain 8 KiB": (LARGE, {"compress_bytes_min": 1 << 22}, {}, False),
    "zlib 8 KiB": (LARGE, {}, {}, False),
    "lz4 8 KiB": (LARGE, {"compress_type": "LZ4"}, {}, False),
}
"""By name: size of a body, settings, properties of messages, one-way."""
BASES = {LARGE: "plain 8 KiB", SMALL: "plain"}


async def turn(server: str, kind: str, count: int) -> tuple[float, float]:
    """CPU and wall seconds of a message."""
    size, settings, message, is_oneway = KINDS[kind]
    body = (os.urandom(size // 4) * 4)[:size]
    made = ProducerSettings(send_timeout_ms=60_000, **settings)
    async with Producer("kinds", server, settings=made) as producer:
        give: Callable[[Message], Awaitable[object]]
        give = producer.send_oneway if is_oneway else producer.send
        await producer.send(Message("Kinds", body, **message))

        async def worker(number: int) -> None:
            for _ in range(number):
                await give(Message("Kinds", body, **message))

        async def run(number: int) -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(worker(number // IN_FLIGHT))

        await run(count // 10)
        cpu, wall = time.process_time(), time.perf_counter()
        await run(count)
        sent = count // IN_FLIGHT * IN_FLIGHT
        return (time.process_time() - cpu) / sent, (time.perf_counter() - wall) / sent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    kinds = [each for each in KINDS if not chosen.only or each in chosen.only.split(",")]
    found: dict[str, list[tuple[float, float]]] = {each: [] for each in kinds}
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-kinds-") as folder,
        our_broker(Path(folder), "native"),
    ):
        lines = (Path(folder) / "ready").read_text().splitlines()
        server = dict(line.split("=") for line in lines)["namesrv"]
        for _ in range(chosen.turns):
            for kind in kinds:
                found[kind].append(asyncio.run(turn(server, kind, chosen.count)))
    print("| a send | CPU us | least | times a plain one | rate /s |")
    print("|---|---|---|---|---|")
    medians = {each: statistics.median(cpu for cpu, _ in found[each]) for each in kinds}
    for kind in kinds:
        base = medians.get(BASES[KINDS[kind][0]], float("nan"))
        least = min(cpu for cpu, _ in found[kind])
        rate = 1 / statistics.median(wall for _, wall in found[kind])
        print(
            f"| {kind} | {medians[kind] * 1e6:.1f} | {least * 1e6:.1f} "
            f"| {medians[kind] / base:.1f} | {rate:,.0f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
