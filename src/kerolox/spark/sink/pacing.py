"""A rate of rows: a task waits so that its share of it is not exceeded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

SLICES_A_SECOND = 10


def slices(
    batches: Iterator[pyarrow.RecordBatch],
    rate: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pyarrow.RecordBatch]:
    """The batches in slices, each not before its rows are due.

    Args:
        batches: rows.
        rate: most rows a second.
        clock: seconds that pass evenly.
        sleep: waits so many.
    """
    size = max(1, int(rate / SLICES_A_SECOND))
    started, given = clock(), 0
    for batch in batches:
        for first in range(0, batch.num_rows, size):
            part = batch.slice(first, size)
            early = started + given / rate - clock()
            if early > 0:
                sleep(early)
            given += part.num_rows
            yield part
