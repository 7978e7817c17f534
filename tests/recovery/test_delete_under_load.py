"""Topics deleted and made again while they are written, pulled and flushed.

Each topic has a writer and a reader that never stop, and an owner that deletes it over and over.
What was acknowledged before a deletion began must never be seen after the deletion was answered,
by pulls of any connection, also after a kill and a restart. Every life begins at offset 0 without
a gap. ``KEROLOX_TEST_DELETIONS`` sets how many deletions per kernel there are (200).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from kerolox.errors import RemotingError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import Peer
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

DELETIONS = int(os.environ.get("KEROLOX_TEST_DELETIONS", "200"))
TOPICS = 10
QUEUES = 2
LIVE_MESSAGES = 6
"""Messages that a life has at least before it ends."""
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 1_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 2_000,
    "flushIntervalCommitLog": 10,
    "flushCommitLogLeastPages": 0,
    "flushIntervalConsumeQueue": 10,
    "flushConsumeQueueLeastPages": 0,
    "flushConsumeQueueThoroughInterval": 50,
    "maxMessageSize": 65_536,
}

pytestmark = pytest.mark.timeout(600)


@dataclass
class Topic:
    """One topic and what is known of its messages, which are numbered by their writer."""

    name: str
    sent: int = 0
    buried: int = 0
    """Messages below were acknowledged before a deletion that was answered."""
    pulled: int = 0
    is_over: bool = False

    def check(self, body: bytes, buried: int) -> None:
        """A message that a pull gave, which was asked for when so many were buried."""
        name, number = body.rstrip(b".").decode().split(":")
        assert name == self.name, f"a message of {name} in {self.name}"
        assert int(number) >= buried, f"{self.name} shows {number}, {buried} were deleted"


async def write(topic: Topic, peer: Peer) -> None:
    while not topic.is_over:
        body = b"%s:%d" % (topic.name.encode(), topic.sent) + b"." * (topic.sent % 7 * 300)
        answer = await peer.send(
            topic.name, body, queue_id=topic.sent % QUEUES, properties=f"KEYS\x01{topic.sent}"
        )
        # Between deletion and creation the template makes the topic. A send that waits for that
        # while the next deletion comes is refused, and nothing was stored.
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            topic.sent += 1


async def read(topic: Topic, peer: Peer) -> None:
    offset = 0
    while not topic.is_over:
        buried = topic.buried
        answer = await peer.pull(topic.name, 0, offset, suspend_ms=50 if offset % 2 else 0)
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_records(answer.body):
                topic.check(message.body, buried)
                topic.pulled += 1
        offset = int(answer.ext_fields.get("nextBeginOffset", 0))


async def look(topic: Topic, peer: Peer) -> int:
    """Read the whole topic as it is now; how many messages it had."""
    count = 0
    for queue_id in range(QUEUES):
        buried, offset = topic.buried, 0
        while True:
            answer = await peer.pull(topic.name, queue_id, offset)
            if answer.code != ResponseCode.SUCCESS:
                break
            for message in decode_records(answer.body):
                topic.check(message.body, buried)
                assert (message.topic, message.queue_offset) == (topic.name, offset)
                offset += 1
                count += 1
    return count


async def delete(topic: Topic, peer: Peer) -> None:
    sent = topic.sent
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic.name})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    topic.buried = sent


async def own(topic: Topic, peer: Peer, lives: int) -> None:
    for life in range(lives):
        least = topic.buried + LIVE_MESSAGES
        # The reader has its turn in the first life at least.
        await until(lambda least=least, life=life: topic.sent >= least and (life or topic.pulled))
        await delete(topic, peer)
        if life % 2:
            assert (await peer.create_topic(topic.name, QUEUES)).code == ResponseCode.SUCCESS
        if life % 4 == 0:
            await look(topic, peer)


async def live(up: Up, topics: list[Topic], lives: int, *, then_kill: bool) -> None:
    """So many lives of each topic; at the end the broker is killed amid the writes."""
    async with contextlib.AsyncExitStack() as stack:

        async def peer() -> Peer:
            return Peer(up.broker, await stack.enter_async_context(RemotingClient()))

        load = []
        for topic in topics:
            topic.is_over = False
            load += [
                asyncio.create_task(write(topic, await peer())),
                asyncio.create_task(read(topic, await peer())),
            ]
        owners = [asyncio.create_task(own(topic, await peer(), lives)) for topic in topics]
        gathered = asyncio.gather(*owners)
        failed = asyncio.gather(*load)
        await asyncio.wait([gathered, failed], return_when=asyncio.FIRST_COMPLETED)
        assert not failed.done() or failed.exception() is None, failed.exception()
        await gathered
        if then_kill:
            up.kill()
        for topic in topics:
            topic.is_over = True
        for outcome in await asyncio.gather(*load, return_exceptions=True):
            if not (then_kill and isinstance(outcome, RemotingError)):
                assert outcome is None, outcome


def queue_folders(up: Up) -> list[str]:
    return sorted(path.name for path in (up.data / "store" / "consumequeue").iterdir())


@pytest.mark.parametrize("kernel", KERNELS)
async def test_no_deleted_message_is_ever_seen_again(kernel: str, tmp_path: Path) -> None:
    topics = [Topic(f"Topic{number}") for number in range(TOPICS)]
    lives = max(DELETIONS // TOPICS // 2, 1)
    with Up(tmp_path, settings=SETTINGS, kernel=kernel) as up:
        await live(up, topics, lives, then_kill=True)
        up.start()
        async with RemotingClient() as client:
            peer = Peer(up.broker, client)
            for topic in topics:
                await peer.create_topic(topic.name, QUEUES)
                await look(topic, peer)
        await live(up, topics, lives, then_kill=False)
        assert all(topic.pulled > 0 for topic in topics)
        async with RemotingClient() as client:
            peer = Peer(up.broker, client)
            for topic in topics:
                await delete(topic, peer)
            assert not [name for name in queue_folders(up) if name.startswith("Topic")]
        up.stop()
        up.start()
        async with RemotingClient() as client:
            peer = Peer(up.broker, client)
            for topic in topics:
                await peer.create_topic(topic.name, QUEUES)
                assert await look(topic, peer) == 0
