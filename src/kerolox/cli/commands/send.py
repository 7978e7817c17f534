"""``kerolox send``: one message, or a file by lines."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli.cluster_options import name_server_option, on_cluster, security
from kerolox.cli.output import complain, print_line
from kerolox.errors import KeroloxError, TopicRouteNotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kerolox.admin import Access
    from kerolox.client import ProducerSettings
    from kerolox.message import Message

GROUP = "KEROLOX_CLI"

IN_FLIGHT_MAX = 256
"""Lines that may be on their way at the same time."""


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The body, instead of an argument.",
)
@click.option("--lines", is_flag=True, help="Each line of the file or of stdin is a message.")
@click.option("--tags", default="", help="Tag of the messages.")
@click.option("--keys", default="", help="Keys of the messages, separated by blanks.")
@click.option("--property", "properties", multiple=True, metavar="K=V", help="May be repeated.")
@name_server_option
def send(
    topic: str,
    body: str | None,
    file: Path | None,
    lines: bool,
    tags: str,
    keys: str,
    properties: tuple[str, ...],
    name_server: str,
) -> None:
    """Send BODY, or stdin when there is none, to TOPIC.

    A broker makes a topic that it does not know (autoCreateTopicEnable); then stderr says so.
    """
    if body is not None and (file is not None or lines):
        raise click.UsageError("BODY can't be given together with --file or --lines.")
    if body is None and file is None and sys.stdin.isatty():
        raise click.UsageError("Give a BODY or --file, or pipe something in.")
    pairs = dict(_property(text) for text in properties)

    from kerolox.message import Message

    def message(data: bytes) -> Message:
        return Message(topic, data, tags=tags, keys=keys, properties=pairs)

    if lines:
        following = (message(line) for line in _lines(file) if line)
        sending = functools.partial(_send_lines, name_server, following)
    else:
        sending = functools.partial(_send_one, name_server, message(_data(body, file)))
    on_cluster(name_server, lambda access: _telling(access, topic, sending))


def _data(body: str | None, file: Path | None) -> bytes:
    if body is not None:
        return os.fsencode(body)
    return file.read_bytes() if file is not None else sys.stdin.buffer.read()


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not K=V", param_hint="--property")
    return name, value


def _lines(file: Path | None) -> Iterator[bytes]:
    if file is None:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    with file.open("rb") as opened:
        for line in opened:
            yield line.rstrip(b"\r\n")


async def _telling(access: Access, topic: str, sending: Callable[[], Awaitable[None]]) -> None:
    """Send, and say so when that made the topic: a typing error makes one, too."""
    was_there = await _queues_of(access, topic) != {}
    failed: KeroloxError | None = None
    try:
        await sending()
    except KeroloxError as error:
        # The first of many messages may have made it.
        failed = error
    made = {} if was_there else await _queues_of(access, topic) or {}
    for broker_name, queues in made.items():
        complain(f"kerolox: created topic {topic} ({queues} queues on {broker_name})")
    if failed is not None:
        raise failed


async def _queues_of(access: Access, topic: str) -> dict[str, int] | None:
    """Write queues of a topic by broker; empty: no name server knows it, None: none answers, which
    the send tells better."""
    from kerolox.admin import describe_route

    try:
        route = await describe_route(access, topic)
    except TopicRouteNotFoundError:
        return {}
    except KeroloxError:
        return None
    return {each.broker_name: each.write_queues for each in route.queues}


def _settings() -> ProducerSettings:
    from kerolox.client import ProducerSettings

    credentials, tls = security()
    return ProducerSettings(credentials=credentials, tls=tls)


async def _send_one(name_server: str, message: Message) -> None:
    from kerolox.client import Producer

    async with Producer(GROUP, name_server, settings=_settings()) as producer:
        result = await producer.send(message)
    print_line(
        f"{result.status.name} msgId={result.message_id} "
        f"queue={result.queue.broker_name}/{result.queue.queue_id} offset={result.queue_offset}"
    )


async def _send_lines(name_server: str, messages: Iterator[Message]) -> None:
    from kerolox.client import Producer

    started, sent = time.monotonic(), 0
    open_sends: set[asyncio.Task[object]] = set()
    try:
        async with Producer(GROUP, name_server, settings=_settings()) as producer:
            while True:
                # Reading a pipe may block: in a thread, so that answers are still taken.
                batch = await asyncio.to_thread(list, itertools.islice(messages, IN_FLIGHT_MAX))
                if not batch:
                    break
                open_sends = {asyncio.ensure_future(producer.send(each)) for each in batch}
                for each in asyncio.as_completed(open_sends):
                    await each
                    sent += 1
    except KeroloxError as error:
        for each_open in open_sends:
            each_open.cancel()
        await asyncio.gather(*open_sends, return_exceptions=True)
        raise KeroloxError(f"after {sent} messages: {error}") from error
    seconds = max(time.monotonic() - started, 1e-9)
    print_line(f"sent {sent} messages in {seconds:.2f} s ({sent / seconds:,.0f} a second)")
