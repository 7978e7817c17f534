"""Fast-path pulls: requests of which only four numbers change, what their answers say, and records
as messages whose parts are made when they are read.

A consumer reads few parts of most messages. So a codec decodes the body of each record and what
consuming needs at once. It copies the rest as it is and decodes that on first use. A message
thereby owns its bytes: one that is kept for long keeps no other message of its pull in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import lt
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import msgspec

from kerolox.errors import RemoteProtocolError
from kerolox.kernel.choice import kernel_name, load_kernel
from kerolox.message import MessageExt, RecordParts
from kerolox.protocol.codes import VERSION, LanguageCode, RequestCode
from kerolox.protocol.compression import inflate_body
from kerolox.protocol.framing import LENGTHS
from kerolox.protocol.records import decode_record, head_part, head_size, record_fault

if TYPE_CHECKING:
    from kerolox.codec.python_answers import PullAnswer

CHANGING_FIELDS = ("queueOffset", "sysFlag", "commitOffset")
"""Fields of a pull that change from pull to pull, in the order of its header."""

_to_json = msgspec.json.Encoder().encode


class PullFrames:
    """Makes the frames of one queue's pulls, as the slow path does for JSON, unsigned."""

    __slots__ = ("_at_commit", "_at_flags", "_at_offset", "_at_opaque", "_tail")

    def __init__(self, fields: Mapping[str, str]) -> None:
        """``fields``: those of a pull, with any values in :data:`CHANGING_FIELDS`."""
        parts: list[str] = []
        text = f'{{"code":{int(RequestCode.PULL_MESSAGE)},"extFields":'
        mark = "{"
        for name, value in fields.items():
            text += f"{mark}{_text(name)}:"
            mark = ","
            if name in CHANGING_FIELDS:
                parts.append(f'{text}"')
                text = '"'
            else:
                text += _text(value)
        self._at_offset, self._at_flags, self._at_commit = parts
        self._at_opaque = f'{text}}},"flag":0,"language":"{LanguageCode.PYTHON.name}","opaque":'
        self._tail = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'

    def frame(self, opaque: int, offset: int, flags: int, commit_offset: int) -> bytes:
        """The frame of one pull.

        Args:
            opaque: of the request.
            offset: first queue offset.
            flags: its sys flag.
            commit_offset: the group's offset to be stored on the way.
        """
        header = (
            f"{self._at_offset}{offset}{self._at_flags}{flags}{self._at_commit}{commit_offset}"
            f"{self._at_opaque}{opaque}{self._tail}"
        ).encode()
        size = len(header)
        return LENGTHS.pack(4 + size, size) + header


def _text(value: str) -> str:
    return _to_json(value).decode()


class MessageCodec(Protocol):
    """What differs between the native decoder and its Python implementation."""

    @staticmethod
    def pull_answer(frame: bytes) -> PullAnswer | None:
        """What the frame of an answer to a pull says, without its length; None: it is anything
        else, or oddly written."""

    @staticmethod
    def cut_messages(
        data: bytes, parts: RecordParts, broker_name: str, tags: tuple[str, ...], start: int = 0
    ) -> tuple[list[MessageExt], list[int], int, int, bool]:
        """Records that follow each other as messages; their bodies are as stored.

        Args:
            data: what ends with the records.
            parts: makes what is not read yet.
            tags: only messages with one of these are made; empty: all.
            start: where in ``data`` the first record begins.

        Returns:
            The messages, which of them have a compressed body, where the first record begins that
            is none (the end of ``data``, when there is none such), the bytes of their bodies, and
            whether the queue offset of each is greater than that of the one before it.
        """

    @staticmethod
    def decode_properties(kept: bytes, start: int) -> dict[str, str]:
        """The properties of the text from ``start`` on; bytes that are no UTF-8 are repaired."""


@cache
def message_codec() -> MessageCodec:
    """The decoder of the kernel that this process uses."""
    chosen = kernel_name()
    if chosen == "native":
        return cast("MessageCodec", load_kernel(chosen))
    from kerolox.codec import python_answers

    return cast("MessageCodec", python_answers)


class _PulledParts:
    """The parts of messages that came with one answer."""

    __slots__ = ("_codec", "bounds")

    def __init__(self, codec: MessageCodec, bounds: tuple[str, str] | None) -> None:
        self._codec = codec
        self.bounds = bounds

    def properties(self, kept: bytes) -> dict[str, str]:
        return self._codec.decode_properties(kept, head_size(kept))

    def part(self, kept: bytes, name: str) -> object:
        return head_part(kept, name)


class Pulled(NamedTuple):
    """Messages that came with one answer."""

    messages: list[MessageExt]
    body_bytes: int
    """Those of all bodies."""
    ascends: bool
    """The queue offset of each is greater than that of the one before it."""
    is_readable: bool
    """No message has a ``body_error``."""


def pulled_of(messages: list[MessageExt]) -> Pulled:
    """Messages of which nothing is known of all together."""
    offsets = [message.queue_offset for message in messages]
    return Pulled(
        messages,
        sum([len(message.body) for message in messages]),
        all(map(lt, offsets, offsets[1:])),
        not any([message.body_error for message in messages]),
    )


def decode_messages(
    data: bytes,
    *,
    broker_name: str = "",
    tags: tuple[str, ...] = (),
    bounds: tuple[str, str] | None = None,
    codec: MessageCodec | None = None,
) -> list[MessageExt]:
    """The messages of records that follow each other, as ``decode_records`` gives them: the body of
    the answer to a pull. RemoteProtocolError: a record is torn, has a wrong magic, or lengths that
    do not add up.

    ``tags``: messages without one of these are left out; empty: none is. ``bounds``: the queue's
    first and next offset, as the answer tells them: the ``queue_bounds`` of each message.
    ``codec``: None: that of the kernel that this process uses.
    """
    return decode_pulled(data, 0, broker_name, tags, bounds, codec or message_codec()).messages


def decode_pulled(
    data: bytes,
    start: int,
    broker_name: str,
    tags: tuple[str, ...],
    bounds: tuple[str, str] | None,
    codec: MessageCodec,
) -> Pulled:
    """As :func:`decode_messages`, from ``data[start:]``, with what is known of all together.

    Compressed bodies are inflated at once, since a consumer counts their bytes and gives back those
    that can't be.
    """
    parts = _PulledParts(codec, bounds)
    messages, compressed, end, size, ascends = codec.cut_messages(
        data, parts, broker_name, tags, start
    )
    if end < len(data):
        # The slow path states what is wrong, and where among the records.
        records = data[start:]
        decode_record(records, end - start, inflate=False)
        raise RemoteProtocolError(record_fault(records, end - start))
    is_readable = True
    for index in compressed:
        message = messages[index]
        size -= len(message.body)
        try:
            message.body = inflate_body(message.body, message.sys_flag)
        except RemoteProtocolError as error:
            message.body_error, is_readable = str(error), False
        size += len(message.body)
    return Pulled(messages, size, ascends, is_readable)
