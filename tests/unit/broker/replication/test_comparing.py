"""Where a slave begins to compare, and what counts as a record that both logs have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.replication import comparing
from kerolox.broker.replication.comparing import begin_of, equal_count, holds_record
from kerolox.protocol.records import MESSAGE_MAGIC
from tests.support.kernels import KERNELS
from tests.support.stores.bench import Bench

from .memory_log import MemoryLog

MAGIC = MESSAGE_MAGIC.to_bytes(4, "big")


class CountingLog(MemoryLog):
    """Counts the bytes that are read of it."""

    read = 0

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        data = bytes(self.data[offset - self.begin :][:max_bytes])
        self.read += len(data)
        return data


@pytest.fixture(params=KERNELS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    from importlib import import_module

    from tests.support.kernels import MODULES

    return Bench(import_module(MODULES[request.param]), tmp_path / "store")


def test_a_record_counts_when_all_of_it_is_in_the_range(bench: Bench) -> None:
    bench.open()
    # The second one is in the next file.
    offsets = [bench.append(b"x" * 40_000).physical_offset for _ in range(3)]
    end = bench.store.max_physical_offset
    size = end - offsets[2]
    for at in offsets:
        assert holds_record(bench.store, at, at + size)
        assert not holds_record(bench.store, at, at + size - 1)
        assert not holds_record(bench.store, at + 1, at + size)
    assert holds_record(bench.store, 1, end)
    # In the middle of the last body nothing proves anything, so more is compared.
    assert begin_of(bench.store, 0, end, 1_000) <= offsets[2]
    assert begin_of(bench.store, offsets[2] + 5, end, 1_000) == offsets[2] + 5
    assert begin_of(bench.store, 0, end, 10**9) == 0
    bench.store.close()


def test_a_body_full_of_heads_of_records_costs_little(monkeypatch) -> None:
    monkeypatch.setattr(comparing, "SCAN_BYTES", 25_000)
    fake = (10_000).to_bytes(4, "big") + MAGIC + bytes(28)
    log = CountingLog(0, fake * 1_500)
    end = log.max_physical_offset
    assert end > 2 * comparing.SCAN_BYTES
    assert not holds_record(log, 0, end)
    assert log.read < 3 * end


def test_a_record_is_found_wherever_a_scan_is_cut(bench: Bench, monkeypatch) -> None:
    bench.open()
    first = bench.append(b"x" * 300).physical_offset
    end = bench.append(b"y" * 300).physical_offset
    for size in range(120, 140):
        monkeypatch.setattr(comparing, "SCAN_BYTES", size)
        assert holds_record(bench.store, first, end)
        for begin in range(1, 130, 7):
            assert holds_record(bench.store, begin, bench.store.max_physical_offset)
    bench.store.close()


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(1, 255))
def test_equal_bytes_are_counted_to_the_first_difference(data: bytes, at: int, change: int) -> None:
    other = bytearray(data)
    if at < len(other):
        other[at] ^= change
    assert equal_count(data, bytes(other)) == min(at, len(data))
    cut = random.Random(at).randrange(len(data) + 1)
    assert equal_count(data[:cut], data) == cut
