"""The push consumer against a broker that does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox import clock
from kerolox.client import ConsumeStatus, PushConsumer, PushConsumerSettings
from kerolox.client.aio.consumers.broker_requests import parse_reset_offsets
from kerolox.errors import (
    ClientClosedError,
    ConfigError,
    ConnectError,
    MessageRejectedError,
    RemoteProtocolError,
    SubscriptionParseError,
)
from kerolox.message import ConsumeFromWhere, MessageExt, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import dumps, loads
from kerolox.protocol.records import encode_record
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.push.assignment import Assignment

PULL = RequestCode.PULL_MESSAGE
RETRY = "%RETRY%g"


def record(
    offset: int,
    body: bytes = b"x",
    properties: str = "",
    sys_flag: int = 0,
    *,
    topic: str = "T",
    tries: int = 0,
) -> bytes:
    message = MessageExt(
        topic=topic,
        reconsume_times=tries,
        body=body,
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=offset * 100,
        store_timestamp=offset * 10,
        sys_flag=sys_flag,
        properties={},
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
    )
    return encode_record(message, properties)


ILLEGAL = "is illegal; going on at"


class QueueBroker(FakeBroker):
    """One topic T with one queue of ``count`` messages; a pull at the end is held for ever."""

    def __init__(self, count: int = 0) -> None:
        super().__init__()
        self.first = 0
        self.count = count
        self.answers[PULL] = self.pull
        self.arrived = asyncio.Event()
        self.is_closing = False

    async def __aenter__(self) -> QueueBroker:
        await super().__aenter__()
        self.routes["T"] = route_body({"a": self.address}, queues=1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closing = True
        self.arrived.set()
        await super().__aexit__()

    async def pull(self, command: RemotingCommand) -> RemotingCommand | None:
        fields = command.ext_fields
        offset, most = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        end = self.count if fields["topic"] == "T" else 0
        while offset == end:
            await self.arrived.wait()
            if self.is_closing:
                return None
            self.arrived.clear()
            end = self.count
        if not self.first <= offset < end:
            return self.answer(command, 21, min(max(offset, self.first), end), end)
        until = min(end, offset + most)
        return self.answer(
            command, 0, until, end, b"".join(record(o, b"%d" % o) for o in range(offset, until))
        )

    def answer(
        self, command: RemotingCommand, code: int, following: int, end: int, body: bytes = b""
    ) -> RemotingCommand:
        fields = {
            "nextBeginOffset": following,
            "minOffset": 0,
            "maxOffset": end,
            "suggestWhichBrokerId": 0,
        }
        return command.response(code, ext_fields=fields, body=body)

    def add(self, count: int) -> None:
        self.count += count
        self.arrived.set()

    async def ask_client(self, code: int, **fields: object) -> RemotingCommand:
        """A request of the broker to its client."""
        request = RemotingCommand.request(code, fields)
        return await self.connections[0].request(request, timeout_seconds=30)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


class Consumer(PushConsumer):
    """A consumer that collects; alone in its group unless the test says otherwise."""

    def __init__(self, broker: QueueBroker, **settings: Any) -> None:
        given = {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **settings}
        super().__init__("g", broker.address, settings=PushConsumerSettings(**given))
        broker.members = [self.client_id]
        self.got: list[MessageExt] = []
        self.status: ConsumeStatus | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.subscribe("T", "*", self.listen)

    async def listen(self, messages: list[MessageExt]) -> ConsumeStatus | None:
        self.got.extend(messages)
        await self.gate.wait()
        return self.status


async def test_pulls_commit_what_was_consumed_and_close_commits_the_rest(
    broker: QueueBroker,
) -> None:
    broker.count = 100
    async with Consumer(broker) as consumer:
        await until(lambda: len(consumer.got) == 100)
    assert sorted(int(m.body) for m in consumer.got) == list(range(100))
    assert broker.committed["T", 0] == 100
    commits = [int(c.ext_fields["commitOffset"]) for c in broker.seen[PULL]]
    assert max(commits) > 0


async def test_close_waits_for_running_listeners_and_commits_them(broker: QueueBroker) -> None:
    broker.count = 3
    consumer = Consumer(broker, consume_concurrency=2)
    consumer.gate.clear()
    await consumer.start()
    await until(lambda: len(consumer.got) == 2)
    closing = asyncio.ensure_future(consumer.close())
    await until(lambda: consumer._closed)
    await asyncio.sleep(0)
    assert not closing.done()
    consumer.gate.set()
    await closing
    assert len(consumer.got) == 2
    assert broker.committed["T", 0] == 2
    [unregistered] = broker.seen[RequestCode.UNREGISTER_CLIENT]
    assert unregistered.ext_fields == {"clientID": consumer.client_id, "consumerGroup": "g"}


async def test_close_gives_up_on_a_listener_that_never_ends(broker: QueueBroker) -> None:
    broker.count = 1
    consumer = Consumer(broker, close_timeout_ms=50)
    consumer.gate.clear()
    await consumer.start()
    await until(lambda: consumer.got)
    # The listener would hold it up for ever.
    async with asyncio.timeout(SECONDS_MAX):
        await consumer.close()
    assert broker.committed.get(("T", 0), 0) == 0


async def test_a_listener_may_close_its_own_consumer(broker: QueueBroker) -> None:
    broker.count = 1
    consumer = Consumer(broker, close_timeout_ms=600_000)
    closed = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> None:
        await consumer.close()
        closed.set()

    consumer.subscribe("T", "*", listen)
    await consumer.start()
    await asyncio.wait_for(closed.wait(), SECONDS_MAX)


def looks_of(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[Assignment]:
    """Grows with each time that the consumer ends looking whether a queue may be pulled."""
    looks: list[Assignment] = []
    assert consumer._parts is not None
    pulling = consumer._parts.pulling
    pull_once = pulling.pull_once

    async def pull_and_note(assignment: Assignment) -> float:
        delay = await pull_once(assignment)
        looks.append(assignment)
        return delay

    monkeypatch.setattr(pulling, "pull_once", pull_and_note)
    return looks


async def test_pulling_pauses_at_the_limit_of_cached_messages(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.consumers.push.pulling.CAPACITY_SECONDS_MAX", 0.001)
    broker.count = 1_000
    consumer = Consumer(broker, cached_messages_max=40, pull_batch_size=10, consume_concurrency=1)
    consumer.gate.clear()
    async with consumer:

        def pulls() -> int:
            return len([c for c in broker.seen[PULL] if c.ext_fields["topic"] == "T"])

        # 40 is not above the limit yet, so a fifth pull may follow; a sixth may not.
        await until(lambda: pulls() == 5)
        looks = looks_of(consumer, monkeypatch)
        await until(lambda: len(looks) >= 5)
        assert pulls() == 5
        consumer.gate.set()
        await until(lambda: len(consumer.got) == 1_000)
    assert broker.committed["T", 0] == 1_000


async def test_a_failed_message_is_sent_back_with_its_position(broker: QueueBroker) -> None:
    broker.count = 1
    consumer = Consumer(broker)
    consumer.status = ConsumeStatus.RECONSUME_LATER
    async with consumer:
        await until(lambda: broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK])
    [back] = broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK]
    assert back.ext_fields["originTopic"] == "T"
    assert back.ext_fields["group"] == "g"
    assert back.ext_fields["offset"] == "0"
    assert back.ext_fields["delayLevel"] == "0"
    assert back.ext_fields["maxReconsumeTimes"] == "16"
    assert broker.committed["T", 0] == 1


async def test_a_refused_send_back_becomes_a_message_to_the_retry_topic(
    broker: QueueBroker,
) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(3, "not here")

    broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    broker.count = 1
    consumer = Consumer(broker)
    consumer.status = ConsumeStatus.RECONSUME_LATER
    async with consumer:
        await until(lambda: broker.seen[RequestCode.SEND_MESSAGE_V2])
    [retry] = broker.seen[RequestCode.SEND_MESSAGE_V2]
    assert (retry.ext_fields["b"], retry.ext_fields["j"]) == (RETRY, "1")
    assert "RETRY_TOPIC\x01T" in retry.ext_fields["i"]
    assert retry.body == b"0"
    assert broker.committed["T", 0] == 1


async def test_a_message_that_cannot_be_given_back_is_tried_again_here(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(2, "busy")

    monkeypatch.setattr(
        "kerolox.client.aio.consumers.push.consuming.RECONSUME_LOCALLY_SECONDS", 0.01
    )
    broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse
    broker.count = 2
    consumer = Consumer(broker)

    async def listen(messages: list[MessageExt]) -> ConsumeStatus | None:
        consumer.got.extend(messages)
        failed = messages[0].body == b"0" and messages[0].reconsume_times < 2
        return ConsumeStatus.RECONSUME_LATER if failed else None

    consumer.subscribe("T", "*", listen)
    async with consumer:
        await until(lambda: len(consumer.got) == 4)
        await until(lambda: not len(next(iter(consumer._assignments.values())).process_queue))
    assert broker.committed["T", 0] == 2


async def test_an_unreadable_body_is_given_back_and_the_others_go_on(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        if int(command.ext_fields["queueOffset"]) or command.ext_fields["topic"] != "T":
            return await broker.pull(command)
        # Torn zlib (one byte of it), twice, between messages that are well.
        records = [record(i, b"%d" % i, sys_flag=0x301 if i in (1, 3) else 0) for i in range(5)]
        return broker.answer(command, 0, 5, 5, b"".join(records))

    broker.count = 5
    broker.answers[PULL] = pull
    async with Consumer(broker, consume_batch_max=32) as consumer:
        sent_back = broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK]
        await until(lambda: len(consumer.got) == 3 and len(sent_back) == 2)
        assert [message.body for message in consumer.got] == [b"0", b"2", b"4"]
        assert [request.ext_fields["offset"] for request in sent_back] == ["100", "300"]
    assert broker.committed["T", 0] == 5
    warned = [r.getMessage() for r in caplog.records if "given back unread" in r.getMessage()]
    assert len(warned) == 1
    assert "torn" in warned[0]


async def test_an_unreadable_body_that_can_t_be_given_back_is_sent_as_it_came(
    broker: QueueBroker,
) -> None:
    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        if int(command.ext_fields["queueOffset"]) or command.ext_fields["topic"] != "T":
            return await broker.pull(command)
        return broker.answer(command, 0, 1, 1, record(0, b"packed", sys_flag=0x701))

    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "no")

    broker.count = 1
    broker.answers[PULL] = pull
    broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
    async with Consumer(broker):
        await until(lambda: broker.seen[RequestCode.SEND_MESSAGE_V2])
    [sent] = broker.seen[RequestCode.SEND_MESSAGE_V2]
    assert (sent.body, sent.ext_fields["f"]) == (b"packed", str(0x701))
    assert sent.ext_fields["b"] == RETRY


async def test_an_overdue_listener_has_its_message_sent_back(broker: QueueBroker) -> None:
    broker.count = 1
    consumer = Consumer(broker, close_timeout_ms=1)
    consumer.gate.clear()
    async with consumer:
        await until(lambda: consumer.got)
        started = int(consumer.got[0].properties["CONSUME_START_TIME"])
        await consumer._clean_expired()
        assert not broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK]
        consumer.got[0].properties["CONSUME_START_TIME"] = str(started - 15 * 60_000 - 1_000)
        await consumer._clean_expired()
        [back] = broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK]
        assert back.ext_fields["delayLevel"] == "3"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 70),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 30),
    ],
)
async def test_a_group_without_offset_starts_where_it_chose(
    broker: QueueBroker, where: ConsumeFromWhere, expected: int
) -> None:
    async def maximum(command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": 70})

    async def minimum(command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": 0})

    async def by_time(command: RemotingCommand) -> RemotingCommand:
        assert command.ext_fields["timestamp"] == "294"
        return command.response(ext_fields={"offset": 29})  # the nearest, which is older

    broker.answers[RequestCode.GET_MAX_OFFSET] = maximum
    broker.answers[RequestCode.GET_MIN_OFFSET] = minimum
    broker.answers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = by_time
    broker.count = 100
    async with Consumer(broker, consume_from_where=where, consume_timestamp_ms=294) as consumer:
        await until(lambda: len(consumer.got) == 100 - expected)
    assert min(int(message.body) for message in consumer.got) == expected


async def test_a_stored_offset_goes_before_the_choice(broker: QueueBroker) -> None:
    broker.count = 100
    broker.committed["T", 0] = 90
    async with Consumer(broker) as consumer:
        await until(lambda: len(consumer.got) == 10)


async def test_when_the_offset_is_unknown_the_queue_waits_for_the_next_rebalance(
    broker: QueueBroker,
) -> None:
    async def fail(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "broken")

    broker.count = 5
    broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = fail
    async with Consumer(broker) as consumer:
        assert consumer.assigned_queues == []
        del broker.answers[RequestCode.QUERY_CONSUMER_OFFSET]
        await consumer.rebalance()
        await until(lambda: len(consumer.got) == 5)


async def test_an_illegal_offset_is_replaced_by_the_brokers(broker: QueueBroker) -> None:
    broker.count = 7
    broker.committed["T", 0] = 1_000
    async with Consumer(broker, illegal_offset_delay_ms=10) as consumer:
        await until(lambda: broker.committed["T", 0] == 7)
        broker.add(3)
        await until(lambda: len(consumer.got) == 3)


async def gone(command: RemotingCommand) -> RemotingCommand:
    """The answer to a pull of a topic that is not there."""
    return command.response(17, "topic[T] not exist")


async def made_again(broker: QueueBroker, count: int) -> None:
    """The topic goes, its consumer hears of that, and it is there again with so many messages."""
    broker.answers[PULL] = gone
    broker.add(1)
    before = len(broker.seen[PULL])
    await until(lambda: len(broker.seen[PULL]) > before + 1)
    broker.count = count
    broker.answers[PULL] = broker.pull


async def test_a_queue_of_a_topic_that_was_gone_is_read_from_its_start(broker: QueueBroker) -> None:
    broker.count = 5
    async with Consumer(broker, illegal_offset_delay_ms=10, pull_error_delay_ms=10) as consumer:
        await until(lambda: len(consumer.got) == 5)
        await made_again(broker, 3)
        await until(lambda: [int(each.body) for each in consumer.got[-3:]] == [0, 1, 2])
        await until(lambda: broker.committed.get(("T", 0)) == 3)


async def test_messages_that_wait_are_consumed_though_the_queue_got_shorter(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker's machine crashed: the last messages that the consumer has pulled are gone."""
    broker.count = 5
    settings = {"consume_concurrency": 1, "illegal_offset_delay_ms": 10}
    consumer = Consumer(broker, **settings)
    consumer.gate.clear()
    async with consumer:
        await until(lambda: consumer.got)
        broker.add(-2)
        await until(lambda: ILLEGAL in caplog.text)
        assert [int(each.body) for each in consumer.got] == [0]
        consumer.gate.set()
        await until(lambda: {int(each.body) for each in consumer.got} >= {0, 1, 2})
        await until(lambda: broker.committed.get(("T", 0)) == 3)


