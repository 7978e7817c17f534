"""Sources and sink by Spark Connect: the client has no Kerolox, the server's Python has."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from kerolox.spark import lag
from tests.spark.piped import SECRET, check_found, run_pipeline
from tests.support.bare_python import bare_python
from tests.support.servers.sparks import connect_server, told, user_variables

pytestmark = [
    pytest.mark.xdist_group("spark-streams"),
    pytest.mark.skipif(find_spec("grpc") is None, reason="needs pyspark[connect]"),
]


def test_a_connect_client_without_kerolox_reads_and_writes_each_message_once(topics, tmp_path):
    server_python = bare_python(tmp_path / "server-python", formats=True)
    client = bare_python(tmp_path / "client-python")
    variables = user_variables(server_python)
    with connect_server(tmp_path / "server", variables) as url:
        found = run_pipeline([client], variables, url, topics, tmp_path / "client")
    check_found(found)
    events = told(tmp_path / "server")
    assert "rocketmq" in events
    assert SECRET not in events
    behind = lag({"sources": found["sources"]})
    assert len(behind) == 4
    assert set(behind.values()) == {0}
