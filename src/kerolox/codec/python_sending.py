"""The codec of sends in Python: the complete counterpart of the native one, and its oracle."""

from __future__ import annotations

import contextlib
import struct
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kerolox.codec.counters import MessageIds, Opaques
from kerolox.codec.python_answers import SendAnswer, fast_header, send_answer
from kerolox.codec.sending import (
    CLOCK_SECONDS_MAX,
    FAST_HEADER_BYTES_MAX,
    NO_OPAQUE,
    OpenSend,
    SendFuture,
)
from kerolox.errors import RemoteProtocolError
from kerolox.message import ITEM_END, NAME_END, PropertyKey, encode_properties
from kerolox.protocol.codes import FLAG_ONEWAY, FRAME_BYTES_MAX, VERSION, LanguageCode, RequestCode
from kerolox.protocol.framing import LENGTHS, FrameDecoder
from kerolox.protocol.names import PROPERTIES_BYTES_MAX
from kerolox.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kerolox.codec.sending import BatchOwner, QueueRotation
    from kerolox.message import Message, MessageQueue
    from kerolox.protocol.command import RemotingCommand

__all__ = ["MessageIds", "Opaques", "SendChannel", "Sender", "TopicSender"]

_KEYS = f"{PropertyKey.KEYS}{NAME_END}"
_TAGS = f"{PropertyKey.TAGS}{NAME_END}"
_WAIT = f"{PropertyKey.WAIT}{NAME_END}"
_ID = f"{PropertyKey.UNIQUE_KEY}{NAME_END}"
_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


SHORT_TEXT_MAX = 256
"""Longest tags that are remembered, and longest keys that go with them, in characters."""

TAGS_MAX = 64
"""How many tags are remembered."""

_to_json = msgspec.json.Encoder().encode


class FrameHead:
    """What the headers of one producer's messages of one topic have in common."""

    __slots__ = ("_birth", "_head", "_middle", "_now_ms")

    def __init__(
        self,
        code: int,
        group: str,
        topic: str,
        create_topic_key: str,
        default_topic_queue_nums: int,
        unit_mode: bool,
        request_flag: int = 0,
    ) -> None:
        fields = {
            "a": group,
            "b": topic,
            "c": create_topic_key,
            "d": str(default_topic_queue_nums),
            "e": "",
        }
        text = _to_json(fields).decode()
        self._head = f'{{"code":{code},"extFields":{text[:-2]}'
        self._now_ms, self._birth = -1, ""
        unit = "true" if unit_mode else "false"
        batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
        self._middle = (
            f'","j":"0","k":"{unit}","m":"{batch}"}},"flag":{request_flag},'
            f'"language":"{LanguageCode.PYTHON.name}","opaque":'
        )

    def start(self, queue_id: int) -> str:
        """What the headers of one queue's messages begin with: up to the time of birth."""
        return f'{self._head}{queue_id}","f":"0","g":"'

    def message(
        self, start: str, opaque: int, now_ms: int, message_id: str, keys: str, message: Message
    ) -> bytes | None:
        """The request of a message; None: it can't be made here. UnicodeEncodeError: it has half of
        a surrogate pair. ``start``: that of its queue. ``now_ms``: the time of birth. ``keys``: as
        one text.
        """
        tags, wait, flag = message.tags, message.wait_store_ok, message.flag
        rests = _RESTS if wait else _RESTS_NO_WAIT
        if (
            message.properties
            or type(tags) is not str
            or (rest := rests.get(tags) or _remembered(rests, tags, wait)) is None
            # As long as itself, but for the quotes, is only what JSON writes as it is.
            or len(_to_json(keys)) != len(keys) + 2
            or len(keys) > SHORT_TEXT_MAX
        ):
            text = property_text(message_id, keys, tags, wait, message.properties)
            if text is None:
                return None
            return self.frame(start, opaque, now_ms, flag, json_text(text), message.body)
        if now_ms != self._now_ms:  # many messages are born in one millisecond
            self._now_ms, self._birth = now_ms, f'{now_ms}","h":"0","i":"'
        birth = f'{now_ms}","h":"{flag}","i":"' if flag else self._birth
        first = _JSON_KEYS if keys else ""
        if not keys:
            rest = rest[len(_JSON_ITEM_END) :]
        header = f"{start}{birth}{first}{keys}{rest}{message_id}{self._middle}{opaque}{_TAIL}"
        return _framed(header.encode(), message.body)

    def frame(
        self, start: str, opaque: int, now_ms: int, flag: int, properties: str, body: bytes
    ) -> bytes | None:
        """A request whose properties are ready (:func:`json_text`); None: no frame holds it."""
        header = f'{start}{now_ms}","h":"{flag}","i":"{properties}{self._middle}{opaque}{_TAIL}'
        return _framed(header.encode(), body)