async def test_messages_that_wait_are_consumed_though_the_broker_deleted_them(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.count = 5
    consumer = Consumer(broker, consume_concurrency=1, pull_error_delay_ms=10)
    consumer.gate.clear()
    async with consumer:
        await until(lambda: consumer.got)
        broker.first = 20
        broker.add(20)
        await until(lambda: ILLEGAL in caplog.text)
        assert [int(each.body) for each in consumer.got] == [0]
        consumer.gate.set()
        expected = [*range(5), *range(20, 25)]
        await until(lambda: [int(each.body) for each in consumer.got] == expected)
        await until(lambda: broker.committed.get(("T", 0)) == 25)


async def test_a_lost_queue_is_stored_and_its_unfinished_messages_are_not_committed(
    broker: QueueBroker,
) -> None:
    broker.count = 5
    async with Consumer(broker, consume_concurrency=1) as consumer:
        await until(lambda: len(consumer.got) == 5)
        consumer.gate.clear()
        broker.add(1)
        await until(lambda: len(consumer.got) == 6)
        broker.members = ["another"]
        await consumer.rebalance()
        assert consumer.assigned_queues == []
        consumer.gate.set()
        await until(lambda: broker.committed.get(("T", 0)) == 5)
    assert broker.committed["T", 0] == 5


async def test_a_notice_of_the_broker_leads_to_a_rebalance_at_once(broker: QueueBroker) -> None:
    # A topic without route would be looked for again and again.
    broker.routes["%RETRY%g"] = broker.routes["T"]
    async with Consumer(broker, rebalance_interval_ms=3_600_000) as consumer:
        # The check that the start itself wanted would see the change as well.
        await until(lambda: not consumer._rebalance_wanted.is_set())
        await consumer.rebalance()
        assert len(consumer.assigned_queues) == 2
        broker.members = ["another"]
        notice = RemotingCommand.request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, oneway=True
        )
        broker.connections[0].send_oneway(notice)
        await until(lambda: not consumer.assigned_queues)


