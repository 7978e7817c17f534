"""Offsets of a group, moved in all of its topics at once: on our broker and on Java's."""

from __future__ import annotations

import json
import logging
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from kerolox.message import Message
from kerolox.remoting import AUDIT_LOGGER as LOGGER
from tests.console.site import Visitor
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.console.console import Console


async def consumed_group(site: Console, topics: list[str]) -> str:
    """A group that has consumed the first of ten messages in each queue of the topics."""
    group = f"R{uuid.uuid4().hex[:12]}"
    await site.admin.update_group(group)
    for topic in topics:
        for queue in (await site.admin.describe_topic(topic)).queues:
            await site.admin.set_offset(group, queue.queue, 1)
    return group


async def second_topic(site: Console) -> str:
    name = f"U{uuid.uuid4().hex[:12]}"
    await site.admin.create_topic(name, queues=1)

    async def is_known() -> bool:
        return name in await site.admin.list_topics()

    await until(is_known)
    for _ in range(3):
        await site.admin.send_message(Message(name, b"x"))

    async def are_shown() -> bool:
        return sum(e.max_offset for e in (await site.admin.describe_topic(name)).queues) == 3

    await until(are_shown)
    return name


async def test_a_group_is_moved_in_all_of_its_topics_as_the_plan_says(
    site: Console, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    other = await second_topic(site)
    group, operator = await consumed_group(site, [topic, other]), Visitor(site, "operator")
    page = (await operator.look("/group", name=group)).text
    assert '<option value="*">all that it consumes</option>' in page
    asked = {"name": group, "topic": "*", "to": "end"}
    plan = (await operator.look("/group/reset", **asked)).text
    # Four of five messages in each of two queues, and two of three.
    assert "0 messages would come again, 10 would be skipped." in plan
    rows = [re.sub("<[^>]+>", " ", row).split() for row in re.findall("<tr><td>.*?</tr>", plan)]
    assert rows == [[topic, "2", "0", "8"], [other, "1", "0", "2"]]
    assert (await site.admin.group_progress(group)).lag == 10
    told = await operator.act("/group/reset", **asked)
    assert "in 3 queues of 2 topics: 0 messages come again, 10 are skipped." in told

    async def is_at_the_end() -> bool:
        return (await site.admin.group_progress(group)).lag == 0

    await until(is_at_the_end)
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["group"], line["topic"], len(line["new"])) == (group, "*", 3)
    assert all(place.startswith((topic, other)) for place in line["new"])
    told = await operator.act("/group/reset", name=group, topic="*", to="beginning")
    assert "13 messages come again" in told


async def test_an_offset_or_a_group_without_topics_is_no_move_of_all(
    site: Console, topic: str
) -> None:
    group, operator = await consumed_group(site, [topic]), Visitor(site, "operator")
    empty = f"E{uuid.uuid4().hex[:12]}"
    await site.admin.update_group(empty)
    for name, to, told in (
        (group, "7", "an offset is one of a topic"),
        (group, "elsewhere", "elsewhere"),
        (empty, "end", empty),
    ):
        for answer in (
            await operator.look("/group/reset", name=name, topic="*", to=to),
            await operator.post("/group/reset", name=name, topic="*", to=to),
        ):
            assert answer.status_code in (400, 404), answer.text
            assert told in answer.text
    assert (await site.admin.group_progress(group)).lag == 8


async def test_a_topic_that_is_gone_is_told_and_the_others_are_moved(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [await second_topic(console), await second_topic(console)]
    group, operator = await consumed_group(console, topics), Visitor(console, "operator")
    move = console.admin.move_offsets

    async def moved(group: str, topic: str, *arguments: object, **named: object) -> object:
        # Somebody deletes the topic between the progress and the plan.
        return await move(group, "gone" if topic == topics[0] else topic, *arguments, **named)

    monkeypatch.setattr(console.admin, "move_offsets", moved)
    asked = {"name": group, "topic": "*", "to": "end"}
    plan = (await operator.look("/group/reset", **asked)).text
    assert f"It would not be moved in {topics[0]}" in plan
    told = await operator.act("/group/reset", **asked)
    assert (
        f"in 1 queue of 1 topic: 0 messages come again, 2 are skipped. Not in {topics[0]}" in told
    )
    monkeypatch.undo()
    assert (await console.admin.group_progress(group)).lag == 2


async def test_a_viewer_sees_the_plan_of_all_topics_and_moves_nothing(
    site: Console, topic: str
) -> None:
    group, viewer = await consumed_group(site, [topic]), Visitor(site, "viewer")
    asked = {"name": group, "topic": "*", "to": "end"}
    assert "Move it" not in (await viewer.look("/group/reset", **asked)).text
    assert (await viewer.post("/group/reset", **asked)).status_code == 403
    assert (await site.admin.group_progress(group)).lag == 8