def _framed(header: bytes, body: bytes) -> bytes | None:
    """The frame of both; None: it would be too long."""
    header_size = len(header)
    size = 4 + header_size + len(body)
    if size > FRAME_BYTES_MAX:
        return None
    return LENGTHS.pack(size, header_size) + header + body


def json_text(text: str) -> str:
    """The content of a text as JSON has it, between its quotes; UnicodeEncodeError: it has half of
    a surrogate pair.
    """
    return _to_json(text)[1:-1].decode()


_JSON_KEYS = json_text(_KEYS)
_JSON_ITEM_END = json_text(ITEM_END)


def wait_text(wait: bool) -> str:
    """The property text of a batch itself."""
    return f"{_WAIT}{'true' if wait else 'false'}"


def property_text(
    message_id: str, keys: str, tags: str, wait: bool, properties: Mapping[str, str]
) -> str | None:
    """The property text of a message; None: it would be read as others, or is too long."""
    if properties:
        wire = dict(properties)
        if keys:
            wire[PropertyKey.KEYS] = keys
        if tags:
            wire[PropertyKey.TAGS] = tags
        wire[PropertyKey.WAIT] = "true" if wait else "false"
        wire[PropertyKey.UNIQUE_KEY] = message_id
        text, count = encode_properties(wire), len(wire)
    else:
        rest = f"{_rest(tags, wait)}{message_id}"
        text = f"{_KEYS}{keys}{ITEM_END}{rest}" if keys else rest
        count = 2 + bool(keys) + bool(tags)
    if text.count(NAME_END) != count or text.count(ITEM_END) != count - 1:
        return None
    # No character has more than four bytes.
    return text if len(text) <= PROPERTIES_BYTES_MAX // 4 else None


def _rest(tags: str, wait: bool) -> str:
    """The property text of a message without properties of users, behind its keys, up to its id."""
    rest = f"{wait_text(wait)}{ITEM_END}{_ID}"
    return f"{_TAGS}{tags}{ITEM_END}{rest}" if tags else rest


_RESTS: dict[str, str] = {}
"""By tags: the same behind keys, as JSON has it."""
_RESTS_NO_WAIT: dict[str, str] = {}


def _remembered(rests: dict[str, str], tags: str, wait: bool) -> str | None:
    """Remember what follows on the keys of messages with these tags; None: they are too odd."""
    if len(tags) > SHORT_TEXT_MAX or NAME_END in tags or ITEM_END in tags:
        return None
    if len(rests) >= TAGS_MAX:
        rests.clear()
    rest = rests[tags] = json_text(f"{ITEM_END}{_rest(tags, wait)}")
    return rest


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


