"""Both ends of the wire of brokers with a controller, on logs in memory. Records are lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.broker.replication import comparing
from kerolox.broker.replication.auto_switch import SlaveHandshake, encode_report
from kerolox.broker.replication.auto_switch_links import SyncMasterLink, SyncSlaveLink
from kerolox.broker.replication.comparing import DivergedError, LogGoneError
from kerolox.broker.replication.log_epochs import LogEpochs
from kerolox.broker.replication.master import LogRange
from kerolox.broker.replication.wire import ReplicationError, ReplicationSettings
from kerolox.errors import StoreError
from kerolox.store.log.epochs import EpochFile, EpochStart, EpochTable

from .memory_log import FILE_SIZE, MemoryLog

SETTINGS = ReplicationSettings(heartbeat_ms=50, housekeeping_ms=1_000, batch_bytes=64)
OLD = b"".join(b"old %03d\n" % number for number in range(20))
NEW = b"".join(b"new %03d\n" % number for number in range(20))


@pytest.fixture(autouse=True)
def lines_are_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kerolox.broker.replication.slave.holds_record", lambda log, begin, end: begin < end
    )
    monkeypatch.setattr(comparing, "holds_record", lambda log, begin, end: begin < end)


class Master:
    """A master's log, its epochs, and what its slaves say."""

    def __init__(self, log: MemoryLog, *starts: tuple[int, int], confirmed: int = 0) -> None:
        self.log = log
        self.table = EpochTable(EpochStart(*each) for each in starts)
        self.confirmed = confirmed
        self.broker_ids: list[int] = []

    def connected(self, link: SyncSlaveLink) -> None:
        self.broker_ids.append(link.broker_id)

    def sent(self, link: SyncSlaveLink) -> None:
        pass

    def range(self) -> LogRange:
        return LogRange(self.log.min_physical_offset, self.log.max_physical_offset)


class Slave:
    def __init__(self, folder: Path, log: MemoryLog, *starts: tuple[int, int]) -> None:
        self.log = log
        self.path = folder / "epochFileCheckpoint"
        EpochFile(self.path).save(EpochTable(EpochStart(*each) for each in starts))
        self.epochs = LogEpochs(EpochFile(self.path))
        self.confirmed: list[int] = []

    @property
    def kept(self) -> list[EpochStart]:
        """What is on the disk."""
        return EpochFile(self.path).load().starts


def linked(
    master: Master, slave: Slave, *, epoch: int = 0, broker_id: int = 2
) -> tuple[SyncSlaveLink, SyncMasterLink]:
    above = SyncSlaveLink(SETTINGS, FILE_SIZE, 0, master)
    below = SyncMasterLink(
        slave.log,
        FILE_SIZE,
        SETTINGS,
        0,
        100,
        epochs=slave.epochs,
        handshake=SlaveHandshake(broker_id),
        epoch=epoch,
        on_confirmed=slave.confirmed.append,
    )
    return above, below


def run(master: Master, above: SyncSlaveLink, below: SyncMasterLink, first: bytes = b"") -> None:
    """Carry bytes until neither end has any."""
    up, down = first or below.start(), b""
    while up or down:
        if up:
            down += above.received(up, master.range(), 0)
            up = b""
        while (part := above.transfer(master.log.max_physical_offset)) is not None:
            down += above.sent(part[1], 0) + master.log.read_log(*part)
        if down:
            up, down = below.received(down, 0), b""


def test_an_empty_slave_gets_the_log_and_its_epochs(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD + NEW), (1, 0), (2, len(OLD)), confirmed=len(OLD))
    slave = Slave(tmp_path, MemoryLog())
    above, below = linked(master, slave, epoch=2)
    run(master, above, below)
    assert slave.log.data == master.log.data
    assert slave.kept == master.table.starts
    assert slave.confirmed[-1] == len(OLD)
    assert (above.acknowledged, master.broker_ids) == (len(OLD + NEW), [2])


def test_a_slave_goes_on_where_both_logs_are_equal(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD + NEW), (1, 0), (4, len(OLD)))
    slave = Slave(tmp_path, MemoryLog(data=OLD), (1, 0))
    above, below = linked(master, slave)
    run(master, above, below)
    assert slave.log.data == master.log.data
    assert slave.kept == master.table.starts


def test_a_slave_has_all_when_it_has_what_its_master_had_at_the_handshake(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD + NEW), (1, 0))
    above, below = linked(master, Slave(tmp_path, MemoryLog(data=OLD), (1, 0)))
    up = below.received(above.received(below.start(), master.range(), 0), 0)
    above.received(up, master.range(), 0)
    seen = []
    while (part := above.transfer(master.log.max_physical_offset)) is not None:
        below.received(above.sent(part[1], 0) + master.log.read_log(*part), 0)
        seen.append((below.is_equal, below.has_all))
    assert (True, False) in seen
    assert seen[-1] == (True, True)
    assert (True, True) not in seen[:-1]


