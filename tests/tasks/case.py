"""One case: a task done by one tool on one cluster, with topics and groups of its own."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Any, Self

import httpx

from kerolox.admin import Admin
from kerolox.client import PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere, Message
from tests.support.eventually import until
from tests.support.servers.command import kerolox
from tests.tasks.forms import Form, forms_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client import Outcome, SendResult
    from kerolox.message import MessageExt

__all__ = ["Case", "Place"]

REQUEST_SECONDS_MAX = 60.0
BROKER_NAME = "broker-a"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SECTION = re.compile(r'<a href="[^"]*" aria-current="page"><svg.*?</svg>([^<]+)</a>')
NOTICE = re.compile(r'<p class="notice" role="status">(.*?)</p>')


@dataclass(frozen=True)
class Place:
    """A cluster that runs, and a console for it with somebody logged in."""

    kind: str
    name_server: str
    broker: str
    console: str
    """Its base URL."""
    cookies: dict[str, str]


@dataclass
class Case:
    """What a task is done with; an async context manager."""

    place: Place
    topic: str = field(default_factory=lambda: f"T{uuid.uuid4().hex[:12]}")
    group: str = field(default_factory=lambda: f"g-{uuid.uuid4().hex[:12]}")
    sent: list[SendResult] = field(default_factory=list)
    got: list[MessageExt] = field(default_factory=list)
    """What the consumers of the case were given."""
    member: str = ""
    """A client id."""
    since: str = ""
    """A time, in milliseconds since the epoch."""
    commands: list[str] = field(default_factory=list)
    """Each command that was run, without ``kerolox``."""
    sections: set[str] = field(default_factory=set)
    """The parts of the console in which pages were examined, by the names in its navigation."""

    async def __aenter__(self) -> Self:
        self.stack = AsyncExitStack()
        self.admin = await self.stack.enter_async_context(
            Admin(self.place.name_server, timeout_seconds=REQUEST_SECONDS_MAX)
        )
        self.http = await self.stack.enter_async_context(
            httpx.AsyncClient(
                base_url=self.place.console,
                cookies=self.place.cookies,
                timeout=REQUEST_SECONDS_MAX,
                headers={"Sec-Fetch-Site": "same-origin", "Origin": self.place.console},
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    # -- the command line -------------------------------------------------------------------

    async def run(self, *arguments: object, code: int = 0) -> str:
        """Run a command; its stdout."""
        self.commands.append(" ".join(map(str, arguments)))
        done = await asyncio.to_thread(kerolox, *arguments, "-n", self.place.name_server)
        assert done.returncode == code, done.stderr
        return done.stdout

    async def json(self, *arguments: object) -> Any:
        return json.loads(await self.run(*arguments, "-o", "json"))

    # -- the console ------------------------------------------------------------------------

    async def look(self, path: str, **parameters: object) -> str:
        """A page as it is when somebody examines it."""
        asked = {name: str(value) for name, value in parameters.items()}
        answer = await self.http.get(path, params=asked or None)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        self.sections.update(map(unescape, SECTION.findall(answer.text)))
        return answer.text

    async def form(self, action: str, path: str, **parameters: object) -> Form:
        """The form of a page that goes to ``action``."""
        page = await self.look(path, **parameters)
        found = [each for each in forms_of(page) if each.action == action]
        assert found, f"{path} has no form for {action}"
        return found[0]

    async def send_form(self, form: Form, **fields: object) -> str:
        """Fill a form in and send it; what the next page reports it."""
        answer = await self.http.post(
            form.action,
            content=form.filled({name: value for name, value in fields.items()}),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert answer.status_code == 303, (answer.status_code, answer.text)
        page = await self.http.get(answer.headers["location"])
        assert page.status_code == 200, (page.status_code, page.text)
        return unescape(" ".join(NOTICE.findall(page.text)))

    # -- the cluster ------------------------------------------------------------------------

    async def make_topic(self, name: str = "", *, queues: int = 2) -> str:
        """A topic that name servers know."""
        name = name or self.topic
        await self.admin.create_topic(name, queues=queues)

        async def is_known() -> bool:
            return name in await self.admin.list_topics()

        await until(is_known, what="the route")
        return name

    async def send(self, *bodies: str, queue: int = 0, **fields: Any) -> None:
        """Messages in one queue of the topic."""
        for body in bodies:
            message = Message(self.topic, body.encode(), **fields)
            result = await self.admin.send_message(message, queue_id=queue)
            self.sent.append(result)

            # A Java broker shows a message a little after it has answered. The offset of a delayed
            # one is that of where it waits.
            async def is_shown(result: SendResult = result) -> bool:
                return await self.admin.max_offset(result.queue) > result.queue_offset

            if "delay_level" not in fields:
                await until(is_shown, what="the message in its queue")

    async def send_apart(self, *bodies: str, **fields: Any) -> None:
        """Messages of times that differ; a broker finds by time what is nearest to it."""
        for body in bodies:
            await self.send(body, **fields)
            sent_ms = time.time() * 1000
            await until(lambda then=sent_ms: time.time() * 1000 > then + 5, what="5 ms")

    async def stored_at(self, offset: int) -> str:
        """When a message of the first queue was stored, in ms since the epoch."""
        return str((await self.admin.message_at(self.sent[0].queue, offset)).store_timestamp)

    async def consume(
        self,
        group: str = "",
        *,
        listen: Callable[[MessageExt], Awaitable[Outcome | None]] | None = None,
        tags: str = "*",
        **settings: Any,
    ) -> PushConsumer:
        """A member of a group, which runs until the case ends."""

        async def take(message: MessageExt) -> Outcome | None:
            self.got.append(message)
            return None if listen is None else await listen(message)

        given: dict[str, Any] = {"consume_from_where": FIRST, **settings}
        consumer = PushConsumer(
            group or self.group, self.place.name_server, settings=PushConsumerSettings(**given)
        )
        consumer.subscribe_each(self.topic, tags, take)
        return await self.stack.enter_async_context(consumer)

    async def first_of(self, topic: str = "") -> MessageExt:
        """The only message of a topic, which a tool just sent."""
        found: list[MessageExt] = []

        async def is_shown() -> bool:
            found[:] = [each async for each in self.admin.read_messages(topic or self.topic)]
            return bool(found)

        await until(is_shown, what="the message")
        [message] = found
        return message

    async def bodies(self, topic: str = "") -> list[str]:
        """Of all messages of a topic, sorted."""
        found = self.admin.read_messages(topic or self.topic)
        return sorted([each.body.decode() async for each in found])

    async def offsets(self, group: str = "") -> list[int]:
        """How far a group is in the queues of the topic; -1: it has no offset."""
        queues = (await self.admin.describe_topic(self.topic)).queues
        return [await self.admin.get_offset(group or self.group, each.queue) for each in queues]
