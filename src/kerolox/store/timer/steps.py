"""What the timer asks for, and what it is told. Each step is a generator: it yields one of these,
and is sent the answer. A step that is closed in between has done what was answered, and no more:
the next one begins where the last whole one ended.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from kerolox.store.timer.log import TimerUnit


class Entry(NamedTuple):
    """An entry of the queue of the timer's topic."""

    queue_offset: int
    offset: int
    """Of the record in the commit log."""
    size: int


class ReadEntry(NamedTuple):
    """Answer: the :class:`Entry` at an offset, or the first one behind it that retention has left;
    None: there is none yet."""

    queue_offset: int


class ReadMessage(NamedTuple):
    """Answer: the properties of the record; None: it is not there any more, or damaged."""

    offset: int
    size: int


class ReadQueueOffset(NamedTuple):
    """Answer: the queue offset of a record of the timer's topic; None: it is none, or not there."""

    offset: int
    size: int


class ReadUnit(NamedTuple):
    """Answer: the unit at a position of the timer log; None: there is none (``unit_at``)."""

    position: int


class ReadFile(NamedTuple):
    """Answer: the file of the timer log that begins at a position, as bytes; None: there is
    none."""

    position: int


class Append(NamedTuple):
    """Write to the timer log. Answer: None, when a reader sees it."""

    position: int
    data: bytes


class Truncate(NamedTuple):
    """Cut the timer log off, so that zeros follow. Answer: None, when that is on the disk."""

    end: int


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


class ReadDeletes(NamedTuple):
    """Answer: what commands to delete with a ``UNIQ_KEY`` name, as far as the index knows."""

    unique_key: str


class Hold(NamedTuple):
    """Nothing can be put; go on later. Answer: None."""


class Pause(NamedTuple):
    """Others may run. Answer: None."""


Request = (
    ReadEntry
    | ReadMessage
    | ReadQueueOffset
    | ReadUnit
    | ReadFile
    | Append
    | Truncate
    | Put
    | ReadCopies
    | ReadDeletes
    | Hold
    | Pause
)

_Result = TypeVar("_Result")

# What is sent depends on what was asked for, which a generator's type cannot say.
Step = Generator[Request, Any, _Result]


def read_unit(position: int) -> Step[TimerUnit | None]:
    """The unit at a position."""
    unit: TimerUnit | None = yield ReadUnit(position)
    return unit


def read_message(offset: int, size: int) -> Step[Mapping[str, str] | None]:
    """The properties of a record."""
    properties: Mapping[str, str] | None = yield ReadMessage(offset, size)
    return properties


def read_entry(queue_offset: int) -> Step[Entry | None]:
    """The entry at an offset, or behind it."""
    entry: Entry | None = yield ReadEntry(queue_offset)
    return entry


def read_copies(topic: str, unique_key: str) -> Step[Collection[int]]:
    """The records that have copies."""
    offsets: Collection[int] = yield ReadCopies(topic, unique_key)
    return offsets


def read_deletes(unique_key: str) -> Step[Collection[str]]:
    """The commands to delete."""
    deletes: Collection[str] = yield ReadDeletes(unique_key)
    return deletes
