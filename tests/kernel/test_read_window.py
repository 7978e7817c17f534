"""How much of a queue one read examines when nothing matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.kernel.status import GetMessageStatus

if TYPE_CHECKING:
    from tests.support.stores.bench import Bench

MESSAGES = 1_100


@pytest.mark.parametrize(
    ("wanted", "looked_at"), [(1, 800), (32, 800), (800, 800), (801, 801), (1_024, 1_024)]
)
def test_a_read_examines_16_000_bytes_or_20_for_each_message_wanted(
    closed_bench: Bench, wanted: int, looked_at: int
) -> None:
    closed_bench.open(mapped_file_size_consume_queue=20 * 2_000)
    for _ in range(MESSAGES):
        closed_bench.append(b"", "TAGS\x01a")
    read = closed_bench.store.read("T", 0, 0, wanted, [1])
    assert tuple(read)[:2] == (GetMessageStatus.NO_MATCHED_MESSAGE, looked_at)
