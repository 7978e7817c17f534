"""Tasks about consumer groups: make, look, change, delete."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

from kerolox.release import __version__
from tests.support.eventually import until
from tests.tasks.case import BROKER_NAME
from tests.tasks.task import Task

if TYPE_CHECKING:
    from kerolox.protocol.bodies import SubscriptionGroupConfig
    from tests.tasks.case import Case

FRAME = re.compile(r"kerolox\.client\.\w[\w.<>]*\([^()]+\.py:\d+\)")
"""A line of a stack: a function of the client, its file and its line."""


async def settings_of(case: Case) -> SubscriptionGroupConfig:
    found = await case.admin.group_settings(case.place.broker, case.group)
    assert found is not None
    return found


async def left_behind(case: Case) -> None:
    """A group that has consumed nothing of the three messages of its topic."""
    await case.make_topic()
    await case.send("one", "two", "three")
    await case.admin.update_group(case.group)
    await case.admin.reset_offsets(case.group, case.topic, 0)


async def online(case: Case) -> None:
    """A group with one member, which consumes."""
    await case.make_topic()
    await case.send("one")
    case.member = (await case.consume(persist_interval_ms=200)).client_id
    await until(lambda: case.got, what="the message")

    async def has_queues() -> bool:
        status = await case.admin.consumer_status(case.group)
        # The third queue is that of its retries.
        if [len(each.queues) for each in status.members] != [3]:
            return False
        return await case.offsets() == [1, 0]

    await until(has_queues, what="the member's queues")


class CreateGroup(Task):
    name = "Create a group"

    async def command_line(self, case: Case) -> None:
        told = await case.run("group", "create", case.group, "--retries", 5)
        assert "made, 5 retries" in told

    async def console(self, case: Case) -> None:
        form = await case.form("/group/update", "/groups")
        told = await case.send_form(form, name=case.group, retries=5)
        assert f"Group {case.group} is made on {case.place.broker}, with 5 retries." in told

    async def check(self, case: Case) -> None:
        assert (await settings_of(case)).retry_max_times == 5


class ChangeRetries(Task):
    name = "Change how often a group's messages are tried again"

    async def prepare(self, case: Case) -> None:
        await case.admin.update_group(case.group, retry_max_times=3, consume_enable=False)

    async def command_line(self, case: Case) -> None:
        told = await case.run("group", "update", case.group, "--retries", 7)
        assert "retries 3 → 7" in told

    async def console(self, case: Case) -> None:
        form = await case.form("/group/update", "/group", name=case.group)
        assert ("retries", "3") in form.fields
        told = await case.send_form(form, retries=7)
        assert f"Group {case.group} has 7 retries." in told

    async def check(self, case: Case) -> None:
        found = await settings_of(case)
        assert (found.retry_max_times, found.consume_enable) == (7, False)


class ListGroups(Task):
    name = "List the groups: which are behind, which have no member"

    async def prepare(self, case: Case) -> None:
        await left_behind(case)

    async def command_line(self, case: Case) -> None:
        rows = {row["group"]: row for row in await case.json("group", "list")}
        row = rows[case.group]
        assert (row["members"], row["lag"]) == (0, 3)

    async def console(self, case: Case) -> None:
        async def is_listed() -> bool:  # the console keeps the list for some seconds
            page = await case.look("/groups", q=case.group, sort="lag")
            row = rf'{case.group}</a></td><td>active</td><td class="n">'
            row += '<span class="quiet">offline</span></td>'
            return re.search(rf'{row}<td class="n">3</td>', page) is not None

        await until(is_listed, what="the group")


class Lag(Task):
    name = "See a group's lag by queue, in messages and in time"

    async def prepare(self, case: Case) -> None:
        await left_behind(case)

        async def is_late() -> bool:
            spans = await case.admin.consume_time_spans(case.group, case.topic)
            return any(each.delay_ms >= 1_000 for each in spans)

        await until(is_late, what="a second of waiting")

    async def command_line(self, case: Case) -> None:
        rows = await case.json("group", "describe", case.group)
        assert [(row["queueId"], row["lag"]) for row in rows] == [(0, 3), (1, 0)]
        assert 1_000 <= rows[0]["waitingMs"] < 3_600_000

    async def console(self, case: Case) -> None:
        page = await case.look("/group", name=case.group)
        row = rf'<td>{BROKER_NAME}/0</td><td class="n">3</td><td class="n">\d+ (s|min)[^<]*</td>'
        assert re.search(rf'{row}<td class="n">0</td><td class="n">3</td>', page), page


class Owner(Task):
    name = "See which member has a queue"

    async def prepare(self, case: Case) -> None:
        await online(case)

    async def command_line(self, case: Case) -> None:
        rows = await case.json("group", "describe", case.group, "--topic", case.topic)
        assert [row["clientId"] for row in rows] == [case.member] * 2

    async def console(self, case: Case) -> None:
        page = unescape(await case.look("/group", name=case.group, topic=case.topic))
        rows = page.split('<h2 id="queues">')[1]
        assert rows.count(f"<td>{case.member}</td>") == 2, rows

    async def check(self, case: Case) -> None:
        found = await case.admin.group_progress(case.group, topic=case.topic, clients=True)
        assert {each.client_id for each in found.queues} == {case.member}


class Members(Task):
    name = "See a group's members, their versions and subscriptions"

    async def prepare(self, case: Case) -> None:
        await online(case)

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("group", "members", case.group)
        assert (row["clientId"], row["language"]) == (case.member, "PYTHON")
        assert row["version"].startswith("V4_")
        assert row["software"] == f"Kerolox {__version__}"
        assert row["subscriptions"][case.topic] == "*"

    async def console(self, case: Case) -> None:
        page = unescape(await case.look("/group", name=case.group))
        assert re.search(rf"{re.escape(case.member)}</a>.*<td>PYTHON</td><td>Kerolox ", page)
        assert f"{case.topic}</a>: <code>*</code>" in page


class Stacks(Task):
    name = "See what a member does: queues, speed, stacks"

    async def prepare(self, case: Case) -> None:
        await online(case)

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("group", "members", case.group, "--stacks")
        assert row["queues"] == 3
        assert FRAME.search(row["stacks"])

    async def console(self, case: Case) -> None:
        page = await case.look("/group/member", name=case.group, client=case.member, stacks=1)
        assert f"<td>{case.topic}</td><td>{BROKER_NAME}/1</td>" in page
        assert FRAME.search(page.split('<h2 id="stacks">')[1])


class Pause(Task):
    name = "Pause a group and resume it"

    async def prepare(self, case: Case) -> None:
        await left_behind(case)

    async def command_line(self, case: Case) -> None:
        assert ": paused" in await case.run("group", "pause", case.group)
        await self._gets_nothing(case)
        rows = {row["group"]: row for row in await case.json("group", "list")}
        assert rows[case.group]["state"] == "paused"
        assert ": resumed" in await case.run("group", "resume", case.group)

    async def console(self, case: Case) -> None:
        form = await case.form("/group/pause", "/group", name=case.group)
        assert f"is paused on {case.place.broker}" in await case.send_form(form)
        await self._gets_nothing(case)
        page = await case.look("/group", name=case.group)
        assert f'{case.group} <span class="badge bad">paused</span></h1>' in page
        page = await case.look("/groups", q=case.group)
        assert f'{case.group}</a></td><td><span class="badge bad">paused</span></td>' in page
        assert re.search(r"<small>\d+ paused</small>", await case.look("/"))
        form = await case.form("/group/resume", "/group", name=case.group)
        assert f"is resumed on {case.place.broker}" in await case.send_form(form)

    async def _gets_nothing(self, case: Case) -> None:
        assert not (await settings_of(case)).consume_enable

    async def check(self, case: Case) -> None:
        assert (await settings_of(case)).consume_enable
        await case.consume()
        await until(lambda: len(case.got) >= 3, what="the messages")


class DeleteGroup(Task):
    name = "Delete a group with its offsets"

    async def prepare(self, case: Case) -> None:
        await left_behind(case)

    async def command_line(self, case: Case) -> None:
        told = await case.run("group", "delete", case.group, "--offsets", "--yes")
        assert case.group in told

    async def console(self, case: Case) -> None:
        form = await case.form("/group/delete", "/group", name=case.group)
        told = await case.send_form(form, offsets="1", again=case.group)
        assert f"Group {case.group} is deleted" in told

    async def check(self, case: Case) -> None:
        assert await case.admin.group_settings(case.place.broker, case.group) is None
        assert case.group not in await case.admin.list_groups()
        assert case.group not in await case.admin.groups_of_topic(case.topic)


MAKE_TASKS = (CreateGroup, ChangeRetries, ListGroups)
LOOK_TASKS = (Lag, Owner, Members, Stacks)
