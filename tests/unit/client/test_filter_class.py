"""Filter classes: uploaded to filter servers behind heartbeats, which are pulled from instead."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kerolox.client import FilterClass
from kerolox.client.core.routes import TopicRoute
from kerolox.errors import ConfigError, RemoteProtocolError
from kerolox.protocol.codes import PullSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import dumps, loads, members_of
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import PULL, Consumer, QueueBroker, record

UPLOAD = RequestCode.REGISTER_MESSAGE_FILTER_CLASS
SOURCE = "package é; public class Even implements MessageFilter {}"
EVEN = FilterClass("é.Even", SOURCE)


class FilterServer(FakeBroker):
    """Has every second message of a queue broker."""

    def __init__(self, broker: QueueBroker) -> None:
        super().__init__()
        self.answers[PULL] = self.pull
        self._broker = broker

    async def pull(self, command: RemotingCommand) -> RemotingCommand | None:
        answer = await self._broker.pull(command)
        if answer is not None and answer.body:
            begin = int(command.ext_fields["queueOffset"])
            end = int(answer.ext_fields["nextBeginOffset"])
            numbers = (number for number in range(begin, end) if number % 2 == 0)
            answer.body = b"".join(record(number, b"%d" % number) for number in numbers)
        return answer


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker(10) as made:
        yield made


@pytest_asyncio.fixture
async def filter_server(broker: QueueBroker) -> AsyncIterator[FilterServer]:
    async with FilterServer(broker) as made:
        route = members_of(loads(route_body({"a": broker.address}, queues=1)))
        broker.routes["T"] = dumps(route | {"filterServerTable": {broker.address: [made.address]}})
        yield made


async def test_a_class_goes_to_filter_servers_which_are_pulled_from(
    broker: QueueBroker, filter_server: FilterServer
) -> None:
    consumer = Consumer(broker)
    consumer.subscribe("T", EVEN, consumer.listen)
    async with consumer:
        await until(lambda: len(consumer.got) == 5)
        assert [int(message.body) for message in consumer.got] == [0, 2, 4, 6, 8]
        (upload, *_) = filter_server.seen[UPLOAD]
        assert upload.body.decode() == SOURCE
        assert upload.ext_fields == {
            "consumerGroup": consumer.group,
            "topic": "T",
            "className": "é.Even",
            "classCRC": str(zlib.crc32(SOURCE.encode()) & 0x7FFFFFFF),
        }
        known = len(filter_server.seen[UPLOAD])
        await consumer._heartbeat()
        assert len(filter_server.seen[UPLOAD]) == known + 1
    pull = filter_server.seen[PULL][0].ext_fields
    assert int(pull["sysFlag"]) & PullSysFlag.CLASS_FILTER
    assert "subscription" not in pull
    assert all(each.ext_fields["topic"] != "T" for each in broker.seen[PULL])
    heard = broker.seen[RequestCode.HEART_BEAT][0].body
    assert b'"classFilterMode":true' in heard
    assert '"subString":"é.Even"'.encode() in heard
    assert b"MessageFilter" not in heard


async def test_without_a_filter_server_pulls_fail_and_go_on_when_there_is_one(
    broker: QueueBroker, filter_server: FilterServer, caplog: pytest.LogCaptureFixture
) -> None:
    route = broker.routes["T"]
    broker.routes["T"] = route_body({"a": broker.address}, queues=1)
    consumer = Consumer(broker, pull_error_delay_ms=20)
    consumer.subscribe("T", EVEN, consumer.listen)
    async with consumer:
        await until(lambda: "has no filter server for topic 'T'" in caplog.text)
        assert "filter class é.Even of topic T goes nowhere" in caplog.text
        broker.routes["T"] = route
        await consumer._instance.poll()
        await until(lambda: len(consumer.got) == 5)


async def test_a_filter_server_that_is_away_does_not_keep_a_consumer_from_starting(
    broker: QueueBroker, filter_server: FilterServer, caplog: pytest.LogCaptureFixture
) -> None:
    await filter_server.server.stop()
    consumer = Consumer(broker)
    consumer.subscribe("T", EVEN, consumer.listen)
    async with consumer:
        await until(lambda: f"filter class é.Even to {filter_server.address} failed" in caplog.text)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        (" ", SOURCE, "needs a name of at most 255"),
        ("a" * 256, SOURCE, "needs a name of at most 255"),
        ("A", "\n", "has 1 bytes; it needs 1 to 1048576"),
        ("A", "é" * (1 << 19) + "x", "has 1048577 bytes; it needs 1 to 1048576"),
    ],
)
def test_a_class_needs_a_name_and_a_source(name: str, source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FilterClass(name, source)


async def test_a_filter_class_has_no_expression_type(broker: QueueBroker) -> None:
    consumer = Consumer(broker)
    with pytest.raises(ConfigError, match="expression_type is 'TAG'; a filter class has none"):
        consumer.subscribe("T", EVEN, consumer.listen, expression_type="TAG")


@pytest.mark.parametrize("table", [{"b": "x"}, ["b"], {"b": {"c": 1}}])
def test_an_odd_table_of_filter_servers_is_refused(table: object) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown shape"):
        TopicRoute.parse(dumps({"filterServerTable": table}))
