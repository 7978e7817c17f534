"""``epochs_of_java/`` was written by the classes of RocketMQ 5.3.3: a file of epochs with the one
before it, and what ``findConsistentPoint`` says of two tables: each with the end of its log, then
the answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import StoreError
from kerolox.protocol.controller import EPOCHS_MAX
from kerolox.store.log.epochs import (
    EpochError,
    EpochFile,
    EpochStart,
    EpochTable,
    decode_epochs,
    encode_epochs,
)

OF_JAVA = Path(__file__).with_name("epochs_of_java")
NAME = "epochFileCheckpoint"
STARTS = [
    EpochStart(1, 0),
    EpochStart(2, 4096),
    EpochStart(7, 1 << 30),
    EpochStart(2147483647, 9223372036854775000),
]


@pytest.fixture
def file(tmp_path: Path) -> EpochFile:
    for name in (NAME, NAME + ".bak"):
        shutil.copy(OF_JAVA / name, tmp_path)
    return EpochFile(tmp_path / NAME)


def test_a_file_of_rocketmq_is_read_and_written_the_same(file: EpochFile) -> None:
    table = file.load()
    assert table.starts == STARTS
    former = file.path.read_bytes()
    file.save(table)
    assert file.path.read_bytes() == former
    assert file.path.with_name(NAME + ".bak").read_bytes() == former


def test_a_torn_file_leaves_the_former_one(file: EpochFile) -> None:
    whole = file.path.read_bytes()
    # The last line may lack its end: RocketMQ reads lines.
    for size in range(len(whole) - 1):
        file.path.write_bytes(whole[:size])
        assert file.load().starts == STARTS[:-1], size
    file.path.write_bytes(whole[:-1])
    assert file.load().starts == STARTS


def test_two_torn_files_are_an_error_that_says_what_to_do(file: EpochFile) -> None:
    for name in (NAME, NAME + ".bak"):
        file.path.with_name(name).write_bytes(b"2\n7\n1-0\n")
    with pytest.raises(StoreError, match=r"it has 1 epochs of 2; .* put a copy in its place"):
        file.load()


def test_no_file_is_an_empty_table_and_the_other_way_round(file: EpochFile) -> None:
    file.save(EpochTable())
    assert list(file.path.parent.iterdir()) == []
    assert file.load().starts == []
    assert file.load().last_epoch == -1


def test_a_crc_of_zero_is_not_checked_and_lines_may_end_as_in_windows() -> None:
    assert decode_epochs(b"2\r\n0\r\n1-0\r\n2-5\r\n").starts == [(1, 0), (2, 5)]
    unchanged = encode_epochs(EpochTable(STARTS))
    assert decode_epochs(unchanged.replace(b"\n", b"\r\n")).starts == STARTS


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it is empty"),
        (b"x\n0\n", "a count and a CRC"),
        (b"1", "a count and a CRC"),
        (b"1\n5\n1-0\n", "its CRC is"),
        (b"1\n0\n10\n", "'10' is no epoch with an offset"),
        (b"1\n0\n\xd9\xa1-0\n", "is no epoch"),
        (b"1\n0\n-1-0\n", "is no epoch"),
        (b"1\n0\n2147483648-0\n", "there is no epoch 2147483648"),
        (b"2\n0\n2-0\n2-5\n", "epoch 2 from offset 5 on can't follow epoch 2"),
        (b"2\n0\n1-5\n2-4\n", "can't follow"),
        (b"2\n0\n1-5\n2-5\n", "epochs 1 and 2 begin alike"),
        (b"1\n" * 3_000_000, "it has more than"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(EpochError, match=fault):
        decode_epochs(data)


def test_an_epoch_without_records_gives_way_to_the_next() -> None:
    table = EpochTable([EpochStart(1, 0), EpochStart(2, 8)])
    table.begin(3, 8)
    assert table.starts == [(1, 0), (3, 8)]
    for epoch, start in ((3, 9), (2, 9), (4, 7), (4, -1)):
        with pytest.raises(EpochError, match=f"epoch {epoch}"):
            table.begin(epoch, start)
    assert table.starts == [(1, 0), (3, 8)]


def test_a_table_keeps_the_latest_epochs() -> None:
    table = EpochTable(EpochStart(each, each) for each in range(EPOCHS_MAX + 2))
    assert len(table.starts) == EPOCHS_MAX
    assert table.starts[0] == (2, 2)
    assert decode_epochs(encode_epochs(table)).starts == table.starts


def test_a_log_that_loses_its_begin_keeps_the_epoch_that_it_begins_in() -> None:
    for begin, kept in ((0, 3), (3, 3), (4, 2), (7, 2), (8, 1), (99, 1)):
        table = EpochTable([EpochStart(1, 0), EpochStart(2, 4), EpochStart(3, 8)])
        table.forget_before(begin)
        assert len(table.starts) == kept, begin
    EpochTable().forget_before(5)


def test_two_logs_are_the_same_as_far_as_rocketmq_says() -> None:
    lines = (OF_JAVA / "common_ends.tsv").read_text().splitlines()
    assert len(lines) == 60
    for line in lines:
        ours, end, theirs, their_end, expected = line.split("\t")
        first, second = _table(ours), _table(theirs)
        found = first.common_end(int(end), second, int(their_end))
        assert (-1 if found is None else found) == int(expected), line
        assert second.common_end(int(their_end), first, int(end)) == found, line


def _table(text: str) -> EpochTable:
    pairs = (each.split("-") for each in text.split(","))
    return EpochTable(EpochStart(int(epoch), int(start)) for epoch, start in pairs)


class Replica:
    """A log whose bytes know their epoch and are all different."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.epochs = EpochTable()

    def cut_for(self, master: Replica) -> int:
        """Go back to what is the master's; where that is."""
        end = self.epochs.common_end(len(self.log), master.epochs, len(master.log)) or 0
        del self.log[end:]
        self.epochs.cut(end)
        return end

    def copy(self, master: Replica, count: int) -> None:
        for offset in range(self.cut_for(master), min(len(self.log) + count, len(master.log))):
            part = master.epochs.at(offset)
            assert part is not None
            if part.epoch > self.epochs.last_epoch:
                self.epochs.begin(*part)
            self.log.append(master.log[offset])


STEPS = st.lists(
    st.tuples(st.sampled_from(("elect", "write", "copy")), st.integers(0, 2), st.integers(0, 5)),
    max_size=40,
)


@given(STEPS)
def test_epochs_say_exactly_how_far_two_logs_are_the_same(
    steps: list[tuple[str, int, int]],
) -> None:
    replicas = [Replica() for _ in range(3)]
    master: int | None = None
    own: dict[int, int] = {}
    """Who takes itself for a master, and its epoch: a former one may go on to write in that."""
    epoch = written = 0
    for action, index, count in steps:
        replica = replicas[index]
        if action == "elect":
            epoch, master = epoch + 1, index
            own[index] = epoch
            replica.epochs.begin(epoch, len(replica.log))
        elif action == "write" and index in own:
            replica.log += [(own[index], written + each) for each in range(count)]
            written += count
        elif action == "copy" and master is not None and master != index:
            own.pop(index, None)
            replica.copy(replicas[master], count)
        for one in replicas:
            for offset, (its_epoch, _) in enumerate(one.log):
                part = one.epochs.at(offset)
                assert part is not None
                assert part.epoch == its_epoch
            for other in replicas:
                end = one.epochs.common_end(len(one.log), other.epochs, len(other.log)) or 0
                assert one.log[:end] == other.log[:end]
                assert one.log[end : end + 1] != other.log[end : end + 1] or end == min(
                    len(one.log), len(other.log)
                )
