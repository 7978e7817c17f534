"""Blocking clients while the interpreter ends: in threads that outlive the main one, in functions
of ``atexit``, and behind those, where no thread runs any more."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster

LATE = """
import sys, threading, time
if sys.argv[3] == "asyncio":
    sys.modules["uvloop"] = None
if sys.argv[4] == "imported":
    import kerolox.admin.sync
    from kerolox.client import sync

def work():
    threading.main_thread().join()
    while not threading._SHUTTING_DOWN:
        time.sleep(0.001)
    try:
        import concurrent.futures.thread
    except RuntimeError:
        pass  # it has not been imported, and can't be now
    everything()
    print("done")

def everything():
    import kerolox.admin.sync
    from kerolox import Message
    from kerolox.client import sync

    name_server, topic = "localhost:" + sys.argv[1].rpartition(":")[2], sys.argv[2]
    body = b"x" * 2_000_000
    kept, heard = {}, threading.Event()

    class Storage:
        def load(self, queue):
            return kept.get(queue, 0)

        def store(self, offsets):
            kept.update(offsets)

    def listen(messages):
        if any(message.body == body for message in messages):
            heard.set()

    settings = sync.ProducerSettings(enable_trace=True)
    with sync.Producer("late", name_server, settings=settings) as producer:
        assert producer.send(Message(topic, body)).is_ok
        assert producer.send_batch([Message(topic, b"a"), Message(topic, b"b")]).is_ok
        assert producer.submit(Message(topic, body)).result(60).is_ok
        remoting = producer._client._cluster.remoting
        for connection in list(remoting._connections.values()):
            producer._portal.call(connection.abort)
        assert producer.send(Message(topic, body)).is_ok
    settings = sync.PushConsumerSettings(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET", offset_store=Storage()
    )
    consumer = sync.PushConsumer("push" + topic, name_server, settings=settings)
    consumer.subscribe(topic, "*", listen)
    with consumer:
        assert heard.wait(60)
    settings = sync.LitePullConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    with sync.LitePullConsumer("lite" + topic, name_server, settings=settings) as consumer:
        consumer.subscribe(topic, "*")
        assert any(consumer.poll(1000) for _ in range(60))
    with kerolox.admin.sync.Admin(name_server) as admin:
        assert len(list(admin.read_messages(topic))) == 5
        assert topic in admin.list_topics()

threading.Thread(target=work).start()
"""

AT_EXIT = """
import atexit, sys
from kerolox import KeroloxError, Message
from kerolox.client import sync

if sys.argv[3] == "asyncio":
    sys.modules["uvloop"] = None
name_server, topic = sys.argv[1:3]
producer, late = sync.Producer("late", name_server), sync.Producer("later", name_server)

def close():
    assert producer.send(Message(topic, b"x" * 2_000_000)).is_ok
    producer.close()
    assert not producer._portal.is_open
    try:
        with late:
            assert late.send(Message(topic, b"x")).is_ok
    except KeroloxError as error:
        assert "can't start a thread" in str(error), error  # from 3.12 on
    print("done")

atexit.register(close)  # before the client is started
producer.start()
producer.send(Message(topic, b"x"))
"""

AT_THE_VERY_END = """
import os, sys
from kerolox import KeroloxError, Message
from kerolox.client import sync

class Last:
    def __init__(self):
        self.message = Message(sys.argv[2], b"x")
        self.new = sync.Producer("new", sys.argv[1])
        self.producer = sync.Producer("last", sys.argv[1])
        self.producer.start()
        self.producer.send(self.message)
        self.error, self.write, self.is_ending = KeroloxError, os.write, sys.is_finalizing

    def __del__(self):
        assert self.is_ending()
        for use in (lambda: self.producer.send(self.message), self.new.start):
            try:
                use()
            except self.error as error:
                self.write(1, f"{error}\\n".encode())
        self.producer.close()
        self.new.close()
        self.write(1, b"done\\n")

last = Last()
last.itself = last
sys.modules["last"] = last
"""


def run(program: str, *arguments: str) -> str:
    """What a program of its own prints; it ends well, silently, and within a deadline."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        check=False,
    )
    assert not done.stderr, done.stderr
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("imports", ["imported", "late"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_blocking_clients_do_everything_after_the_main_thread_has_ended(
    cluster: Cluster, topic: str, loop: str, imports: str
) -> None:
    assert run(LATE, cluster.name_server, topic, loop, imports) == "done\n"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_sends_and_closes_in_an_exit_function_of_any_age(
    cluster: Cluster, topic: str, loop: str
) -> None:
    assert run(AT_EXIT, cluster.name_server, topic, loop) == "done\n"


def test_where_no_thread_runs_any_more_a_client_says_so_and_never_waits(
    cluster: Cluster, topic: str
) -> None:
    said = run(AT_THE_VERY_END, cluster.name_server, topic).splitlines()
    assert said[-1] == "done"
    assert all("the interpreter is ending" in line for line in said[:-1])
    assert len(said) == 3
