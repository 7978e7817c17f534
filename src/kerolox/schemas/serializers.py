"""Typed values as bodies in Confluent's wire format, by schemas of a registry.

A serializer knows its own schema's id from the start, so that a send asks nobody. It asks the
registry for the schema of a body that another one has written, once.
"""

from __future__ import annotations

import datetime
import decimal
import typing
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec

from kerolox.client.core.checking import not_callable
from kerolox.client.core.consuming.outcome import OneResult, Outcome
from kerolox.client.core.serializers import Serializer, serializer_of
from kerolox.errors import ConfigError, SerializationError
from kerolox.message import MessageExt
from kerolox.schemas.registry import RegistryError, Schema, SchemaRegistry
from kerolox.schemas.wire import header, split, split_indexes

__all__ = ["SchemaSerializer", "avro_serializer", "json_serializer", "protobuf_serializer"]

READERS_KEPT_MAX = 200
"""Schemas of others that one serializer has made ready."""
REFERENCES_MAX, DEPTH_MAX = 100, 16
_OWN = (bytes, datetime.datetime, datetime.date, datetime.time, decimal.Decimal, uuid.UUID)
"""What Avro's logical types take as it is."""

_Value = TypeVar("_Value")
_Read = Callable[[bytes], object]


class SchemaSerializer(Generic[_Value]):
    """Writes values of one type as bodies, and reads them; :func:`avro_serializer` and its like
    make it."""

    def __init__(
        self,
        own: Serializer[_Value],
        schema_id: int,
        begin: bytes,
        *,
        load_other: Callable[[int, bytes], Awaitable[_Value]] | None = None,
        unwrap: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Programs call :func:`avro_serializer` and its like.

        Args:
            own: between values and what stands behind the header, by its own schema.
            schema_id: of that.
            begin: the header.
            load_other: reads what was written by the schema of another id; None: ``own`` does.
            unwrap: takes off what stands between id and value.
        """
        self.id: int = schema_id
        self._own, self._begin = own, begin
        self._load_other, self._unwrap = load_other, unwrap

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._own.name}, schema {self.id}>"

    def dump(self, value: _Value) -> bytes:
        """The body of a value.

        Raises:
            SerializationError: it is no such value.
        """
        return self._begin + self._own.dump(value)

    async def load(self, body: bytes) -> _Value:
        """The value of a body.

        Raises:
            SerializationError: it holds none, or the registry does not know its schema.
            RegistryError: the registry does not answer, or refuses.
        """
        try:
            schema_id, rest = split(body)
            rest = self._unwrap(rest)
        except ValueError as error:
            raise SerializationError(f"the body holds no {self._own.name}: {error}") from None
        if schema_id == self.id or self._load_other is None:
            return self._own.load(rest)
        return await self._load_other(schema_id, rest)

    async def value(self, message: MessageExt) -> _Value:
        """The value of a message that was read. Errors: see :meth:`load`; the text names the
        message."""
        name = f"message {message.message_id} of topic {message.topic}"
        if message.body_error:
            raise SerializationError(f"{name}: {message.body_error}")
        try:
            return await self.load(message.body)
        except SerializationError as error:
            raise SerializationError(f"{name}: {error}") from error.__cause__

    def listener(
        self, listener: Callable[[_Value, MessageExt], Awaitable[OneResult]]
    ) -> Callable[[MessageExt], Awaitable[OneResult]]:
        """A listener for ``subscribe_each``, of an async function that takes a value and its
        message. A message whose body holds no value is a dead letter at once. While the registry
        does not answer, messages come again.

        Raises:
            ConfigError: it is no function of two arguments.
        """
        if fault := not_callable(listener, 2):
            raise ConfigError(f"listener {fault}")

        async def on_message(message: MessageExt) -> OneResult:
            try:
                value = await self.load(message.body)
            except SerializationError as error:
                return Outcome.dead_letter(str(error))
            return await listener(value, message)

        on_message.__qualname__ = getattr(listener, "__qualname__", repr(listener))
        return on_message


async def avro_serializer(
    registry: SchemaRegistry,
    kind: type[_Value],
    subject: str,
    *,
    schema: str = "",
    register: bool = False,
) -> SchemaSerializer[_Value]:
    """Values as Avro: of dataclasses, msgspec's structs, pydantic's models, or ``dict``.

    Args:
        registry: where schemas are.
        kind: the type of the values.
        subject: usually ``TOPIC-value``.
        schema: the text of an ``.avsc`` by which values are written and wanted; empty: the
            subject's newest one.
        register: have the subject have it; else it must have it.

    Raises:
        ConfigError: the schema or the type can't be used, or the extra is not installed.
        RegistryError: the registry refuses, does not know it, or does not answer.
    """
    try:
        from kerolox.text.avro_values import reader_of, writer_of
    except ImportError as error:
        raise _missing(error) from None
    schema_id, text = await _own_schema(registry, subject, "AVRO", schema, register=register)
    to_plain, of_plain, name = _mapping(kind)
    try:
        write, read = writer_of(text), reader_of(text)
    except ValueError as error:
        raise ConfigError(f"the schema of {subject}: {error}") from None
    readers: OrderedDict[int, _Read] = OrderedDict()

    def no_dump(_: _Value) -> bytes:
        raise NotImplementedError  # what others have written is read alone

    async def load_other(other: int, rest: bytes) -> _Value:
        reader = readers.get(other)
        if reader is None:
            reader = readers[other] = await _reader(registry, other, text)
            while len(readers) > READERS_KEPT_MAX:
                readers.popitem(last=False)
        return Serializer(no_dump, lambda body: of_plain(reader(body)), name=name).load(rest)

    return SchemaSerializer(
        Serializer(
            lambda value: write(to_plain(value)), lambda body: of_plain(read(body)), name=name
        ),
        schema_id,
        header(schema_id),
        load_other=load_other,
    )


async def json_serializer(
    registry: SchemaRegistry,
    kind: type[_Value],
    subject: str,
    *,
    schema: str = "",
    register: bool = False,
) -> SchemaSerializer[_Value]:
    """Values as JSON, as ``serializer_of`` writes and reads them; a body is checked by the type.

    Args and errors: see :func:`avro_serializer`; an empty ``schema`` with ``register`` is the one
    that msgspec or pydantic makes of the type.
    """
    own = serializer_of(kind)
    if register and not schema:
        schema = _json_schema(kind)
    schema_id, _ = await _own_schema(registry, subject, "JSON", schema, register=register)
    return SchemaSerializer(own, schema_id, header(schema_id))


async def protobuf_serializer(
    registry: SchemaRegistry,
    kind: type[_Value],
    subject: str,
    *,
    descriptors: bytes = b"",
    message: str = "",
    register: bool = False,
) -> SchemaSerializer[_Value]:
    """Values as Protobuf: of a class that protoc has made, or of any other type by a descriptor
    set, with the members of Protobuf's JSON.

    Args:
        registry: where schemas are.
        kind: the type of the values.
        subject: usually ``TOPIC-value``.
        descriptors: where ``kind`` is no class of protoc: what ``protoc --include_imports
            --descriptor_set_out`` writes.
        message: with it: the message's name, with its package.
        register: have the subject have the file of the message; what that imports, beside
            Google's own, is registered under its file's name. Else the subject must have it.

    Errors: see :func:`avro_serializer`.
    """
    try:
        from kerolox.schemas import protobuf
    except ImportError as error:
        raise _missing(error) from None
    made: Any = protobuf.message_class(kind, descriptors, message)
    schema_id = await protobuf.schema_id(registry, made.DESCRIPTOR.file, subject, register=register)
    indexes = protobuf.indexes_of(made.DESCRIPTOR)
    own: Serializer[Any]
    if made is kind:
        own = Serializer(protobuf.dumper(made), protobuf.loader(made), name=made.__name__)
    else:
        to_plain, of_plain, name = _mapping(kind, is_json=True)
        dump, load = protobuf.by_json(made)
        own = Serializer(lambda v: dump(to_plain(v)), lambda body: of_plain(load(body)), name=name)

    def unwrap(rest: bytes) -> bytes:
        found, value = split_indexes(rest)
        if found != indexes:
            raise ValueError(f"it is message {list(found)} of its file, not {list(indexes)}")
        return value

    begin = header(schema_id, indexes)
    return SchemaSerializer(cast("Serializer[_Value]", own), schema_id, begin, unwrap=unwrap)


async def _own_schema(
    registry: SchemaRegistry, subject: str, kind: str, text: str, *, register: bool
) -> tuple[int, str]:
    if not text:
        if register:
            raise ConfigError("give the schema that is to be registered by schema=")
        newest = await registry.latest(subject)
        if newest.schemaType != kind:
            raise ConfigError(f"the newest schema of {subject} is {newest.schemaType}, not {kind}")
        if newest.references:
            raise ConfigError(f"the newest schema of {subject} has references; give it by schema=")
        return newest.id, newest.schema
    given = Schema(text, cast("Any", kind))
    if register:
        return await registry.register(subject, given), text
    return await registry.lookup(subject, given), text


async def _reader(registry: SchemaRegistry, schema_id: int, wanted: str) -> _Read:
    """What reads values that were written by the schema of an id, as one wants them."""
    from kerolox.text.avro_values import reader_of

    try:
        found = await registry.schema(schema_id)
        if found.schemaType != "AVRO":
            raise ValueError(f"is {found.schemaType}, not AVRO")
        references = await _references(registry, found, {}, DEPTH_MAX)
        return reader_of(found.schema, references=list(references.values()), wanted=wanted)
    except ValueError as error:
        raise SerializationError(f"schema {schema_id} of the body: {error}") from None
    except RegistryError as error:
        if error.is_unknown:
            raise SerializationError(
                f"schema {schema_id} of the body is unknown: {error}"
            ) from None
        raise


async def _references(
    registry: SchemaRegistry, schema: Schema, found: dict[str, str], depth: int
) -> Mapping[str, str]:
    """The texts that a schema refers to, those that others need first, by name."""
    for each in schema.references:
        if each.name in found:
            continue
        if not depth or len(found) >= REFERENCES_MAX:
            raise ValueError("has references that are too many or too deep")
        other = await registry.version(each.subject, each.version)
        inner = Schema(other.schema, other.schemaType, other.references)
        await _references(registry, inner, found, depth - 1)
        found[each.name] = other.schema
    return found


def _mapping(
    kind: type[_Value], *, is_json: bool = False
) -> tuple[Callable[[_Value], object], Callable[[object], _Value], str]:
    """From values to what a library writes, back, and what a value is called."""
    name = str(kind) if typing.get_args(kind) else getattr(kind, "__name__", str(kind))
    if hasattr(kind, "__pydantic_core_schema__"):
        from pydantic import TypeAdapter

        adapter: TypeAdapter[_Value] = TypeAdapter(kind)

        def dump(value: _Value) -> object:
            checked = adapter.validate_python(value, strict=True)
            return adapter.dump_python(checked, by_alias=True, mode="json" if is_json else "python")

        return dump, adapter.validate_python, name
    own = () if is_json else _OWN

    def to_plain(value: _Value) -> object:
        if isinstance(kind, type) and not isinstance(value, kind):
            raise TypeError(f"is of type {type(value).__name__}, not {name}")
        return msgspec.to_builtins(value, builtin_types=own)

    def of_plain(plain: object) -> _Value:
        # Protobuf's JSON has large numbers as texts.
        return msgspec.convert(plain, kind, builtin_types=own, strict=not is_json)

    return to_plain, of_plain, name


def _json_schema(kind: type) -> str:
    if hasattr(kind, "__pydantic_core_schema__"):
        from pydantic import TypeAdapter

        return msgspec.json.encode(TypeAdapter(kind).json_schema()).decode()
    try:
        return msgspec.json.encode(msgspec.json.schema(kind)).decode()
    except TypeError as error:
        raise ConfigError(f"no JSON schema can be made of the type: {error}") from None


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"{error}; schemas need an extra: pip install 'kerolox[schemas]'")
