"""mqadmin of RocketMQ 5.5.0 (Maven ``org.apache.rocketmq:rocketmq-tools:5.5.0``) at our servers,
and with ``KEROLOX_SOFTWARE=all`` that of 5.3.3.

Each of its commands stands in one of three tables here: it works, it asks for what is not served
(``docs/differences.md`` lists these codes), or it does not run, for a reason.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kerolox.admin.sync import Admin
from kerolox.client import ConsumeFromWhere, PushConsumerSettings
from kerolox.client.sync import Producer, PullConsumer, PushConsumer
from kerolox.message import Message
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import RemotingCommand
from tests.interop.mqadmin import MqAdminProcess
from tests.support.clients.patient import PatientConnection
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL, build_java
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kerolox.message import MessageExt

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.xdist_group("java")]

DIFFERENCES = Path(__file__).resolve().parents[2] / "docs" / "differences.md"

VERSIONS = ("5.5.0", "5.3.3") if RUNS_ALL else ("5.5.0",)

SINCE_5_5 = {
    *("getBrokerLiteInfo", "getLiteClientInfo", "getLiteGroupInfo", "getLiteTopicInfo"),
    *("getParentTopicInfo", "switchTimerEngine", "triggerLiteDispatch"),
}
"""Commands that 5.3.3 has not; all others are the same, and get the same answers."""

BROKER = "-n {namesrv} -b {broker}"
CLUSTER = "-n {namesrv} -c DefaultCluster"

WORKS = {
    # Command: its arguments, and a pattern of what it prints.
    "allocateMQ": ("-n {namesrv} -t Read -i 10.0.0.1,10.0.0.2", r'"10\.0\.0\.2":\[\{"brokerName"'),
    "brokerConsumeStats": (BROKER, r"^Read +readers +broker-a +\d +1 +1 +0 "),
    "brokerStatus": (BROKER, r"^putMessageTimesTotal +: \d+"),
    "checkMsgSendRT": ("-n {namesrv} -t Sent -a 2 -s 10", r"^broker-a +\d +true +\d"),
    "cleanExpiredCQ": (BROKER, r"^success"),
    "cleanUnusedTopic": (BROKER, r"^success"),
    "cloneGroupOffset": (
        "-n {namesrv} -s readers -d copied -t Read -o true",
        r"clone group offset success. srcGroup\[readers\], destGroup=\[copied\]",
    ),
    "clusterList": (CLUSTER, r"^DefaultCluster +broker-a +0 +{broker} +V4_9_8 .*\|N,Nms\)"),
    "consumeMessage": (
        "-n {namesrv} -t Read -b broker-a -i 0 -o 0 -c 1",
        r"MSGID: \S+ .*BODY: message 0",
    ),
    "consumerConnection": ("-n {namesrv} -g readers", r"^Read +\*"),
    "consumerProgress": ("-n {namesrv} -g readers", r"^Read +broker-a +\d +1 +1 "),
    "consumerStatus": ("-n {namesrv} -g readers", r"^1 +\S+@\S+ +V4_9_8"),
    "deleteExpiredCommitLog": (BROKER, r"^success"),
    "deleteKvConfig": ("-n {namesrv} -s NAMES -k gone", r"delete kv config from namespace success"),
    "deleteSubGroup": (BROKER + " -g gone", r"delete subscription group \[gone\] .* success"),
    "deleteTopic": (CLUSTER + " -t Gone", r"delete topic \[Gone\] from NameServer success"),
    "exportConfigs": (CLUSTER + " -f {folder}", r"export \S+configs.json success"),
    "exportMetadata": (CLUSTER + " -f {folder}", r"export \S+metadata.json success"),
    "exportMetrics": (CLUSTER + " -f {folder}", r"export \S+metrics.json success"),
    "exportPopRecord": (BROKER, r"^Export broker records, .* brokerAddr={broker}, dryRun=false"),
    "getBrokerConfig": (BROKER, r"^brokerName += +broker-a"),
    "getConsumerConfig": ("-n {namesrv} -g readers", r"^retryMaxTimes += +16"),
    "getNamesrvConfig": ("-n {namesrv}", r"^serverChannelMaxIdleTimeSeconds += +120"),
    "haStatus": (BROKER, r"#MasterAddr\s+{broker}\n#MasterCommitLogMaxOffset\s+\d+\n#SlaveNum\s+0"),
    "printMsg": ("-n {namesrv} -t Read -d true", r"MSGID: \S+ .*BODY: message 0"),
    "printMsgByQueue": (
        "-n {namesrv} -t Read -a broker-a -i 0 -p true -d true",
        r"MSGID: \S+ .*BODY: message 0",
    ),
    "producer": (BROKER, r"producer group \(senders\) instance : clientId="),
    "producerConnection": ("-n {namesrv} -g senders -t Read", r"0001 +\S+@\S+ .* V4_9_8"),
    "queryCq": (BROKER + " -t Read -q 0 -i 0 -c 1", r"max: 1, min: 0"),
    "queryMsgById": ("-n {namesrv} -i {offset_id} -t Read", r"^Topic: +Read"),
    "queryMsgByKey": ("-n {namesrv} -t Read -k key-0", r"^{id} +0 +0"),
    "queryMsgByOffset": ("-n {namesrv} -t Read -b broker-a -i 0 -o 0", r"^OffsetID: +\w+"),
    "queryMsgByUniqueKey": ("-n {namesrv} -i {id} -t Read", r"^Keys: +\[key-0\]"),
    "resetOffsetByTime": (
        # The last message is nearest to now, as with a broker of 4.9.
        "-n {namesrv} -g without-offsets -t Read -s now",
        r"consumerGroup\[without-offsets\](?s:.*)^broker-a +0 +1 +0 +0 +0",
    ),
    "sendMessage": ("-n {namesrv} -t Sent -p hello", r"^broker-a +\d +SEND_OK +\w+"),
    "sendMsgStatus": ("-n {namesrv} -b Sent -c 1", r"sendStatus=SEND_OK"),
    "setConsumeMode": (
        BROKER + " -t Read -g poppers -m POP",
        r"^set consume mode to {broker} succ",
    ),
    "skipAccumulatedMessage": (
        "-n {namesrv} -g skippers -t Read",
        r"^broker-a +0 +1 +0 +1 +1",
    ),
    "statsAll": ("-n {namesrv} -t Read", r"^Read +readers +0 "),
    "topicClusterList": ("-n {namesrv} -t Read", r"^DefaultCluster$"),
    "topicList": ("-n {namesrv}", r"^Read$"),
    "topicRoute": ("-n {namesrv} -t Read", r'0"?:"{broker}"'),
    "topicStatus": ("-n {namesrv} -t Read", r"^broker-a +0 +0 +1 +20\d\d-"),
    "updateBrokerConfig": (BROKER + " -k fileReservedTime -v 9", r"update broker config success"),
    "updateKvConfig": (
        "-n {namesrv} -s NAMES -k kept -v 1",
        r"create or update kv config .*success",
    ),
    "updateNamesrvConfig": (
        "-n {namesrv} -k serverChannelMaxIdleTimeSeconds -v 120",
        r"update name server config success",
    ),
    "updateOrderConf": (
        "-n {namesrv} -t Ordered -m put -v broker-a:4",
        r"update orderConf success",
    ),
    "updateSubGroup": (BROKER + " -g made", r"create subscription group to {broker} success"),
    "updateTopic": (
        CLUSTER + " -t Made -r 4 -w 4 -a +message.type=TRANSACTION",
        r"create topic to {broker} success",
    ),
    "updateTopicList": (BROKER + " -f {folder}/topics.json", r"submit batch of topic config to"),
    "updateTopicPerm": (
        BROKER + " -t Closed -p 4",
        r"update topic perm from 6 to 4 in {broker} success",
    ),
}

REFUSED = {
    # Command: its arguments, and the request code that is answered with 3.
    "addBroker": ("-c {broker} -b {folder}/broker.conf", 902),
    "checkRocksdbCqWriteProgress": (CLUSTER + " -t Read", 354),
    "copyAcl": ("-n {namesrv} -f {broker} -t {broker} -s User:u", 3009),
    "copyUser": ("-n {namesrv} -f {broker} -t {broker} -u u", 3004),
    "createAcl": (BROKER + " -s User:u -r Topic:Read -a Pub -d Allow", 3006),
    "createUser": (BROKER + " -u u -p p", 3001),
    "deleteAcl": (BROKER + " -s User:u", 3008),
    "deleteUser": (BROKER + " -u u", 3003),
    "getAcl": (BROKER + " -s User:u", 3009),
    "getBrokerLiteInfo": (BROKER, 200074),
    "getColdDataFlowCtrInfo": (BROKER, 2003),
    "getControllerConfig": ("-a {broker}", 1010),
    "getControllerMetaData": ("-a {namesrv}", 1005),
    "getLiteClientInfo": ("-n {namesrv} -p Read -g readers -c c", 200077),
    "getLiteGroupInfo": ("-n {namesrv} -p Read -g readers -l l", 200078),
    "getLiteTopicInfo": ("-n {namesrv} -p Read -l l", 200076),
    "getParentTopicInfo": ("-n {namesrv} -p Read", 200075),
    "getSyncStateSet": ("-n {namesrv} -b broker-a -a {namesrv}", 1005),
    "getUser": (BROKER + " -u u", 3004),
    "listAcl": (BROKER, 3010),
    "listUser": (BROKER, 3005),
    "removeBroker": ("-c {broker} -b DefaultCluster:broker-a:0", 903),
    "removeColdDataFlowCtrGroupConfig": (BROKER + " -g readers", 2002),
    "resetMasterFlushOffset": (BROKER + " -o 0", 908),
    "rocksDBConfigToJson": (CLUSTER + " -t topics", 355),
    "setCommitLogReadAheadMode": (BROKER + " -m 0", 2004),
    "switchTimerEngine": (BROKER + " -e R", 5001),
    "triggerLiteDispatch": ("-n {namesrv} -p Read -g readers", 200079),
    "updateAcl": (BROKER + " -s User:u -r Topic:Read -a Pub -d Allow", 3007),
    "updateColdDataFlowCtrGroupConfig": (BROKER + " -g readers -v 1", 2001),
    "updateControllerConfig": ("-a {broker} -k key -v value", 1009),
    "updateStaticTopic": (CLUSTER + " -t Static -qn 2", 513),
    "updateSubGroupList": (BROKER + " -f {folder}/groups.json", 225),
    "updateUser": (BROKER + " -u u -p p", 3002),
}

WITHOUT_CONTROLLER = {"getBrokerEpoch": "-n {namesrv} -b broker-a"}
"""What a broker answers as RocketMQ's does that no controller has."""

