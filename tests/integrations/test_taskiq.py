"""Tasks of taskiq: sent, delayed, acknowledged, given back, kept; workers that end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from taskiq import AsyncBroker, Context, InMemoryBroker, TaskiqDepends
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.middlewares import SmartRetryMiddleware
from taskiq.receiver import Receiver

from kerolox import ClientSettings, ConfigError, RpcHook
from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.integrations.taskiq import KeroloxBroker
from kerolox.message import Message
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.codes import RequestCode
from kerolox.testing import LocalBroker
from tests.support.eventually import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kerolox.protocol.command import RemotingCommand

pytestmark = pytest.mark.asyncio

numbers = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def name() -> str:
    return f"tasks-{next(numbers)}"


@pytest_asyncio.fixture
async def make(local: LocalBroker, name: str) -> AsyncIterator[Callable[..., KeroloxBroker]]:
    """Makes brokers of one topic and group; each is shut down at the end."""
    made: list[KeroloxBroker] = []

    def one(**settings: Any) -> KeroloxBroker:
        given = {"topic": name, "group": name, **settings}
        made.append(KeroloxBroker(local.name_server, **given))
        return made[-1]

    yield one
    for broker in made:
        await broker.shutdown()


@contextlib.asynccontextmanager
async def working(broker: AsyncBroker, **settings: Any) -> AsyncIterator[Receiver]:
    """A worker of taskiq, as its command runs it."""
    broker.is_worker_process = True
    await broker.startup()
    given = {"max_async_tasks": 10, "run_startup": False, **settings}
    receiver = Receiver(broker, **given)
    end = asyncio.Event()
    running = asyncio.create_task(receiver.listen(end))
    try:
        yield receiver
    finally:
        end.set()
        await asyncio.wait_for(running, 30)
        await broker.shutdown()


async def test_tasks_run_once_with_their_arguments(
    make: Callable[..., KeroloxBroker], local: LocalBroker, name: str
):
    broker = make()
    seen: list[tuple[int, str]] = []

    @broker.task
    async def note(number: int, *, text: str) -> None:
        seen.append((number, text))

    await broker.startup()
    sent = [await note.kiq(number, text="x") for number in range(50)]
    await broker.shutdown()
    async with working(broker):
        await until(lambda: len(seen) == 50, what="all tasks")
    assert sorted(seen) == [(number, "x") for number in range(50)]
    kept = await asyncio.to_thread(local.messages, name)
    assert {each.keys for each in kept} == {each.task_id for each in sent}
    async with working(broker):
        await note.kiq(50, text="last")
        await until(lambda: len(seen) == 51, what="the last one, and no other again")
    assert seen[-1] == (50, "last")


async def test_a_delay_is_kept_by_the_broker_to_any_second(
    make: Callable[..., KeroloxBroker], local: LocalBroker
):
    broker = make()
    seen: list[int] = []

    @broker.task
    async def note(number: int) -> None:
        seen.append(number)

    def came() -> list[int]:
        # What is not acknowledged when the clock is turned comes again.
        return list(dict.fromkeys(seen))

    async with working(broker):
        await note.kicker().with_labels(delay=3_700).kiq(2)
        await note.kicker().with_labels(delay="95.5").kiq(1)
        await note.kicker().with_labels(delay=0).kiq(0)
        await until(lambda: came() == [0], what="the one without delay")
        local.advance(seconds=97)
        await until(lambda: came() == [0, 1], what="the shorter delay")
        local.advance(seconds=3_610)
        await until(lambda: came() == [0, 1, 2], what="the longer delay")


@pytest.mark.parametrize("delay", ["soon", -1, "nan", True])
async def test_a_delay_that_is_none_is_refused(make: Callable[..., KeroloxBroker], delay: Any):
    broker = make()

    @broker.task
    async def note() -> None: ...

    await broker.startup()
    with pytest.raises(SendTaskError) as raised:
        await note.kicker().with_labels(delay=delay).kiq()
    assert f"label delay of task {note.task_name}" in str(raised.value.__cause__)


async def test_a_worker_that_ends_gives_its_tasks_back_at_once(make: Callable[..., KeroloxBroker]):
    first, second = make(), make()
    for number in range(3):
        await _kick(first, number)
    first.task(task_name="a")(_nothing)
    second.task(task_name="a")(_nothing)
    listening = first.listen()
    kept = await anext(listening)
    await listening.aclose()
    await first.shutdown()
    await second.startup()
    bodies = set()
    tasks = second.listen()
    while len(bodies) < 2:
        bodies.add((await asyncio.wait_for(anext(tasks), 30)).data)
    assert kept.data not in bodies
    await tasks.aclose()


async def _nothing() -> None: ...


async def _kick(broker: KeroloxBroker, number: int, task: str = "a") -> None:
    """Send a task as another program may."""
    if broker._producer is None:
        await broker.startup()
    body = {"task_id": str(number), "task_name": task, "labels": {}, "args": [], "kwargs": {}}
    assert broker._producer is not None
    await broker._producer.send(Message(broker.topic, json.dumps(body).encode()))


async def test_a_task_is_kept_while_it_runs_and_comes_again_when_its_worker_died(
    make: Callable[..., KeroloxBroker], local: LocalBroker
):
    renewed = 0

    def count(address: str, request: RemotingCommand, *_: object) -> None:
        nonlocal renewed
        renewed += request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    class Hook(RpcHook):
        before_request = staticmethod(count)

    dying = make(invisible_ms=600, settings=ClientSettings(rpc_hook=Hook()))
    other = make(invisible_ms=600)
    for broker in (dying, other):
        broker.task(task_name="a")(_nothing)
    await _kick(dying, 1)
    held = dying.listen()
    kept = await anext(held)
    await other.startup()
    tasks = other.listen()
    again = asyncio.ensure_future(anext(tasks))
    await until(lambda: renewed >= 4, what="renewals beyond the first time")
    assert not again.done()
    await dying._connection.close()  # as a kill: nothing is given back
    assert (await asyncio.wait_for(again, 30)).data == kept.data
    await tasks.aclose()


async def test_a_task_that_no_worker_knows_comes_again_and_becomes_a_dead_letter(
    make: Callable[..., KeroloxBroker],
    local: LocalBroker,
    name: str,
    caplog: pytest.LogCaptureFixture,
):
    with Admin(local.name_server) as admin:
        admin.put_group(SubscriptionGroupConfig(group_name=name, retry_max_times=1))
    broker, line = make(), "does not know elsewhere:task"
    async with working(broker):
        await _kick(broker, 1, "elsewhere:task")
        await until(lambda: caplog.text.count(line) == 1, what="the first try")
        await until(lambda: local.advance(seconds=11) or caplog.text.count(line) == 2, what="again")
        await until(
            lambda: local.advance(seconds=31) or local.messages(f"%DLQ%{name}"),
            what="a dead letter",
        )
    assert caplog.text.count(line) == 2
    [dead] = local.messages(f"%DLQ%{name}")
    assert json.loads(dead.body)["task_name"] == "elsewhere:task"


async def test_what_is_no_task_comes_again_later_and_stops_no_worker(
    make: Callable[..., KeroloxBroker],
    local: LocalBroker,
    name: str,
    caplog: pytest.LogCaptureFixture,
):
    broker = make()
    done = asyncio.Event()

    @broker.task
    async def note() -> None:
        done.set()

    async with working(broker):
        with Producer("others", local.name_server) as producer:
            producer.send(Message(name, b"\xff{no task"))
        await note.kiq()
        await asyncio.wait_for(done.wait(), 30)
        await until(lambda: "it can't be read" in caplog.text, what="a line of the log")


async def test_a_task_that_ends_without_its_own_acknowledgement_comes_again(
    make: Callable[..., KeroloxBroker], local: LocalBroker
):
    broker = make()
    tries = 0

    @broker.task(ack_type=AcknowledgeType.MANUAL.value)
    async def careful(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        nonlocal tries
        tries += 1
        if tries == 2:
            await context.ack()

    @broker.task
    async def other() -> None: ...

    async with working(broker):
        await careful.kiq()
        await until(lambda: tries == 1, what="the first try")
        await other.kiq()  # the worker forgets the one before
        await until(lambda: local.advance(seconds=11) or tries == 2, what="the second try")
        local.advance(hours=3)
        await other.kiq()
    assert tries == 2


async def test_a_task_may_send_itself_again(make: Callable[..., KeroloxBroker]):
    broker = make()
    counts: list[str | None] = []

    @broker.task
    async def again(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        counts.append(context.message.labels.get("X-Taskiq-requeue"))
        if len(counts) < 3:
            await context.requeue()

    async with working(broker):
        await again.kiq()
        await until(lambda: len(counts) == 3, what="the third time")
    assert counts == [None, "1", "2"]


async def test_a_task_that_fails_is_tried_again_with_the_delays_of_taskiq(
    make: Callable[..., KeroloxBroker], local: LocalBroker
):
    broker = make().with_middlewares(SmartRetryMiddleware(default_delay=20, use_jitter=False))
    tries = 0

    @broker.task(retry_on_error=True)
    async def fails_twice() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError("not yet")
        return "well"

    # Results are of another package: here those in memory.
    broker.with_result_backend(InMemoryBroker().result_backend)
    async with working(broker):
        task = await fails_twice.kiq()
        await until(lambda: tries == 1, what="the first try")
        for wanted in (2, 3):
            await until(
                lambda wanted=wanted: local.advance(seconds=21) or tries == wanted,
                what=f"try {wanted}",
            )
        assert (await task.wait_result(timeout=30)).return_value == "well"


async def test_a_broker_says_what_is_wrong_with_its_arguments(local: LocalBroker):
    with pytest.raises(ConfigError, match="receive_batch_size"):
        KeroloxBroker(local.name_server, prefetch=33)
    with pytest.raises(ConfigError, match="delay"):
        KeroloxBroker(local.name_server, task_time_max=-1)
    broker = KeroloxBroker(local.name_server)
    with pytest.raises(ConfigError, match="not started"):
        await anext(broker.listen())