async def test_a_client_that_the_broker_forgot_makes_itself_known(broker: QueueBroker) -> None:
    async with Consumer(broker) as consumer:
        client_ids = broker.members
        broker.members = []

        async def heartbeat(command: RemotingCommand) -> RemotingCommand:
            broker.members = client_ids
            return command.response()

        broker.answers[RequestCode.HEART_BEAT] = heartbeat
        await consumer.rebalance()
        assert len(consumer.assigned_queues) == 1


async def test_a_restarted_broker_hears_of_us_with_the_first_pull_that_it_refuses(
    broker: QueueBroker,
) -> None:
    broker.count = 3
    refused = True

    async def forgetful(command: RemotingCommand) -> RemotingCommand | None:
        if refused:
            return command.response(24, "the consumer's group info not exist")
        return await broker.pull(command)

    async def heartbeat(command: RemotingCommand) -> RemotingCommand:
        nonlocal refused
        refused = len(broker.seen[RequestCode.HEART_BEAT]) <= greeted
        return command.response()

    broker.answers[PULL] = forgetful
    broker.answers[RequestCode.HEART_BEAT] = heartbeat
    greeted = 2  # at the start, and with the first share
    never = {"heartbeat_interval_ms": 3_600_000, "rebalance_interval_ms": 3_600_000}
    async with Consumer(broker, pull_error_delay_ms=10, **never) as consumer:
        await until(lambda: len(consumer.got) == 3)