KEEPS_THE_ANSWER = {each for each in REFUSED if "Lite" in each} - {"getBrokerLiteInfo"} | {
    "getParentTopicInfo"
}
"""These print ``error`` in place of the answer. A test below asks for all codes itself."""

NOT_RUN = {
    "cleanBrokerMetadata": "wants a controller, and ends the whole Java process without one",
    "clusterRT": "goes on for ever",
    "dumpCompactionLog": "reads a file and asks nobody",
    "electMaster": "wants a controller, and ends the whole Java process without one",
    "exportMetadataInRocksDB": "reads a file and asks nobody",
    "queryMsgTraceById": "wants a trace, which test_java_traces.py makes",
    "remappingStaticTopic": "wants a static topic, which can't be made",
    "startMonitoring": "goes on for ever",
}


def of_versions(commands: Iterable[str]) -> pytest.MarkDecorator:
    """A test with each of the commands in each version that has it."""
    pairs = [
        (version, command)
        for version in VERSIONS
        for command in commands
        if version != "5.3.3" or command not in SINCE_5_5
    ]
    # The scope of a parameter is stronger than that of a fixture which it is meant for: without it
    # each command would have servers and a Java process of its own.
    return pytest.mark.parametrize(("asked", "command"), pairs, indirect=["asked"], scope="module")


