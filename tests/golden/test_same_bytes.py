"""The golden store's messages, stored anew by each kernel at the same times: the same bytes.

Nothing is masked: hosts, times and flags are arguments of an append, and the clock stands still.
Only the names of index files differ, since they are the time at which a file was made.
"""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kerolox.inspect.check import check_store
from kerolox.inspect.findings import Findings
from kerolox.inspect.log_walk import LogWalk
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.kernel.delay_levels import DEFAULT_DELAY_LEVELS, delay_levels_ms
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Batch, Record
from kerolox.message import unpack_host
from kerolox.protocol.records import RecordView
from kerolox.store.layout import record_tags_code
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS, MODULES
from tests.support.stores.bench import files
from tests.support.stores.golden import Golden, copy_golden

DELAYS_MS = delay_levels_ms(DEFAULT_DELAY_LEVELS)
BATCH_TOPIC = b"GoldenB"
RECORDS, END = 1_872, 2_790_649


class Stored(NamedTuple):
    """The parts of a record that an append is given."""

    topic: bytes
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    properties: bytes
    store_timestamp: int
    physical_offset: int


def stored(record: RecordView, log: bytes) -> Stored:
    """Take a record with IPv4 hosts apart."""
    data = log[record.physical_offset : record.physical_offset + record.size]
    body_size = int.from_bytes(data[84:88], "big")
    return Stored(
        record.topic,
        record.queue_id,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        data[48:56],
        data[64:72],
        record.reconsume_times,
        record.prepared_transaction_offset,
        data[88 : 88 + body_size],
        record.properties,
        record.store_timestamp,
        record.physical_offset,
    )


def batch_of(record: Stored) -> tuple[object, ...]:
    """What the records of one batch have in common; a record of its own has its offset."""
    if record.topic != BATCH_TOPIC:
        return (record.physical_offset,)
    return (record.queue_id, record.sys_flag, record.born_timestamp, record.store_timestamp)


def append(store: Any, run: list[Stored]) -> None:
    """Append a batch, or a record of its own."""
    first = run[0]
    store.set_clock(first.store_timestamp)
    if len(run) > 1:
        items = [(each.flag, each.body, each.properties) for each in run]
        answer = store.append_batch(
            Batch(
                first.topic,
                first.queue_id,
                first.sys_flag,
                first.born_timestamp,
                first.born_host,
                first.store_host,
                first.reconsume_times,
                items,
            )
        )
        assert answer[1] == [each.physical_offset for each in run]
        return
    code = record_tags_code(first.topic, first.properties, first.store_timestamp, DELAYS_MS)
    answer = store.append(Record(*first[:11], code))
    assert (answer[0], answer[1]) == (0, first.physical_offset)


def replay(golden: Golden, kernel: str, root: Path) -> None:
    """Store everything of the golden log anew."""
    settings = StoreSettings(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=golden.settings.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=golden.settings.mapped_file_size_consume_queue,
        max_hash_slot_num=golden.settings.max_hash_slot_num,
        max_index_num=golden.settings.max_index_num,
    )
    store = importlib.import_module(MODULES[kernel]).Store(settings)
    places = StorePlaces.find(str(golden.folder / "store"), StoreOptions())
    walk = LogWalk(places.log_files, Findings())
    log = b"".join(files(golden.folder / "store")["commitlog"])
    records = [stored(record, log) for record in walk.records()]
    assert len(records) == RECORDS
    store.set_clock(records[0].store_timestamp)
    store.open()
    for _, run in itertools.groupby(records, batch_of):
        append(store, list(run))
    assert store.max_physical_offset == END
    wait_until(lambda: store.stats()["index_pending"] == 0)
    store.close()


@pytest.fixture(scope="module", params=KERNELS)
def replayed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Golden, Path]:
    folder = tmp_path_factory.mktemp("replay")
    golden = copy_golden(folder)
    replay(golden, request.param, folder / "ours")
    return golden, folder / "ours"


def test_every_message_of_the_manifest_is_among_the_records(golden_lines: list[Any]) -> None:
    offsets = [line["commitLogOffset"] for line in golden_lines]
    assert len(set(offsets)) == 1_864
    assert max(offsets) < END


@pytest.fixture
def golden_lines(replayed: tuple[Golden, Path]) -> list[Any]:
    golden, ours = replayed
    log = b"".join(files(ours)["commitlog"])
    lines = list(golden.messages())
    for line in lines:
        at = line["commitLogOffset"]
        assert int.from_bytes(log[at : at + 4], "big") == line["storeSize"]
        assert unpack_host(log[at + 48 : at + 56])[0] == line["bornHost"]
    return lines


def test_the_commit_log_has_java_s_bytes(replayed: tuple[Golden, Path]) -> None:
    golden, ours = replayed
    theirs, mine = (files(root)["commitlog"] for root in (golden.folder / "store", ours))
    assert b"".join(mine)[:END] == b"".join(theirs)[:END]
    assert mine[: len(theirs)] == theirs


def test_the_queues_have_java_s_bytes(replayed: tuple[Golden, Path]) -> None:
    golden, ours = replayed
    theirs, mine = files(golden.folder / "store"), files(ours)
    names = [name for name in theirs if name.startswith("consumequeue")]
    assert len(names) == 14
    assert [name for name in mine if name.startswith("consumequeue")] == names
    assert [name for name in names if mine[name] != theirs[name]] == []


def test_the_index_has_java_s_bytes(replayed: tuple[Golden, Path]) -> None:
    golden, ours = replayed
    theirs, mine = files(golden.folder / "store")["index"], files(ours)["index"]
    assert len(theirs) == 3
    assert mine == theirs


def test_what_was_replayed_is_clean(replayed: tuple[Golden, Path]) -> None:
    _golden, ours = replayed
    report = check_store(StorePlaces.find(str(ours), StoreOptions()))
    assert report.findings.kept == []
    assert report.records == RECORDS
