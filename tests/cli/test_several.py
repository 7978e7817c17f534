"""``kerolox up --brokers 2``: two processes, one name server, one page of metrics, one Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox import Message, MessageQueue, ProducerSettings
from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer, PullConsumer
from kerolox.doctor.machine import machine_facts
from kerolox.errors import KeroloxError
from kerolox.protocol.grpc import messages as pb
from tests.support.clients.grpc_peer import grpc_peer
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.command import Server, kerolox, start
from tests.support.servers.settings import small_store
from tests.support.servers.up import free_port

TOPIC, QUEUES, MESSAGES = "Spread", 2, 400
NAMES = ["broker-a", "broker-a-1"]
PAGE = re.compile(r"^metrics      of all brokers at port (\d+)$", re.MULTILINE)


def arguments(folder: Path, *more: object, **settings: object) -> list[object]:
    configuration = small_store(folder, **settings)
    data = folder / "store"
    given = ["up", "--brokers", 2, "--port", 0, "--namesrv-port", 0, "--data", data]
    return [*given, "-c", configuration, *more]


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, grpc_port: int) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("several")
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    with Server(folder, *arguments(folder, "--grpc-port", grpc_port, **settings)) as server:
        with Admin(server.addresses["namesrv"]) as admin:
            assert len(admin.create_topic(TOPIC, queues=QUEUES)) == 2
        yield server


def pid(address: str) -> int:
    """Of the process that listens there."""
    facts = machine_facts(int(address.rpartition(":")[2]))
    assert facts is not None, address
    return facts.pid


def is_gone(process: int) -> bool:
    """Whether it ended; one whose parent did not ask for its status yet has."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(") ")[2].startswith("Z")


def read(server: Server, path: str) -> tuple[int, str]:
    """Status and text at the port of the metrics."""
    found = PAGE.search(server.log.read_text())
    assert found is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def value(server: Server, name: str, broker: str) -> float:
    """Of a series without labels of its own."""
    text = read(server, "/metrics")[1]
    labels = rf'cluster="DefaultCluster",node_type="broker",node_id="{broker}"'
    [found] = re.findall(rf"^{name}{{{labels}}} (\S+)$", text, re.MULTILINE)
    return float(found)


def bodies(consumer: PullConsumer, queue: MessageQueue) -> list[bytes]:
    """All that a queue has."""
    found: list[bytes] = []
    offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
    while offset < end:
        result = consumer.pull(queue, offset)
        found += [message.body for message in result.messages]
        offset = result.next_offset
    return found


def settings() -> ProducerSettings:
    return ProducerSettings(retries=0)


def test_each_broker_has_a_name_a_store_and_a_line_of_the_ready_file(several: Server) -> None:
    assert list(several.addresses) == ["namesrv", "broker", "broker-1"]
    with Admin(several.addresses["namesrv"]) as admin:
        nodes = {node.broker_name: node.address for node in admin.cluster_status()}
        route = admin.describe_route(TOPIC)
    assert nodes == {NAMES[0]: several.addresses["broker"], NAMES[1]: several.addresses["broker-1"]}
    assert sorted(each.broker_name for each in route.queues) == NAMES
    root = several.ready_file.parent / "store"
    for store in (root, root / "broker-1"):
        assert (store / "commitlog").is_dir()
        assert f"stores in {store}\n" in several.log.read_text()


@pytest.mark.asyncio
async def test_a_route_by_grpc_has_the_addresses_of_all(several: Server, grpc_port: int) -> None:
    endpoints = pb.Endpoints(
        scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=grpc_port)]
    )
    async with grpc_peer(grpc_port) as client:
        answer = await client.ask("QueryRoute", endpoints=endpoints, topic=pb.Resource(name=TOPIC))
    found = {
        (each.broker.name, each.broker.endpoints.addresses[0].port)
        for each in answer.message_queues
    }
    assert found == {(NAMES[0], grpc_port), (NAMES[1], grpc_port + 1)}


def test_one_page_has_the_metrics_of_all_brokers(several: Server) -> None:
    text = read(several, "/metrics")[1]
    for name in NAMES:
        assert value(several, "kerolox_broker_up", name) == 1
        assert value(several, "process_cpu_seconds_total", name) > 0
    heads = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(heads) == len(set(heads))
    wait_until(lambda: read(several, "/health/ready") == (200, "ready\n"))


