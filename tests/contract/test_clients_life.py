"""Clients in forked children, in threads, and in programs that end without a close."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from kerolox.client.sync import Producer, PullConsumer, PushConsumer, PushConsumerSettings
from kerolox.errors import ClientClosedError
from kerolox.message import Message
from tests.contract.conftest import FIRST
from tests.support.eventually import SECONDS_MAX, wait_until

if TYPE_CHECKING:
    from kerolox.client.sync import SendResult
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

USED_IN_THE_CHILD = """
import gc, os, signal, sys
from kerolox import Message
from kerolox.client.sync import Producer, PushConsumer
from kerolox.errors import ClientError

name_server, topic = sys.argv[1:]
signal.alarm(60)  # a child that hangs ends
producer = Producer("parents", name_server)
producer.start()
producer.send(Message(topic, b"before"))
idle = Producer("idle", name_server)  # not started
consumer = PushConsumer("parents", name_server)
consumer.subscribe(topic, "*", lambda messages: None)
consumer.start()
connections = dict(producer._client._cluster.remoting._connections)
if os.fork() == 0:
    signal.alarm(60)
    for use in (
        lambda: producer.send(Message(topic, b"x")), producer.start, idle.start,
        lambda: consumer.queues(topic),
    ):
        try:
            use()
        except ClientError as error:
            assert "forked child" in str(error) and "make one of your own" in str(error), error
        else:
            raise AssertionError("it was used")
    for inherited in (producer, idle, consumer):
        inherited.close()
    del producer, idle, consumer, inherited
    gc.collect()
    with Producer("own", name_server) as own:
        own.send(Message(topic, b"child"))
    sys.exit(7)  # with all that an end of an interpreter does
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
for _ in range(3):
    producer.send(Message(topic, b"after"))
now = producer._client._cluster.remoting._connections
assert all(now[each] is connection for each, connection in connections.items())
consumer.close()
producer.close()
"""

USED_IN_THE_CHILDS_LOOP = """
import asyncio, gc, multiprocessing, os, signal, sys
from kerolox import Message
from kerolox.admin import Access, Admin
from kerolox.client import Producer, PullConsumer
from kerolox.remoting.client import RemotingClient
from kerolox.errors import ClientError

name_server, topic = sys.argv[1:]
signal.alarm(60)

def child(*inherited):
    signal.alarm(60)
    asyncio.run(in_child(*inherited))

async def in_child(producer, consumer, admin):
    for use in (
        producer.send(Message(topic, b"x")), consumer.queues(topic), producer.start(),
        admin.list_topics(),
    ):
        try:
            await use
        except ClientError as error:
            assert "forked child" in str(error) and "make one of your own" in str(error), error
        else:
            raise AssertionError("it was used")
    await producer.close()
    await consumer.close()
    await admin.access.remoting.close()
    del producer, consumer, admin
    gc.collect()
    async with Producer("own", name_server) as own:
        await own.send(Message(topic, b"child"))

async def main():
    remoting = RemotingClient()
    admin = Admin.on(Access(remoting, (name_server,)))
    await admin.list_topics()
    async with remoting, Producer("parents", name_server) as producer:
        async with PullConsumer("parents", name_server) as consumer:
            await producer.send(Message(topic, b"before"))
            await consumer.queues(topic)
            connections = dict(producer._cluster.remoting._connections)
            process = multiprocessing.get_context("fork").Process(
                target=child, args=(producer, consumer, admin)
            )
            process.start()
            await asyncio.to_thread(process.join)
            assert process.exitcode == 0, process.exitcode
            for _ in range(3):
                await producer.send(Message(topic, b"after"))
            await consumer.queues(topic)
            await admin.list_topics()
            now = producer._cluster.remoting._connections
            assert all(now[each] is connection for each, connection in connections.items())

asyncio.run(main())
"""

NOT_CLOSED = """
import sys, threading
from kerolox import Message
from kerolox.client.sync import Producer, PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere

name_server, topic = sys.argv[1:]
producer = Producer("left", name_server)
producer.start()
producer.send(Message(topic, b"x"))
heard = threading.Event()

def listen(messages):
    heard.set()
    threading.Event().wait()  # it never ends

settings = PushConsumerSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer = PushConsumer("left" + topic, name_server, settings=settings)
consumer.subscribe(topic, "*", listen)
consumer.start()
assert heard.wait(60)
"""

NOT_CLOSED_IN_A_LOOP = """
import asyncio, sys
from kerolox import Message
from kerolox.client import Producer, PushConsumer

