"""Claim: ten thousand idle clients cost little memory, and their heartbeats little time.

Opens connections that do nothing but send a heartbeat every 30 s, as clients do: each is a member
of a producer group and of a consumer group of ten. Tells what the broker's memory grew by, and what
part of a core it took over a whole round of heartbeats: one in which all are taken anew, as after
something of their groups changed, and one in which all repeat the ones before.

    python benchmarks/idle.py [--connections 10000] [--kernel native]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import cpu_seconds, our_broker
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

HEARTBEAT_SECONDS = 30
MEMBERS = 10
OPENING_AT_ONCE = 64


def heartbeat(number: int) -> bytes:
    """One client's heartbeat, as a frame."""
    group = number // MEMBERS
    topic, retry = f"Topic{group}", f"%RETRY%group-{group}"
    subscriptions = [
        {
            "topic": name,
            "subString": "*",
            "expressionType": "TAG",
            "subVersion": 1_700_000_000_000,
            "codeSet": [],
            "tagsSet": [],
            "classFilterMode": False,
        }
        for name in (topic, retry)
    ]
    body = {
        "clientID": f"10.0.0.1@{number}#{time.monotonic_ns()}",
        "producerDataSet": [{"groupName": f"producers-{group}"}],
        "consumerDataSet": [
            {
                "groupName": f"group-{group}",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": subscriptions,
                "unitMode": False,
            }
        ],
    }
    return RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(body)).encode()


class Client(asyncio.Protocol):
    """A connection that counts what comes back."""

    answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        Client.answers += 1


async def beat(clients: list[Client], frames: list[bytes], seconds: float) -> None:
    """One heartbeat of each, spread evenly."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number, (client, frame) in enumerate(zip(clients, frames, strict=True)):
        due = start + seconds * number / len(clients)
        if due > loop.time():
            await asyncio.sleep(due - loop.time())
        client.transport.write(frame)


def memory(process_id: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def measure(host: str, port: int, broker: int, count: int) -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Semaphore(OPENING_AT_ONCE)

    async def opened() -> Client:
        async with gate:
            return (await loop.create_connection(Client, host, port))[1]

    before = memory(broker)
    clients = await asyncio.gather(*(opened() for _ in range(count)))
    connected = memory(broker)
    frames = [heartbeat(number) for number in range(count)]
    await beat(clients, frames, HEARTBEAT_SECONDS / 3)
    registered = memory(broker)
    Client.answers = 0
    used = []
    for _ in range(2):
        cpu, start = cpu_seconds(broker), loop.time()
        await beat(clients, frames, HEARTBEAT_SECONDS)
        used.append((cpu_seconds(broker) - cpu) / (loop.time() - start))
    after = memory(broker)
    print(f"{count} connections: {(connected - before) / 1e6:.1f} MB, ", end="")
    print(f"registered {(registered - before) / 1e6:.1f} MB, ", end="")
    print(f"after two rounds of heartbeats {(after - before) / 1e6:.1f} MB over the start")
    print(f"heartbeats, each {HEARTBEAT_SECONDS} s: {100 * used[0]:.1f} % of a core anew, ", end="")
    print(f"{100 * used[1]:.1f} % repeated, {Client.answers} answers")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--kernel", default="native")
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    one_address = "maxConnectionsPerAddress=65536"
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-idle-") as folder,
        our_broker(Path(folder) / "broker", chosen.kernel, one_address) as target,
    ):
        host, port = target.address.split(":")
        asyncio.run(measure(host, int(port), target.pid, chosen.connections))
    return 0


if __name__ == "__main__":
    sys.exit(main())
