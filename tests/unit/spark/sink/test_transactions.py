import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.transactions import decisions
from kerolox.spark.sink.transactions.commit import segments_of
from kerolox.spark.sink.transactions.decisions import Decision, DecisionStore, EndedBatch, store_at
from kerolox.spark.sink.transactions.messages import HalfRange, SinkMessage

RANGES = st.lists(
    st.tuples(
        st.integers(0, 12), st.integers(0, 12), st.frozensets(st.integers(0, 12), max_size=3)
    ),
    max_size=4,
)


def half_range(low: int, high: int, excluded: tuple[int, ...] = ()) -> HalfRange:
    return HalfRange("broker-a", "t", low, low, high, high - low, excluded)


@given(RANGES, st.integers(0, 12), st.integers(0, 12))
def test_segments_say_of_each_offset_whose_half_would_count(ranges, begin, size):
    end = begin + size
    named = [
        (f"a{n}", half_range(min(x, y), max(x, y), tuple(excluded)))
        for n, (x, y, excluded) in enumerate(ranges)
    ]
    segments = segments_of(named, begin, end)
    covered = [offset for each in segments for offset in range(each.start, each.stop)]
    assert covered == list(range(begin, end))
    for each in segments:
        for offset in range(each.start, each.stop):
            assert set(each.attempts) == {
                name
                for name, part in named
                if part.low <= offset < part.high and offset not in part.excluded
            }


def decision(batch: int, attempt: str = "q/0/0/1") -> Decision:
    messages = [SinkMessage(5, attempt, (half_range(3, 8, (4,)),))]
    return Decision.of("q", batch, "g", messages)


@pytest.fixture(params=["path", "uri", "pyarrow"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DecisionStore:
    folder = tmp_path / "a checkpoint" / "kerolox-sink"
    if request.param == "path":
        return store_at(str(folder))
    if request.param == "uri":
        return store_at(folder.as_uri())
    return DecisionStore(decisions.RemoteFolder(folder.as_uri()))


def test_the_first_decision_of_a_batch_stays(store: DecisionStore):
    assert store.decision(7) is None
    first, second = decision(7), decision(7, "q/0/0/2")
    assert store.decide(first) == first
    assert store.decide(second) == first
    assert store.decision(7) == first


def test_a_batch_is_done_once_all_of_it_is_ended(store: DecisionStore):
    store.decide(decision(7))
    store.decide(decision(8))
    assert store.done(7) is None
    assert store.undone(8) == [7]
    store.mark_done(7, EndedBatch({"broker-a": 12}))
    assert store.done(7) == EndedBatch({"broker-a": 12})
    assert store.undone(9) == [8]


def test_old_decisions_are_forgotten_and_the_newest_hundred_kept(store: DecisionStore):
    for batch in (0, 1, 2, 100):
        store.decide(decision(batch))
        store.mark_done(batch, EndedBatch({}))
    store.forget(101)
    kept = [batch for batch in (0, 1, 2, 100) if store.decision(batch)]
    assert kept == [2, 100]
    assert store.done(1) is None


def test_a_decision_that_is_torn_or_newer_is_an_error(tmp_path: Path):
    store = store_at(str(tmp_path))
    (tmp_path / "1").write_text('{"version":1')
    with pytest.raises(SinkError, match="decision of batch 1 is not readable"):
        store.decision(1)
    (tmp_path / "2").write_bytes(msgspec.json.encode({"version": 9}))
    with pytest.raises(SinkError, match="of version 9, known here is 1"):
        store.decision(2)


def test_a_decision_is_on_the_disk_before_its_name_is_there(tmp_path, monkeypatch):
    synced: list[bool] = []
    fsync = os.fsync
    store = store_at(str(tmp_path / "new"))

    def watched(handle: int) -> None:
        synced.append((tmp_path / "new" / "7").exists())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    store.decide(decision(7))
    assert synced == [False, True]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["7"]


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="file/sink/7 can't be written"):
        store_at(str(tmp_path / "file" / "sink")).decide(decision(7))
    with pytest.raises(SinkError, match="decisions can't be kept at what://x"):
        store_at("what://x")
