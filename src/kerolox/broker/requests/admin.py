"""Administration of a broker: topics (17, 18, 21, 215, 305, 351), groups (200, 201, 207, 352),
settings and metrics (25, 26, 28, 907), and the files of the store (306, 316, 321, 329).

Questions about clients and their progress are in :mod:`kerolox.broker.requests.monitor`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Collection, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from kerolox.broker.context import Context
from kerolox.broker.errors import system_error
from kerolox.broker.metrics.ages import earliest_of_log
from kerolox.broker.pop.copies import normal_topic
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.services.registration import OPERATOR_SECONDS_MAX
from kerolox.broker.tables.stale import ANYBODY
from kerolox.broker.tables.topics import QUEUES_MAX, check_topic_name
from kerolox.config import setting_text
from kerolox.errors import BrokerError, ConfigError
from kerolox.properties import format_properties
from kerolox.protocol import fastjson
from kerolox.protocol.attributes import (
    ATTRIBUTES_FIELD,
    GROUP_ATTRIBUTES,
    MESSAGE_TYPE,
    TOPIC_ATTRIBUTES,
    Attribute,
    AttributesError,
    TopicMessageType,
    altered,
    parse_attributes,
)
from kerolox.protocol.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    decode_request,
    encode_body,
)
from kerolox.protocol.codes import (
    DEDUP_KEYS_CUT,
    DEDUP_WINDOWS_OFF,
    DEDUP_WINDOWS_OFF_MAX,
    DISK_FULL_MS,
    GRPC_DENIED,
    GRPC_DENIED_MS,
    KEROLOX_KERNEL,
    KEROLOX_VERSION,
    STORE_GROWTH,
    VERSION,
    Perm,
    RequestCode,
    ResponseCode,
    version_text,
)
from kerolox.protocol.headers import (
    CreateTopicHeader,
    DeleteGroupHeader,
    EmptyHeader,
    GroupHeader,
    GroupsHeader,
    QueryConsumeQueueHeader,
    TopicHeader,
    TopicsHeader,
)
from kerolox.protocol.java_numbers import INT_MAX
from kerolox.protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, has_name_characters
from kerolox.protocol.pop_names import pop_retry_topic
from kerolox.release import __version__
from kerolox.remoting.router import Reply, Request, Router
from kerolox.remoting.settings_requests import change_settings
from kerolox.store.queues.ext_unit import ExtUnit

VERSION_TEXT = version_text(VERSION)
QUEUE_ENTRIES_MAX = 1024
"""Entries that one QUERY_CONSUME_QUEUE shows at most."""

TOPICS_OF_REQUEST_MAX = 1_000
"""Topics that one UPDATE_AND_CREATE_TOPIC_LIST makes; each is registered and written down."""

_UNITS = "KMGTPE"

_log = logging.getLogger(__name__)

_Config = TypeVar("_Config", TopicConfig, SubscriptionGroupConfig)

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

router: Router[Context] = Router()


# -- topics -----------------------------------------------------------------------------------
@router.on(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader.decode, changes=True)
async def create_topic(broker: Context, header: CreateTopicHeader, request: Request) -> Reply:
    """Add or replace a topic; answered when it is on disk and the name servers were notified."""
    _check_master(broker)
    wanted = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag,
    )
    _check_topic(broker, wanted)
    try:
        changes = parse_attributes(header.attributes)
    except AttributesError as error:
        raise system_error(str(error)) from None
    _put_topic(broker, request, _topic_with(broker, wanted, changes))
    await _register_topics(broker)
    return Reply()


@router.on(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, EmptyHeader.decode, changes=True)
async def create_topics(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Add or replace several topics, which tools of 5.x ask for. One that can't be is found before
    any is made, unless the table gets full."""
    _check_master(broker)
    topics = decode_request(request.body, TopicList).topic_config_list
    if len(topics) > TOPICS_OF_REQUEST_MAX:
        raise system_error(
            f"the request has {len(topics)} topics; at most {TOPICS_OF_REQUEST_MAX} are taken"
        )
    if len({wanted.topic_name for wanted in topics}) < len(topics):
        raise system_error("the request names a topic twice")
    made = []
    for wanted in topics:
        _check_topic(broker, wanted)
        made.append(_topic_with(broker, wanted, wanted.attributes or {}))
    for new in made:
        _put_topic(broker, request, new)
    await _register_topics(broker)
    return Reply()