READING = PushConsumerSettings(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, persist_interval_ms=50
)


class Asked(NamedTuple):
    """Our servers, and mqadmin of a version."""

    version: str
    up: Up
    process: MqAdminProcess
    values: dict[str, str]

    def __call__(self, command: str, arguments: str) -> str:
        return self.process.ask(command, *self.filled(arguments).split())

    def filled(self, text: str) -> str:
        """The text with the servers' addresses and the like in it."""
        for name, value in self.values.items():
            text = text.replace(f"{{{name}}}", value)
        return text


@pytest.fixture(scope="module", params=VERSIONS)
def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asked]:
    """A topic whose four queues have a message each, all read by a group that is online."""
    folder = tmp_path_factory.mktemp("mqadmin55")
    (folder / "topics.json").write_text(json.dumps([{"topicName": "Listed", "perm": 6}]))
    (folder / "groups.json").write_text(json.dumps([{"groupName": "listed"}]))
    seen: set[bytes] = set()

    def listener(messages: list[MessageExt]) -> None:
        seen.update(bytes(each.body) for each in messages)

    with (
        Up(folder / "up", settings={"brokerName": "broker-a"}) as up,
        Producer("senders", up.namesrv) as producer,
        MqAdminProcess(folder / "home", tools=build_java(f"versions-{request.param}")) as process,
    ):
        for topic in ("Read", "Sent", "Closed", "Gone"):
            producer.create_topic(topic, queues=4)
        queues = producer.queues("Read")
        sent = [
            producer.send(
                Message("Read", b"message %d" % each.queue_id, keys=(f"key-{each.queue_id}",)),
                queue=each,
            )
            for each in queues
        ]
        [first] = [each for each in sent if each.queue.queue_id == 0]
        consumer = PushConsumer("readers", up.namesrv, settings=READING)
        consumer.subscribe("Read", "*", listener)
        with consumer, PullConsumer("readers", up.namesrv) as offsets:
            wait_until(lambda: len(seen) == len(queues), what="all messages")
            wait_until(
                lambda: [offsets.committed(each) for each in queues] == [1] * len(queues),
                what="the group's offsets",
            )
            values = {
                "namesrv": up.namesrv,
                "broker": up.broker,
                "folder": str(folder),
                "id": first.message_id,
                "offset_id": first.offset_message_id,
            }
            yield Asked(request.param, up, process, values)


