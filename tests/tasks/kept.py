"""Tasks about what is kept: dead letters, delayed messages, open transactions."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING

from kerolox.client import Outcome, TransactionProducer, TransactionState
from kerolox.message import Message
from tests.support.eventually import until
from tests.tasks.case import BROKER_NAME
from tests.tasks.task import Task

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.tasks.case import Case

BODIES = ["one", "two"]


async def given_up(case: Case) -> None:
    """Two messages that the group of the case gave up."""

    async def give_up(_: MessageExt) -> Outcome:
        return Outcome.dead_letter("not today")

    await case.make_topic()
    consumer = await case.consume(listen=give_up)
    await case.send(*BODIES)

    async def are_dead() -> bool:
        letters = [each async for each in case.admin.dead_letters(case.group)]
        return sorted(each.body.decode() for each in letters) == BODIES

    await until(are_dead, what="the dead letters")
    await consumer.close()
    case.got.clear()


class ListDead(Task):
    name = "See which groups have dead letters, and what they are"

    async def prepare(self, case: Case) -> None:
        await given_up(case)

    async def command_line(self, case: Case) -> None:
        rows = {row["group"]: row for row in await case.json("dlq", "list")}
        row = rows[case.group]
        assert (row["waiting"], row["done"]) == (2, 0)
        found = await case.json("dlq", "show", case.group)
        assert sorted(each["body"] for each in found) == BODIES
        assert {(each["originTopic"], each["reason"], each["state"]) for each in found} == {
            (case.topic, "not today", "waiting")
        }

    async def console(self, case: Case) -> None:
        async def is_listed() -> bool:  # the console keeps the list of topics for some seconds
            page = await case.look("/dead-letters")
            return f'{case.group}</a></td><td class="n">2</td><td class="n">0</td>' in page

        await until(is_listed, what="the group")
        page = await case.look("/dead-letter", group=case.group)
        cells = r">waits</span></td><td[^>]*>(\w+)</td><td[^>]*>0</td><td[^>]*>not today</td>"
        cells += "<td[^>]*></td>"
        rows = re.findall(rf'{cells}<td class="body"><span class="clamp">(\w+)<', page)
        assert sorted(rows) == [(case.topic, body) for body in BODIES]


class ExportDead(Task):
    name = "Export dead letters as JSON"

    async def prepare(self, case: Case) -> None:
        await given_up(case)

    async def command_line(self, case: Case) -> None:
        lines = (await case.run("dlq", "export", case.group)).splitlines()
        assert sorted(json.loads(line)["body"] for line in lines) == BODIES

    async def console(self, case: Case) -> None:
        page = await case.look("/dead-letter", group=case.group)
        [link] = re.findall(r'href="(/dead-letter/export\?[^"]+)"', page)
        lines = (await case.look(unescape(link))).splitlines()
        assert sorted(json.loads(line)["body"] for line in lines) == BODIES


class ResendDead(Task):
    name = "Give chosen dead letters to their group again"

    async def prepare(self, case: Case) -> None:
        await given_up(case)
        await case.consume()
        letters = [each async for each in case.admin.dead_letters(case.group)]
        [self.chosen] = [each for each in letters if each.body == b"two"]

    async def command_line(self, case: Case) -> None:
        resend = ("dlq", "resend", case.group, self.chosen.offset_message_id)
        [row] = await case.json(*resend, "--dry-run")
        assert (row["state"], row["topic"]) == ("chosen", case.topic)
        [row] = await case.json(*resend, "--yes")
        assert row["state"] == "sent"

    async def console(self, case: Case) -> None:
        of = self.chosen
        form = await case.form("/dead-letter/resend", "/dead-letter", group=case.group)
        place = f"{of.broker_name}/{of.queue_id}:{of.queue_offset}"
        assert len(form.choices["place"]) == 2
        told = await case.send_form(form, place=[place])
        assert "1 of 1 dead letter was sent again." in told
        assert f"{place}: sent, SEND_OK" in told

    async def check(self, case: Case) -> None:
        await until(lambda: b"two" in [each.body for each in case.got], what="the dead letter")
        # Nobody else gets it, and it stays where it is.
        assert await case.bodies() == BODIES
        assert len([each async for each in case.admin.dead_letters(case.group)]) == 2


class ResendAllDead(Task):
    name = "Give all dead letters to their group again, each once"

    async def prepare(self, case: Case) -> None:
        await given_up(case)
        await case.consume()

    async def command_line(self, case: Case) -> None:
        resend = ("dlq", "resend", case.group)
        rows = await case.json(*resend, "--yes")
        assert [row["state"] for row in rows] == ["sent", "sent"]
        assert await case.json(*resend, "--yes") == []

    async def console(self, case: Case) -> None:
        form = await case.form("/dead-letter/resend-all", "/dead-letter", group=case.group)
        assert "2 dead letters were sent again." in await case.send_form(form)
        page = await case.look("/dead-letter", group=case.group)
        assert "0 of 2 wait." in page
        assert "Send all that wait again" not in page

    async def check(self, case: Case) -> None:
        def bodies() -> list[str]:
            return sorted(each.body.decode() for each in case.got)

        await until(lambda: len(case.got) >= 2, what="the dead letters")
        assert bodies() == BODIES
        assert sum(each.waiting for each in await case.admin.dead_letter_queues(case.group)) == 0


class PurgeDead(Task):
    name = "Mark the dead letters that nobody wants as done"

    async def prepare(self, case: Case) -> None:
        await given_up(case)

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("dlq", "purge", case.group, "--dry-run")
        assert (row["marked"], row["done"]) == (2, False)
        [row] = await case.json("dlq", "purge", case.group, "--yes")
        assert (row["marked"], row["done"]) == (2, True)

    async def console(self, case: Case) -> None:
        form = await case.form("/dead-letter/purge", "/dead-letter", group=case.group)
        told = await case.send_form(form, again=case.group)
        assert f"2 dead letters of {case.group} are marked as done." in told

    async def check(self, case: Case) -> None:
        queues = await case.admin.dead_letter_queues(case.group)
        assert [(each.waiting, each.messages) for each in queues] == [(0, 2)]


class Delayed(Task):
    name = "See which delayed messages wait, and when they are due"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send(f"later {case.topic}", delay_level=18, keys="k-later")

        async def waits() -> bool:
            levels = await case.admin.delay_levels(case.place.broker)
            return any(each.number == 18 and each.waiting for each in levels)

        await until(waits, what="the delayed message")

    async def command_line(self, case: Case) -> None:
        rows = await case.json("message", "delayed")
        [row] = [row for row in rows if row["topic"] == case.topic]
        assert (row["body"], row["keys"], row["delayLevel"]) == (
            f"later {case.topic}",
            "k-later",
            18,
        )
        assert row["dueTimestamp"] - row["storeTimestamp"] == row["delayMs"] == 7_200_000

    async def console(self, case: Case) -> None:
        page = await case.look("/delayed")
        [link] = re.findall(r'href="(/delayed\?[^"]*level=18)"', page)
        page = await case.look(unescape(link))
        row = rf'<td>{case.topic}</td><td class="long">.*?</td><td>k-later</td><td[^>]*>later'
        assert re.search(rf'<td class="n">1 h 5\d min</td>{row}', page), page

    async def check(self, case: Case) -> None:
        levels = await case.admin.delay_levels(case.place.broker)
        [level] = [each for each in levels if each.number == 18]
        waiting = await case.admin.delayed_messages(level)
        assert f"later {case.topic}".encode() in [each.body for each in waiting]
        assert await case.bodies() == []


class Transactions(Task):
    name = "See which transactions are open"

    async def prepare(self, case: Case) -> None:
        async def check(_: MessageExt) -> TransactionState:
            return TransactionState.UNKNOWN

        async def execute(_: Message) -> TransactionState:
            return TransactionState.UNKNOWN

        await case.make_topic()
        producer = TransactionProducer(f"p-{case.group}", case.place.name_server, check=check)
        await case.stack.enter_async_context(producer)
        await producer.send_in_transaction(Message(case.topic, b"half"), execute)

        async def is_open() -> bool:
            found = await case.admin.open_halves(case.place.broker)
            return any(each.properties["PGROUP"] == f"p-{case.group}" for each in found.halves)

        await until(is_open, what="the half message")

    async def command_line(self, case: Case) -> None:
        rows = await case.json("message", "transactions")
        mine = [row for row in rows if row["producerGroup"] == f"p-{case.group}"]
        assert [(row["topic"], row["body"]) for row in mine] == [(case.topic, "half")]

    async def console(self, case: Case) -> None:
        page = await case.look("/transactions")
        row = rf'<td>{case.topic}</td><td>p-{case.group}</td>.*<td class="body">half'
        assert re.search(row, page)

    async def check(self, case: Case) -> None:
        assert await case.bodies() == []


class EndTransaction(Transactions):
    name = "Commit an open transaction whose producer is gone"

    async def prepare(self, case: Case) -> None:
        await super().prepare(case)
        found = await case.admin.open_halves(case.place.broker)
        [self._half] = [e for e in found.halves if e.properties["PGROUP"] == f"p-{case.group}"]

    async def command_line(self, case: Case) -> None:
        dry = await case.json("message", "commit", self._half.message_id, "--dry-run")
        assert (dry["topic"], dry["decision"], dry["done"]) == (case.topic, "commit", False)
        assert await case.bodies() == []
        done = await case.json("message", "commit", self._half.message_id, "--yes")
        assert (done["producerGroup"], done["done"]) == (f"p-{case.group}", True)

    async def console(self, case: Case) -> None:
        where = {"broker": BROKER_NAME, "id": self._half.message_id}
        form = await case.form("/transaction/commit", "/transaction", **where)
        assert f"is a message of {case.topic}." in await case.send_form(form)

    async def check(self, case: Case) -> None:
        async def is_there() -> bool:
            return await case.bodies() == ["half"]

        await until(is_there, what="the message")


DEAD_TASKS = (ListDead, ExportDead, ResendDead, ResendAllDead, PurgeDead)
WAITING_TASKS = (Delayed, Transactions, EndTransaction)
