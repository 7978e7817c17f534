"""Tasks about topics."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

from kerolox.client import Producer
from kerolox.message import Message
from tests.support.eventually import until
from tests.tasks.case import BROKER_NAME
from tests.tasks.task import Task

if TYPE_CHECKING:
    from kerolox.protocol.bodies import TopicConfig
    from tests.tasks.case import Case


LINK = re.compile(r'href="/topic\?name=\w+">(\w+)</a>')


async def settings_of(case: Case) -> TopicConfig | None:
    return await case.admin.topic_settings(case.place.broker, case.topic)


class CreateTopic(Task):
    name = "Create a topic"

    async def command_line(self, case: Case) -> None:
        told = await case.run("topic", "create", case.topic, "--queues", 3)
        assert f"topic {case.topic} has 3 queues" in told

    async def console(self, case: Case) -> None:
        form = await case.form("/topic/create", "/topics")
        told = await case.send_form(form, topic=case.topic, queues=3)
        assert f"Topic {case.topic} has 3 queues" in told

    async def check(self, case: Case) -> None:
        found = await settings_of(case)
        assert found is not None
        assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (3, 3, 6)


class ListTopics(Task):
    name = "List the topics with their queues and permissions"

    async def prepare(self, case: Case) -> None:
        await case.make_topic(queues=3)

    async def command_line(self, case: Case) -> None:
        [row] = [row for row in await case.json("topic", "list") if row["topic"] == case.topic]
        assert (row["writeQueueNums"], row["perm"], row["kind"]) == (3, 6, "normal")

    async def console(self, case: Case) -> None:
        cells = "".join(f'<td class="n">{n}</td>' for n in (3, 3, 1))
        row = re.compile(rf"{case.topic}</a></td>.*{cells}<td>read and write")

        async def is_listed() -> bool:  # the console keeps the list for some seconds
            return row.search(await case.look("/topics", q=case.topic)) is not None

        await until(is_listed, what="the topic")


class DescribeTopic(Task):
    name = "See what a topic holds by queue, and who consumes it"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("one", "two", queue=1)
        await case.admin.update_group(case.group)
        await case.admin.reset_offsets(case.group, case.topic, 0)

        async def is_told() -> bool:
            return case.group in await case.admin.groups_of_topic(case.topic)

        await until(is_told, what="the group")

    async def command_line(self, case: Case) -> None:
        found = await case.json("topic", "describe", case.topic)
        assert [queue["messages"] for queue in found["queues"]] == [0, 2]
        assert found["groups"] == [{"group": case.group, "state": "active", "lag": 2}]

    async def console(self, case: Case) -> None:
        page = await case.look("/topic", name=case.topic)
        assert "<dt>Messages stored</dt><dd>2</dd>" in page
        assert re.search(rf'{case.group}</a></td><td class="n">2</td>', page)
        queue = r'/1</a></td><td class="n">0</td><td class="n">2</td><td class="n">2</td>'
        assert re.search(queue, page)


class AddQueues(Task):
    name = "Give a topic more queues"

    async def prepare(self, case: Case) -> None:
        await case.make_topic(queues=2)

    async def command_line(self, case: Case) -> None:
        told = await case.run("topic", "update", case.topic, "--queues", 5)
        assert "write queues 2 → 5" in told

    async def console(self, case: Case) -> None:
        form = await case.form("/topic/update", "/topic", name=case.topic)
        assert "is changed on 1 broker" in await case.send_form(form, queues=5)

    async def check(self, case: Case) -> None:
        found = await settings_of(case)
        assert found is not None
        assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (5, 5, 6)


class ChangePermission(Task):
    name = "Make a topic read-only"

    async def prepare(self, case: Case) -> None:
        await case.make_topic(queues=2)

    async def command_line(self, case: Case) -> None:
        assert "perm RW → R" in await case.run("topic", "permission", case.topic, "R")

    async def console(self, case: Case) -> None:
        form = await case.form("/topic/update", "/topic", name=case.topic)
        assert "is changed on 1 broker" in await case.send_form(form, perm=4)

    async def check(self, case: Case) -> None:
        found = await settings_of(case)
        assert found is not None
        assert (found.write_queue_nums, found.perm) == (2, 4)


class DeleteTopic(Task):
    name = "Delete a topic"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("gone")

    async def command_line(self, case: Case) -> None:
        told = await case.run("topic", "delete", case.topic, "--yes")
        assert f"topic {case.topic} deleted" in told

    async def console(self, case: Case) -> None:
        form = await case.form("/topic/delete", "/topic", name=case.topic)
        assert "is deleted" in await case.send_form(form, again=case.topic)

    async def check(self, case: Case) -> None:
        assert await settings_of(case) is None

        async def is_gone() -> bool:
            return case.topic not in await case.admin.list_topics()

        await until(is_gone, what="the end of the route")


class FindTopic(Task):
    name = "Find a topic by a part of its name"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()

    async def command_line(self, case: Case) -> None:
        names = await case.json("topic", "list", "--names")
        assert [each["topic"] for each in names if case.topic[3:] in each["topic"]] == [case.topic]

    async def console(self, case: Case) -> None:
        async def is_found() -> bool:  # the console keeps the list for some seconds
            page = await case.look("/topics", q=case.topic[3:].upper())
            return LINK.findall(page) == [case.topic]

        await until(is_found, what="the topic")


class Producers(Task):
    name = "See the producers of a topic's brokers"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        producer = Producer(f"p-{case.group}", case.place.name_server)
        await case.stack.enter_async_context(producer)
        await producer.send(Message(case.topic, b"one"))
        case.member = producer.client_id

        async def is_known() -> bool:  # with its first heartbeat
            known = await case.admin.all_producers(case.place.broker)
            return case.member in {each.client_id for each in known}

        await until(is_known, what="the producer")

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("producers", "--group", f"p-{case.group}")
        assert (row["clientId"], row["language"]) == (case.member, "PYTHON")
        assert row["brokers"] == BROKER_NAME

    async def console(self, case: Case) -> None:
        page = unescape(await case.look("/topic", name=case.topic))
        shown = page.split('<h2 id="producers">')[1].split('<h2 id="queues">')[0]
        assert case.member in shown
        assert f"p-{case.group}" in shown


TOPIC_TASKS = (
    CreateTopic,
    ListTopics,
    FindTopic,
    DescribeTopic,
    Producers,
    AddQueues,
    ChangePermission,
    DeleteTopic,
)