name_server, topic = sys.argv[1:]
producer = Producer("left", name_server)
consumer = PushConsumer("left" + topic, name_server)

async def listen(messages):
    pass

async def main():
    await producer.start()
    await producer.send(Message(topic, b"x"))
    consumer.subscribe(topic, "*", listen)
    await consumer.start()

asyncio.run(main())
"""


def run(program: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """What a program of its own writes to stderr; it ends well, and within a deadline."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, *options, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("program", [USED_IN_THE_CHILD, USED_IN_THE_CHILDS_LOOP])
def test_a_forked_child_is_told_to_make_its_own_client(
    cluster: Cluster, topic: str, group: str, program: str
) -> None:
    assert "Traceback" not in run(program, cluster.name_server, topic)
    with PullConsumer(group, cluster.name_server) as consumer:
        stored = sum(consumer.max_offset(queue) for queue in consumer.queues(topic))
    assert stored == 5  # one before, one of the child, three after


@pytest.mark.parametrize("program", [NOT_CLOSED, NOT_CLOSED_IN_A_LOOP])
def test_a_program_that_closes_nothing_ends_silently_unless_warnings_are_shown(
    cluster: Cluster, topic: str, program: str
) -> None:
    assert run(program, cluster.name_server, topic) == ""
    shown = run(program, cluster.name_server, topic, options=("-W", "default"))
    assert "Traceback" not in shown
    assert "ResourceWarning: Producer of group 'left' was not closed" in shown
    assert f"ResourceWarning: PushConsumer of group 'left{topic}' was not closed" in shown


def test_sends_of_16_threads_end_well_or_with_the_close(
    cluster: Cluster, topic: str, group: str
) -> None:
    producer = Producer("contract-producers", cluster.name_server)
    producer.start()
    results: list[SendResult] = []
    ended: list[ClientClosedError] = []

    def send() -> None:
        while True:
            try:
                results.append(producer.send(Message(topic, b"x")))
            except ClientClosedError as error:
                ended.append(error)
                return

    threads = [threading.Thread(target=send, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(results) > 200)
    closers = [threading.Thread(target=producer.close, daemon=True) for _ in range(3)]
    for closer in closers:
        closer.start()
    for thread in (*threads, *closers):
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    assert len(ended) == 16
    assert all(result.is_ok for result in results)
    with PullConsumer(group, cluster.name_server) as consumer:

        def stored() -> int:
            return sum(consumer.max_offset(queue) for queue in consumer.queues(topic))

        wait_until(lambda: stored() >= len(results))  # Java makes queues of its log by and by
        assert stored() == len(results)  # each last send has its result, or was not sent


def test_threads_that_close_a_consumer_wait_for_the_same_close(
    cluster: Cluster, topic: str, group: str
) -> None:
    with Producer("contract-producers", cluster.name_server) as producer:
        queue = producer.send(Message(topic, b"x")).queue
    running, gate = threading.Event(), threading.Event()

    def listen(messages: list[MessageExt]) -> None:
        running.set()
        gate.wait(SECONDS_MAX)

    settings = PushConsumerSettings(consume_from_where=FIRST, close_timeout_ms=60_000)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe(topic, "*", listen)
    consumer.start()
    assert running.wait(SECONDS_MAX)
    ended: list[int] = []

    def close(number: int) -> None:
        consumer.close()
        ended.append(number)

    threads = [threading.Thread(target=close, args=[n], daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: consumer._client._closing is not None)
    assert ended == []
    gate.set()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert sorted(ended) == [0, 1, 2, 3]
    with PullConsumer(group, cluster.name_server) as puller:
        assert puller.committed(queue) == 1


def test_a_listener_in_a_thread_may_close_its_own_consumer(
    cluster: Cluster, topic: str, group: str
) -> None:
    closed = threading.Event()
    # A close that waited for the listener would need an hour.
    settings = PushConsumerSettings(consume_from_where=FIRST, close_timeout_ms=3_600_000)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)

    def listen(messages: list[MessageExt]) -> None:
        consumer.close()
        closed.set()

    consumer.subscribe(topic, "*", listen)
    with Producer("contract-producers", cluster.name_server) as producer, consumer:
        producer.send(Message(topic, b"x"))
        assert closed.wait(SECONDS_MAX)
    with pytest.raises(ClientClosedError):
        consumer.start()
