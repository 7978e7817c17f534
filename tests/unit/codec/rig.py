"""A codec of sends without a connection: what tests of it are made of."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kerolox.client.core.sending.queue_choice import QueueChooser
from kerolox.client.core.sending.send import SendHeader, SendResult, SendStatus
from kerolox.codec.choice import send_codec
from kerolox.codec.sending import NO_OPAQUE, OpenSend, SendBatch, SendCodec
from kerolox.message import Message, MessageQueue

NAMES = ["python"]
if importlib.util.find_spec("kerolox_kernel") is not None:
    NAMES.append("native")
CODECS = [send_codec(name) for name in NAMES]
HEAD = "7F0000010ABC18B4AAC200000000"
"""What all message ids begin with."""
TOPIC = "T-1"
HEADER = SendHeader("g", "TBW102", 4)


class HandFuture:
    """A future that nobody waits for."""

    def __init__(self) -> None:
        self.result: Any = None
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return self.is_done and self.result is None

    def cancel(self) -> None:
        self.is_done = True

    def set_result(self, result: object) -> None:
        assert not self.is_done
        self.result, self.is_done = result, True

    def __await__(self) -> Any:
        raise AssertionError


@dataclass
class Rig:
    """A sender, a lane and a channel, and all that they ask for."""

    codec: SendCodec
    header: SendHeader = HEADER
    queue_ids: tuple[int, ...] = (0,)
    first_opaque: int = 77
    calls_max: int = 100
    buffer_bytes_max: int = 1 << 30
    body_bytes_max: int = 1 << 30
    timeout_ms: int = 3_000
    batching: bool = False
    prompt: bool = False
    now: float = 10.0
    now_ms: int = 1_700_000_000_000
    flushes_scheduled: int = 0
    checks: int = 0
    admits: int = 0
    full: int = 0
    flushed: list[bytes] = field(default_factory=list)
    armed: list[float] = field(default_factory=list)
    gone_on: list[OpenSend] = field(default_factory=list)
    make_future: Callable[[], Any] = HandFuture
    opaque: int = NO_OPAQUE
    """That of the send that began last."""
    calls: dict[int, Any] = field(default_factory=dict)
    waiting: OrderedDict[int, Any] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        codec, header = self.codec, self.header
        self.ids = codec.MessageIds(lambda now_ms: HEAD)
        self.sender = codec.Sender(
            self.ids,
            lambda: self.now_ms,
            lambda: self._count("checks"),
            self.gone_on.append,
            Message,
            SendResult,
            SendStatus.SEND_OK,
            self.body_bytes_max,
            self.timeout_ms,
            self.batching,
        )
        self.queues = [MessageQueue(TOPIC, "b", number) for number in self.queue_ids]
        self.chooser = QueueChooser(self.queues, start=len(self.queues) - 1)
        self.lane = codec.TopicSender(
            self.sender,
            self.make_future,
            self.chooser,
            self.queues,
            header.group,
            TOPIC,
            header.create_topic_key,
            header.default_topic_queue_nums,
            header.unit_mode,
        )
        self.channel = codec.SendChannel(
            codec.Opaques(self.first_opaque),
            ({}, self.calls),
            self.waiting,
            self.calls_max,
            self.buffer_bytes_max,
            lambda: self.now,
            lambda: self._count("flushes_scheduled"),
            self._flush,
            self.armed.append,
            lambda: self._count("admits"),
            self.prompt,
        )
        for index in range(len(self.queues)):
            self.lane.aim(index, self.channel)

    def _flush(self) -> None:
        self.flushed.append(self.channel.take())

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def batch(
        self, *, wait: bool = True, bytes_max: int = 1 << 30, count_max: int = 1_000
    ) -> SendBatch:
        return self.lane.new_batch(wait, False, bytes_max, count_max, Owner(self))

    def begin(self, message: Message, how: str = "begin", **named: Any) -> HandFuture | None:
        begun = getattr(self.lane, how)(message, named.get("queue"), named.get("timeout_ms"))
        if begun is None:
            return None
        future, self.opaque = begun
        assert isinstance(future, HandFuture)
        return future

    def feed(self, data: bytes) -> tuple[list[bytes], str | None]:
        return self.channel.feed(bytearray(data + b"rest"), len(data))


@dataclass
class Owner:
    """Counts the batches that are full."""

    rig: Rig

    def full(self, batch: SendBatch, /) -> None:
        self.rig.full += 1
