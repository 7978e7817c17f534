"""Messages of gRPC and records: what one says of the other (``SendMessageActivity``,
``GrpcConverter``). No I/O."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping

from kerolox.broker.grpc.answers import AnswerError
from kerolox.broker.grpc.checks import (
    BORN_HOST,
    BORN_TIMESTAMP,
    DEAD_LETTER_ID,
    DEAD_LETTER_TOPIC,
    RECOVERY_MS_MAX,
    SHARDING_KEY,
    SYSTEM_PROPERTIES,
    TRACE_CONTEXT,
    milliseconds,
    set_ms,
)
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageExt, PropertyKey, is_true
from kerolox.protocol.codes import MessageSysFlag
from kerolox.protocol.compression import INFLATED_BYTES_MAX, inflate_body
from kerolox.protocol.grpc import messages as pb

GZIP_START = b"\x1f\x8b"

PIECE_BYTES = 256 * 1024
"""Of a body that is inflated and compressed anew."""


# -- a message that is sent -----------------------------------------------------------------------
def stored_properties(
    message: pb.Message, topic: str, *, now_ms: int, host: str, delay_ms_max: int
) -> dict[str, str]:
    """The properties of a record; AnswerError where a time is out of range.

    ``host``: of the peer. ``delay_ms_max``: how far away a moment may be.
    """
    system = message.system_properties
    # In an order of their own, which the kernel has, too; a map of gRPC has none.
    found: dict[str, str] = dict(sorted(message.user_properties.items()))
    found[PropertyKey.UNIQUE_KEY] = system.message_id
    if system.tag:
        found[PropertyKey.TAGS] = system.tag
    if keys := " ".join(filter(None, system.keys)):
        found[PropertyKey.KEYS] = keys
    if system.message_group:
        found[SHARDING_KEY] = system.message_group
    if system.trace_context:
        found[TRACE_CONTEXT] = system.trace_context
    found[PropertyKey.PRODUCER_GROUP] = topic
    found[BORN_HOST] = system.born_host or host
    found[BORN_TIMESTAMP] = str(milliseconds(system.born_timestamp) or now_ms)
    if system.HasField("delivery_timestamp"):
        found[PropertyKey.TIMER_DELIVER] = str(_delivery_ms(system, now_ms, delay_ms_max))
    if system.message_type == pb.TRANSACTION:
        found[PropertyKey.TRANSACTION_PREPARED] = "true"
        recovery = milliseconds(system.orphaned_transaction_recovery_duration)
        if recovery > RECOVERY_MS_MAX:
            raise AnswerError(
                pb.BAD_REQUEST,
                f"the orphaned transaction recovery time is {recovery} ms; at most "
                f"{RECOVERY_MS_MAX} are allowed",
            )
        if recovery > 0:
            found[PropertyKey.CHECK_IMMUNITY_TIME] = str(recovery // 1000)
    return found


def _delivery_ms(system: pb.SystemProperties, now_ms: int, delay_ms_max: int) -> int:
    at = milliseconds(system.delivery_timestamp)
    if at <= 0:
        raise AnswerError(pb.ILLEGAL_DELIVERY_TIME, "the delivery timestamp is illegal")
    if at - now_ms > delay_ms_max:
        raise AnswerError(
            pb.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {delay_ms_max} ms "
            "(timerMaxDelaySec)",
        )
    return at


def stored_body(message: pb.Message) -> tuple[bytes, int]:
    """The body of a record and its sysFlag. A body of gzip becomes one of zlib, which clients of
    4.x read, too; AnswerError MESSAGE_CORRUPTED where it is none, or inflates to too much."""
    body: bytes = message.body
    if message.system_properties.body_encoding != pb.GZIP:
        return body, 0
    if body.startswith(GZIP_START):
        body = _zlib_of_gzip(body)
    return body, int(MessageSysFlag.COMPRESSED)


def _zlib_of_gzip(body: bytes) -> bytes:
    """Piece by piece: nothing holds all that it inflates to."""
    made, packing = bytearray(), zlib.compressobj(5)
    stream, size = zlib.decompressobj(wbits=31), 0
    while not stream.eof and size <= INFLATED_BYTES_MAX:
        try:
            piece = stream.decompress(body, PIECE_BYTES)
        except zlib.error as error:
            raise _no_gzip(error) from None
        body = stream.unconsumed_tail
        if not piece and not body:
            break
        size += len(piece)
        made += packing.compress(piece)
    if not stream.eof or size > INFLATED_BYTES_MAX:
        raise _too_large(INFLATED_BYTES_MAX)
    return bytes(made + packing.flush())


def _no_gzip(error: zlib.error) -> AnswerError:
    return AnswerError(pb.MESSAGE_CORRUPTED, f"the body is no gzip: {error}")


def _too_large(bytes_max: int) -> AnswerError:
    return AnswerError(
        pb.MESSAGE_CORRUPTED,
        f"the body of gzip is torn, or inflates to more than {bytes_max} bytes",
    )


def _gunzip(body: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(body, bytes_max)
    except zlib.error as error:
        raise _no_gzip(error) from None
    if not stream.eof:
        raise _too_large(bytes_max)
    return data


def type_of(message: pb.Message) -> int:
    """Which type a message is of: what it has says so, and not what it says
    (``TopicMessageType.parseFromMessageProperty``). Those that nothing else tells say it."""
    system = message.system_properties
    if system.message_type in (pb.TRANSACTION, pb.LITE, pb.PRIORITY):
        return int(system.message_type)
    if system.HasField("delivery_timestamp"):
        return int(pb.DELAY)
    return int(pb.FIFO if system.message_group else pb.NORMAL)


# -- a record that is received --------------------------------------------------------------------
def message_of(stored: MessageExt, topic: str, receipt: str = "") -> pb.Message:
    """The message of a record. ``stored`` is inflated; ``topic``: not that of retries."""
    properties = stored.properties
    message = pb.Message(body=stored.body)
    message.topic.name = topic
    message.user_properties.update(
        {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES}
    )
    system = message.system_properties
    if tag := properties.get(PropertyKey.TAGS):
        system.tag = tag
    system.keys.extend(properties.get(PropertyKey.KEYS, "").split())
    system.message_id = properties.get(PropertyKey.UNIQUE_KEY) or stored.offset_message_id
    system.body_digest.type = pb.MD5
    digest = hashlib.md5(stored.body, usedforsecurity=False)
    system.body_digest.checksum = digest.hexdigest().upper()
    system.body_encoding = pb.IDENTITY
    if stored.body_error:
        # What nobody here can inflate goes on as it is.
        system.body_encoding = pb.GZIP
    system.message_type = _type_of_record(properties)
    set_ms(system.born_timestamp, stored.born_timestamp)
    system.born_host = properties.get(BORN_HOST) or stored.born_host[0]
    set_ms(system.store_timestamp, stored.store_timestamp)
    system.store_host = stored.store_host[0]
    deliver = properties.get(PropertyKey.TIMER_DELIVER, "")
    if deliver.isascii() and deliver.isdigit() and len(deliver) < 15:
        set_ms(system.delivery_timestamp, int(deliver))
    if receipt:
        system.receipt_handle = receipt
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    system.delivery_attempt = stored.reconsume_times + 1
    if message_group := properties.get(SHARDING_KEY):
        system.message_group = message_group
    if trace := properties.get(TRACE_CONTEXT):
        system.trace_context = trace
    dead_topic, dead_id = properties.get(DEAD_LETTER_TOPIC), properties.get(DEAD_LETTER_ID)
    if dead_topic and dead_id:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = dead_topic, dead_id
    return message


def _type_of_record(properties: Mapping[str, str]) -> int:
    if is_true(properties.get(PropertyKey.TRANSACTION_PREPARED, "")):
        return int(pb.TRANSACTION)
    delays = PropertyKey.DELAY, PropertyKey.TIMER_DELIVER, PropertyKey.TIMER_DELAY_SECONDS
    if any(name in properties for name in delays):
        return int(pb.DELAY)
    return int(pb.FIFO if SHARDING_KEY in properties else pb.NORMAL)


def inflate(stored: MessageExt, bytes_max: int) -> None:
    """Inflate a body up to so many bytes, also where it is of gzip, as a Java proxy of 5.x stores
    it. One that can't be stays as it is, and ``body_error`` says why."""
    try:
        if stored.sys_flag & MessageSysFlag.COMPRESSED and stored.body.startswith(GZIP_START):
            stored.body = _gunzip(stored.body, bytes_max)
        else:
            stored.body = inflate_body(stored.body, stored.sys_flag, bytes_max=bytes_max)
    except (AnswerError, RemoteProtocolError) as error:
        stored.body_error = str(error)
