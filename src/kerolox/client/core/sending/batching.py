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
    """The properties that messages of one batch share."""

    topic: str
    queue: MessageQueue | None
    """None: the batch chooses one."""
    wait_store_ok: bool
    timeout_ms: int


def batch_message(key: BatchKey, body: bytes, message_ids: Sequence[str]) -> OutgoingMessage:
    """A batch for the slow path."""
    wait = encode_properties({PropertyKey.WAIT: "true" if key.wait_store_ok else "false"})
    return OutgoingMessage(key.topic, body, wait, 0, 0, ",".join(message_ids), is_batch=True)


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