def documented() -> dict[str, set[int]]:
    """The request codes of each row about software of 5.x, by what is said of them."""
    text = DIFFERENCES.read_text().partition("## Software of RocketMQ 5")[2].partition("\n## ")[0]
    found: dict[str, set[int]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            what, _, ours = (cell.strip() for cell in line.strip("|").split("|"))
            codes = found.setdefault(ours, set())
            for first, last in re.findall(r"\b(\d{2,6})(?: to (\d{2,6}))?", what):
                codes.update(range(int(first), int(last or first) + 1))
    return found


@of_versions(WORKS)
def test_a_command_of_5_5_works(command: str, asked: Asked) -> None:
    arguments, pattern = WORKS[command]
    said = asked(command, arguments)
    assert re.search(asked.filled(pattern), said, re.MULTILINE), said
    assert "SubCommandException" not in said, said


def test_a_type_that_mqadmin_gives_is_kept_and_a_wrong_one_is_refused(asked: Asked) -> None:
    make = CLUSTER + " -t Typed -r 1 -w 1 -a +message.type="
    assert "success" in asked("updateTopic", make + "FIFO")
    with Admin(asked.up.namesrv) as admin:
        assert admin.topic_attributes("Typed") == {"broker-a": {"message.type": "FIFO"}}
        said = asked("updateTopic", make + "SOME")
        assert re.search(r"CODE: 1 +DESC: value is not in set: \[UNSPECIFIED, ", said), said
        assert admin.topic_attributes("Typed") == {"broker-a": {"message.type": "FIFO"}}


def test_the_permission_to_write_is_wiped_and_given_back(asked: Asked) -> None:
    try:
        said = asked("wipeWritePerm", "-n {namesrv} -b broker-a")
        assert re.search(r"wipe write perm of broker\[broker-a\] .* OK, \d", said), said
    finally:
        said = asked("addWritePerm", "-n {namesrv} -b broker-a")
    assert re.search(r"add write perm of broker\[broker-a\] .* OK, \d", said), said


@of_versions(REFUSED)
def test_a_command_of_5_5_that_is_not_served_says_so(command: str, asked: Asked) -> None:
    arguments, code = REFUSED[command]
    said = asked(command, arguments)
    if command in KEEPS_THE_ANSWER:
        assert "error" in said, said
    else:
        assert re.search(rf"CODE: 3 +DESC: +request type {code} not supported", said), said


def test_a_broker_without_a_controller_has_no_epochs(asked: Asked) -> None:
    said = asked("getBrokerEpoch", WITHOUT_CONTROLLER["getBrokerEpoch"])
    assert re.search(r"CODE: 1 +DESC: .*enableControllerMode", said), said


def test_a_setting_of_5_5_is_unknown_to_the_name_server(asked: Asked) -> None:
    said = asked("updateNamesrvConfig", "-n {namesrv} -k deleteTopicWithBrokerRegistration -v true")
    assert "unknown setting 'deleteTopicWithBrokerRegistration'" in said


def test_each_command_of_5_5_stands_in_one_table(asked: Asked) -> None:
    listed = re.findall(r"^   (\w+)  ", asked.process.ask(), re.MULTILINE)
    by_hand = "wipeWritePerm", "addWritePerm", *WITHOUT_CONTROLLER
    tables = [*WORKS, *by_hand, *REFUSED, *NOT_RUN]
    expected = tables if asked.version != "5.3.3" else set(tables) - SINCE_5_5
    assert sorted(expected) == sorted(listed)


def test_codes_that_mqadmin_5_5_needs_are_documented() -> None:
    every = set().union(*documented().values())
    assert {code for _, code in REFUSED.values()} - every == set()


def test_each_code_that_is_documented_as_refused_is_refused(asked: Asked) -> None:
    refused = {
        code for ours, codes in documented().items() if ours.startswith("code 3") for code in codes
    }
    assert len(refused) > 30
    with PatientConnection(asked.up.broker) as connection:
        answers = {
            code: connection.invoke(RemotingCommand.request(code, {})).code for code in refused
        }
    assert answers == dict.fromkeys(refused, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
