"""Brokers, name servers, groups and reports of ``kerolox.admin``, with recorded answers of Java."""

from __future__ import annotations

import json
import re

import pytest
from tests.unit.admin.test_topics import FakeClient, stats

from kerolox.admin import (
    Access,
    Account,
    Admin,
    MonitorRound,
    Position,
    PositionKind,
    SubscriptionGroupConfig,
)
from kerolox.errors import (
    AccessDeniedError,
    BrokerSystemError,
    ClientError,
    ConfigError,
    ConnectError,
    NoPermissionError,
    RemoteProtocolError,
)
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

ACCOUNT = Account(
    access_key="someone",
    secret_key="1234567",
    is_admin=True,
    default_topic_permission="DENY",
    topic_permissions=("T=PUB|SUB", "U=SUB"),
)
RUNNING = (
    b'{"jstack":"main RUNNABLE","mqTable":{{"brokerName":"a","queueId":0,"topic":"T"}:'
    b'{"cachedMsgCount":%d,"cachedMsgMaxOffset":9,"cachedMsgMinOffset":1,"cachedMsgSizeInMiB":0,'
    b'"commitOffset":1,"droped":false,"lastConsumeTimestamp":1,"lastLockTimestamp":0,'
    b'"lastPullTimestamp":2,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
    b'"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUMEORDERLY":"%s",'
    b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY","PROP_CONSUMER_START_TIMESTAMP":"1",'
    b'"PROP_THREADPOOL_CORE_SIZE":20},"statusTable":{"T":{"consumeFailedMsgs":3,'
    b'"consumeFailedTPS":0.5,"consumeOKTPS":2.5,"consumeRT":1.25,"pullRT":0.5,"pullTPS":7.0}},'
    b'"subscriptionSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    b'"subString":"%s","subVersion":7,"tagsSet":[],"topic":"T"}]}'
)
MEMBERS = (
    b'{"connectionSet":[{"clientAddr":"1.2.3.4:5","clientId":"c1","language":"JAVA","version":401},'
    b'{"clientAddr":"1.2.3.4:6","clientId":"c2","language":"CPP","version":401},'
    b'{"clientAddr":"1.2.3.4:7","clientId":"old","language":"JAVA","version":50}],'
    b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",'
    b'"messageModel":"CLUSTERING","subscriptionTable":{}}'
)
PROGRESS = (
    b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:'
    b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":3}}}'
)
TOPICS = (
    b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{"%%RETRY%%g":{"order":false,'
    b'"perm":6,"readQueueNums":1,"topicFilterType":"SINGLE_TAG","topicName":"%%RETRY%%g",'
    b'"topicSysFlag":0,"writeQueueNums":1},"T":{"order":false,"perm":6,"readQueueNums":%d,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":2},'
    b'"TBW102":{"perm":7,"topicName":"TBW102"}}}'
)
GROUPS = (
    b'{"dataVersion":{"counter":1,"timestamp":1},"subscriptionGroupTable":{"g":{"brokerId":0,'
    b'"groupName":"g","retryQueueNums":2},"TOOLS_CONSUMER":{"groupName":"TOOLS_CONSUMER"}}}'
)


class Servers(FakeClient):
    """Answers with header fields, too."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: dict[object, dict[str, str]] = {}

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_seconds: float, ahead: bool = False
    ) -> RemotingCommand:
        found = await super().invoke(address, command, timeout_seconds=timeout_seconds)
        found.ext_fields = {**found.ext_fields, **self.headers.get(command.code, {})}
        return found


@pytest.fixture
def client() -> Servers:
    return Servers()


@pytest.fixture
def admin(client: Servers) -> Admin:
    return Admin.on(Access(client, ("n:1", "n:2")))  # type: ignore[arg-type]


# -- access control -----------------------------------------------------------------------------
async def test_an_account_goes_to_all_masters_of_a_cluster(client: Servers, admin: Admin) -> None:
    assert await admin.put_account(ACCOUNT, cluster="C") == ["a:1", "b:1"]
    fields = client.fields(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    assert fields[0] == fields[1]
    assert fields[0] == {
        "accessKey": "someone",
        "secretKey": "1234567",
        "admin": "true",
        "defaultTopicPerm": "DENY",
        "topicPerms": "T=PUB|SUB,U=SUB",
    }
    assert "1234567" not in repr(ACCOUNT)


@pytest.mark.parametrize(
    "account",
    [
        Account(access_key="short"),
        Account(access_key="someone", secret_key="short"),
        Account(access_key="someone", default_group_permission="pub"),
        Account(access_key="someone", topic_permissions=("T",)),
        Account(access_key="someone", topic_permissions=("T=PUB,U=SUB",)),
        Account(access_key="someone", group_permissions=("g=ALL",)),
    ],
)
async def test_an_account_that_no_broker_takes_is_refused(
    client: Servers, admin: Admin, account: Account
) -> None:
    with pytest.raises(ClientError, match=r"7 or more|is none"):
        await admin.put_account(account, cluster="C")
    assert client.asked == []


async def test_the_white_list_is_sent_as_one_text(client: Servers, admin: Admin) -> None:
    await admin.put_global_white_addresses(["10.0.0.*", "10.1.0.{1,2}"], broker="b:1")
    [fields] = client.fields(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    assert fields == {"globalWhiteAddrs": "10.0.0.*,10.1.0.{1,2}", "aclFileFullPath": ""}


async def test_versions_of_access_control_are_read_of_old_and_new_brokers(
    client: Servers, admin: Admin
) -> None:
    header = {
        "version": '{"counter":3,"timestamp":5}',
        "brokerName": "a",
        "brokerAddr": "a:1",
        "clusterName": "C",
    }
    client.headers[RequestCode.GET_BROKER_CLUSTER_ACL_INFO] = header
    [old] = await admin.acl_versions(broker="a:1")
    assert (old.cluster, old.version.counter, old.files) == ("C", 3, {})
    files = '{"/conf/plain_acl.yml":{"counter":4,"stateVersion":0,"timestamp":6}}'
    header["allAclFileVersion"] = files
    [new] = await admin.acl_versions(broker="a:1")
    assert new.files["/conf/plain_acl.yml"].counter == 4
    for text in ("[1]", "{", '{"counter":"x"}'):
        header["version"] = text
        with pytest.raises(RemoteProtocolError, match="versions of a:1"):
            await admin.acl_versions(broker="a:1")


async def test_the_accounts_of_an_old_broker_are_read(client: Servers, admin: Admin) -> None:
    client.answers[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = (
        b'{"globalWhiteAddrs":["10.0.0.*"],"plainAccessConfigs":[{"accessKey":"someone",'
        b'"admin":true,"defaultTopicPerm":"DENY","secretKey":"1234567",'
        b'"topicPerms":["T=PUB|SUB","U=SUB"]}]}'
    )
    found = await admin.acl_config("b:1")
    assert (found.global_white_addresses, found.accounts) == (("10.0.0.*",), (ACCOUNT,))


# -- several servers ----------------------------------------------------------------------------
async def test_a_change_that_one_of_two_brokers_refuses_is_told_of_both(
    client: Servers, admin: Admin
) -> None:
    client.answers["a:1", RequestCode.UPDATE_BROKER_CONFIG] = (16, "black list")
    with pytest.raises(ClientError, match=r"on a:1 \(.*black list.*\); it is done on b:1; run it"):
        await admin.update_broker_settings({"k": "v"}, cluster="C")
    with pytest.raises(NoPermissionError):
        await admin.update_broker_settings({"k": "v"}, broker="a:1")
    with pytest.raises(ClientError, match="several clusters, choose one: C, D"):
        await admin.update_broker_settings({"k": "v"})


async def test_permissions_are_wiped_at_each_name_server(client: Servers, admin: Admin) -> None:
    client.headers[RequestCode.WIPE_WRITE_PERM_OF_BROKER] = {"wipeTopicCount": "7"}
    assert await admin.wipe_write_permission("a") == {"n:1": 7, "n:2": 7}
    client.answers["n:2", RequestCode.WIPE_WRITE_PERM_OF_BROKER] = ConnectError("down")
    with pytest.raises(ConnectError):
        await admin.wipe_write_permission("a")
    client.headers.clear()
    with pytest.raises(RemoteProtocolError, match="no number 'wipeTopicCount'"):
        await admin.wipe_write_permission("a")


async def test_figures_that_are_no_numbers_are_named(client: Servers, admin: Admin) -> None:
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    client.answers[code] = b'{"table":{"putTps":"1.5 2.5 3.5 4.5","putMessageAverageSize":"NaN"}}'
    found = await admin.broker_runtime("b:1")
    assert (found.put_rate.minute, found.message_bytes_mean, found.version) == (2.5, 0.0, "")
    for text in ('"putTps":"x"', '"bootTimestamp":"1.5"', '"commitLogDiskRatio":"-"'):
        client.answers[code] = b'{"table":{%s}}' % text.encode()
        with pytest.raises(RemoteProtocolError, match="b:1 is no number"):
            await admin.broker_runtime("b:1")


async def test_the_software_of_a_broker_is_kerolox_or_what_it_says(
    client: Servers, admin: Admin
) -> None:
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    client.answers["a:1", code] = (
        b'{"table":{"brokerVersionDesc":"V4_9_8","keroloxVersion":"0.1.0",'
        b'"keroloxKernel":"python (kerolox-kernel is not installed)"}}'
    )
    client.answers["b:1", code] = b'{"table":{"brokerVersionDesc":"V4_9_7"}}'
    ours, java = await admin.broker_runtime("a:1"), await admin.broker_runtime("b:1")
    assert (ours.software, java.software) == ("Kerolox 0.1.0", "V4_9_7")
    assert (ours.kerolox_version, ours.version) == ("0.1.0", "V4_9_8")
    assert ours.kernel == "python (kerolox-kernel is not installed)"
    assert (java.kerolox_version, java.kernel) == ("", "")
    # As a name server of ours answers.
    client.answers["c:1", code] = b'{"table":{"auditDenied":"0","keroloxVersion":"0.1.0"}}'
    with pytest.raises(RemoteProtocolError, match="c:1 speaks RocketMQ, and is no broker"):
        await admin.broker_runtime("c:1")


# -- groups -------------------------------------------------------------------------------------
async def test_a_group_is_changed_where_it_is_and_made_where_it_is_not(
    client: Servers, admin: Admin
) -> None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    client.answers["a:1", code] = (
        b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3}}}'
    )
    client.answers["b:1", code] = b'{"subscriptionGroupTable":{"h":{"groupName":"h"}}}'
    changes = await admin.update_group("g", cluster="C", consume_enable=False)
    assert client.fields(code) == [{"group": "g"}] * 2
    assert [each.new.retry_max_times for each in changes] == [3, 16]
    assert [each.old is None for each in changes] == [False, True]
    client.asked.clear()
    same = await admin.update_group("g", cluster="C", retry_max_times=3)
    assert [each.new == each.old for each in same] == [True, False]
    # A broker that has it may have it in memory alone: its answer says that it is in its file.
    assert client.addresses(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP) == ["a:1", "b:1"]
    with pytest.raises(ConfigError):
        await admin.put_group(SubscriptionGroupConfig(group_name="a b"), cluster="C")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"retry_queue_nums": 0}, "brokers drop each message"),
        ({"retry_queue_nums": -1}, "-1 retry queues; from 1 to 65535 fit"),
        ({"retry_queue_nums": 65_536}, "65536 retry queues"),
        ({"retry_queue_nums": 1, "drop_retries": True}, "goes with 0 retry queues alone"),
        ({"drop_retries": True}, "goes with 0 retry queues alone"),
        ({"retry_max_times": -1}, "0 makes a message a dead letter"),
    ],
)
async def test_retries_that_nobody_wants_are_refused_before_anybody_is_asked(
    client: Servers, admin: Admin, wanted: dict[str, int], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        await admin.update_group("g", cluster="C", **wanted)  # type: ignore[arg-type]
    assert client.asked == []


async def test_no_retry_queues_are_taken_when_it_is_said_twice(
    client: Servers, admin: Admin
) -> None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    client.answers["a:1", code] = client.answers["b:1", code] = b"{}"
    [change, _] = await admin.update_group("g", cluster="C", retry_queue_nums=0, drop_retries=True)
    assert change.new.retry_queue_nums == 0
    without = SubscriptionGroupConfig(group_name="g", retry_queue_nums=0)
    with pytest.raises(ConfigError, match="brokers drop each message"):
        await admin.put_group(without, cluster="C")
    assert await admin.put_group(without, cluster="C", drop_retries=True) == ["a:1", "b:1"]


async def test_a_group_without_retry_queues_is_paused_all_the_same(
    client: Servers, admin: Admin
) -> None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    table = b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryQueueNums":0}}}'
    client.answers["a:1", code] = client.answers["b:1", code] = table
    changes = await admin.update_group("g", cluster="C", consume_enable=False)
    assert [each.new.retry_queue_nums for each in changes] == [0, 0]


async def test_topics_of_a_group_go_with_it_from_a_whole_cluster_alone(
    client: Servers, admin: Admin
) -> None:
    await admin.delete_group("g", broker="a:1")
    assert client.addresses(RequestCode.DELETE_TOPIC_IN_BROKER) == []
    await admin.delete_group("g", cluster="C", remove_offsets=True)
    assert client.fields(RequestCode.DELETE_SUBSCRIPTIONGROUP)[-1] == {
        "groupName": "g",
        "removeOffset": "true",
    }
    topics = {fields["topic"] for fields in client.fields(RequestCode.DELETE_TOPIC_IN_BROKER)}
    assert topics == {"%RETRY%g", "%DLQ%g"}


async def test_members_that_do_not_fit_together_are_told(client: Servers, admin: Admin) -> None:
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = MEMBERS
    client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = RUNNING % (0, b"false", b"*")
    found = await admin.consumer_status("g", stacks=True)
    assert [each.client_id for each in found.members] == ["c1", "c2"]
    assert found.members[0].stacks == "main RUNNABLE"
    assert found.members[0].consumption[0].consumed_per_second == 2.5
    assert (found.has_same_subscriptions, found.findings) == (True, ())
    assert found.silent == {"old": "version V3 (50) can't be asked"}
    assert set(found.software.values()) == {"V4_9_4", "V3 (50)"}
    newer = RUNNING.replace(b'"properties":{', b'"properties":{"keroloxVersion":"0.2.0",')
    client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = newer % (0, b"false", b"*")
    found = await admin.consumer_status("g")
    ours = "Kerolox 0.2.0"
    assert found.software == {"c1": ours, "c2": ours, "old": "V3 (50)"}
    client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = RUNNING % (5, b"false", b"a")
    found = await admin.consumer_status("g")
    assert re.fullmatch(r"c1 T a/0 has 5 messages, none done for \d+ d( \d+ h)?", found.findings[0])
    none_yet = RUNNING.replace(b'"lastConsumeTimestamp":1', b'"lastConsumeTimestamp":0')
    client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = none_yet % (5, b"false", b"a")
    found = await admin.consumer_status("g")
    assert found.findings[0] == "c1 T a/0 has 5 messages, none done yet"
    client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = RUNNING % (5, b"true", b"a")
    assert (await admin.consumer_status("g")).findings[0] == "c1 T a/0 is not locked yet"


async def test_a_reset_of_an_unknown_offset_asks_whether_anyone_is_online(
    client: Servers, admin: Admin
) -> None:
    client.answers[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = (1, "THe consumer group not exist")
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = MEMBERS
    with pytest.raises(BrokerSystemError, match="not exist"):
        await admin.reset_offsets("g", "T", -1)
    assert client.fields(RequestCode.UPDATE_CONSUMER_OFFSET) == []
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = (206, "not online")
    client.answers[RequestCode.QUERY_CONSUMER_OFFSET] = (22, "none")
    found = await admin.reset_offsets("g", "T", -1)
    assert [(each.queue.broker_name, each.offset) for each in found] == [("a", 3), ("b", 4)]
    assert [f["commitOffset"] for f in client.fields(RequestCode.UPDATE_CONSUMER_OFFSET)] == [
        *("3", "4")
    ]


async def test_offsets_are_not_changed_at_a_slave_in_its_masters_stead(
    client: Servers, admin: Admin
) -> None:
    client.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (
        b'{"brokerDatas":[{"brokerAddrs":{1:"a:2"},"brokerName":"a","cluster":"C"}],"queueDatas":'
        b'[{"brokerName":"a","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1}]}'
    )
    changes = (
        lambda: admin.reset_offsets("g", "T", -1),
        lambda: admin.move_offsets("g", "T", Position(PositionKind.END)),
        lambda: admin.clone_offsets("g", "h"),
    )
    for change in changes:
        with pytest.raises(ClientError, match=r"broker 'a' of topic '.*' has no master now"):
            await change()
    assert {code for _, code, _ in client.asked} == {RequestCode.GET_ROUTEINFO_BY_TOPIC}


async def test_a_question_that_is_forbidden_is_no_answer(client: Servers, admin: Admin) -> None:
    denied = (1, "org.apache.rocketmq.acl.common.AclException: No acl config for x")
    client.answers[RequestCode.GET_PRODUCER_CONNECTION_LIST] = denied
    client.answers[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = denied
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = (206, "not online")
    with pytest.raises(AccessDeniedError):
        await admin.producer_connections("g", broker="a:1")
    with pytest.raises(AccessDeniedError):
        await admin.reset_offsets("g", "T", 0)


# -- reports ------------------------------------------------------------------------------------
async def test_exports_add_up_what_the_masters_have(client: Servers, admin: Admin) -> None:
    client.answers["a:1", RequestCode.GET_ALL_TOPIC_CONFIG] = TOPICS % 3
    client.answers["b:1", RequestCode.GET_ALL_TOPIC_CONFIG] = TOPICS % 4
    client.answers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = GROUPS
    client.answers[RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER] = b'{"topicList":["TBW102"]}'
    found = await admin.export_metadata(cluster="C")
    assert {name: each.read_queue_nums for name, each in found.topics.items()} == {"T": 7}
    assert {name: each.retry_queue_nums for name, each in found.groups.items()} == {"g": 4}
    written = json.loads(found.to_json())
    assert written["topicConfigTable"]["T"]["writeQueueNums"] == 4
    assert written["exportTime"] == found.exported_ms
    special = await admin.export_metadata(broker="a:1", special=True, groups=False)
    assert (sorted(special.topics), special.groups) == (["%RETRY%g", "T"], {})
    client.answers[RequestCode.GET_BROKER_CONFIG] = b"brokerName=a\nbrokerRole=ASYNC_MASTER\nx=1\n"
    configs = await admin.export_configs(cluster="C")
    assert (configs.name_servers, configs.masters, configs.slaves) == (2, 2, 1)
    assert configs.brokers["a"]["brokerRole"] == "ASYNC_MASTER"
    assert "x" not in configs.brokers["a"]


async def round_of(client: Servers, admin: Admin) -> MonitorRound:
    client.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = b'{"topicList":["%RETRY%g"]}'
    client.answers[RequestCode.GET_CONSUMER_RUNNING_INFO] = RUNNING % (0, b"false", b"*")
    client.answers[RequestCode.GET_CONSUME_STATS] = PROGRESS
    client.answers[RequestCode.GET_TOPIC_STATS_INFO] = stats("a", 9)
    return await admin.monitor_round(since_ms=0)


async def test_a_monitor_tells_what_is_left_and_how_late(client: Servers, admin: Admin) -> None:
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = MEMBERS
    found = await round_of(client, admin)
    [undone] = found.undone
    # Both brokers of the route tell of the same queue here.
    assert (undone.group, undone.topic, undone.queue_max) == ("g", "T", 5)
    assert undone.delay_ms_max == 2
    assert list(found.statuses) == ["g"]
    assert found.failed == {}


async def test_a_monitor_goes_on_past_groups_that_are_not_there(
    client: Servers, admin: Admin
) -> None:
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = (206, "not online")
    found = await round_of(client, admin)
    assert (found.undone, found.statuses, found.failed) == ((), {}, {})
    client.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = ConnectError("down")
    assert (await round_of(client, admin)).failed == {"g": "down"}
