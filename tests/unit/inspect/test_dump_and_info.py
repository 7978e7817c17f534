"""``kerolox store dump`` and ``info``: what is reported is what the store holds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kerolox._pykernel as reference
from kerolox.errors import StoreError
from kerolox.inspect.dump import Selection, as_json, select_records
from kerolox.inspect.findings import Findings
from kerolox.inspect.info import describe_store
from kerolox.store.layout import EPOCH_FILE
from kerolox.store.log.epochs import EpochFile, EpochStart, EpochTable
from tests.support.stores.bench import NOW, Bench
from tests.support.stores.golden import copy_golden
from tests.support.stores.inspected import FILE_BYTES, Made, fill, made_store, places_of

if TYPE_CHECKING:
    from kerolox.message import MessageExt


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("made") / "store"
    made_store(root, reference)
    return Made(root)


def select(made: Made, **selection: Any) -> list[MessageExt]:
    findings = Findings()
    found = list(select_records(places_of(made.root), Selection(**selection), findings))
    assert findings.kept == []
    return found


def test_everything_is_dumped_in_the_order_of_the_log(made: Made) -> None:
    found = select(made)
    assert len(found) == 413
    offsets = [message.commit_log_offset for message in found]
    assert offsets == sorted(offsets)


def test_a_range_of_the_log_may_begin_anywhere(made: Made) -> None:
    everything = select(made)
    start = everything[100].commit_log_offset
    stop = everything[150].commit_log_offset
    assert select(made, from_offset=start, to_offset=stop) == everything[100:150]
    assert select(made, from_offset=start - 5, to_offset=stop) == everything[100:150]
    assert select(made, from_offset=1 << 40) == []


def test_a_range_of_a_queue_is_chosen(made: Made) -> None:
    found = select(made, topic="T", queue_id=2, from_queue_offset=30, to_queue_offset=40)
    assert [(m.queue_id, m.queue_offset) for m in found] == [(2, n) for n in range(30, 40)]
    assert [m.queue_offset for m in select(made, topic="T", queue_id=1, from_queue_offset=97)] == [
        97,
        98,
        99,
    ]
    assert select(made, topic="Nobody") == []
    with pytest.raises(StoreError, match="needs a topic and a queue"):
        Selection(topic="T", from_queue_offset=3)


def test_a_span_of_time_is_chosen(made: Made) -> None:
    everything = select(made)
    found = select(made, since_ms=NOW + 10_000, until_ms=NOW + 20_000)
    assert found == [m for m in everything if NOW + 10_000 <= m.store_timestamp < NOW + 20_000]
    assert len(found) > 100


def test_the_limit_ends_it(made: Made) -> None:
    assert len(select(made, limit=7)) == 7
    assert len(select(made, topic="T", queue_id=3, limit=1)) == 1


def test_damage_is_skipped_and_told(made: Made, tmp_path: Path) -> None:
    copy = Made.copy(made.root, tmp_path / "store")
    offset, *_ = copy.record(1, 20)
    copy.flip(copy.log_file(offset // FILE_BYTES), offset % FILE_BYTES + 4)
    findings = Findings()
    found = list(select_records(places_of(copy.root), Selection(), findings))
    assert len(found) == 412
    assert findings.count == 1


def test_the_fields_are_those_of_java_s_manifest(tmp_path: Path) -> None:
    golden = copy_golden(tmp_path)
    wanted = {line["commitLogOffset"]: line for line in golden.messages()}
    places = places_of(golden.folder / "store")
    seen = 0
    for message in select_records(places, Selection(), Findings()):
        line = wanted.get(message.commit_log_offset)
        if line is None:
            continue
        fields = as_json(message, "none")
        assert "body" not in fields
        names = fields.keys() & line.keys() - {"bornHost", "keys", "tags"}
        assert len(names) >= 14
        assert {name: fields[name] for name in names} == {name: line[name] for name in names}
        assert hashlib.sha1(message.body).hexdigest() == line["bodySha1"]
        seen += 1
    assert seen == len(wanted)


def test_bodies_are_text_base64_or_left_out(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    bench.append("ä".encode())
    bench.append(b"\xff\x00")
    bench.store.close()
    text, other = select(Made(tmp_path / "store"))
    assert as_json(text, "text")["body"] == "ä"
    assert as_json(text, "base64")["bodyBase64"] == "w6Q="
    assert as_json(other, "text")["bodyBase64"] == "/wA="
    assert not {"body", "bodyBase64"} & as_json(other, "none").keys()


def test_info_tells_bounds_queues_and_ends(made: Made) -> None:
    info = describe_store(places_of(made.root))
    everything = select(made)
    last = everything[-1]
    assert (info.min_offset, info.max_offset) == (0, last.commit_log_offset + last.store_size)
    assert info.oldest == everything[0]
    assert info.newest == last
    assert [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in info.queues] == [
        ("SCHEDULE_TOPIC_XXXX", 2, 0, 5),
        *(("T", number, 0, 100) for number in range(4)),
    ]
    assert (info.is_in_use, info.is_closed_cleanly) == (False, True)
    assert info.index_entries == 1213
    assert info.checkpoint == (last.store_timestamp,) * 3
    assert info.log_file_bytes == FILE_BYTES
    assert info.as_json()["topics"][1]["messages"] == 400


def test_info_knows_what_was_deleted_from_the_log(made: Made, tmp_path: Path) -> None:
    copy = Made.copy(made.root, tmp_path / "store")
    copy.log_file(0).unlink()
    info = describe_store(places_of(copy.root))
    assert info.min_offset == FILE_BYTES
    assert info.oldest is not None
    assert info.oldest.commit_log_offset == FILE_BYTES
    assert 20 < info.queues[1].min_offset < 60


def test_info_tells_the_epochs_of_a_controller_s_store(made: Made, tmp_path: Path) -> None:
    copy = Made.copy(made.root, tmp_path / "store")
    assert describe_store(places_of(copy.root)).as_json()["epochs"] == []
    EpochFile(copy.root / EPOCH_FILE).save(EpochTable((EpochStart(1, 0), EpochStart(4, 700))))
    told = describe_store(places_of(copy.root)).as_json()
    assert told["epochs"] == [{"epoch": 1, "startOffset": 0}, {"epoch": 4, "startOffset": 700}]
    assert told["epochsFault"] == ""
    EpochFile(copy.root / EPOCH_FILE).path.write_text("1\n")
    info = describe_store(places_of(copy.root))
    assert info.epochs == ()
    assert "epochFileCheckpoint: it does not begin with" in info.epochs_fault


def test_info_of_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    info = describe_store(places_of(tmp_path))
    assert (info.max_offset, info.oldest, info.newest, info.checkpoint) == (0, None, None, None)


def test_info_and_dump_work_beside_a_broker(tmp_path: Path) -> None:
    bench = Bench(reference, tmp_path / "store")
    bench.open()
    fill(bench, 40)
    try:
        info = describe_store(places_of(tmp_path / "store"))
        assert info.is_in_use
        assert info.max_offset == bench.store.max_physical_offset
        assert len(select(Made(tmp_path / "store"))) == 46
    finally:
        bench.store.close()
