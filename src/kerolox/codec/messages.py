"""Pulled records to messages whose parts are made when they are looked at.

A consumer looks at few parts of most messages. So of each record the body and what consuming needs
are taken at once; the rest is copied as it is and decoded on the first look. A message thereby
owns its bytes: one that is kept for long keeps no other message of its pull in memory.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from kerolox.codec import message_twin
from kerolox.errors import RemoteProtocolError
from kerolox.kernel.choice import kernel_name, load_kernel
from kerolox.message import PropertyKey
from kerolox.protocol.compression import inflate_body
from kerolox.protocol.records import decode_record, head_part, head_size, record_fault

if TYPE_CHECKING:
    from kerolox.message import MessageExt, RecordParts


class MessageCodec(Protocol):
    """What differs between the native decoder and its twin in Python."""

    @staticmethod
    def cut_messages(
        data: bytes, parts: RecordParts, broker_name: str, tags: tuple[str, ...]
    ) -> tuple[list[MessageExt], list[int], int]:
        """Records that follow each other as messages; their bodies are as stored.

        Args:
            data: the records.
            parts: makes what is not looked at yet.
            broker_name: of all the messages.
            tags: only messages with one of these are made; empty: all.

        Returns:
            The messages, which of them have a compressed body, and where the first record begins
            that is none (the end of ``data``, when there is none such).
        """

    @staticmethod
    def decode_properties(kept: bytes, start: int) -> dict[str, str]:
        """The properties of the text from ``start`` on; bytes that are no UTF-8 are repaired."""


@cache
def message_codec() -> MessageCodec:
    """The decoder of the kernel that this process uses.

    Raises:
        ConfigError: see :func:`kerolox.kernel.choice.load_kernel`.
    """
    kernel = load_kernel() if kernel_name() == "native" else message_twin
    # An older kerolox-kernel does not have it.
    return cast("MessageCodec", kernel if hasattr(kernel, "cut_messages") else message_twin)


class _PulledParts:
    """The parts of messages that came with one answer."""

    __slots__ = ("_bounds", "_codec")

    def __init__(self, codec: MessageCodec, bounds: tuple[str, str] | None) -> None:
        self._codec = codec
        self._bounds = bounds

    def properties(self, kept: bytes) -> dict[str, str]:
        properties = self._codec.decode_properties(kept, head_size(kept))
        if self._bounds is not None:
            properties[PropertyKey.MIN_OFFSET], properties[PropertyKey.MAX_OFFSET] = self._bounds
        return properties

    def part(self, kept: bytes, name: str) -> object:
        return head_part(kept, name)


def decode_messages(
    data: bytes,
    *,
    broker_name: str = "",
    tags: tuple[str, ...] = (),
    bounds: tuple[str, str] | None = None,
    codec: MessageCodec | None = None,
) -> list[MessageExt]:
    """The messages of records that follow each other, as ``decode_records`` gives them.

    Compressed bodies are inflated at once, since a consumer counts their bytes and gives back those
    that can't be.

    Args:
        data: the body of the answer to a pull.
        broker_name: who answered.
        tags: messages without one of these are left out; empty: none is.
        bounds: the queue's MIN_OFFSET and MAX_OFFSET, which become properties of each message.
        codec: None: that of the kernel that this process uses.

    Raises:
        RemoteProtocolError: a record is torn, has a wrong magic, or lengths that do not add up.
    """
    codec = codec or message_codec()
    parts = _PulledParts(codec, bounds)
    messages, compressed, end = codec.cut_messages(data, parts, broker_name, tags)
    if end < len(data):
        decode_record(data, end, inflate=False)  # states what is wrong
        raise RemoteProtocolError(record_fault(data, end))
    for index in compressed:
        message = messages[index]
        try:
            message.body = inflate_body(message.body, message.sys_flag)
        except RemoteProtocolError as error:
            message.body_error = str(error)
    return messages
