"""What a producer gets for a message that waits for its moment, and takes it back by
(``RecallMessageHandle`` of RocketMQ 5)."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from kerolox.protocol.java_numbers import java_long

RECALL_HANDLE_FIELD = "recallHandle"
"""The header field of the answer to a send."""

_VERSION = "v1"
_INVALID = "recall handle is invalid"


class RecallHandle(NamedTuple):
    """Which message is meant."""

    topic: str
    broker_name: str
    time_ms: int
    """A millisecond behind its ``TIMER_OUT_MS``, so that the command comes into the same slot."""
    unique_key: str

    def encode(self) -> str:
        """As producers get it: URL-safe base64."""
        text = " ".join((_VERSION, *map(str, self)))
        return base64.urlsafe_b64encode(text.encode()).decode()


class RecallError(ValueError):
    """A text is no handle."""


def decode_handle(text: str) -> RecallHandle:
    """Read a handle; what follows the fifth part is ignored, as in RocketMQ. RecallError: it is
    none, or cut. RocketMQ's text, and what is wrong.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
    except (UnicodeError, binascii.Error) as error:
        raise RecallError(f"{_INVALID}: it is no URL-safe base64 of a text") from error
    if parts[0] != _VERSION:
        raise RecallError(f"{_INVALID}: its version is not {_VERSION}")
    if len(parts) < 5 or not all(parts[:5]):
        raise RecallError(f"{_INVALID}: it has {len(parts)} parts, and 5 are expected")
    _, topic, broker_name, time_text, unique_key = parts[:5]
    time_ms = java_long(time_text)
    return RecallHandle(topic, broker_name, -1 if time_ms is None else time_ms, unique_key)