def test_an_epoch_without_a_record_is_given_up(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD + NEW), (1, 0), (4, len(OLD)))
    slave = Slave(tmp_path, MemoryLog(data=OLD), (1, 0), (3, len(OLD)))
    run(master, *linked(master, slave))
    assert slave.kept == master.table.starts


def test_what_another_master_wrote_is_to_be_cut_off(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD + NEW), (1, 0), (3, len(OLD)))
    slave = Slave(tmp_path, MemoryLog(data=OLD + OLD), (1, 0), (2, len(OLD)))
    with pytest.raises(DivergedError, match="was written by another master") as caught:
        run(master, *linked(master, slave))
    assert caught.value.equal_to == len(OLD)
    assert slave.kept == [(1, 0), (2, len(OLD))]


def test_a_longer_log_of_one_epoch_is_to_be_cut_off(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD), (1, 0))
    slave = Slave(tmp_path, MemoryLog(data=OLD + NEW), (1, 0))
    with pytest.raises(DivergedError) as caught:
        run(master, *linked(master, slave))
    assert caught.value.equal_to == len(OLD)


def test_other_bytes_in_one_epoch_are_found(tmp_path: Path) -> None:
    """A master that crashed with its machine went on in its epoch, without its end."""
    master = Master(MemoryLog(data=OLD + NEW), (1, 0))
    slave = Slave(tmp_path, MemoryLog(data=OLD + OLD[:40]), (1, 0))
    with pytest.raises(DivergedError, match="differ") as caught:
        run(master, *linked(master, slave))
    assert caught.value.equal_to == len(OLD)


def test_a_log_that_is_another_one_from_its_begin_on_is_left_alone(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=NEW), (1, 0), (3, 8))
    slave = Slave(tmp_path, MemoryLog(begin=100, data=OLD), (1, 0), (2, 16))
    with pytest.raises(LogGoneError):
        run(master, *linked(master, slave))


def test_a_master_of_an_older_epoch_is_not_followed(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=NEW), (1, 0))
    slave = Slave(tmp_path, MemoryLog(data=OLD), (1, 0))
    with pytest.raises(ReplicationError, match="its epoch is 1, and the controller"):
        run(master, *linked(master, slave, epoch=2))
    assert slave.log.data == OLD


def test_logs_without_epochs_are_compared_by_their_bytes(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD + NEW), (1, 0))
    slave = Slave(tmp_path, MemoryLog(data=OLD))
    run(master, *linked(master, slave))
    assert slave.log.data == master.log.data
    assert slave.kept == [(1, 0)]


def test_an_epoch_is_on_the_disk_before_its_first_record(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD), (1, 0))
    slave = Slave(tmp_path, MemoryLog())
    above, below = linked(master, slave)
    run(master, above, below)
    master.log.data += NEW
    master.table.begin(2, len(OLD))
    assert above.transfer(len(OLD + NEW)) == (len(OLD), 64)
    below.received(above.sent(64, 0), 0)
    assert slave.kept == master.table.starts
    assert slave.log.data == OLD


def test_a_frame_is_of_one_epoch(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD), (1, 0), (2, 40))
    slave = Slave(tmp_path, MemoryLog())
    above, below = linked(master, slave)
    above.received(below.start() + encode_report(0), master.range(), 0)
    assert above.transfer(len(OLD)) == (0, 40)


def test_a_heartbeat_confirms(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD), (1, 0))
    slave = Slave(tmp_path, MemoryLog())
    above, below = linked(master, slave)
    run(master, above, below)
    master.confirmed = 80
    assert not above.heartbeat(40)
    below.received(above.heartbeat(50), 50)
    assert slave.confirmed[-1] == 80


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (encode_report(0), "before it said which broker"),
        (SlaveHandshake(2).encode() * 2, "says twice"),
        (SlaveHandshake(2).encode() + encode_report(10_000), "its log reaches 10000"),
        (SlaveHandshake(0).encode(), "says twice which broker it is, or that it is none"),
    ],
)
def test_what_no_slave_says_ends_its_connection(data: bytes, fault: str) -> None:
    master = Master(MemoryLog(data=OLD), (1, 0))
    with pytest.raises(ReplicationError, match=fault):
        SyncSlaveLink(SETTINGS, FILE_SIZE, 0, master).received(data, master.range(), 0)


def test_a_slave_reports_no_more_than_it_was_sent(tmp_path: Path) -> None:
    master = Master(MemoryLog(data=OLD), (1, 0))
    above, below = linked(master, Slave(tmp_path, MemoryLog()))
    run(master, above, below)
    with pytest.raises(ReplicationError, match="was sent no more than"):
        above.received(encode_report(len(OLD) + 8), master.range(), 0)


def test_epochs_of_the_file_before_the_last_are_not_relied_on(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    for count in (1, 2):
        EpochFile(path).save(EpochTable(EpochStart(each, each * 8) for each in range(count)))
    path.write_bytes(b"torn")
    with pytest.raises(StoreError, match="may lack an epoch"):
        LogEpochs(EpochFile(path))