def _check_topic(broker: Context, wanted: TopicConfig) -> None:
    """BrokerError, code 1, unless a topic may be so, attributes aside."""
    check_topic_name(wanted.topic_name)
    _check_no_system_topic(broker, wanted.topic_name)
    for name, value in (
        ("readQueueNums", wanted.read_queue_nums),
        ("writeQueueNums", wanted.write_queue_nums),
    ):
        if not 0 <= value <= QUEUES_MAX:
            raise system_error(f"{name}[{value}] is illegal; 0 to {QUEUES_MAX} are allowed")
    if not 0 <= wanted.perm <= (Perm.READ | Perm.WRITE | Perm.INHERIT | Perm.PRIORITY):
        raise system_error(f"perm[{wanted.perm}] is illegal; 2 write, 4 read, 6 both")
    if wanted.topic_filter_type not in FILTER_TYPES:
        raise system_error(
            f"topicFilterType[{wanted.topic_filter_type}] is illegal; SINGLE_TAG or MULTI_TAG"
        )


def _topic_with(broker: Context, wanted: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
    """A topic as it is to be, with changes made to the attributes that it has now. BrokerError:
    code 29, its type may not be MIXED; code 1, all else that is wrong.
    """
    is_mixed = changes.get("+" + MESSAGE_TYPE) == TopicMessageType.MIXED
    if is_mixed and not broker.config.enable_mixed_message_type:
        raise BrokerError(
            "MIXED message type is not supported.", code=ResponseCode.INVALID_PARAMETER
        )
    old = broker.tables.topics.get(wanted.topic_name)
    new = _with_attributes(wanted, old, changes, TOPIC_ATTRIBUTES)
    return msgspec.structs.replace(new, order=False)


def _with_attributes(
    wanted: _Config,
    old: _Config | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute],
) -> _Config:
    try:
        attributes = altered(
            None if old is None else old.attributes, changes, known, is_new=old is None
        )
    except AttributesError as error:
        raise system_error(str(error)) from None
    return msgspec.structs.replace(wanted, attributes=attributes or None)


def _put_topic(broker: Context, request: Request, new: TopicConfig) -> None:
    old = broker.tables.topics.get(new.topic_name)
    broker.tables.topics.put(new)
    broker.tables.offsets.stale.recheck(new.topic_name)
    broker.popping.held.wake_where(lambda topic, group: topic == new.topic_name)
    broker.audit.changed(request, "topic", new.topic_name, old, new)


async def _register_topics(broker: Context) -> None:
    await broker.tables.topics.persist()
    await broker.peers.registration.now(timeout_seconds=OPERATOR_SECONDS_MAX)


@router.on(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader.decode, changes=True)
async def delete_topic(broker: Context, header: TopicHeader, request: Request) -> Reply:
    """Take a topic out, with its queues. Its messages stay in the log until they expire."""
    _check_master(broker)
    check_topic_name(header.topic)
    _check_no_system_topic(broker, header.topic)
    await broker.broker_stats.refresh()
    old = broker.tables.topics.get(header.topic)
    readers = _readers_of(broker, header.topic)
    queue_ids = _queue_ids_of(broker, header.topic, old)
    deleted = broker.tables.topics.delete(header.topic)
    broker.tables.clients.take_heartbeats_anew()
    # Before any wait: a send that makes the topic anew meanwhile keeps its queues.
    if broker.store.delete_queues(header.topic) or deleted:
        broker.audit.changed(request, "topic", header.topic, old)
    is_gone = partial(_is_of_topic, header.topic)
    broker.tables.pops.forget_now(is_gone)
    _delete_pop_retries(broker, header.topic)
    groups = broker.tables.offsets.begin_anew(header.topic, queue_ids, readers, is_whole=True)
    broker.popping.held.wake_where(lambda topic, group: topic == header.topic)
    await broker.broker_stats.forget_topic(header.topic)
    await broker.tables.pops.forget(is_gone)
    if groups or queue_ids:
        await broker.tables.offsets.file.write_over()
    await _persist(broker)
    return Reply()


