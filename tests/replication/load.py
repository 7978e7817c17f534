"""A load of many kinds of messages on a master that may be killed, and what it promised of each.

A message follows from its number: body, topic, queue, keys, tags, delay, transaction. Each is sent
once, so that what the log has twice is the broker's doing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import KeroloxError
from kerolox.message import MessageId, encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import peer_at
from tests.support.eventually import until

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.support.clients.peer import Peer

__all__ = [
    "CONCURRENCY",
    "DELAYS",
    "GROUPS",
    "QUEUES",
    "TOPICS",
    "Acknowledged",
    "Load",
    "body_of",
    "key_of",
]

TOPICS, QUEUES = ("Left", "Middle", "Right"), 4
GROUPS = ("one", "two")
PRODUCER = "loading"
DELAYS = "1s 2s 3s"
STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
"""Answers to a message that is stored; the last two say that no slave is known to have it."""

SIZES = (100, 400, 900, 2_000, 5_000, 12_000, 30_000, 70_000)
BIG_BYTES = 700_000
CONCURRENCY = 32
RETRY_SECONDS = 0.05
WAIT_SECONDS_MAX = 0.25
"""Of a sender that is ahead of the rate."""
_NOISE = random.Random(5).randbytes(2 * BIG_BYTES)


class Acknowledged(NamedTuple):
    """What a broker said of a message."""

    number: int
    code: int
    physical_offset: int
    answered: float
    """By the clock of the loop."""


def body_of(number: int) -> bytes:
    """From some bytes to 700 KB, 15 KB in the mean, different for each number."""
    size = BIG_BYTES if number % 400 == 77 else SIZES[number * 7 % 8] + number % 97
    begin = number * 1_009 % BIG_BYTES
    return b"%d|" % number + _NOISE[begin : begin + size]


def key_of(number: int) -> str:
    """The one key that no other message has."""
    return f"{number:032X}"


def delay_of(number: int) -> int:
    """Its delay level; 0: none."""
    return number % 3 + 1 if number % 20 == 3 else 0


def is_half(number: int) -> bool:
    """Whether it is a transaction's."""
    return number % 20 == 7


def is_committed(number: int) -> bool:
    """How its transaction ends."""
    return number % 40 == 7


def topic_of(number: int) -> str:
    """Where a consumer finds it."""
    return TOPICS[number % len(TOPICS)]


def _properties(number: int) -> str:
    values = {
        "KEYS": f"k{number} tens{number // 10}",
        "TAGS": f"t{number % 5}",
        "UNIQ_KEY": key_of(number),
        "WAIT": "true",
    }
    if level := delay_of(number):
        values["DELAY"] = str(level)
    if is_half(number):
        values |= {"TRAN_MSG": "true", "PGROUP": PRODUCER}
    return encode_properties(values)


class Load:
    """Sends while it is entered.

    Args:
        address: of the master, which may go away and come back.
        bytes_a_second: at most so many.

    Attributes:
        acknowledged: in the order of their answers.
        refused: other answers to messages, by code and reason.
        size: bytes of the bodies that were acknowledged.
        ended: transactions whose end was acknowledged.
        ended_again: those whose end was reported twice, so that RocketMQ may commit them twice.
    """

    def __init__(self, address: str, *, bytes_a_second: int) -> None:
        self.address, self._rate = address, bytes_a_second
        self.acknowledged: list[Acknowledged] = []
        self.refused: Counter[str] = Counter()
        self.size = 0
        self.ended: set[int] = set()
        self.ended_again: set[int] = set()
        self._open: dict[int, dict[str, object]] = {}
        """Transactions to be ended yet: the fields of the request."""
        self._next = self._in_flight = 0
        self._may_send = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._peer = peer_at(self.address)
        peer = await self._peer.__aenter__()
        self._may_send.set()
        self._began = time.monotonic()
        self._tasks = [asyncio.create_task(self._send_on(peer)) for _ in range(CONCURRENCY)]
        self._tasks.append(asyncio.create_task(self._change_tables(peer)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._peer.__aexit__(kind, error, trace)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    async def rest(self) -> None:
        """Send no more, and wait until each send is answered or failed."""
        self._may_send.clear()
        await until(lambda: not self._in_flight, what="the end of all sends")

    def go_on(self) -> None:
        """Send again."""
        self._may_send.set()

    def count(self, code: int = ResponseCode.SUCCESS) -> int:
        """Answers of a code."""
        return sum(each.code == code for each in self.acknowledged)

    async def end_transactions(self) -> None:
        """End those whose end failed; after :meth:`rest`."""
        async with peer_at(self.address) as peer:
            for number in list(self._open):
                self.ended_again.add(number)
                await self._end(peer, number)
        assert not self._open

    async def _send_on(self, peer: Peer) -> None:
        while True:
            await self._may_send.wait()
            ahead = self.size / self._rate - (time.monotonic() - self._began)
            if ahead > 0:
                await asyncio.sleep(min(max(ahead, RETRY_SECONDS), WAIT_SECONDS_MAX))
                continue
            number, self._next = self._next, self._next + 1
            self._in_flight += 1
            try:
                await self._send(peer, number)
            except KeroloxError:
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._in_flight -= 1

    async def _send(self, peer: Peer, number: int) -> None:
        body = body_of(number)
        answer = await peer.send(
            topic_of(number),
            body,
            queue_id=number // 3 % QUEUES,
            properties=_properties(number),
            a=PRODUCER,
            f=4 if is_half(number) else 0,
        )
        if answer.code not in STORED:
            self.refused[f"{answer.code} {answer.remark}"] += 1
            await asyncio.sleep(RETRY_SECONDS)
            return
        offset = MessageId.parse(answer.ext_fields["msgId"]).physical_offset
        now = asyncio.get_running_loop().time()
        self.acknowledged.append(Acknowledged(number, answer.code, offset, now))
        self.size += len(body)
        if is_half(number):
            self._open[number] = {
                "producerGroup": PRODUCER,
                "tranStateTableOffset": answer.ext_fields["queueOffset"],
                "commitLogOffset": offset,
                "commitOrRollback": 8 if is_committed(number) else 12,
                "fromTransactionCheck": "false",
                "msgId": key_of(number),
                "transactionId": key_of(number),
            }
            await self._end(peer, number)

    async def _end(self, peer: Peer, number: int) -> None:
        answer = await peer.ask(RequestCode.END_TRANSACTION, self._open[number])
        if answer.code in STORED:
            self.ended.add(number)
            del self._open[number]

    async def _change_tables(self, peer: Peer) -> None:
        """Commit offsets all the time, and make a topic and a group now and then."""
        turn = 0
        while True:
            await self._may_send.wait()
            turn += 1
            self._in_flight += 1
            try:
                await self._change(peer, turn)
            except KeroloxError:
                pass
            finally:
                self._in_flight -= 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _change(self, peer: Peer, turn: int) -> None:
        fields = {
            "consumerGroup": GROUPS[turn % len(GROUPS)],
            "topic": TOPICS[turn % len(TOPICS)],
            "queueId": turn % QUEUES,
            "commitOffset": turn,
        }
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if turn % 40 == 0:
            await peer.create_topic(f"Made{turn}", 2)
            group = b'{"groupName":"made%d","retryMaxTimes":%d}' % (turn, turn % 9)
            await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
