"""One search for all: topics and groups by name; messages by id and key; clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.responses import Response

from kerolox.admin import ConsumerConnections, ProducerInfo, TopicUsage
from kerolox.admin.asking import answers_of
from kerolox.console.pages.messages import is_place, names_a_broker
from kerolox.console.visit import Visit
from kerolox.errors import KeroloxError
from kerolox.message import MessageExt

__all__ = ["inside", "names"]

NAMES_SHOWN_MAX = 20
TOPICS_SEARCHED_MAX = 50
"""Topics whose indexes are asked for an id or a key, those with the newest messages first."""
GROUPS_SEARCHED_MAX = 500
"""Groups whose members are asked for."""
MESSAGES_SHOWN_MAX = 20
MESSAGES_OF_TOPIC_MAX = 5
"""Of each broker; bodies may be of megabytes."""
TOPICS_AT_ONCE_MAX = 8
CLIENTS_SHOWN_MAX = 50
SEARCH_SECONDS_MAX = 3.0
"""For so long the messages, or the clients, are searched; what was found by then is shown."""
CLIENTS_KEPT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """A client that matches."""

    client_id: str
    group: str
    address: str
    is_consumer: bool


@dataclass(slots=True)
class Messages:
    """What the indexes of topics have, and how far the search went."""

    found: list[MessageExt] = field(default_factory=list)
    searched: int = 0
    """Topics whose indexes answered."""
    topics: int = 0
    """Topics that there are."""


async def names(visit: Visit) -> Response:
    """Topics and groups; the rest comes by itself, since it takes longer."""
    wanted = visit.asked("q")
    topics = await visit.console.cluster.topics(internal=True) if wanted else []
    groups = await visit.console.cluster.group_states(internal=True) if wanted else {}
    found_topics, found_groups = _matching(topics, wanted), _matching(groups, wanted)
    return visit.page(
        "search.html",
        q=wanted,
        topic=visit.asked("topic"),
        topics=found_topics[:NAMES_SHOWN_MAX],
        topics_left=max(len(found_topics) - NAMES_SHOWN_MAX, 0),
        groups=[(name, groups[name]) for name in found_groups[:NAMES_SHOWN_MAX]],
        groups_left=max(len(found_groups) - NAMES_SHOWN_MAX, 0),
    )


async def inside(visit: Visit) -> Response:
    """Messages with that id or key, and clients: a part of the page."""
    wanted, topic = visit.needed("q"), visit.asked("topic")
    messages, clients = await asyncio.gather(
        _messages(visit, wanted, topic), _clients(visit, wanted)
    )
    return visit.page(
        "search_part.html",
        q=wanted,
        topic=topic,
        messages=messages.found[:MESSAGES_SHOWN_MAX],
        messages_left=max(len(messages.found) - MESSAGES_SHOWN_MAX, 0),
        searched=messages.searched,
        topics=messages.topics,
        clients=clients[:CLIENTS_SHOWN_MAX],
        clients_left=max(len(clients) - CLIENTS_SHOWN_MAX, 0),
    )


def _matching(names: Iterable[str], wanted: str) -> list[str]:
    """Those that contain it: the very name first, then those that begin with it."""
    part = wanted.lower()
    found = [name for name in names if part in name.lower()]
    return sorted(found, key=lambda name: (name != wanted, not name.lower().startswith(part), name))


async def _messages(visit: Visit, wanted: str, topic: str) -> Messages:
    """A broker's id names its place. Others are looked up in the indexes of topics."""
    result = Messages()
    seen: dict[tuple[str, int, int, str], MessageExt] = {}

    def add(messages: Iterable[MessageExt]) -> None:
        for each in messages:
            place = (each.topic, each.queue_id, each.queue_offset, each.broker_name)
            seen.setdefault(place, each)

    async def search_in(name: str) -> None:
        if len(seen) >= MESSAGES_SHOWN_MAX:
            return
        # Producers' ids are in the index like keys.
        add(await visit.admin.messages_by_key(name, wanted, max_messages=MESSAGES_OF_TOPIC_MAX))
        result.searched += 1

    async def by_place() -> None:
        with contextlib.suppress(KeroloxError):
            if is_place(wanted) and await names_a_broker(visit, wanted):
                add([await visit.admin.message_by_id(wanted)])

    names = [topic] if topic else await _newest_first(visit)
    result.topics = len(names)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SEARCH_SECONDS_MAX):
            await asyncio.gather(
                by_place(),
                answers_of(names[:TOPICS_SEARCHED_MAX], search_in, at_once_max=TOPICS_AT_ONCE_MAX),
            )
    result.found = sorted(seen.values(), key=lambda each: -each.store_timestamp)
    return result


async def _newest_first(visit: Visit) -> list[str]:
    """Topics; those with the newest messages first, as far as a list has asked for that."""
    topics = await visit.console.cluster.topics()
    usages = visit.console.usages.known(topics)
    times = {
        name: each.last_stored_ms for name, each in usages.items() if isinstance(each, TopicUsage)
    }
    return sorted(topics, key=lambda name: (-times.get(name, 0), name))


async def _clients(visit: Visit, wanted: str) -> list[Found]:
    part = wanted.lower()
    console = visit.console
    groups = list(await console.cluster.group_states())[:GROUPS_SEARCHED_MAX]

    async def producers() -> dict[str, list[ProducerInfo]]:
        found, _ = await console.cluster.ask_masters(visit.admin.all_producers)
        return found

    online, sending = await asyncio.gather(
        console.members.get(
            groups, seconds_max=CLIENTS_KEPT_SECONDS, wait_seconds=SEARCH_SECONDS_MAX
        ),
        console.cache.get("producers", CLIENTS_KEPT_SECONDS, producers),
    )
    consuming = {
        Found(member.client_id, group, member.address, True)
        for group, each in online.items()
        if isinstance(each, ConsumerConnections)
        for member in each.members
    }
    producing = {
        Found(each.client_id, each.group, each.address, False)
        for all_of_one in sending.values()
        for each in all_of_one
    }
    return sorted(
        (
            each
            for each in consuming | producing
            if part in each.client_id.lower() or part in each.address
        ),
        key=lambda each: (each.client_id, not each.is_consumer, each.group),
    )
