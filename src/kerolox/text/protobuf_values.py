"""Messages of Protobuf, by a descriptor set (``protoc --descriptor_set_out --include_imports``)."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

__all__ = ["descriptor_of", "pool_of"]


def pool_of(descriptors: bytes) -> DescriptorPool:
    """What a serialized ``FileDescriptorSet`` describes; ValueError: it is none, or lacks parts."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        raise ValueError("is no descriptor set; write it by protoc --descriptor_set_out") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
    except TypeError as error:
        raise ValueError(f"is not complete ({error}); give protoc --include_imports") from None
    return pool


def descriptor_of(pool: DescriptorPool, name: str) -> Descriptor:
    """A message type of it, by its name with the package; ValueError: it has no such message, or is
    not complete.
    """
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise ValueError(f"has no message {name}") from None
    except TypeError as error:
        raise ValueError(f"is not complete ({error}); give protoc --include_imports") from None