async def test_a_group_that_no_broker_knows_any_more_keeps_its_queues_and_is_made_known(
    broker: QueueBroker,
) -> None:
    async with Consumer(broker, rebalance_interval_ms=3_600_000) as consumer:
        greeted = len(broker.seen[RequestCode.HEART_BEAT])

        async def nobody(command: RemotingCommand) -> RemotingCommand:
            return command.response(1, "no consumer for this group, g")

        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = nobody
        await consumer.rebalance()
        assert len(broker.seen[RequestCode.HEART_BEAT]) > greeted
        assert len(consumer.assigned_queues) == 1
        del broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
        asked = len(broker.seen[RequestCode.GET_CONSUMER_LIST_BY_GROUP])
        consumer._rebalance_wanted.set()
        await until(lambda: len(broker.seen[RequestCode.GET_CONSUMER_LIST_BY_GROUP]) > asked)
        assert len(consumer.assigned_queues) == 1


async def test_a_refused_list_of_members_is_told_and_not_taken_for_an_empty_one(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "org.apache.rocketmq.acl.common.AclException: No accessKey")

    async with Consumer(broker) as consumer:
        beats = len(broker.seen[RequestCode.HEART_BEAT])
        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refuse
        await consumer.rebalance()
        assert len(consumer.assigned_queues) == 1
        assert len(broker.seen[RequestCode.HEART_BEAT]) == beats
    assert "No accessKey" in caplog.text
    assert "examine credentials" in caplog.text


