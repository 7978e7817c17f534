"""Invocations of all commands of mqadmin 4.9, with what they have to bring about.

They run in this order: what is made by one is shown by the next, and the last ones delete the
messages that the others examine.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.interop.parity.case import Case
from tests.interop.parity.side import (
    BROKER_NAME,
    CLUSTER,
    MONITOR,
    OFFLINE,
    ONLINE,
    PRODUCERS,
    READING,
    SINGLE,
    STALE,
    TOPIC,
    UNUSED,
)
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.parity.case import Effect
    from tests.interop.parity.side import Side

__all__ = ["CASES"]

HOURS = "fileReservedTime"
MADE, OTHER = "ParityMade", "ParityOther"


# -- effects --------------------------------------------------------------------------------------
def topic(name: str) -> Effect:
    """Queues to read and to write, permissions, flags, order."""

    def look(side: Side) -> object:
        found = side.admin.topic_settings(side.broker, name)
        if found is None:
            return None
        queues = found.read_queue_nums, found.write_queue_nums
        order = side.admin.topic_order(name)
        return (*queues, int(found.perm), found.topic_sys_flag, found.order, order)

    return look


def group(name: str) -> Effect:
    """How often it retries, and whether it may consume."""

    def look(side: Side) -> object:
        found = side.admin.group_settings(side.broker, name)
        return None if found is None else (found.retry_max_times, found.consume_enable)

    return look


def offsets(name: str, *wanted: int) -> Effect:
    """What a group has committed; a member that is online does so some time later."""

    def look(side: Side) -> object:
        wait_until(lambda: side.offsets(name) == [*wanted], what=f"{wanted} of {name}")
        return side.offsets(name)

    return look


def messages(name: str, wanted: int) -> Effect:
    """How many a topic has."""
    return lambda side: side.shown(name, wanted)


def consumed(count: int) -> Effect:
    """How many came to the listener, at least so many."""

    def look(side: Side) -> object:
        wait_until(lambda: len(side.got) - side.mark >= count, what=f"{count} messages")
        return len(side.got) - side.mark

    return look


def permission(side: Side) -> object:
    """Of the topic in its route."""
    return [int(each.perm) for each in side.admin.describe_route(TOPIC).queues]


def queue_folders(side: Side) -> object:
    """Which of those two topics have files of a queue."""
    folders = (side.store / "consumequeue" / name for name in (STALE, UNUSED))
    return [folder.name for folder in folders if any(folder.rglob("0*0"))]


def accounts(side: Side) -> object:
    """Whether the account is in the file, and the range on the white list."""
    text = side.accounts.read_text()
    return "made-account" in text, "10.1.2." in text


def log_begins_later(side: Side) -> object:
    def look() -> bool:
        first = side.admin.describe_topic(TOPIC).queues[0]
        return first.min_offset == first.max_offset

    wait_until(look, what="the end of the log's first file")
    return True


def monitored(side: Side) -> object:
    """What it wrote of the group that is online."""
    log = side.home / "logs" / "rocketmqlogs" / "rocketmq_client.log"
    pattern = re.compile(r"\[MONITOR\] reportUndoneMsgs: (.*)")
    found: set[str] = set()

    def look() -> bool:
        text = log.read_text(errors="replace")
        lines = pattern.findall(text.rpartition("endRound")[0])
        found.update(re.sub(r"MQDelay\w*=-?\d+|DelayTimeMills=-?\d+", "", x) for x in lines)
        return "endRound" in text

    wait_until(look, what="a round of the monitor")
    return sorted(line for line in found if ONLINE in line)


# -- what is compared in place of an output -------------------------------------------------------
def with_file(name: str) -> Callable[[Side, str], str]:
    """The output, and the JSON file that was written."""

    def look(side: Side, text: str) -> str:
        written = json.loads((side.home / "exported" / name).read_text())
        return text + "\n" + json.dumps(written, indent=1, sort_keys=True)

    return look


def with_running_info(side: Side, text: str) -> str:
    """The output, and the file that it names."""
    found = re.search(r"\d{13}/\S+", text)
    return text if found is None else text + "\n" + (side.home / found[0]).read_text()


EXPORTED = "-f {home}/exported"
SHARES = (r"CLUSTERING ", r"PULL ", r"PUSH \w+ ", r"OFFLINE ")
"""The rates of consumerProgress are whole numbers."""
RUNTIME = (
    *(rf"{name} ?: " for name in ("pageCacheLockTimeMills", "dispatchBehindBytes")),
    *(rf"{name} ?: " for name in ("getMessageEntireTimeMax", "putMessageEntireTimeMax")),
    r"putMessageSizeTotal ?: ",  # a trace says how long the send took
    r"HeadWaitTimeMills ?: ",
    r"QueueSize ?: ",
    r"remainHowManyDataToFlush ?: ",
    r"runtime : \[ 0 days, 0 hours, 0 minutes, ",
    r"runtime : \[ 0 days, 0 hours, ",
)

CASES = (
    Case(
        "startMonitoring",
        monitored,
        [
            f"UndoneMsgs [consumerGroup={ONLINE}, topic={name}, undoneMsgsTotal=0,"
            " undoneMsgsSingleMQ=0, undoneMsgs]"
            for name in (f"%RETRY%{ONLINE}", TOPIC)
        ],
        late=True,
    ),
    Case(f"consumerConnection -g {MONITOR}", until="^Consume"),
    Case("cleanUnusedTopic -b {broker}", queue_folders, [STALE]),
    Case(f"cleanUnusedTopic -c {CLUSTER}", queue_folders, [STALE]),
    Case("cleanExpiredCQ -b {broker}", queue_folders, []),
    Case(f"cleanExpiredCQ -c {CLUSTER}", queue_folders, []),
    # -- looking
    Case("clusterList", moving=(r"<decimal>\(", r"\(<n>,", r"ms\) ")),
    Case("clusterList -m"),
    Case("topicList", sorted=True),
    Case("topicList -c", sorted=True),
    Case(f"topicRoute -t {TOPIC}"),
    Case(f"topicRoute -t {TOPIC} -l"),
    Case("topicRoute -t Nowhere", fails=True),
    Case(f"topicStatus -t {TOPIC}"),
    Case("topicStatus -t Nowhere", fails=True),
    Case(f"topicClusterList -t {TOPIC}"),
    Case("brokerStatus -b {broker}", moving=RUNTIME),
    Case(f"brokerStatus -c {CLUSTER}", moving=RUNTIME),
    Case("getBrokerConfig -b {broker}", sorted=True),
    Case(f"getBrokerConfig -c {CLUSTER}", sorted=True),
    Case("getNamesrvConfig", sorted=True),
    Case(f"consumerConnection -g {ONLINE}"),
    Case(f"consumerConnection -g {ONLINE} -b {{broker}}"),
    Case(f"consumerConnection -g {OFFLINE}", fails=True),
    Case(f"producerConnection -g {PRODUCERS} -t {TOPIC}"),
    Case(f"producerConnection -g nobody -t {TOPIC}", fails=True),
    Case("producer -b {broker}", sorted=True),
    Case("consumerProgress", sorted=True, moving=SHARES),
    Case(f"consumerProgress -g {ONLINE}"),
    Case(f"consumerProgress -g {ONLINE} -s true"),
    Case(f"consumerProgress -g {OFFLINE}"),
    Case("consumerProgress -g nobody", fails=True),
    Case(f"consumerStatus -g {ONLINE}", shown=with_running_info),
    Case(f"consumerStatus -g {ONLINE} -s -b {{broker}}"),
    Case(f"consumerStatus -g {ONLINE} -i {{client}}"),
    Case(f"getConsumerConfig -g {ONLINE}"),
    Case("brokerConsumeStats -b {broker}", sorted=True),
    Case("brokerConsumeStats -b {broker} -o true", sorted=True),
    Case("brokerConsumeStats -b {broker} -l 1 -t 9000", sorted=True),
    Case("queryMsgById -i {first},{second}", sorted=True),
    Case("queryMsgById -i {missing}", fails=True),
    Case(
        f"queryMsgById -i {{first}} -g {ONLINE} -d {{client}}",
        consumed(1),
        1,
        moving=("spentTimeMills=",),
    ),
    Case(f"queryMsgByKey -t {TOPIC} -k key-3"),
    Case(f"queryMsgByKey -t {TOPIC} -k no-key", fails=True),
    Case(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}}", sorted=True),
    Case(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}} -a", sorted=True),
    Case(
        f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}} -g {ONLINE} -d {{client}}",
        consumed(1),
        1,
        moving=("spentTimeMills=",),
    ),
    Case(f"queryMsgByOffset -t {TOPIC} -b {BROKER_NAME} -i 0 -o 3", sorted=True),
    Case(f"queryMsgByOffset -t {TOPIC} -b {BROKER_NAME} -i 0 -o 99"),
    Case(f"printMsg -t {TOPIC}"),
    Case(f"printMsg -t {TOPIC} -s late -d false"),
    Case(f"printMsg -t {TOPIC} -b {{between}} -c UTF-8"),
    Case(f"printMsgByQueue -t {TOPIC} -a {BROKER_NAME} -i 0 -p true -d true -f true"),
    Case(f"printMsgByQueue -t {TOPIC} -a {BROKER_NAME} -i 0 -s early -e {{between}} -p true"),
    Case(f"consumeMessage -t {TOPIC}"),
    Case(f"consumeMessage -t {TOPIC} -b {BROKER_NAME} -i 0 -o 4 -c 2 -g {READING}"),
    Case(f"consumeMessage -t {TOPIC} -b {BROKER_NAME} -i 0 -s {{between}}"),
    Case(f"queryCq -t {TOPIC} -q 0 -i 2 -c 3"),
    Case(f"queryCq -t {TOPIC} -q 0 -i 0 -c 1 -b {{broker}} -g {ONLINE}"),
    Case(f"allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2"),
    # -- topics
    Case(f"updateTopic -b {{broker}} -t {MADE} -r 3 -w 2", topic(MADE), (3, 2, 6, 0, False, None)),
    Case(
        f"updateTopic -c {CLUSTER} -t {MADE} -r 4 -w 4 -p 6", topic(MADE), (4, 4, 6, 0, False, None)
    ),
    Case(
        "updateTopic -b {broker} -t ParityOrdered -r 2 -w 2 -o true",
        topic("ParityOrdered"),
        (2, 2, 6, 0, False, "broker-a:2"),
        fails=True,  # that there is no order yet; and goes on
    ),
    Case(
        f"updateTopic -c {CLUSTER} -t ParityUnit -r 1 -w 1 -u true -s true -o true",
        topic("ParityUnit"),
        (1, 1, 6, 3, False, "broker-a:1"),
    ),
    Case(f"updateTopicPerm -b {{broker}} -t {MADE} -p 4", topic(MADE), (4, 4, 4, 0, False, None)),
    Case(f"updateTopicPerm -b {{broker}} -t {MADE} -p 4", topic(MADE), (4, 4, 4, 0, False, None)),
    Case(f"updateTopicPerm -c {CLUSTER} -t {MADE} -p 2", topic(MADE), (4, 4, 2, 0, False, None)),
    Case(
        f"updateOrderConf -t {MADE} -m put -v broker-a:2",
        topic(MADE),
        (4, 4, 2, 0, False, "broker-a:2"),
    ),
    Case(f"updateOrderConf -t {MADE} -m get"),
    Case(f"updateOrderConf -t {MADE} -m delete", topic(MADE), (4, 4, 2, 0, False, None)),
    Case(f"updateOrderConf -t {MADE} -m get", fails=True),
    Case(f"deleteTopic -t {MADE} -c {CLUSTER}", topic(MADE), None),
    Case(f"topicRoute -t {MADE}", fails=True),
    # -- groups
    Case(
        "updateSubGroup -b {broker} -g parity-made -r 3 -q 2 -s false -m true -d true -i 1 -w 2"
        " -a false",
        group("parity-made"),
        (3, False),
    ),
    Case("getConsumerConfig -g parity-made"),
    Case(f"updateSubGroup -c {CLUSTER} -g parity-made", group("parity-made"), (16, True)),
    Case("getConsumerConfig -g parity-made"),
    Case(
        f"cloneGroupOffset -s {OFFLINE} -d parity-made -t {TOPIC}",
        offsets("parity-made", 8, 0, 0, 0),
        [8, 0, 0, 0],
    ),
    Case("deleteSubGroup -b {broker} -g parity-made", group("parity-made"), None),
    Case(
        f"deleteSubGroup -c {CLUSTER} -g parity-made -r true",
        offsets("parity-made", 0, 0, 0, 0),
        [0, 0, 0, 0],
    ),
    Case("getConsumerConfig -g parity-made"),
    Case(
        f"resetOffsetByTime -g {OFFLINE} -t {TOPIC} -s {{between}}",
        offsets(OFFLINE, 5, 0, 0, 0),
        [5, 0, 0, 0],
        sorted=True,
    ),
    Case(
        f"resetOffsetByTime -g {OFFLINE} -t {TOPIC} -s now -f false",
        offsets(OFFLINE, 5, 0, 0, 0),
        [5, 0, 0, 0],
        sorted=True,
    ),
    Case(
        f"skipAccumulatedMessage -g {OFFLINE} -t {TOPIC}",
        offsets(OFFLINE, 10, 0, 0, 0),
        [10, 0, 0, 0],
        sorted=True,
    ),
    Case(f"resetOffsetByTime -g {ONLINE} -t {TOPIC} -s {{between}}", consumed(5), 5, sorted=True),
    Case(
        f"skipAccumulatedMessage -g {ONLINE} -t {TOPIC} -f true",
        offsets(ONLINE, 10, 0, 0, 0),
        [10, 0, 0, 0],
        sorted=True,
    ),
    # -- servers
    Case(
        f"updateBrokerConfig -b {{broker}} -k {HOURS} -v 9",
        lambda side: side.admin.broker_settings(side.broker)[HOURS],
        "9",
    ),
    Case(
        f"updateBrokerConfig -c {CLUSTER} -k {HOURS} -v 8",
        lambda side: side.admin.broker_settings(side.broker)[HOURS],
        "8",
    ),
    Case(
        "updateNamesrvConfig -k productEnvName -v parity",
        lambda side: side.admin.name_server_settings()[side.namesrv]["productEnvName"],
        "parity",
    ),
    Case(
        "updateKvConfig -s parity -k color -v blue",
        lambda side: side.admin.key_values("parity"),
        {"color": "blue"},
    ),
    Case(
        "deleteKvConfig -s parity -k color",
        lambda side: side.admin.get_key_value("parity", "color"),
        None,
    ),
    Case(f"wipeWritePerm -b {BROKER_NAME}", permission, [4]),
    Case(f"addWritePerm -b {BROKER_NAME}", permission, [6]),
    Case("wipeWritePerm -b nobody", permission, [6]),
    # -- messages
    Case("queryMsgTraceById -i {traced}", until="^Pub", moving=("<time> ",)),
    Case("queryMsgTraceById -i {unique}", fails=True),
    Case(f"sendMessage -t {SINGLE} -p hello -k sent -c tag -m true", messages(SINGLE, 3), 3),
    Case(f"sendMessage -t {SINGLE} -p hello -b {BROKER_NAME} -i 0", messages(SINGLE, 4), 4),
    Case("queryMsgById -i {single} -s true -u unit", messages(SINGLE, 5), 5),
    Case(
        f"sendMsgStatus -b {BROKER_NAME} -s 10 -c 2", messages(BROKER_NAME, 3), 3, moving=("rt=",)
    ),
    Case(f"clusterRT -a 2 -s 10 -c {CLUSTER} -i 1", lines=3),
    Case("clusterRT -a 2 -s 10 -p true -m room", lines=1, moving=(rf"{BROKER_NAME}\|",)),
    Case(f"checkMsgSendRT -t {SINGLE} -a 3 -s 10", messages(SINGLE, 8), 8, moving=("true ",)),
    Case(f"checkMsgSendRT -t {OTHER} -a 3 -s 10", messages(OTHER, 3), 3, moving=("true ",)),
    # -- reports
    Case(f"exportMetadata -c {CLUSTER} {EXPORTED}", shown=with_file("metadata.json")),
    Case(
        f"exportMetadata -b {{broker}} {EXPORTED} -t -s",
        shown=with_file("topic.json"),
        moving=('"counter": ',),
    ),
    Case(
        f"exportMetadata -b {{broker}} {EXPORTED} -g",
        shown=with_file("subscriptionGroup.json"),
        moving=('"counter": ',),
    ),
    Case(f"exportConfigs -c {CLUSTER} {EXPORTED}", shown=with_file("configs.json")),
    Case(
        f"exportMetrics -c {CLUSTER} {EXPORTED}",
        shown=with_file("metrics.json"),
        moving=(r'OneDay(In|Out)Num": ',),
    ),
    # A count is that of the last minute at first, so only one that is this new can be compared.
    Case(f"statsAll -a -t {OTHER}", until=f"^{OTHER} 0 <decimal> 3 "),
    Case("statsAll", sorted=True, moving=("<decimal> ", "<decimal> <n> ")),
    # -- accounts
    Case(
        "updateAclConfig -b {broker} -a made-account -s made-secret -t T=PUB|SUB,U=SUB -g g=SUB"
        " -w 10.0.0.* -i DENY -u SUB -m false",
        accounts,
        (True, False),
    ),
    Case(
        f"updateAclConfig -c {CLUSTER} -a made-account -s made-secret -m true",
        accounts,
        (True, False),
    ),
    Case("getAclConfig -b {broker}"),
    Case(f"getAclConfig -c {CLUSTER}"),
    # A Java broker that reads the file again after the first change shows an old version until the
    # next check of it, half a second later.
    Case("clusterAclConfigVersion -b {broker}", until="<accounts> 2 "),
    Case(f"clusterAclConfigVersion -c {CLUSTER}", until="<accounts> 2 "),
    Case("updateGlobalWhiteAddr -b {broker} -g 127.0.0.1,10.1.2.*", accounts, (True, True)),
    Case(
        f"updateGlobalWhiteAddr -c {CLUSTER} -g 127.0.0.1 -p {{accounts}}", accounts, (True, False)
    ),
    Case("deleteAclConfig -b {broker} -a made-account", accounts, (False, False)),
    Case(f"deleteAclConfig -c {CLUSTER} -a made-account", accounts, (False, False), fails=True),
    # -- the end
    Case(f"updateBrokerConfig -b {{broker}} -k {HOURS} -v 0"),
    Case("deleteExpiredCommitLog -b {broker}", log_begins_later, True, only="ours", late=True),
    Case(f"deleteExpiredCommitLog -c {CLUSTER}"),
)
"""A log is deleted at ours alone: a Java broker examines its files a minute after its start."""
