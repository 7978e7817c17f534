"""Bodies that are large, odd or corrupt, from a broker to record batches."""

import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import pyarrow as pa
import pytest
import zstandard

from kerolox.kernel.choice import KERNEL_VARIABLE
from kerolox.message import MessageQueue
from kerolox.protocol.codes import ResponseCode
from kerolox.spark.options import SourceOptions
from kerolox.spark.partition import read_partition
from kerolox.spark.positions.offsets import QueueRange
from kerolox.spark.positions.planned import QueuePartition
from kerolox.spark.rows.bodies import BodyError
from kerolox.spark.rows.decoding import BATCH_BODY_BYTES_MAX
from kerolox.spark.rows.schema import schema_of
from tests.support.kernels import KERNELS
from tests.support.servers.threaded_broker import ThreadedBroker, record

MIB = 1024 * 1024
QUEUE = MessageQueue("t", "broker-a", 0)
ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201


@pytest.fixture(params=KERNELS, autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KERNEL_VARIABLE, request.param)
    return request.param


class Bodies:
    """Answers pulls with records of given bodies, 32 at once."""

    def __init__(self, *bodies: tuple[int, bytes]) -> None:
        self.records = [
            record(offset, body=body, sys_flag=flags) for offset, (flags, body) in enumerate(bodies)
        ]

    def __call__(self, request):
        start, asked = (int(request.ext_fields[name]) for name in ("queueOffset", "maxMsgNums"))
        found = self.records[start : start + min(asked, 32)]
        fields = {"nextBeginOffset": start + len(found), "minOffset": 0}
        fields |= {"maxOffset": len(self.records), "suggestWhichBrokerId": 0}
        return request.response(ResponseCode.SUCCESS, "FOUND", fields, body=b"".join(found))


def batches(answers: Bodies, columns: str = "queueOffset,body", **given: str) -> Iterator[pa.Table]:
    options = SourceOptions.parse(
        {"nameServer": "n:1", "subscribe": "t", "pollTimeoutMs": "300", **given}
    )
    with ThreadedBroker(answers) as broker:
        whole = QueueRange(QUEUE, 0, len(answers.records))
        partition = QueuePartition([(broker.address, whole)])
        yield from read_partition(partition, options, schema_of(columns.split(",")))


def bodies(*given: tuple[int, bytes], **options: str) -> list[bytes | None]:
    read = list(batches(Bodies(*given), **options))
    assert sum(each.num_rows for each in read) == len(given)
    return [body for each in read for body in each.column("body").to_pylist()]


