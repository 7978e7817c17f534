"""Bodies by schemas that an operator has given: Avro and Protobuf, shown as JSON.

A file of JSON names the schema of each topic. Both libraries come with the extra ``schemas`` and
are imported where the file names their format. Bodies are of strangers: a schema whose values could
be without end in a few bytes, or too deep for the stack, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from kerolox.config import open_regular
from kerolox.errors import ConfigError
from kerolox.message import MessageExt, PropertyKey
from kerolox.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC
from kerolox.text.msgpack_text import json_value

__all__ = ["BodySchema", "Schemas", "read_schemas"]

FILE_BYTES_MAX = 1024 * 1024
SCHEMA_BYTES_MAX = 4 * 1024 * 1024
SKIPPED_BYTES_MAX = 1024
BODY_BYTES_MAX = 64 * 1024
"""Longer bodies are not decoded."""


class SchemaSetting(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """The schema of a topic."""

    format: Literal["avro", "protobuf"]
    file: str
    """An ``.avsc``, or a descriptor set of ``protoc``; beside the file that names it."""
    message: str = ""
    """Of Protobuf: the type, with its package."""
    skip_bytes: int = 0
    """What stands before each value: 5 of Confluent's Avro, 10 of Avro's single-object encoding."""


class _ToJson(Protocol):
    def __call__(self, body: bytes) -> bytes:
        """Raises any exception for bytes that are no value."""


@dataclass(frozen=True, slots=True)
class BodySchema:
    """How the bodies of a topic are read."""

    format: str
    """``avro`` or ``protobuf``, as the view is called."""
    skip_bytes: int
    to_json: _ToJson

    def json_of(self, body: bytes) -> bytes:
        """A body as JSON; ValueError: it is too long, or no value of the schema."""
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"it has more than {BODY_BYTES_MAX} bytes")
        if len(body) < self.skip_bytes:
            raise ValueError(f"it has less than the {self.skip_bytes} bytes before a value")
        try:
            return self.to_json(body[self.skip_bytes :])
        except Exception as error:  # whatever the library makes of bytes of strangers
            raise ValueError(str(error) or type(error).__name__) from None


class Schemas:
    """The schemas by topic."""

    def __init__(self, by_topic: Mapping[str, BodySchema] | None = None) -> None:
        self._by_topic = by_topic or {}

    def of(self, message: MessageExt) -> BodySchema | None:
        """That of the topic a message was sent to, also while it is retried, dead or kept back;
        None: it has none."""
        topic = message.properties.get(PropertyKey.RETRY_TOPIC) or message.topic
        if message.topic in (SCHEDULE_TOPIC, HALF_TOPIC):
            topic = message.properties.get(PropertyKey.REAL_TOPIC, "")
        return self._by_topic.get(topic)


def read_schemas(path: Path) -> Schemas:
    """The schemas that a file names; ConfigError: it, or a schema, can't be read or used; or a
    library is not installed.
    """
    try:
        settings = msgspec.json.decode(_read(path, FILE_BYTES_MAX), type=dict[str, SchemaSetting])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of schemas: {error}") from None
    made: dict[str, BodySchema] = {}
    for topic, each in settings.items():
        file = path.parent / Path(each.file).expanduser()
        try:
            if not 0 <= each.skip_bytes <= SKIPPED_BYTES_MAX:
                raise ValueError(f"skipBytes is {each.skip_bytes}; 0 to {SKIPPED_BYTES_MAX} fit")
            make = _avro if each.format == "avro" else _protobuf
            to_json = make(_read(file, SCHEMA_BYTES_MAX), each.message)
        except ImportError as error:
            raise ConfigError(
                f"{error}; schemas need an extra: pip install 'kerolox[console,schemas]'"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: topic {topic}: {file}: {error}") from None
        made[topic] = BodySchema(each.format, each.skip_bytes, to_json)
    return Schemas(made)


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(data) > bytes_max:
        raise ConfigError(f"{path} has more than {bytes_max} bytes")
    return data


def _avro(schema: bytes, _message: str) -> _ToJson:
    from kerolox.text.avro_values import reader_of

    read: Callable[[bytes], object] = reader_of(schema.decode())
    return lambda body: msgspec.json.encode(json_value(read(body)))


def _protobuf(descriptors: bytes, message: str) -> _ToJson:
    from google.protobuf import json_format, message_factory

    from kerolox.text.protobuf_values import descriptor_of, pool_of

    if not message:
        raise ValueError("name the message, with its package")
    pool = pool_of(descriptors)
    made = message_factory.GetMessageClass(descriptor_of(pool, message))

    def to_json(body: bytes) -> bytes:
        value = made.FromString(body)
        if body and not value.ListFields():
            # Any bytes with the shape of fields are a message of fields that are not known.
            raise ValueError(f"it has no field of {message}")
        text: str = json_format.MessageToJson(
            value, preserving_proto_field_name=True, ensure_ascii=False, descriptor_pool=pool
        )
        return text.encode()

    return to_json
