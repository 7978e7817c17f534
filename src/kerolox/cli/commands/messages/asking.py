"""``kerolox request`` and ``reply``: ask whoever consumes a topic, and answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option, seconds_option
from kerolox.cli.commands.messages.outgoing import (
    GROUP,
    Draft,
    draft_options,
    producer_settings,
    whole_bodies,
)
from kerolox.cli.connecting import on_cluster, security
from kerolox.cli.grouping import Command
from kerolox.cli.messages import body_option, show_message
from kerolox.cli.output import RAW, complain, output_option, print_line
from kerolox.cli.rows import is_text

if TYPE_CHECKING:
    from kerolox.admin import Admin
    from kerolox.client import Producer
    from kerolox.message import MessageExt

COMMAND_SECONDS_MAX = 60.0
"""How long ``--command`` may take for one request."""

_timeout_option = seconds_option(
    "--timeout", "For the request and its reply together.", least=0.001, default=5.0
)


@click.command(cls=Command)
@click.argument("topic", shell_complete=completing.topics)
@click.argument("text", metavar="[BODY]", required=False, type=click.UNPROCESSED)
@click.option(
    "--file",
    "-f",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="The body, instead of an argument. May be repeated: a request for each.",
)
@draft_options
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send so many requests.")
@_timeout_option
@body_option
@output_option
@name_server_option
def request(
    topic: str,
    text: str | None,
    files: tuple[Path, ...],
    tags: str,
    keys: str,
    properties: tuple[tuple[str, str], ...],
    template: bool,
    count: int,
    timeout_seconds: float,
    body: str,
    output: str,
    name_server: str,
) -> None:
    """Send BODY, or stdin when there is none, to TOPIC, and print the reply.

    Consumers reply by their clients (RocketMQ 4.7 and later), or kerolox reply does.

    \b
    kerolox request Prices '{"article": 7}' --timeout 2 -o raw
    """
    if text is not None and files:
        raise click.UsageError("BODY can't be given together with --file.")
    draft = Draft(topic, tags, keys, properties, template)
    bodies = whole_bodies(text, files)

    async def work(_: Admin) -> None:
        from kerolox.client import Producer

        async with Producer(GROUP, name_server, settings=producer_settings()) as producer:
            for number in range(count * len(bodies)):
                message = draft.message(bodies[number % len(bodies)], number + 1)
                reply = await producer.request(message, timeout_ms=int(timeout_seconds * 1000))
                _show_reply(reply, body, output)

    on_cluster(name_server, work)


def _show_reply(reply: MessageExt, form: str, output: str) -> None:
    """A reply lies in no queue, so people get its body alone."""
    if is_text(output) or output == RAW:
        from kerolox.cli.messages import body_text

        print_line(body_text(reply.body, form), output)
    else:
        show_message(reply, form, output)
    sys.stdout.flush()


@click.command(cls=Command)
@click.argument("topic", shell_complete=completing.topics)
@click.argument("text", metavar="[BODY]", required=False, type=click.UNPROCESSED)
@click.option(
    "--group",
    required=True,
    metavar="GROUP",
    shell_complete=completing.groups,
    help="The consumer group: its members share the requests.",
)
@click.option(
    "--command",
    metavar="COMMAND",
    type=click.UNPROCESSED,
    help="A shell command; the request is its input, its output the reply.",
)
@click.option(
    "--filter",
    "expression",
    default="*",
    metavar="EXPR",
    help="Only requests with these tags: 'a || b'.",
)
@draft_options
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N replies.")
@body_option
@output_option
@click.option("--ready-line", is_flag=True, help="Say 'following TOPIC' when it does.")
@name_server_option
def reply(
    topic: str,
    text: str | None,
    group: str,
    command: str | None,
    expression: str,
    tags: str,
    keys: str,
    properties: tuple[tuple[str, str], ...],
    template: bool,
    count: int | None,
    body: str,
    output: str,
    ready_line: bool,
    name_server: str,
) -> None:
    """Answer requests that come to TOPIC: with BODY, or with what COMMAND prints.

    \b
    kerolox reply Prices '{"price": {{number:1:99}}}' --template --group prices
    kerolox reply Words --command 'wc -w' --group words
    """
    if (text is None) == (command is None):
        raise click.UsageError("Give either BODY or --command.")
    draft = Draft(topic, tags, keys, properties, template)
    answering = _Answering(draft, text, command, count, body, output)

    async def work(_: Admin) -> None:
        from kerolox.client import Producer, PushConsumer, PushConsumerSettings

        credentials, tls = security()
        settings = PushConsumerSettings(credentials=credentials, tls=tls)
        async with Producer(GROUP, name_server, settings=producer_settings()) as producer:
            answering.producer = producer
            consumer = PushConsumer(group, name_server, settings=settings)
            consumer.subscribe_each(topic, expression, answering.answer)
            async with consumer:
                if ready_line:
                    print_line(f"following {topic}")
                    sys.stdout.flush()
                await answering.done.wait()

    on_cluster(name_server, work)


class _Answering:
    def __init__(
        self,
        draft: Draft,
        body: str | None,
        command: str | None,
        count: int | None,
        form: str,
        output: str,
    ) -> None:
        import asyncio

        self.producer: Producer | None = None
        self.done = asyncio.Event()
        self._draft = draft
        self._body = body
        self._command = command
        self._left = count
        self._form = form
        self._output = output
        self._number = 0

    async def answer(self, asked: MessageExt) -> None:
        """Reply to a request, with an error where there is no answer. One that gets no reply is
        said and done with: its sender has given up long before it would come again."""
        from kerolox.client import create_reply
        from kerolox.errors import KeroloxError

        assert self.producer is not None
        if self.done.is_set():
            return
        self._number += 1
        try:
            body, refusal = await self._answer_to(asked)
            made = self._draft.message(body, self._number)
            answer = create_reply(asked, made.body, error=refusal)
            answer.tags, answer.keys = made.tags, made.keys
            answer.properties.update(made.properties)
            await self.producer.send(answer)
        except KeroloxError as error:
            complain(f"kerolox: {asked.message_id} got no reply: {error}")
            return
        if refusal:
            complain(f"kerolox: {asked.message_id} got an error as its reply: {refusal}")
        show_message(asked, self._form, self._output)
        sys.stdout.flush()
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.done.set()

    async def _answer_to(self, asked: MessageExt) -> tuple[bytes, str]:
        """The body of the reply, or why there is none."""
        from kerolox.errors import ClientError

        try:
            return await self._body_for(asked), ""
        except ClientError as error:
            return b"", str(error)

    async def _body_for(self, asked: MessageExt) -> bytes:
        if self._command is None:
            return (self._body or "").encode()
        import asyncio

        from kerolox.errors import ClientError

        process = await asyncio.create_subprocess_shell(
            self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(COMMAND_SECONDS_MAX):
                printed, _ = await process.communicate(asked.body)
        except TimeoutError:
            raise ClientError(f"the command took more than {COMMAND_SECONDS_MAX:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise ClientError(f"the command ended with exit code {process.returncode}")
        return printed