async def test_a_rebalance_that_failed_is_repeated_soon(broker: QueueBroker) -> None:
    async def fails(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "not now")

    broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = fails
    broker.count = 1
    async with Consumer(broker, rebalance_interval_ms=3_600_000) as consumer:
        assert consumer.assigned_queues == []
        del broker.answers[RequestCode.QUERY_CONSUMER_OFFSET]
        await until(lambda: consumer.got)


async def test_a_failed_pull_is_repeated_after_a_pause(broker: QueueBroker) -> None:
    failures = 2

    async def flaky(command: RemotingCommand) -> RemotingCommand | None:
        nonlocal failures
        if failures:
            failures -= 1
            return command.response(1 if failures else 215, "not now")
        return await broker.pull(command)

    broker.answers[PULL] = flaky
    broker.count = 3
    async with Consumer(broker, pull_error_delay_ms=10) as consumer:
        await until(lambda: len(consumer.got) == 3)


async def test_a_topic_that_appears_later_is_found(broker: QueueBroker) -> None:
    route = broker.routes.pop("T")
    broker.count = 4
    async with Consumer(broker) as consumer:
        assert consumer.assigned_queues == []
        broker.routes["T"] = route
        await until(lambda: len(consumer.got) == 4)


async def test_a_suspended_consumer_gets_nothing_new(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.consumers.push.pulling.SUSPENDED_SECONDS", 0.01)
    consumer = Consumer(broker)
    consumer.suspend()
    broker.count = 2
    async with consumer:
        looks = looks_of(consumer, monkeypatch)
        await until(lambda: len(looks) >= 5)
        assert not broker.seen[PULL]
        consumer.resume()
        await until(lambda: len(consumer.got) == 2)


async def test_after_unsubscribing_the_queues_are_given_up(broker: QueueBroker) -> None:
    async with Consumer(broker) as consumer:
        consumer.unsubscribe("T")
        await until(lambda: not consumer.assigned_queues)
        await until(lambda: b'"topic":"T"' not in broker.seen[RequestCode.HEART_BEAT][-1].body)


async def test_a_wrong_answer_of_a_listener_counts_as_a_failure(broker: QueueBroker) -> None:
    consumer = Consumer(broker)

    async def listen(messages: list[MessageExt]) -> Any:
        return True

    consumer.subscribe("T", "*", listen)
    broker.count = 1
    async with consumer:
        await until(lambda: broker.seen[RequestCode.CONSUMER_SEND_MSG_BACK])


async def test_operators_requests_are_answered(broker: QueueBroker) -> None:
    broker.count = 5
    async with Consumer(broker) as consumer:
        await until(lambda: len(consumer.got) == 5)
        queue = MessageQueue("T", "a", 0)
        info = await broker.ask_client(307, consumerGroup="g", clientId=consumer.client_id)
        assert loads(info.body)["mqTable"][queue]["cachedMsgCount"] == 0
        status = await broker.ask_client(221, topic="T", group="g")
        assert loads(status.body) == {"messageQueueTable": {queue: 5}}
        assert (await broker.ask_client(307, consumerGroup="other")).code == 1
        assert (await broker.ask_client(326, group="g")).code == 3


async def test_a_queue_of_which_nothing_was_consumed_counts_from_when_it_was_taken(
    broker: QueueBroker,
) -> None:
    started_ms = clock.steady_ms()
    async with Consumer(broker) as consumer:
        await until(lambda: consumer._assignments)
        info = await broker.ask_client(307, consumerGroup="g", clientId=consumer.client_id)
        [queue] = [each for each in loads(info.body)["mqTable"].items() if each[0].topic == "T"]
        assert queue[1]["lastConsumeTimestamp"] >= started_ms


async def test_an_operator_may_have_one_message_consumed(broker: QueueBroker) -> None:
    async with Consumer(broker) as consumer:

        async def ask(properties: str = "") -> dict[str, Any]:
            request = RemotingCommand.request(
                309,
                {"consumerGroup": "g", "brokerName": "a"},
                body=record(77, b"again", properties),
            )
            answer = await broker.connections[0].request(request, timeout_seconds=30)
            result: dict[str, Any] = loads(answer.body)
            return result

        assert (await ask())["consumeResult"] == "CR_SUCCESS"
        assert consumer.got[-1].body == b"again"
        consumer.status = ConsumeStatus.RECONSUME_LATER
        assert (await ask())["consumeResult"] == "CR_LATER"
        consumer.unsubscribe("T")
        refused = await ask()
        assert refused["consumeResult"] == "CR_THROW_EXCEPTION"
        assert "no listener" in refused["remark"]


@pytest.mark.parametrize("is_overtaken", [False, True], ids=["in-order", "overtaken"])
async def test_offsets_can_be_reset_by_an_operator(
    broker: QueueBroker, *, is_overtaken: bool
) -> None:
    """``overtaken``: the broker applies an older report of the offset after the reset's."""

    async def old_offset(command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": "5"})

    broker.count = 5
    async with Consumer(broker) as consumer:
        await until(lambda: len(consumer.got) == 5)
        if is_overtaken:
            broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = old_offset
        queue = MessageQueue("T", "a", 0)
        request = RemotingCommand.request(
            220,
            {"topic": "T", "group": "g", "timestamp": 0, "isForce": True},
            body=dumps({"offsetTable": {queue: 2, MessageQueue("T", "a", 9): 1}}),
            oneway=True,
        )
        broker.connections[0].send_oneway(request)
        await until(lambda: len(consumer.got) == 8)
        assert [int(m.body) for m in consumer.got[5:]] == [2, 3, 4]


def test_both_forms_of_reset_offsets_are_read() -> None:
    queue = MessageQueue("T", "a", 1)
    as_list = [{"brokerName": "a", "queueId": 1, "topic": "T", "offset": 5}]
    for table in ({queue: 5, MessageQueue("U", "a", 0): 1}, as_list):
        assert parse_reset_offsets(dumps({"offsetTable": table}), "T") == {queue: 5}
    assert parse_reset_offsets(b"", "T") == {}
    for body in (b"{", b"[]", b'{"offsetTable":{"a":1}}', b'{"offsetTable":[{}]}'):
        with pytest.raises(RemoteProtocolError):
            parse_reset_offsets(body, "T")


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.QUERY_CONSUMER_OFFSET])
async def test_a_start_cancelled_twice_ends_all_and_started_again_it_consumes(
    broker: QueueBroker, code: RequestCode
) -> None:
    release = asyncio.Event()

    async def hold(command: RemotingCommand) -> RemotingCommand:
        await release.wait()
        return broker._default(command)

    broker.count = 2
    broker.answers[code] = hold
    consumer = Consumer(broker)
    tasks = asyncio.all_tasks()
    starting = asyncio.ensure_future(consumer.start())
    await until(lambda: broker.seen[code])
    for _ in range(2):  # the second one meets the undoing of what was begun
        starting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await starting
    release.set()
    del broker.answers[code]
    await consumer.start()
    assert consumer.assigned_queues == [MessageQueue("T", "a", 0)]
    await until(lambda: len(consumer.got) == 2)
    await consumer.close()
    mine = "kerolox/client/"

    def left() -> list[str]:
        coroutines = [task.get_coro() for task in asyncio.all_tasks() - tasks]
        files = [each.cr_code.co_filename for each in coroutines]  # type: ignore[union-attr]
        return [each for each in files if mine in each]

    await until(lambda: not left(), what="no task is left")


