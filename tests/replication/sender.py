"""A producer of ours that sends one message after the other, each again until it is acknowledged,
while brokers fail: ``python -m tests.replication.sender NAMESRV TOPIC FILE [ROUTE_MS SEND_MS]``.

Without times the client's defaults count. It is what ``interop.Sending`` is in Java and
``sending.go`` in Go, with the same lines in the file, and it ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from kerolox import Message, Producer, ProducerSettings, SendStatus
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from typing import TextIO

PAUSE_SECONDS = 0.01


async def _send(producer: Producer, topic: str, file: TextIO) -> None:
    number = 0
    while True:
        body = f"ours{number}"
        try:
            result = await producer.send(Message(topic, body.encode()))
        except KeroloxError as error:
            line = f"failed ours {error}".replace("\n", " ")
        else:
            line = f"failed ours {result.status.name}"
            if result.status is SendStatus.SEND_OK:
                now = time.time_ns() // 1_000_000
                place = f"{result.queue.queue_id} {result.queue_offset} {result.offset_message_id}"
                line = f"sent ours {body} {place} {now}"
                number += 1
        file.write(f"{line}\n")
        await asyncio.sleep(PAUSE_SECONDS)


async def run(file: TextIO, namesrv: str, topic: str, *times: str) -> None:
    """Send until the input ends."""
    settings = ProducerSettings()
    if times:
        route_ms, send_ms = map(int, times)
        settings = ProducerSettings(route_poll_interval_ms=route_ms, send_timeout_ms=send_ms)
    async with Producer("sending-ours", namesrv, settings=settings) as producer:
        sending = asyncio.ensure_future(_send(producer, topic, file))
        await asyncio.to_thread(sys.stdin.read)
        sending.cancel()
        await asyncio.wait([sending])


def main(namesrv: str, topic: str, path: str, *times: str) -> None:
    """Send until the input ends."""
    with open(path, "a", buffering=1) as file:
        asyncio.run(run(file, namesrv, topic, *times))


if __name__ == "__main__":
    main(*sys.argv[1:])