def test_one_that_is_killed_comes_back_and_the_others_go_on(several: Server) -> None:
    """Orders and counts are right over it: what was acknowledged is there, in its order."""
    killed = several.addresses["broker-1"]
    acknowledged: dict[MessageQueue, list[bytes]] = {}
    restarts = value(several, "kerolox_broker_restarts_total", NAMES[1])
    with Producer("spread", several.addresses["namesrv"], settings=settings()) as producer:
        queues = producer.queues(TOPIC)
        assert len(queues) == 2 * QUEUES
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                os.kill(pid(killed), signal.SIGKILL)
            queue, body = queues[number % len(queues)], b"%d" % number
            try:
                producer.send(Message(TOPIC, body), queue=queue)
            except KeroloxError:
                assert queue.broker_name == NAMES[1]
            else:
                acknowledged.setdefault(queue, []).append(body)
        for queue in queues:
            if queue.broker_name == NAMES[0]:
                assert len(acknowledged[queue]) == MESSAGES // len(queues)
        restarted = "broker broker-a-1 was ended by SIGKILL; it is started again in 0 s"
        assert restarted in several.log.read_text()
        answers = f"broker broker-a-1 answers again at {killed}\n"
        wait_until(lambda: answers in several.log.read_text())

        def is_sent() -> bool:
            with contextlib.suppress(KeroloxError):
                producer.send(Message(TOPIC, b"back"), queue=queues[-1])
                acknowledged[queues[-1]].append(b"back")
                return True
            return False

        assert queues[-1].broker_name == NAMES[1]
        wait_until(is_sent)
    assert value(several, "kerolox_broker_restarts_total", NAMES[1]) == restarts + 1
    with PullConsumer("reader", several.addresses["namesrv"]) as consumer:
        for queue in queues:
            found = bodies(consumer, queue)
            # A send that failed may be stored all the same, once; nobody knows.
            assert [body for body in found if body in acknowledged[queue]] == acknowledged[queue]
            assert len(set(found)) == len(found) >= MESSAGES // len(queues) // 2


def test_a_reload_reaches_all_and_log_lines_say_whose_they_are(several: Server) -> None:
    several.process.send_signal(signal.SIGHUP)
    lines = [f" INFO [{name}] kerolox.cli.process.running: SIGHUP: " for name in NAMES]
    lines.append(" INFO kerolox.cli.process.running: SIGHUP: ")
    wait_until(lambda: all(line in several.log.read_text() for line in lines))


def test_ctrl_c_stops_all_and_leaves_the_stores_closed(several: Server) -> None:
    """The last test of the module."""
    processes = [pid(address) for address in several.addresses.values()]
    assert len(set(processes)) == 3
    several.stop(signal.SIGINT)
    assert all(map(is_gone, processes))
    root = several.ready_file.parent / "store"
    assert not several.ready_file.exists()
    assert not list(root.rglob("abort"))


def test_brokers_stop_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    with Server(tmp_path, *arguments(tmp_path, "--grpc-port", 0)) as server:
        brokers = [pid(server.addresses[name]) for name in ("broker", "broker-1")]
        server.process.kill()
        server.process.wait(SECONDS_MAX)
        wait_until(lambda: all(map(is_gone, brokers)))
    assert not list((tmp_path / "store").rglob("abort"))


def test_a_broker_that_can_not_start_stops_the_others_and_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port + 10))
        taken.listen()
        command = arguments(tmp_path, "--grpc-port", 0, "--port", port)
        with start(*command) as process:
            said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("kerolox: error: broker broker-a-1 did not start: ")
    assert str(port + 10) in said
    assert not list((tmp_path / "store").rglob("abort"))


def test_a_plan_starts_nothing_and_says_what_would_be_shared(tmp_path: Path) -> None:
    done = kerolox("up", "--brokers", 2, "--plan", "--data", tmp_path / "store", "--port", 11000)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "store").exists()
    assert f"-1: port 11010, gRPC 8082, {tmp_path / 'store' / 'broker-1'}\n" in done.stdout
    assert re.search(r"^processors   \d+, ", done.stdout)