async def _persist(broker: Context) -> None:
    """Have the files what earlier requests changed and could not write, too: one that is sent again
    finds nothing to change, and says that it is done."""
    await broker.tables.offsets.file.persist()
    await broker.tables.topics.persist()
    await broker.tables.groups.persist()


def _is_of_topic(topic: str, key: QueueKey) -> bool:
    """Whether a queue has messages of a topic, or retries of them."""
    return normal_topic(key) == topic


def _delete_pop_retries(broker: Context, topic: str) -> None:
    """Take out the topics of what groups popped from a topic and did not acknowledge
    (``clearRetryTopicWhenDeleteTopic``)."""
    tables = broker.tables
    for group in tables.offsets.groups_of(topic):
        for is_v2 in (False, True):
            name = pop_retry_topic(topic, group, is_v2=is_v2)
            if name in tables.topics and tables.offsets.query(group, name, 0) >= 0:
                tables.topics.delete(name)
                broker.store.delete_queues(name)
                tables.offsets.begin_anew(name, (0,), {}, is_whole=True)


def _readers_of(broker: Context, topic: str) -> dict[str, list[int]]:
    """The groups that may hold offsets of a topic, whether these are in the table or not; to be
    asked before the kernel forgets who read it. Assigned queues are no subscription, and those who
    read them may have sent no heartbeat yet."""
    readers = broker.tables.clients.readers_of(topic)
    for group in broker.store.readers_of(topic):
        if group not in readers:
            is_online = broker.tables.clients.group(group) is not None
            readers[group] = broker.tables.clients.readers_in(group) if is_online else [ANYBODY]
    return readers


def _queue_ids_of(broker: Context, topic: str, config: TopicConfig | None) -> Collection[int]:
    """The queues of a topic; those that the store has where the table knows none."""
    if config is not None:
        return range(max(config.read_queue_nums, config.write_queue_nums))
    return [queue_id for name, queue_id, *_ in broker.store.queues() if name == topic]


@router.on(RequestCode.GET_ALL_TOPIC_CONFIG, TopicsHeader.decode)
async def all_topics(broker: Context, header: TopicsHeader, request: Request) -> Reply:
    """The table of topics."""
    body = await asyncio.to_thread(encode_body, broker.tables.topics.snapshot())
    return Reply(fields=_knows_attributes(header), body=body)


def _knows_attributes(header: TopicsHeader) -> Mapping[str, object] | None:
    return {ATTRIBUTES_FIELD: True} if header.attributes else None


@router.on(RequestCode.GET_TOPIC_CONFIG, TopicHeader.decode)
async def topic_config(broker: Context, header: TopicHeader, request: Request) -> Reply:
    """The settings of one topic, which tools of 5.x ask for; they take a missing mapping of
    static topics (``TopicConfigAndQueueMapping``) for none."""
    topic = broker.tables.topics.get(header.topic)
    if topic is None:
        raise BrokerError(
            f"No topic in this broker. topic: {header.topic}", code=ResponseCode.TOPIC_NOT_EXIST
        )
    window = broker.writing.duplicates.window_of(header.topic)
    return Reply(fields=None if window is None else window.encode(), body=encode_body(topic))


