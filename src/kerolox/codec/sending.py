"""The interface of the codec of sends.

A producer has a ``Sender``, each topic a ``TopicSender``, each connection a ``SendChannel``.
Beginning a send is one call: it reads the message, makes id and opaque, writes the request into
what its connection buffers in this iteration of the event loop, and makes the future of the result.
What a connection brings is one call for each chunk: it completes the futures of all sends that are
stored. Whatever else happens to a send is handed out as an :class:`OpenSend`.

None of it does I/O. Time comes from functions that are given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kerolox.message import Message, MessageQueue

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

FAST_HEADER_BYTES_MAX = 65_536
"""Longest header of an answer that a codec reads; that of a batch has an id for each message."""

CLOCK_SECONDS_MAX = 0.0005
"""A codec may take the time for the same for so long."""

NO_OPAQUE = 1 << 40
"""The opaque of a send that has none, since it is part of a batch."""


class SendFuture(Protocol):
    """A future of the event loop; its result is the producer's, or an :class:`OpenSend`."""

    def done(self) -> bool:
        """It has a result, an error, or was cancelled."""

    def cancelled(self) -> bool:
        """It was cancelled."""

    def set_result(self, result: object, /) -> None:
        """End it."""

    def __await__(self) -> Generator[object, None, object]: ...


@dataclass(slots=True, eq=False)
class OpenSend:
    """A send, or a batch, without an answer that says where it is stored."""

    future: SendFuture | None
    """The future of its result; None: those of the batch."""
    go_on: Callable[[OpenSend], object] | None
    """What goes on with it; None: whoever waits for the future, whose result is this then."""
    message: Message | None
    """The message of one that something else goes on with."""
    batch: SendBatch | None
    message_id: str
    """The message's; empty: it was not written yet."""
    queue: MessageQueue
    """Where it went."""
    is_given: bool
    """The caller chose the queue."""
    asked_at: float
    """When it began, by the loop's time."""
    deadline: float
    timeout_ms: int
    answer: RemotingCommand | Exception | None = None
    """What came of it."""

    def end(self, answer: RemotingCommand | Exception) -> None:
        """This came of it; nothing happens if nobody waits any more."""
        future = self.future
        if future is not None and future.done():
            return
        self.answer = answer
        if self.go_on is not None:
            self.go_on(self)
        elif future is not None:
            future.set_result(self)


class Opaques(Protocol):
    """Request ids: counted up from a first one, wrapping as a signed 32-bit number does."""

    def __init__(self, first: int = 0) -> None:
        """``first`` is the first one."""

    def allocate(self) -> int:
        """The next id."""


class MessageIds(Protocol):
    """Message ids: what all of a millisecond begin with, and a counter of 16 bits."""

    def __init__(self, head: Callable[[int], str]) -> None:
        """``head`` gives what all ids of a millisecond begin with."""

    def next(self, now_ms: int) -> str:
        """The next id; ``now_ms`` is milliseconds since the epoch."""


class QueueRotation(Protocol):
    """Whose turn it is among queues."""

    upcoming: int
    """The number of the next one; whoever uses it sets the one behind it."""


class SendChannel(Protocol):
    """One connection's fast-path sends: what is to be written, and what waits for an answer."""

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
        """Nothing is buffered or open.

        Args:
            opaques: of all connections of a client.
            calls: tables of requests of other kinds that wait for a response, by opaque.
            queue: requests that wait for capacity, by opaque.
            calls_max: requests that may wait for a response.
            buffer_bytes_max: bytes at which an iteration is full.
            time: the loop's.
            schedule_flush: called when the first bytes of an iteration are buffered.
            flush: called when an iteration is full: it takes what is buffered and writes it.
            arm: called with a deadline that is earlier than ``armed_at``.
            admit: called when there may be capacity for those that wait.
            prompt: a send is flushed at once where others will hardly join it: nothing is buffered
                or open, and the last answers were to no more than one.
        """

    closed: bool
    """Nothing is written any more."""
    blocked: bool
    """The peer does not take what is written, for now."""
    calls_max: int
    """Requests that may wait for a response."""
    armed_at: float
    """When the timer of the deadlines fires; infinite: there is none."""

    def __len__(self) -> int: ...

    def __contains__(self, opaque: object, /) -> bool: ...

    @property
    def buffered_bytes(self) -> int:
        """What is buffered in this iteration."""

    @property
    def buffered_frames(self) -> int:
        """How many frames that are."""

    def has_capacity(self) -> bool:
        """A request may be written at once."""

    def takes_more(self) -> bool:
        """Nothing but those that wait already stands before a further request."""

    def new_opaque(self) -> int:
        """The id of a request that is about to be made: no other one has it that is open."""

    def write(self, frame: bytes) -> None:
        """Buffer a frame of another kind."""

    def take(self) -> bytes:
        """What was buffered; the next iteration begins."""

    def feed(self, data: bytearray, size: int) -> tuple[list[bytes], str | None]:
        """Take ``data[:size]``: complete the futures of what is stored.

        All other frames without their length, and why the stream ended: a length came that no frame
        can have.
        """

    def complete(self, opaque: int, response: RemotingCommand) -> bool:
        """The answer to a send says anything else; False: no such send is open."""

    def withdraw(self, opaque: int) -> bool:
        """Forget a send whose caller went away; False: it is not here."""

    def expire(self, now: float) -> tuple[list[OpenSend], float]:
        """Take out the sends whose time is over; with the earliest deadline of the others."""

    def take_open(self) -> list[OpenSend]:
        """Take out all sends."""

    def futures(self, sender: Sender | None = None) -> list[SendFuture]:
        """Those of the open sends, of one producer or of all, that nobody has cancelled."""


