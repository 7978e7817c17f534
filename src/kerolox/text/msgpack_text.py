"""MessagePack of strangers shown as JSON."""

from __future__ import annotations

import math

import msgspec

__all__ = ["json_value", "msgpack_value"]


def msgpack_value(body: bytes) -> object:
    """What a body holds, as JSON can have it: bytes as base64, keys as texts, NaN and infinities as
    texts. ValueError: it is no MessagePack. RecursionError: it is too deep.
    """
    return json_value(msgspec.msgpack.decode(body))


def json_value(value: object) -> object:
    """A value as JSON can have it. Raises RecursionError where it is too deep."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            # A key that is no text becomes one as in JSON, for instance 1 and true.
            return {_key(key): json_value(each) for key, each in value.items()}
        case list():
            return [json_value(each) for each in value]
        case _:
            return msgspec.json.decode(msgspec.json.encode(value))


def _key(key: object) -> str:
    [name] = msgspec.json.decode(msgspec.json.encode({key: 0}), type=dict[str, int])
    return name
