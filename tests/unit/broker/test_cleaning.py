"""The cleaner of a broker, run by hand with a disk that the test makes up."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.broker.retention import DELETE_FILES_MAX
from kerolox.broker.services.cleaning import Cleaner
from kerolox.message import MessageId
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

LOG_FILE = 8 * 1024
BODY = b"x" * 1_000


class Disk:
    """A broker whose disk is as full as the test says, and its cleaner."""

    def __init__(self, broker: Broker) -> None:
        self.ratio = 0.5
        self.later_ms = 0
        self.cleaner = Cleaner(
            broker.parts.settings,
            broker.parts.store,
            lambda: broker.parts.now_ms() + self.later_ms,
            broker.parts.writing.gate.set_writable,
            lambda _path: self.ratio,
        )
        broker.parts.writing.cleaner = self.cleaner


def settings(**changes: object) -> dict[str, object]:
    return {
        "mapped_file_size_commit_log": LOG_FILE,
        "mapped_file_size_consume_queue": 400,
        "max_message_size": 4_096,
        "delete_commit_log_files_interval": 0,
        "delete_consume_queue_files_interval": 0,
        "redelete_hanged_file_interval": 0,
        **changes,
    }


@pytest_asyncio.fixture
async def broker(tmp_path: Path, kernel: str) -> AsyncIterator[Broker]:
    async with Broker(small_config(tmp_path, **settings()), kernel=kernel) as started:
        yield started


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with peer_of(broker) as client:
        yield client


@pytest.fixture
def disk(broker: Broker) -> Disk:
    made = Disk(broker)
    # Whatever the hour is: what is deleted is deleted for another reason.
    rules = made.cleaner.retention.rules
    made.cleaner.retention.rules = dataclasses.replace(rules, delete_when=frozenset())
    return made


async def fill(peer: Peer, count: int = 100, topic: str = "T") -> None:
    for number in range(count):
        answer = await peer.send(topic, b"%d" % number + BODY, queue_id=number % 2)
        assert answer.code == ResponseCode.SUCCESS


def log_names(broker: Broker) -> list[str]:
    last = broker.parts.store.log_files()[-1][1]
    names = (path.name for folder in broker.config.log_folders for path in folder.iterdir())
    # Without those that were made ahead.
    return sorted(name for name in names if int(name) <= last)


def queue_names(broker: Broker) -> list[str]:
    folder = broker.config.store_path_root_dir / "consumequeue" / "T" / "0"
    return sorted(path.name for path in folder.iterdir())


async def test_expired_files_go_ten_a_run_and_queues_follow(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    await fill(peer)
    before = len(broker.parts.store.log_files())
    assert before > DELETE_FILES_MAX + 2
    disk.cleaner.retention.delete_manually()
    await disk.cleaner.clean()
    assert len(broker.parts.store.log_files()) == before, "none is old enough"
    disk.later_ms = 73 * 3_600_000
    await disk.cleaner.clean()
    assert len(broker.parts.store.log_files()) == before - DELETE_FILES_MAX
    assert log_names(broker)[0] == f"{broker.parts.store.min_physical_offset:020d}"
    low, high = broker.parts.store.queue_bounds("T", 0)
    assert 0 < low < high == 50
    assert queue_names(broker)[0] == f"{low // 20 * 400:020d}"
    await disk.cleaner.clean()
    assert len(broker.parts.store.log_files()) == 1, "the last one stays"
    assert (await peer.send("T")).code == ResponseCode.SUCCESS


async def test_without_a_reason_nothing_goes(broker: Broker, peer: Peer, disk: Disk) -> None:
    await fill(peer)
    disk.later_ms = 73 * 3_600_000
    before = log_names(broker)
    await disk.cleaner.clean()
    assert log_names(broker) == before


async def test_the_first_that_is_not_expired_ends_the_run(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    await fill(peer)
    files = broker.parts.store.log_files()
    old = (broker.parts.now_ms() - 80 * 3_600_000) / 1_000
    for path, *_ in (files[0], files[1], files[4]):
        os.utime(path, (old, old))
    disk.ratio = 0.8
    await disk.cleaner.clean()
    assert broker.parts.store.log_files() == files[2:]


async def test_a_nearly_full_disk_takes_files_before_their_time(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    await fill(peer)
    before = len(broker.parts.store.log_files())
    disk.ratio = 0.85
    await disk.cleaner.clean()
    assert len(broker.parts.store.log_files()) == before
    disk.ratio = 0.86
    await disk.cleaner.clean()
    assert len(broker.parts.store.log_files()) == before - DELETE_FILES_MAX


async def test_a_full_disk_refuses_writes_with_code_14_and_reads_go_on(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    await fill(peer, 3)
    disk.ratio = 0.91
    await disk.cleaner.check_disk()
    for _ in range(2):
        answer = await peer.send("T", b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "disk is full [CL:  0.91 CQ:  0.91 INDEX:  0.91]" in (answer.remark or "")
    assert len(await peer.messages("T", 0)) == 2
    disk.ratio = 0.90
    await disk.cleaner.check_disk()
    assert (await peer.send("T", b"taken")).code == ResponseCode.SUCCESS
    assert [message.body[:5] for message in await peer.messages("T", 0)][-1] == b"taken"


async def test_a_file_that_can_t_be_deleted_is_tried_again_and_none_is_skipped(
    broker: Broker, peer: Peer, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(peer)
    first, second = (path for path, *_ in broker.parts.store.log_files()[:2])
    names = [os.path.basename(path) for path in (first, second)]
    unlink = os.unlink
    is_stuck = True

    def stuck(path: str, **more: Any) -> None:
        if path == first and is_stuck:
            raise OSError(errno.EIO, "Input/output error", path)
        unlink(path, **more)

    monkeypatch.setattr("kerolox.broker.services.cleaning.os.unlink", stuck)
    disk.ratio = 0.88
    for _ in range(2):
        await disk.cleaner.clean()
        assert log_names(broker)[:2] == names
        assert broker.parts.store.min_physical_offset == LOG_FILE
        disk.later_ms += 10
    is_stuck = False
    await disk.cleaner.clean()
    assert names[0] not in log_names(broker)
    disk.later_ms += 10
    await disk.cleaner.clean()
    assert names[1] not in log_names(broker)


async def test_operators_clean_through_their_commands(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    await fill(peer, 4, "Gone")
    await fill(peer, 4, "Unused")
    await fill(peer, 60)
    disk.later_ms = 73 * 3_600_000
    assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
    await disk.cleaner.clean()
    stored = {topic for topic, *_ in broker.parts.store.queues()}
    assert stored == {"Gone", "Unused", "T"}
    # The topic leaves the table without its queues, as after a lost topics.json.
    broker.parts.tables.topics.delete("Unused")
    assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
    assert {topic for topic, *_ in broker.parts.store.queues()} == {"Gone", "T"}
    assert (await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
    assert {topic for topic, *_ in broker.parts.store.queues()} == {"T"}
    assert (await peer.send("Gone")).ext_fields["queueOffset"] == "0", "it begins anew"
    assert len(await peer.messages("T", 0, broker.parts.store.queue_bounds("T", 0)[0])) > 0


async def test_halves_are_examined_after_expired_queues_were_deleted(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01nobody"
    for _ in range(2):
        sent = await peer.send("T", b"half", properties=half, f=4)
        end = {"tranStateTableOffset": sent.ext_fields["queueOffset"], "commitOrRollback": 12}
        place = MessageId.parse(sent.ext_fields["msgId"]).physical_offset
        await peer.ask(37, {**end, "producerGroup": "nobody", "commitLogOffset": place})
    await broker.parts.writing.transactions.check()
    assert broker.parts.writing.transactions.open_halves == 0
    await fill(peer, 60)
    disk.later_ms = 73 * 3_600_000
    broker.parts.writing.cleaner.retention.delete_manually()
    await disk.cleaner.clean()
    await disk.cleaner.delete_expired_queues()
    assert (await peer.send("T", b"half", properties=half, f=4)).code == ResponseCode.SUCCESS
    assert broker.parts.writing.transactions.open_halves == 1


async def test_the_runtime_info_tells_how_full_the_disks_are(
    broker: Broker, peer: Peer, disk: Disk
) -> None:
    disk.ratio = 0.42
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.loads(answer.body)["table"]
    (folder,) = broker.config.log_folders
    assert table["commitLogDiskRatio"] == table[f"commitLogDiskRatio_{folder}"] == "0.42"
    assert table["consumeQueueDiskRatio"] == "0.42"
    assert table["commitLogMinOffset"] == "0"


async def test_the_cleaner_runs_by_itself(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.broker.FIRST_CLEAN_SECONDS", 0.01)
    monkeypatch.setattr("kerolox.broker.broker.FIRST_CHECK_SECONDS", 0.01)
    config = small_config(
        tmp_path, **settings(clean_resource_interval=10, file_reserved_time=0, delete_when="0")
    )
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await fill(peer, 40)
        assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        await until(lambda: len(broker.parts.store.log_files()) == 1)


def told(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    """What the cleaner said since this was asked last."""
    found = [
        record.getMessage()
        for record in caplog.records
        if record.name == "kerolox.broker.services.cleaning" and record.levelname == level
    ]
    caplog.clear()
    return found


async def test_files_that_go_before_their_time_are_a_warning_that_says_what_is_lost(
    broker: Broker, peer: Peer, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await fill(peer)
    disk.ratio = 0.86
    await disk.cleaner.clean()
    [line] = [line for line in told(caplog, "WARNING") if line.startswith("deleted ")]
    lost = broker.parts.store.min_physical_offset
    assert line.startswith(f"deleted {DELETE_FILES_MAX} commit log files before their time")
    assert "fileReservedTime=72 hours" in line
    assert "the disk is 86% full, more than 85% (diskSpaceCleanForciblyRatio)" in line
    assert f"are lost, offsets 0 to {lost} ({lost} bytes), read or not" in line
    # Those that were due are no more than a line.
    disk.later_ms = 73 * 3_600_000
    await disk.cleaner.clean()
    assert not [line for line in told(caplog, "WARNING") if line.startswith("deleted ")]


async def test_a_disk_that_fills_up_is_told_once_with_what_comes_next(
    broker: Broker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    disk.ratio = 0.75
    await disk.cleaner.check_disk()
    assert told(caplog, "WARNING") == []
    for ratio in (0.76, 0.80, 0.75, 0.76, 0.74):
        disk.ratio = ratio
        await disk.cleaner.check_disk()
    [line] = told(caplog, "WARNING")
    assert f"(log: {broker.config.log_folders[0]} 76%; queues: 76%)" in line
    assert "more than 75% are used (diskMaxUsedSpaceRatio)" in line
    assert "above 85% (diskSpaceCleanForciblyRatio) younger ones go too" in line
    assert "above 90% (diskSpaceWarningLevelRatio) sends are refused" in line
    disk.ratio = 0.73
    await disk.cleaner.check_disk()
    [line] = told(caplog, "INFO")
    assert "below diskMaxUsedSpaceRatio again" in line
    disk.ratio = 0.91
    await disk.cleaner.check_disk()
    assert len(told(caplog, "WARNING")) == 1


async def test_that_no_file_may_go_is_told_once(
    broker: Broker, peer: Peer, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(peer)
    disk.ratio = 0.80
    for _ in range(3):
        await disk.cleaner.clean()
    assert (
        len([line for line in told(caplog, "WARNING") if "no commit log file may go" in line]) == 1
    )
