"""Reading messages for a page: so many, so much, and what was left out."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from kerolox.admin import Admin, Position, position_of
from kerolox.admin.asking import answers_of
from kerolox.console.zones import with_zone
from kerolox.errors import ClientError
from kerolox.filter.sql92 import compile_sql92
from kerolox.filter.sql92_error import Sql92Error
from kerolox.message import ALL_TAGS, MessageExt, MessageQueue

__all__ = ["Scan", "Wanted", "WithBody", "position_in", "queue_of", "scan", "wanted_of"]

MESSAGES_READ_MAX = 2_000
BYTES_READ_MAX = 32 * 1024 * 1024
SHOWN_MAX = 200
EXPRESSION_CHARACTERS_MAX = 2_000
MEMBER = "$"
"""Before the name of a member of a JSON body, in an expression."""

Test = Callable[[MessageExt], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages of a topic."""

    topic: str
    queue: MessageQueue | None
    """None: of all queues."""
    start: Position
    stop: Position
    tags: str
    """The broker filters by these."""
    test: Test
    """The console filters by this."""


@dataclass(slots=True)
class Scan:
    """What was found, newest first, and how far the search went."""

    messages: list[MessageExt] = field(default_factory=list)
    read: int = 0
    bytes_read: int = 0
    cut: list[MessageQueue] = field(default_factory=list)
    """Queues that have more than was read."""
    failed: dict[MessageQueue, str] = field(default_factory=dict)
    left_out: int = 0
    """Messages that match and are not shown."""


class WithBody(Mapping[str, str]):
    """The properties of a message, and the members of its body where that is JSON: ``$amount`` is a
    member, ``$customer$name`` one within another, ``$items$0`` the first of an array."""

    def __init__(self, message: MessageExt) -> None:
        self._message = message

    def __getitem__(self, name: str) -> str:
        """A property or a member, as a text; what is null is not there: a KeyError."""
        if not name.startswith(MEMBER) or name in self._message.properties:
            return self._message.properties[name]
        value = self._body
        for part in name[1:].split(MEMBER):
            value = _member(value, part, name)
        match value:
            case None:
                raise KeyError(name)
            case str():
                return value
            case bool():
                return "true" if value else "false"
        return msgspec.json.encode(value).decode()

    def __iter__(self) -> Iterator[str]:
        """The names of properties."""
        return iter(self._message.properties)

    def __len__(self) -> int:
        """How many properties there are."""
        return len(self._message.properties)

    @cached_property
    def _body(self) -> object:
        try:
            found: object = msgspec.json.decode(self._message.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        return found


def _member(value: object, part: str, name: str) -> object:
    if isinstance(value, dict):
        return value.get(part)
    is_index = isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 9
    if isinstance(value, list) and is_index and int(part) < len(value):
        found: object = value[int(part)]
        return found
    raise KeyError(name)


def wanted_of(
    topic: str, queue: str, start: Position, stop: Position, *, tags: str, sql: str, text: str
) -> Wanted:
    """The messages that a form asks for; ClientError: an expression can't be read."""
    tests: list[Test] = []
    if sql:
        if len(sql) > EXPRESSION_CHARACTERS_MAX:
            raise ClientError(f"the expression is longer than {EXPRESSION_CHARACTERS_MAX}")
        try:
            expression = compile_sql92(sql)
        except Sql92Error as error:
            raise ClientError(f"no SQL92 expression: {error}") from None
        tests.append(lambda message: expression.matches(WithBody(message)))
    if text:
        part = text.encode()
        tests.append(lambda message: part in message.body)
    return Wanted(
        topic,
        queue_of(topic, queue) if queue else None,
        start,
        stop,
        tags or ALL_TAGS,
        lambda message: all(test(message) for test in tests),
    )


def queue_of(topic: str, text: str) -> MessageQueue:
    """A queue that is written ``broker/id``. Raises ClientError where it is not."""
    broker, _, number = text.rpartition("/")
    if not broker or not number.isascii() or not number.isdigit() or len(number) > 9:
        raise ClientError("a queue is written as broker/id")
    return MessageQueue(topic, broker, int(number))


def position_in(text: str, zone: datetime.tzinfo | None = None) -> Position:
    """A place as people write it, a time in that zone or the console's own. Raises ClientError
    where it is none."""
    try:
        return position_of(with_zone(text, zone))
    except ValueError as error:
        raise ClientError(f"no position: {error}") from None


async def scan(admin: Admin, wanted: Wanted) -> Scan:
    """Read the messages, each queue up to its share of what may be read. TopicRouteNotFoundError:
    no name server knows the topic. ClientError: an expression can't be read, or there is no such
    queue. Else the error of a broker: no queue could be read.
    """
    queues = [wanted.queue] if wanted.queue is not None else await _queues(admin, wanted.topic)
    found = Scan()
    share = max(MESSAGES_READ_MAX // max(len(queues), 1), 1)
    _, failed = await answers_of(queues, lambda queue: _read(admin, wanted, queue, share, found))
    if failed and len(failed) == len(queues):
        raise next(iter(failed.values()))
    found.failed = {queue: str(error) for queue, error in failed.items()}
    found.messages.sort(key=lambda m: (m.store_timestamp, m.queue_offset), reverse=True)
    found.left_out = max(len(found.messages) - SHOWN_MAX, 0)
    del found.messages[SHOWN_MAX:]
    return found


async def _queues(admin: Admin, topic: str) -> list[MessageQueue]:
    return [
        each.queue
        for each in (await admin.describe_topic(topic)).queues
        if each.max_offset > each.min_offset
    ]


async def _read(admin: Admin, wanted: Wanted, queue: MessageQueue, share: int, found: Scan) -> None:
    read = 0
    async for message in admin.read_messages(
        wanted.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        start=wanted.start,
        stop=wanted.stop,
        expression=wanted.tags,
        max_messages=share + 1,
    ):
        read += 1
        if read > share or found.bytes_read > BYTES_READ_MAX:
            found.cut.append(queue)
            return
        found.read += 1
        found.bytes_read += len(message.body)
        if wanted.test(message):
            found.messages.append(message)
