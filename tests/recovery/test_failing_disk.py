"""Disks that are full, read-only or broken, under a running broker.

Each time: what can't be stored is refused with RocketMQ's code and a reason, what was acknowledged
is read on, the process lives, and once the disk is well again the store is as it should be.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import RemotingError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import Peer
from tests.support.eventually import until
from tests.support.faults.shim import Faults
from tests.support.faults.small_disk import disk_kinds, small_disk
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up
from tests.support.stores.inspected import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kerolox.protocol.command import RemotingCommand

TOPICS = ("Left", "Right")
QUEUES = 2
SENDS_MAX = 2_000
"""More than fits into pages that were reserved before the disk failed."""
REFUSED = 20
"""Refusals in a row, so that every file had its turn."""
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 18,
    "mappedFileSizeConsumeQueue": 1_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "flushIntervalCommitLog": 10,
    "flushCommitLogLeastPages": 0,
    "flushIntervalConsumeQueue": 10,
    "flushConsumeQueueLeastPages": 0,
    "flushConsumeQueueThoroughInterval": 20,
    "maxMessageSize": 65_536,
    "autoCreateTopicEnable": "false",
}
STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)

pytestmark = pytest.mark.timeout(600)


class Load:
    """Sends numbered messages and knows which ones were acknowledged, and where."""

    def __init__(self, up: Up, client: RemotingClient) -> None:
        self.up = up
        self.peer = Peer(up.broker, client)
        self.sent = 0
        self.stored: dict[tuple[str, int, int], bytes] = {}
        self.refusals: Counter[int] = Counter()
        self.remarks: list[str] = []

    async def prepare(self) -> None:
        for topic in TOPICS:
            assert (await self.peer.create_topic(topic, QUEUES)).code == ResponseCode.SUCCESS

    async def send(self) -> int:
        """One more message; the code of the answer."""
        number, self.sent = self.sent, self.sent + 1
        topic, queue_id = TOPICS[number % 2], number // 2 % QUEUES
        body = b"%d|" % number + b"x" * (number * 37 % 900)
        answer = await self.peer.send(
            topic, body, queue_id=queue_id, properties=f"KEYS\x01key{number}"
        )
        if answer.code in STORED:
            key = (topic, queue_id, int(answer.ext_fields["queueOffset"]))
            assert key not in self.stored, f"{key} was given twice"
            self.stored[key] = body
        else:
            self.refusals[answer.code] += 1
            self.remarks.append(answer.remark or "")
        return answer.code

    async def send_all(self, count: int) -> None:
        for _ in range(count):
            assert await self.send() == ResponseCode.SUCCESS, self.remarks[-1]

    async def send_until_refused(self) -> None:
        """Go on until nothing is taken any more, and the codes of that stand in ``refusals``."""
        self.refusals.clear()
        self.remarks.clear()
        in_a_row = 0
        for _ in range(SENDS_MAX):
            in_a_row = 0 if await self.send() in STORED else in_a_row + 1
            if in_a_row == REFUSED:
                return
        raise AssertionError(f"{SENDS_MAX} messages were stored on a disk that takes none")

    async def send_again(self) -> None:
        """The disk is well: sends succeed without a restart."""

        async def is_taken() -> bool:
            return await self.send() == ResponseCode.SUCCESS

        await until(is_taken)
        await self.send_all(50)

    async def check_reads(self) -> None:
        """All that was acknowledged is there; queues are dense."""
        found = {}
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                offset = 0
                while (answer := await self._pull(topic, queue_id, offset)).body:
                    for message in decode_records(answer.body):
                        assert message.queue_offset == offset
                        assert (message.topic, message.queue_id) == (topic, queue_id)
                        found[topic, queue_id, offset] = message.body
                        offset += 1
        lost = {key: body for key, body in self.stored.items() if found.get(key) != body}
        assert not lost, f"{len(lost)} of {len(self.stored)} lost, first {next(iter(lost))}"

    async def _pull(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        answer = await self.peer.pull(topic, queue_id, offset)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), answer.remark
        return answer

    async def has_key(self, key: tuple[str, int, int]) -> bool:
        """Whether a message is found by its key."""
        body = self.stored[key]
        fields = {
            "topic": key[0],
            "key": f"key{body.split(b'|')[0].decode()}",
            "maxNum": 8,
            "beginTimestamp": 0,
            "endTimestamp": 1 << 62,
        }
        answer = await self.peer.ask(RequestCode.QUERY_MESSAGE, fields)
        return [message.body for message in decode_records(answer.body)] == [body]

    async def check_keys(self) -> None:
        """Every seventh message is found by its key, once; so is the last."""
        for key in [*list(self.stored)[::7], next(reversed(self.stored))]:
            await until(lambda key=key: self.has_key(key))

    def check_refusals(self, *codes: int, reason: str = "") -> None:
        assert set(self.refusals) == set(codes), (self.refusals, self.remarks[-1])
        assert all(reason in remark for remark in self.remarks), self.remarks[-1]


@contextlib.asynccontextmanager
async def load_on(up: Up) -> AsyncIterator[Load]:
    async with RemotingClient() as client:
        load = Load(up, client)
        await load.prepare()
        yield load
        assert up.process is not None
        assert up.process.poll() is None, up.log.read_text()


async def after_a_start(up: Up, load: Load) -> None:
    """Start, compare; the files are clean after the stop."""
    up.start()
    async with RemotingClient() as client:
        load.peer = Peer(up.broker, client)
        await load.check_reads()
        await load.send_all(10)
        await load.check_reads()
        await load.check_keys()
    up.stop()
    assert check(up.data / "store").findings.kept == []


async def after_a_kill(up: Up, load: Load) -> None:
    """Kill, start, compare."""
    up.kill()
    await after_a_start(up, load)


@pytest.mark.parametrize("kind", disk_kinds())
@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_full_disk_refuses_writes_and_nothing_else(
    kernel: str, kind: str, tmp_path: Path
) -> None:
    with small_disk(kind, tmp_path / "up" / "store", tmp_path) as disk:
        up = Up(tmp_path / "up", settings=SETTINGS, kernel=kernel, environment=disk.environment)
        with up:
            async with load_on(up) as load:
                await load.send_all(150)
                await load.check_keys()
                disk.fill()
                await load.send_until_refused()
                assert set(load.refusals) <= {
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    ResponseCode.SYSTEM_ERROR,
                }
                assert all("No space left" in remark for remark in load.remarks), load.remarks[-1]
                answer = await load.peer.create_topic("Third", QUEUES)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "No space left" in (answer.remark or "")
                await load.check_reads()
                await until(lambda: "cleaning: store" in up.log.read_text())
                disk.free()
                await load.send_again()
                await until(lambda: "can be written again" in up.log.read_text())
                await load.check_reads()
                await load.check_keys()
                await until(lambda: '"Third"' in topics_of(up))
                disk.fill()
                await load.send_until_refused()
            up.kill()
            up.start()
            async with RemotingClient() as client:
                load.peer = Peer(up.broker, client)
                await load.check_reads()
                disk.free()
                await load.send_again()
            await after_a_kill(up, load)


def topics_of(up: Up) -> str:
    return (up.data / "store" / "config" / "topics.json").read_text()


def everywhere(part: str, name: str, calls: str) -> list[str]:
    return [f"{call}:{part}:*:{name}" for call in calls.split()]


WRITES = "pwrite write fallocate"
PARTS: dict[str, tuple[list[str], str, set[int]]] = {
    "the log breaks": (
        [*everywhere("/commitlog/", "EIO", WRITES), "madvise:/commitlog/:*:EFAULT"],
        "Input/output error",
        {ResponseCode.SERVICE_NOT_AVAILABLE},
    ),
    "no new file of the log": (
        everywhere("/commitlog/", "ENOSPC", "ftruncate"),
        "No space left",
        {ResponseCode.SYSTEM_ERROR},
    ),
    "queues are full": (
        [*everywhere("/consumequeue/", "ENOSPC", WRITES), "madvise:/consumequeue/:*:ENOSPC"],
        "No space left",
        {ResponseCode.SERVICE_NOT_AVAILABLE},
    ),
    "queues are full on a system that gives no pages ahead": (
        [*everywhere("/consumequeue/", "ENOSPC", WRITES), "madvise:/store/:*:EINVAL"],
        "No space left",
        {ResponseCode.SERVICE_NOT_AVAILABLE},
    ),
    "read-only": (
        [
            *everywhere("/store/", "EROFS", f"{WRITES} create ftruncate rename unlink mkdir"),
            "madvise:/store/:*:EROFS",
        ],
        "Read-only file system",
        {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR},
    ),
}


@pytest.mark.parametrize("kernel", KERNELS)
async def test_errors_of_writes_are_answered_and_forgotten_when_they_end(
    kernel: str, tmp_path: Path
) -> None:
    faults = Faults(tmp_path)
    with Up(tmp_path, settings=SETTINGS, kernel=kernel, environment=faults.environment) as up:
        async with load_on(up) as load:
            for name, (rules, reason, codes) in PARTS.items():
                await load.send_all(30)
                faults.set(*rules)
                await load.send_until_refused()
                assert set(load.refusals) <= codes, (name, load.refusals, load.remarks[-1])
                assert str(up.data / "store") in load.remarks[-1]
                assert reason in load.remarks[-1], (name, load.remarks[-1])
                await load.check_reads()
                faults.clear()
                await load.send_again()
            await load.check_reads()
            await load.check_keys()
        await after_a_kill(up, load)


@pytest.mark.parametrize("kernel", KERNELS)
async def test_what_only_the_log_is_needed_for_does_not_stop_the_writes(
    kernel: str, tmp_path: Path
) -> None:
    faults = Faults(tmp_path)
    with Up(tmp_path, settings=SETTINGS, kernel=kernel, environment=faults.environment) as up:
        async with load_on(up) as load:
            await load.send_all(10)
            faults.set(
                *everywhere("/index", "ENOSPC", f"{WRITES} mkdir ftruncate"),
                "madvise:/index/:*:EFAULT",
                *everywhere("/store/checkpoint", "ENOSPC", "pwrite write"),
            )
            await load.send_all(450)
            await load.check_reads()
            await until(lambda: "index can't be written" in up.log.read_text())
            faults.clear()
            await load.check_keys()
        up.stop()
        assert check(up.data / "store").findings.kept == []


@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_failed_flush_is_never_believed_again(kernel: str, tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    settings = {**SETTINGS, "flushDiskType": "SYNC_FLUSH"}
    with Up(tmp_path, settings=settings, kernel=kernel, environment=faults.environment) as up:
        async with load_on(up) as load:
            await load.send_all(30)
            # One error. The system then takes the pages for clean: the next call would succeed.
            faults.set("msync:/commitlog/0:1:EIO", "fdatasync:/commitlog/0:1:EIO")
            assert await load.send() == ResponseCode.FLUSH_DISK_TIMEOUT
            faults.clear()
            await load.send_until_refused()
            load.check_refusals(ResponseCode.SERVICE_NOT_AVAILABLE, reason="restart")
            assert "Input/output error" in load.remarks[-1]
            await load.check_reads()
            await until(lambda: "no more writes" in up.log.read_text())
        up.stop()
        assert (up.data / "store" / "abort").exists()
        await after_a_start(up, load)


@pytest.mark.parametrize("kernel", KERNELS)
async def test_queues_that_fail_to_flush_stop_the_writes_an_index_does_not(
    kernel: str, tmp_path: Path
) -> None:
    faults = Faults(tmp_path)
    with Up(tmp_path, settings=SETTINGS, kernel=kernel, environment=faults.environment) as up:
        async with load_on(up) as load:
            await load.send_all(30)
            faults.set("msync:/index/:1:EIO", "fdatasync:/index/:1:EIO")
            await load.send_all(500)
            await until(lambda: "goes on after a restart" in up.log.read_text())
            await load.send_all(50)
            faults.set("msync:/consumequeue/:1:EIO", "fdatasync:/consumequeue/:1:EIO")
            await load.send_until_refused()
            load.check_refusals(ResponseCode.SERVICE_NOT_AVAILABLE, reason="restart")
            faults.clear()
            await load.check_reads()
        await after_a_kill(up, load)


@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_cold_send_does_not_wait_for_a_flush_that_failed(
    kernel: str, tmp_path: Path
) -> None:
    faults = Faults(tmp_path)
    settings = {**SETTINGS, "flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 60_000}
    with Up(tmp_path, settings=settings, kernel=kernel, environment=faults.environment) as up:
        async with load_on(up) as load:
            await load.send_all(5)
            faults.set("msync:/commitlog/0:1:EIO", "fdatasync:/commitlog/0:1:EIO")
            # The client gives up long before ``syncFlushTimeout``.
            delayed = await load.peer.send(TOPICS[0], properties="DELAY\x011")
            assert delayed.code == ResponseCode.FLUSH_DISK_TIMEOUT
            await load.send_until_refused()


@pytest.mark.parametrize("kernel", KERNELS)
async def test_a_page_that_can_not_be_read_ends_the_broker_with_a_word(
    kernel: str, tmp_path: Path
) -> None:
    with Up(tmp_path, settings=SETTINGS, kernel=kernel) as up:
        async with RemotingClient() as client:
            load = Load(up, client)
            await load.prepare()
            await load.send_all(400)
            [path, *_] = sorted((up.data / "store" / "commitlog").iterdir())
            # What a bad sector does to who reads through a map: the pages behind are gone.
            os.truncate(path, 4_096)
            with pytest.raises(RemotingError):
                await load.check_reads()
        assert up.process is not None
        assert up.process.wait(10) == -signal.SIGBUS
        said = up.log.read_text()
        assert "Bus error" in said
        if kernel == "native":
            assert f"kerolox: {path}: byte " in said
            assert "kerolox store check" in said
        os.truncate(path, SETTINGS["mappedFileSizeCommitLog"])
        up.start()
