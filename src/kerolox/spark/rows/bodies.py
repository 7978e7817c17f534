"""Bodies that a kernel can't inflate: read in Python, or what option ``bodyErrors`` says.

A kernel inflates zlib, which nearly all clients write. LZ4 and ZSTD, which producers may choose
since 4.9 (``compressType``), are inflated here, by packages that the workers may lack.
"""

from __future__ import annotations

from collections.abc import Callable

from kerolox.errors import KeroloxError, RemoteProtocolError
from kerolox.message import MessageQueue
from kerolox.protocol.compression import CodecMissingError, inflate_body
from kerolox.spark.options import BodyErrors


class BodyError(KeroloxError):
    """A body can't be inflated, and option ``bodyErrors`` does not say to go on."""


def odd_body_of(
    queue: MessageQueue, policy: BodyErrors
) -> Callable[[bytes, int, int], bytes | None]:
    """What to ask about the bodies of a queue that the kernel can't inflate."""
    where = f"topic {queue.topic} broker {queue.broker_name} queue {queue.queue_id} offset"
    return odd_body_at(where, policy)


def odd_body_at(where: str, policy: BodyErrors) -> Callable[[bytes, int, int], bytes | None]:
    """What to ask about the bodies of a place, as an error names it before the number that the
    kernel gives, that the kernel can't inflate.

    A package that the worker lacks is no fault of the message, so it is an error under ``null``
    too; otherwise each worker would give other rows.
    """

    def odd_body(stored: bytes, sys_flag: int, place: int) -> bytes | None:
        try:
            return inflate_body(stored, sys_flag)
        except RemoteProtocolError as error:
            if policy is BodyErrors.RAW:
                return stored
            is_missing = isinstance(error, CodecMissingError)
            if policy is BodyErrors.NULL and not is_missing:
                return None
            advice = (
                "where the Spark workers run, or set option bodyErrors=raw for the stored bytes"
                if is_missing
                else "set option bodyErrors=null or raw (the stored bytes) to go on, "
                "or leave column body out with option columns"
            )
            raise BodyError(f"{where} {place}: {error}; {advice}") from None

    return odd_body
