"""The pull consumer against a broker that does what it is told: offsets, its share, send-backs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.client import ConsumeContext, ConsumeHook, PullConsumer, PullConsumerSettings
from kerolox.errors import ClientClosedError, ClientError, ConfigError, TopicRouteNotFoundError
from kerolox.message import MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import loads
from tests.support.eventually import until
from tests.support.servers.fake_broker import route_body
from tests.unit.client.test_push_consumer import QueueBroker

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.protocol.command import RemotingCommand

QUEUE = MessageQueue("T", "a", 0)
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker(3) as made:
        yield made


def consumer_of(broker: QueueBroker, **settings: Any) -> PullConsumer:
    return PullConsumer("g", broker.address, settings=PullConsumerSettings(**settings))


async def test_noted_offsets_are_stored_from_time_to_time_and_at_close(broker: QueueBroker) -> None:
    async with consumer_of(broker, persist_interval_ms=10) as consumer:
        consumer.update_consume_offset(QUEUE, 2)
        assert await consumer.fetch_consume_offset(QUEUE) == 2
        await consumer.queues("T")  # offsets go where a route leads
        await until(lambda: broker.committed.get(("T", 0)) == 2)
    async with consumer_of(broker) as consumer:
        await consumer.queues("T")
        consumer.update_consume_offset(QUEUE, 3)
        assert await consumer.fetch_consume_offset(QUEUE, from_store=True) == 2
        assert await consumer.committed(QUEUE) == 2
        with pytest.raises(ConfigError, match="0 or more"):
            consumer.update_consume_offset(QUEUE, -1)
    assert broker.committed["T", 0] == 3
    with pytest.raises(ClientClosedError):
        consumer.update_consume_offset(QUEUE, 4)


async def test_an_offset_that_is_only_examined_is_not_stored_again(broker: QueueBroker) -> None:
    broker.committed["T", 0] = 1
    async with consumer_of(broker, persist_interval_ms=10) as consumer:
        assert await consumer.fetch_consume_offset(QUEUE) == 1
        broker.committed["T", 0] = 2  # by someone else
        await consumer._persist(wait=True)
    assert not broker.seen[RequestCode.UPDATE_CONSUMER_OFFSET]


async def test_a_commit_is_not_undone_by_what_was_noted_before(broker: QueueBroker) -> None:
    async with consumer_of(broker) as consumer:
        consumer.update_consume_offset(QUEUE, 1)
        await consumer.commit(QUEUE, 3)
    assert broker.committed["T", 0] == 3


async def test_a_broadcasting_one_keeps_its_offsets_in_a_file(
    broker: QueueBroker, tmp_path: Path
) -> None:
    given = {"message_model": MessageModel.BROADCASTING, "local_offset_folder": tmp_path}
    async with consumer_of(broker, **given) as consumer:
        await consumer.commit(QUEUE, 2)
        assert await consumer.committed(QUEUE) == 2
        consumer.update_consume_offset(QUEUE._replace(queue_id=1), 5)
    stored = loads((tmp_path / consumer.client_id / "g" / "offsets.json").read_bytes())
    assert stored["offsetTable"] == {QUEUE: 2, QUEUE._replace(queue_id=1): 5}
    assert not broker.seen[RequestCode.UPDATE_CONSUMER_OFFSET]


async def test_its_share_is_that_of_a_member_of_the_group(broker: QueueBroker) -> None:
    broker.routes["T"] = route_body({"a": broker.address}, queues=4)
    async with consumer_of(broker) as consumer:
        broker.members = [consumer.client_id, "~"]
        share = await consumer.fetch_message_queues_in_balance("T")
        assert share == [QUEUE, QUEUE._replace(queue_id=1)]
        broker.members = ["!"]
        with pytest.raises(TopicRouteNotFoundError):
            await consumer.fetch_message_queues_in_balance("nowhere")
        # A broker that does not know it is greeted first.
        assert not broker.seen[RequestCode.HEART_BEAT]
        await consumer.fetch_message_queues_in_balance("T")
        [beat] = broker.seen[RequestCode.HEART_BEAT]
    [data] = loads(beat.body)["consumerDataSet"]
    assert [each["topic"] for each in data["subscriptionDataSet"]] == ["T"]


async def test_a_message_is_given_back_to_its_broker(broker: QueueBroker) -> None:
    async with consumer_of(broker, max_reconsume_times=7) as consumer:
        [first, *_] = (await consumer.pull(QUEUE, 0)).messages
        await consumer.send_message_back(first, delay_level=2)
        fields = broker.seen[BACK][0].ext_fields
        assert (fields["delayLevel"], fields["maxReconsumeTimes"]) == ("2", "7")
        assert (fields["originTopic"], fields["group"], fields["offset"]) == ("T", "g", "0")
        with pytest.raises(ConfigError, match="from -1 to 18"):
            await consumer.send_message_back(first, delay_level=99)


async def test_a_message_that_no_way_takes_back_is_an_error(broker: QueueBroker) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "no")

    broker.answers[BACK] = broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse
    async with consumer_of(broker) as consumer:
        [first, *_] = (await consumer.pull(QUEUE, 0)).messages
        with pytest.raises(ClientError, match="could not be given back"):
            await consumer.send_message_back(first)


async def test_hooks_see_each_pull_that_found_messages(broker: QueueBroker) -> None:
    seen: list[tuple[str, int, bool]] = []

    class Hook(ConsumeHook):
        def before_consume(self, context: ConsumeContext) -> None:
            seen.append(("before", len(context.messages), context.is_success))

        def after_consume(self, context: ConsumeContext) -> None:
            seen.append(("after", len(context.messages), context.is_success))

    async with consumer_of(broker, consume_hooks=(Hook(),)) as consumer:
        await consumer.pull(QUEUE, 0)
    assert seen == [("before", 3, False), ("after", 3, True)]