class TopicSender:
    """The fast-path sends of one producer to one topic; see
    :class:`kerolox.codec.sending.TopicSender`."""

    def __init__(
        self,
        sender: Sender,
        make_future: Callable[[], SendFuture],
        chooser: QueueRotation,
        queues: Sequence[MessageQueue],
        group: str,
        topic: str,
        create_topic_key: str,
        default_topic_queue_nums: int,
        unit_mode: bool,
    ) -> None:
        self.sender = sender
        self.make_future = make_future
        self.queues = tuple(queues)
        self.batch: SendBatch | None = None
        common = (group, topic, create_topic_key, default_topic_queue_nums, unit_mode)
        self._single = FrameHead(RequestCode.SEND_MESSAGE_V2, *common)
        self._oneway = FrameHead(RequestCode.SEND_MESSAGE_V2, *common, FLAG_ONEWAY)
        self._batch = FrameHead(RequestCode.SEND_BATCH_MESSAGE, *common)
        self._starts = [self._single.start(queue.queue_id) for queue in self.queues]
        self._chooser = chooser
        self._index_of = {queue: index for index, queue in enumerate(self.queues)}
        self.channels: list[SendChannel | None] = [None] * len(self.queues)

    def aim(self, index: int, channel: SendChannel | None) -> None:
        """The connection that leads to a queue."""
        self.channels[index] = channel

    def submit(
        self, message: Message, queue: MessageQueue | None, timeout_ms: int | None
    ) -> tuple[SendFuture, int] | None:
        """As :meth:`begin`; ``go_on`` is called with a send that is not stored."""
        return self.begin(message, queue, timeout_ms, message)

    def begin(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        kept: Message | None = None,
    ) -> tuple[SendFuture, int] | None:
        """Write a message, or let it join the batch; None: it can't be, nothing was done.

        ``kept``: the message, if the send is submitted.
        """
        sender, body = self.sender, message.body
        if (
            type(message) is not sender.message_type
            or type(body) is not bytes
            or not 0 < len(body) <= sender.body_bytes_max
            or message.delay_level
        ):
            return None
        if sender.is_batching:
            return self._join(message, queue, timeout_ms)
        ms = sender.timeout_ms if timeout_ms is None else timeout_ms
        chooser = self._chooser
        index = chooser.upcoming if queue is None else self._index_of.get(queue, -1)
        if index < 0 or ms <= 0 or (channel := self.channels[index]) is None:
            return None
        opaque = channel.claim()
        if opaque is None:
            return None
        if not channel.buffered:
            sender.check()
        now_ms, now = sender.time_ms(), channel.time()
        message_id = sender.next_id(now_ms)
        frame = self._frame(self._single, message, index, opaque, now_ms, message_id)
        if frame is None:
            return None
        if queue is None:
            chooser.upcoming = (index + 1) % len(self.queues)
        future = self.make_future()
        goes_to, deadline, is_given = self.queues[index], now + ms / 1000, queue is not None
        # fmt: off
        entry = (future, sender, message_id, goes_to, now, deadline, ms, is_given, kept, None)
        # fmt: on
        channel.enter(frame, opaque, entry)
        sender.open_count += 1
        return future, opaque

    def _join(
        self, message: Message, queue: MessageQueue | None, timeout_ms: int | None
    ) -> tuple[SendFuture, int] | None:
        batch = self.batch
        if (
            batch is None
            or queue is not None
            or timeout_ms is not None
            or batch.wait != message.wait_store_ok
        ):
            return None
        future = batch.add(message)
        return None if future is None else (future, NO_OPAQUE)

    def admit(self, message: Message, index: int, opaque: int, send: OpenSend) -> bool:
        """Write a message that waited for capacity; False: it is not for the fast path."""
        sender, channel, future = self.sender, self.channels[index], send.future
        if channel is None or future is None or future.done():
            return True
        now_ms, now = sender.time_ms(), channel.time()
        message_id = sender.next_id(now_ms)
        frame = self._frame(self._single, message, index, opaque, now_ms, message_id)
        if frame is None:
            return False
        kept = None if send.go_on is None else message
        ends = (now, send.deadline, send.timeout_ms, send.is_given)
        entry = (future, sender, message_id, self.queues[index], *ends, kept, None)
        channel.enter(frame, opaque, entry)
        sender.open_count += 1
        return True

    def new_batch(
        self, wait: bool, is_given: bool, bytes_max: int, count_max: int, owner: BatchOwner
    ) -> SendBatch:
        """A batch of the topic's messages."""
        return SendBatch(self, wait, is_given, bytes_max, count_max, owner)

    def post_batch(self, batch: SendBatch, index: int, timeout_ms: int, deadline: float) -> bool:
        """Write a batch for a queue; False: there is no capacity, or no frame holds it."""
        channel = self.channels[index]
        if channel is None or not channel.has_capacity():
            return False
        return self.admit_batch(batch, index, timeout_ms, deadline, channel.new_opaque())

    def admit_batch(
        self, batch: SendBatch, index: int, timeout_ms: int, deadline: float, opaque: int
    ) -> bool:
        """Write a batch that waited for capacity; False: no frame holds it."""
        channel, sender, head = self.channels[index], self.sender, self._batch
        if channel is None:
            return False
        queue = self.queues[index]
        start, text = head.start(queue.queue_id), json_text(wait_text(batch.wait))
        frame = head.frame(start, opaque, sender.time_ms(), 0, text, batch.body)
        if frame is None:
            return False
        ids = ",".join(batch.message_ids)
        ends = (channel.time(), deadline, timeout_ms, batch.is_given)
        channel.enter(frame, opaque, (None, sender, ids, queue, *ends, None, batch))
        sender.open_count += len(batch)
        return True

    def withdraw(self, opaque: int) -> None:
        """A caller went away: forget its send."""
        for channel in self.channels:
            if channel is not None and channel.withdraw(opaque):
                return

    def write_oneway(self, message: Message, queue: MessageQueue | None) -> int:
        """Write a message that nobody answers; 0: it can't be, nothing was done."""
        sender, chooser, body = self.sender, self._chooser, message.body
        if (
            type(message) is not sender.message_type
            or type(body) is not bytes
            or not 0 < len(body) <= sender.body_bytes_max
            or message.delay_level
            or sender.is_batching
        ):
            return 0
        index = chooser.upcoming if queue is None else self._index_of.get(queue, -1)
        if index < 0 or (channel := self.channels[index]) is None:
            return 0
        opaque = channel.claim()
        if opaque is None:
            return 0
        if not channel.buffered:
            sender.check()
        now_ms = sender.time_ms()
        message_id = sender.next_id(now_ms)
        frame = self._frame(self._oneway, message, index, opaque, now_ms, message_id)
        if frame is None:
            return 0
        if queue is None:
            chooser.upcoming = (index + 1) % len(self.queues)
        channel.write(frame)
        return len(channel.buffered)

    def _frame(
        self,
        head: FrameHead,
        message: Message,
        index: int,
        opaque: int,
        now_ms: int,
        message_id: str,
    ) -> bytes | None:
        keys = _keys_text(message)
        if keys is None:
            return None
        start = self._starts[index]
        try:
            return head.message(start, opaque, now_ms, message_id, keys, message)
        except UnicodeEncodeError:  # half of a surrogate pair
            return None


