"""Transactions whose outcome is known from their number, by producers that may be killed.

As a program, ``python -m tests.support.clients.transactions NAMESRV FIRST COUNT``, a producer that
prints the number of each half message once the broker has it, and answers checks until it is
killed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from kerolox.client import ProducerSettings, PullConsumer, TransactionProducer, TransactionState
from kerolox.errors import KeroloxError
from kerolox.message import Message
from kerolox.protocol.names import HALF_TOPIC, TRANSACTION_GROUP
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers import forked

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.message import MessageExt

__all__ = ["TOPIC", "ProducerProcess", "is_committed", "settled", "visible"]

TOPIC, GROUP = "Transacted", "transactions"
CONCURRENCY = 16
RETRY_SECONDS = 0.02
ROUND_SECONDS = 0.05


def is_committed(number: int) -> bool:
    """What becomes of a transaction in the end."""
    return number % 4 in (0, 2)


def first_state(number: int) -> TransactionState:
    """What its producer says at once: of every second one it does not know yet."""
    if number % 4 >= 2:
        return TransactionState.UNKNOWN
    return TransactionState.COMMIT if is_committed(number) else TransactionState.ROLLBACK


class ProducerProcess:
    """The program, and the numbers that it printed into a file."""

    def __init__(self, name_server: str, first: int, count: int, output: Path) -> None:
        self.output = output
        given = [name_server, first, count]
        with output.open("wb") as file:
            self._process = forked.start(
                __name__, given, os.environ, stdin=subprocess.DEVNULL, stdout=file
            )

    @property
    def acknowledged(self) -> list[int]:
        """Halves that the broker has. A last line that is torn does not count."""
        lines = self.output.read_text().split("\n")[:-1]
        return [int(line) for line in lines]

    def wait_for(self, count: int) -> None:
        """Until so many are acknowledged, with a deadline."""
        wait_until(lambda: len(self.acknowledged) >= count, what=f"{count} half messages")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(timeout=SECONDS_MAX)


async def settled(name_server: str, seconds: float) -> None:
    """Until the broker has passed every half message: it knows how each ended, and asks no more."""
    deadline = time.monotonic() + seconds
    async with PullConsumer(TRANSACTION_GROUP, name_server) as consumer:
        queue = (await consumer.queues(HALF_TOPIC))[0]
        while await consumer.committed(queue) < await consumer.max_offset(queue):
            assert time.monotonic() < deadline, f"transactions are open after {seconds:g} s"
            await asyncio.sleep(ROUND_SECONDS)


async def visible(name_server: str) -> Counter[int]:
    """How often each number is in the topic."""
    found: Counter[int] = Counter()
    async with PullConsumer("readers", name_server) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                offset = result.next_offset
                found.update(int(message.body) for message in result.messages)
    return found


async def _produce(name_server: str, first: int, count: int) -> None:
    async def check(message: MessageExt) -> TransactionState:
        committed = is_committed(int(message.body))
        return TransactionState.COMMIT if committed else TransactionState.ROLLBACK

    numbers = iter(range(first, first + count))
    settings = ProducerSettings(send_timeout_ms=1_000, retries=0)
    async with TransactionProducer(GROUP, name_server, check=check, settings=settings) as producer:
        await producer.queues(TOPIC)

        async def send() -> None:
            for number in numbers:
                message = Message(TOPIC, b"%d" % number)
                # Each number is tried once: a half that a second try doubles is two transactions.
                try:
                    await producer.send_in_transaction(message, lambda _, n=number: _state(n))
                except KeroloxError:
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    print(number, flush=True)

        await asyncio.gather(*(send() for _ in range(CONCURRENCY)))
        await asyncio.Event().wait()


async def _state(number: int) -> TransactionState:
    return first_state(number)


if __name__ == "__main__":
    asyncio.run(_produce(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
