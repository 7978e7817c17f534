"""The audit of a store: nothing is said of a healthy one, and each damage is found and placed."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import ConfigError, StoreError
from kerolox.protocol.codes import MessageSysFlag
from kerolox.spark.jobs import silent
from kerolox.spark.jobs.audit import AuditOptions, audit
from kerolox.spark.jobs.audit.job import page
from kerolox.spark.jobs.report import render
from kerolox.store.layout import ENTRY, ENTRY_BYTES
from tests.support.stores.golden import copy_golden
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from kerolox.kernel.values import Appended

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")

MESSAGES = 300
LOG_FILE_BYTES = 64 * 1024
QUEUE_FILE_BYTES = 400


class Store:
    """A store of 300 messages in the queues T/0 and T/1."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.places: list[Appended] = []
        with opened(small_settings(folder)) as store:
            for number in range(MESSAGES):
                text = b"TAGS\x01t%d\x02UNIQ_KEY\x01U%d" % (number % 3, number % 299)
                self.places.append(put(store, "T", number % 2, b"%d " % number * 200, text))

    def behind_body(self, number: int) -> int:
        """Where the length of a message's topic stands."""
        return self.places[number].physical_offset + 88 + len(b"%d " % number * 200)

    def log(self, physical: int, data: bytes) -> None:
        """Write over the log."""
        start = physical // LOG_FILE_BYTES * LOG_FILE_BYTES
        self._write(self.root / "commitlog" / f"{start:020}", physical - start, data)

    def entry(self, queue_id: int, offset: int, data: bytes) -> None:
        """Write over an entry of a queue."""
        start = offset * ENTRY_BYTES // QUEUE_FILE_BYTES * QUEUE_FILE_BYTES
        path = self.root / "consumequeue" / "T" / str(queue_id) / f"{start:020}"
        self._write(path, offset * ENTRY_BYTES - start, data)

    def entry_of(self, number: int) -> tuple[int, int, int]:
        """What the entry of a message says."""
        queue_id, offset = number % 2, number // 2
        start = offset * ENTRY_BYTES // QUEUE_FILE_BYTES * QUEUE_FILE_BYTES
        path = self.root / "consumequeue" / "T" / str(queue_id) / f"{start:020}"
        return ENTRY.unpack_from(path.read_bytes(), offset * ENTRY_BYTES - start)

    def _write(self, path: Path, position: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)


def run(spark: SparkSession, root: Path, **options: int) -> Counter[tuple[str, str]]:
    """The findings: (kind, name of the file and byte)."""
    summary = audit(spark, AuditOptions(store=str(root), split_mib=1, **options), silent)
    assert summary.exit_code == (1 if summary.counts else 0)
    assert sum(summary.counts.values()) == len(summary.findings)
    assert "Audit of a store" in render(page(summary))
    return Counter(
        (each.kind, f"{Path(each.path).name}:{each.position}") for each in summary.findings
    )


def at(place: int, file_bytes: int) -> str:
    return f"{place // file_bytes * file_bytes:020}:{place % file_bytes}"


def test_a_healthy_store_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    found = audit(spark, AuditOptions(store=str(store.root)), silent)
    assert (found.counts, found.findings, found.exit_code) == ({}, (), 0)
    assert (found.records, found.queue_entries, found.queues) == (MESSAGES, MESSAGES, 2)
    assert (found.repeated_messages, found.reused_offsets, found.unqueued_records) == (1, 0, 0)


def test_the_java_broker_s_store_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    golden = copy_golden(tmp_path)
    found = audit(spark, AuditOptions(store=str(golden.folder / "store")), silent)
    assert found.counts == {}
    assert found.records >= len(list(golden.messages()))


