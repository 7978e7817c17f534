import json
import logging
from types import SimpleNamespace

import pytest

from kerolox.message import MessageQueue
from kerolox.spark import progress as progress_module
from kerolox.spark.positions.offsets import Mark, to_json
from kerolox.spark.positions.position import SourcePosition
from kerolox.spark.progress import ProgressListener, lag

Q0, Q1, OTHER = (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1), MessageQueue("u", "c", 0))

END = SourcePosition({Q0: 90, Q1: 50}, {Q0: -2}, {Q0: Mark(100, 5)}).to_json()
NEWEST = to_json({Q0: 120, Q1: 50})


def source(end: object = END, latest: object = NEWEST) -> SimpleNamespace:
    return SimpleNamespace(endOffset=json.dumps(end), latestOffset=json.dumps(latest))


def progress(*sources: SimpleNamespace, **more: object) -> SimpleNamespace:
    values = {"id": "id-1", "name": "orders", "batchId": 7, "numInputRows": 30}
    values |= {"inputRowsPerSecond": 3.0, "processedRowsPerSecond": 60.0, "sources": [*sources]}
    return SimpleNamespace(**{**values, **more})


def test_lag_is_what_lies_behind_the_batch_in_each_queue():
    assert lag(progress(source())) == {Q0: 30, Q1: 0}


def test_lag_of_several_sources_is_one_table():
    other = source(SourcePosition({OTHER: 3, Q0: 100}).to_json(), to_json({OTHER: 8, Q0: 120}))
    assert lag(progress(source(), other)) == {Q0: 50, Q1: 0, OTHER: 5}


@pytest.mark.parametrize(
    "odd",
    [
        source(latest=None),
        source(end=None),
        source({"logOffset": 5}, {"logOffset": 6}),
        source({"a": {"0": 5}}, {"a": {"0": 9}}),
        source(5, 6),
        SimpleNamespace(endOffset="12:30", latestOffset="[" * 50_000),
        source({"version": 99, "offsets": {}}),
    ],
)
def test_sources_of_other_formats_and_what_is_missing_count_for_nothing(odd):
    assert lag(progress(odd, source())) == {Q0: 30, Q1: 0}


def test_a_queue_that_shrank_is_not_ahead_and_a_new_one_is_left_out():
    assert lag(progress(source(latest=to_json({Q0: 10, OTHER: 9})))) == {Q0: 0}


def test_progress_is_read_as_a_dict_and_as_nothing():
    assert lag(None) == {}
    as_dict = {"sources": [{"endOffset": END, "latestOffset": NEWEST}]}
    assert lag(as_dict) == {Q0: 30, Q1: 0}
    assert lag({}) == {}


def test_a_listener_keeps_the_newest_figures_of_each_query(monkeypatch):
    monkeypatch.setattr(progress_module, "QUERIES_MAX", 2)
    listener = ProgressListener()
    for query in ("id-1", "id-2", "id-3", "id-2"):
        event = SimpleNamespace(progress=progress(source(), id=query, batchId=len(query)))
        listener.onQueryProgress(event)
    listener.onQueryTerminated(SimpleNamespace(id="id-2"))
    assert list(listener.figures) == ["id-3", "id-2"]
    figures = listener.figures["id-2"]
    assert figures.lag == {Q0: 30, Q1: 0}
    assert figures.behind == 30
    assert (figures.rows, figures.rows_per_second, figures.processed_per_second) == (30, 3.0, 60.0)


def test_a_listener_logs_each_query_not_more_often_than_asked(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    listener = ProgressListener(log_seconds=60)
    with caplog.at_level(logging.INFO, logger="kerolox.spark.progress"):
        for now[0] in (100.0, 130.0, 159.9, 160.0):
            listener.onQueryProgress(SimpleNamespace(progress=progress(source())))
    assert [record.getMessage() for record in caplog.records] == [
        "query orders, batch 7: 30 rows, 3 in and 60 done a second, 30 offsets behind, "
        "most in t b 0: 30"
    ] * 2
