"""Transactions of our producers, against our broker and the Java broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kerolox.client import TransactionProducer, TransactionState
from kerolox.client import sync as blocking
from kerolox.message import Message
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.contract.conftest import Inbox
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

COMMIT, ROLLBACK, UNKNOWN = TransactionState


async def test_only_what_is_committed_is_seen_and_each_once(
    cluster: Cluster, inbox: Inbox, topic: str
) -> None:
    """By the producer at once, or by its answer when it is asked. On a busy machine a Java broker
    asks about ended ones, too, and delivers those twice (the next test)."""
    asked: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        async with asyncio.timeout(SECONDS_MAX):  # it runs in a task
            asked.append(await asyncio.sleep(0, message.keys))
        return COMMIT if message.keys.endswith("commit") else ROLLBACK

    async def execute(message: Message) -> TransactionState:
        assert isinstance(message.keys, str)
        first = message.keys.split("-")[1]
        return {"commit": COMMIT, "rollback": ROLLBACK}.get(first, UNKNOWN)

    _, got = await inbox.consumer(f"group-{topic}", topic)
    kinds = ("commit", "rollback", "later-commit", "later-rollback")
    async with TransactionProducer(f"producers-{topic}", cluster.name_server, check=check) as made:
        for number in range(20):
            key = f"{number}-{kinds[number % 4]}"
            result = await made.send_in_transaction(Message(topic, b"x", keys=key), execute)
            assert result.state is await execute(Message(topic, b"x", keys=key))
        keys = [f"{number}-{kinds[number % 4]}" for number in range(20)]
        wanted = {key for key in keys if key.endswith("commit")}
        left_open = {key for key in keys if "later" in key}
        await eventually_in(wanted, lambda: {message.keys for message in got}, "commits")
        await eventually_in(left_open, lambda: set(asked), "questions")
        await asyncio.sleep(0)
    assert {message.keys for message in got} == wanted
    if cluster.kind == "ours":
        assert sorted(message.keys for message in got) == sorted(wanted)


async def eventually_in(wanted: set[str], seen: Callable[[], set[str]], what: str) -> None:
    """Wait until all that is wanted is seen; else say what is missing."""
    try:
        await until(lambda: wanted <= seen(), what=f"all {what}")
    except AssertionError as error:
        raise AssertionError(f"{error}; missing: {sorted(wanted - seen())}") from None


async def test_a_half_that_is_asked_about_before_its_end_is_seen_once_by_ours(
    cluster: Cluster, inbox: Inbox, topic: str
) -> None:
    """A check stores a half once more. Where the commit of the first one comes after that, RocketMQ
    asks about the copy, too, and delivers both."""
    asked: list[str] = []
    is_done = False

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.keys)
        return COMMIT if is_done else UNKNOWN

    async def execute(message: Message) -> TransactionState:
        nonlocal is_done
        await until(lambda: asked, what="a question")
        is_done = True
        return COMMIT

    _, got = await inbox.consumer(f"group-{topic}", topic)
    async with TransactionProducer(f"producers-{topic}", cluster.name_server, check=check) as made:
        await made.send_in_transaction(Message(topic, b"slow", keys="slow"), execute)
        if cluster.kind == "java":
            await until(lambda: len(got) > 1, what="the second copy")
        else:
            # Whoever is asked about this one would have been asked about the other.
            await made.send_in_transaction(Message(topic, b"x", keys="later"), lambda _: UNKNOWN)
            await until(lambda: "later" in asked, what="a question about the next one")
            await until(lambda: len(got) > 1, what="both")
    assert {message.keys for message in got} == set(asked) | {"slow"}
    if cluster.kind == "ours":
        assert [message.keys for message in got] == ["slow", "later"]


async def test_a_local_transaction_that_raises_is_asked_about(
    cluster: Cluster, inbox: Inbox, topic: str
) -> None:
    async def check(message: MessageExt) -> TransactionState:
        assert (message.topic, message.body) == (topic, b"y" * 5_000)
        return COMMIT

    async def execute(message: Message) -> TransactionState:
        raise RuntimeError("the database is gone")

    _, got = await inbox.consumer(f"group-{topic}", topic)
    async with TransactionProducer(f"producers-{topic}", cluster.name_server, check=check) as made:
        with pytest.raises(RuntimeError, match="the database is gone"):
            await made.send_in_transaction(Message(topic, b"y" * 5_000), execute)
        await until(lambda: got, what="the message")
    assert got[0].body == b"y" * 5_000


async def test_the_blocking_producer_does_the_same(
    cluster: Cluster, inbox: Inbox, topic: str
) -> None:
    def check(message: MessageExt) -> TransactionState:
        return COMMIT

    def run() -> None:
        group, answers = f"producers-{topic}", iter((COMMIT, ROLLBACK))
        with blocking.TransactionProducer(group, cluster.name_server, check=check) as made:
            for body in (b"kept", b"dropped"):
                made.send_in_transaction(Message(topic, body), lambda _: next(answers))

    _, got = await inbox.consumer(f"group-{topic}", topic)
    await asyncio.to_thread(run)
    await until(lambda: got, what="the message")
    assert [m.body for m in got] == [b"kept"]
