"""Bodies that inflate a thousand times, odd ones, and what a user is shown of errors."""

import json
import os
import zlib
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from tests.support.clients.spark import Sent, reason_of_worker

MIB = 1024 * 1024
WORKER_MIB_MAX = 300
"""All of a worker's memory: Python, PySpark, Arrow and Kerolox take 120 to 150 MiB of it."""


COUNT = 150
"""Bodies of 4 MiB: twice what a worker may have."""


def worker_peaks() -> list[int]:
    """The most memory, in MiB, that each Python process of this Spark has had."""
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        each = Path("/proc", str(pending.pop()))
        try:
            for task in (each / "task").iterdir():
                pending += map(int, (task / "children").read_text().split())
            if b"pyspark.daemon" in (each / "cmdline").read_bytes():
                status = (each / "status").read_text()
                lines = dict(line.split(":", 1) for line in status.splitlines())
                found.append(int(lines["VmHWM"].split()[0]) // 1024)
        except OSError:
            continue
    return found


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


def test_bodies_that_inflate_1000_times_are_read_in_bounded_memory(read, topics, topic):
    packed = zlib.compress(bytes(4 * MIB))
    assert len(packed) * 1000 < 4 * MIB
    topics.send(
        topic, [Sent(b"", wire_body=packed, sys_flag=1, queue_id=n % 4) for n in range(COUNT)]
    )
    frame = read(topic).option("columns", "body").load()
    row = frame.selectExpr("count(*) as rows", "sum(length(body)) as bytes").collect()[0]
    assert (row.rows, row.bytes) == (COUNT, COUNT * 4 * MIB)
    peaks = worker_peaks()
    assert peaks
    assert max(peaks) <= WORKER_MIB_MAX


def test_lz4_and_zstd_bodies_are_read(read, topics, topic):
    text = b"hello " * 1000
    sent = [
        Sent(text, wire_body=lz4.frame.compress(text), sys_flag=0x101),
        Sent(text, wire_body=zstandard.compress(text), sys_flag=0x201),
    ]
    topics.send(topic, sent)
    assert [bytes(row.body) for row in read(topic).load().collect()] == [text, text]


def test_a_corrupt_body_is_an_error_of_one_line_or_null_or_raw(read, topics, topic):
    topics.send(topic, [Sent(b"good"), Sent(b"", wire_body=b"no zlib", sys_flag=1)])
    with pytest.raises(PythonException) as caught:
        read(topic).load().collect()
    reason = reason_of_worker(caught.value)
    assert f"topic {topic} broker " in reason
    assert "queue 0 offset 1: the compressed body is corrupt" in reason
    for policy, body in (("null", None), ("raw", b"no zlib")):
        frame = read(topic).option("bodyErrors", policy).load().orderBy("queueOffset")
        found = [row.body and bytes(row.body) for row in frame.collect()]
        assert found == [b"good", body]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("startingOfsets", "1", "did you mean startingOffsets?"),
        ("columns", "boddy", "did you mean body?"),
        ("subExpression", "a > 5", "option subExpression='a > 5' is no tag expression"),
    ],
)
def test_the_first_line_of_a_refusal_is_the_reason(read, topic, name, value, text):
    with pytest.raises(AnalysisException) as caught:
        read(topic).option(name, value).load()
    assert first_line(caught.value).startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to create")
    assert text in first_line(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_range_that_ends_before_it_starts_names_queue_and_offsets(read, topics, topic):
    topics.send_numbers(topic, range(8))
    (broker,) = {row.brokerName for row in read(topic).load().select("brokerName").collect()}
    start, end = ({topic: {broker: dict.fromkeys("0123", offset)}} for offset in (2, 1))
    reader = read(topic).option("startingOffsets", json.dumps(start))
    with pytest.raises(AnalysisException) as caught:
        reader.option("endingOffsets", json.dumps(end)).load().collect()
    text = f"startingOffsets 2 of {topic} queue 0 on {broker} is behind its endingOffsets 1"
    assert text in first_line(caught.value)


def test_the_first_line_of_a_streams_error_is_the_reason(read_stream, topic, tmp_path):
    stream = read_stream(topic).option("endingOffsets", "latest").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(240)
    assert "endingOffsets is for batches only" in first_line(caught.value)
    assert "UnboundLocalError" not in str(caught.value)
