"""kombu on our broker: queues, exchanges, acknowledgements, errors, forks."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from kombu.pidbox import Mailbox

import kerolox.integrations.celery
from kerolox import Message, RemotingError
from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer, SimpleConsumer
from kerolox.errors import ConfigError
from kerolox.integrations.celery.transport import Transport
from kerolox.testing import LocalBroker
from tests.support.eventually import SECONDS_MAX, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

assert kerolox.integrations.celery.Transport is Transport

SOON = 0.3
"""Seconds in which nothing is to come."""


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def connect(local: LocalBroker) -> Iterator[Callable[..., kombu.Connection]]:
    """Makes connections that share a prefix of their names, and closes them."""
    made: list[kombu.Connection] = []
    prefix = f"{uuid.uuid4().hex[:8]}-"

    def one(**options: Any) -> kombu.Connection:
        given = {"queue_name_prefix": prefix, **options}
        made.append(kombu.Connection(f"rocketmq://{local.name_server}", transport_options=given))
        return made[-1]

    yield one
    for connection in made:
        connection.release()


def drain(connection: kombu.Connection, seen: list[Any], count: int) -> None:
    """Drain until so many are there."""
    until = time.monotonic() + SECONDS_MAX
    while len(seen) < count:
        assert time.monotonic() < until, f"{len(seen)} of {count} came"
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            continue


def is_quiet(connection: kombu.Connection, seconds: float = SOON) -> bool:
    try:
        connection.drain_events(timeout=seconds)
    except TimeoutError:
        return True
    return False


# -- messages --------------------------------------------------------------------------------------
def test_a_message_comes_back_with_its_headers(connect: Callable[..., kombu.Connection]) -> None:
    with connect().SimpleQueue("plain") as queue:
        queue.put({"a": 1}, headers={"k": "v"})
        message = queue.get(timeout=SECONDS_MAX)
        assert (message.payload, message.headers) == ({"a": 1}, {"k": "v"})
        message.ack()
        queue.put(b"\x00\xff", content_type="application/data", content_encoding="binary")
        assert queue.get(timeout=SECONDS_MAX).body == b"\x00\xff"


def test_a_requeued_message_comes_again_and_an_acknowledged_one_does_not(
    connect: Callable[..., kombu.Connection],
) -> None:
    connection = connect()
    with connection.SimpleQueue("again") as queue:
        queue.put("x")
        first = queue.get(timeout=SECONDS_MAX)
        first.requeue()
        second = queue.get(timeout=SECONDS_MAX)
        assert second.payload == "x"
        assert second.delivery_info["redelivered"] is True
        second.ack()
        assert is_quiet(connection)


def test_a_rejected_message_is_a_dead_letter_of_its_queue(
    connect: Callable[..., kombu.Connection], local: LocalBroker
) -> None:
    connection = connect()
    with connection.SimpleQueue("bad") as queue:
        queue.put("x")
        queue.get(timeout=SECONDS_MAX).reject()
        topic = connection.transport_options["queue_name_prefix"] + "bad"
        [letter] = local.messages(f"%DLQ%{topic}", count=1)
        assert b'"x"' in letter.body or b"x" in letter.body
        assert is_quiet(connection)


def test_a_channel_gets_no_more_than_it_may_have(
    connect: Callable[..., kombu.Connection],
) -> None:
    connection = connect()
    seen: list[Any] = []
    with connection.channel() as channel:
        queues = [kombu.Queue(f"few-{n}", routing_key=f"few-{n}") for n in range(2)]
        producer = kombu.Producer(channel)
        for n in range(6):
            producer.publish(n, routing_key=f"few-{n % 2}", declare=queues)
        with kombu.Consumer(channel, queues, prefetch_count=2) as consumer:
            consumer.register_callback(lambda body, message: seen.append(message))
            drain(connection, seen, 2)
            assert is_quiet(connection)
            seen[0].ack()
            drain(connection, seen, 3)
            assert is_quiet(connection)
            consumer.qos(prefetch_count=4)
            drain(connection, seen, 5)
            assert is_quiet(connection)
            for message in seen[1:]:
                message.ack()
            drain(connection, seen, 6)
            seen[5].ack()
    assert sorted(message.payload for message in seen) == list(range(6))


def test_what_a_closed_channel_has_goes_to_others_at_once(
    connect: Callable[..., kombu.Connection],
) -> None:
    first, second = connect(), connect()
    seen: list[Any] = []
    taken = first.SimpleQueue("left")
    for n in range(4):
        taken.put(n)
    assert taken.get(timeout=SECONDS_MAX) is not None  # one is out, the others are waiting
    first.close()
    queue = second.SimpleQueue("left")
    while len(seen) < 4:
        seen.append(queue.get(timeout=10))
        seen[-1].ack()
    assert sorted(message.payload for message in seen) == list(range(4))


def test_a_message_is_kept_longer_than_its_visibility_timeout(
    connect: Callable[..., kombu.Connection],
) -> None:
    first, second = connect(visibility_timeout=1), connect(visibility_timeout=1)
    holder, other = first.SimpleQueue("kept"), second.SimpleQueue("kept")
    holder.put("x")
    held = holder.get(timeout=SECONDS_MAX)
    with pytest.raises(other.Empty):
        other.get(timeout=2.5)
    held.ack()


def test_an_expired_message_does_not_come(connect: Callable[..., kombu.Connection]) -> None:
    connection = connect()
    queue = kombu.Queue("old", routing_key="old")
    seen: list[Any] = []
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        producer.publish("old", routing_key="old", declare=[queue], expiration=0.001)
        producer.publish("new", routing_key="old", expiration=600)
        time.sleep(0.01)
        with kombu.Consumer(channel, [queue], no_ack=True) as consumer:
            consumer.register_callback(lambda body, message: seen.append(body))
            drain(connection, seen, 1)
    assert seen == ["new"]


def test_a_message_for_a_moment_comes_then(
    connect: Callable[..., kombu.Connection], local: LocalBroker
) -> None:
    connection = connect()
    with connection.SimpleQueue("timed") as queue:
        eta = "2999-01-01T00:00:00+00:00"
        queue.put("far", headers={"eta": eta})
        queue.put("near", headers={"eta": _in_seconds(1.0)})
        sent = time.time()
        message = queue.get(timeout=SECONDS_MAX)
        assert message.payload == "near"
        assert time.time() - sent > 0.9
        message.ack()
        # It is on its way to its moment, step by step.
        topic = connection.transport_options["queue_name_prefix"] + "timed"
        assert [m.properties.get("KEROLOX_TIMED_AGAIN") for m in local.messages(topic)] == [None]


def _in_seconds(seconds: float) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_messages_of_other_programs_come_as_bytes(
    connect: Callable[..., kombu.Connection], local: LocalBroker
) -> None:
    connection = connect()
    with connection.SimpleQueue("foreign") as queue:
        topic = connection.transport_options["queue_name_prefix"] + "foreign"
        with Producer("java", local.name_server) as producer:
            producer.send(Message(topic, b"hello", properties={"colour": "red"}))
        message = queue.get(timeout=SECONDS_MAX)
        assert (message.body, message.content_type) == (b"hello", "application/data")
        assert message.headers == {"colour": "red"}
        message.ack()


def test_a_purge_takes_what_is_there_and_counts_it(
    connect: Callable[..., kombu.Connection],
) -> None:
    connection = connect()
    queue = kombu.Queue("purged", routing_key="purged")
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for n in range(40):
            producer.publish(n, routing_key="purged", declare=[queue])
        assert queue(channel).purge() == 40
        assert queue(channel).get() is None


def test_a_passive_declaration_makes_nothing(connect: Callable[..., kombu.Connection]) -> None:
    connection = connect()
    with connection.channel() as channel, pytest.raises(Transport.channel_errors):
        channel.queue_declare("nowhere", passive=True)


# -- exchanges -------------------------------------------------------------------------------------
def test_routing_keys_choose_queues_of_direct_and_topic_exchanges(
    connect: Callable[..., kombu.Connection],
) -> None:
    connection = connect()
    seen: list[Any] = []
    direct, topic = kombu.Exchange("d", type="direct"), kombu.Exchange("t", type="topic")
    queues = [
        kombu.Queue("d1", exchange=direct, routing_key="one"),
        kombu.Queue("d2", exchange=direct, routing_key="two"),
        kombu.Queue("t1", exchange=topic, routing_key="a.*"),
        kombu.Queue("t2", exchange=topic, routing_key="b.#"),
    ]
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for exchange, key in ((direct, "one"), (direct, "none"), (topic, "a.b"), (topic, "c")):
            producer.publish(key, exchange=exchange, routing_key=key, declare=queues)
        with kombu.Consumer(channel, queues, no_ack=True) as consumer:
            consumer.register_callback(lambda body, message: seen.append(body))
            drain(connection, seen, 2)
            assert is_quiet(connection)
    assert sorted(seen) == ["a.b", "one"]


def test_a_fanout_goes_to_all_that_are_bound_then(
    connect: Callable[..., kombu.Connection],
) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    sender, readers = connect(), [connect(), connect()]
    seen: list[Any] = []
    with sender.channel() as channel:
        producer = kombu.Producer(channel, exchange=exchange)
        producer.publish("before")
        for n, reader in enumerate(readers):
            queue = kombu.Queue(f"reader-{n}", exchange=exchange, auto_delete=True)
            consumer = kombu.Consumer(reader.default_channel, [queue], no_ack=True)
            consumer.register_callback(lambda body, message: seen.append(body))
            consumer.consume()
        producer.publish("after")
    drain(readers[0], seen, 1)
    drain(readers[1], seen, 2)
    assert seen == ["after", "after"]
    assert is_quiet(readers[0])


def test_remote_control_reaches_each_node_and_its_replies_come(
    connect: Callable[..., kombu.Connection],
) -> None:
    mailbox = Mailbox("shop", type="fanout")
    nodes, asking = [connect(), connect()], connect()
    over = threading.Event()

    def serve(connection: kombu.Connection) -> None:
        while not over.is_set():
            try:
                connection.drain_events(timeout=0.1)
            except TimeoutError:
                continue

    threads = []
    for n, connection in enumerate(nodes):
        node = mailbox(connection).Node(f"node{n}", state={}, handlers={"ping": lambda _: "pong"})
        node.channel = connection.default_channel
        node.listen()
        threads.append(threading.Thread(target=serve, args=(connection,)))
        threads[-1].start()
    try:
        for _ in range(2):
            answers = mailbox(asking).multi_call("ping", timeout=SECONDS_MAX, limit=2)
            assert {name for answer in answers for name in answer} == {"node0", "node1"}
        [answer] = mailbox(asking).call(["node1"], "ping", timeout=SECONDS_MAX)
        assert answer == {"node1": "pong"}
    finally:
        over.set()
        for thread in threads:
            thread.join()


# -- connections -----------------------------------------------------------------------------------
def test_a_connection_that_nobody_answers_is_a_recoverable_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        connection = kombu.Connection(f"rocketmq://127.0.0.1:{port}")
        with pytest.raises(RemotingError) as failed:
            connection.connect()
    assert isinstance(failed.value, connection.recoverable_connection_errors)


def test_the_next_name_server_is_tried(local: LocalBroker) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = f"rocketmq://127.0.0.1:{port};rocketmq://{local.name_server}"
        with kombu.Connection(url) as connection:
            connection.ensure_connection(max_retries=2, interval_start=0)
            assert connection.connected


def test_a_wrong_option_is_an_error_before_anything_is_connected(
    connect: Callable[..., kombu.Connection],
) -> None:
    with pytest.raises(ConfigError, match="visibility_timeout"):
        connect(visibility_timeout=-1).connect()


@pytest.mark.parametrize("environment", ["gevent", "eventlet"])
def test_a_pool_that_replaces_threads_is_refused(
    environment: str, connect: Callable[..., kombu.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu.utils.compat._environment", environment)
    with pytest.raises(ConfigError, match=environment):
        connect().connect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_child_makes_a_connection_of_its_own(
    connect: Callable[..., kombu.Connection],
) -> None:
    connection = connect()
    queue = kombu.Queue("forked", routing_key="forked")
    producer = kombu.Producer(connection)
    producer.publish("parent", routing_key="forked", declare=[queue])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # kombu's own retry makes the new connection.
            producer.publish("child", routing_key="forked", retry=True, declare=[queue])
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    seen: list[Any] = []
    with kombu.Consumer(connection, [queue], no_ack=True) as consumer:
        consumer.register_callback(lambda body, message: seen.append(body))
        drain(connection, seen, 2)
    assert sorted(seen) == ["child", "parent"]


def test_a_broker_that_is_restarted_loses_nothing_and_repeats_nothing(
    connect: Callable[..., kombu.Connection],
) -> None:
    with LocalBroker() as broker:
        connection = kombu.Connection(f"rocketmq://{broker.name_server}")
        queue = kombu.Queue("restarted", routing_key="restarted")
        seen: list[Any] = []
        with connection, connection.channel() as channel:
            producer = kombu.Producer(channel)
            for n in range(3):
                producer.publish(n, routing_key="restarted", declare=[queue])
            with kombu.Consumer(channel, [queue], prefetch_count=2) as consumer:
                consumer.register_callback(lambda body, message: seen.append(message))
                drain(connection, seen, 2)
                broker.restart()
                for message in seen:
                    message.ack()
                producer.publish(3, routing_key="restarted", retry=True)
                drain(connection, seen, 4)
                for message in seen[2:]:
                    message.ack()
                assert is_quiet(connection)
        assert sorted(message.payload for message in seen) == [0, 1, 2, 3]


def test_a_queue_whose_topic_is_deleted_gets_a_new_one(
    connect: Callable[..., kombu.Connection], local: LocalBroker
) -> None:
    connection = connect()
    with connection.SimpleQueue("deleted") as queue:
        queue.put("before")
        queue.get(timeout=SECONDS_MAX).ack()
        topic = connection.transport_options["queue_name_prefix"] + "deleted"
        with Admin(local.name_server) as admin:
            admin.delete_topic(topic)
        sender = connect()  # it knows nothing of the topic that was
        with sender.SimpleQueue("deleted") as other:
            other.put("after")
        assert queue.get(timeout=SECONDS_MAX).payload == "after"


def test_a_connection_closes_soon_when_its_broker_is_gone() -> None:
    with LocalBroker() as broker:
        connection = kombu.Connection(f"rocketmq://{broker.name_server}")
        seen: list[Any] = []
        queue = kombu.Queue("gone", routing_key="gone")
        channel = connection.channel()
        producer = kombu.Producer(channel)
        for n in range(20):
            producer.publish(n, routing_key="gone", declare=[queue])
        consumer = kombu.Consumer(channel, [queue], on_message=seen.append)
        consumer.consume()
        drain(connection, seen, 20)
    began = time.monotonic()
    connection.release()
    assert time.monotonic() - began < SECONDS_MAX / 2
    for message in seen:
        message.ack()  # too late, and no error


def test_other_clients_read_a_queue_as_the_group_of_its_name(
    connect: Callable[..., kombu.Connection], local: LocalBroker
) -> None:
    connection = connect()
    with connection.SimpleQueue("shared") as queue:
        topic = connection.transport_options["queue_name_prefix"] + "shared"
        queue.put("one")
        queue.get(timeout=SECONDS_MAX).ack()
        queue.consumer.cancel()
        queue.put("two")
        with SimpleConsumer(topic, local.name_server) as other:
            other.subscribe(topic)
            found: list[Any] = []

            def has_come() -> bool:
                found.extend(other.receive(1, wait=0.2))
                return bool(found)

            wait_until(has_come, what="the second message")
            assert b"two" in found[0].body
            other.ack(found[0])
