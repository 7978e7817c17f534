"""What operators ask, by ``Admin``, of our broker and of the Java broker: the same answers."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest
import pytest_asyncio

from kerolox.admin import (
    END,
    Account,
    Admin,
    SubscriptionGroupConfig,
    TopicKind,
    TrackType,
    UnitTopics,
)
from kerolox.client import PushConsumerSettings, connect
from kerolox.client import sync as blocking
from kerolox.errors import (
    BrokerError,
    ClientError,
    ConsumerNotOnlineError,
    NotFoundError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    TopicNotFoundError,
    TopicRouteNotFoundError,
)
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.protocol.names import RETRY_PREFIX, TOOLS_GROUP
from kerolox.release import __version__
from tests.contract.conftest import FIRST
from tests.support.eventually import until, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

MESSAGES, COMMITTED = 10, 4
CLUSTER = "DefaultCluster"


class Scene(NamedTuple):
    """A topic with ten messages in its first queue, a consumer of it, and a producer."""

    cluster: Cluster
    topic: str
    queue: MessageQueue
    group: str
    client_id: str
    producers: str
    message: MessageExt


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    topic, group = f"T{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    got: list[MessageExt] = []
    settings = PushConsumerSettings(
        consume_from_where=FIRST, persist_interval_ms=100, rebalance_interval_ms=500
    )
    with blocking.Producer(f"p-{group}", cluster.name_server) as producer:
        producer.create_topic(topic, queues=4)
        wait_until(lambda: _has(producer, topic), what="the route")
        [queue, *_] = producer.queues(topic)
        for number in range(MESSAGES):
            body, tag = b"%d" % number, "red" if number % 2 else "blue"
            producer.send(Message(topic, body, tags=tag, keys=f"k{number} all"), queue=queue)
        consumer = blocking.PushConsumer(group, cluster.name_server, settings=settings)
        consumer.subscribe(topic, "*", got.extend)
        with consumer:
            wait_until(lambda: len(got) == MESSAGES, what="all messages")
            first = min(got, key=lambda message: message.queue_offset)
            yield Scene(cluster, topic, queue, group, consumer.client_id, producer.group, first)


def _has(producer: blocking.Producer, topic: str) -> bool:
    with suppress(TopicRouteNotFoundError):
        return bool(producer.queues(topic))
    return False


@pytest_asyncio.fixture
async def admin(scene: Scene) -> AsyncIterator[Admin]:
    async with Admin(scene.cluster.name_server) as made:
        yield made


@pytest.fixture
def broker(scene: Scene) -> str:
    return scene.cluster.broker


# -- topics -------------------------------------------------------------------------------------
async def test_topics_are_listed_with_clusters_and_groups(
    admin: Admin, scene: Scene, broker: str
) -> None:
    assert scene.topic in await admin.list_topics()
    assert scene.topic in await admin.topics_of_cluster(CLUSTER)
    assert await admin.topic_clusters(scene.topic) == [CLUSTER]
    [mine] = [each for each in await admin.topics_with_groups() if each.topic == scene.topic]
    assert mine.clusters == (CLUSTER,)
    assert scene.group in mine.groups
    assert scene.group in await admin.groups_of_topic(scene.topic)
    settings = await admin.all_topic_settings(broker, internal=False, groups=False)
    assert settings[scene.topic].write_queue_nums == 4
    assert "SCHEDULE_TOPIC_XXXX" in await admin.system_topics(broker=broker)
    assert CLUSTER in await admin.system_topics()
    assert not [name for name in settings if name.startswith(RETRY_PREFIX) or name == "TBW102"]
    for which in UnitTopics:
        assert scene.topic not in await admin.unit_topics(which.value)


async def test_a_topic_is_made_changed_described_and_deleted(admin: Admin, broker: str) -> None:
    name = f"T{uuid.uuid4().hex[:8]}"
    assert await admin.create_topic(name, queues=2, order=True) == [broker]
    assert (await admin.topic_order(name) or "").endswith(":2")
    assert (await admin.update_topic(name, queues=3, perm=6))[0].new.write_queue_nums == 3

    async def has_three() -> bool:
        with suppress(TopicRouteNotFoundError, TopicNotFoundError):
            return len((await admin.describe_topic(name)).queues) == 3
        return False

    await until(has_three, what="three queues")
    shares = await admin.allocate_queues(name, ["10.0.0.2", "10.0.0.1"])
    assert {client: len(queues) for client, queues in shares.items()} == {
        "10.0.0.1": 2,
        "10.0.0.2": 1,
    }
    assert await admin.delete_topic(name) == [broker]
    assert await admin.topic_settings(broker, name) is None


async def test_attributes_are_kept_or_the_broker_that_keeps_none_is_named(
    admin: Admin, scene: Scene, broker: str
) -> None:
    name, fifo = f"T{uuid.uuid4().hex[:8]}", {"message.type": "FIFO"}
    if scene.cluster.kind == "java":
        with pytest.raises(ClientError, match=f"is on {broker} without the attributes: a broker"):
            await admin.create_topic(name, attributes=fifo)
        kept: list[dict[str, str]] = []
    else:
        await admin.create_topic(name, attributes=fifo)
        kept = [fifo]

    async def is_listed() -> bool:
        return name in await admin.list_topics()

    await until(is_listed, what="the topic's route")
    assert list((await admin.topic_attributes(name)).values()) == kept
    # Without a type a topic takes all.
    wanted = "FIFO" if kept else "MIXED"
    found = await admin.topic_summaries([TopicKind.NORMAL], message_types=[wanted])
    assert [each.message_types for each in found if each.topic == name] == [("FIFO",) * len(kept)]
    assert await admin.delete_topic(name) == [broker]


# -- groups and their members -------------------------------------------------------------------
async def test_a_group_is_made_changed_and_deleted(admin: Admin, broker: str) -> None:
    name = f"g-{uuid.uuid4().hex[:8]}"
    await admin.put_group(SubscriptionGroupConfig(group_name=name, retry_max_times=3))
    [change] = await admin.update_group(name, consume_enable=False)
    assert change.old is not None
    assert (change.old.retry_max_times, change.new.retry_max_times) == (3, 3)
    found = await admin.group_settings(broker, name)
    assert found is not None
    assert not found.consume_enable
    assert name in await admin.list_groups()
    assert TOOLS_GROUP not in await admin.list_groups(cluster=CLUSTER)
    assert TOOLS_GROUP in await admin.list_groups(internal=True)
    assert await admin.delete_group(name, remove_offsets=True) == [broker]
    assert await admin.group_settings(broker, name) is None
    with pytest.raises(ClientError, match="belongs to RocketMQ itself"):
        await admin.delete_group(TOOLS_GROUP)


async def test_members_of_groups_are_shown(admin: Admin, scene: Scene, broker: str) -> None:
    online = await admin.consumer_connections(scene.group)
    assert [member.client_id for member in online.members] == [scene.client_id]
    assert online.members[0].language == "PYTHON"
    assert (online.consume_type, online.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert [each.topic for each in online.subscriptions if each.topic == scene.topic]
    assert await admin.consumer_connections(scene.group, broker=broker) == online

    async def has_producers() -> bool:  # they come with the first heartbeat
        with suppress(ClientError):
            return bool(await admin.producer_connections(scene.producers, topic=scene.topic))
        return False

    await until(has_producers, what="the producer's heartbeat")
    [member] = await admin.producer_connections(scene.producers, broker=broker)
    mine = [each for each in await admin.all_producers(broker) if each.group == scene.producers]
    assert [(each.client_id, each.address) for each in mine] == [(member.client_id, member.address)]
    with pytest.raises(ConsumerNotOnlineError):
        await admin.consumer_connections("nobody")
    with pytest.raises(ClientError, match="no member of producer group 'nobody'"):
        await admin.producer_connections("nobody", topic=scene.topic)


async def test_a_consumer_says_what_it_does(admin: Admin, scene: Scene) -> None:
    info = await admin.consumer_running_info(scene.group, scene.client_id)
    assert info.is_push
    assert not info.is_orderly
    assert scene.queue in {each.queue for each in info.queues}
    assert scene.topic in {each.topic for each in info.consumption}
    status = await admin.consumer_status(scene.group)
    assert [each.client_id for each in status.members] == [scene.client_id]
    assert status.has_same_subscriptions
    assert (status.silent, status.findings) == ({}, ())
    assert info.kerolox_version == __version__
    assert status.software == {scene.client_id: f"Kerolox {__version__}"}
    offsets = await admin.consumer_offsets(scene.group, scene.topic)
    assert offsets[scene.client_id][scene.queue] == MESSAGES
    with pytest.raises(BrokerError, match="not online"):
        await admin.consumer_running_info(scene.group, "nobody")


# -- progress and offsets -----------------------------------------------------------------------
async def test_progress_is_the_distance_between_offsets(
    admin: Admin, scene: Scene, broker: str
) -> None:
    async def is_committed() -> bool:
        with suppress(ConsumerNotOnlineError):
            progress = await admin.group_progress(scene.group, topic=scene.topic)
            return progress.queues[0].consumer_offset == MESSAGES
        return False

    await until(is_committed, what="the commit of all messages")
    progress = await admin.group_progress(scene.group, topic=scene.topic, clients=True)
    [first, *others] = progress.queues
    assert (first.queue, first.broker_offset, first.lag) == (scene.queue, MESSAGES, 0)
    assert {each.client_id for each in (first, *others)} == {scene.client_id}
    assert abs(first.last_consumed_ms - time.time() * 1000) < 3_600_000
    [mine] = [each for each in await admin.all_group_progress() if each.group == scene.group]
    assert (mine.members, mine.consume_type, mine.lag) == (1, "CONSUME_PASSIVELY", 0)
    on_broker = await admin.broker_progress(broker)
    queues = {
        each.queue for one in on_broker.groups if one.group == scene.group for each in one.queues
    }
    assert scene.queue in queues
    none_far = await admin.broker_progress(broker, lag_min=1_000_000)
    assert none_far.groups == ()
    [span, *_] = await admin.consume_time_spans(scene.group, scene.topic)
    assert span.queue == scene.queue
    assert 0 < span.min_ms <= span.consumed_ms <= span.max_ms
    assert span.delay_ms == 0


async def test_offsets_of_a_group_that_is_not_online_are_set(admin: Admin, scene: Scene) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    await admin.set_offset(group, scene.queue, COMMITTED)
    assert await admin.get_offset(group, scene.queue) == COMMITTED
    with pytest.raises(ClientError, match="offset -1 is none"):
        await admin.set_offset(group, scene.queue, -1)

    async def reset(timestamp_ms: int, *, force: bool = True) -> int:
        found = await admin.reset_offsets(group, scene.topic, timestamp_ms, force=force)
        assert len(found) == 4
        assert not any(each.is_online for each in found)
        assert await admin.get_offset(group, scene.queue) == found[0].offset
        return found[0].offset

    assert await reset(END, force=False) == COMMITTED
    assert await reset(END) == MESSAGES
    assert await reset(0) == 0
    skipped = await admin.skip_backlog(group, scene.topic)
    assert (skipped[0].queue, skipped[0].offset) == (scene.queue, MESSAGES)
    copy = f"g-{uuid.uuid4().hex[:8]}"
    tried = await admin.clone_offsets(scene.group, copy, topic=scene.topic, dry_run=True)
    assert await admin.get_offset(copy, scene.queue) != MESSAGES
    assert await admin.clone_offsets(scene.group, copy, topic=scene.topic) == tried
    assert await admin.get_offset(copy, scene.queue) == MESSAGES
    # Groups that were never online have no retry topic, by which their brokers are found.
    for topic in (scene.topic, ""):
        progress = await admin.group_progress(copy, topic=topic)
        assert progress.queues[0].consumer_offset == MESSAGES


async def test_offsets_of_a_group_that_is_online_go_to_its_members(
    admin: Admin, scene: Scene
) -> None:
    found = await admin.reset_offsets(scene.group, scene.topic, END)
    assert [(each.offset, each.is_online) for each in found] == [
        (MESSAGES, True),
        *[(0, True)] * 3,
    ]


# -- brokers and name servers -------------------------------------------------------------------
async def test_a_broker_tells_its_metrics(admin: Admin, scene: Scene, broker: str) -> None:
    runtime = await admin.broker_runtime(broker)
    assert runtime.version.startswith("V4_9")
    assert runtime.log_max_offset > runtime.log_min_offset >= 0
    assert runtime.put_totals.now >= MESSAGES
    assert 0 < runtime.log_disk_ratio < 1
    assert runtime.values["brokerVersionDesc"] == runtime.version
    assert runtime.send_queue.capacity > 0
    [node] = await admin.cluster_status(cluster=CLUSTER)
    assert (node.address, node.broker_id, node.error) == (broker, 0, "")
    assert node.runtime is not None
    with pytest.raises(ClientError, match="there is no cluster 'X'"):
        await admin.cluster_status(cluster="X")
    if scene.cluster.kind == "java":
        with pytest.raises(RequestCodeNotSupportedError):
            await admin.replication_status(broker)
    else:
        assert (await admin.replication_status(broker)).is_master


async def test_settings_of_brokers_are_changed_and_read(admin: Admin, broker: str) -> None:
    before = (await admin.broker_settings(broker))["fileReservedTime"]
    assert list(await admin.update_broker_settings({"fileReservedTime": "71"})) == [broker]
    assert (await admin.broker_settings(broker))["fileReservedTime"] == "71"
    await admin.update_broker_settings({"fileReservedTime": before}, broker=broker)


async def test_queue_entries_name_places_in_the_log(admin: Admin, scene: Scene) -> None:
    found = await admin.queue_entries(scene.queue, 0, count=3)
    assert (found.min_offset, found.max_offset) == (0, MESSAGES)
    assert [entry.queue_offset for entry in found.entries] == [0, 1, 2]
    assert found.entries[0].log_offset == scene.message.commit_log_offset
    assert found.entries[0].size == scene.message.store_size
    of_group = await admin.queue_entries(scene.queue, 0, count=1, group=scene.group)
    assert of_group.subscription is not None
    assert of_group.subscription.topic == scene.topic
    assert (await admin.queue_entries(scene.queue, MESSAGES)).entries == ()
    with pytest.raises(BrokerError, match="not exist"):
        await admin.queue_entries(scene.queue._replace(queue_id=99), 0)


async def test_a_broker_is_cleaned(admin: Admin, broker: str) -> None:
    assert await admin.clean_expired_queues() == [broker]
    assert await admin.clean_unused_topics(cluster=CLUSTER) == [broker]
    assert await admin.delete_expired_log(broker=broker) == [broker]


async def test_name_servers_keep_key_values(admin: Admin, scene: Scene) -> None:
    address = scene.cluster.name_server
    assert await admin.put_key_value("space", "key", "a=b;c") == [address]
    assert await admin.get_key_value("space", "key") == "a=b;c"
    assert await admin.key_values("space") == {"key": "a=b;c"}
    assert await admin.delete_key_value("space", "key") == [address]
    assert await admin.get_key_value("space", "key") is None
    assert await admin.key_values("nowhere") == {}
    assert await admin.put_topic_order("SomeTopic", "broker-a:4") == [address]
    assert await admin.topic_order("SomeTopic") == "broker-a:4"
    await admin.delete_topic_order("SomeTopic")
    assert await admin.topic_order("SomeTopic") is None
    with pytest.raises(ClientError, match="write broker:queues"):
        await admin.put_topic_order("SomeTopic", "4")


async def test_settings_of_name_servers_are_changed_and_read(admin: Admin, scene: Scene) -> None:
    address = scene.cluster.name_server
    assert await admin.update_name_server_settings({"orderMessageEnable": "true"}) == [address]
    found = await admin.name_server_settings()
    assert found[address]["orderMessageEnable"] == "true"
    await admin.update_name_server_settings({"orderMessageEnable": "false"})


async def test_write_permission_is_wiped_and_given_back(admin: Admin, scene: Scene) -> None:
    name = scene.queue.broker_name
    [wiped] = (await admin.wipe_write_permission(name)).values()
    try:
        route = await admin.describe_route(scene.topic)
        assert [queue.perm for queue in route.queues] == [4]
    finally:
        added = await admin.add_write_permission(name)
    assert wiped > 0
    assert list(added) == [scene.cluster.name_server]
    assert [queue.perm for queue in (await admin.describe_route(scene.topic)).queues] == [6]


async def test_a_broker_without_access_control_says_so(scene: Scene, broker: str) -> None:
    account = Account(access_key="someone", secret_key="1234567")
    async with Admin(scene.cluster.name_server, timeout_seconds=0.5) as admin:
        answers = await asyncio.gather(
            admin.acl_versions(broker=broker),
            admin.acl_config(broker),
            admin.put_account(account, broker=broker),
            admin.delete_account("someone", broker=broker),
            admin.put_global_white_addresses(["10.0.0.*"], broker=broker),
            return_exceptions=True,
        )
    # RocketMQ's broker says nothing at all to some of these.
    silent = (BrokerError, RequestTimeoutError)
    assert [each for each in answers if not isinstance(each, silent)] == []


# -- messages -----------------------------------------------------------------------------------
async def test_a_message_is_found_by_ids_keys_and_place(admin: Admin, scene: Scene) -> None:
    wanted = scene.message
    by_place = await admin.message_at(scene.queue, 0)
    assert (by_place.body, by_place.unique_key) == (wanted.body, wanted.unique_key)
    assert (await admin.message_by_id(wanted.offset_message_id)).body == wanted.body
    with pytest.raises(NotFoundError, match="has no message at offset 99; it has 0 to 9"):
        await admin.message_at(scene.queue, 99)
    with pytest.raises(ClientError, match="say in which topic it is"):
        await admin.message_by_id("xyz")

    async def is_indexed() -> bool:  # that follows in the background
        return len(await admin.messages_by_key(scene.topic, "all")) == MESSAGES

    await until(is_indexed, what="the index")
    assert [each.body for each in await admin.messages_by_key(scene.topic, "k3")] == [b"3"]
    unique = wanted.unique_key
    assert (await admin.message_by_id(unique, topic=scene.topic)).queue_offset == 0
    [found] = await admin.messages_by_unique_key(scene.topic, unique)
    assert found.body == wanted.body
    with pytest.raises(TopicRouteNotFoundError):
        await admin.message_traces(unique, topic="NoTraces")


async def test_queues_are_read_without_a_group(admin: Admin, scene: Scene) -> None:
    bodies = [each.body async for each in admin.read_messages(scene.topic)]
    assert bodies == [b"%d" % number for number in range(MESSAGES)]
    red = [each.body async for each in admin.read_messages(scene.topic, expression="red")]
    assert red == bodies[1::2]
    some = admin.read_messages(
        scene.topic,
        broker_name=scene.queue.broker_name,
        queue_id=0,
        offset=2,
        max_messages=3,
    )
    assert [each.body async for each in some] == bodies[2:5]
    later = admin.read_messages(scene.topic, begin_ms=scene.message.store_timestamp + 10_000_000)
    assert [each.body async for each in later] in ([], bodies[-1:])
    assert await admin.count_tags(scene.queue) == {"red": 5, "blue": 5}
    with pytest.raises(ClientError, match="no such queue"):
        async for _ in admin.read_messages(scene.topic, queue_id=77):
            pass


async def test_a_message_is_followed_to_its_groups(admin: Admin, scene: Scene) -> None:
    async def tracks() -> set[tuple[str, TrackType]]:
        found = await admin.message_tracks(scene.message)
        return {(track.group, track.type) for track in found}

    async def is_consumed() -> bool:
        return (scene.group, TrackType.CONSUMED) in await tracks()

    await until(is_consumed, what="the track of a message that was consumed")
    result = await admin.consume_directly(
        scene.group, scene.client_id, scene.message.offset_message_id
    )
    assert result.result == "CR_SUCCESS"
    with pytest.raises(BrokerError, match="not online"):
        await admin.consume_directly(scene.group, "x", scene.message.offset_message_id)
    with pytest.raises(ClientError, match="is no half message"):
        await admin.resume_check(scene.message.offset_message_id)


async def test_messages_are_sent_by_hand_and_timed(admin: Admin, scene: Scene) -> None:
    name = f"T{uuid.uuid4().hex[:8]}"
    await admin.create_topic(name, queues=2)

    async def is_there() -> bool:
        return await admin.access.fetch_route(name) is not None

    await until(is_there, what="the route")
    result = await admin.send_message(Message(name, b"hello", tags="t"), queue_id=1)
    assert (result.queue.queue_id, result.queue_offset, result.is_ok) == (1, 0, True)
    timings = await admin.time_sends(name, count=5, body_bytes=10)
    assert (len(timings.sends), timings.failed) == (5, 0)
    assert timings.mean_ms > 0
    by_broker = await admin.time_cluster_sends(count=2)
    assert {broker: len(each.sends) for broker, each in by_broker.items()} == {
        scene.queue.broker_name: 2
    }
    with pytest.raises(ClientError, match="no queue 9"):
        await admin.send_message(Message(name, b"x"), queue_id=9)


# -- reports ------------------------------------------------------------------------------------
async def test_traffic_is_told_by_topic_and_group(admin: Admin, scene: Scene, broker: str) -> None:
    # Figures are samples of every ten seconds: tests/interop compares them with mqadmin's.
    rows = await admin.traffic(topic=scene.topic)
    mine = next(row for row in rows if row.group == scene.group)
    assert (mine.topic, mine.lag) == (scene.topic, 0)
    assert {mine.in_day, mine.out_day} <= {0, MESSAGES}
    assert scene.topic in {row.topic for row in await admin.traffic()}
    with pytest.raises(BrokerError, match="not exist"):
        await admin.broker_stats(broker, "TOPIC_PUT_NUMS", "Nowhere")


async def test_a_cluster_is_exported(admin: Admin, scene: Scene) -> None:
    metadata = await admin.export_metadata()
    assert metadata.topics[scene.topic].read_queue_nums == 4
    assert scene.group in metadata.groups
    assert f'"{scene.topic}":{{'.encode() in metadata.to_json()
    configs = await admin.export_configs(cluster=CLUSTER)
    assert (configs.name_servers, configs.masters, configs.slaves) == (1, 1, 0)
    name = scene.queue.broker_name
    assert configs.brokers[name]["brokerRole"] == "ASYNC_MASTER"
    assert b'"masterBrokerSize":1' in configs.to_json()
    metrics = await admin.export_metrics()
    assert metrics.brokers[name].topics >= 1
    assert ("PYTHON", 409) in {
        (each.language, each.version) for each in metrics.brokers[name].clients
    }
    assert metrics.rates["normalInTps"] == metrics.brokers[name].rates["normalInTps"]
    assert b'"totalTps":{' in metrics.to_json()


async def test_a_round_of_the_monitor_sees_groups_that_are_online(
    admin: Admin, scene: Scene
) -> None:
    async for found in admin.monitor(interval_seconds=0.01):
        mine = [each for each in found.undone if each.group == scene.group]
        if mine:
            break
    assert {each.total for each in mine} == {0}
    assert [each.client_id for each in found.statuses[scene.group].members] == [scene.client_id]
    assert found.offsets_moved == ()
    assert scene.group not in found.failed


async def test_an_admin_lives_on_the_connections_of_a_client(scene: Scene) -> None:
    async with connect([scene.cluster.name_server]) as connection:
        async with Admin.on(connection) as admin:
            assert scene.topic in await admin.list_topics()
            assert (await admin.message_at(scene.queue, 0)).body == b"0"
        async with connection.producer("p-admin") as producer:
            assert len(await producer.queues(scene.topic)) == 4


async def test_the_blocking_admin_gives_the_same(scene: Scene) -> None:
    from kerolox.admin.sync import Admin as BlockingAdmin

    with BlockingAdmin(scene.cluster.name_server) as admin:
        assert scene.topic in admin.list_topics()
        some = admin.read_messages(scene.topic, max_messages=3)
        assert [next(some).body, next(some).body] == [b"0", b"1"]
        some.close()  # type: ignore[attr-defined]
        assert len(list(admin.read_messages(scene.topic))) == MESSAGES
        assert admin.message_at(scene.queue, 5).body == b"5"
