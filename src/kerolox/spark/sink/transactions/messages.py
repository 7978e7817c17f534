"""What a task tells the driver: how many rows, and where its halves lie; never the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class HalfRange(NamedTuple):
    """The halves of one attempt on one broker."""

    broker_name: str
    topic: str
    """One of those written to; its route has the broker's address."""
    begin: int
    """The end of the half queue before the first of them."""
    low: int
    """The offset of the first in the half queue."""
    high: int
    """Behind the last."""
    rows: int
    excluded: tuple[int, ...] = ()
    """Offsets between of halves that hold a row a second time."""


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):  # type: ignore[misc]
    """The end of one attempt."""

    rows: int
    attempt: str = ""
    """The attempt, as the halves name it; empty: they are plain messages."""
    ranges: tuple[HalfRange, ...] = ()
    is_decided: bool = False
    """The batch was decided before, so nothing was written."""
