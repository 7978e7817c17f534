"""Messages of dramatiq: sent, delayed, tried again, given back, kept; dead letters, join, flush."""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq import Message, MessageProxy, QueueJoinTimeout, QueueNotFound, Worker
from dramatiq.common import dq_name
from dramatiq.errors import ConnectionClosed

from kerolox import ClientSettings, ConfigError, RpcHook, clock
from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.integrations import common
from kerolox.integrations.dramatiq import KeroloxBroker
from kerolox.message import Message as KeroloxMessage
from kerolox.message import MessageExt
from kerolox.protocol.codes import RequestCode
from kerolox.testing import LocalBroker
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kerolox.protocol.command import RemotingCommand

numbers = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def queue() -> str:
    return f"queue.{next(numbers)}"


@pytest.fixture
def make(local: LocalBroker) -> Iterator[Callable[..., KeroloxBroker]]:
    made: list[KeroloxBroker] = []

    def one(**settings: Any) -> KeroloxBroker:
        made.append(KeroloxBroker(local.name_server, **settings))
        return made[-1]

    yield one
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make: Callable[..., KeroloxBroker]) -> KeroloxBroker:
    return make()


@contextlib.contextmanager
def working(broker: KeroloxBroker, threads: int = 4) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def actor(broker: KeroloxBroker, queue: str, function: Any, **options: Any) -> Any:
    decorate = dramatiq.actor(
        actor_name=f"actor_of_{queue}", queue_name=queue, broker=broker, **options
    )
    return decorate(function)


def dead_letters(local: LocalBroker, broker: KeroloxBroker, queue: str) -> list[MessageExt]:
    return local.messages(f"%DLQ%{broker.queues[queue]}")


def test_actors_run_once_with_their_arguments(
    broker: KeroloxBroker, local: LocalBroker, queue: str
) -> None:
    seen: list[tuple[int, str]] = []
    note = actor(broker, queue, lambda number, text: seen.append((number, text)))
    sent = [note.send(number, text="x") for number in range(50)]
    with working(broker):
        broker.join(queue, timeout=30_000)
    assert sorted(seen) == [(number, "x") for number in range(50)]
    kept = local.messages(broker.queues[queue])
    assert {each.keys for each in kept} == {each.message_id for each in sent}


def test_delays_are_the_brokers_and_no_worker_has_them(
    broker: KeroloxBroker, local: LocalBroker, queue: str
) -> None:
    seen: list[int] = []
    note = actor(broker, queue, seen.append)

    def came() -> list[int]:
        # What is not acknowledged when the clock is turned comes again.
        return list(dict.fromkeys(seen))

    with working(broker) as worker:
        note.send_with_options(args=(2,), delay=3_700_000)
        note.send_with_options(args=(1,), delay=95_500)
        note.send(0)
        wait_until(lambda: came() == [0], what="the one without delay")
        local.advance(seconds=97)
        wait_until(lambda: came() == [0, 1], what="the shorter delay")
        assert dq_name(queue) not in worker.consumers
        assert broker.get_declared_delay_queues() == set()
        local.advance(seconds=3_610)
        broker.join(queue, timeout=30_000)
    assert came() == [0, 1, 2]


def test_what_fails_is_tried_again_later_and_is_a_dead_letter_in_the_end(
    broker: KeroloxBroker, local: LocalBroker, queue: str
) -> None:
    tries: list[int] = []

    def fail(number: int) -> None:
        tries.append(number)
        raise ValueError("no such customer")

    failing = actor(broker, queue, fail, max_retries=2, min_backoff=20_000, max_backoff=20_000)
    topic = broker.queues[queue]
    with working(broker), Admin(local.name_server) as admin:
        failing.send(7)
        for wanted in (1, 2, 3):
            wait_until(lambda wanted=wanted: len(tries) == wanted, what=f"try {wanted}")
            if wanted < 3:
                # Turned further than that the clock ends the time of what is not acknowledged yet.
                wait_until(lambda: waiting(admin, local, topic) == 1, what="the next try")
                local.advance(seconds=21)
        broker.join(queue, timeout=30_000)
    assert tries == [7, 7, 7]
    [dead] = dead_letters(local, broker, queue)
    assert dead.properties["DEAD_LETTER_REASON"] == "ValueError: no such customer"
    assert Message.decode(dead.body).args == (7,)


