"""The classes of RocketMQ's gRPC messages, by their names in ``apache/rocketmq/v2/*.proto``.

They are in a pool of descriptors of their own: a process may have the official client, too, whose
files have the same names and may be of another version.
"""

from __future__ import annotations

import base64

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

from kerolox.protocol.grpc._files import DESCRIPTORS

_PACKAGE = "apache.rocketmq.v2."


def _members() -> dict[str, object]:
    """Classes of messages, wrappers of enums, and the numbers of these, each by its name."""
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, object] = {}
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(DESCRIPTORS))
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    for file in files.file:
        prefix = f"{file.package}."
        for message in file.message_type:
            described = pool.FindMessageTypeByName(prefix + message.name)
            found[message.name] = message_factory.GetMessageClass(described)
        for enum in file.enum_type:
            described = pool.FindEnumTypeByName(prefix + enum.name)
            found[enum.name] = enum_type_wrapper.EnumTypeWrapper(described)
            found.update((value.name, value.number) for value in enum.value)
    return found


globals().update(_members())
