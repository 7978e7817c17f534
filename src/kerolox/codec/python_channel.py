"""The channel of a connection in Python: the counterpart of the native one, and its oracle."""

from __future__ import annotations

import contextlib
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from kerolox.codec.python_answers import SendAnswer, fast_header, send_answer
from kerolox.codec.sending import CLOCK_SECONDS_MAX, FAST_HEADER_BYTES_MAX, OpenSend, SendFuture
from kerolox.errors import RemoteProtocolError
from kerolox.protocol.framing import LENGTHS, FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kerolox.codec.sending import MessageIds, Opaques, SendBatch
    from kerolox.message import Message, MessageQueue
    from kerolox.protocol.command import RemotingCommand

_read_lengths, _LENGTHS_BYTES = LENGTHS.unpack_from, LENGTHS.size
_new = tuple.__new__


class Sender:
    """What all fast-path sends of one producer share; see :class:`kerolox.codec.sending.Sender`."""

    def __init__(
        self,
        ids: MessageIds,
        now_ms: Callable[[], int],
        check: Callable[[], object],
        go_on: Callable[[OpenSend], object],
        message_type: type,
        result_type: type[tuple[Any, ...]],
        status: object,
        body_bytes_max: int,
        timeout_ms: int,
        is_batching: bool,
    ) -> None:
        self.open_count = 0
        self._now_ms = now_ms
        self.check = check
        self.go_on = go_on
        self.message_type = message_type
        self.result_type = result_type
        self.status = status
        self.body_bytes_max = body_bytes_max
        self.timeout_ms = timeout_ms
        self.is_batching = is_batching
        self.next_id = ids.next
        self._ms = 0
        self._read_at = -inf

    def time_ms(self) -> int:
        """Milliseconds since the epoch, as exactly as needed."""
        now = monotonic()
        if now - self._read_at > CLOCK_SECONDS_MAX:
            self._ms, self._read_at = self._now_ms(), now
        return self._ms


Entry = tuple[
    SendFuture | None,
    Sender,
    str,
    "MessageQueue",
    float,
    float,
    int,
    bool,
    "Message | None",
    "SendBatch | None",
]
"""A send without an answer: its future, its producer's part, its message id, where it goes, when it
was asked for, its deadline, its time limit, whether the caller chose the queue, the message of a
submitted one, and the batch that it is. A plain tuple, since that is made fastest."""

_DEADLINE: Final = 5


