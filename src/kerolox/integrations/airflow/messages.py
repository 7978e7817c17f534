"""Messages as Airflow keeps them, in events and between tasks: JSON."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerolox.message import MessageExt


def as_json(message: MessageExt) -> dict[str, Any]:
    """A message: its body as ``body`` when it is a text, else as ``body_base64``."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "message_id": message.message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "born_timestamp": message.born_timestamp,
    }
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    return found