def zstd(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


def test_bodies_that_inflate_1000_times_make_batches_of_a_bounded_size() -> None:
    packed = zlib.compress(bytes(4 * MIB))
    assert len(packed) * 1000 < 4 * MIB
    sizes, offsets = [], []
    for batch in batches(Bodies(*[(ZLIB, packed)] * 100)):
        sizes.append(batch.column("body").nbytes)
        offsets += batch.column("queueOffset").to_pylist()
        batch.validate(full=True)
    assert offsets == list(range(100))
    assert len(sizes) == 25
    assert max(sizes) <= BATCH_BODY_BYTES_MAX + 64


def test_a_body_larger_than_a_batch_stands_alone() -> None:
    large = zlib.compress(bytes(BATCH_BODY_BYTES_MAX + 1))
    small = zlib.compress(b"small")
    read = list(batches(Bodies((ZLIB, small), (ZLIB, large), (ZLIB, small), (0, b"plain"))))
    assert [each.num_rows for each in read] == [1, 1, 2]


def test_lz4_and_zstd_bodies_are_read() -> None:
    text = b"hello " * 1000
    given = (ZLIB, zlib.compress(text)), (LZ4, lz4.frame.compress(text)), (ZSTD, zstd(text))
    assert bodies(*given, (0, b"plain")) == [text, text, text, b"plain"]


def test_zstd_bodies_that_inflate_1000_times_make_bounded_batches() -> None:
    packed = zstd(bytes(4 * MIB))
    assert len(packed) * 1000 < 4 * MIB
    sizes = [each.column("body").nbytes for each in batches(Bodies(*[(ZSTD, packed)] * 20))]
    assert len(sizes) == 5
    assert max(sizes) <= BATCH_BODY_BYTES_MAX + 64


ODD = {
    "corrupt": (ZLIB, b"no zlib", "corrupt"),
    "torn": (ZLIB, zlib.compress(bytes(1000))[:-3], "torn"),
    "corrupt LZ4": (LZ4, b"certainly no lz4 at all", "corrupt"),
    "corrupt ZSTD": (ZSTD, b"certainly no zstd", "corrupt"),
    "unknown": (0x701, b"what", "type 7"),
    "too large": (ZLIB, zlib.compress(bytes(65 * MIB), 1), "inflates to more than 67108864 bytes"),
}


@pytest.mark.parametrize(("flags", "body", "reason"), ODD.values(), ids=ODD)
def test_a_body_that_cannot_be_read_is_an_error_that_says_where(flags, body, reason) -> None:
    with pytest.raises(BodyError, match=reason) as caught:
        bodies((0, b"first"), (flags, body))
    text = str(caught.value)
    assert text.startswith("topic t broker broker-a queue 0 offset 1: ")
    assert "bodyErrors=null or raw" in text
    assert "\n" not in text


@pytest.mark.parametrize(("flags", "body", "reason"), ODD.values(), ids=ODD)
def test_body_errors_may_be_null_or_the_stored_bytes(flags, body, reason) -> None:
    given = [(0, b"first"), (flags, body), (ZLIB, zlib.compress(b"last"))]
    assert bodies(*given, bodyErrors="null") == [b"first", None, b"last"]
    assert bodies(*given, bodyErrors="raw") == [b"first", body, b"last"]


@pytest.mark.parametrize(("flags", "package"), [(LZ4, "lz4"), (ZSTD, "zstandard")])
def test_a_package_that_is_missing_is_an_error_that_names_it(monkeypatch, flags, package) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.frame", None)
    for given in ({}, {"bodyErrors": "null"}):
        with pytest.raises(BodyError, match=f"offset 0: .*install the package '{package}'"):
            bodies((flags, b"x"), **given)
    assert bodies((flags, b"x"), bodyErrors="raw") == [b"x"]


def test_a_body_that_nobody_asks_for_is_not_read() -> None:
    (batch,) = batches(Bodies((ZLIB, b"no zlib"), (0x701, b"x")), columns="queueOffset")
    assert batch.column("queueOffset").to_pylist() == [0, 1]


READ_ALL = """
import sys
from pathlib import Path
from tests.unit.spark.test_bodies import MIB, QUEUE
from kerolox.spark.positions.offsets import QueueRange
from kerolox.spark.options import SourceOptions
from kerolox.spark.partition import read_partition
from kerolox.spark.positions.planned import QueuePartition
from kerolox.spark.rows.schema import schema_of

options = SourceOptions.parse({"nameServer": "n:1", "subscribe": "t"})

def read(count):
    partition = QueuePartition([(sys.argv[1], QueueRange(QUEUE, 0, count))])
    return sum(each.num_rows for each in read_partition(partition, options, schema_of(["body"])))

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

assert read(1) == 1
before = peak()
assert read(int(sys.argv[2])) == int(sys.argv[2])
print(peak() - before)
"""

WORKER_MIB_MAX = 96
"""What a worker may need beside what it needs for one small body: two batches, as much again while
one is made, and the answers that it came from."""


def test_a_worker_reads_bodies_that_inflate_1000_times_in_bounded_memory() -> None:
    first, packed = (ZLIB, zlib.compress(b"first")), (ZLIB, zlib.compress(bytes(4 * MIB)))
    with ThreadedBroker(Bodies(first, *[packed] * 60)) as broker:
        done = subprocess.run(
            [sys.executable, "-c", READ_ALL, broker.address, "61"],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=Path(__file__).parents[3],
        )
    assert not done.returncode, done.stderr
    assert int(done.stdout) <= WORKER_MIB_MAX
