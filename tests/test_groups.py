"""Tests of one xdist group run on one worker, which shares their servers; long ones come first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.conftest import LONG_FIRST, place_of, pytest_collection_modifyitems


@pytest.mark.xdist_group("some")
def test_the_scheduler_sees_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    before = request.node._id
    try:
        pytest_collection_modifyitems(SimpleNamespace(workerinput={}), [request.node])
        assert LoadGroupScheduling._split_scope(None, request.node.nodeid) == "some"
    finally:
        request.node._id = before


def test_long_groups_and_folders_come_before_all_others() -> None:
    def item(nodeid: str, *groups: str) -> SimpleNamespace:
        marks = [SimpleNamespace(args=(group,)) for group in groups]
        return SimpleNamespace(nodeid=nodeid, iter_markers=lambda name: marks)

    short, long = item("tests/unit/test_a.py::test_a"), item("tests/abuse/test_b.py::test_b")
    grouped = item("tests/abuse/test_c.py::test_c", LONG_FIRST[0])
    assert sorted([short, long, grouped], key=place_of) == [grouped, long, short]
    for name in LONG_FIRST:
        assert "/" not in name or (Path(__file__).parent.parent / name).is_dir()