class SendChannel:
    """One connection's fast-path sends; see :class:`kerolox.codec.sending.SendChannel`."""

    def __init__(
        self,
        opaques: Opaques,
        calls: Sequence[dict[int, Any]],
        queue: dict[int, Any],
        calls_max: int,
        buffer_bytes_max: int,
        time: Callable[[], float],
        schedule_flush: Callable[[], object],
        flush: Callable[[], object],
        arm: Callable[[float], object],
        admit: Callable[[], object],
        prompt: bool = False,
    ) -> None:
        self.closed = False
        self.blocked = False
        self.calls_max = calls_max
        self.armed_at = inf
        self.buffered_bytes = 0
        self.buffered: list[bytes] = []
        """What is buffered."""
        self.open: dict[int, Entry] = {}
        """By opaque."""
        self._allocate = opaques.allocate
        self._calls = calls
        self.queue = queue
        self._buffer_bytes_max = buffer_bytes_max
        self.time = time
        self.schedule_flush = schedule_flush
        self._flush = flush
        self.arm = arm
        self._admit = admit
        self._prompt = prompt
        self._settled = 0
        """How many sends the last answers were to."""
        self._decoder = FrameDecoder()

    def __len__(self) -> int:
        return len(self.open)

    def __contains__(self, opaque: object) -> bool:
        return opaque in self.open

    @property
    def buffered_frames(self) -> int:
        """How many frames are buffered."""
        return len(self.buffered)

    # -- writing ------------------------------------------------------------------------------
    def has_capacity(self) -> bool:
        """A request may be written at once."""
        return not self.queue and self.takes_more()

    def takes_more(self) -> bool:
        """Nothing but those that wait already stands before a further request."""
        count = len(self.open)
        for table in self._calls:
            count += len(table)
        if self.blocked or self.closed or count >= self.calls_max:
            return False
        if self.buffered_bytes >= self._buffer_bytes_max:
            self._flush()
            return not (self.blocked or self.closed)
        return True

    def new_opaque(self) -> int:
        """One that no request has which is open."""
        while True:
            opaque = self._allocate()
            if opaque in self.open or opaque in self.queue:
                continue
            for table in self._calls:
                if opaque in table:
                    break
            else:
                return opaque

    def claim(self) -> int | None:
        """The opaque of a send that may be written at once; None: there is no capacity."""
        for table in self._calls:
            if table:  # mostly there are none: then less has to be read
                return self.new_opaque() if self.has_capacity() else None
        if (
            self.queue
            or self.blocked
            or self.closed
            or len(self.open) >= self.calls_max
            or self.buffered_bytes >= self._buffer_bytes_max
        ):
            return self.new_opaque() if self.has_capacity() else None
        opaque = self._allocate()
        return opaque if opaque not in self.open else self.new_opaque()

    def write(self, frame: bytes) -> None:
        """Buffer a frame of another kind."""
        buffered = self.buffered
        if not buffered:
            self.schedule_flush()
        buffered.append(frame)
        self.buffered_bytes += len(frame)

    def take(self) -> bytes:
        """What was buffered; the next iteration begins."""
        data = b"".join(self.buffered)
        self.buffered.clear()
        self.buffered_bytes = 0
        return data

    def enter(self, frame: bytes, opaque: int, entry: Entry) -> None:
        """Buffer the frame of a send, which is open from now on."""
        buffered, is_alone = self.buffered, False
        if not buffered:
            is_alone = self._prompt and not self.open and self._settled <= 1
            if not is_alone:
                self.schedule_flush()
        buffered.append(frame)
        self.buffered_bytes += len(frame)
        self.open[opaque] = entry
        if entry[_DEADLINE] < self.armed_at:
            self.arm(entry[_DEADLINE])
        if is_alone:
            self._flush()

    # -- answers ------------------------------------------------------------------------------
    def feed(self, data: bytearray, size: int) -> tuple[list[bytes], str | None]:
        """Take ``data[:size]``: complete the futures of what is stored."""
        decoder, before, at = self._decoder, len(self.open), 0
        others: list[bytes] = []
        # The decoder keeps an error: it is returned below.
        with contextlib.suppress(RemoteProtocolError), memoryview(data) as buffer:
            # What a chunk brings to the end of a frame is taken alone: the next ones are whole.
            while self.open and at < size and (lacking := decoder.lacking_bytes):
                at += self._feed_slowly(buffer[at : min(at + lacking, size)], others)
            if self.open and decoder.error is None:
                at += self._settle_fast(bytes(buffer[at:size]))
            if at < size:
                self._feed_slowly(buffer[at:size], others)
        self._settled = before - len(self.open) or self._settled
        return others, None if decoder.error is None else str(decoder.error)

    def _settle_fast(self, chunk: bytes) -> int:
        """Complete the futures of all fast-path answers before anything else; their bytes.

        Each is cut and read at once, without the copies and lists that any frames need.
        """
        size, at = len(chunk), 0
        while size - at >= _LENGTHS_BYTES:
            frame_size, header_size = _read_lengths(chunk, at)
            end = at + 4 + frame_size
            if frame_size != header_size + 4 or end > size or header_size > FAST_HEADER_BYTES_MAX:
                break  # it has a body, or another encoding, or is not whole
            answer = send_answer(chunk[at + _LENGTHS_BYTES : end])
            if answer is None or not self._settle(answer):
                break
            at = end
        return at

    def _feed_slowly(self, view: memoryview, others: list[bytes]) -> int:
        """Take any bytes; frames that are no answers to stored sends come to ``others``."""
        with view:
            size = len(view)
            frames = self._decoder.feed(view)
        for frame in frames:
            header = fast_header(frame) if self.open else None
            answer = None if header is None else send_answer(header)
            if answer is None or not self._settle(answer):
                others.append(frame)
        return size

    def _settle(self, answer: SendAnswer) -> bool:
        """A message, or a batch, is stored: complete its future; False: it is none of these."""
        opaque, queue_id, offset, offset_id, region, is_traced = answer
        entry = self.open.get(opaque)
        if entry is None:
            return False
        future, sender, message_id, queue, _, _, _, _, _, batch = entry
        if batch is not None and offset_id.count(",") + 1 != len(batch):
            return False
        del self.open[opaque]
        if queue_id != queue.queue_id:
            queue = queue._replace(queue_id=queue_id)
        if batch is not None:
            _settle_batch(batch, sender, queue, answer)
            return True
        sender.open_count -= 1
        if future is not None and not future.done():
            future.set_result(
                _new(
                    sender.result_type,
                    (sender.status, message_id, offset_id, queue, offset, region, is_traced),
                )
            )
        return True

    def complete(self, opaque: int, response: RemotingCommand) -> bool:
        """The answer to a send says anything else; False: no such send is open."""
        entry = self.open.pop(opaque, None)
        if entry is None:
            return False
        _taken(entry).end(response)
        return True

    def withdraw(self, opaque: int) -> bool:
        """Forget a send whose caller went away; False: it is not here."""
        entry = self.open.pop(opaque, None)
        if entry is None:
            return False
        sender, batch = entry[1], entry[-1]
        sender.open_count -= 1 if batch is None else len(batch)
        if self.queue:
            self._admit()
        return True

    def expire(self, now: float) -> tuple[list[OpenSend], float]:
        """Take out the sends whose time is over; with the earliest deadline of the others."""
        overdue = [opaque for opaque, entry in self.open.items() if entry[_DEADLINE] <= now]
        sends = [_taken(self.open.pop(opaque)) for opaque in overdue]
        return sends, min((entry[_DEADLINE] for entry in self.open.values()), default=inf)

    def take_open(self) -> list[OpenSend]:
        """Take out all sends."""
        entries = list(self.open.values())
        self.open.clear()
        return [_taken(entry) for entry in entries]

    def futures(self, sender: Sender | None = None) -> list[SendFuture]:
        """Those of the open sends that nobody has cancelled."""
        found: list[SendFuture] = []
        for future, its_sender, *_, batch in self.open.values():
            if sender is None or its_sender is sender:
                if batch is not None:
                    found += batch.futures
                elif future is not None:
                    found.append(future)
        return [future for future in found if not future.done()]


def _taken(entry: Entry) -> OpenSend:
    """A send that is open no more, for whatever goes on with it."""
    future, sender, message_id, queue, asked_at, deadline, ms, is_given, message, batch = entry
    sender.open_count -= 1 if batch is None else len(batch)
    goes_on = None if batch is None and message is None else sender.go_on
    ends = (is_given, asked_at, deadline, ms)
    return OpenSend(future, goes_on, message, batch, message_id, queue, *ends)


def _settle_batch(
    batch: SendBatch, sender: Sender, queue: MessageQueue, answer: SendAnswer
) -> None:
    _, _, first, offset_ids, region, is_traced = answer
    result_type, status = sender.result_type, sender.status
    sender.open_count -= len(batch)
    each = zip(batch.futures, batch.message_ids, offset_ids.split(","), strict=True)
    for offset, (future, message_id, offset_id) in enumerate(each, first):
        if not future.done():
            future.set_result(
                _new(
                    result_type,
                    (status, message_id, offset_id, queue, offset, region, is_traced),
                )
            )
