"""kill -9 amid ends of half messages, at each step: each half is ended once, and none is lost.

The steps are those of the log, since both kernels write final message and note one after the other:
a copy of the store ends behind each record that the end wrote, or within it. Beside it a broker is
really killed, with a request on its way.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.errors import KeroloxError
from kerolox.message import MessageId, encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.half_messages import (
    EndedHalves,
    HalfSelection,
    end_half_messages_request,
)
from kerolox.protocol.names import HALF_TOPIC, OP_HALF_TOPIC
from kerolox.protocol.records import encode_batch, parse_record
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.clients.requests import send_fields
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.broker.config import BrokerConfig
    from kerolox.protocol.command import RemotingCommand

pytestmark = pytest.mark.asyncio

GROUP, SINK = "sinks", "query/1/0/0"
HALVES = 3
LOG = "commitlog/00000000000000000000"
COMMIT, ROLLBACK = 8, 12


def request_of(start: int, stop: int, *, commit: bool = True) -> RemotingCommand:
    return end_half_messages_request(
        GROUP, start, stop, HalfSelection(attempts=[SINK]), commit=commit
    )


async def end_range(peer: Peer, start: int = 0, stop: int = 1 << 40) -> EndedHalves:
    request = request_of(start, stop)
    answer = await peer.ask(request.code, request.ext_fields, request.body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return EndedHalves.of(answer)


async def write_halves(peer: Peer, first: int, count: int) -> RemotingCommand:
    items = [
        (0, b"%d" % number, b"UNIQ_KEY\x01u%d" % number) for number in range(first, first + count)
    ]
    text = encode_properties({"TRAN_MSG": "true", "PGROUP": GROUP, "KEROLOX_SINK": SINK})
    fields = send_fields(b="T", e=2, i=text, f=4, m="true")
    answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def all_of(peer: Peer, topic: str, queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while messages := await peer.messages(topic, queue_id, len(found)):
        found += [message.body for message in messages]
    return found


def cuts(log: bytes, start: int) -> list[int]:
    """Ends of the log behind each record from ``start`` on, and within each."""
    found, position = [start], start
    while (record := parse_record(log, position, len(log))) is not None:
        found += [position + 20, position + record.size - 1, position + record.size]
        position += record.size
    return found


def entries(data: Path) -> int:
    """How many final messages are in their queue, as its file says."""
    files = list(data.rglob("consumequeue/T/2/*"))
    queue = files[0].read_bytes() if files else b""
    return len(queue.rstrip(b"\0")) // 20


def copy_cut(store: Path, folder: Path, end: int) -> None:
    """The store as a kill leaves it that came when the log was so long."""
    shutil.copytree(store, folder)
    log = folder / LOG
    data = log.read_bytes()
    log.write_bytes(data[:end] + bytes(len(data) - end))
    (folder / "abort").touch()


async def killed_store(config: BrokerConfig, kernel: str, *, by_range: bool, decision: int) -> int:
    """Write halves and end them; where the ends begin in the log."""
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        answer = await write_halves(peer, 0, HALVES)
        start = broker.parts.store.max_physical_offset
        if by_range:
            request = request_of(0, HALVES, commit=decision == COMMIT)
            await peer.ask(request.code, request.ext_fields, request.body)
            return start
        for offset, text in enumerate(answer.ext_fields["msgId"].split(",")):
            fields = {
                "producerGroup": GROUP,
                "tranStateTableOffset": offset,
                "commitLogOffset": MessageId.parse(text).physical_offset,
                "commitOrRollback": decision,
            }
            await peer.ask(RequestCode.END_TRANSACTION, fields)
        return start


@pytest.mark.parametrize("by_range", [True, False], ids=["range", "one by one"])
@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_commit_that_was_killed_at_any_step_is_finished_once(
    kernel: str, tmp_path: Path, by_range: bool
) -> None:
    # Nothing but the log and its queues tells what was ended.
    options = {"message_index_enable": False}
    config = small_config(tmp_path, **options)
    start = await killed_store(config, kernel, by_range=by_range, decision=COMMIT)
    store = tmp_path / "store"
    for end in cuts((store / LOG).read_bytes(), start):
        copied = tmp_path / f"at-{end}"
        copy_cut(store, copied / "store", end)
        cut = small_config(copied, **options)
        async with Broker(cut, kernel=kernel) as broker, peer_of(broker) as peer:
            committed = len(await all_of(peer, "T", 2))
            noted = await all_of(peer, OP_HALF_TOPIC)
            assert len(noted) == committed, f"cut at {end}: a note is missing"
            done = await end_range(peer)
            assert (done.ended, done.ended_before) == (HALVES - committed, committed)
            assert (await end_range(peer)).ended == 0
            assert await all_of(peer, "T", 2) == [b"0", b"1", b"2"], f"cut at {end}"
            assert await all_of(peer, OP_HALF_TOPIC) == [b"0", b"1", b"2"]
        shutil.rmtree(copied)


@pytest.mark.parametrize("kernel", KERNELS)
async def test_what_a_killed_rollback_noted_is_not_committed_afterwards(
    kernel: str, tmp_path: Path
) -> None:
    config = small_config(tmp_path)
    start = await killed_store(config, kernel, by_range=True, decision=ROLLBACK)
    store = tmp_path / "store"
    for end in cuts((store / LOG).read_bytes(), start):
        copied = tmp_path / f"at-{end}"
        copy_cut(store, copied / "store", end)
        async with Broker(small_config(copied), kernel=kernel) as broker, peer_of(broker) as peer:
            noted = len(await all_of(peer, OP_HALF_TOPIC))
            assert (await end_range(peer)).ended == HALVES - noted
            assert await all_of(peer, "T", 2) == [b"0", b"1", b"2"][noted:]
        shutil.rmtree(copied)


@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_broker_that_is_killed_amid_requests_ends_each_half_once(
    kernel: str, tmp_path: Path
) -> None:
    count, step, kills = 600, 40, 3
    with ExitStack() as stack:
        up = stack.enter_context(Up(tmp_path, kernel=kernel))
        position, killed = 0, 0
        while position < count:
            client = RemotingClient()
            peer = Peer(up.broker, client)
            try:
                if position == 0:
                    await peer.create_topic("T")
                    for first in range(0, count, 200):
                        await write_halves(peer, first, 200)
                for start in range(position, count, step):
                    position = start
                    if killed < kills and start // step % 4 == 3:
                        killed += 1
                        asking = asyncio.ensure_future(end_range(peer, start, count))
                        wanted = start + 3 * killed
                        await until(lambda wanted=wanted: entries(tmp_path) >= wanted)
                        up.kill()
                        with suppress(KeroloxError):
                            await asking
                        up.start()
                        break
                    await end_range(peer, start, start + step)
                else:
                    position = count
            finally:
                await client.close()
        async with RemotingClient() as client:
            peer = Peer(up.broker, client)
            done = await end_range(peer)
            assert (done.ended, done.ended_before) == (0, count)
            found = Counter(await all_of(peer, "T", 2))
            assert len(await all_of(peer, HALF_TOPIC)) == count
            assert Counter(await all_of(peer, OP_HALF_TOPIC)) == found
    assert killed == kills
    assert found == Counter(b"%d" % number for number in range(count))
