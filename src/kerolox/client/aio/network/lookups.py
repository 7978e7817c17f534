"""Where messages and offsets are looked up in a cluster: by key, by id, by trace, by queue.

Topics are those that brokers know; who has a namespace adds it before and takes it away after.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.errors import BrokerError, NotFoundError, RemoteProtocolError, RemotingError
from kerolox.message import MessageExt, MessageId
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import TRACE_TOPIC, UNIQUE_KEY_QUERY_FIELD
from kerolox.protocol.records import decode_record, decode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.client.aio.network.access import Access
    from kerolox.client.core.tracing.trace import TraceView
    from kerolox.message import MessageQueue
    from kerolox.protocol.command import RemotingCommand

END_OF_TIME_MS = 2**63 - 1
QUERY_TIMEOUT_FACTOR = 3
"""A search may take so many times the time limit of other requests."""

UNIQUE_MATCHES_MAX = 32
"""Most messages per broker that are examined for one unique id (``defaultQueryMaxNum``)."""


async def queue_number(
    access: Access,
    queue: MessageQueue,
    code: int,
    field: str,
    *,
    more: Mapping[str, object] | None = None,
    address: str = "",
) -> int:
    """What a broker answers about a queue, as brokers know it, with one number (codes 29 to 32):
    the member ``field`` of the answer. RemoteProtocolError: it has no such number.

    ``more``: further members of the request. ``address``: of the broker; empty: as the route has
    it. ClientError: it is unknown.
    """
    address = address or await access.read_address_of(queue.topic, queue.broker_name)
    fields: dict[str, object] = {"topic": queue.topic, "queueId": queue.queue_id}
    return number_of(await access.ask(address, code, fields | dict(more or {})), field, address)


def number_of(response: RemotingCommand, field: str, address: str) -> int:
    """A number in the header of an answer; RemoteProtocolError: there is none."""
    try:
        return int(response.ext_fields[field])
    except (KeyError, ValueError):
        raise RemoteProtocolError(f"the answer of {address} has no number {field!r}") from None


async def find_message(
    access: Access, topic: str, message_id: str, *, shown_topic: str = ""
) -> MessageExt:
    """The message with this id, be it the broker's (offset) id or the producer's unique id, of a
    topic as brokers know it. ``shown_topic``: the topic in an error's text; empty: ``topic``.
    TopicRouteNotFoundError: no name server knows it. NotFoundError: no broker has the message.
    """
    route = await access.route(topic)
    known = {address for broker in route.brokers for address in broker.addresses.values()}
    located = _located(message_id)
    # Both kinds of id look alike; one that names a broker of the topic is the broker's.
    if located is not None and f"{located.host}:{located.port}" in known:
        return await view_message(access, located)
    found = await search_messages(access, topic, message_id, unique=True)
    if found:
        return min(found, key=lambda message: message.store_timestamp)
    if located is not None and 0 < located.port < 65_536:
        try:
            return await view_message(access, located)
        except (RemotingError, BrokerError):
            pass
    shown = shown_topic or topic
    raise NotFoundError(f"no message of topic {shown!r} has the id {message_id!r}")


async def view_message(access: Access, located: MessageId) -> MessageExt:
    """The message at a place of a broker's log (code 33). Errors: see ``Access.ask``."""
    address = f"{located.host}:{located.port}"
    fields = {"offset": located.physical_offset}
    response = await access.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
    return decode_record(response.body)[0]


async def search_messages(
    access: Access,
    topic: str,
    key: str,
    *,
    max_messages: int = UNIQUE_MATCHES_MAX,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
    unique: bool = False,
) -> list[MessageExt]:
    """Messages of a topic, as brokers know it, with a key (code 12), oldest first; empty when there
    is none. TopicRouteNotFoundError: no name server knows the topic.

    ``key``: one of a message's keys, or its unique id; ``unique``: that alone. ``max_messages``:
    most per broker. Stored from ``begin_ms`` to ``end_ms``, both included, since the epoch.
    """
    route = await access.route(topic)
    fields: dict[str, object] = {
        "topic": topic,
        "key": key,
        "maxNum": max_messages,
        "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
    }
    if unique:
        fields[UNIQUE_KEY_QUERY_FIELD] = True
    timeout_seconds = access.timeout_seconds * QUERY_TIMEOUT_FACTOR

    async def search(address: str, broker_name: str) -> list[MessageExt]:
        try:
            response = await access.ask(
                address, RequestCode.QUERY_MESSAGE, fields, timeout_seconds=timeout_seconds
            )
        except NotFoundError:
            return []
        return decode_records(response.body, broker_name=broker_name)

    brokers = [(broker.any_address(), broker.broker_name) for broker in route.brokers]
    answers = await asyncio.gather(*(search(address, name) for address, name in brokers if address))
    # The index knows only hashes, so what it finds is compared by text here.
    found = [
        message
        for answer in answers
        for message in answer
        if message.topic == topic
        and (message.unique_key == key if unique else _has_key(message, key))
    ]
    return sorted(found, key=lambda message: message.store_timestamp)


async def message_trace(
    access: Access, message_id: str, *, topic: str = TRACE_TOPIC, max_messages: int = 64
) -> list[TraceView]:
    """What clients told of a message, oldest first (``queryMsgTraceById``), by the id of its
    producer. TopicRouteNotFoundError: there is no such topic.

    Traces are a fraction of a second late, and there only if clients write them, in a topic as
    brokers know it: clients write traces outside of their namespaces. ``max_messages``: most trace
    messages per broker that are read.
    """
    from kerolox.client.core.tracing.trace import trace_views

    found = await search_messages(access, topic, message_id, max_messages=max_messages)
    return trace_views(message_id, found)


def _located(message_id: str) -> MessageId | None:
    try:
        return MessageId.parse(message_id)
    except ValueError:
        return None


def _has_key(message: MessageExt, key: str) -> bool:
    return key in message.keys.split(" ") or message.unique_key == key
