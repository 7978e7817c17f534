"""Consumed offsets of a group's member: the table, the start of a queue, the local file's form."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from kerolox.errors import ClientError
from kerolox.message import ConsumeFromWhere, MessageQueue
from kerolox.protocol.fastjson import dumps_pretty, loads, members_of
from kerolox.protocol.names import RETRY_PREFIX


class OffsetStorage(Protocol):
    """Where a consumer keeps its offsets when neither the brokers nor the local file are to
    (``OffsetStore``): a setting of push consumers.

    Both methods may be async; plain ones are called in a thread. Failures are logged, and tried
    again: a queue whose offset can't be loaded is not read.
    """

    def load(self, queue: MessageQueue) -> Awaitable[int | None] | int | None:
        """The next offset of a queue to be consumed; None: there is none, so that the queue starts
        where ``consume_from_where`` says."""

    def store(self, offsets: Mapping[MessageQueue, int]) -> Awaitable[None] | None:
        """Keep the next offsets of some queues: every ``persist_interval_ms``, when queues go, and
        when the consumer closes."""


class OffsetTable:
    """The next offset to consume, by queue."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    def __iter__(self) -> Iterator[tuple[MessageQueue, int]]:
        return iter(list(self._offsets.items()))

    def __len__(self) -> int:
        return len(self._offsets)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Set the offset; with ``increase_only`` a smaller one than the present is ignored."""
        if increase_only and offset < self._offsets.get(queue, offset):
            return
        self._offsets[queue] = offset

    def read(self, queue: MessageQueue) -> int:
        """The offset, or -1."""
        return self._offsets.get(queue, -1)

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue."""
        self._offsets.pop(queue, None)

    def owned(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The offsets of these queues; all others are forgotten."""
        self._offsets = {
            queue: offset for queue, offset in self._offsets.items() if queue in queues
        }
        return dict(self._offsets)


class Lookup(Enum):
    """What a broker must be asked before a queue can start."""

    NOTHING = "nothing"
    MAX_OFFSET = "max offset"
    OFFSET_BY_TIME = "offset by time"


class Start(NamedTuple):
    """Where a queue starts: at ``offset``, or at what the lookup gives."""

    lookup: Lookup
    offset: int = 0


def start_position(topic: str, stored: int, where: ConsumeFromWhere) -> Start:
    """Where a queue starts for a group (``computePullFromWhere``); a retry topic never starts at
    the end.

    ``stored``: the group's offset as its broker gives it, or -1. To a new group a broker gives 0
    while the queue's first message is stored and near the end of the log. ``where``: the group's
    choice for the case that there is none.
    """
    if stored >= 0:
        return Start(Lookup.NOTHING, stored)
    is_retry = topic.startswith(RETRY_PREFIX)
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return Start(Lookup.NOTHING, 0)
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return Start(Lookup.NOTHING, 0) if is_retry else Start(Lookup.MAX_OFFSET)
    return Start(Lookup.MAX_OFFSET) if is_retry else Start(Lookup.OFFSET_BY_TIME)


def encode_local_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The text of ``offsets.json`` (``OffsetSerializeWrapper``)."""
    return dumps_pretty({"offsetTable": dict(offsets)})


def decode_local_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Read ``offsets.json``; ClientError: it is not what :func:`encode_local_offsets` or a Java
    client writes.
    """
    try:
        table = members_of(members_of(loads(data)).get("offsetTable", {}))
        offsets: dict[MessageQueue, int] = {}
        for queue, offset in table.items():
            if not isinstance(queue, MessageQueue):
                raise ClientError("local offsets have a key that is no message queue")
            offsets[queue] = int(str(offset))
        return offsets
    except ValueError as error:
        raise ClientError(f"local offsets are unreadable: {error}") from None
