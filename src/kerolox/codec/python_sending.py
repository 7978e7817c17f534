"""The codec of sends in Python: the complete counterpart of the native one, and its oracle."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kerolox.codec.counters import MessageIds, Opaques
from kerolox.codec.python_channel import SendChannel, Sender
from kerolox.codec.python_frames import FrameHead, json_text, property_text, wait_text
from kerolox.codec.sending import NO_OPAQUE, OpenSend, SendFuture
from kerolox.protocol.codes import FLAG_ONEWAY, RequestCode
from kerolox.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kerolox.codec.sending import BatchOwner, QueueRotation
    from kerolox.message import Message, MessageQueue

__all__ = ["MessageIds", "Opaques", "SendChannel", "Sender", "TopicSender"]


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
            chooser.advance()
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
            chooser.advance()
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
