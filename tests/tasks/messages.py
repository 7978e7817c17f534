"""Tasks about messages: send, find, show, follow, send again."""

from __future__ import annotations

import asyncio
import base64
import re
from html import unescape
from typing import TYPE_CHECKING

from kerolox.client import Producer, ProducerSettings
from kerolox.errors import KeroloxError
from kerolox.message import Message
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.command import start
from tests.tasks.case import BROKER_NAME
from tests.tasks.task import Task

if TYPE_CHECKING:
    from tests.tasks.case import Case

BINARY = b"\x00\xff\xfe\x80 no text"

SHOWN = re.compile(r'<p role="status">(\d+) shown')


async def three(case: Case) -> None:
    """Messages in one queue, each with a key."""
    await case.make_topic()
    for body in ("one", "two", "three"):
        await case.send(body, keys=f"k-{body}", tags="numbers")


async def shown(case: Case, **parameters: object) -> str:
    """The page of messages; it shows one."""
    page = await case.look("/messages", topic=case.topic, **parameters)
    found = SHOWN.search(page)
    assert found is not None
    return page if found[1] == "1" else ""


class SendTest(Task):
    name = "Send a test message"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()

    async def command_line(self, case: Case) -> None:
        await case.run("send", case.topic, "hello", "--keys", "o-1", "--tags", "new", "-H", "n=7")

    async def console(self, case: Case) -> None:
        form = await case.form("/topic/send", "/topic", name=case.topic)
        fields = {"body": "hello", "keys": "o-1", "tags": "new", "properties": "n=7"}
        assert "Sent: SEND_OK at offset 0" in await case.send_form(form, **fields)

    async def check(self, case: Case) -> None:
        found = await case.first_of()
        assert (found.body, found.keys, found.tags) == (b"hello", "o-1", "new")
        assert found.properties["n"] == "7"


class ById(Task):
    name = "Find a message by its id"

    async def prepare(self, case: Case) -> None:
        await three(case)

        async def is_indexed() -> bool:  # that follows in the background
            found = await case.admin.messages_by_unique_key(case.topic, case.sent[1].message_id)
            return len(found) == 1

        await until(is_indexed, what="the index")

    async def command_line(self, case: Case) -> None:
        found = await case.json("message", "get", case.sent[1].message_id, "--topic", case.topic)
        assert (found["body"], found["queueOffset"]) == ("two", 1)
        found = await case.json("message", "get", case.sent[1].offset_message_id)
        assert found["body"] == "two"

    async def console(self, case: Case) -> None:
        for key in (case.sent[1].message_id, case.sent[1].offset_message_id):
            page = await shown(case, id=key)
            assert re.search(r'<td class="body"><span class="clamp">two<', page)


class ByKey(Task):
    name = "Find messages by a key"

    async def prepare(self, case: Case) -> None:
        await three(case)

        async def is_indexed() -> bool:
            return len(await case.admin.messages_by_key(case.topic, "k-two")) == 1

        await until(is_indexed, what="the index")

    async def command_line(self, case: Case) -> None:
        [found] = await case.json("message", "find", case.topic, "k-two")
        assert found["body"] == "two"

    async def console(self, case: Case) -> None:
        page = await shown(case, key="k-two")
        assert re.search(r'<td class="body"><span class="clamp">two<', page)


class ByPlace(Task):
    name = "See the message at an offset of a queue"

    async def prepare(self, case: Case) -> None:
        await three(case)

    async def command_line(self, case: Case) -> None:
        found = await case.json("message", "at", case.topic, f"{BROKER_NAME}/0", 2)
        assert (found["body"], found["keys"]) == ("three", "k-three")

    async def console(self, case: Case) -> None:
        page = await shown(case, queue=f"{BROKER_NAME}/0", **{"from": 2})
        [link] = re.findall(r'href="(/message\?[^"]+)"', page)
        assert "three</pre>" in await case.look(unescape(link))


