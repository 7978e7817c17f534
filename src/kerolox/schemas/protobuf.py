"""Messages of Protobuf for registries: which one of its file, and its file as a schema."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import Message

from kerolox.errors import ConfigError
from kerolox.schemas.registry import Reference, Schema, SchemaRegistry
from kerolox.text.protobuf_values import descriptor_of, pool_of

__all__ = ["by_json", "dumper", "indexes_of", "loader", "message_class", "schema_id"]

FILES_MAX = 100
DEPTH_MAX = 64
_GOOGLE = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry has."""


def message_class(kind: type, descriptors: bytes, message: str) -> type[Message]:
    """The class of a message: ``kind``, or that of a name in a descriptor set. ConfigError: there
    is none.
    """
    if isinstance(kind, type) and issubclass(kind, Message):
        return kind
    if not descriptors or not message:
        raise ConfigError(
            f"{kind.__name__} is no class that protoc made; give descriptors= and message="
        )
    try:
        found: type[Message] = message_factory.GetMessageClass(
            descriptor_of(pool_of(descriptors), message)
        )
    except ValueError as error:
        raise ConfigError(f"the descriptor set {error}") from None
    return found


def indexes_of(descriptor: Descriptor) -> tuple[int, ...]:
    """The place of a message in its file: its number there, or those of the messages around it."""
    indexes = []
    while descriptor.containing_type is not None:
        outer = descriptor.containing_type
        indexes.append([each.name for each in outer.nested_types].index(descriptor.name))
        descriptor = outer
    indexes.append(list(descriptor.file.message_types_by_name).index(descriptor.name))
    return tuple(reversed(indexes))


def dumper(made: type[Message]) -> Callable[[Any], bytes]:
    """A function from a message of that class to its bytes."""

    def dump(value: object) -> bytes:
        if not isinstance(value, made):
            raise TypeError(f"is of type {type(value).__name__}, not {made.__name__}")
        body: bytes = value.SerializeToString()
        return body

    return dump


def loader(made: type[Message]) -> Callable[[bytes], Any]:
    """A function from bytes to a message of that class."""
    load: Callable[[bytes], Any] = made.FromString
    return load


def by_json(made: type[Message]) -> tuple[Callable[[Any], bytes], Callable[[bytes], object]]:
    """Both ways between members of Protobuf's JSON and bytes. A member that is null is left out."""

    def dump(plain: object) -> bytes:
        body: bytes = json_format.ParseDict(plain, made()).SerializeToString()
        return body

    def load(body: bytes) -> object:
        return json_format.MessageToDict(
            made.FromString(body),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )

    return dump, load


async def schema_id(
    registry: SchemaRegistry, file: FileDescriptor, subject: str, *, register: bool
) -> int:
    """The id of a file under a subject. Errors: see ``SchemaRegistry.register``; ConfigError: it
    imports too much.
    """
    return await _Files(registry, register=register).put(file, subject)


class _Files:
    """Files that a registry has, or gets."""

    def __init__(self, registry: SchemaRegistry, *, register: bool) -> None:
        self._registry, self._register = registry, register
        self._known: dict[str, Reference] = {}

    async def put(self, file: FileDescriptor, subject: str) -> int:
        """Its id; what it imports comes first."""
        schema = await self._schema(file, DEPTH_MAX)
        put = self._registry.register if self._register else self._registry.lookup
        return await put(subject, schema)

    async def _schema(self, file: FileDescriptor, depth: int) -> Schema:
        references = [
            await self._reference(each, depth)
            for each in file.dependencies
            if not each.name.startswith(_GOOGLE)
        ]
        # Google's library has it without what is implied by the language, so all have the same.
        own = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(own)
        text = base64.b64encode(own.SerializeToString(deterministic=True)).decode()
        return Schema(text, "PROTOBUF", tuple(references))

    async def _reference(self, file: FileDescriptor, depth: int) -> Reference:
        known = self._known.get(file.name)
        if known is None:
            if not depth or len(self._known) >= FILES_MAX:
                raise ConfigError(f"{file.name}: the message imports more than {FILES_MAX} files")
            schema = await self._schema(file, depth - 1)
            if self._register:
                await self._registry.register(file.name, schema)
            version = await self._registry.version_of(file.name, schema)
            known = self._known[file.name] = Reference(file.name, file.name, version)
        return known
