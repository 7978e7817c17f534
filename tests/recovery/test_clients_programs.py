"""Clients in programs that fork, thread, spawn, are interrupted, or run several event loops.

Each is a process of its own. It works, or the client says at once what to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.client import sync
from kerolox.client.sync import PullConsumer, PullStatus
from kerolox.errors import TopicRouteNotFoundError
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.clusters import our_cluster
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster

__all__ = ["our_cluster"]

PROCESSES = """
import multiprocessing, pickle, signal, sys
from kerolox import Message
from kerolox.client.sync import Producer, connect
from kerolox.errors import ClientError

def child(name_server, topic, number):
    signal.alarm(200)
    with connect(name_server) as connection, connection.producer("child") as own:
        own.send(Message(topic, b"child-%d" % number))
    if inherited is not None:
        try:
            inherited.send(Message(topic, b"inherited"))
        except ClientError as error:
            assert "make one of your own after the fork" in str(error), error
        else:
            raise AssertionError("it was used")

inherited = None
if __name__ == "__main__":
    signal.alarm(230)
    name_server, topic = sys.argv[1:]
    with connect(name_server) as connection, connection.producer("parent") as inherited:
        inherited.send(Message(topic, b"parent"))
        for number, method in enumerate(("fork", "spawn", "forkserver")):
            context = multiprocessing.get_context(method)
            processes = [
                context.Process(target=child, args=(name_server, topic, 2 * number + each))
                for each in range(2)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
                assert process.exitcode == 0, (method, process.exitcode)
        for each in (inherited, connection, inherited._client):
            try:
                pickle.dumps(each)
            except TypeError as error:
                assert "make one in the process that needs it" in str(error), error
            else:
                raise AssertionError("it was pickled")
        inherited.send(Message(topic, b"after"))
"""

LOOPS = """
import asyncio, gc, sys
import kerolox
from kerolox import Message, Producer
from kerolox.errors import ClientClosedError, ClientError

name_server, topic = sys.argv[1:]
left = Producer("left", name_server)
closed = Producer("closed", name_server)
shared = kerolox.connect(name_server)

async def first():
    for each in (left, closed):
        await each.start()
        await each.send(Message(topic, b"first"))
    await closed.close()
    await shared.producer("s").start()

async def later():
    async with kerolox.connect(name_server) as connection, connection.producer("own") as own:
        await own.send(Message(topic, b"later"))
    for each, hint in ((left, "make one of your own in this loop"), (closed, "make a new one")):
        for use in (each.send(Message(topic, b"x")), each.start()):
            try:
                await use
            except ClientError as error:
                assert hint in str(error) or isinstance(error, ClientClosedError), error
            else:
                raise AssertionError("it was used")
    try:
        await shared.producer("t").start()
    except ClientError as error:
        assert "make one of your own in this loop" in str(error), error
    else:
        raise AssertionError("it was used")

asyncio.run(first())
asyncio.run(later())
asyncio.run(later())

async def end():
    await left.close()
    await shared.close()

asyncio.run(end())
"""

INTERRUPTED = """
import asyncio, os, signal, socket, sys, threading, time
from kerolox import Message, Producer
from kerolox.client import sync

deaf = socket.create_server(("127.0.0.1", 0))  # takes connections, answers nothing
address = f"127.0.0.1:{deaf.getsockname()[1]}"
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt_when(condition):
    def wait():
        while not condition():  # the program has a deadline
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()

producer = sync.Producer("blocking", address)
producer.start()
def is_asking():
    cluster = producer._client._cluster
    return "T" in cluster._fetching
interrupt_when(is_asking)
try:
    producer.send(Message("T", b"x"), timeout_ms=3_600_000)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("no interrupt")
producer.close()
assert [t.name for t in threading.enumerate() if t.name.endswith("-loop")] == []

async def main():
    async with Producer("asyncio", address) as own:
        interrupt_when(lambda: own._cluster is not None and "T" in own._cluster._fetching)
        await own.send(Message("T", b"x"), timeout_ms=3_600_000)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""

GUNICORN = """
import os
from kerolox import Message
from kerolox.client.sync import Producer, connect
from kerolox.errors import ClientError

name_server, topic = os.environ["NAMESRV_ADDR"], os.environ["TOPIC"]
inherited = Producer("master", name_server)  # before the fork: of no use in a worker
inherited.start()
inherited.send(Message(topic, b"master"))
producer = None

def begin(server, worker):
    global producer
    producer = connect(name_server).producer("workers")
    producer.start()

def app(environ, start_response):
    client = inherited if environ["PATH_INFO"] == "/inherited" else producer
    try:
        client.send(Message(topic, b"worker"))
        status, text = "200 OK", str(os.getpid())
    except ClientError as error:
        status, text = "500 Error", str(error)
    start_response(status, [("Content-Type", "text/plain")])
    return [text.encode()]
"""

CELERY = """
import os
from celery import Celery
from celery.signals import worker_process_init
from kerolox import Message
from kerolox.client.sync import Producer
from kerolox.errors import ClientError

topic = os.environ["TOPIC"]
app = Celery("jobs", broker="filesystem://")
app.conf.broker_transport_options = {
    name: "." for name in ("data_folder_in", "data_folder_out", "control_folder")
} | {"polling_interval": 0.05}
inherited = own = None
if "worker" in os.environ.get("ROLE", ""):
    inherited = Producer("master")
    inherited.start()
    inherited.send(Message(topic, b"master"))

@worker_process_init.connect
def begin(**_):
    global own
    own = Producer("worker")
    own.start()

@app.task
def job():
    try:
        inherited.send(Message(topic, b"inherited"))
        text = "it was used"
    except ClientError as error:
        text = str(error)
    own.send(Message(topic, text.encode()))
"""


@pytest.fixture
def our_topic(our_cluster: Cluster) -> str:
    """A fresh topic of four queues on our broker, for programs of their own."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    with sync.Producer("contract-topics", our_cluster.name_server) as made:
        made.create_topic(name, queues=4)
        wait_until(lambda: _has_route(made, name), what="the route")
    return name


def _has_route(made: sync.Producer, topic: str) -> bool:
    try:
        return bool(made.queues(topic))
    except TopicRouteNotFoundError:
        return False


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def run(folder: Path, program: str, *arguments: str) -> str:
    """Run a program from a file; it ends well, and within a deadline."""
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def bodies(cluster: Cluster, topic: str) -> list[bytes]:
    """What is stored of a topic, sorted."""
    found = []
    with PullConsumer("programs-reader", cluster.name_server) as reader:
        for queue in reader.queues(topic):
            result = reader.pull(queue, 0)
            if result.status is PullStatus.FOUND:
                found += [message.body for message in result.messages]
    return sorted(found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_children_of_each_kind_work_with_clients_of_their_own(
    our_cluster: Cluster, our_topic: str, tmp_path: Path
) -> None:
    run(tmp_path, PROCESSES, our_cluster.name_server, our_topic)
    expected = [b"after", *(b"child-%d" % n for n in range(6)), b"parent"]
    assert bodies(our_cluster, our_topic) == expected


def test_several_event_loops_in_a_row_need_a_client_each(
    our_cluster: Cluster, our_topic: str, tmp_path: Path
) -> None:
    run(tmp_path, LOOPS, our_cluster.name_server, our_topic)
    assert bodies(our_cluster, our_topic) == [b"first", b"first", b"later", b"later"]


def test_an_interrupt_ends_a_send_and_the_program(tmp_path: Path) -> None:
    assert run(tmp_path, INTERRUPTED) == "interrupted\n"


def test_workers_of_gunicorn_make_clients_after_the_fork(
    our_cluster: Cluster, our_topic: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(GUNICORN)
    (tmp_path / "conf.py").write_text("from shop import begin as post_fork\npreload_app = True\n")
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-c", "conf.py", "-w", "2", "shop:app"]
    command += ["-b", f"127.0.0.1:{port}", "--log-level", "warning", "--graceful-timeout", "10"]
    command += ["--timeout", "120"]
    given = environment(NAMESRV_ADDR=our_cluster.name_server, TOPIC=our_topic)
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=given, stdout=log, stderr=log)
    try:
        workers = set()

        def ask(path: str) -> str:
            url = f"http://127.0.0.1:{port}{path}"
            with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
                text: str = answer.read().decode()
            return text

        def answered() -> bool:
            assert server.poll() is None, (tmp_path / "log").read_text()
            try:
                workers.add(ask("/"))
            except OSError:
                return False
            return len(workers) == 2

        wait_until(answered, what="both workers")
        with pytest.raises(urllib.error.HTTPError) as failed:
            ask("/inherited")
        assert "make one of your own after the fork" in failed.value.read().decode()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS_MAX) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert set(bodies(our_cluster, our_topic)) == {b"master", b"worker"}


def test_a_task_of_celery_that_uses_the_parents_client_hears_so_at_once(
    our_cluster: Cluster, our_topic: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(CELERY)
    given = environment(NAMESRV_ADDR=our_cluster.name_server, TOPIC=our_topic)
    command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--concurrency", "2"]
    command += [
        "--pool",
        "prefork",
        "--without-mingle",
        "--without-gossip",
        "--loglevel",
        "WARNING",
    ]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**given, "ROLE": "worker"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            ask = [sys.executable, "-c", "import jobs; jobs.job.delay()"]
            subprocess.run(ask, cwd=tmp_path, env=given, check=True, timeout=SECONDS_MAX)

            def is_done() -> bool:
                assert worker.poll() is None, (tmp_path / "log").read_text()
                return len(bodies(our_cluster, our_topic)) == 2

            wait_until(is_done, what="the task")
        finally:
            # Celery's own end, without any client, takes six seconds.
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(SECONDS_MAX)
    text, master = sorted(bodies(our_cluster, our_topic), key=len, reverse=True)
    assert master == b"master"
    assert b"make one of your own after the fork" in text
