"""Pages of a large cluster: 1,000 topics, 500 groups, a group with 100,000 dead letters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.admin import Admin
from kerolox.client import Producer
from kerolox.console.pages import dead_letters
from kerolox.console.scan import MESSAGES_READ_MAX, SHOWN_MAX
from kerolox.message import Message, MessageQueue
from tests.console.site import Visitor, running_console
from tests.console.test_lists import rows_of
from tests.support.eventually import until
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from kerolox.console.console import Console

TOPICS, GROUPS, LETTERS = 1_000, 500, 100_000
ROWS, PAGE_BYTES_MAX = 50, 256 * 1024
GROUP = "gives-up"
AT_ONCE, BATCH = 16, 1_000


@dataclass(frozen=True)
class Large:
    """A cluster of that size."""

    name_server: str
    broker_name: str


def name_of(number: int) -> str:
    return f"Topic-{number:04}"


async def fill(name_server: str) -> str:
    """Make it; the broker's name. Every tenth topic has messages, the later ones more."""
    room = asyncio.Semaphore(AT_ONCE)
    async with Admin(name_server) as admin, Producer("fills", name_server) as producer:
        [broker] = (await admin.cluster_info()).nodes()

        async def make(number: int) -> None:
            async with room:
                await admin.create_topic(name_of(number), queues=1)
                queue = MessageQueue(name_of(number), broker.broker_name, 0)
                if number % 10 == 0:
                    batch = [Message(name_of(number), b"x") for _ in range(number // 10 + 1)]
                    await producer.send_batch(batch, queue=queue)
                if number < GROUPS:
                    await admin.update_group(f"group-{number:04}")
                    await admin.set_offset(f"group-{number:04}", queue, 0)

        await asyncio.gather(*map(make, range(TOPICS)))
        for topic in (f"%DLQ%{GROUP}", f"%RETRY%{GROUP}"):
            await admin.create_topic(topic, queues=1)
        queue = MessageQueue(f"%DLQ%{GROUP}", broker.broker_name, 0)
        for begin in range(0, LETTERS, BATCH):
            letters = [
                Message(queue.topic, b"letter %d" % number)
                for number in range(begin, begin + BATCH)
            ]
            await producer.send_batch(letters, queue=queue)
        return broker.broker_name


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    with Up(tmp_path_factory.mktemp("large")) as up:
        yield Large(up.namesrv, asyncio.run(fill(up.namesrv)))


@pytest_asyncio.fixture
async def site(large: Large, tmp_path: Path) -> AsyncIterator[Console]:
    async with running_console(tmp_path, large.name_server) as running:
        yield running


async def page_of(visitor: Visitor, path: str, **asked: object) -> str:
    """A page that is there, and no larger than a list may be."""
    answer = await visitor.look(path, **asked)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < PAGE_BYTES_MAX
    return answer.text


async def test_lists_of_all_topics_and_groups_have_pages_of_one_size(site: Console) -> None:
    viewer = Visitor(site, "viewer")
    for path, count, names in (
        ("/topics", TOPICS, "Topic-"),
        ("/groups", GROUPS, "group-"),
    ):
        first = await page_of(viewer, path, q=names)
        assert list(rows_of(first)) == [f"{names}{number:04}" for number in range(ROWS)]
        last = await page_of(viewer, path, q=names, page=count // ROWS)
        assert list(rows_of(last)) == [f"{names}{n:04}" for n in range(count - ROWS, count)]
        assert list(rows_of(await page_of(viewer, path, q="0499"))) == [f"{names}0499"]


async def test_all_topics_are_ordered_by_what_they_hold_once_that_is_known(site: Console) -> None:
    viewer = Visitor(site, "viewer")
    page = ""

    async def is_known() -> bool:
        nonlocal page
        page = await page_of(viewer, "/topics", sort="messages", q="Topic-")
        return "is not known yet" not in page and "…" not in page

    await until(is_known)
    wanted = [(name_of(990 - 10 * place), str(100 - place)) for place in range(ROWS)]
    assert [(name, row[1]) for name, row in rows_of(page).items()] == wanted


async def test_groups_are_ordered_by_their_lag(site: Console) -> None:
    viewer = Visitor(site, "viewer")
    page = await page_of(viewer, "/groups", sort="lag")
    wanted = [f"group-{490 - 10 * place:04}" for place in range(ROWS)]
    assert list(rows_of(page)) == wanted


async def test_one_search_finds_a_topic_and_a_group_among_all(site: Console) -> None:
    page = await page_of(Visitor(site, "viewer"), "/search", q="0123")
    assert "/topic?name=Topic-0123" in page
    assert "/group?name=group-0123" in page


async def test_pages_of_many_dead_letters_read_and_show_a_part(site: Console) -> None:
    viewer = Visitor(site, "viewer")
    listed = await page_of(viewer, "/dead-letters")
    assert "100\u202f000" in listed
    page = await page_of(viewer, "/dead-letter", group=GROUP)
    assert f"100\u202f000 of 100\u202f000 wait. {SHOWN_MAX} shown, {SHOWN_MAX} read." in page
    assert "letter 99999" in page
    found = await page_of(viewer, "/dead-letter", group=GROUP, text="letter 1999")
    assert "1 shown, 2\u202f000 read." in found
    assert "There are more than were read" in found
    assert MESSAGES_READ_MAX == 2_000
    exported = await viewer.look("/dead-letter/export", group=GROUP)
    assert exported.text.count("\n") == dead_letters.EXPORTED_MAX


async def test_all_of_many_dead_letters_are_sent_again_in_parts_and_marked_at_once(
    site: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "RESENT_SECONDS_MAX", 0.5)
    operator = Visitor(site, "operator")
    done = await operator.post("/dead-letter/resend-all", group=GROUP)
    page = (await operator.client.get(done.headers["location"])).text
    found = re.search(r'<progress id="sent" max="100000" value="(\d+)">', page)
    assert found
    sent = int(found[1])
    assert 0 < sent < LETTERS
    told = await operator.act("/dead-letter/purge", group=GROUP, again=GROUP)
    assert f"{LETTERS - sent} dead letters of {GROUP} are marked as done." in told
    queues = await site.admin.dead_letter_queues(GROUP)
    assert sum(each.waiting for each in queues) == 0
    assert "0 of 100\u202f000 wait." in (await operator.look("/dead-letter", group=GROUP)).text