def _keys_text(message: Message) -> str | None:
    """Keys as one text; None: the message is made of odd things. Keys that can be gone through only
    once are left alone."""
    keys = message.keys
    if (
        type(message.tags) is not str
        or type(message.flag) is not int
        or type(message.wait_store_ok) is not bool
        or type(message.properties) is not dict
    ):
        return None
    if type(keys) is str:
        return keys
    if type(keys) is not list and type(keys) is not tuple:
        return None
    try:
        return " ".join(keys)
    except TypeError:
        return None


class SendBatch:
    """Messages that wait for each other; see :class:`kerolox.codec.sending.SendBatch`."""

    def __init__(
        self,
        topic_sender: TopicSender,
        wait: bool,
        is_given: bool,
        bytes_max: int,
        count_max: int,
        owner: BatchOwner,
    ) -> None:
        self.wait = wait
        self.is_given = is_given
        self.owner = owner
        self.refused = False
        self.message_ids: list[str] = []
        self.futures: list[SendFuture] = []
        self._topic_sender = topic_sender
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._items: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self.futures)

    @property
    def body(self) -> bytes:
        """The messages as they lie in the request."""
        return b"".join(self._items)

    def add(self, message: Message) -> SendFuture | None:
        """Take in a message; None: there is no capacity (``refused``), or it is not for the fast
        path."""
        self.refused = False
        topic_sender, body = self._topic_sender, message.body
        sender = topic_sender.sender
        if (
            type(message) is not sender.message_type
            or type(body) is not bytes
            or not 0 < len(body) <= sender.body_bytes_max
            or message.delay_level
        ):
            return None
        keys = _keys_text(message)
        if keys is None:
            return None
        message_id = sender.next_id(sender.time_ms())
        text = property_text(message_id, keys, message.tags, self.wait, message.properties)
        if text is None:
            return None
        try:
            item = encode_batch([(message.flag, body, text.encode())])
        except (UnicodeEncodeError, struct.error):  # half of a surrogate pair; no flag
            return None
        size = self._size + len(item)
        count = len(self.futures)
        if count and (size > self._bytes_max or count >= self._count_max):
            self.refused = True
            return None
        future = topic_sender.make_future()
        self._items.append(item)
        self._size = size
        self.message_ids.append(message_id)
        self.futures.append(future)
        if size >= self._bytes_max or count + 1 >= self._count_max:
            self.owner.full(self)
        return future

    def seal(self) -> int:
        """Leave out messages whose callers went away; how many are left."""
        futures = self.futures
        kept = [index for index, future in enumerate(futures) if not future.done()]
        if len(kept) < len(futures):
            self._items = [self._items[index] for index in kept]
            self.message_ids = [self.message_ids[index] for index in kept]
            self.futures = [futures[index] for index in kept]
        return len(kept)