async def test_what_is_wrong_is_said_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError):
        PushConsumer("a b", "127.0.0.1:1")
    consumer = PushConsumer("g", "127.0.0.1:1")

    async def listen(messages: list[MessageExt]) -> None:
        return None

    with pytest.raises(MessageRejectedError):
        consumer.subscribe("a b", "*", listen)
    with pytest.raises(ConfigError, match="names no tag"):
        consumer.subscribe("T", " || ", listen)
    with pytest.raises(ConfigError, match="no subscription"):
        await consumer.start()
    consumer.subscribe("T", "*", listen)
    with pytest.raises(ConnectError, match="no name server"):
        await consumer.start()
    await consumer.close()
    with pytest.raises(ClientClosedError):
        await consumer.start()


async def test_a_start_asks_whether_conditions_are_served_and_says_when_not(
    broker: QueueBroker,
) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        asked = loads(command.body)
        assert asked["group"] == "g"
        assert asked["subscriptionData"]["subString"] == "a > 1"
        assert asked["subscriptionData"]["expressionType"] == "SQL92"
        return command.response(23, "parse error")

    broker.answers[RequestCode.CHECK_CLIENT_CONFIG] = refuse
    consumer = Consumer(broker)
    consumer.subscribe("T", "a > 1", consumer.listen)
    with pytest.raises(SubscriptionParseError, match="parse error"):
        await consumer.start()
    consumer.subscribe("T", "a", consumer.listen)  # tags are not asked about
    async with consumer:
        assert len(broker.seen[RequestCode.CHECK_CLIENT_CONFIG]) == 1
