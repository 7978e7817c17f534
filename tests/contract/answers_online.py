"""More requests: those that reach a consumer that is online, and those that need expressions,
other clients' versions, or what an earlier answer said."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kerolox.message import MessageId
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import LanguageCode, MessageSysFlag, RequestCode
from kerolox.protocol.records import encode_batch
from tests.contract.answers import CLIENT, GROUP, TOPIC, Case, of_pull, of_send, spoiled
from tests.support.clients.requests import heartbeat_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerolox.protocol.command import RemotingCommand

__all__ = ["online_cases"]

FILTERS, LONELY, SHUT = "answers-filters", "answers-lonely", "answers-no-broadcast"
BATCHES, HALVES, BACK = "AnswersBatch", "AnswersHalf", "AnswersBack"


def online_cases() -> Iterator[Case]:
    """In the order in which they are sent."""
    yield from _constants()
    yield from _resets()
    yield from _questions()
    yield from _groups()
    yield from _expressions()
    yield from _batches()
    yield from _send_backs()
    yield from _halves()
    yield from _settings()
    stats = RequestCode.VIEW_BROKER_STATS_DATA
    for name, key in (
        ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@2"),
        ("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@2"),
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"),
        ("SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"),
        ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"),
        ("GROUP_GET_LATENCY", f"0@{TOPIC}@{GROUP}"),
        ("BROKER_GET_NUMS", "DefaultCluster"),
        ("QUEUE_PUT_NUMS", f"{TOPIC}@0"),
    ):
        yield Case(f"figures {name} {key}", stats, {"statsName": name, "statsKey": key})


def _constants() -> Iterator[Case]:
    """Codes that have a name and nobody who answers, those of the filter server too."""
    for code in (13, 22, 23, 27, 50_000, 209, 210, 211, 212, 213, 214, 301, 302, 330):
        yield Case(f"a code without a handler, {code}", code)


# -- what goes on to the consumer ---------------------------------------------------------------
def _resets() -> Iterator[Case]:
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "commitOffset": "1"}
    for number in range(4):
        told = {**queue, "queueId": str(number)}
        yield Case(f"an offset in queue {number}", RequestCode.UPDATE_CONSUMER_OFFSET, told)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
    yield Case("reset", code, reset)
    for name in ("topic", "group"):
        others = {key: value for key, value in reset.items() if key != name}
        yield Case(f"reset without {name}", code, others)
    for time in ("-1", "-2", "1", "9999999999999"):
        for force in ("true", "false"):
            members = {**reset, "timestamp": time, "isForce": force}
            yield Case(f"reset to {time}, by force: {force}", code, members)
    moved = of_pull("pull what moved", topic="OFFSET_MOVED_EVENT", sysFlag="4", maxMsgNums="1")
    yield replace(moved, reads_back=True)
    yield Case("reset for a C++ tool", code, reset, language=LanguageCode.CPP)
    yield Case("reset with an offset as 5.x has it", code, {**reset, "offset": "1"})


def _questions() -> Iterator[Case]:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    asked = {"topic": TOPIC, "group": GROUP, "clientAddr": CLIENT}
    yield Case("status of a client", code, asked)
    yield Case("status of all clients", code, {**asked, "clientAddr": ""})
    yield Case("status of another client", code, {**asked, "clientAddr": "x"})
    running = {"consumerGroup": GROUP, "clientId": CLIENT, "jstackEnable": "true"}
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    yield from spoiled(Case("running info", code, running))
    yield Case("running info of another client", code, {**running, "clientId": "x"})
    directly = {
        "consumerGroup": GROUP,
        "clientId": CLIENT,
        "msgId": "7F00000100002A9F0000000000000000",
    }
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    yield from spoiled(Case("consume directly", code, directly))
    for message_id in ("", "zz", "7F00000100002A9F0000000000000005"):
        named = {**directly, "msgId": message_id}
        yield Case(f"consume directly what is {message_id!r}", code, named)


# -- groups -------------------------------------------------------------------------------------
def _heartbeat(group: str, expression: str, kind: str, version: int, model: str) -> bytes:
    return heartbeat_body(
        CLIENT,
        group=group,
        topics={TOPIC: expression},
        version=version,
        expression_type=kind,
        model=model,
        unit_mode=True,
    )


def _groups() -> Iterator[Case]:
    code = RequestCode.HEART_BEAT
    for length in (100, 120, 121, 255):
        name = "g" * length
        body = _heartbeat(name, "*", "TAG", 1, "CLUSTERING")
        yield Case(f"a heartbeat of a group of {length}", code, {}, body)
        yield of_pull(f"pull by a group of {length}", consumerGroup=name)
    group = {"groupName": SHUT, "consumeBroadcastEnable": False}
    update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    yield Case("make a group that may not broadcast", update, {}, encode_body(group))
    for model in ("BROADCASTING", "CLUSTERING"):
        body = _heartbeat(SHUT, "*", "TAG", 1, model)
        yield Case(f"a heartbeat of a group that is {model}", code, {}, body)
        yield of_pull(f"pull by a group that is {model}", consumerGroup=SHUT)
    lonely = encode_body({"groupName": LONELY, "retryQueueNums": 0})
    yield Case("make a group without retry queues", update, {}, lonely)


def _expressions() -> Iterator[Case]:
    yield Case(
        "allow expressions", RequestCode.UPDATE_BROKER_CONFIG, {}, b"enablePropertyFilter=true\n"
    )
    for text in ("k > 1", "k >", "", "k between 1 and 'x'", "TAGS is not null"):
        subscription = {"topic": TOPIC, "subString": text, "expressionType": "SQL92"}
        check = {"clientId": CLIENT, "group": FILTERS, "subscriptionData": subscription}
        yield Case(f"check {text!r}", RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(check))
    code = RequestCode.HEART_BEAT
    for text, version in (("k >", 5), ("TAGS = 'red'", 6), ("KEYS is null", 7), ("k >", 8)):
        body = _heartbeat(FILTERS, text, "SQL92", version, "CLUSTERING")
        yield Case(f"a heartbeat with {text} of {version}", code, {}, body)
        for wanted in (version - 1, version, version + 1):
            name = f"pull {wanted} of {text} of {version}"
            yield of_pull(name, consumerGroup=FILTERS, subVersion=str(wanted))
    for text in ("TAGS = 'red'", "TAGS = 'blue'", "UNIQ_KEY is not null", "k >", ""):
        yield of_pull(
            f"pull by {text!r}",
            sysFlag="4",
            subscription=text,
            expressionType="SQL92",
            consumerGroup=FILTERS,
            maxMsgNums="2",
        )
    yield of_pull("pull by an unknown kind", sysFlag="4", subscription="x", expressionType="X")


def _settings() -> Iterator[Case]:
    """What is refused when the settings say so, and only then."""
    half = "TRAN_MSG\x01true\x02PGROUP\x01answers-producers\x02"
    for setting in (
        "autoCreateSubscriptionGroup=false",
        "brokerPermission=4",
        "brokerPermission=2",
        "rejectTransactionMessage=true",
        "traceOn=false",
        "regionId=here",
        # The last: once it refused a topic, the Java broker makes none any more.
        "autoCreateTopicEnable=false",
    ):
        key, value = setting.split("=")
        before = {"4": "6", "2": "6", "true": "false", "false": "true", "here": "DefaultRegion"}
        update = RequestCode.UPDATE_BROKER_CONFIG
        yield Case(f"set {setting}", update, {}, f"{setting}\n".encode())
        name = re.sub(r"\W", "", setting)
        yield of_send(f"with {setting} send", e="3")
        yield of_send(f"with {setting} send to a new topic", b=f"T{name}", e="3")
        yield of_send(f"with {setting} send to an ordered topic", b="AnswersOrder")
        yield of_send(f"with {setting} send to a retry topic", b=f"%RETRY%G{name}")
        yield replace(
            of_send(f"with {setting} send a half", i=half, f="4"),
            volatile=frozenset(("queueOffset",)),
        )
        yield of_pull(f"with {setting} pull", sysFlag="4")
        yield of_pull(f"with {setting} pull by a new group", consumerGroup=f"N{name}", sysFlag="4")
        body = _heartbeat(f"H{name}", "*", "TAG", 1, "CLUSTERING")
        yield Case(f"with {setting} a heartbeat of a new group", RequestCode.HEART_BEAT, {}, body)
        yield of_pull(f"with {setting} pull after it", consumerGroup=f"H{name}")
        members = {"offset": "0", "group": f"B{name}", "delayLevel": "0"}
        back = RequestCode.CONSUMER_SEND_MSG_BACK
        yield Case(f"with {setting} send back", back, members)
        undone = f"{key}={before[value]}\n".encode()
        yield Case(f"unset {setting}", update, {}, undone)


# -- what is stored -----------------------------------------------------------------------------
def _batches() -> Iterator[Case]:
    items = [(flag, b"%d" % flag, b"TAGS\x01a\x02") for flag in range(3)]
    batch = encode_batch(items)
    for name, members in {
        "": {},
        "to any queue": {"e": "-1", "b": "AnswersBatch3"},
        "to a queue that is not there": {"e": "99"},
        "with properties of all": {"i": "COMMON\x01x\x02"},
        "with a delay of all": {"i": "DELAY\x013\x02"},
        "of halves": {"f": "4"},
        "that is said to be one message": {"m": "false"},
        "to a topic unknown": {"b": "AnswersBatch2"},
    }.items():
        fields = {"b": BATCHES, "m": "true", "i": "", **members}
        case = of_send(f"send a batch {name}", batch, RequestCode.SEND_BATCH_MESSAGE, **fields)
        yield replace(case, volatile=frozenset(("queueId",)))
    yield replace(of_pull("pull a batch", topic=BATCHES, sysFlag="4"), reads_back=True)


def _physical_offset(answer: RemotingCommand) -> int:
    return MessageId.parse(answer.ext_fields["msgId"]).physical_offset


def _send_backs() -> Iterator[Case]:
    def offset(answer: RemotingCommand) -> dict[str, str]:
        return {"offset": str(_physical_offset(answer))}

    yield of_send("send what will come back", b=BACK, i="TAGS\x01a\x02")
    members = {"group": GROUP, "delayLevel": "0", "originMsgId": "id", "originTopic": BACK}
    for name, other in {
        "": {},
        "to the dead": {"delayLevel": "-1"},
        "in unit mode": {"unitMode": "true", "group": "answers-unit"},
        "for the last time": {"maxReconsumeTimes": "0"},
        "without retry queues": {"group": LONELY},
        "by a group of 121": {"group": "g" * 121},
    }.items():
        yield Case(
            f"send it back {name}",
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {**members, **other},
            after=("send what will come back", offset),
        )
    yield Case(
        "send it back as an old client, for the last time",
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {**members, "maxReconsumeTimes": "0"},
        after=("send what will come back", offset),
        version=120,
    )
    dead = of_pull("pull the dead letters", topic=f"%DLQ%{GROUP}", sysFlag="4", maxMsgNums="32")
    yield replace(dead, reads_back=True)
    for level in (3, 4, 18):
        name = f"look into level {level}"
        queue = {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": str(level - 1)}
        yield Case(name, RequestCode.GET_MAX_OFFSET, queue)


def _halves() -> Iterator[Case]:
    def place(answer: RemotingCommand) -> dict[str, str]:
        return {
            "tranStateTableOffset": answer.ext_fields["queueOffset"],
            "commitLogOffset": str(_physical_offset(answer)),
        }

    def elsewhere(answer: RemotingCommand) -> dict[str, str]:
        return {**place(answer), "tranStateTableOffset": "77"}

    properties = "TRAN_MSG\x01true\x02PGROUP\x01answers-producers\x02TAGS\x01a\x02"
    group = "answers-producers"
    ends = {"fromTransactionCheck": "false", "msgId": "id", "transactionId": "id"}
    commit = str(int(MessageSysFlag.TRANSACTION_COMMIT))
    roll = str(int(MessageSysFlag.TRANSACTION_ROLLBACK))
    for number, (name, kind, producers, where) in enumerate(
        (
            ("commit it", commit, group, place),
            ("commit it for another group", commit, "nobody", place),
            ("commit what lies elsewhere", commit, group, elsewhere),
            ("roll it back", roll, group, place),
            ("roll it back for another group", roll, "nobody", place),
        )
    ):
        sent = f"send half {number}"
        half = of_send(sent, b"%d" % number, b=HALVES, i=properties, f="4")
        # The Java broker has deleted the halves that were there, as those of an unused topic.
        yield replace(half, volatile=frozenset(("queueOffset",)))
        yield Case(
            name,
            RequestCode.END_TRANSACTION,
            {**ends, "producerGroup": producers, "commitOrRollback": kind},
            after=(sent, where),
        )
    committed = of_pull("pull what was committed", topic=HALVES, sysFlag="4")
    yield replace(committed, reads_back=True)
