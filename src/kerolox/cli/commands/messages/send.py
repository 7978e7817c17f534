"""``kerolox send``: one message, several of a template, files, or lines as they come."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.commands.messages.later import Later, later_of, later_options
from kerolox.cli.commands.messages.outgoing import (
    GROUP,
    Draft,
    draft_options,
    lines_of,
    producer_settings,
    whole_bodies,
)
from kerolox.cli.connecting import with_clients
from kerolox.cli.grouping import Command
from kerolox.cli.output import JSON, TABLE, complain, output_option, print_json, print_line
from kerolox.clock import now_ms
from kerolox.errors import KeroloxError, TopicRouteNotFoundError
from kerolox.text import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kerolox.client import Producer, SendResult
    from kerolox.message import Message, MessageQueue

IN_FLIGHT_MAX = 256
"""Messages that may be on their way at the same time."""


@click.command(cls=Command)
@click.argument("topic", shell_complete=completing.topics)
@click.argument("body", required=False, type=click.UNPROCESSED)
@click.option(
    "--file",
    "-f",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="The body, instead of an argument. May be repeated: a message for each.",
)
@click.option("--lines", is_flag=True, help="Each line of the files or of stdin is a message.")
@draft_options
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send so many; with --lines at most so many.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N a second."
)
@click.option("--queue", metavar="BROKER/ID", help="To this queue; default: to all in turn.")
@later_options
@output_option
@name_server_option
def send(
    topic: str,
    body: str | None,
    files: tuple[Path, ...],
    lines: bool,
    tags: str,
    keys: str,
    properties: tuple[tuple[str, str], ...],
    template: bool,
    count: int | None,
    rate: float | None,
    queue: str | None,
    delay: float | None,
    at: int | None,
    output: str,
    name_server: str,
) -> None:
    """Send BODY, or stdin when there is none, to TOPIC.

    A broker makes a topic that it does not know (autoCreateTopicEnable); then stderr says so.

    \b
    kerolox send Orders hello --keys o-1 -H customer=7
    kerolox send Orders '{"id": {{n}}, "at": "{{time}}"}' --template --count 1000 --rate 50
    tail -f app.log | kerolox send Logs --lines -o ndjson
    """
    if body is not None and (files or lines):
        raise click.UsageError("BODY can't be given together with --file or --lines.")
    draft = Draft(topic, tags, keys, properties, template)
    bodies = [] if lines else whole_bodies(body, files)
    is_single = not lines and len(bodies) * (count or 1) == 1
    source = _from_lines(draft, files, count) if lines else _from_bodies(draft, bodies, count or 1)
    sending = _Sending(source, rate, output, is_single=is_single)
    place = _queue(topic, queue) if queue else None
    sending.later, settings = later_of(delay, at, producer_settings(), name_server)

    async def work() -> None:
        from kerolox.client import Producer

        async with Producer(GROUP, name_server, settings=settings) as producer:
            await _telling(
                producer,
                topic,
                lambda: sending.run(
                    lambda message, **ways: producer.send(message, queue=place, **ways)
                ),
            )

    with_clients(name_server, work, many=not is_single, doing=sending.doing)
    sending.show_end()


def _queue(topic: str, text: str) -> MessageQueue:
    from kerolox.cli.positions import queue_of

    return queue_of(topic, text)


async def _from_bodies(draft: Draft, bodies: list[bytes], count: int) -> AsyncIterator[Message]:
    for number in range(count * len(bodies)):
        yield draft.message(bodies[number % len(bodies)], number + 1)


async def _from_lines(
    draft: Draft, files: tuple[Path, ...], count: int | None
) -> AsyncIterator[Message]:
    number = 0
    async for line in lines_of(files):
        number += 1
        yield draft.message(line, number)
        if number == count:
            return


class _Sending:
    """Sends messages, many at a time, and shows what became of them."""

    def __init__(
        self, messages: AsyncIterator[Message], rate: float | None, output: str, *, is_single: bool
    ) -> None:
        import asyncio

        self._messages = messages
        self._rate = rate
        self._output = output
        self._is_single = is_single
        self._rows: list[dict[str, object]] = []
        self._sent = 0
        self._seconds = 0.0
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.later: Later | None = None
        """When each message comes."""

    async def run(self, send: Callable[..., Awaitable[SendResult]]) -> None:
        """Send all of them. KeroloxError: the first that failed; of several messages it says how
        many were sent.
        """
        import asyncio

        begin = time.monotonic()
        number = 0
        try:
            async with asyncio.TaskGroup() as open_sends:
                async for message in self._messages:
                    if self._rate is not None:
                        await asyncio.sleep(begin + number / self._rate - time.monotonic())
                    number += 1
                    await self._room.acquire()
                    open_sends.create_task(self._send(send, message))
        except ExceptionGroup as group:
            failed, others = group.split(KeroloxError)
            if failed is None or others is not None:
                raise group.exceptions[0] from None
            error = failed.exceptions[0]
            if self._is_single:
                raise error from None
            raise KeroloxError(f"{counted(self._sent, 'message')} sent, then: {error}") from error
        finally:
            self._seconds = max(time.monotonic() - begin, 1e-9)

    async def _send(self, send: Callable[..., Awaitable[SendResult]], message: Message) -> None:
        later = self.later
        begin = time.monotonic()
        try:
            if later is None:
                result = await send(message)
            else:
                result = await send(later.message(message), **later.ways())
        finally:
            self._room.release()
        self._sent += 1
        self._show(result, (time.monotonic() - begin) * 1000)

    def _show(self, result: SendResult, milliseconds: float) -> None:
        queue = f"{result.queue.broker_name}/{result.queue.queue_id}"
        later, sent_ms = self.later, now_ms()
        # One that comes later waits in a queue of RocketMQ's own, whose offset was reported.
        offset = result.queue_offset if later is None else None
        if self._output == TABLE:
            if self._is_single:
                when = f"offset={offset}" if later is None else later.text(sent_ms)
                handle = f" handle={result.recall_handle}" if result.recall_handle else ""
                print_line(
                    f"{result.status.name} msgId={result.message_id} queue={queue} {when}{handle}"
                )
            return
        row: dict[str, object] = {
            "status": result.status.name,
            "msgId": result.message_id,
            "offsetMsgId": result.offset_message_id,
            "topic": result.queue.topic,
            "brokerName": result.queue.broker_name,
            "queueId": result.queue.queue_id,
            "queueOffset": offset,
            "ms": round(milliseconds, 3),
        }
        if later is not None:
            row |= later.row(sent_ms)
            if not later.level:
                row["recallHandle"] = result.recall_handle
        from kerolox.cli.rows import columns_of, show_row

        if self._output == JSON and not self._is_single:
            self._rows.append(row)
        else:
            show_row(row, columns_of(row), self._output)

    def doing(self) -> str:
        """What a terminal is told meanwhile."""
        return "sending" if self._is_single else f"sent {counted(self._sent, 'message')}"

    def show_end(self) -> None:
        """What is said when all are sent."""
        if self._is_single:
            return
        if self._output == TABLE:
            print_line(
                f"sent {counted(self._sent, 'message')} in {self._seconds:.2f} s "
                f"({self._sent / self._seconds:,.0f} a second)"
            )
        elif self._output == JSON:
            print_json(self._rows)


async def _telling(producer: Producer, topic: str, sending: Callable[[], Awaitable[None]]) -> None:
    """Send, and say so when that made the topic: a typing error makes one, too."""
    was_there = await _queues_of(producer, topic) is not None
    failed: KeroloxError | None = None
    try:
        await sending()
    except KeroloxError as error:
        # The first of many messages may have made it.
        failed = error
    made = {} if was_there else await _queues_of(producer, topic) or {}
    for broker_name, queues in made.items():
        complain(f"kerolox: created topic {topic} ({counted(queues, 'queue')} on {broker_name})")
    if failed is not None:
        raise failed


async def _queues_of(producer: Producer, topic: str) -> dict[str, int] | None:
    """Queues of a topic that may be written, by broker; None: no name server knows it. Empty: none
    answers, which the send tells better."""
    try:
        queues = await producer.queues(topic)
    except TopicRouteNotFoundError:
        return None
    except KeroloxError:
        return {}
    return Counter(each.broker_name for each in queues)
