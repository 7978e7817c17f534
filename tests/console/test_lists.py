"""Lists of topics and groups: what they show, how they are ordered, what they ask and wait for."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import TopicUsage
from kerolox.console.gathered import PAINT_SECONDS, WORKERS_MAX, Gathered
from kerolox.console.listing import Order
from kerolox.errors import ClientError
from kerolox.message import Message
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.admin import Admin, SubscriptionGroupConfig
    from kerolox.console.console import Console

ROW = re.compile(r'<tr data-key="([^"]+)">(.*?)</tr>', re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of a list by name, with the texts of their cells."""
    return {
        name: [re.sub("<[^>]+>", "", cell).strip() for cell in CELL.findall(row)]
        for name, row in ROW.findall(page)
    }


async def made_topic(admin: Admin, name: str, messages: int) -> None:
    await admin.create_topic(name, queues=1)

    async def is_known() -> bool:
        return name in await admin.list_topics()

    await until(is_known)
    for _ in range(messages):
        await admin.send_message(Message(name, b"x" * 100))

    async def are_shown() -> bool:
        return (await admin.topic_usage(name)).messages == messages

    await until(are_shown)


async def test_topics_are_listed_with_what_they_hold_and_ordered_by_it(site: Console) -> None:
    prefix = f"L{uuid.uuid4().hex[:8]}"
    for name, messages in (("a", 1), ("b", 3), ("c", 0)):
        await made_topic(site.admin, f"{prefix}{name}", messages)
    site.expire()
    viewer = Visitor(site, "viewer")

    async def names(**parameters: object) -> list[str]:
        page = (await viewer.look("/topics", q=prefix, **parameters)).text
        return [name.removeprefix(prefix) for name in rows_of(page)]

    assert await names() == ["a", "b", "c"]
    assert await names(order="desc") == ["c", "b", "a"]

    async def is_ordered() -> bool:
        return await names(sort="messages") == ["b", "a", "c"]

    await until(is_ordered)
    assert await names(sort="messages", order="asc") == ["c", "a", "b"]
    assert await names(sort="size") == ["b", "a", "c"]
    # What has no last message stands last, whichever way.
    assert (await names(sort="last"))[-1] == (await names(sort="last", order="asc"))[-1] == "c"
    assert await names(sort="no such column") == ["a", "b", "c"]
    rows = rows_of((await viewer.look("/topics", q=prefix)).text)
    assert rows[f"{prefix}b"][1] == "3"
    assert rows[f"{prefix}b"][2].endswith("bytes")
    assert int(rows[f"{prefix}b"][2].split()[0]) > 300
    assert rows[f"{prefix}b"][4].startswith("20")
    assert rows[f"{prefix}c"][1:5] == ["0", "0 bytes", "0.0", "-"]


async def test_a_list_of_many_topics_asks_about_those_that_it_shows_alone(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"Topic-{number:04}" for number in range(1_000)]
    asked: list[str] = []

    async def topics(*, internal: bool = False) -> list[str]:
        assert internal in (True, False)
        return names

    async def usage(name: str) -> TopicUsage:
        asked.append(name)
        return TopicUsage(
            topic=name,
            messages=len(asked),
            bytes_about=0,
            in_per_second=0,
            in_day=0,
            last_stored_ms=1,
        )

    monkeypatch.setattr(console.cluster, "topics", topics)
    monkeypatch.setattr(console, "usages", Gathered(usage))
    viewer = Visitor(console, "viewer")
    page = (await viewer.look("/topics", page=3)).text
    assert list(rows_of(page)) == names[100:150]
    assert sorted(asked) == names[100:150]
    # What is shown again is not asked again.
    await viewer.look("/topics", page=3)
    assert len(asked) == 50
    # All are asked where all are ordered, each once.
    await viewer.look("/topics", sort="messages")
    await until(lambda: len(asked) == 1_000)
    await viewer.look("/topics", sort="size")
    assert len(asked) == 1_000
    await console.usages.close()


