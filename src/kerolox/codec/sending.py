"""The interface of the codec of sends.

``SendEncoder`` makes the frames of a producer's plain messages of one topic. ``SendDecoder`` cuts
what a connection brings into frames, and reads those that say of an open send where its message is
stored. Neither does I/O, reads a clock or keeps a send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

SendAnswer = tuple[int, int, int, str, str, bool]
"""What a plain answer says: opaque, queue id, queue offset, the broker's message id, its region,
and whether it wants traces. The message is stored as safely as the broker is set to (code 0)."""

PLAIN_HEADER_BYTES_MAX = 4_096
"""Longest header of an answer that a codec reads; a broker's has 200 to 300."""


class SendEncoder(Protocol):
    """Makes the frames of one producer's messages of one topic."""

    def encode(
        self,
        queue_id: int,
        opaque: int,
        now_ms: int,
        message_id: str,
        body: bytes,
        keys: str,
        tags: str,
        wait: bool,
        flag: int,
        properties: Mapping[str, str],
    ) -> bytes | None:
        """A SEND_MESSAGE_V2 request.

        Args:
            queue_id: where the message goes.
            opaque: the request's.
            now_ms: when the message is born.
            message_id: its UNIQ_KEY.
            body: its body, neither empty nor compressed.
            keys: its KEYS, joined by blanks; empty: none.
            tags: its TAGS; empty: none.
            wait: its WAIT.
            flag: its flag.
            properties: the user's.

        Returns:
            The frame; None: it is not plain, or illegal, which the general way tells.
        """

    def item(
        self,
        message_id: str,
        body: bytes,
        keys: str,
        tags: str,
        wait: bool,
        flag: int,
        properties: Mapping[str, str],
    ) -> bytes | None:
        """A message as it lies in a batch. Arguments and None: as :meth:`encode`."""

    def batch(
        self, queue_id: int, opaque: int, now_ms: int, wait: bool, items: list[bytes]
    ) -> bytes | None:
        """A SEND_BATCH_MESSAGE request of items, all with the same ``wait``.

        Returns:
            The frame; None: no frame holds them.
        """


class SendDecoder(Protocol):
    """Cuts the bytes of one connection, and reads answers to sends."""

    def feed(
        self, data: bytearray, size: int, sends: Mapping[int, object]
    ) -> tuple[list[SendAnswer], list[bytes], str | None]:
        """Take ``data[:size]``.

        Args:
            data: the read buffer.
            size: how much of it was read.
            sends: the opaques of the sends that wait for an answer, as keys of a dict.

        Returns:
            The plain answers to those, all other frames without their length, and why the stream
            ended: a length came that no frame can have.
        """


class SendCodec(Protocol):
    """What a module offers that has a codec of sends."""

    @property
    def SendEncoder(self) -> Callable[[str, str, str, int, bool], SendEncoder]:
        """Made from producer group, topic, template topic, most queues of a new topic, and whether
        the producer is of a unit."""

    @property
    def SendDecoder(self) -> Callable[[], SendDecoder]:
        """Made from nothing."""
