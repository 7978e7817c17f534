"""What an answer to a send says of messages that their topic had: it names the places of the first
ones, and these members besides. Clients of RocketMQ pass over members that they do not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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