async def test_the_head_of_a_column_orders_by_it_and_keeps_the_search(console: Console) -> None:
    page = (await Visitor(console, "viewer").look("/topics", q="t", sort="messages", all="1")).text
    heads = dict(re.findall(r'<th[^>]*><a href="([^"]+)">([^<]+)', page))
    by_label = {label: link.replace("&amp;", "&") for link, label in heads.items()}
    assert by_label["Messages"] == "/topics?q=t&all=1&sort=messages&order=asc"
    assert by_label["Topic"] == "/topics?q=t&all=1&sort=name&order=asc"
    assert re.findall(r'<th[^>]* aria-sort="(\w+)"><a[^>]*>(\w+)', page) == [
        ("descending", "Messages")
    ]


async def test_groups_are_ordered_by_lag_and_paused_ones_shown_alone(
    site: Console, topic: str
) -> None:
    prefix = f"g{uuid.uuid4().hex[:8]}"
    for name, offset in (("near", 4), ("far", 0)):
        await site.admin.update_group(f"{prefix}{name}", consume_enable=name != "far")
        await site.admin.reset_offsets(f"{prefix}{name}", topic, 0)
        for queue in {each.queue for each in (await site.admin.describe_topic(topic)).queues}:
            await site.admin.set_offset(f"{prefix}{name}", queue, offset)
    site.expire()

    async def is_sampled() -> bool:
        groups = (await site.sampler.take()).groups
        found = [groups.get(f"{prefix}{name}") for name in ("near", "far")]
        return [each and each.lag for each in found] == [2, 10]

    await until(is_sampled)
    viewer = Visitor(site, "viewer")
    # The topic has the lag of both.
    row = rows_of((await viewer.look("/topics", q=topic)).text)[topic]
    assert row[5:7] == ["12", "2"]
    ordered = list(rows_of((await viewer.look("/topics", sort="lag")).text))
    assert topic in ordered

    async def names(**parameters: object) -> list[str]:
        page = (await viewer.look("/groups", q=prefix, **parameters)).text
        return [name.removeprefix(prefix) for name in rows_of(page)]

    assert await names() == ["far", "near"]
    assert await names(sort="lag") == ["far", "near"]
    assert await names(sort="lag", order="asc") == ["near", "far"]
    assert await names(state="paused") == ["far"]
    assert "1 paused" not in (await viewer.look("/groups", q=prefix)).text