def test_each_damage_is_found_and_placed(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    wanted: Counter[tuple[str, str]] = Counter()

    def in_log(number: int, kind: str, shift: int, data: bytes, *, entry: bool) -> None:
        """Damage a record; what is no record leaves a gap and an entry that names nothing."""
        physical = store.places[number].physical_offset
        store.log(physical + shift, data)
        wanted[kind, at(physical, LOG_FILE_BYTES)] += 1
        if entry:
            place = at(number // 2 * ENTRY_BYTES, QUEUE_FILE_BYTES)
            wanted["dangling entry", place] += 1
            wanted["gap", at((number // 2 + 1) * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1

    def in_header(number: int, shift: int, data: bytes) -> None:
        """Have a record say another place, or none: its entry does not fit, and it is missed."""
        store.log(store.places[number].physical_offset + shift, data)
        queue_place = number // 2 * ENTRY_BYTES
        wanted["wrong entry", at(queue_place, QUEUE_FILE_BYTES)] += 1
        wanted["gap", at(queue_place + ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1

    def in_queue(number: int, kind: str, change: Callable[[int, int, int], bytes]) -> None:
        store.entry(number % 2, number // 2, change(*store.entry_of(number)))
        wanted[kind, at(number // 2 * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1

    in_log(3, "crc", 200, b"?", entry=False)  # a byte of a body
    in_log(10, "crc", 8, b"\0\0\0\1", entry=False)  # the CRC itself
    in_log(21, "damage", 4, b"\0\0\0\0", entry=True)  # the magic code
    in_log(32, "damage", 0, b"\x7f\xff\xff\xff", entry=True)  # the size
    in_log(43, "damage", 28, struct.pack(">q", 1), entry=True)  # its own place
    in_log(54, "damage", 0, bytes(300), entry=True)  # zeros
    in_log(65, "damage", 84, b"\x7f\xff\xff\xff", entry=True)  # the length of the body
    in_header(76, 20, struct.pack(">q", 39))  # the queue offset is that of the next one
    in_header(87, 12, struct.pack(">i", 0))  # the queue is that of number 86
    wanted["wrong entry", at(43 * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1
    prepared = struct.pack(">i", MessageSysFlag.TRANSACTION_PREPARED)
    in_header(98, 36, prepared)
    store.log(store.places[-1].physical_offset + 36, prepared)  # nothing misses the last one
    wanted["wrong entry", at((MESSAGES // 2 - 1) * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1
    store.log(store.behind_body(109) + 1, b"U")  # the topic is one that is not there
    wanted["gap", at(55 * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1
    store.log(store.behind_body(198) + len(b"?T??TAGS?t"), b"?")
    wanted["wrong entry", at(99 * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1
    in_queue(110, "missing entry", lambda *_: bytes(ENTRY_BYTES))
    in_queue(121, "missing entry", lambda *_: ENTRY.pack(-5, 100, 0))
    in_queue(132, "missing entry", lambda place, _, code: ENTRY.pack(place, -1, code))
    in_queue(143, "wrong entry", lambda place, size, code: ENTRY.pack(place + 1, size, code))
    in_queue(154, "wrong entry", lambda place, size, code: ENTRY.pack(place, size - 1, code))
    in_queue(165, "wrong entry", lambda place, size, code: ENTRY.pack(place, size, code + 1))
    in_queue(176, "wrong entry", lambda *_: ENTRY.pack(*store.entry_of(178)))
    in_queue(187, "wrong entry", lambda _, size, code: ENTRY.pack(1 << 40, size, code))
    store.entry(0, MESSAGES // 2, ENTRY.pack(1 << 40, 100, 0))
    wanted["dangling entry", at(MESSAGES // 2 * ENTRY_BYTES, QUEUE_FILE_BYTES)] += 1
    assert run(spark, store.root) == wanted


def test_files_that_are_gone_or_odd_are_found(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = sorted(path.name for path in (store.root / "commitlog").iterdir())
    assert len(names) >= 4
    (store.root / "commitlog" / names[2]).unlink()
    (store.root / "commitlog" / "notes.txt").write_text("?")
    shutil.rmtree(store.root / "consumequeue" / "T" / "1")
    found = audit(spark, AuditOptions(store=str(store.root), top=3), silent)
    assert found.counts["file"] == 2
    assert found.counts["gap"] == 2
    lost = [each for each in store.places if each.physical_offset // LOG_FILE_BYTES == 2]
    left = [n for n, each in enumerate(store.places) if each not in lost]
    assert found.counts["missing entry"] == sum(number % 2 for number in left)
    assert found.counts["dangling entry"] == len(lost) - sum(
        store.places.index(each) % 2 for each in lost
    )
    assert len([each for each in found.findings if each.kind == "missing entry"]) == 3


def test_a_torn_tail_is_told_and_no_finding(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    last = store.places[-1].physical_offset
    store.log(last + 4, b"\0")
    found = audit(spark, AuditOptions(store=str(store.root)), silent)
    assert found.torn_tail_bytes > 0
    assert set(found.counts) <= {"dangling entry"}
    assert found.records == MESSAGES - 1


def test_what_is_no_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no store"):
        audit(spark, AuditOptions(store=str(tmp_path)), silent)
    with pytest.raises(ConfigError, match="--store"):
        AuditOptions(store=" ")
