"""One message: ways to its neighbours, views of its body, the body itself; filters by its JSON."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING

import msgspec
import pytest

from kerolox.console.rendering import body_text
from kerolox.console.scan import WithBody
from kerolox.filter.sql92 import compile_sql92
from kerolox.message import Message, MessageExt
from kerolox.protocol.names import SCHEDULE_TOPIC
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.console.console import Console


async def test_a_message_leads_to_those_before_and_behind_it(site: Console, topic: str) -> None:
    viewer = Visitor(site, "viewer")
    [queue, *_] = [each.queue for each in (await site.admin.describe_topic(topic)).queues]
    place = f"{queue.broker_name}/{queue.queue_id}"

    async def ways(offset: int) -> dict[str, str]:
        page = (await viewer.look("/message", topic=topic, queue=place, offset=offset)).text
        return dict(re.findall(r'rel="(prev|next)" href="[^"]*offset=(\d+)', page))

    assert await ways(0) == {"next": "1"}
    assert await ways(2) == {"prev": "1", "next": "3"}
    assert await ways(4) == {"prev": "3"}


async def test_a_body_is_downloaded_as_it_is_stored(site: Console, topic: str) -> None:
    body = b"\xff\0<script>\r\n"
    sent = await site.admin.send_message(Message(topic, body))
    place = f"{sent.queue.broker_name}/{sent.queue.queue_id}"
    asked = {"topic": topic, "queue": place, "offset": sent.queue_offset}
    viewer = Visitor(site, "viewer")

    async def is_there() -> bool:
        return (await viewer.look("/message/body", **asked)).status_code == 200

    await until(is_there)
    found = await viewer.look("/message/body", **asked)
    assert found.content == body
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"].startswith("attachment; ")
    assert found.headers["x-content-type-options"] == "nosniff"
    assert (await viewer.look("/message/body", topic=topic)).status_code == 400


async def test_messages_are_filtered_by_members_of_their_json(site: Console, topic: str) -> None:
    viewer = Visitor(site, "viewer")
    page = (await viewer.look("/messages", topic=topic, sql="$number > 6 AND number < 9")).text
    assert "2 shown, 10 read" in page


async def test_a_delayed_message_leads_to_what_it_becomes(site: Console, topic: str) -> None:
    await site.admin.send_message(Message(topic, b"later", delay_level=18))
    viewer = Visitor(site, "viewer")
    link = re.compile(rf'href="(/message\?topic={SCHEDULE_TOPIC}[^"]+)"')

    [broker] = await site.cluster.masters()

    async def is_linked() -> bool:
        level = (await viewer.look("/delayed", level=18, broker=broker)).text
        ways = [unescape(each) for each in link.findall(level)]
        pages = [(await viewer.client.get(each)).text for each in ways]
        return any(f'href="/messages?topic={topic}&amp;id=' in page for page in pages)

    await until(is_linked)


def message_of(body: bytes, **properties: str) -> MessageExt:
    return MessageExt(
        topic="T",
        body=body,
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        properties=properties,
    )


@pytest.mark.parametrize(
    ("expression", "is_match"),
    [
        ("$a$b$1 > 2.0 AND x = '3'", True),
        ("$a$b$2 IS NULL", True),
        ("$t = TRUE", True),
        ("$text = 'é'", True),
        ("$n IS NULL", True),
        ("$x IS NULL", True),
        ("$a$b$99999999999 IS NULL", True),
        ("$own = 'property'", True),
        ("$a > 1", False),
    ],
)
def test_an_expression_reads_members_of_a_json_body(expression: str, is_match: bool) -> None:
    body = json.dumps({"a": {"b": [1, 2.5]}, "t": True, "n": None, "text": "é", "own": "member"})
    message = message_of(body.encode(), x="3", **{"$own": "property"})
    assert compile_sql92(expression).matches(WithBody(message)) is is_match


@pytest.mark.parametrize("body", [b"", b"no json", b"[" * 100_000, b"\xff", b"5"])
def test_a_body_that_is_no_json_has_no_members(body: bytes) -> None:
    assert "$a" not in WithBody(message_of(body))
    assert dict(WithBody(message_of(body, x="1"))) == {"x": "1"}


def test_a_body_of_message_pack_is_shown_as_json() -> None:
    body = msgspec.msgpack.encode({"a": [1, b"\xff", float("inf")], 1: None})
    view, text = body_text(body, "msgpack")
    assert view == "msgpack"
    assert json.loads(text) == {"a": [1, "/w==", "inf"], "1": None}
    for wrong in (b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 5_000):
        assert body_text(wrong, "msgpack")[0] == "hex"
