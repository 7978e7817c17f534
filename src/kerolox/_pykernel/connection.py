"""The fast path of one connection: a chunk of bytes in, answers and slow frames out.

``feed`` works in three passes over the chunk. It cuts out the whole frames and parses their
headers; it takes the fast ones in order, consecutive sends as one run that becomes one write to
the log; it wakes the held pulls that the new records satisfy. What the loops need is in locals
and remembered shapes: per message there is one header parse, one lookup, one record.
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING

from kerolox._pykernel.access import PeerAccess
from kerolox._pykernel.answers import (
    BINARY,
    JSON,
    JSON_PREFIXES,
    binary_send_header,
    message_ids,
    with_member,
)
from kerolox._pykernel.headers import (
    INT64_MAX,
    NOT_FAST,
    FastHeader,
    PullHeader,
    SendBatchHeader,
    SendHeader,
    SendV1Header,
    SendV2Header,
    integer,
    is_name,
    parse_binary,
    parse_json,
)
from kerolox._pykernel.holds import HeldPull
from kerolox._pykernel.store import Store
from kerolox._pykernel.tables import SendShape
from kerolox.errors import RemoteProtocolError
from kerolox.kernel.feed import (
    ALLOWANCE_MAX,
    FED_FOREIGN,
    FED_MORE,
    FED_READY,
    FED_WAITS,
    TRIED_DECLINED,
    Fed,
    GivenMembers,
)
from kerolox.kernel.status import PutMessageStatus, pull_code
from kerolox.kernel.tables import COMMITS_MAX
from kerolox.kernel.values import Batch, BatchAppended
from kerolox.protocol.codes import (
    FLAG_ONEWAY,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADER_SIZE_MASK,
    ResponseCode,
)
from kerolox.protocol.framing import encode_frame, foreign_protocol, is_header_size
from kerolox.protocol.names import PROPERTIES_BYTES_MAX
from kerolox.protocol.records import decode_batch
from kerolox.protocol.serialize import CROWDED_BYTES_MIN, is_crowded
from kerolox.store.appends import ChunkItem
from kerolox.store.layout import BLANK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from kerolox.kernel.http2 import Http2Event, Http2ServerSide


ANSWER_BYTES_MAX = 1024 * 1024
"""When one feed has that many bytes of answers, further frames wait for the next feed."""

PUT_OK = int(PutMessageStatus.PUT_OK)
PULL_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
PULL_OFFSET_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)

_LENGTHS = Struct(">II")
_LENGTH = Struct(">I")
_RECORD_FIXED_BYTES = 75
"""Bytes of a record besides the hosts, the topic, the body and the properties."""

_BODY, _TEXT = itemgetter(1), itemgetter(2)
_INT32_END = 1 << 31
_INT32_MIN = -_INT32_END
_OTHER_FLAGS = ~FLAG_ONEWAY
_TIMESTAMP_DIGITS = 13

_SINGLE_SENDS = (SendV2Header, SendV1Header)

_Frame = tuple[FastHeader | None, int, int, int]
"""(parsed header or None, position of the frame, of its body, behind it)."""

_Send = tuple["SendShape", "SendV2Header | SendV1Header", bool, int, int]
"""(shape, header, waits for the flush, position of the frame, behind it) of a send in a run."""


class Connection:
    """See :class:`kerolox.kernel.feed.ConnectionKernel`."""

    def __init__(self, store: Store, connection_id: int, born_host: bytes) -> None:
        if len(born_host) not in (8, 20):
            raise ValueError(f"born_host has {len(born_host)} bytes; a host has 8 or 20")
        self._store = store
        self._connection_id = connection_id
        self._born_host = born_host
        self._access = PeerAccess()
        self._kept = bytearray()
        self._needed = 0
        self._error = ""
        self._is_foreign = False
        self.allowance = ALLOWANCE_MAX

    def feed(self, data: Buffer, size: int) -> Fed:
        """See ``ConnectionKernel``."""
        if self._error:
            return Fed(b"", None, FED_FOREIGN * self._is_foreign, self._error)
        # A copy, since the server reads the next connection into the same buffer.
        chunk = bytes(memoryview(data)[:size])
        if self._kept:
            self._kept += chunk
            if len(self._kept) < self._needed:
                return Fed(b"", None, 0, None)
            chunk = bytes(self._kept)
            self._kept = bytearray()
        store = self._store
        begin = store.files.clock_ms()
        frames, rest = self._split(chunk)
        answers: list[bytes] = []
        slow: list[bytes] = []
        flags = 0
        if self.allowance < len(frames):
            frames = _within(self.allowance, frames)
        stopped_at = self._take(frames, chunk, answers, slow)
        if self.allowance != ALLOWANCE_MAX:
            taken = len(frames)
            if stopped_at is not None:
                taken = sum(position < stopped_at for _, position, _, _ in frames)
            self.allowance -= taken - len(slow)
        if stopped_at is not None:
            flags = FED_MORE
            rest, self._needed, self._error = stopped_at, 0, ""
        if rest < len(chunk):
            self._kept = bytearray(memoryview(chunk)[rest:])
        # Behind the whole chunk, so that one answer brings a held pull all of its messages.
        if store.arrived:
            answers.append(store.wake(self._connection_id))
            if store.has_ready:
                flags |= FED_READY
        if store.pending.slave_wanted:
            store.pending.slave_wanted = False
            flags |= FED_WAITS
        if self._error and self._is_foreign:
            flags |= FED_FOREIGN
        if store.answered_puts:
            store.note_answered(store.files.clock_ms() - begin)
        return Fed(b"".join(answers), slow or None, flags, self._error or None)

    def set_white(self, is_white: bool, access_keys: Sequence[str]) -> None:
        """See ``ConnectionAccess``."""
        if self._access.set_white(is_white, access_keys) and not self._error:
            self._store.ended.connections.add(self._connection_id)

    def feed_calls(self, http2: Http2ServerSide, data: Buffer) -> tuple[list[Http2Event], int]:
        """See :class:`~kerolox.kernel.feed.ConnectionKernel`. No call is answered here."""
        events, has_more = http2.receive(data)
        return events, FED_MORE if has_more else 0

    def answer_calls(self, http2: Http2ServerSide, answers: bytes) -> None:
        """There are none."""

    def try_receive(
        self, http2: Http2ServerSide, stream_id: int, client_id: str, request: bytes
    ) -> int:
        """Nothing is lent to this kernel."""
        return TRIED_DECLINED

    def take_given(self, streams: list[int]) -> list[GivenMembers]:
        """It answers no receive."""
        return []

    @property
    def unfinished_bytes(self) -> int:
        """See ``ConnectionKernel``."""
        return len(self._kept)

    def close(self) -> None:
        """See ``ConnectionKernel``."""
        self._error = self._error or "the connection is closed"
        self._kept = bytearray()
        self._store.forget_connection(self._connection_id)

    def _split(self, chunk: bytes) -> tuple[list[_Frame], int]:
        """All whole frames of a chunk with their parsed headers, and where they end.

        Sets ``_needed`` to the bytes that the next frame needs, and ``_error`` when what follows
        is no frame; it is dropped then.
        """
        frames: list[_Frame] = []
        position = 0
        end = len(chunk)
        while end - position >= _LENGTHS.size:
            length, word = _LENGTHS.unpack_from(chunk, position)
            header_size = word & HEADER_SIZE_MASK
            next_position = position + 4 + length
            # Nearly all headers are small; a call for each would cost more than the comparisons.
            is_small = header_size < CROWDED_BYTES_MIN and header_size + 4 <= length
            if (
                next_position > end
                or length > FRAME_BYTES_MAX
                or not (is_small or is_header_size(header_size, length))
            ):
                break
            body = position + 8 + header_size
            header: FastHeader | None = None
            try:
                if word == header_size:
                    if is_small or not is_crowded(chunk[position + 8 : body]):
                        header = parse_json(chunk[position + 8 : body])
                elif word >> 24 == BINARY:
                    header = parse_binary(chunk[position + 8 : body])
            except NOT_FAST:
                pass
            frames.append((header, position, body, next_position))
            position = next_position
        self._needed, self._error, self._is_foreign = 0, "", False
        if position < end:
            self._needed, self._error, self._is_foreign = _check_rest(chunk, position)
        return frames, end if self._error else position

    def _take(
        self, frames: list[_Frame], chunk: bytes, answers: list[bytes], slow: list[bytes]
    ) -> int | None:
        """Take frames in order; the position of the first one that is left for the next feed."""
        index = 0
        answered = 0
        while index < len(frames):
            header, position, body, end = frames[index]
            if answered >= ANSWER_BYTES_MAX:
                return position
            answer: bytes | None
            if isinstance(header, PullHeader):
                answer = self._pull(header, chunk, position, body) if body == end else None
            elif isinstance(header, SendBatchHeader):
                answer = self._send_batch(header, chunk, position, body, end)
            else:
                index, size = self._send_run(frames, index, chunk, answers, slow)
                answered += size
                continue
            index += 1
            if answer is None:
                slow.append(chunk[position + 4 : end])
            else:
                answers.append(answer)
                answered += len(answer)
        return None

    def _send_run(
        self,
        frames: list[_Frame],
        index: int,
        chunk: bytes,
        answers: list[bytes],
        slow: list[bytes],
    ) -> tuple[int, int]:
        """Store the sends from ``frames[index]`` to the next pull or batch with one append.

        Slow frames on the way are put aside. The index of the frame behind the run, and how many
        bytes of answers it gave. Fast loop: ``benchmarks/feed_python.py``."""
        store = self._store
        shape_of, take_properties = store.tables.send_shape, store.tables.properties.take
        body_limit = store.files.settings.max_message_size
        free = store.files.settings.mapped_file_size_commit_log - BLANK_BYTES - self._record_fixed()
        writable = store.writable and not store.files.failure and store.files.transient_buffers != 0
        has_accounts = store.accounts is not None
        items: list[ChunkItem] = []
        sends: list[_Send] = []
        for header, position, body, end in islice(frames, index, None):
            if header is not None and not isinstance(header, _SINGLE_SENDS):
                break
            index += 1
            if header is None:
                slow.append(chunk[position + 4 : end])
                continue
            fields = header.extFields
            born = fields.g
            is_usual = len(born) == _TIMESTAMP_DIGITS and born.isdigit() and born.isascii()
            born_timestamp = int(born) if is_usual and born > "1" else integer(born, INT64_MAX)
            shape = shape_of(fields, False)
            properties = take_properties(fields.i, real=shape.real if shape else b"")
            if properties is None and shape is not None:
                shape, properties = store.tables.timed_send(shape, fields, store.files.clock_ms())
            size = end - body
            if (
                shape is None
                or properties is None
                or not (fields.a.isascii() or is_name(fields.a))
                or not (fields.c.isascii() or is_name(fields.c))
                or not 0 < size <= body_limit
                or header.flag & _OTHER_FLAGS
                or not _INT32_MIN <= header.opaque < _INT32_END
                or not writable
                or len(properties[0]) > PROPERTIES_BYTES_MAX
                or size + len(properties[0]) + shape.topic_size > free
                or born_timestamp is None
                or (has_accounts and not self._may_send(header, chunk, position, body, end))
                or (shape.window is not None and not shape.window.take(properties[0], len(items)))
            ):
                slow.append(chunk[position + 4 : end])
                continue
            stored, tags_code, wait = properties
            items.append((
                shape.queue, tags_code, shape.flag, shape.sys_flag, born_timestamp,
                shape.reconsume_times, chunk[body:end], stored,
            ))  # fmt: skip
            sends.append((shape, header, wait, position, end))
        return index, self._store_run(items, sends, chunk, answers, slow) if items else 0

    def _store_run(
        self,
        items: list[ChunkItem],
        sends: list[_Send],
        chunk: bytes,
        answers: list[bytes],
        slow: list[bytes],
    ) -> int:
        """Store the records of a run and answer; gives the bytes of answers."""
        store = self._store
        places = store.append_chunk(items, self._born_host)
        if store.tables.windows.touched:
            store.tables.windows.settle([offset for offset, _ in places], store.files.now_ms())
        pending, now_ms = store.pending, store.files.clock_ms()
        is_on, waiting = pending.is_on, pending.count
        answered = 0
        for (physical_offset, queue_offset), (shape, header, wait, position, _), item in zip(
            places, sends, items, strict=False
        ):
            if header.flag:
                continue
            if chunk[position + 4] == JSON:
                text = shape.json_template % (physical_offset, queue_offset, header.opaque)
                if shape.member:
                    text = with_member(
                        text, shape.member, store.tables.member_value(shape, item[7])
                    )
                size = len(text)
                if not (is_on and wait) and size < len(JSON_PREFIXES):
                    answers.append(JSON_PREFIXES[size])
                    answers.append(text)
                    answered += size
                    continue
                kind = JSON
            else:
                told = store.tables.member_value(shape, item[7]) if shape.member else b""
                where = [physical_offset]
                text = self._binary_answer(shape, where, queue_offset, header.opaque, told)
                kind = BINARY
            if is_on and wait:
                end = physical_offset + self._record_bytes(shape, item)
                answers.append(pending.add(self._connection_id, end, kind, text, now_ms))
            else:
                answers.append(encode_frame(text, b"", kind))
                answered += len(text)
        # What the store refused goes to the handler in Python, whose own append says why.
        for _, _, _, position, end in sends[len(places) :]:
            slow.append(chunk[position + 4 : end])
        store.answered_puts += len(places) - (pending.count - waiting)
        if pending.waits_for_disk and places:
            store.request_flush(store.max_physical_offset)
        return answered

    def _may_send(
        self, header: SendHeader, chunk: bytes, position: int, body: int, end: int
    ) -> bool:
        accounts = self._store.accounts
        encoded = chunk[position + 4], chunk[position + 8 : body]
        return accounts is None or self._access.may_send(accounts, header, encoded, chunk[body:end])

    def _send_batch(
        self, header: SendBatchHeader, chunk: bytes, position: int, body: int, end: int
    ) -> bytes | None:
        """Store a batch and answer; None: it is slow, b"": nothing is to be answered now."""
        store = self._store
        fields = header.extFields
        shape = store.tables.send_shape(fields, True)
        real = shape.real if shape else b""
        properties = store.tables.properties.take(fields.i, keep_wait=True, real=real)
        born_timestamp = integer(fields.g, INT64_MAX)
        if (
            shape is None
            or properties is None
            or born_timestamp is None
            or not is_name(fields.a)
            or not is_name(fields.c)
            or not 0 < end - body <= store.files.settings.max_message_size
            or header.flag & _OTHER_FLAGS
            or not _INT32_MIN <= header.opaque < _INT32_END
            or not store.writable
            or store.files.failure
            or store.files.transient_buffers == 0
            or not self._may_send(header, chunk, position, body, end)
        ):
            return None
        free = store.files.settings.mapped_file_size_commit_log - BLANK_BYTES
        fixed = self._record_fixed() + shape.topic_size
        items = _batch_items(chunk, body, end, properties[0], free, fixed)
        if items is None:
            return None
        windows = store.tables.windows
        if not windows.take_batch(shape.window, items):
            return None
        batch = Batch(
            shape.queue.topic_bytes,
            shape.queue.queue_id,
            shape.sys_flag,
            born_timestamp,
            self._born_host,
            store.appender.store_host,
            shape.reconsume_times,
            items,
        )
        appended = store.appender.append_batch(batch)
        is_stored = appended.status == PUT_OK
        windows.settle(appended.physical_offsets if is_stored else (), store.files.now_ms())
        if not is_stored:
            return None
        if store.pending.waits_for_disk:
            store.request_flush(appended.end_offset)
        waiting = store.pending.count
        kind = chunk[position + 4]
        answer = (
            b""
            if header.flag
            else self._batch_answer(shape, appended, kind, header.opaque, waits=properties[2])
        )
        store.answered_puts += store.pending.count == waiting
        return answer

    def _batch_answer(
        self, shape: SendShape, appended: BatchAppended, kind: int, opaque: int, *, waits: bool
    ) -> bytes:
        """The answer to a batch that was stored; b"": it waits."""
        store = self._store
        offsets, queue_offset = appended.physical_offsets, appended.queue_offset
        if kind == JSON:
            ids = message_ids(store.tables.identity, offsets)
            text = shape.json_template % (ids, queue_offset, opaque)
        else:
            text = self._binary_answer(shape, offsets, queue_offset, opaque)
        if not waits or not store.pending.is_on:
            return encode_frame(text, b"", kind)
        now_ms = store.files.clock_ms()
        return store.pending.add(self._connection_id, appended.end_offset, kind, text, now_ms)

    def _pull(self, header: PullHeader, chunk: bytes, position: int, body: int) -> bytes | None:
        """Read and answer, or hold; None: it is slow, b"": it is held."""
        store = self._store
        kind = chunk[position + 4]
        fields = header.extFields
        shape = store.tables.pull_shape(fields)
        offset = integer(fields.queueOffset, INT64_MAX)
        commit_offset = integer(fields.commitOffset, INT64_MAX)
        if (
            shape is None
            or offset is None
            or commit_offset is None
            or header.flag
            or not _INT32_MIN <= header.opaque < _INT32_END
            or (
                store.accounts is not None
                and not self._access.may_pull(
                    store.accounts, fields, (kind, chunk[position + 8 : body])
                )
            )
        ):
            return None
        group, key = shape.group, shape.key
        commits = shape.commits and commit_offset >= 0 and store.takes_commits
        if commits and len(store.commits) >= COMMITS_MAX and (group, *key) not in store.commits:
            return None
        result = store.read_key(key, offset, shape.max_count, shape.tags)
        code = pull_code(result[0], offset)
        if code == PULL_OFFSET_MOVED:
            return None
        may_hold = code == PULL_NOT_FOUND and bool(shape.hold_ms)
        if may_hold and (
            shape.hold_ms < 0 or not store.held.has_capacity_for(self._connection_id, shape.tags)
        ):
            return None
        if commits:
            store.commits[group, *key] = commit_offset
        if may_hold:
            pull = HeldPull(
                self._connection_id,
                kind,
                header.opaque,
                group,
                key,
                offset,
                shape.max_count,
                shape.tags,
                store.files.clock_ms() + shape.hold_ms,
            )
            if store.held.add(pull):
                return b""
        return store.pull_answer(group, key, kind, header.opaque, offset, result)

    def _record_fixed(self) -> int:
        """Bytes of a record besides its topic, body and properties."""
        return _RECORD_FIXED_BYTES + len(self._born_host) + len(self._store.appender.store_host)

    def _record_bytes(self, shape: SendShape, item: ChunkItem) -> int:
        """Bytes of the record that an item of a chunk became."""
        return self._record_fixed() + shape.topic_size + len(item[6]) + len(item[7])

    def _binary_answer(
        self,
        shape: SendShape,
        physical_offsets: list[int],
        queue_offset: int,
        opaque: int,
        told: bytes = b"",
    ) -> bytes:
        identity = self._store.tables.identity
        ids = message_ids(identity, physical_offsets)
        return binary_send_header(
            identity, shape.queue_id, ids, queue_offset, opaque, shape.member, told
        )


def _within(allowance: int, frames: list[_Frame]) -> list[_Frame]:
    """The frames, of which only so many first ones may be fast."""
    left = allowance
    limited: list[_Frame] = []
    for header, position, body, end in frames:
        limited.append((header if left > 0 else None, position, body, end))
        left -= header is not None
    return limited


def _check_rest(chunk: bytes, position: int) -> tuple[int, str, bool]:
    """(bytes needed from ``position`` on before it is worth looking again, what is wrong, whether
    it is another protocol)."""
    size = len(chunk) - position
    if size < _LENGTH.size:
        return _LENGTH.size, "", False
    (length,) = _LENGTH.unpack_from(chunk, position)
    if not _LENGTH.size <= length <= FRAME_BYTES_MAX:
        text = f"a frame of {length} bytes; 4 to {FRAME_BYTES_MAX} are allowed"
        foreign = foreign_protocol(length)
        what = foreign or ": no RocketMQ client, or bytes got lost"
        return 0, f"the peer sent {text}{what}", bool(foreign)
    if size < _LENGTHS.size:
        return _LENGTHS.size, "", False
    header_size = _LENGTHS.unpack_from(chunk, position)[1] & HEADER_SIZE_MASK
    if header_size + 4 > length:
        return 0, f"the peer sent a header of {header_size} bytes in a frame of {length}", False
    if not is_header_size(header_size, length):
        text = f"the peer sent a header of {header_size} bytes; {HEADER_BYTES_MAX} are allowed"
        return 0, text, False
    return 4 + length, "", False


def _batch_items(
    chunk: bytes, position: int, end: int, common: bytes, free: int, fixed: int
) -> list[tuple[int, bytes, bytes]] | None:
    """The (flag, body, property text) items of a batch, as they are stored.

    None when they are malformed, too many, or may be more than ``free`` bytes as records, each
    ``fixed`` bytes longer than its body and text.
    """
    try:
        items, stop = decode_batch(chunk, common, position, end)
    except RemoteProtocolError:
        return None
    if (
        stop < end
        or end - position + len(items) * (fixed + len(common)) > free
        or not all(map(_BODY, items))
        or max(map(len, map(_TEXT, items))) > PROPERTIES_BYTES_MAX
    ):
        return None
    return items
