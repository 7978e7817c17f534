"""What answers say of messages that their topic had. That to a send names the places of the first
ones, and these members besides. Clients of RocketMQ pass over members that they do not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kerolox.protocol.headers import Header
from kerolox.protocol.names import Int64

DUPLICATE_FIELD = "duplicate"
"""``true``: nothing was stored, the topic had all of it. ``false``: it had some of a batch."""

DUPLICATES_FIELD = "duplicates"
"""Of a batch: the messages that the topic had."""


class DuplicatePlace(NamedTuple):
    """Where the first one of a batch's message is."""

    number: int
    """Of the message in the batch, from 0 on."""
    queue_id: int
    queue_offset: int


class DedupWindow(Header, frozen=True, kw_only=True):
    """What a master's answer to GET_TOPIC_CONFIG says of the topic's window, where it has one."""

    dedup_keys: Int64
    """Keys that are kept."""
    dedup_bytes: Int64
    """Memory that they take."""
    dedup_age_ms: Int64
    """How old the oldest is; 0 without any."""
    dedup_keys_cut: Int64
    """Keys that were forgotten before their time: more came than ``dedupMaxKeys``."""
    dedup_answered: Int64
    """Messages that were not stored again since the broker's start."""


def encode_places(places: Iterable[DuplicatePlace]) -> str:
    """As ``duplicates`` has them: ``number:queue:offset``, joined by spaces."""
    return " ".join(f"{place.number}:{place.queue_id}:{place.queue_offset}" for place in places)


def decode_places(text: str) -> list[DuplicatePlace]:
    """The same, read. ValueError: it is something else."""
    places = []
    for each in text.split():
        number, queue_id, queue_offset = map(int, each.split(":"))
        places.append(DuplicatePlace(number, queue_id, queue_offset))
    return places