def test_what_no_actor_can_do_is_a_dead_letter(
    broker: KeroloxBroker, local: LocalBroker, queue: str
) -> None:
    broker.declare_queue(queue)
    broker.enqueue(Message(queue, "elsewhere", (), {}, {}))
    with Producer("others", local.name_server) as producer:
        producer.send(KeroloxMessage(broker.queues[queue], b"\xff no message"))
    with working(broker):
        broker.join(queue, timeout=30_000)
    reasons = {each.properties["DEAD_LETTER_REASON"] for each in dead_letters(local, broker, queue)}
    assert len(reasons) == 2
    assert "dramatiq.errors.ActorNotFound: elsewhere" in reasons
    assert any("it can't be read" in reason for reason in reasons)


def test_join_waits_for_work_and_for_delays_up_to_its_time(
    broker: KeroloxBroker, local: LocalBroker, queue: str
) -> None:
    begun, end = threading.Event(), threading.Event()
    wait = actor(broker, queue, lambda: begun.set() or (end.wait(30) and None))
    with working(broker):
        wait.send_with_options(delay=600_000)
        with pytest.raises(QueueJoinTimeout):
            broker.join(queue, timeout=1_500)
        local.advance(minutes=11)
        assert begun.wait(30)
        with pytest.raises(QueueJoinTimeout):
            broker.join(queue, timeout=100)
        end.set()
        broker.join(queue, timeout=30_000)


def test_flush_drops_what_came_and_what_waits(
    broker: KeroloxBroker, local: LocalBroker, queue: str
) -> None:
    seen: list[int] = []
    note = actor(broker, queue, seen.append)
    for number in range(5):
        note.send(number)
    note.send_with_options(args=(5,), delay=600_000)
    with Admin(local.name_server) as admin:
        topic = broker.queues[queue]
        wait_until(lambda: admin.timed_messages(local.address).waiting.get(topic), what="it waits")
    broker.flush_all()
    with working(broker):
        broker.join(queue, timeout=30_000)
        local.advance(minutes=11)
        note.send(6)
        wait_until(lambda: seen, what="what was sent later")
    assert seen == [6]


def test_no_more_is_received_than_the_prefetch_until_something_is_done(
    broker: KeroloxBroker, queue: str
) -> None:
    note = actor(broker, queue, lambda number: None)
    for number in range(3):
        note.send(number)
    consumer = broker.consume(queue, prefetch=2, timeout=100)
    first, second = given(consumer), given(consumer)
    assert next(consumer) is None
    consumer.ack(first)
    third = given(consumer)
    assert sorted(each.args[0] for each in (first, second, third)) == [0, 1, 2]
    for each in (second, third):
        consumer.ack(each)
    consumer.ack(MessageProxy(Message(queue, "unknown", (), {}, {})))
    consumer.nack(MessageProxy(Message(queue, "unknown", (), {}, {})))
    broker.join(queue, timeout=30_000)


def given(consumer: Any) -> Any:
    """The next message of a consumer."""
    found: list[MessageProxy] = []
    wait_until(lambda: found or found.extend(filter(None, [next(consumer)])), what="a message")
    return found[0]


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(
    make: Callable[..., KeroloxBroker], queue: str
) -> None:
    stopping, other = make(), make()
    begun, end, seen = threading.Event(), threading.Event(), []

    def work(number: int) -> None:
        begun.set()
        seen.append(number)
        end.wait(30)

    slow = actor(stopping, queue, work)
    actor(other, queue, seen.append)
    for number in range(3):
        slow.send(number)
    worker = Worker(stopping, worker_timeout=100, worker_threads=1)
    worker.start()
    assert begun.wait(30)
    ending = threading.Thread(target=worker.stop)
    ending.start()
    end.set()
    ending.join()
    with working(other):
        other.join(queue, timeout=30_000)
    assert sorted(seen) == [0, 1, 2]


