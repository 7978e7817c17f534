"""Celery's worker on our broker, in a thread: tasks, ETAs, retries, remote control, events."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject
from celery.signals import task_received

import kerolox.integrations.celery
from kerolox.testing import LocalBroker
from tests.support.eventually import SECONDS_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

assert kerolox.integrations.celery.__all__

RETRIES = 2


class Seen:
    """What a worker did."""

    def __init__(self) -> None:
        self.received: dict[str, float] = {}
        """When a task reached the worker, by its id."""
        self.tries: list[int] = []


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def app(local: LocalBroker, seen: Seen) -> Iterator[Celery]:
    made = Celery(
        f"app-{uuid.uuid4().hex[:8]}",
        broker=f"rocketmq://{local.name_server}",
        backend="cache+memory://",
        set_as_current=False,
    )
    made.conf.worker_hijack_root_logger = False
    made.conf.worker_enable_remote_control = True

    def add(x: int, y: int) -> int:
        return x + y

    def flaky(self: Task) -> str:
        seen.tries.append(self.request.retries)
        if self.request.retries < RETRIES:
            raise self.retry(countdown=0.5)
        return "done"

    def refuse() -> None:
        raise Reject("no", requeue=False)

    def note(request: Any, **_: object) -> None:
        seen.received[request.id] = time.time()

    made.task(name="add")(add)
    made.task(name="flaky", bind=True, max_retries=RETRIES)(flaky)
    made.task(name="refuse", acks_late=True)(refuse)
    task_received.connect(note)
    options = {"pool": "solo", "loglevel": "WARNING", "task_events": True}
    with start_worker(made, perform_ping_check=False, shutdown_timeout=SECONDS_MAX, **options):
        yield made
    task_received.disconnect(note)


def test_a_task_runs_and_tells_its_result(app: Celery) -> None:
    assert app.send_task("add", (2, 3)).get(timeout=SECONDS_MAX) == 5


def test_a_task_with_an_eta_reaches_the_worker_when_it_is_due(app: Celery, seen: Seen) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=1.5)
    timed = app.send_task("add", (1, 1), eta=eta)
    at_once = app.send_task("add", (1, 2))
    assert at_once.get(timeout=SECONDS_MAX) == 3
    assert timed.id not in seen.received
    assert timed.get(timeout=SECONDS_MAX) == 2
    assert seen.received[timed.id] >= eta.timestamp() - 0.01


def test_a_retry_with_a_countdown_waits_at_the_broker(app: Celery, seen: Seen) -> None:
    assert app.send_task("flaky").get(timeout=SECONDS_MAX) == "done"
    assert seen.tries == list(range(RETRIES + 1))


def test_a_rejected_task_is_a_dead_letter(app: Celery, local: LocalBroker) -> None:
    sent = app.send_task("refuse")
    [letter] = local.messages("%DLQ%celery", count=1, timeout_seconds=SECONDS_MAX)
    assert letter.keys == sent.id
    assert letter.tags == "refuse"


def test_the_worker_answers_remote_control(app: Celery) -> None:
    [answer] = app.control.ping(timeout=SECONDS_MAX, limit=1)
    assert [*answer.values()] == [{"ok": "pong"}]
    [queues] = app.control.inspect(timeout=SECONDS_MAX, limit=1).active_queues().values()
    assert [queue["name"] for queue in queues] == ["celery"]


def test_events_of_tasks_reach_who_captures_them(app: Celery) -> None:
    kinds: list[str] = []
    over = threading.Event()

    def note(event: dict[str, Any]) -> None:
        kinds.append(event["type"])

    def capture() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": note})
            with receiver.consumer_context() as (own, _, _):
                ready.set()
                while not over.is_set():
                    try:
                        own.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue

    ready = threading.Event()
    thread = threading.Thread(target=capture)
    thread.start()
    try:
        assert ready.wait(SECONDS_MAX)

        def has_succeeded() -> bool:
            app.send_task("add", (1, 1)).get(timeout=SECONDS_MAX)
            return "task-succeeded" in kinds

        wait_until(has_succeeded, what="an event")
    finally:
        over.set()
        thread.join()
    assert "task-received" in kinds
