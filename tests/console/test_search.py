"""One box for topics, groups, messages and clients."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from kerolox.client import Producer, PushConsumer
from kerolox.console.pages import search
from kerolox.message import Message, MessageId
from tests.console.site import Visitor
from tests.support.eventually import until
from tests.support.servers.up import deaf_address

if TYPE_CHECKING:
    from kerolox.console.console import Console
    from kerolox.message import MessageExt


@pytest.fixture(autouse=True)
def searches_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has topics of other tests, too, perhaps more than one search takes."""
    monkeypatch.setattr(search, "TOPICS_SEARCHED_MAX", 10_000)


async def test_topics_and_groups_are_found_by_a_part_of_their_names(
    site: Console, topic: str
) -> None:
    group = f"{topic}-paused"
    await site.admin.update_group(group, consume_enable=False)
    site.expire()
    viewer = Visitor(site, "viewer")
    page = (await viewer.look("/search", q=topic[1:].upper())).text
    assert f'<a href="/topic?name={topic}">{topic}</a>' in page
    assert f'<a href="/group?name={group}">{group}</a> <span class="badge bad">paused' in page
    none = (await viewer.look("/search", q="no such thing")).text
    assert "No topic has it in its name." in none
    assert "No group has it in its name." in none
    assert "One box for all" in (await viewer.look("/search")).text


async def test_a_message_is_found_by_its_key_and_both_of_its_ids(site: Console, topic: str) -> None:
    viewer = Visitor(site, "viewer")
    key = f"order-{uuid.uuid4().hex}"
    sent = await site.admin.send_message(Message(topic, b"wanted", keys=f"other {key}"))

    async def found(wanted: str, **more: str) -> str:
        return (await viewer.look("/search/inside", q=wanted, **more)).text

    async def is_indexed() -> bool:
        return "wanted" in await found(key)

    await until(is_indexed, what="the index")
    stored = await site.admin.message_at(sent.queue, sent.queue_offset)
    for wanted in (key, sent.message_id, stored.offset_message_id):
        assert ">wanted<" in await found(wanted)
        assert ">wanted<" in await found(wanted, topic=topic)
    assert "No message has it as its id or as a key" in await found("no-such-key")


async def test_a_key_that_many_messages_have_brings_a_few_of_each_topic(
    console: Console, topic_of_console: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MESSAGES_OF_TOPIC_MAX", 2)
    monkeypatch.setattr(search, "SEARCH_SECONDS_MAX", 60.0)
    for number in range(5):
        await console.admin.send_message(
            Message(topic_of_console, b"body-%d" % number, keys="shared-key")
        )

    async def are_indexed() -> bool:
        found = await console.admin.messages_by_key(topic_of_console, "shared-key")
        return len(found) == 5

    await until(are_indexed)
    # Its list of topics may be older than this one.
    console.expire()
    page = await Visitor(console, "viewer").look("/search/inside", q="shared-key")
    assert page.text.count(">body-") == 2


async def test_a_search_says_in_how_many_topics_it_looked(
    site: Console, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TOPICS_SEARCHED_MAX", 1)
    await site.admin.create_topic(f"{topic}-more", queues=1)
    site.expire()
    viewer = Visitor(site, "viewer")

    async def is_told() -> bool:
        site.cache.clear()
        return "1 of" in (await viewer.look("/search/inside", q="key-1")).text

    await until(is_told)
    page = (await viewer.look("/search/inside", q="key-1", topic=topic)).text
    assert "topics were searched" not in page
    assert "/message?topic=" in page


async def test_a_search_ends_in_its_time_and_with_a_request_that_is_given_up(
    console: Console, topic_of_console: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ended = 0

    async def never(_topic: str, _key: str, *, max_messages: int) -> list[MessageExt]:
        nonlocal asked, ended
        asked += max_messages > 0
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1
        return []

    monkeypatch.setattr(console.admin, "messages_by_key", never)
    viewer = Visitor(console, "viewer")
    searching = asyncio.ensure_future(viewer.look("/search/inside", q="x", topic=topic_of_console))
    await until(lambda: asked == 1)
    searching.cancel()
    await asyncio.wait((searching,))
    assert (searching.cancelled(), ended) == (True, 1)
    monkeypatch.setattr(search, "SEARCH_SECONDS_MAX", 0.05)
    page = (await viewer.look("/search/inside", q="x", topic=topic_of_console)).text
    assert "0 of 1 topic were searched" in page
    assert (asked, ended) == (2, 2)


async def test_clients_are_found_by_their_ids_whether_they_send_or_consume(
    site: Console, topic: str
) -> None:
    group, viewer = f"{topic}-clients", Visitor(site, "viewer")

    async def on_messages(_messages: list[MessageExt]) -> None:
        return

    consumer = PushConsumer(group, site.settings.name_server)
    consumer.subscribe(topic, "*", on_messages)
    async with consumer, Producer(f"{topic}-sends", site.settings.name_server) as producer:
        await producer.send(Message(topic, b"x"))

        async def are_found() -> bool:
            site.expire()
            shown = [
                (await viewer.look("/search/inside", q=each.client_id)).text.replace("&#34;", '"')
                for each in (consumer, producer)
            ]
            return group in shown[0] and f"{topic}-sends" in shown[1]

        await until(are_found)


async def test_an_id_of_a_stranger_is_not_asked_for_at_that_address(console: Console) -> None:
    with deaf_address() as address:
        host, port = address.split(":")
        stranger = bytes(map(int, host.split("."))).hex() + f"{int(port):08x}" + "0" * 16
        assert MessageId.parse(stranger.upper())
        page = await Visitor(console, "viewer").look("/search/inside", q=stranger.upper())
        assert page.status_code == 200
        assert "No message has it" in page.text