def test_a_message_is_kept_while_it_is_worked_on_and_comes_again_after_a_death(
    make: Callable[..., KeroloxBroker], queue: str
) -> None:
    renewed = 0

    class Hook(RpcHook):
        def before_request(self, address: str, request: RemotingCommand) -> None:
            nonlocal renewed
            renewed += request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    dying = make(invisible_ms=600, settings=ClientSettings(rpc_hook=Hook()))
    other = make(invisible_ms=600)
    actor(other, queue, lambda: None)
    actor(dying, queue, lambda: None).send()
    kept = given(dying.consume(queue, timeout=100))
    waiting = other.consume(queue, timeout=100)
    wait_until(lambda: next(waiting) is not None or renewed >= 4, what="renewals")
    assert renewed >= 4
    dying.close()  # which gives back nothing that was given out
    assert given(waiting).message_id == kept.message_id


def test_a_long_delay_goes_on_from_part_to_part(
    broker: KeroloxBroker,
    local: LocalBroker,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = clock.now_ms()
    monkeypatch.setattr(common, "clock", SimpleNamespace(now_ms=lambda: now_ms))
    seen: list[int] = []
    note = actor(broker, queue, seen.append)
    note.send_with_options(args=(1,), delay=(2 * 86_400 + 3_600) * 1_000)
    topic = broker.queues[queue]
    with working(broker), Admin(local.name_server) as admin:
        for day in (1, 2):
            wait_until(lambda: waiting(admin, local, topic) == 1, what="it waits")
            now_ms += 86_400_000
            local.advance(days=1)
            wait_until(lambda day=day: len(local.messages(topic)) == day, what=f"part {day}")
        wait_until(lambda: waiting(admin, local, topic) == 1, what="the last part")
        assert seen == []
        now_ms += 3_600_000
        local.advance(hours=1)
        wait_until(lambda: seen == [1], what="its moment")


def waiting(admin: Admin, local: LocalBroker, topic: str) -> int:
    return admin.timed_messages(local.address).waiting.get(topic, 0)


@pytest.mark.parametrize("moment", ["", "soon", "-1", "9" * 19, "\u0661", "1"])
def test_a_moment_that_is_none_or_over_delays_nothing(moment: str) -> None:
    message = MessageExt(
        topic="Topic",
        body=b"",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        properties={common.RUN_AT: moment},
    )
    assert common.further_delay(message) is None


def test_a_queue_has_to_be_declared(broker: KeroloxBroker, queue: str) -> None:
    with pytest.raises(QueueNotFound):
        broker.consume(queue)
    with pytest.raises(QueueNotFound):
        broker.enqueue(Message(queue, "actor", (), {}, {}))
    with pytest.raises(QueueNotFound):
        broker.join(queue)


def test_no_broker_means_a_closed_connection(queue: str) -> None:
    broker = KeroloxBroker("127.0.0.1:1", settings=ClientSettings(api_timeout_ms=500))
    broker.declare_queue(queue)
    with pytest.raises(ConnectionClosed):
        broker.consume(queue)
    broker.close()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="invisible_ms"):
        KeroloxBroker(invisible_ms=0)
    with pytest.raises(ConfigError, match="delay"):
        KeroloxBroker(message_time_max=-1)


def test_tenants_have_queues_of_their_own(make: Callable[..., KeroloxBroker], queue: str) -> None:
    seen: list[str] = []
    one, two = (make(settings=ClientSettings(namespace=name)) for name in ("one", "two"))
    notes = [actor(each, queue, seen.append) for each in (one, two)]
    for note, name in zip(notes, ("one", "two"), strict=True):
        note.send(name)
    with working(one):
        one.join(queue, timeout=30_000)
    assert seen == ["one"]
    two.flush(queue)
    two.join(queue, timeout=30_000)
