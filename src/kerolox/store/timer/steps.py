"""What the timer asks for, and what it is told. Each step is a generator: it yields one of these,
and is sent the answer. A step that is closed in between has done what was answered, and no more:
the next one begins where the last whole one ended.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from kerolox.message import PropertyKey
from kerolox.store.timer.log import TimerUnit


class Entry(NamedTuple):
    """An entry of the queue of the timer's topic."""

    queue_offset: int
    offset: int
    """Of the record in the commit log."""
    size: int
    properties: Mapping[str, str] | None
    """Those of :data:`ENTRY_PROPERTIES` that the record has; None: it is not there any more, or
    damaged."""


ENTRY_PROPERTIES = (
    PropertyKey.TIMER_OUT,
    PropertyKey.REAL_TOPIC,
    PropertyKey.REAL_QUEUE_ID,
    PropertyKey.TIMER_DELETES,
    PropertyKey.UNIQUE_KEY,
)


class ReadEntries(NamedTuple):
    """Answer: each :class:`Entry` from an offset on, or from the first one behind it that retention
    has left, ``count`` at most; none: there is none yet."""

    queue_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it


class ReadMessage(NamedTuple):
    """Answer: the properties of the record; None: it is not there any more, or damaged."""

    offset: int
    size: int


class ReadQueueOffset(NamedTuple):
    """Answer: the queue offset of a record of the timer's topic; None: it is none, or not there."""

    offset: int
    size: int


class ReadUnits(NamedTuple):
    """Answer: the unit at each of these positions of the timer log; None: there is none
    (``unit_at``)."""

    positions: Sequence[int]


class ReadChain(NamedTuple):
    """Answer: the units of a slot from one on backwards, each with its position: ``count`` at most,
    and none before ``begin``. The last one is None where there is none."""

    position: int
    begin: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it


class ReadMoments(NamedTuple):
    """Answer: when the message of each of these records is due, in milliseconds since the epoch;
    None: its record does not say (``CopyKernel.moments``)."""

    offsets: Sequence[int]


class ReadFile(NamedTuple):
    """Answer: the file of the timer log that begins at a position, as bytes; None: there is
    none."""

    position: int


class Append(NamedTuple):
    """Write to the timer log. Answer: None, when a reader sees it; the step is to go on at once,
    and is not closed there."""

    position: int
    data: bytes


class Truncate(NamedTuple):
    """Cut the timer log off, so that zeros follow. Answer: None, when that is on the disk."""

    end: int


class Deliver(NamedTuple):
    """Store plain records again where they are for, each with its properties and the two notes of
    the timer (``puts.notes``). Answer: :class:`Delivered`, the first ones up to one that is not
    plain (``puts.ODD_NAMES``), or that can't be put now: it is the machine's, one by one."""

    offsets: Sequence[int]
    enqueued_ms: Sequence[int]
    """When the timer took each."""
    now_ms: int
    before_ms: int
    """One whose moment is not before it is not plain."""
    odd_keys: Collection[str]
    """Nor is one with one of these as its ``UNIQ_KEY``."""
    queue_end: int
    """Nothing is stored when the queue of the timer's topic ends behind it: a command to delete may
    be there."""


class Delivered(NamedTuple):
    """How far a :class:`Deliver` came."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    topics: Mapping[str, int]
    """How many each topic got."""
    has_news: bool = False
    """The queue ends behind ``queue_end``."""


class Put(NamedTuple):
    """Store the body of a record again. Answer: a :class:`PutResult`."""

    message: ReadMessage
    """Which record. The new one names it."""
    topic: str
    queue_id: int
    properties: Mapping[str, str]


class PutResult(Enum):
    """How a put ended."""

    DONE = "done"
    """It is in the log, also where a flush or a slave is late: another put would double it."""
    NEVER = "never"
    """It will be refused each time."""
    RETRY = "retry"
    """Later it may go."""


class ReadCopies(NamedTuple):
    """Answer: the offsets of records whose copies, stored by :class:`Put` under a topic, have a
    ``UNIQ_KEY``, as far as the index knows."""

    topic: str
    unique_key: str


class ReadCopied(NamedTuple):
    """Answer: which of these records have copies in their real topics, as far as the index
    knows."""

    offsets: Sequence[int]


class ReadDeletes(NamedTuple):
    """Answer: what commands to delete with a ``UNIQ_KEY`` name, as far as the index knows."""

    unique_key: str


class Hold(NamedTuple):
    """Nothing can be put; go on later. Answer: None."""


class Pause(NamedTuple):
    """Others may run. Answer: None."""


Request = (
    ReadEntries
    | ReadMessage
    | ReadQueueOffset
    | ReadUnits
    | ReadChain
    | ReadMoments
    | ReadFile
    | Append
    | Truncate
    | Deliver
    | Put
    | ReadCopies
    | ReadCopied
    | ReadDeletes
    | Hold
    | Pause
)

_Result = TypeVar("_Result")

# What is sent depends on what was asked for, which a generator's type cannot say.
Step = Generator[Request, Any, _Result]


def read_units(positions: Sequence[int]) -> Step[Sequence[TimerUnit | None]]:
    """The units at some positions."""
    units: Sequence[TimerUnit | None] = yield ReadUnits(positions)
    return units


def read_chain(
    position: int, begin: int, count: int
) -> Step[Sequence[tuple[int, TimerUnit | None]]]:
    """The units of a slot, from one on backwards."""
    chain: Sequence[tuple[int, TimerUnit | None]] = yield ReadChain(position, begin, count)
    return chain


def read_moments(offsets: Sequence[int]) -> Step[Sequence[int | None]]:
    """When the messages of records are due."""
    moments: Sequence[int | None] = (yield ReadMoments(offsets)) if offsets else ()
    return moments


def read_message(offset: int, size: int) -> Step[Mapping[str, str] | None]:
    """The properties of a record."""
    properties: Mapping[str, str] | None = yield ReadMessage(offset, size)
    return properties


def read_entries(queue_offset: int, count: int) -> Step[Sequence[Entry]]:
    """The entries from an offset on."""
    entries: Sequence[Entry] = yield ReadEntries(queue_offset, count)
    return entries


def read_copies(topic: str, unique_key: str) -> Step[Collection[int]]:
    """The records that have copies."""
    offsets: Collection[int] = yield ReadCopies(topic, unique_key)
    return offsets


def read_copied(offsets: Sequence[int]) -> Step[Collection[int]]:
    """Which records have copies."""
    found: Collection[int] = yield ReadCopied(offsets)
    return found


def read_deletes(unique_key: str) -> Step[Collection[str]]:
    """The commands to delete."""
    deletes: Collection[str] = yield ReadDeletes(unique_key)
    return deletes