class ByTime(Task):
    name = "Find messages of a time, by tag and text"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send_apart("one", "two", "three", tags="numbers")
        await case.send_apart("four", "two", tags="numbers")
        await case.send("two", tags="others")
        case.since = await case.stored_at(3)

    async def command_line(self, case: Case) -> None:
        which = ("--from", case.since, "--tags", "numbers", "--grep", "tw")
        [found] = await case.json("message", "list", case.topic, *which)
        assert (found["body"], found["queueOffset"]) == ("two", 4)

    async def console(self, case: Case) -> None:
        page = await shown(case, tags="numbers", text="tw", **{"from": case.since})
        assert re.search(r'offset=4"?[^>]*>4</a>', page)


class AsJson(Task):
    name = "Show a message's body as JSON"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send('{"customer":7,"größe":[1]}')

    async def command_line(self, case: Case) -> None:
        found = await case.json(
            "message", "at", case.topic, f"{BROKER_NAME}/0", 0, "--body", "json"
        )
        assert found["body"] == {"customer": 7, "größe": [1]}

    async def console(self, case: Case) -> None:
        place = {"topic": case.topic, "queue": f"{BROKER_NAME}/0", "offset": 0}
        page = await case.look("/message", **place, view="json")
        body = unescape(page.split('aria-labelledby="body-title" tabindex="0">')[1])
        assert re.match(r'\{\s+"customer": 7,\s+"größe": \[\s*1\s*\]\s+\}</pre>', body)


class AsHex(Task):
    name = "Show a body that is no text"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        message = Message(case.topic, BINARY)
        case.sent.append(await case.admin.send_message(message, queue_id=0))
        assert (await case.first_of()).body == BINARY

    async def command_line(self, case: Case) -> None:
        at = ("message", "at", case.topic, f"{BROKER_NAME}/0", 0)
        assert (await case.json(*at, "--body", "hex"))["body"] == BINARY.hex(" ")

    async def console(self, case: Case) -> None:
        place = {"topic": case.topic, "queue": f"{BROKER_NAME}/0", "offset": 0}
        page = await case.look("/message", **place, view="hex")
        assert BINARY.hex(" ") in page


class SaveBody(AsHex):
    name = "Save a message's body as a file"

    async def command_line(self, case: Case) -> None:
        at = ("message", "at", case.topic, f"{BROKER_NAME}/0", 0)
        saved = await case.run(*at, "--body", "base64", "-o", "{body:raw}")
        assert base64.b64decode(saved) == BINARY

    async def console(self, case: Case) -> None:
        place = {"topic": case.topic, "queue": f"{BROKER_NAME}/0", "offset": 0}
        page = await case.look("/message", **place)
        [link] = re.findall(r'href="(/message/body\?[^"]+)" download', page)
        saved = await case.http.get(unescape(link))
        assert saved.content == BINARY
        assert saved.headers["content-disposition"].startswith("attachment")


class Next(Task):
    name = "Go on to the next message of a queue"

    async def prepare(self, case: Case) -> None:
        await three(case)

    async def command_line(self, case: Case) -> None:
        found = [
            await case.json("message", "at", case.topic, f"{BROKER_NAME}/0", offset)
            for offset in (1, 2)
        ]
        assert [each["body"] for each in found] == ["two", "three"]

    async def console(self, case: Case) -> None:
        place = {"topic": case.topic, "queue": f"{BROKER_NAME}/0", "offset": 1}
        page = await case.look("/message", **place)
        [link] = re.findall(r'rel="next" href="([^"]+)"', page)
        assert "three</pre>" in await case.look(unescape(link))


class Consumers(Task):
    name = "See which groups have consumed a message"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("one")
        await case.consume(persist_interval_ms=200)

        async def is_consumed() -> bool:
            message = await case.admin.message_at(case.sent[0].queue, 0)
            tracks = await case.admin.message_tracks(message)
            return [each.type.value for each in tracks] == ["CONSUMED"]

        await until(is_consumed, what="the offset")

    async def command_line(self, case: Case) -> None:
        [row] = await case.json("message", "consumers", case.sent[0].offset_message_id)
        assert (row["group"], row["state"]) == (case.group, "CONSUMED")

    async def console(self, case: Case) -> None:
        place = {"topic": case.topic, "queue": f"{BROKER_NAME}/0", "offset": 0}
        page = await case.look("/message", **place, tracks=1)
        assert f"{case.group}</a>: consumed" in page


