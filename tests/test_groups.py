"""Tests of one xdist group run on one worker, which shares their servers among them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.conftest import pytest_collection_modifyitems


@pytest.mark.xdist_group("some")
def test_the_scheduler_sees_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    before = request.node._id
    try:
        pytest_collection_modifyitems(SimpleNamespace(workerinput={}), [request.node])
        assert LoadGroupScheduling._split_scope(None, request.node.nodeid) == "some"
    finally:
        request.node._id = before