@router.on(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, EmptyHeader.decode)
async def system_topics(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """The names that users may not take."""
    return Reply(body=encode_body({"topicList": broker.tables.topics.system_names}))


# -- consumer groups --------------------------------------------------------------------------
@router.on(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, EmptyHeader.decode, changes=True)
async def create_group(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Add or replace a consumer group."""
    _check_master(broker)
    group = decode_request(request.body, SubscriptionGroupConfig)
    if not group.group_name.strip():
        raise system_error("the group name is blank")
    if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
        raise system_error(
            f"retryQueueNums[{group.retry_queue_nums}] is illegal; 0 to {QUEUES_MAX} are allowed"
        )
    old = broker.tables.groups.get(group.group_name)
    group = _with_attributes(group, old, group.attributes or {}, GROUP_ATTRIBUTES)
    known_topics = broker.tables.topics.version
    _fit_retry_topic(broker, request, old, group)
    broker.tables.groups.put(group)
    broker.popping.held.wake_where(lambda topic, name: name == group.group_name)
    broker.audit.changed(request, "group", group.group_name, old, group)
    if not group.retry_queue_nums and (old is None or old.retry_queue_nums):
        _log.warning(
            "group %s has no retry queues now: what it gives back is dropped, without a retry or a "
            "dead letter",
            group.group_name,
        )
    broker.tables.clients.take_heartbeats_anew()
    if broker.tables.topics.version != known_topics:
        await _register_topics(broker)
    await broker.tables.topics.persist()
    await broker.tables.groups.persist()
    return Reply()


def _fit_retry_topic(
    broker: Context,
    request: Request,
    old: SubscriptionGroupConfig | None,
    new: SubscriptionGroupConfig,
) -> None:
    """Give the retry topic of a group as many queues as it is to have, before messages come to
    them. Those that it is to have no more are written no more, and read as before.
    """
    topic = RETRY_PREFIX + new.group_name
    had = broker.tables.topics.get(topic)
    if had is None or not new.retry_queue_nums:
        # Without any the broker drops what is given back; what clients send there still comes.
        return
    if old is None or old.retry_queue_nums != new.retry_queue_nums:
        broker.tables.topics.set_write_queues(topic, new.retry_queue_nums)
    else:
        broker.tables.topics.create_for_group(topic, new.retry_queue_nums)
    has = broker.tables.topics.get(topic)
    if has != had:
        broker.audit.changed(request, "topic", topic, had, has, automatic=True)


@router.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupsHeader.decode)
async def all_groups(broker: Context, header: GroupsHeader, request: Request) -> Reply:
    """The table of consumer groups; with ``group``, which is Kerolox's own, of that one alone."""
    table = broker.tables.groups.snapshot(header.group)
    body = await asyncio.to_thread(encode_body, table)
    return Reply(fields=_knows_attributes(header), body=body)


@router.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader.decode)
async def group_config(broker: Context, header: GroupHeader, request: Request) -> Reply:
    """The settings of one consumer group, which proxies and tools of 5.x ask for. A group that is
    not there is made where ``autoCreateSubscriptionGroup`` lets it be, as by RocketMQ 5: clients
    behind a proxy of 5.x have no other way to make one. Kerolox's own tools ask by 201."""
    name = header.group
    group = broker.tables.groups.get(name)
    if group is None and not broker.role.current.is_slave and has_name_characters(name):
        group = broker.tables.groups.find(name)
        if group is not None:
            broker.audit.changed(request, "group", name, None, group, automatic=True)
    if group is None:
        raise BrokerError("No group in this broker", code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    return Reply(body=encode_body(group))


@router.on(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader.decode, changes=True)
async def delete_group(broker: Context, header: DeleteGroupHeader, request: Request) -> Reply:
    """Take a consumer group out, with its offsets if wanted."""
    _check_master(broker)
    await broker.broker_stats.refresh()
    old = broker.tables.groups.get(header.group_name)
    deleted = broker.tables.groups.delete(header.group_name)
    broker.tables.clients.take_heartbeats_anew()
    if deleted:
        broker.audit.changed(request, "group", header.group_name, old)
    await broker.tables.pops.forget(lambda key: key.group == header.group_name)
    broker.popping.held.wake_where(lambda topic, name: name == header.group_name)
    if header.remove_offset and (topics := broker.tables.offsets.topics_of(header.group_name)):
        broker.tables.offsets.remove_group(header.group_name)
        broker.audit.changed(request, "offsets", header.group_name, {"topics": topics})
        await broker.tables.offsets.file.write_over()
    await broker.broker_stats.forget_group(header.group_name)
    await _persist(broker)
    return Reply()


# -- settings and metrics ---------------------------------------------------------------------
@router.on(RequestCode.GET_BROKER_CONFIG, EmptyHeader.decode)
async def broker_config(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """All settings as ``key=value`` lines: those in force, and under ``pendingRestart.<key>``
    those that wait for a restart."""
    shown = {
        # Nothing here reads these, but exportConfigs of mqadmin fails where one is missing, and
        # exportMetrics takes the last one for the number of processors.
        "filterServerNums": "0",
        "clientCallbackExecutorThreads": str(os.cpu_count()),
        **broker.dynamic_config.shown(),
        **_derived(broker),
    }
    body = format_properties(shown).encode()
    version = encode_body(broker.dynamic_config.version)
    return Reply(fields={"version": version.decode()}, body=body)


def _derived(broker: Context) -> dict[str, str]:
    """What is in force of :data:`DERIVED_KEYS`, as RocketMQ shows it."""
    config, identity = broker.config, broker.identity
    return {
        "haListenPort": str(identity.ha_port or identity.wanted_ha_port),
        "storePathCommitLog": config.store_path_commit_log or str(config.log_folders[0]),
        "useTLS": setting_text(config.speaks_tls_to_name_servers),
    }


@router.on(RequestCode.UPDATE_BROKER_CONFIG, EmptyHeader.decode, changes=True)
async def update_broker_config(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Change settings, given as ``key=value`` lines. The remark of a success says what is not in
    force yet."""
    try:
        return await change_settings(broker.dynamic_config, broker.audit, request)
    except (ConfigError, OSError) as error:
        raise system_error(str(error)) from None


def _dedup_values(broker: Context) -> dict[str, str]:
    """Topics whose windows of keys are not what they should be."""
    windows = broker.store.dedup_windows()
    values = {
        DEDUP_KEYS_CUT: " ".join(f"{each.topic}:{each.cut}" for each in windows if each.cut),
        DEDUP_WINDOWS_OFF: " ".join(
            sorted(broker.tables.topics.without_window)[:DEDUP_WINDOWS_OFF_MAX]
        ),
    }
    return {name: value for name, value in values.items() if value}


@router.on(RequestCode.GET_BROKER_RUNTIME_INFO, EmptyHeader.decode)
async def runtime_info(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """The metrics that ``mqadmin clusterList`` and ``brokerStatus`` show."""
    store, config = broker.store, broker.config
    values: dict[str, object] = dict(broker.store_stats.runtime())
    ratios = broker.writing.cleaner.log_ratios()
    values["commitLogDiskRatio"] = min(ratios.values())
    values.update((f"commitLogDiskRatio_{folder}", ratio) for folder, ratio in ratios.items())
    values["consumeQueueDiskRatio"] = broker.writing.cleaner.queue_ratio()
    values["commitLogMinOffset"] = store.min_physical_offset
    values["commitLogMaxOffset"] = store.max_physical_offset
    for level, offset in broker.writing.schedule.offsets.items():
        high = store.queue_bounds(SCHEDULE_TOPIC, level - 1)[1]
        values[f"scheduleMessageOffset_{level}"] = f"{offset},{high}"
    values |= _access_values(broker)
    values |= _dedup_values(broker)
    values[KEROLOX_VERSION] = __version__
    values[KEROLOX_KERNEL] = broker.kernel.text
    values["brokerVersionDesc"] = VERSION_TEXT
    values["brokerVersion"] = VERSION
    # What tools of 5.x read: another spelling of the one, and without the other the broker looks
    # switched off.
    values["getTransferredTps"] = values["getTransferedTps"]
    values["brokerActive"] = "true"
    # There are no such pools here: nothing waits, nothing has waited. Tools divide by capacities.
    for pool, capacity in (
        ("send", config.send_thread_pool_queue_capacity),
        ("pull", config.pull_thread_pool_queue_capacity),
        ("query", config.query_thread_pool_queue_capacity),
    ):
        values[f"{pool}ThreadPoolQueueSize"] = 0
        values[f"{pool}ThreadPoolQueueCapacity"] = capacity
        values[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    values["EndTransactionQueueSize"] = 0
    values["EndTransactionThreadPoolQueueCapacity"] = config.end_transaction_pool_queue_capacity
    earliest = earliest_of_log(broker.store)
    values["earliestMessageTimeStamp"] = earliest
    expected = broker.writing.cleaner.forecast(earliest)
    if expected.bytes_per_second is not None:
        values[STORE_GROWTH] = round(expected.bytes_per_second, 1)
        values[DISK_FULL_MS] = -1 if expected.full_ms is None else expected.full_ms
    values["startAcceptSendRequestTimeStamp"] = config.start_accept_send_request_time_stamp
    buffers = store.transient_buffers
    values["remainTransientStoreBufferNumbs"] = INT_MAX if buffers < 0 else buffers
    if buffers >= 0:
        uncommitted = store.stats()["uncommitted_bytes"]
        values["remainHowManyDataToCommit"] = _bytes_text(uncommitted)
    unflushed = max(store.max_physical_offset - store.flushed_offset, 0)
    values["remainHowManyDataToFlush"] = _bytes_text(unflushed)
    import shutil  # not at the start: it brings three compressors

    usage = shutil.disk_usage(config.store_path_root_dir)
    values["commitLogDirCapacity"] = (
        f"Total : {_bytes_text(usage.total)}, Free : {_bytes_text(usage.free)}."
    )
    values |= broker.guards.limits.counts.shown() | broker.audit.shown()
    if broker.guards.tls is not None:
        values.update(broker.guards.tls.handshake_counts())
    return Reply(body=encode_body({"table": {name: str(each) for name, each in values.items()}}))


def _access_values(broker: Context) -> dict[str, object]:
    """What access control counts."""
    values: dict[str, object] = {}
    if broker.guards.access.is_on:
        values["aclDenied"] = broker.guards.access.denied.total()
        last = broker.guards.access.last_denied_by_grpc
        if last is not None:
            values[GRPC_DENIED_MS], values[GRPC_DENIED] = last
    if broker.guards.accounts is not None:
        files = broker.guards.accounts.files
        values["aclAccounts"] = len(files.accounts.by_key)
        values["aclReloads"] = files.reloads
        values["aclWrongFiles"] = len(files.wrong)
    return values


@router.on(RequestCode.GET_BROKER_HA_STATUS, EmptyHeader.decode)
async def replication_status(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """What ``haStatus`` of 5.x shows: a line for each slave that is connected. Bytes a second are
    not counted here."""
    end, behind_max = broker.store.max_physical_offset, broker.config.ha_slave_fallbehind_max
    slaves = [
        {
            "addr": link.peer,
            "slaveAckOffset": max(link.acknowledged, 0),
            "diff": end - max(link.acknowledged, 0),
            "inSync": end - max(link.acknowledged, 0) < behind_max,
            "transferFromWhere": link.position,
        }
        for link in broker.peers.replication.waits.replicated.links
    ]
    body = {
        "haConnectionInfo": slaves,
        "inSyncSlaveNums": sum(bool(each["inSync"]) for each in slaves),
        "master": not broker.role.current.is_slave,
        "masterCommitLogMaxOffset": end,
    }
    return Reply(body=encode_body(body))


# -- queues of the store ----------------------------------------------------------------------
@router.on(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader.decode)
async def consume_queue(
    broker: Context, header: QueryConsumeQueueHeader, request: Request
) -> Reply:
    """The entries of a queue, as they are on disk."""
    low, high = broker.store.queue_bounds(header.topic, header.queue_id)
    if low == high == 0:
        raise system_error(f"{header.queue_id}@{header.topic} is not exist!")
    body: dict[str, object] = {"maxQueueIndex": high, "minQueueIndex": low}
    subscription = None
    if "consumerGroup" in request.command.ext_fields:
        subscription = broker.tables.clients.subscription(header.consumer_group, header.topic)
        body["subscriptionData"] = subscription
        if subscription is None:
            body["filterData"] = f"{header.consumer_group}@{header.topic} is not online!"
        else:
            body["filterData"] = broker.tables.filters.text_of(header.topic, header.consumer_group)
    if not low <= header.index < high:
        return Reply(
            remark=f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
        )
    end = min(header.index + min(max(header.count, 0), QUEUE_ENTRIES_MAX), high)
    entries = []
    for index in range(header.index, end):
        entry = broker.store.queue_entry(header.topic, header.queue_id, index)
        if entry is not None:
            offset, size, code = entry
            item: dict[str, object] = {"eval": False, "physicOffset": offset}
            item |= {"physicSize": size, "tagsCode": code}
            found = broker.store.queue_unit(header.topic, header.queue_id, index)
            if found is not None:
                unit = ExtUnit(*found)
                item |= _unit_fields(unit)
                if subscription is not None:
                    item["eval"] = broker.tables.filters.may_match(
                        header.consumer_group, subscription, unit
                    )
            entries.append(item)
    body["queueData"] = entries
    return Reply(body=encode_body(body))


def _unit_fields(unit: ExtUnit) -> dict[str, object]:
    """A unit as RocketMQ shows it: fastjson's text of it, and the map with its last bit first."""
    members: dict[str, object] = {"msgStoreTime": unit.store_time, "size": unit.size}
    members["tagsCode"] = unit.tags_code
    if not unit.bit_map:
        return {"extendDataJson": fastjson.dumps(members).decode()}
    text = base64.b64encode(unit.bit_map).decode()
    bits = ""
    for number in reversed(range(len(unit.bit_map))):
        bits += f"{unit.bit_map[number]:08b}" + ("" if number % 8 else "\n")
    return {
        "extendDataJson": fastjson.dumps({"filterBitMap": text, **members}).decode(),
        "bitMap": bits,
    }


# -- cleaning ---------------------------------------------------------------------------------
@router.on(RequestCode.CLEAN_UNUSED_TOPIC, EmptyHeader.decode, changes=True)
async def clean_unused_topics(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Delete the queues of topics that are in no table any more."""
    on_change = partial(broker.audit.changed, request, "queuesOf")
    forget = partial(_forget_offsets, broker, is_whole=True)
    if await broker.writing.cleaner.delete_unused_topics(
        broker.tables.topics.__contains__, on_change, forget
    ):
        await broker.tables.offsets.file.write_over()
    await _persist(broker)
    return Reply()


@router.on(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, EmptyHeader.decode, changes=True)
async def clean_expired_queues(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Delete the queues whose messages the log lost, all of them."""
    on_change = partial(broker.audit.changed, request, "queue")
    if await broker.writing.cleaner.delete_expired_queues(
        on_change, partial(_forget_offsets, broker)
    ):
        await broker.tables.offsets.file.write_over()
    await _persist(broker)
    return Reply()


def _forget_offsets(
    broker: Context, topic: str, queue_ids: Collection[int], *, is_whole: bool = False
) -> None:
    """Queues of a topic are deleted; ``is_whole``: all of them."""
    readers = _readers_of(broker, topic)
    broker.tables.offsets.begin_anew(topic, queue_ids, readers, is_whole=is_whole)
    # In the file they do not count any more: their last messages are not in the log.
    broker.tables.pops.forget_now(lambda key: key.topic == topic and key.queue_id in queue_ids)


@router.on(RequestCode.DELETE_EXPIRED_COMMITLOG, EmptyHeader.decode, changes=True)
async def delete_expired_log_files(broker: Context, header: EmptyHeader, request: Request) -> Reply:
    """Let the next runs of the cleaner delete expired log files, whatever the hour."""
    broker.writing.cleaner.retention.delete_manually()
    broker.audit.changed(request, "expiredLogFiles", "deleted at any hour from now on")
    return Reply()


def _check_master(broker: Context) -> None:
    """``validateSlave``."""
    if broker.role.current.is_slave:
        raise system_error(
            "Can't modify topic or subscription group from slave broker, please execute it from "
            "master broker."
        )


def _check_no_system_topic(broker: Context, topic: str) -> None:
    if broker.tables.topics.is_system(topic):
        raise system_error(f"The topic[{topic}] is conflict with system topic.")


def _bytes_text(count: int) -> str:
    """``humanReadableByteCount`` with units of 1024."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}iB"
