"""Which queue each row goes to: what the row says, by its key, or in turn."""

from __future__ import annotations

import time
from typing import NamedTuple

import pyarrow
import pyarrow.compute

from kerolox.client.core.name_servers import NameServers, route_of, route_request
from kerolox.client.core.routes import (
    TopicRoute,
    publish_queues,
    route_from_template,
)
from kerolox.codec.rows import row_codec
from kerolox.errors import (
    BrokerError,
    KeroloxError,
    MessageRejectedError,
    RemotingError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageQueue
from kerolox.protocol.names import AUTO_CREATE_TOPIC
from kerolox.spark.network.connecting import Asker, Connector
from kerolox.spark.sink.rows import Rows, text_column

NEW_TOPIC_QUEUES = 4
"""``defaultTopicQueueNums`` of producers."""

ROUTE_SECONDS = 30.0
"""A route is looked up again after so long (pollNameServerInterval)."""

ANSWER_SECONDS_MAX = 3.0
RETRY_PAUSE_SECONDS = 0.2
UNKNOWN_SECONDS = 3.0
"""How long a topic that no name server knows is asked for."""

_SEPARATOR = "\0"


class TopicQueues:
    """The queues of one topic that can be written to, and their brokers' addresses."""

    def __init__(self, topic: str, route: TopicRoute, first: int) -> None:
        """``first``: any number; where the turn begins."""
        self.queues = publish_queues(topic, route)
        self.addresses = route.masters
        self._next = first

    def chosen(
        self, broker_name: str = "", queue_id: int | None = None, key_index: int | None = None
    ) -> MessageQueue | None:
        """The queue of a key among those wanted, without a key the next; None: there is none."""
        if not broker_name and queue_id is None:
            fitting = self.queues
        else:
            fitting = [
                queue
                for queue in self.queues
                if broker_name in ("", queue.broker_name) and queue_id in (None, queue.queue_id)
            ]
        if not fitting:
            return None
        if key_index is not None:
            return fitting[key_index % len(fitting)]
        self._next += 1
        return fitting[self._next % len(fitting)]


class PublishRoutes:
    """Routes for writing, kept for a while. Belongs to one thread."""

    def __init__(
        self,
        name_servers: tuple[str, ...],
        connector: Connector,
        *,
        wait_seconds: float,
        first: int,
    ) -> None:
        """``wait_seconds``: how long name servers may be away; ``first``: see TopicQueues."""
        self._servers = NameServers(name_servers, first=first)
        self._asker = Asker(connector, ANSWER_SECONDS_MAX)
        self._wait_seconds = wait_seconds
        self._first = first
        self._known: dict[str, tuple[float, TopicQueues]] = {}

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._asker.close()

    def queues(self, topic: str, *, fresh: bool = False) -> TopicQueues:
        """The queues of a topic; ``fresh``: as the name servers say now. TopicRouteNotFoundError:
        no name server knows it, or none of its queues can be written to.
        """
        known = self._known.get(topic)
        now = time.monotonic()
        if known is not None and not fresh and now < known[0] + ROUTE_SECONDS:
            return known[1]
        try:
            found = self._waited(topic)
        except KeroloxError:
            if known is None:
                raise
            # Brokers that answered go on to be asked while name servers are away.
            return known[1]
        self._known[topic] = now, found
        return found

    def _waited(self, topic: str) -> TopicQueues:
        started = time.monotonic()
        while True:
            try:
                route = self._route(topic)
                if route is not None:
                    queues = TopicQueues(topic, route, self._first)
                    if queues.queues:
                        return queues
                failure: KeroloxError = TopicRouteNotFoundError(
                    f"topic {topic} has no queue that can be written to; "
                    "is its broker running, and may the topic be written (perm 2)?"
                    if route is not None
                    else f"name server {';'.join(self._servers.addresses)} knows no topic {topic}; "
                    "create it, correct option or column topic, or start the broker with "
                    "autoCreateTopicEnable=true"
                )
                seconds = min(UNKNOWN_SECONDS, self._wait_seconds)
            except (RemotingError, BrokerError) as error:
                failure, seconds = error, self._wait_seconds
            if time.monotonic() >= started + seconds:
                raise failure
            time.sleep(RETRY_PAUSE_SECONDS)

    def _route(self, topic: str) -> TopicRoute | None:
        """The route of a topic, else that which it gets with its first message; None: neither."""
        failure: RemotingError | BrokerError | None = None
        for address in self._servers.in_order():
            requests = [route_request(topic), route_request(AUTO_CREATE_TOPIC)]
            try:
                answers = self._asker.ask(address, requests)
                route, template = (route_of(answer, address) for answer in answers)
            except (RemotingError, BrokerError) as error:
                failure = error
                continue
            if route is not None:
                self._servers.prefer(address)
                return route
            if template is not None:
                return route_from_template(template, queues=NEW_TOPIC_QUEUES)
        if failure is not None:
            raise failure
        return None


class Share(NamedTuple):
    """Rows of one record batch that want the same."""

    topic: str
    indices: pyarrow.Array | None
    """Which rows, in their order; None: all."""
    broker_name: str = ""
    queue_id: int | None = None
    key_index: int | None = None
    """The number of their key's queue among those of the topic."""
    is_delayed: bool = False

    @property
    def is_ordered(self) -> bool:
        """They stay in order, so a queue takes one batch of them after the other."""
        return self.key_index is not None

    @property
    def is_fixed(self) -> bool:
        """No other broker may take them."""
        return bool(self.broker_name) or self.queue_id is not None or self.key_index is not None

    def queue(self, queues: TopicQueues) -> MessageQueue:
        """Where the next of them go; MessageRejectedError: the topic has no such queue."""
        found = queues.chosen(self.broker_name, self.queue_id, self.key_index)
        if found is None:
            names = sorted({queue.broker_name for queue in queues.queues})
            wanted = f"queue {self.queue_id}" if self.queue_id is not None else "queue"
            where = f" on broker {self.broker_name}" if self.broker_name else ""
            raise MessageRejectedError(
                f"topic {self.topic} has no {wanted}{where} that can be written to; it has "
                f"{len(queues.queues)} on {', '.join(names)}"
            )
        return found


def by_topic(rows: Rows, topic: str) -> list[tuple[str, pyarrow.Array | None]]:
    """The topics of a batch, each with its rows; None: all of them. ``topic``: that of all rows
    where there is no column topic.
    """
    topics = rows.topics
    if topics is None:
        return [(topic, None)]
    return [(name or "", indices) for name, indices in _groups(topics)]


def shares_of(
    rows: Rows, topic: str, indices: pyarrow.Array | None, queue_count: int
) -> list[Share]:
    """The rows of one topic by what they want; ``indices``: which rows; None: all."""
    wishes = [
        _text_of(rows.broker_names),
        _text_of(rows.queue_ids),
        _text_of(_key_indices(rows.ordering_keys, queue_count)),
        _text_of(_are_delayed(rows)),
    ]
    if all(wish is None for wish in wishes):
        return [Share(topic, indices)]
    empty = pyarrow.repeat(pyarrow.scalar(""), rows.count)
    places = pyarrow.compute.binary_join_element_wise(
        *(empty if wish is None else wish for wish in wishes),
        _SEPARATOR,
        null_handling="replace",
        null_replacement="",
    )
    if indices is not None:
        places = places.take(indices)
    shares = []
    for place, some in _groups(places):
        broker_name, queue_id, key_index, delayed = str(place).split(_SEPARATOR)
        shares.append(
            Share(
                topic,
                some if indices is None else indices.take(some),
                broker_name,
                int(queue_id) if queue_id else None,
                int(key_index) if key_index else None,
                delayed == "true",
            )
        )
    return shares


def _groups(values: pyarrow.Array) -> list[tuple[str | None, pyarrow.Array]]:
    """Each value with the numbers of its rows, in their order."""
    encoded = values.dictionary_encode(null_encoding="encode")
    order = pyarrow.compute.sort_indices(encoded.indices)
    groups = []
    start = 0
    counts = pyarrow.compute.value_counts(encoded.indices.take(order))
    for entry in counts:
        code, count = entry["values"].as_py(), entry["counts"].as_py()
        groups.append((encoded.dictionary[code].as_py(), order.slice(start, count)))
        start += count
    return groups


def _text_of(array: pyarrow.Array | None) -> pyarrow.Array | None:
    if array is None or array.type == pyarrow.string():
        return array
    return array.cast(pyarrow.string())


def _are_delayed(rows: Rows) -> pyarrow.Array | None:
    levels, times = rows.delay_levels, rows.deliver_times
    masks = [pyarrow.compute.greater(each, 0) for each in (levels, times) if each is not None]
    if not masks:
        return None
    return masks[0] if len(masks) == 1 else pyarrow.compute.or_(*masks)


def _key_indices(keys: pyarrow.Array | None, queue_count: int) -> pyarrow.Array | None:
    """The queue's number of each key, as :func:`queue_by_key` chooses it; null: no key."""
    if keys is None:
        return None
    compute = pyarrow.compute
    hashes = _text_hashes(keys) if keys.type == pyarrow.string() else _number_hashes(keys)
    sizes = compute.abs(hashes)
    count = pyarrow.scalar(queue_count, pyarrow.int64())
    places = compute.subtract(sizes, compute.multiply(compute.divide(sizes, count), count))
    return compute.if_else(compute.is_valid(keys), places, pyarrow.scalar(None, pyarrow.int64()))


def _text_hashes(keys: pyarrow.Array) -> pyarrow.Array:
    data = row_codec().hash_texts(text_column(keys), len(keys))
    buffers = [None, pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.int32(), len(keys), buffers).cast(pyarrow.int64())


def _number_hashes(keys: pyarrow.Array) -> pyarrow.Array:
    """:func:`key_hash` of numbers."""
    compute = pyarrow.compute
    keys = keys.fill_null(0)
    wide = compute.bit_wise_xor(keys, compute.shift_right(keys, 32))
    low = compute.bit_wise_and(wide, 0xFFFF_FFFF)
    folded = compute.if_else(compute.greater(low, 2**31 - 1), compute.subtract(low, 2**32), low)
    is_int = compute.and_(compute.greater_equal(keys, -(2**31)), compute.less(keys, 2**31))
    return compute.if_else(is_int, keys, folded)
