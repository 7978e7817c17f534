"""Messages that wait together and travel in one request: what fits, and what became of each.

RocketMQ 5 calls it autoBatch. A batch has messages of one topic, for one given queue or for any,
with one ``wait_store_ok`` and one time limit. Neither delayed messages nor those of retry topics or
transactions are ever in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kerolox.client.core.sending.send import OutgoingMessage, SendResult
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageQueue, PropertyKey, encode_properties

BATCH_COUNT_MAX = 1_000
"""Most messages of one batch."""


class BatchKey(NamedTuple):
    """What messages have in common that may share a batch."""

    topic: str
    queue: MessageQueue | None
    """None: the batch chooses one."""
    wait_store_ok: bool
    timeout_ms: int


class Batch:
    """Messages that wait together, in order."""

    __slots__ = ("_bytes_max", "items", "key", "message_ids", "size")

    def __init__(self, key: BatchKey, bytes_max: int) -> None:
        """``bytes_max``: about how large its body may be; a single larger message goes alone."""
        self.key = key
        self.items: list[bytes] = []
        """As they lie in the body."""
        self.message_ids: list[str] = []
        self.size = 0
        self._bytes_max = bytes_max

    def has_room(self, item: bytes) -> bool:
        """A further message may come into it."""
        return not self.items or (
            self.size + len(item) <= self._bytes_max and len(self.items) < BATCH_COUNT_MAX
        )

    @property
    def is_full(self) -> bool:
        """No further message is worth waiting for."""
        return self.size >= self._bytes_max or len(self.items) >= BATCH_COUNT_MAX

    def add(self, item: bytes, message_id: str) -> None:
        """Take in a message."""
        self.items.append(item)
        self.message_ids.append(message_id)
        self.size += len(item)

    def outgoing(self) -> OutgoingMessage:
        """The batch for the general way."""
        key = self.key
        wait = encode_properties({PropertyKey.WAIT: "true" if key.wait_store_ok else "false"})
        body, ids = b"".join(self.items), ",".join(self.message_ids)
        return OutgoingMessage(key.topic, body, wait, 0, 0, ids, is_batch=True)


def shares(result: SendResult, message_ids: Sequence[str]) -> list[SendResult]:
    """Where each message of a batch is stored, given the result of the whole: at the next offset
    each, under the broker's next id.

    Raises:
        RemoteProtocolError: the broker named another number of messages.
    """
    offset_ids = result.offset_message_id.split(",")
    if len(offset_ids) != len(message_ids):
        raise RemoteProtocolError(
            f"the answer to a batch of {len(message_ids)} messages names {len(offset_ids)};"
            " they may be stored"
        )
    status, _, _, queue, first, region, is_traced = result
    make = tuple.__new__
    return [
        make(
            SendResult,
            (status, message_id, offset_id, queue, first + index, region, is_traced),
        )
        for index, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]
