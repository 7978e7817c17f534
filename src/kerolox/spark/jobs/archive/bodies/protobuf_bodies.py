"""Protobuf bodies, by a descriptor set (``protoc --descriptor_set_out --include_imports``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import DataFrame, types

from kerolox.spark.jobs.archive.bodies.in_workers import decode_in_workers
from kerolox.text.protobuf_values import descriptor_of, pool_of

_SIMPLE: dict[int, types.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: types.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: types.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: types.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: types.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: types.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: types.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: types.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: types.StringType(),
    FieldDescriptor.CPPTYPE_STRING: types.StringType(),
}


class ProtobufDecoder:
    """Decodes bodies of one message type, ``name`` with its package. A field that can be absent is
    null where it is; an enum is its name, or its number where it has none. ``descriptors``: a
    serialized ``FileDescriptorSet``. ValueError: it has no such message, or one that contains
    itself.
    """

    def __init__(self, descriptors: bytes, name: str) -> None:
        self._descriptors, self._name = descriptors, name
        self._type = _type_of(descriptor_of(pool_of(descriptors), name), ())

    def value_type(self) -> types.DataType:
        """Of the message."""
        return self._type

    def decode(self, frame: DataFrame) -> DataFrame:
        """The rows with ``value`` and ``reason``."""
        descriptors, name = self._descriptors, self._name
        return decode_in_workers(frame, self._type, lambda: reader_of(descriptors, name))


def reader_of(descriptors: bytes, name: str) -> Callable[[bytes], object]:
    """A function from a body to its value; it raises for bytes that are none."""
    message = message_factory.GetMessageClass(descriptor_of(pool_of(descriptors), name))

    def decode(body: bytes) -> object:
        return _value_of(message.FromString(body))

    return decode


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _type_of(message: Descriptor, inside: tuple[str, ...]) -> types.StructType:
    if message.full_name in inside:
        raise ValueError(f"has message {message.full_name} within itself; a column can't")
    deeper = (*inside, message.full_name)
    fields = []
    for field in message.fields:
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            kind: types.DataType = types.MapType(_item_type(key, deeper), _item_type(value, deeper))
        else:
            kind = _item_type(field, deeper)
            kind = types.ArrayType(kind) if field.is_repeated else kind
        fields.append(types.StructField(field.name, kind))
    if not fields:
        raise ValueError(f"has message {message.full_name} without fields, which no column can be")
    return types.StructType(fields)


def _item_type(field: FieldDescriptor, inside: tuple[str, ...]) -> types.DataType:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return types.BinaryType()
    if field.message_type is not None:
        return _type_of(field.message_type, inside)
    return _SIMPLE[field.cpp_type]


def _value_of(message: Any) -> dict[str, object]:  # noqa: ANN401 - of a class made at run time
    values: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            values[field.name] = {key: _item_of(of_value, each) for key, each in value.items()}
        elif field.is_repeated:
            values[field.name] = [_item_of(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _item_of(field, value)
    return values


def _item_of(field: FieldDescriptor, value: Any) -> object:  # noqa: ANN401 - whatever a field has
    if field.message_type is not None:
        return _value_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
