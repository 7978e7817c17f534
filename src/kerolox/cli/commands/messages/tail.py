"""``kerolox tail``: print the messages of a topic as they come.

It pulls each queue by itself, as RocketMQ's own tools do (group TOOLS_CONSUMER, subscription in
the request): no group is created, no offset is stored, no other consumer notices.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from kerolox.admin.positions import FIRST, LAST, Position
from kerolox.cli import completing
from kerolox.cli.cluster_options import name_server_option
from kerolox.cli.connecting import on_cluster
from kerolox.cli.grouping import Command
from kerolox.cli.messages import body_option, grep_option, searching, show_message, tags_option
from kerolox.cli.output import complain, output_option, print_line
from kerolox.cli.positions import PositionType, from_option
from kerolox.errors import (
    BrokerError,
    RemotingError,
    RequestTimeoutError,
    TopicRouteNotFoundError,
)
from kerolox.protocol.names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.admin import Admin
    from kerolox.client.core.routes import TopicRoute
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt, MessageQueue

PULL_BATCH = 32
SUSPEND_MS = 15_000
PULL_TIMEOUT_SECONDS = 30.0
ROUTE_INTERVAL_SECONDS = 10.0
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TailOptions:
    """What is printed, and how."""

    subscription: Subscription
    start: Position
    stop: Position | None
    """None: never."""
    count: int | None
    has: Callable[[MessageExt], bool]
    form: str
    output: str


@click.command(cls=Command)
@click.argument("topic", shell_complete=completing.topics)
@from_option(LAST)
@click.option("--from-start", is_flag=True, help="The same as --from beginning.")
@click.option(
    "--until",
    "stop",
    type=PositionType(),
    metavar="POSITION",
    help="Stop there; end: at what is the end now. Without it new messages are waited for.",
)
@tags_option
@grep_option
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@body_option
@output_option
@click.option("--ready-line", is_flag=True, help="Say 'following TOPIC' when it does.")
@name_server_option
def tail(
    topic: str,
    start: Position,
    from_start: bool,
    stop: Position | None,
    tags: str,
    grep: str | None,
    count: int | None,
    body: str,
    output: str,
    ready_line: bool,
    name_server: str,
) -> None:
    """Follow TOPIC and print its messages until interrupted.

    \b
    kerolox tail Orders --from -10 --until end
    kerolox tail Orders --tags 'new || paid' -o '{keys} {body:raw}'
    """
    from kerolox.filter.tags import subscription_of

    try:
        subscription = subscription_of(topic, tags)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--tags") from None
    options = _TailOptions(
        subscription=subscription,
        start=FIRST if from_start else start,
        stop=stop,
        count=count,
        has=searching(grep),
        form=body,
        output=output,
    )
    on_cluster(name_server, lambda admin: _Tail(admin, options).run(ready_line), many=True)


class _Tail:
    def __init__(self, admin: Admin, options: _TailOptions) -> None:
        import asyncio

        self._admin = admin
        self._options = options
        self._subscription = options.subscription
        self._left = options.count
        self._done = asyncio.Event()
        self._addresses: dict[str, str] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    async def run(self, ready_line: bool) -> None:
        import asyncio

        route = await self._route()
        # A queue that appears later is new: its first message is not to be missed.
        await self._follow(route, self._options.start)
        if ready_line:
            print_line(f"following {self._subscription.topic}")
            sys.stdout.flush()
        done = asyncio.ensure_future(self._done.wait())
        try:
            while not self._done.is_set():
                watched = {done, *(each for each in self._tasks.values() if not each.done())}
                if self._options.stop is not None and len(watched) == 1:
                    break
                finished, _ = await asyncio.wait(
                    watched, timeout=ROUTE_INTERVAL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in finished - {done}:
                    task.result()
                if not finished and self._options.stop is None:
                    await self._poll_again()
        finally:
            tasks = [done, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _route(self) -> TopicRoute:
        topic = self._subscription.topic
        route = await self._admin.access.fetch_route(topic)
        if route is None:
            raise TopicRouteNotFoundError(
                f"there is no topic {topic!r}; create it (kerolox topic create {topic})"
            )
        return route

    async def _poll_again(self) -> None:
        try:
            await self._follow(await self._route(), FIRST)
        except (RemotingError, TopicRouteNotFoundError) as error:
            complain(f"kerolox: {error}")

    async def _follow(self, route: TopicRoute, start: Position) -> None:
        import asyncio

        from kerolox.client.core.routes import subscribe_queues

        for broker in route.brokers:
            address = broker.any_address()
            if address is not None:
                self._addresses[broker.broker_name] = address
        queues = [
            queue
            for queue in subscribe_queues(self._subscription.topic, route)
            if queue not in self._tasks and queue.broker_name in self._addresses
        ]
        bounds = await asyncio.gather(*(self._bounds(each, start) for each in queues))
        for queue, (offset, end) in zip(queues, bounds, strict=True):
            self._tasks[queue] = asyncio.ensure_future(self._pull(queue, offset, end))

    async def _bounds(self, queue: MessageQueue, start: Position) -> tuple[int, float]:
        """Where to begin in a queue, and where to end."""
        from kerolox.admin.messages.reading import bounds_of

        address, stop = self._addresses[queue.broker_name], self._options.stop
        begin, end = await bounds_of(self._admin, address, queue, start, stop)
        return begin, math.inf if stop is None else end

    async def _pull(self, queue: MessageQueue, offset: int, end: float) -> None:
        import asyncio

        from kerolox.client.core.consuming.pull import pull_request, pull_result

        lost = False
        while offset < end:
            address = self._addresses[queue.broker_name]
            command = pull_request(
                TOOLS_GROUP,
                queue,
                offset,
                self._subscription,
                max_messages=PULL_BATCH,
                suspend_timeout_ms=SUSPEND_MS,
                with_subscription=True,
            )
            try:
                response = await self._admin.access.remoting.invoke(
                    address, command, timeout_seconds=PULL_TIMEOUT_SECONDS
                )
                result = pull_result(response, queue, self._subscription, address)
            except RequestTimeoutError:
                continue
            except (RemotingError, BrokerError) as error:
                if not lost:
                    complain(f"kerolox: {error}; trying again")
                lost = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            lost = False
            offset = result.next_offset
            for message in result.messages:
                # Another queue may have given the last one meanwhile.
                if self._done.is_set():
                    return
                if message.queue_offset < end and self._options.has(message):
                    self._print(message)

    def _print(self, message: MessageExt) -> None:
        show_message(message, self._options.form, self._options.output)
        sys.stdout.flush()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._done.set()