class Sender(Protocol):
    """What all fast-path sends of one producer share."""

    def __init__(
        self,
        ids: MessageIds,
        now_ms: Callable[[], int],
        check: Callable[[], object],
        go_on: Callable[[OpenSend], object],
        message_type: type,
        result_type: type,
        status: object,
        body_bytes_max: int,
        timeout_ms: int,
        is_batching: bool,
    ) -> None:
        """Nothing is on its way.

        Args:
            ids: makes the messages' ids.
            now_ms: milliseconds since the epoch.
            check: called before the first send of an iteration; it raises what speaks against it.
            go_on: called with batches and submitted sends that are not stored.
            message_type: the only class of messages that are plain.
            result_type: the named tuple of a result.
            status: that of a message that is stored.
            body_bytes_max: longer bodies are not for the fast path.
            timeout_ms: the time limit of sends that have none.
            is_batching: messages join batches.
        """

    @property
    def open_count(self) -> int:
        """Its messages on their way."""


class BatchOwner(Protocol):
    """Whoever sends a batch."""

    def full(self, batch: SendBatch, /) -> None:
        """No further message is worth waiting for."""


class SendBatch(Protocol):
    """Messages of one topic that wait for each other."""

    @property
    def owner(self) -> BatchOwner:
        """Whoever sends it."""

    @property
    def wait(self) -> bool:
        """Their WAIT."""

    @property
    def refused(self) -> bool:
        """The last message found no capacity."""

    @property
    def message_ids(self) -> list[str]:
        """The messages' ids, in order."""

    @property
    def futures(self) -> list[SendFuture]:
        """The futures of their results."""

    @property
    def body(self) -> bytes:
        """The messages as they lie in the request."""

    def __len__(self) -> int: ...

    def add(self, message: Message) -> SendFuture | None:
        """Take in a message with the same WAIT: the future of its result. None: there is no
        capacity (``refused``), or it is not for the fast path."""

    def seal(self) -> int:
        """Leave out messages whose callers went away; how many are left."""


class TopicSender(Protocol):
    """The fast-path sends of one producer to one topic."""

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
        """No connection is known.

        Args:
            sender: the producer's.
            make_future: makes futures of the loop.
            chooser: whose turn it is among the queues.
            queues: those of the topic.
            group: the producer's group.
            topic: the topic.
            create_topic_key: the template topic.
            default_topic_queue_nums: most queues of a new topic.
            unit_mode: the producer is of a unit.
        """

    batch: SendBatch | None
    """What messages for any queue with the producer's time limit join."""

    def aim(self, index: int, channel: SendChannel | None) -> None:
        """The connection that leads to a queue."""

    def begin(
        self, message: Message, queue: MessageQueue | None, timeout_ms: int | None
    ) -> tuple[SendFuture, int] | None:
        """Write a message, or let it join the batch.

        Args:
            message: what to send.
            queue: where to; None: the next in turn.
            timeout_ms: its time limit; None: the producer's.

        Returns:
            The future of its result, which is an :class:`OpenSend` when it is not stored, and its
            opaque (:data:`NO_OPAQUE` in a batch); None: there is no connection, no capacity, or it
            is not for the fast path. Nothing was done.
        """

    def submit(
        self, message: Message, queue: MessageQueue | None, timeout_ms: int | None
    ) -> tuple[SendFuture, int] | None:
        """As :meth:`begin`; ``go_on`` of the sender is called with one that is not stored."""

    def write_oneway(self, message: Message, queue: MessageQueue | None) -> int:
        """Write a message that nobody answers.

        Args:
            message: what to send.
            queue: where to; None: the next in turn.

        Returns:
            How many frames its connection has buffered in this iteration; 0: there is no
            connection, no capacity, or it is not for the fast path. Nothing was done.
        """

    def admit(
        self,
        message: Message,
        index: int,
        opaque: int,
        send: OpenSend,
    ) -> bool:
        """Write a message that waited for capacity, unless its future is done; False: it is not
        for the fast path."""

    def new_batch(
        self, wait: bool, is_given: bool, bytes_max: int, count_max: int, owner: BatchOwner
    ) -> SendBatch:
        """A batch of the topic's messages.

        Args:
            wait: the messages' WAIT.
            is_given: the callers chose the queue.
            bytes_max: about how large its body may be; a single larger message goes alone.
            count_max: most messages.
            owner: whoever sends it.
        """

    def post_batch(self, batch: SendBatch, index: int, timeout_ms: int, deadline: float) -> bool:
        """Write a batch for a queue; False: there is no capacity, or no frame holds it."""

    def admit_batch(
        self, batch: SendBatch, index: int, timeout_ms: int, deadline: float, opaque: int
    ) -> bool:
        """Write a batch that waited for capacity; False: no frame holds it."""

    def withdraw(self, opaque: int) -> None:
        """A caller went away: forget its send."""


MakeOpaques = type[Opaques]
MakeIds = type[MessageIds]
MakeChannel = type[SendChannel]
MakeSender = type[Sender]
MakeTopicSender = type[TopicSender]


class SendCodec(Protocol):
    """What a module offers that has a codec of sends."""

    Opaques: MakeOpaques
    """Made for each client."""
    MessageIds: MakeIds
    """Made for each producer."""
    SendChannel: MakeChannel
    """Made for each connection."""
    Sender: MakeSender
    """Made for each producer."""
    TopicSender: MakeTopicSender
    """Made for each topic of a producer."""
