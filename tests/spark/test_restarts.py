"""Restarts of brokers and name servers under a query that runs: it waits, and reads all once."""

import os
import signal
from contextlib import ExitStack, contextmanager

import pytest

from tests.spark.servers import Servers
from tests.support.clients.spark import SECONDS_OF_SPARK, Gathered, Sending, Topics
from tests.support.eventually import wait_until


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    made = Servers(tmp_path_factory.mktemp("servers"))
    with ExitStack() as stack:
        for server in made.all:
            stack.enter_context(server)
        yield made
        for server in made.all:
            server.process.send_signal(signal.SIGCONT)


@contextmanager
def running(spark, servers: Servers, topic: str, folder, take, **options):
    stream = spark.readStream.format("rocketmq").option("nameServer", servers.name_server)
    stream = stream.option("subscribe", topic).options(startingOffsets="earliest", **options)
    writer = stream.load().writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    # Batches without a pause would only take time from the servers that start meanwhile.
    query = writer.foreachBatch(take).trigger(processingTime="500 milliseconds").start()
    try:
        yield query
    finally:
        query.stop()


class Scenario:
    """A query that runs on a topic which is written to."""

    def __init__(self, query, gathered: Gathered, sending: Sending) -> None:
        self.query, self.gathered, self.sending = query, gathered, sending

    def catch_up(self, *, more: int = 20) -> None:
        """Wait until it has read what is sent from now on."""
        count = len(self.sending.acknowledged) + more
        wait_until(
            lambda: len(self.sending.acknowledged) > count,
            seconds=SECONDS_OF_SPARK,
            what="messages that the broker takes",
        )
        place = self.sending.acknowledged[-1]

        def taken() -> bool:
            assert self.query.exception() is None, self.query.exception()
            return place in self.gathered.places

        wait_until(taken, seconds=SECONDS_OF_SPARK, what="rows up to the sender's place")


@pytest.fixture(scope="module")
def scenarios(spark, servers, tmp_path_factory):
    """Gives the scenario that goes on, or a new one if there is none or its query has ended."""
    topics = Topics(f"127.0.0.1:{servers.ports[0]}", f"127.0.0.1:{servers.port}")
    made: list[Scenario] = []
    with ExitStack() as stack:

        def current() -> Scenario:
            if not made or not made[-1].query.isActive:
                topic = topics.create(f"restarts-{os.getpid()}-{len(made)}")
                gathered, folder = Gathered(), tmp_path_factory.mktemp("scenario")
                sending = stack.enter_context(Sending(topics.broker, topic))
                query = running(spark, servers, topic, folder, gathered.take)
                made.append(Scenario(stack.enter_context(query), gathered, sending))
            return made[-1]

        yield current


@pytest.fixture
def scenario(scenarios):
    made = scenarios()
    made.catch_up()
    yield made
    made.catch_up()
    sent = list(made.sending.acknowledged)
    gathered = made.gathered
    wait_until(lambda: gathered.has_all(sent), seconds=SECONDS_OF_SPARK, what="the rest")
    assert made.query.exception() is None, made.query.exception()
    assert set(list(gathered.places.values())) == {1}


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("which", ["broker", "name servers", "all"])
def test_a_query_outlives_restarts(scenario, servers, which, how):
    ended = {"broker": [servers.broker], "name servers": servers.names, "all": servers.all}[which]
    for server in ended:
        servers.end(server, how)
    if which == "name servers":
        # Nobody is there to ask for routes, and the broker goes on.
        scenario.catch_up()
    for server in ended:
        server.__enter__()
    scenario.catch_up()


def test_a_query_outlives_an_empty_name_server_beside_a_silent_one(scenario, servers):
    silent, empty = servers.names
    silent.process.send_signal(signal.SIGSTOP)
    try:
        servers.end(empty, "kill")
        empty.__enter__()
        scenario.catch_up()
        servers.end(servers.broker, "kill")
        servers.broker.__enter__()
        scenario.catch_up()
    finally:
        silent.process.send_signal(signal.SIGCONT)


def test_a_query_outlives_a_broker_that_is_silent_for_a_while(scenario, servers):
    servers.broker.process.send_signal(signal.SIGSTOP)
    failures = scenario.sending.failures
    try:
        wait_until(
            lambda: scenario.sending.failures >= failures + 2,
            seconds=SECONDS_OF_SPARK,
            what="a sender that got no answer",
        )
        assert scenario.query.isActive
    finally:
        servers.broker.process.send_signal(signal.SIGCONT)


def test_a_query_that_is_started_while_all_is_down_waits(spark, servers, tmp_path):
    topics = Topics(f"127.0.0.1:{servers.ports[0]}", f"127.0.0.1:{servers.port}")
    topic = topics.create(f"restarts-{os.getpid()}-waits")
    topics.send_numbers(topic, range(40))
    for server in servers.all:
        servers.end(server, "stop")
    gathered = Gathered()
    with running(spark, servers, topic, tmp_path, gathered.take) as query:
        for server in servers.all:
            server.__enter__()

        def taken() -> bool:
            assert query.exception() is None, query.exception()
            return len(gathered.places) == 40

        wait_until(taken, seconds=SECONDS_OF_SPARK, what="all rows")