async def test_pages_ask_for_groups_once_and_forget_members_of_those_that_are_gone(
    console: Console, topic_of_console: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, viewer = f"g{uuid.uuid4().hex[:8]}", Visitor(console, "viewer")
    await console.admin.update_group(group)
    console.expire()
    await console.sampler.newest()  # it asks for groups of its own
    asked = 0
    group_table = console.admin.all_group_settings

    async def counted(broker: str, *, internal: bool) -> dict[str, SubscriptionGroupConfig]:
        nonlocal asked
        asked += 1
        return await group_table(broker, internal=internal)

    monkeypatch.setattr(console.admin, "all_group_settings", counted)
    shown = (await viewer.look("/groups", q="")).text
    everything = (await viewer.look("/groups", all="1")).text
    assert group in shown
    assert "TOOLS_CONSUMER" in everything
    assert "TOOLS_CONSUMER" not in shown
    await viewer.look("/search", q=group)
    assert asked == 1
    assert group in console.members.known([group])
    await console.admin.delete_group(group)
    console.cache.clear()
    await viewer.look("/groups", q="other")
    assert console.members.known([group]) == {}


async def test_what_is_gathered_keeps_no_page_waiting_and_is_asked_once() -> None:
    now, asked, is_open = 0.0, 0, asyncio.Event()
    at_once = most = 0

    async def ask(name: str) -> str:
        nonlocal asked, at_once, most
        asked += 1
        at_once += 1
        most = max(most, at_once)
        try:
            await is_open.wait()
        finally:
            at_once -= 1
        if name == "bad":
            raise ClientError("not now")
        return name.upper()

    gathered = Gathered(ask, clock=lambda: now)
    names = ["bad", *(f"n{number}" for number in range(100))]
    assert await gathered.get(names, seconds_max=5, wait_seconds=0.01) == {}
    assert await gathered.get(names, seconds_max=5, wait_seconds=0) == {}
    is_open.set()
    found = await gathered.get(names, seconds_max=5, wait_seconds=20)
    assert (len(found), asked, most) == (101, 101, WORKERS_MAX)
    assert found["n7"] == "N7"
    assert isinstance(found["bad"], ClientError)
    # An old answer is shown until the new one is there.
    now, is_open = 6.0, asyncio.Event()
    assert await gathered.get(["n7"], seconds_max=5, wait_seconds=0) == {"n7": "N7"}
    await until(lambda: asked == 102)
    gathered.keep_only(["n8"])
    assert gathered.known(names) == {"n8": "N8"}
    gathered.clear()
    assert gathered.known(names) == {}
    is_open.set()
    # What was asked before the change is asked again.
    await until(lambda: gathered.known(["n7"]) == {"n7": "N7"})
    await gathered.get(["n7"], seconds_max=5, wait_seconds=20)
    assert asked == 103
    await gathered.close()


async def test_what_is_gathered_survives_a_fault_and_is_given_up_at_the_end() -> None:
    async def ask(name: str) -> str:
        if name == "fault":
            raise RuntimeError("odd")
        await asyncio.Event().wait()
        return name

    gathered = Gathered(ask)
    found = await gathered.get(["fault"], seconds_max=5, wait_seconds=20)
    assert "RuntimeError: odd" in str(found["fault"])
    assert await gathered.get(["never"], seconds_max=5, wait_seconds=0.01) == {}
    await asyncio.wait_for(gathered.close(), 20)


@pytest.mark.parametrize("is_descending", [False, True])
def test_rows_of_the_same_value_are_ordered_by_name(is_descending: bool) -> None:
    values = {"b": 1, "a": 1, "none": None, "c": 2}
    order = Order("lag", is_descending, {"lag": True})
    found = order.sorted(values, values.get)
    assert found[-1] == "none"
    assert sorted(found[:3], key=found.index) in (["a", "b", "c"], ["c", "a", "b"])
    assert order.parameters("lag")["order"] == ("asc" if is_descending else "desc")


async def test_a_page_of_a_topic_asks_for_its_route_and_its_queues_once(
    console: Console, topic_of_console: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    describe = console.admin.describe_topic

    async def described(topic: str) -> object:
        asked.append(topic)
        return await describe(topic)

    monkeypatch.setattr(console.admin, "describe_topic", described)
    page = await Visitor(console, "viewer").look("/topic", name=topic_of_console)
    assert page.status_code == 200
    assert asked == [topic_of_console]


async def test_a_page_that_orders_by_what_topics_hold_waits_once(
    console: Console, topic_of_console: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    get = console.usages.get

    async def noted(
        names: Iterable[str], *, seconds_max: float, wait_seconds: float = PAINT_SECONDS
    ) -> object:
        waited.append(wait_seconds)
        return await get(names, seconds_max=seconds_max, wait_seconds=wait_seconds)

    monkeypatch.setattr(console.usages, "get", noted)
    viewer = Visitor(console, "viewer")
    # For the order where nothing is known; then, however old that is, for the rows.
    for sort, expected in (
        ("messages", [PAINT_SECONDS, 0.0]),
        ("name", [PAINT_SECONDS]),
        ("messages", [0.0, PAINT_SECONDS]),
    ):
        waited.clear()
        page = await viewer.look("/topics", sort=sort, q=topic_of_console)
        assert topic_of_console in page.text
        assert waited == expected
