"""``kerolox tail``: print the messages of a topic as they come.

It pulls each queue by itself, as RocketMQ's own tools do (group TOOLS_CONSUMER, subscription in
the request): no group is created, no offset is stored, no other consumer notices.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import TYPE_CHECKING

import click

from kerolox.addresses import join_address
from kerolox.cli.cluster_options import name_server_option, on_cluster
from kerolox.cli.output import complain, output_option, print_json, print_line
from kerolox.errors import (
    BrokerError,
    RemotingError,
    RequestTimeoutError,
    TopicRouteNotFoundError,
)
from kerolox.protocol.names import TOOLS_GROUP
from kerolox.text import printable, time_text

if TYPE_CHECKING:
    from kerolox.admin import Access
    from kerolox.client.core.routes import TopicRoute
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt, MessageQueue

PULL_BATCH = 32
SUSPEND_MS = 15_000
PULL_TIMEOUT_SECONDS = 30.0
ROUTE_INTERVAL_SECONDS = 10.0
RETRY_SECONDS = 1.0
BODY_CHARACTERS_MAX = 4096
"""A longer body is cut where it is shown as text."""


@click.command()
@click.argument("topic")
@click.option("--from-start", is_flag=True, help="Begin with the oldest message kept.")
@click.option("--tags", default="*", metavar="EXPR", help="Only these: 'a || b'.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@output_option
@click.option("--ready-line", is_flag=True, help="Say 'following TOPIC' when it does.")
@name_server_option
def tail(
    topic: str,
    from_start: bool,
    tags: str,
    count: int | None,
    output: str,
    ready_line: bool,
    name_server: str,
) -> None:
    """Follow TOPIC and print its messages until interrupted."""
    from kerolox.filter.tags import subscription_of

    try:
        subscription = subscription_of(topic, tags)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--tags") from None
    on_cluster(
        name_server,
        lambda access: _Tail(access, subscription, from_start, count, output).run(ready_line),
    )


class _Tail:
    def __init__(
        self,
        access: Access,
        subscription: Subscription,
        from_start: bool,
        count: int | None,
        output: str,
    ) -> None:
        self._access = access
        self._subscription = subscription
        self._from_start = from_start
        self._left = count
        self._output = output
        self._done = asyncio.Event()
        self._addresses: dict[str, str] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    async def run(self, ready_line: bool) -> None:
        route = await self._route()
        # A queue that appears later is new: its first message is not to be missed.
        await self._follow(route, from_start=self._from_start)
        if ready_line:
            print_line(f"following {self._subscription.topic}")
            sys.stdout.flush()
        done = asyncio.ensure_future(self._done.wait())
        try:
            while not self._done.is_set():
                watched = {done, *self._tasks.values()}
                finished, _ = await asyncio.wait(
                    watched, timeout=ROUTE_INTERVAL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in finished - {done}:
                    task.result()
                if not finished:
                    await self._look_again()
        finally:
            tasks = [done, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _route(self) -> TopicRoute:
        topic = self._subscription.topic
        route = await self._access.fetch_route(topic)
        if route is None:
            raise TopicRouteNotFoundError(
                f"there is no topic {topic!r}; create it (kerolox topic create {topic})"
            )
        return route

    async def _look_again(self) -> None:
        try:
            await self._follow(await self._route(), from_start=True)
        except (RemotingError, TopicRouteNotFoundError) as error:
            complain(f"kerolox: {error}")

    async def _follow(self, route: TopicRoute, *, from_start: bool) -> None:
        from kerolox.admin import max_offset, min_offset
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
        bound = min_offset if from_start else max_offset
        addresses = self._addresses
        offsets = await asyncio.gather(
            *(bound(self._access, each, broker=addresses[each.broker_name]) for each in queues)
        )
        for queue, offset in zip(queues, offsets, strict=True):
            self._tasks[queue] = asyncio.ensure_future(self._pull_always(queue, offset))

    async def _pull_always(self, queue: MessageQueue, offset: int) -> None:
        from kerolox.client.core.consuming.pull import pull_request, pull_result

        lost = False
        while True:
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
                response = await self._access.remoting.invoke(
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
                self._print(message)

    def _print(self, message: MessageExt) -> None:
        if self._output == "json":
            print_json(_as_json(message))
        else:
            print_line(_text_line(message, is_raw=self._output == "raw"), self._output)
        sys.stdout.flush()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._done.set()


def _text_line(message: MessageExt, *, is_raw: bool) -> str:
    parts = [
        time_text(message.store_timestamp),
        f"{message.broker_name}/{message.queue_id}@{message.queue_offset}",
    ]
    if message.tags:
        parts.append(f"tags={message.tags if is_raw else printable(message.tags)}")
    if message.keys:
        parts.append(f"keys={message.keys if is_raw else printable(message.keys)}")
    if message.body_error:
        parts.append(f"[{message.body_error}]")
    else:
        body = message.body.decode("utf-8", "backslashreplace")
        parts.append(body if is_raw else printable(body, characters_max=BODY_CHARACTERS_MAX))
    return "  ".join(parts)


def _as_json(message: MessageExt) -> dict[str, object]:
    fields: dict[str, object] = {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": join_address(*message.born_host),
        "storeHost": join_address(*message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
    }
    if message.body_error:
        fields["bodyError"] = message.body_error
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["bodyBase64"] = base64.b64encode(message.body).decode()
    return fields
