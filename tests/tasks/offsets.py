"""Tasks about where groups go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.eventually import until
from tests.tasks.case import BROKER_NAME
from tests.tasks.groups import left_behind
from tests.tasks.task import Task

if TYPE_CHECKING:
    from tests.tasks.case import Case


class GoBack(Task):
    name = "Look what going back in time would do, and do it"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send_apart("before", "after", "later")
        case.since = await case.stored_at(1)
        await case.admin.update_group(case.group)
        await case.admin.reset_offsets(case.group, case.topic, -1)
        assert await case.offsets() == [3, 0]

    async def command_line(self, case: Case) -> None:
        move = ("group", "reset", case.group, case.topic, "--to", case.since)
        planned = await case.json(*move, "--dry-run")
        assert [(row["oldOffset"], row["newOffset"], row["again"]) for row in planned] == [
            (3, 1, 2),
            (0, 0, 0),
        ]
        assert await case.offsets() == [3, 0]
        await case.run(*move, "--yes")

    async def console(self, case: Case) -> None:
        asked = await case.form("/group/reset", "/group", name=case.group)
        assert {name for name, _ in asked.fields} == {"name", "topic", "to"}
        of = {"name": case.group, "topic": case.topic, "to": case.since}
        page = await case.look("/group/reset", **of)
        assert "2 messages would come again, 0 would be skipped" in page
        assert await case.offsets() == [3, 0]
        told = await case.send_form(await case.form("/group/reset", "/group/reset", **of))
        assert "2 messages come again, 0 are skipped" in told

    async def check(self, case: Case) -> None:
        assert await case.offsets() == [1, 0]
        await case.consume()
        expected = {b"after", b"later"}
        await until(lambda: expected <= {each.body for each in case.got}, what="the messages")
        assert {each.body for each in case.got} == expected


class Skip(Task):
    name = "Skip what a group has not consumed"

    async def prepare(self, case: Case) -> None:
        await left_behind(case)

    async def command_line(self, case: Case) -> None:
        move = ("group", "reset", case.group, case.topic, "--to", "end", "--yes")
        rows = await case.json(*move)
        assert [row["skipped"] for row in rows] == [3, 0]

    async def console(self, case: Case) -> None:
        of = {"name": case.group, "topic": case.topic, "to": "end"}
        told = await case.send_form(await case.form("/group/reset", "/group/reset", **of))
        assert "0 messages come again, 3 are skipped" in told

    async def check(self, case: Case) -> None:
        assert await case.offsets() == [3, 0]
        assert (await case.admin.group_progress(case.group, topic=case.topic)).lag == 0


class Clone(Task):
    name = "Have another group go on where one is"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("one", "two")
        consumer = await case.consume(persist_interval_ms=200)

        async def is_committed() -> bool:
            return await case.offsets() == [2, 0]

        # Before it is closed, which gives a busy broker only a second to take them.
        await until(is_committed, what="the offsets")
        await consumer.close()
        await case.admin.update_group(f"{case.group}-2")

    async def command_line(self, case: Case) -> None:
        told = await case.run("group", "clone", case.group, f"{case.group}-2", "--yes")
        assert re.search(r"has the offsets of", told)

    async def console(self, case: Case) -> None:
        form = await case.form("/group/clone", "/group", name=case.group)
        assert form.choices["topic"][:1] == [""]
        assert case.topic in form.choices["topic"]
        told = await case.send_form(form, target=f"{case.group}-2")
        assert f"Group {case.group}-2 has the offsets of {case.group}" in told

    async def check(self, case: Case) -> None:
        assert await case.offsets(f"{case.group}-2") == [2, 0]


class OneQueue(Task):
    name = "Move a group in one queue alone"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("one", "two", "three")
        await case.send("four", queue=1)
        await case.admin.update_group(case.group)
        await case.admin.reset_offsets(case.group, case.topic, 0)

    async def command_line(self, case: Case) -> None:
        move = ("group", "reset", case.group, case.topic, "--to", 2, "--yes")
        [row] = await case.json(*move, "--queue", f"{BROKER_NAME}/0")
        assert (row["oldOffset"], row["newOffset"], row["skipped"]) == (0, 2, 2)

    async def console(self, case: Case) -> None:
        of = {"name": case.group, "topic": case.topic, "to": 2, "queue": f"{BROKER_NAME}/0"}
        told = await case.send_form(await case.form("/group/reset", "/group/reset", **of))
        assert f"goes on at 2 in 1 queue of {case.topic}" in told

    async def check(self, case: Case) -> None:
        assert await case.offsets() == [2, 0]


OFFSET_TASKS = (GoBack, Skip, OneQueue, Clone)
