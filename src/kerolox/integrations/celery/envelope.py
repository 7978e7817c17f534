"""Messages of kombu as bodies of RocketMQ's messages, and back. No I/O, no clock.

A body is the JSON that kombu's transports have in common: ``body``, ``content-type``,
``content-encoding``, ``headers``, ``properties``. Text stays as it is, other bytes are base64.
The message has Celery's task id as its key and the task's name as its tag, so that operators find
it by these. What comes and is no such JSON is given to kombu as bytes (``application/data``), with
the message's own properties as headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kombu.utils.json import dumps, loads

from kerolox.message import RESERVED_PROPERTIES, Message, MessageExt, PropertyKey

Payload = dict[str, Any]
"""A message as kombu's virtual transports know it."""

HOP_PROPERTY = "KEROLOX_TIMED_AGAIN"
"""A message with it waits for its moment in several steps, since that is too far away for one."""

EXPIRES = "expires_at"
"""In the properties of a payload: when nobody wants it any more, in seconds since the epoch."""

PAYLOAD_KEYS = ("body", "content-type", "content-encoding", "headers", "properties")

FOREIGN_TYPE = "application/data"

_NO_HEADERS = RESERVED_PROPERTIES | {PropertyKey.POP_RECEIPT}

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_TAG = re.compile(r"[\x21-\x7b\x7d\x7e]{1,255}")  # without |


class Timed(NamedTuple):
    """When a message is to come."""

    at: float
    """In seconds since the epoch."""
    is_last: bool
    """It is the wanted moment; False: a step on the way to it."""


def message_of(topic: str, payload: Payload, *, is_hop: bool = False) -> Message:
    """What is sent."""
    headers, properties = payload["headers"], payload["properties"]
    kept = {key: payload[key] for key in PAYLOAD_KEYS if key in payload}
    return Message(
        topic,
        dumps(kept).encode(),
        tags=_matching(_TAG, headers.get("task")),
        keys=_matching(_KEY, headers.get("id") or properties.get("correlation_id")),
        properties={HOP_PROPERTY: "1"} if is_hop else None,
    )


def payload_of(received: MessageExt) -> Payload:
    """What was received, as kombu wants it; never an error, whoever sent it."""
    payload = _parsed(received.body)
    if payload is None:
        payload = {
            "body": received.body,
            "content-type": FOREIGN_TYPE,
            "content-encoding": "binary",
            "headers": {
                name: value
                for name, value in received.properties.items()
                if name not in _NO_HEADERS
            },
            "properties": {"delivery_info": {"exchange": "", "routing_key": ""}},
        }
    payload["properties"]["delivery_info"]["redelivered"] = received.reconsume_times > 0
    return payload


def _parsed(body: bytes) -> Payload | None:
    try:
        payload = loads(body)
    except Exception:  # also what a decoder of a type raises, of kombu's or of the application's
        return None
    if not isinstance(payload, dict) or not isinstance(payload.get("body"), str | None):
        return None
    properties, headers = payload.get("properties"), payload.get("headers")
    if not isinstance(properties, dict) or not isinstance(headers, dict | None):
        return None
    if not isinstance(properties.setdefault("delivery_info", {}), dict):
        return None
    payload["headers"] = headers or {}
    return {key: payload.get(key) for key in PAYLOAD_KEYS}


def _matching(pattern: re.Pattern[str], text: object) -> str:
    return text if isinstance(text, str) and pattern.fullmatch(text) else ""


# -- times -----------------------------------------------------------------------------------------
def note_expiry(payload: Payload, now: float) -> None:
    """Note when it is over, as far as it says how long it counts (kombu's ``expiration``)."""
    properties = payload["properties"]
    if EXPIRES not in properties and (left := _number(properties.get("expiration"))) is not None:
        properties[EXPIRES] = now + left / 1000


def is_expired(payload: Payload, now: float) -> bool:
    """Whether nobody wants it any more."""
    until = _number(payload["properties"].get(EXPIRES))
    return until is not None and until <= now


def timed(headers: Mapping[str, Any], now: float, seconds_max: float) -> Timed | None:
    """When a message with an ETA is to come; None: at once. An ETA without a zone is the worker's
    to keep, as are those that can't be read.

    Args:
        headers: Celery's: ``eta`` is a time as ISO 8601 has it.
        now: in seconds since the epoch.
        seconds_max: how long brokers keep a message until its moment.
    """
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
        if moment.utcoffset() is None:
            return None
        at = moment.timestamp()
    except (ValueError, OverflowError):
        return None
    if at <= now:
        return None
    return Timed(at, True) if at <= now + seconds_max else Timed(now + seconds_max, False)


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
