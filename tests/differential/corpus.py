"""Frames of real clients, as a file: what each sent to the broker, in the order of arrival."""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kerolox.protocol.codes import RequestCode

__all__ = ["CORPUS", "FAST_CODES", "SETUP_CODES", "Recorded", "read_corpus", "write_corpus"]

CORPUS = Path(__file__).with_name("corpus.xz")

FAST_CODES = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    )
)
"""Requests that the fast path answers, if it can."""

SETUP_CODES = frozenset(
    (
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    )
)
"""Requests that make what those need: topics, groups, subscriptions, offsets."""

_ENTRY = struct.Struct(">HI")


class Recorded(NamedTuple):
    """One frame."""

    connection: int
    frame: bytes
    """Whole, with its length field."""


def write_corpus(path: Path, frames: Iterable[Recorded]) -> None:
    """Write frames, compressed."""
    entries = (_ENTRY.pack(each.connection, len(each.frame)) + each.frame for each in frames)
    path.write_bytes(lzma.compress(b"".join(entries), preset=9 | lzma.PRESET_EXTREME))


def read_corpus(path: Path = CORPUS) -> list[Recorded]:
    """All frames of a file."""
    data = lzma.decompress(path.read_bytes())
    frames: list[Recorded] = []
    position = 0
    while position < len(data):
        connection, size = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        frames.append(Recorded(connection, data[position : position + size]))
        position += size
    return frames
