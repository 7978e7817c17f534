"""The lite pull consumer against a broker that does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumeHook,
    LitePullConsumer,
    LitePullConsumerSettings,
)
from kerolox.client import sync as blocking
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConfigError,
    MessageRejectedError,
)
from kerolox.message import MessageExt, MessageQueue
from kerolox.protocol.codes import PullSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import dumps, loads
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import route_body
from tests.unit.client.test_push_consumer import PULL, QueueBroker, made_again

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUEUE = MessageQueue("T", "a", 0)
LONG_MS = int(SECONDS_MAX * 1000)


class Broker(QueueBroker):
    """It tells the range of its queue, too."""

    def __init__(self, count: int = 0) -> None:
        super().__init__(count)
        self.answers[RequestCode.GET_MIN_OFFSET] = self.least
        self.answers[RequestCode.GET_MAX_OFFSET] = self.most

    async def least(self, command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": 0})

    async def most(self, command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": self.count})


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as made:
        yield made


def consumer_of(broker: Broker, **settings: Any) -> LitePullConsumer:
    given = {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **settings}
    made = LitePullConsumer("g", broker.address, settings=LitePullConsumerSettings(**given))
    broker.members = [made.client_id]
    return made


def subscribed(broker: Broker, **settings: Any) -> LitePullConsumer:
    made = consumer_of(broker, **settings)
    made.subscribe("T")
    return made


async def polled(consumer: LitePullConsumer, count: int) -> list[int]:
    """The bodies of so many messages, as numbers."""
    got: list[int] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(got) < count:
            got += [int(message.body) for message in await consumer.poll(LONG_MS)]
    return got


# -- poll -----------------------------------------------------------------------------------------
async def test_polls_return_all_messages_in_order_in_lists_of_a_pull(broker: Broker) -> None:
    broker.count = 95
    async with subscribed(broker) as consumer:
        first = await consumer.poll()
        assert [m.queue_offset for m in first] == list(range(10))
        assert first[0].topic == "T"
        assert await polled(consumer, 85) == list(range(10, 95))
        assert await consumer.poll(0) == []
        broker.add(1)
        assert await polled(consumer, 1) == [95]


async def test_a_queue_of_a_topic_that_was_gone_is_read_from_its_start(broker: Broker) -> None:
    broker.count = 5
    async with subscribed(broker, pull_error_delay_ms=10) as consumer:
        assert await polled(consumer, 5) == list(range(5))
        await made_again(broker, 3)
        # The sixth message of before may come, or go with its topic.
        got = await polled(consumer, 3)
        if got[0] == 5:
            got = got[1:] + await polled(consumer, 1)
        assert got == [0, 1, 2]


async def test_a_poll_without_messages_ends_in_its_time(broker: Broker) -> None:
    async with subscribed(broker, poll_timeout_ms=1) as consumer:
        assert await consumer.poll() == []


async def test_poll_many_gathers_from_many_pulls_until_there_are_enough(broker: Broker) -> None:
    broker.count = 95
    async with subscribed(broker) as consumer:
        async with asyncio.timeout(SECONDS_MAX):
            found = await consumer.poll_many(LONG_MS, max_messages=35)
        assert {queue: [m.queue_offset for m in each] for queue, each in found.items()} == {
            QUEUE: list(range(35))
        }
        waiting = asyncio.ensure_future(consumer.poll_many(LONG_MS, max_messages=70))
        await until(lambda: consumer._machine.ready_count == 60)
        assert not waiting.done()
        broker.add(10)
        async with asyncio.timeout(SECONDS_MAX):
            found = await waiting
        assert [m.queue_offset for m in found[QUEUE]] == list(range(35, 105))


async def test_poll_many_gives_what_is_there_when_the_time_is_over(broker: Broker) -> None:
    broker.count = 5
    async with subscribed(broker) as consumer:
        await until(lambda: consumer._machine.ready_count == 5)
        found = await consumer.poll_many(1)
        assert [m.queue_offset for m in found[QUEUE]] == list(range(5))
        assert await consumer.poll_many(0) == {}
        for wrong in (0, -1):
            with pytest.raises(ConfigError, match="max_messages is"):
                await consumer.poll_many(0, max_messages=wrong)
        with pytest.raises(ConfigError, match="timeout_ms is -1"):
            await consumer.poll_many(-1)


async def test_what_poll_many_returned_is_consumed_when_the_user_comes_back(
    broker: Broker,
) -> None:
    broker.count = 20
    async with subscribed(broker, auto_commit=False) as consumer:
        await until(lambda: consumer._machine.ready_count == 20)
        await consumer.poll_many(0, max_messages=12)
        assert consumer._machine.queues[QUEUE].consumed == 0
        await consumer.poll_many(0, max_messages=3)
        assert consumer._machine.queues[QUEUE].consumed == 12


async def test_a_cancelled_or_closed_poll_many_loses_nothing(broker: Broker) -> None:
    broker.count = 20
    consumer = subscribed(broker)
    await consumer.start()
    await until(lambda: consumer._machine.ready_count == 20)
    waiting = asyncio.ensure_future(consumer.poll_many(LONG_MS, max_messages=21))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert consumer._machine.ready_count == 20
    waiting = asyncio.ensure_future(consumer.poll_many(LONG_MS, max_messages=21))
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(ClientClosedError):
        await waiting


async def test_a_pull_says_that_it_is_lite_and_what_is_wanted(broker: Broker) -> None:
    broker.count = 1
    consumer = consumer_of(broker)
    consumer.subscribe("T", "a || b", expression_type="TAG")
    async with consumer:
        await until(lambda: broker.seen[PULL])
    fields = broker.seen[PULL][0].ext_fields
    flags = PullSysFlag(int(fields["sysFlag"]))
    assert flags == PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL
    assert (fields["subscription"], fields["maxMsgNums"]) == ("a || b", "10")
    assert fields["suspendTimeoutMillis"] == "20000"


async def test_iteration_gives_single_messages_and_ends_with_the_close(broker: Broker) -> None:
    broker.count = 12
    got: list[int] = []
    consumer = subscribed(broker)
    await consumer.start()
    async with asyncio.timeout(SECONDS_MAX):
        async for message in consumer:
            got.append(int(message.body))
            if len(got) == 12:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, consumer.close())
    assert got == list(range(12))
    await consumer.close()
    # Eleven were done when the twelfth was asked for, and all when a thirteenth was.
    assert broker.committed["T", 0] == 12


async def test_a_poll_that_waits_ends_when_the_consumer_is_closed(broker: Broker) -> None:
    consumer = subscribed(broker)
    await consumer.start()
    waiting = asyncio.ensure_future(consumer.poll(LONG_MS))
    await until(lambda: broker.seen[PULL])
    await consumer.close()
    with pytest.raises(ClientClosedError):
        await asyncio.wait_for(waiting, SECONDS_MAX)
    with pytest.raises(ClientClosedError):
        await consumer.poll()


async def test_a_cancelled_poll_takes_no_message(broker: Broker) -> None:
    async with subscribed(broker) as consumer:
        waiting = asyncio.ensure_future(consumer.poll(LONG_MS))
        await until(lambda: broker.seen[PULL])
        # Both in one iteration of the event loop: it has messages, and is cancelled.
        broker.add(3)
        await until(lambda: consumer._machine.message_count or waiting.done())
        waiting.cancel()
        found = (await asyncio.gather(waiting, return_exceptions=True))[0]
        taken = [] if isinstance(found, BaseException) else [int(m.body) for m in found]
        assert taken + (await polled(consumer, 3) if not taken else []) == [0, 1, 2]


async def test_two_pollers_share_the_messages(broker: Broker) -> None:
    broker.count = 60
    async with subscribed(broker) as consumer:
        both = await asyncio.gather(polled(consumer, 30), polled(consumer, 30))
    assert sorted(both[0] + both[1]) == list(range(60))


async def test_pulling_ahead_is_bounded(broker: Broker) -> None:
    broker.count = 1_000
    async with subscribed(broker, cached_messages_in_all_max=15) as consumer:
        machine = consumer._machine
        await until(lambda: machine.message_count == 20)
        pulls = len(broker.seen[PULL])
        await asyncio.sleep(0)
        assert (machine.message_count, len(broker.seen[PULL])) == (20, pulls)
        assert await polled(consumer, 1_000) == list(range(1_000))


async def test_hooks_see_each_list_that_is_returned(broker: Broker) -> None:
    broker.count = 3
    seen: list[tuple[str, list[bytes], bool]] = []

    class Hook(ConsumeHook):
        def before_consume(self, context: ConsumeContext) -> None:
            seen.append(("before", [m.body for m in context.messages], context.is_success))

        def after_consume(self, context: ConsumeContext) -> None:
            seen.append(("after", [m.body for m in context.messages], context.is_success))

    async with subscribed(broker, consume_hooks=(Hook(),)) as consumer:
        await polled(consumer, 3)
    bodies = [b"0", b"1", b"2"]
    assert seen == [("before", bodies, False), ("after", bodies, True)]


# -- commits --------------------------------------------------------------------------------------
async def test_close_commits_all_but_what_the_last_poll_returned(broker: Broker) -> None:
    broker.count = 30
    async with subscribed(broker) as consumer:
        assert len(await polled(consumer, 20)) == 20
    assert broker.committed["T", 0] == 10
    [unregistered] = broker.seen[RequestCode.UNREGISTER_CLIENT]
    assert unregistered.ext_fields["consumerGroup"] == "g"


async def test_auto_commit_stores_what_counts_as_consumed_while_it_runs(broker: Broker) -> None:
    broker.count = 30
    given = {"auto_commit_interval_ms": 10, "persist_interval_ms": 10}
    async with subscribed(broker, **given) as consumer:
        await polled(consumer, 30)

        async def stored() -> bool:
            await consumer.poll(0)
            return broker.committed.get(("T", 0)) == 30

        await until(stored)


async def test_without_auto_commit_only_the_caller_commits(broker: Broker) -> None:
    broker.count = 30
    async with subscribed(broker, auto_commit=False) as consumer:
        await polled(consumer, 20)
        await consumer.commit_sync()
        assert broker.committed["T", 0] == 20
        await polled(consumer, 10)
    assert broker.committed["T", 0] == 20


async def test_commits_of_some_queues_and_of_given_offsets(broker: Broker) -> None:
    broker.count = 20
    async with subscribed(broker, auto_commit=False) as consumer:
        await polled(consumer, 10)
        await consumer.commit_sync([QUEUE])
        assert broker.committed["T", 0] == 10
        await consumer.commit_sync({QUEUE: 3})
        assert broker.committed["T", 0] == await consumer.committed(QUEUE) == 3
        await consumer.commit({QUEUE: 4})
        await until(lambda: broker.committed["T", 0] == 4)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.commit([QUEUE._replace(queue_id=9)])
        with pytest.raises(ConfigError, match="-1; it must be 0 or more"):
            await consumer.commit({QUEUE: -1})


async def test_a_commit_that_is_refused_is_an_error(broker: Broker) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "not now")

    async with subscribed(broker, auto_commit=False) as consumer:
        await until(lambda: broker.seen[PULL])
        broker.answers[UPDATE] = refuse
        with pytest.raises(BrokerError, match="not now"):
            await consumer.commit_sync({QUEUE: 0})


async def test_committed_of_another_queue_is_what_the_broker_says(broker: Broker) -> None:
    broker.committed["T", 5] = 77
    async with subscribed(broker) as consumer:
        assert await consumer.committed(QUEUE._replace(queue_id=5)) == 77
        assert await consumer.committed(QUEUE._replace(queue_id=6)) == -1


# -- seek, pause ----------------------------------------------------------------------------------
async def test_a_seek_gives_up_the_pull_that_is_held_and_what_is_cached(broker: Broker) -> None:
    broker.count = 20
    async with subscribed(broker) as consumer:
        await polled(consumer, 20)
        await until(lambda: broker.seen[PULL][-1].ext_fields["queueOffset"] == "20")
        await consumer.seek(QUEUE, 5)
        assert await polled(consumer, 15) == list(range(5, 20))
        await consumer.seek_to_begin(QUEUE)
        await until(lambda: consumer._machine.message_count == 20)
        await consumer.seek_to_end(QUEUE)
        broker.add(1)
        assert await polled(consumer, 1) == [20]
        await consumer.seek_to_begin(QUEUE)
    assert broker.committed["T", 0] == 0


async def test_a_seek_beyond_what_is_stored_or_elsewhere_is_refused(broker: Broker) -> None:
    broker.count = 20
    async with subscribed(broker) as consumer:
        with pytest.raises(ClientError, match=r"offset 21 of .* is not from 0 to 20"):
            await consumer.seek(QUEUE, 21)
        with pytest.raises(ClientError, match="a rebalance may have taken it away"):
            await consumer.seek(QUEUE._replace(queue_id=1), 0)


async def test_a_paused_queue_returns_nothing_until_it_is_resumed(broker: Broker) -> None:
    broker.count = 20
    async with subscribed(broker) as consumer:
        await until(lambda: consumer._machine.message_count == 20)
        consumer.pause([QUEUE])
        assert await consumer.poll(0) == []
        waiting = asyncio.ensure_future(polled(consumer, 20))
        await asyncio.sleep(0)
        consumer.resume([QUEUE])
        assert await waiting == list(range(20))


# -- assignment -----------------------------------------------------------------------------------
async def test_assigned_queues_are_read_whoever_else_reads_them(broker: Broker) -> None:
    broker.count = 10
    consumer = consumer_of(broker)
    broker.members = ["someone else"]
    consumer.assign([QUEUE])
    async with consumer:
        assert consumer.assigned_queues == [QUEUE]
        assert await polled(consumer, 10) == list(range(10))
        await consumer.poll(0)
        other = QUEUE._replace(topic="U")
        broker.routes["U"] = broker.routes["T"]
        consumer.assign([other])
        assert consumer.assigned_queues == [other]
        await until(lambda: broker.committed.get(("T", 0)) == 10, what="the offset of what left")
        consumer.assign([QUEUE])
        broker.add(1)
        assert await polled(consumer, 1) == [10]


async def test_subscribe_and_assign_exclude_each_other(broker: Broker) -> None:
    one, other = subscribed(broker), consumer_of(broker)
    with pytest.raises(ClientError, match="exclude each other"):
        one.assign([QUEUE])
    other.assign([QUEUE])
    with pytest.raises(ClientError, match="exclude each other"):
        other.subscribe("T")
    with pytest.raises(ConfigError, match="at least one"):
        other.assign([])
    with pytest.raises(MessageRejectedError):
        one.subscribe("no topic")


async def test_a_topic_may_be_subscribed_and_unsubscribed_while_it_runs(broker: Broker) -> None:
    broker.count = 5
    async with consumer_of(broker) as consumer:
        assert await consumer.poll(0) == []
        consumer.subscribe("T")
        assert await polled(consumer, 5) == list(range(5))
        await consumer.poll(0)
        consumer.unsubscribe("T")
        await until(lambda: not consumer.assigned_queues)
        assert broker.committed["T", 0] == 5
        broker.add(5)
        assert await consumer.poll(0) == []
        consumer.subscribe("T")
        assert await polled(consumer, 5) == list(range(5, 10))


async def test_a_topic_that_is_subscribed_again_at_once_goes_on(broker: Broker) -> None:
    broker.count = 5
    async with subscribed(broker) as consumer:
        await until(lambda: consumer._machine.message_count == 5)
        consumer.unsubscribe("T")
        assert await consumer.poll(0) == []
        consumer.subscribe("T")
        assert await polled(consumer, 5) == list(range(5))


async def test_queues_that_are_lost_are_told_stored_and_never_returned(broker: Broker) -> None:
    broker.count = 30
    told: list[tuple[str, list[MessageQueue]]] = []
    consumer = subscribed(broker)

    async def revoked(queues: list[MessageQueue]) -> None:
        told.append(("revoked", queues))
        assert await consumer.poll(0) == []
        await consumer.commit_sync(queues)
        raise RuntimeError("the user's own")

    def assigned(queues: list[MessageQueue]) -> None:
        told.append(("assigned", queues))

    consumer.on_revoked(revoked)
    consumer.on_assigned(assigned)
    async with consumer:
        assert told == [("assigned", [QUEUE])]
        await polled(consumer, 20)
        await until(lambda: consumer._machine.message_count == 10)
        broker.members = ["!", consumer.client_id]  # one queue, which is the other's
        await consumer.rebalance()
        assert told[1:] == [("revoked", [QUEUE])]
        assert broker.committed["T", 0] == 20
        assert await consumer.poll(0) == []
        broker.members = [consumer.client_id]
        await consumer.rebalance()
        assert await polled(consumer, 10) == list(range(20, 30))


async def test_a_close_tells_what_is_lost_so_that_it_may_be_committed(broker: Broker) -> None:
    broker.count = 10
    told: list[list[MessageQueue]] = []
    consumer = subscribed(broker, auto_commit=False)

    async def revoked(queues: list[MessageQueue]) -> None:
        told.append(queues)
        await consumer.commit_sync()

    consumer.on_revoked(revoked)
    async with consumer:
        await polled(consumer, 10)
    assert told == [[QUEUE]]
    assert broker.committed["T", 0] == 10


async def test_a_close_waits_for_no_callback_that_does_not_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "kerolox.client.aio.consumers.lite_pull_consumer.PARTING_SECONDS_MAX"
    monkeypatch.setattr(name, 0.01)
    consumer = subscribed(broker)

    async def revoked(queues: list[MessageQueue]) -> None:
        await asyncio.Event().wait()

    consumer.on_revoked(revoked)
    await consumer.start()
    async with asyncio.timeout(SECONDS_MAX):
        await consumer.close()
    assert broker.seen[RequestCode.UNREGISTER_CLIENT]


async def test_a_listener_of_assigned_queues_may_seek_them(broker: Broker) -> None:
    broker.count = 30
    consumer = subscribed(broker)

    async def assigned(queues: list[MessageQueue]) -> None:
        for queue in queues:
            await consumer.seek(queue, 25)

    consumer.on_assigned(assigned)
    async with consumer:
        assert await polled(consumer, 5) == list(range(25, 30))
    assert {int(pull.ext_fields["queueOffset"]) for pull in broker.seen[PULL]} == {25, 30}


async def test_a_broker_that_says_that_the_group_changed_has_it_rebalance(broker: Broker) -> None:
    async with subscribed(broker) as consumer:
        broker.members = []
        broker.members.append("!")
        broker.members.append(consumer.client_id)
        answer = RemotingCommand.request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, oneway=True
        )
        broker.connections[0].send_oneway(answer)
        await until(lambda: not consumer.assigned_queues)


async def test_listeners_hear_when_the_queues_of_a_topic_change(broker: Broker) -> None:
    heard: list[list[MessageQueue]] = []
    consumer = subscribed(broker, topic_check_interval_ms=10)
    consumer.register_topic_queue_listener("T", heard.append)
    async with consumer:
        asked = len(broker.seen[RequestCode.GET_ROUTEINFO_BY_TOPIC])
        await until(lambda: len(broker.seen[RequestCode.GET_ROUTEINFO_BY_TOPIC]) > asked + 2)
        assert not heard
        broker.routes["T"] = route_body({"a": broker.address}, queues=2)
        await until(lambda: heard)
        assert heard == [[QUEUE, QUEUE._replace(queue_id=1)]]
        # Its share grows with it.
        await until(lambda: len(consumer.assigned_queues) == 2)


# -- what fails -----------------------------------------------------------------------------------
async def test_a_failed_pull_is_repeated_and_slow_brokers_are_asked_soon(broker: Broker) -> None:
    broker.count = 3
    codes = [1, 215, 2]

    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        if codes:
            return command.response(codes.pop(), "later")
        return await broker.pull(command)

    broker.answers[PULL] = pull
    async with subscribed(broker, pull_error_delay_ms=1) as consumer:
        assert await polled(consumer, 3) == [0, 1, 2]
    assert not codes


async def test_an_offset_beyond_the_end_is_corrected(broker: Broker) -> None:
    broker.committed["T", 0] = 1_000
    broker.count = 10
    async with subscribed(broker) as consumer:
        await until(lambda: len(broker.seen[PULL]) >= 2)
        broker.add(1)
        assert await polled(consumer, 1) == [10]
        await consumer.poll(0)
    assert broker.committed["T", 0] == 11


async def test_a_start_that_fails_can_be_repeated(broker: Broker) -> None:
    broker.count = 5
    consumer = consumer_of(broker)
    consumer.subscribe("T", "a > 5")

    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "The broker does not support SQL92")

    broker.answers[RequestCode.CHECK_CLIENT_CONFIG] = refuse
    with pytest.raises(BrokerError, match="SQL92"):
        await consumer.start()
    consumer.subscribe("T", "*")
    async with consumer:
        assert await polled(consumer, 5) == list(range(5))


async def test_a_close_that_comes_while_queues_are_taken_away_ends(broker: Broker) -> None:
    broker.count = 10
    consumer = subscribed(broker)
    reached = asyncio.Event()

    async def revoked(queues: list[MessageQueue]) -> None:
        reached.set()
        await asyncio.Event().wait()

    consumer.on_revoked(revoked)
    await consumer.start()
    await polled(consumer, 10)
    await consumer.poll(0)
    broker.members = ["!", consumer.client_id]
    consumer._group_member.rebalance_wanted.set()
    await asyncio.wait_for(reached.wait(), SECONDS_MAX)
    await asyncio.wait_for(consumer.close(), SECONDS_MAX)
    assert broker.committed["T", 0] == 10
    assert not consumer._background._tasks


@pytest.mark.parametrize("from_within", ["assigned", "revoked"])
async def test_a_listener_may_close_its_own_consumer(broker: Broker, from_within: str) -> None:
    broker.count = 10
    consumer = subscribed(broker)
    closed = asyncio.Event()

    async def close(queues: list[MessageQueue]) -> None:
        if len(broker.members) == 2:
            closed.set()
            await consumer.close()

    consumer.on_revoked(close)
    await consumer.start()
    broker.members = ["!", consumer.client_id]
    if from_within == "assigned":
        consumer.on_revoked(lambda queues: None)
        await consumer.rebalance()
        consumer.on_assigned(close)
        broker.members = [consumer.client_id, "~"]
    consumer._group_member.rebalance_wanted.set()
    await asyncio.wait_for(closed.wait(), SECONDS_MAX)
    await asyncio.wait_for(consumer.close(), SECONDS_MAX)


# -- what operators ask ---------------------------------------------------------------------------
async def test_operators_see_it_and_may_move_its_offsets(broker: Broker) -> None:
    broker.count = 20
    async with subscribed(broker) as consumer:
        await polled(consumer, 20)
        ask = {"consumerGroup": "g", "clientId": consumer.client_id}
        info = loads((await broker.ask_client(307, **ask)).body)
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert set(info["mqTable"]) == {QUEUE}
        request = RemotingCommand.request(220, {"topic": "T", "group": "g"})
        request.body = dumps({"offsetTable": {QUEUE: 15}})
        assert (await broker.connections[0].request(request, timeout_seconds=30)).code == 0
        assert broker.committed["T", 0] == 15
        assert await polled(consumer, 5) == list(range(15, 20))
        table = loads((await broker.ask_client(221, group="g", topic="T")).body)
        assert table["messageQueueTable"] == {QUEUE: 15}
        assert (await broker.ask_client(309, consumerGroup="g")).code == 3
    [data] = loads(broker.seen[RequestCode.HEART_BEAT][-1].body)["consumerDataSet"]
    assert data["consumeType"] == "CONSUME_ACTIVELY"


# -- the blocking client ---------------------------------------------------------------------------
async def test_the_blocking_client_polls_iterates_and_tells(broker: Broker) -> None:
    broker.count = 25
    given = blocking.LitePullConsumerSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer = blocking.LitePullConsumer("g", broker.address, settings=given)
    broker.members = [consumer.client_id]
    told: list[list[MessageQueue]] = []

    def run() -> list[int]:
        consumer.subscribe("T")
        consumer.on_assigned(told.append)
        with consumer:
            got = [int(m.body) for m in consumer.poll(LONG_MS)]
            for message in consumer:
                assert isinstance(message, MessageExt)
                got.append(int(message.body))
                if len(got) == 25:
                    break
            consumer.commit_sync()
        assert list(consumer) == []
        return got

    assert await asyncio.to_thread(run) == list(range(25))
    assert told == [[QUEUE]]
    assert broker.committed["T", 0] == 25


# -- settings -------------------------------------------------------------------------------------
def test_the_defaults_are_rocketmq_s() -> None:
    given = LitePullConsumerSettings()
    assert (given.auto_commit, given.auto_commit_interval_ms) == (True, 5_000)
    assert (given.poll_timeout_ms, given.pull_batch_size, given.pull_concurrency) == (5_000, 10, 20)
    assert (given.cached_messages_in_all_max, given.cached_messages_max) == (10_000, 1_000)
    assert (given.cached_mib_max, given.cached_span_max) == (100, 2_000)
    assert given.topic_check_interval_ms == 30_000
    assert (given.suspend_timeout_ms, given.suspended_pull_timeout_ms) == (20_000, 30_000)


@pytest.mark.parametrize(
    "name", ["pull_batch_size", "pull_concurrency", "cached_messages_in_all_max"]
)
def test_wrong_settings_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        LitePullConsumerSettings(**{name: 0})