class Trace(Task):
    name = "See when a message was sent and consumed, and by whom"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.consume(enable_trace=True)
        settings = ProducerSettings(enable_trace=True)
        producer = Producer(f"p-{case.group}", case.place.name_server, settings=settings)
        async with producer:
            case.sent.append(await producer.send(Message(case.topic, b"traced")))
        await until(lambda: case.got, what="the message")

        async def is_told() -> bool:
            try:
                views = await case.admin.message_traces(case.sent[0].message_id)
            except KeroloxError:  # the topic is made with the first trace
                return False
            # One of the send, two of the delivery.
            return len({type(each.trace) for each in views}) == 3

        await until(is_told, what="the traces")

    async def command_line(self, case: Case) -> None:
        rows = await case.json("trace", case.sent[0].message_id)
        groups = {row["event"]: row["group"] for row in rows}
        assert (groups["sent"], groups["consumed"]) == (f"p-{case.group}", case.group)

    async def console(self, case: Case) -> None:
        page = await case.look("/trace", id=case.sent[0].message_id)
        for what, group in (("send", f"p-{case.group}"), ("consume", case.group)):
            assert re.search(rf'<span class="badge">{what}</span></td><td>{group}</td>', page)


class Resend(Task):
    name = "Send a stored message again, to another topic"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.make_topic(f"{case.topic}-2")
        await case.send("again", tags="t", keys="k")

    async def command_line(self, case: Case) -> None:
        resend = ("message", "resend", case.sent[0].offset_message_id, "--to", f"{case.topic}-2")
        assert "nothing was changed" in await case.run(*resend, "--dry-run")
        assert await case.bodies(f"{case.topic}-2") == []
        await case.run(*resend, "--yes")

    async def console(self, case: Case) -> None:
        place = {"topic": case.topic, "queue": f"{BROKER_NAME}/0", "offset": 0}
        form = await case.form("/message/resend", "/message", **place)
        assert ("to", case.topic) in form.fields
        assert "Sent again: SEND_OK" in await case.send_form(form, to=f"{case.topic}-2")

    async def check(self, case: Case) -> None:
        found = await case.first_of(f"{case.topic}-2")
        assert (found.body, found.tags, found.keys) == (b"again", "t", "k")
        assert await case.bodies() == ["again"]


class Follow(Task):
    name = "Follow a topic"

    async def prepare(self, case: Case) -> None:
        await case.make_topic()
        await case.send("old")

    async def command_line(self, case: Case) -> None:
        lines = await case.run("tail", case.topic, "--from", "-1", "--until", "end", "-o", "{body}")
        assert lines.split() == ["old"]
        given = ("--count", 1, "-o", "{body}", "--ready-line", "-n", case.place.name_server)
        with start("tail", case.topic, *given) as following:
            assert following.stdout is not None
            try:
                ready = await asyncio.to_thread(following.stdout.readline)
                assert ready == f"following {case.topic}\n"
                await case.send("new")
                said, _ = await asyncio.to_thread(following.communicate, timeout=SECONDS_MAX)
            finally:
                following.kill()
        assert said.split() == ["new"]

    async def console(self, case: Case) -> None:
        page = await case.look("/messages/tail", topic=case.topic)
        assert ">old<" not in page
        [cursor] = re.findall(r'name="cursor" value="([^"]*)"', page)
        await case.send("new")
        part = await case.look("/messages/tail", topic=case.topic, cursor=unescape(cursor))
        assert re.findall(r'<span class="body">(\w+)', part) == ["new"]


FIND_TASKS = (
    SendTest,
    ById,
    ByKey,
    ByPlace,
    Next,
    ByTime,
    AsJson,
    AsHex,
    SaveBody,
    Consumers,
    Trace,
    Resend,
    Follow,
)
