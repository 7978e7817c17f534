"""A console process and what its pages show, for tests with a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerolox.admin import Admin
from kerolox.client import (
    Producer,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
)
from kerolox.errors import TopicExistsError
from kerolox.message import ConsumeFromWhere, Message
from tests.console.site import PASSWORD, users_file
from tests.support.eventually import until
from tests.support.servers.command import Server

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

__all__ = ["console_process", "fill", "log_in"]


@contextlib.contextmanager
def console_process(folder: Path, name_server: str, *more: object, port: int = 0) -> Iterator[str]:
    """``kerolox console`` with actions, a user for each role, and more options; its address."""
    arguments = ["--users", users_file(folder), "--history", folder / "history", "--port", port]
    arguments += ["--actions", "--sample-seconds", "1", *more]
    # None where contexts say which clusters.
    arguments += ["-n", name_server] if name_server else []
    with Server(folder, "console", *arguments) as server:
        yield f"http://{server.addresses['console']}"


async def undecided(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


async def fill(name_server: str) -> None:
    """What pages show: messages, a group that gave some of them up, one that waits, a half one."""
    got = 0

    async def on_messages(messages: list[object]) -> None:
        nonlocal got
        got += len(messages)
        raise ValueError("given up")

    settings = PushConsumerSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=0
    )
    async with Admin(name_server) as admin:
        with contextlib.suppress(TopicExistsError):
            await admin.create_topic("Shown", queues=2)
        for number in range(4):
            # Each of both queues has a first one with another one behind it.
            message = Message("Shown", b'{"a": %d}' % number, tags="t", keys="k")
            await admin.send_message(message, queue_id=number % 2)
        await admin.send_message(Message("Shown", b"later", delay_level=18))
        async with Producer("later", name_server) as later:
            await later.send(Message("Shown", b"timed", keys="k"), deliver_after=7_000)
        producer = TransactionProducer("gone", name_server, check=undecided)
        async with producer as made:
            await made.send_in_transaction(Message("Shown", b"half"), undecided)
        consumer = PushConsumer("gives-up", name_server, settings=settings)
        consumer.subscribe("Shown", "*", on_messages)

        async def has_letters() -> bool:
            return "%DLQ%gives-up" in await admin.list_topics() and got >= 4

        async with consumer:
            await until(has_letters)


def log_in(page: Page, base: str, role: str, path: str = "/") -> None:
    page.goto(f"{base}{path}")
    page.get_by_label("Name").fill(role)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Log out").wait_for()
